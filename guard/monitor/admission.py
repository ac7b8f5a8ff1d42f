"""Which processes become an agent's tree: at the exec of a harness, at the monitor's start, after a restart.

A label is only ever added. Who is in a tree cannot leave it or choose another, whatever it executes or claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from guard.kernel import basename
from guard.monitor.asking import Labels, Look
from guard.monitor.catalogue import take_apart
from guard.monitor.facts import Exec, Process
from guard.monitor.findings import NOTHING, Image, Scalar, text_of
from guard.monitor.lineage import Lineage, Tree, same_start
from guard.monitor.settings import MonitorSettings
from guard.monitor.telling import Told, say

GUARD = "guard"
"""The program whose `run` and `shell` label their own sessions."""


class Admission:
    """Begins and ends trees.

    Args:
        settings: the site's.
        lineage: where the trees are.
        labels: tells the kernel's side.
        look: asks /proc.
        new_session: makes a session's id.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        settings: MonitorSettings,
        lineage: Lineage,
        labels: Labels,
        look: Look,
        new_session: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self.settings = settings
        self._lineage = lineage
        self._labels = labels
        self._look = look
        self._new_session = new_session
        self._clock = clock

    def admit(self, fact: Exec, image: Image) -> tuple[Exec | None, list[Told]]:
        """Judge an exec of nobody's tree in which a name of the catalogue stands.

        Returns:
            the exec as one in the tree that it began, None where it began none; and what is to be told.
        """
        who = fact.who
        if not self.settings.watches(who.uid):
            return None, []
        guard = self._is_guard(image)
        match = None if guard else self.settings.catalogue.recognise(image.path, image.name, image.argv)
        if not guard and (match is None or not self.settings.sure_enough(match.confidence)):
            return None, []
        if not self._labels.label(who.pid, who.pid, harness=not guard):
            return None, []
        placed = replace(fact, who=replace(who, root=who.pid, root_start=who.start, harness=not guard))
        if guard:
            tree = self._start(placed.who, "", "guard-run", "high", image)
            return placed, list(self._greet(tree, image, placed.who)) if tree is not None else []
        return placed, list(self.began(placed.who, image))

    def _is_guard(self, image: Image) -> bool:
        """Whether this is `guard run` or `guard shell`: by its own name, or as what Python runs."""
        if GUARD in image.names:
            return image.words[:1] in (("run",), ("shell",))
        command = take_apart(image.path, image.name, image.argv)
        if command is None or command.runtime != "python":
            return False
        own = command.script == GUARD or command.module == GUARD or command.files[-1].endswith("/guard/__main__.py")
        return own and command.words[:1] in (("run",), ("shell",))

    def began(self, who: Process, image: Image) -> Iterator[Told]:
        """Take a tree whose harness has just been executed, or one that was not known."""
        if who.pid == who.root:
            match = self.settings.catalogue.recognise(image.path, image.name, image.argv)
            harness, how, confidence = (match.harness, match.how, match.confidence) if match else ("", "name", "high")
            tree = self._start(who, harness, how, confidence, image)
            if tree is not None:
                yield from self._greet(tree, image, who)
        else:
            yield from self.unknown_tree(who)

    def executes(self, fact: Exec, image: Image) -> Iterator[Told]:
        """Judge an exec within a tree: of the agent that `guard run` starts, or of one that an agent starts."""
        tree = self._lineage.tree_of(fact.who)
        match = self.settings.catalogue.recognise(image.path, image.name, image.argv)
        if tree is None or match is None:
            return
        if not tree.harness:
            # The first agent of a session of `guard run`, or behind a wrapper: what the tree was begun for.
            tree.harness, tree.confidence = match.harness, match.confidence
            if not fact.who.harness:
                self._labels.label(fact.who.pid, fact.who.root, harness=True)
            self._look_at(tree, fact.who.pid)
            if tree.how == "guard-run" and self._look.status(fact.who.pid) is None:
                return  # gone before it could be looked at: nobody can say that it was not confined
            yield from self._unwrapped(tree, image, fact.who)
        elif not fact.who.harness and self._is_installed(image):
            # Who is in a tree exempts nobody himself: only what root installed is taken for an agent.
            self._labels.label(fact.who.pid, fact.who.root, harness=True)

    def _is_installed(self, image: Image) -> bool:
        script = next((word for word in image.argv[1:] if word.startswith("/")), "") if image.interpreter else ""
        return all(map(self._look.root_installed, dict.fromkeys((image.path, script or image.path))))

    def unknown_tree(self, who: Process) -> Iterator[Told]:
        """Take a tree of which only a descendant was seen: the start of its harness was lost, or before our time."""
        if not who.root or self._lineage.tree_of(who) is not None:
            return
        argv = tuple(map(text_of, self._look.arguments(who.root)))
        exe = self._look.link(who.root, "exe")
        match = self.settings.catalogue.recognise(exe, exe, argv)
        root = replace(who, pid=who.root, start=who.root_start, ppid=0)
        image = Image(exe, basename(exe), argv)
        tree = self._start(root, match.harness if match else "", "descendant", "high", image)
        if tree is not None:
            tree.seeded = True
            yield from self._greet(tree, image, root)

    def _start(self, who: Process, harness: str, how: str, confidence: str, image: Image) -> Tree | None:
        wall = self._clock()
        tree = Tree(who.pid, who.start, harness, how, confidence, who.uid, wall)
        if not self._lineage.add(tree):
            return None
        tree.user = self._look.user_name(who.uid)
        tree.login = self._look.login(who.pid)
        tree.slurm_job = self._look.slurm_job(who.pid)
        self._look_at(tree, tree.pid)
        self._lineage.seed(who.pid, who.start, tree, image, who.uid)
        return tree

    def _look_at(self, tree: Tree, pid: int) -> None:
        """Ask the kernel whether a tree is confined; what it says of its session is a claim that changes no label."""
        session = self._look.variable(pid, b"GUARD_SESSION")
        tree.guarded = bool(session) and self._look.confined(pid)
        plain = session.replace("-", "")
        usable = tree.guarded and len(session) <= 64 and plain.isascii() and plain.isalnum()
        tree.session = session if usable else tree.session or self._new_session()

    def _greet(self, tree: Tree, image: Image, who: Process) -> Iterator[Told]:
        name = tree.harness or ("a session of guard run" if tree.how == "guard-run" else "an agent")
        detail: dict[str, Scalar] = {
            "how": tree.how, "confidence": tree.confidence, "guarded": tree.guarded, "login": tree.login,
            "seeded": tree.seeded,
        }  # fmt: skip
        yield say("tree-start", f"{name} started", detail, tree=tree, image=image, who=who)
        if tree.how != "guard-run":
            yield from self._unwrapped(tree, image, who)

    def _unwrapped(self, tree: Tree, image: Image, who: Process) -> Iterator[Told]:
        if tree.guarded or self.settings.unwrapped == "off":
            return
        name = tree.harness or "an agent"
        detail: dict[str, Scalar] = {"how": tree.how, "confidence": tree.confidence}
        yield say(
            "unwrapped-agent", f"{name} runs without guard", detail, self.settings.unwrapped, tree=tree, image=image,
            who=who,
        )  # fmt: skip

    def stop(self, tree: Tree) -> Told:
        """Say that a tree has ended."""
        wall = self._clock()
        detail: dict[str, Scalar] = {
            "seconds": round(wall - tree.since, 3), "execs": tree.execs, "submissions": tree.submissions,
            "polls": tree.polls_ever, **{f"findings_{name}": count for name, count in tree.findings.items()},
        }  # fmt: skip
        return say("tree-stop", f"{tree.harness or 'an agent'} ended, after {tree.execs} execs", detail, tree=tree)

    def seed(self) -> Iterator[Told]:
        """Take the agents that run already: their own processes and all descendants."""
        taken: set[int] = set()
        for found in self._look.processes():
            if found.ppid in taken or found.pid in taken:
                taken.add(found.pid)
                continue
            argv = tuple(map(text_of, self._look.arguments(found.pid)))
            if not argv:
                continue  # a kernel thread
            exe = self._look.link(found.pid, "exe")
            uid = self._look.owner(found.pid)
            match = self.settings.catalogue.recognise(exe, exe, argv) if exe else None
            if match is None or not self.settings.sure_enough(match.confidence) or not self.settings.watches(uid):
                continue
            if not self._labels.label(found.pid, found.pid, harness=True):
                continue
            taken.add(found.pid)
            image = Image(exe, basename(exe), argv, 0, uid=uid)
            who = Process(found.pid, found.start, found.ppid, uid, found.comm.encode(), found.pid, found.start, True)
            tree = self._start(who, match.harness, match.how, match.confidence, image)
            if tree is not None:
                tree.seeded = True
                yield from self._greet(tree, image, who)

    def restore(self, tree: Tree, living: Iterable[tuple[int, int]]) -> bool:
        """Take a tree of before a restart, as far as it lives.

        Args:
            tree: it.
            living: (pid, start) of its processes then.
        """
        labelled = False
        for pid, start in living:
            found = self._look.status(pid)
            if found is None or not same_start(found.start, start):
                continue
            if self._labels.label(pid, tree.pid, harness=pid == tree.pid):
                if not labelled:
                    tree.alive.clear()
                    if not self._lineage.add(tree):
                        return False
                labelled = True
                self._lineage.seed(pid, start, tree, NOTHING, tree.uid)
        return labelled
