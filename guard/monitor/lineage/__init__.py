"""Who belongs to which agent: trees, their processes, and what each process runs. Bounded, and without a kernel.

Facts come with the root of their tree; here is kept what a fact does not say: what the process was started as, what
lately came from outside, how often it asked. What does not fit is counted, and told as a loss.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from guard.monitor.facts import Exec, Exit, Fork, Process, Received, Taint, TaintRead, Walk
from guard.monitor.findings import NOTHING, Context, Image
from guard.monitor.lineage.window import Window
from guard.monitor.settings import MonitorSettings

TREES_MOST = 10_000
PROCESSES_MOST = 100_000
TEXT_MOST = 12 << 20
"""Bytes of arguments that are kept; the processes that started longest ago lose theirs first."""
_WORD = 56
"""Bytes that a word costs beside its letters."""
_SAMPLES = 16
_BINDS = 64

_NEAR = 20_000_000
"""Nanoseconds: what comes from /proc is true to a clock tick."""


def same_start(one: int, other: int) -> bool:
    """Whether two starts are of one process; 0 is not known (of a root that ended before the monitor began)."""
    return not one or not other or abs(one - other) <= _NEAR


@dataclass(slots=True)
class Tree:
    """One agent session's processes.

    Args:
        pid, start: of the harness, also when it has ended and others live on.
        harness, how, confidence: as recognised.
        uid: the user who started it.
        since: seconds since 1970.
        session: its id: guard's own, or of `guard run`.
        user, login, slurm_job: whose, from which login, in which job.
        guarded: it runs under `guard run`.
        seeded: it ran before the monitor did: what flowed then is unknown.
        findings: severity → how many.
        alive: its living processes.
    """

    pid: int
    start: int
    harness: str
    how: str = ""
    confidence: str = "high"
    uid: int = 0
    since: float = 0.0
    session: str = ""
    user: str = ""
    login: int = 0
    slurm_job: int | None = None
    guarded: bool = False
    seeded: bool = False
    findings: dict[str, int] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    execs: int = 0
    submissions: int = 0
    polls_ever: int = 0
    samples: tuple[bytes, ...] = ()
    binds: tuple[tuple[int, int], ...] = ()
    commands: Window = field(default_factory=Window)
    polls: Window = field(default_factory=Window)
    calls: Window = field(default_factory=Window)
    told: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Member:
    start: int
    tree: int
    image: Image
    launched: bool
    uid: int


class Lineage:
    """The trees of this node.

    Args:
        trees, processes, text: bounds; `text` is in bytes of arguments.
    """

    def __init__(self, trees: int = TREES_MOST, processes: int = PROCESSES_MOST, text: int = TEXT_MOST) -> None:
        self.trees: dict[int, Tree] = {}
        self._members: dict[int, _Member] = {}
        self._texts: OrderedDict[int, int] = OrderedDict()
        self._text = 0
        self._most_trees, self._most_members, self._most_text = trees, processes, text
        self.lost: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._members)

    def tree_of(self, who: Process) -> Tree | None:
        """The tree that a fact's process is in."""
        tree = self.trees.get(who.root) if who.root else None
        return tree if tree is not None and same_start(tree.start, who.root_start) else None

    def add(self, tree: Tree) -> bool:
        """Take a new tree; False (and counted) where there is no room."""
        if tree.pid not in self.trees and len(self.trees) >= self._most_trees:
            self._lose("trees")
            return False
        self.trees[tree.pid] = tree
        return True

    def holds(self, pid: int) -> bool:
        """Whether a process is in some tree."""
        return pid in self._members

    def image(self, who: Process) -> Image:
        """What a process runs; `NOTHING` where its exec was not seen, or is forgotten."""
        member = self._member(who.pid, who.start)
        return member.image if member is not None else NOTHING

    def launched(self, who: Process) -> bool:
        """Whether a launcher of parallel programs stands above a process."""
        member = self._member(who.pid, who.start)
        return member is not None and member.launched

    def _member(self, pid: int, start: int) -> _Member | None:
        """A process, where its pid is not another's by now."""
        member = self._members.get(pid)
        return member if member is not None and same_start(member.start, start) else None

    # What a fact changes --------------------------------------------------------------------------

    def exec(self, fact: Exec, image: Image, launcher: bool) -> None:
        """Take an exec of a process in a tree.

        Args:
            fact: it.
            image: what it says.
            launcher: the program is a launcher of parallel programs.
        """
        who = fact.who
        tree = self.tree_of(who)
        if tree is None:
            return
        tree.execs += 1
        launched = launcher or self.launched(who)
        if not launched and who.pid not in self._members:
            parent = self._members.get(who.ppid)
            launched = parent is not None and parent.launched
        self._put(who.pid, _Member(who.start, tree.pid, image, launched, who.uid), tree)

    def fork(self, fact: Fork) -> None:
        """Take a fork: the child runs what its parent runs."""
        tree = self.tree_of(fact.who)
        if tree is None:
            return
        parent = self._members.get(fact.who.pid)
        launched = parent is not None and parent.launched
        child = _Member(fact.child_start, tree.pid, self.image(fact.who), launched, fact.who.uid)
        self._put(fact.child, child, tree)

    def exit(self, fact: Exit) -> Tree | None:
        """Take an exit; returns the tree if that was its last process."""
        return self._drop(fact.who.pid, fact.who.start)

    def received(self, fact: Received | Taint | TaintRead) -> None:
        """Remember the first bytes of what came from outside."""
        tree = self.tree_of(fact.who)
        if tree is not None and fact.sample and fact.sample not in tree.samples:
            tree.samples = (*tree.samples, fact.sample)[-_SAMPLES:]

    def bound(self, who: Process, port: int) -> bool:
        """Remember that a process bound a port; whether it had before."""
        tree = self.tree_of(who)
        if tree is None:
            return False
        bind = (who.pid, port)
        if bind in tree.binds:
            return True
        tree.binds = (*tree.binds, bind)[-_BINDS:]
        return False

    def seed(self, pid: int, start: int, tree: Tree, image: Image, uid: int) -> None:
        """Take a process that ran before the monitor did."""
        self._put(pid, _Member(start, tree.pid, image, False, uid), tree)

    def walked(self, fact: Walk, now: float, seconds: int) -> None:
        """Count metadata calls: a fact says a thousand more."""
        tree = self.tree_of(fact.who)
        if tree is not None:
            tree.calls.add(now, seconds, 1000)

    # Keeping house --------------------------------------------------------------------------------

    def reconcile(self, living: Iterable[tuple[int, int, int, int]]) -> list[Tree]:
        """Take what the kernel holds as labelled for the truth: facts of births and deaths may be lost.

        Args:
            living: (pid, start, root, root's start) of each labelled process.

        Returns:
            the trees that have ended.
        """
        here = {pid: (start, root) for pid, start, root, _ in living}
        ended = []
        for pid, member in list(self._members.items()):
            found = here.get(pid)
            if found is None or not same_start(found[0], member.start):
                tree = self._drop(pid, member.start)
                if tree is not None:
                    ended.append(tree)
        for pid, (start, key) in here.items():
            found_tree = self.trees.get(key)
            if pid not in self._members and found_tree is not None:
                self._put(pid, _Member(start, key, NOTHING, False, found_tree.uid), found_tree)
        for key, tree in list(self.trees.items()):
            if not tree.alive:
                del self.trees[key]
                ended.append(tree)
        return ended

    def members(self) -> Iterator[tuple[int, int, int]]:
        """Give (pid, start, tree) of every process."""
        for pid, member in self._members.items():
            yield pid, member.start, member.tree

    def context(self, who: Process, settings: MonitorSettings) -> Context:
        """What a rule may know about a process and its tree."""
        tree = self.tree_of(who)
        image = self.image(who)
        if tree is None:
            return Context(settings, image=image)
        return Context(
            settings,
            image=image,
            harness=tree.harness,
            tree_uid=tree.uid,
            guarded=tree.guarded,
            launched=self.launched(who),
            samples=tree.samples,
            polls=tree.polls.total,
            polls_ever=tree.polls_ever,
            submissions=tree.submissions,
            commands=tree.commands.total,
            calls=tree.calls.total,
        )

    def _put(self, pid: int, member: _Member, tree: Tree) -> None:
        before = self._members.get(pid)
        if before is None and len(self._members) >= self._most_members:
            self._lose("processes")
            return
        if before is not None and before.tree != tree.pid:
            former = self.trees.get(before.tree)
            if former is not None:
                former.alive.discard(pid)
        self._members[pid] = member
        tree.alive.add(pid)
        self._keep_text(pid, member.image)

    def _keep_text(self, pid: int, image: Image) -> None:
        self._text -= self._texts.pop(pid, 0)
        size = sum(len(word) + _WORD for word in image.argv)
        self._texts[pid] = size
        self._text += size
        while self._text > self._most_text and len(self._texts) > 1:
            oldest, freed = self._texts.popitem(last=False)
            self._text -= freed
            member = self._members.get(oldest)
            if member is not None:
                image = member.image
                member.image = Image(image.path, image.name, (), image.unseen + freed, image.program, image.code_by,
                                     image.uid)  # fmt: skip

    def _drop(self, pid: int, start: int) -> Tree | None:
        member = self._member(pid, start)
        if member is None:
            return None
        del self._members[pid]
        self._text -= self._texts.pop(pid, 0)
        tree = self.trees.get(member.tree)
        if tree is None:
            return None
        tree.alive.discard(pid)
        if tree.alive:
            return None
        del self.trees[tree.pid]
        return tree

    def _lose(self, stage: str) -> None:
        self.lost[stage] = self.lost.get(stage, 0) + 1
