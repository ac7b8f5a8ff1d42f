"""From facts to what is told: joins each fact with its tree and process, and asks the rules.

No kernel and no clock of its own: the source, /proc and the time are given, so that all of it is tested without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from guard.kernel import basename
from guard.monitor import handing, rules
from guard.monitor.admission import Admission
from guard.monitor.asking import Labels, Look
from guard.monitor.exposure import Arguments, Exposure
from guard.monitor.facts import (
    AnyFact,
    Bind,
    Connect,
    Coverage,
    Exec,
    Exit,
    Fact,
    Fork,
    Listen,
    Loss,
    Mode,
    Process,
    Received,
    Taint,
    TaintRead,
    Walk,
)
from guard.monitor.findings import NOTHING, Context, Image, Scalar, text_of
from guard.monitor.folding import fold
from guard.monitor.lineage import Lineage, Tree, same_start
from guard.monitor.settings import MonitorSettings
from guard.monitor.telling import Told, say

_ONCE = ("scheduler-polling", "commands", "metadata-walk")
"""Rules that speak once a window."""
_EXEMPT_MOST = 4096


@dataclass
class Work:
    """What agents' trees did, all together, since it was last taken.

    Args:
        execs: programs started.
        polls, submissions: questions to a scheduler, and jobs given to it.
    """

    execs: int = 0
    polls: int = 0
    submissions: int = 0


class Watch:
    """The trees, and what is said of them.

    Args:
        settings: the site's.
        labels: tells the kernel's side.
        look: asks /proc.
        arguments: redacts argument lists.
        new_session: makes a session's id.
        clock: (seconds since 1970, seconds monotonic).
    """

    def __init__(
        self,
        settings: MonitorSettings,
        labels: Labels,
        look: Look,
        arguments: Arguments,
        new_session: Callable[[], str],
        clock: Callable[[], tuple[float, float]],
        lineage: Lineage | None = None,
    ) -> None:
        self.lineage = lineage if lineage is not None else Lineage()
        self.admission = Admission(settings, self.lineage, labels, look, new_session, lambda: clock()[0])
        self.configure(settings)
        self.counts: dict[str, int] = {}
        self.work = Work()
        self._labels = labels
        self._look = look
        self._arguments = arguments
        self._clock = clock
        self._dropped = 0
        self._exempt: dict[int, None] = {}

    def take_work(self) -> Work:
        """What trees did since this was last asked."""
        work, self.work = self.work, Work()
        return work

    def configure(self, settings: MonitorSettings) -> None:
        """Take other settings."""
        self.settings = self.admission.settings = settings

    def seed(self) -> Iterator[Told]:
        """Take the agents that run already."""
        return self._say_all(self.admission.seed())

    def take(self, facts: Iterable[AnyFact]) -> Iterator[Told]:
        """Give what is to be told of a batch of facts.

        Alerts come through a ring of their own, before the execs that explain them: a batch is put in order first.
        """
        for fact in fold(sorted(facts, key=lambda fact: fact.time)):
            if isinstance(fact, Loss):
                yield self._loss(fact)
            elif isinstance(fact, Coverage):
                yield self._coverage(fact)
            else:
                yield from self._guarded(fact)

    def _guarded(self, fact: Fact) -> Iterator[Told]:
        """Judge a fact; one that our own code cannot digest is told and counted, and blinds nobody to the rest."""
        try:
            yield from self._fact(fact)
        except Exception as error:  # noqa: BLE001 - an agent chose what stands in a fact
            detail: dict[str, Scalar] = {"stage": "judge", "count": 1, "kind": type(fact).__name__,
                                         "error": type(error).__name__}  # fmt: skip
            yield self._say("loss", "a fact could not be judged", detail, "medium")

    def _fact(self, fact: Fact) -> Iterator[Told]:
        who = fact.who
        if who.root and self._is_exempt(fact):
            return
        if isinstance(fact, Exec):
            yield from self._exec(fact)
            return
        if isinstance(fact, Fork):
            self.lineage.fork(fact)
            return
        if isinstance(fact, Exit):
            ended = self.lineage.exit(fact)
            if ended is not None:
                yield self._said(self.admission.stop(ended))
            return
        if self.lineage.tree_of(who) is None:
            yield from self._say_all(self.admission.unknown_tree(who))
        if isinstance(fact, (Received, Taint, TaintRead)):
            self.lineage.received(fact)
        elif isinstance(fact, Walk):
            self.lineage.walked(fact, self._clock()[1], self.settings.limits.window)
        yield from self._judge(fact, self._context(fact))

    def _is_exempt(self, fact: Fact) -> bool:
        """Whether a tree is a user's who is not watched; its processes lose the label that the kernel gave by name."""
        who = fact.who
        if not self._exempt and who.pid != who.root:
            return False
        if who.pid == who.root and isinstance(fact, Exec) and who.harness:
            if not self.settings.watches(who.uid) and self.lineage.tree_of(who) is None:
                self._exempt[who.root] = None
                while len(self._exempt) > _EXEMPT_MOST:
                    del self._exempt[next(iter(self._exempt))]
            else:
                self._exempt.pop(who.root, None)
        if who.root not in self._exempt:
            return False
        self._labels.unlabel(who.pid)
        if isinstance(fact, Fork):
            self._labels.unlabel(fact.child)
        return True

    # Execs ------------------------------------------------------------------------------------------

    def _exec(self, fact: Exec) -> Iterator[Told]:
        who, image = fact.who, Image.of(fact)
        if not who.root:
            placed, told = self.admission.admit(fact, image)
            yield from self._say_all(told)
            if placed is None:
                return
            fact, who = placed, placed.who
        elif self.lineage.tree_of(who) is None:
            yield from self._say_all(self.admission.began(who, image))
        else:
            yield from self._say_all(self.admission.executes(fact, image))
        self.lineage.exec(fact, image, self._is_launcher(who.pid, image))
        yield from self._counted(fact, image)

    def _counted(self, fact: Exec, image: Image) -> Iterator[Told]:
        tree = self.lineage.tree_of(fact.who)
        if tree is None:
            return
        now, window = self._clock()[1], self.settings.limits.window
        tree.commands.add(now, window)
        self.work.execs += 1
        asks = handing.scheduler(image.names, image.words)
        if asks == "poll":
            tree.polls.add(now, window)
            tree.polls_ever += 1
            self.work.polls += 1
        elif asks == "submit":
            tree.submissions += 1
            self.work.submissions += 1
        yield from self._exposures(fact, image, tree)
        yield from self._judge(fact, self._context(fact))

    def _exposures(self, fact: Exec, image: Image, tree: Tree) -> Iterator[Told]:
        redaction = self._arguments.redact(image.argv)
        if self._arguments.dropped > self._dropped:
            count, self._dropped = self._arguments.dropped - self._dropped, self._arguments.dropped
            yield self._say("redactor-down", f"{count} argument lists could not be redacted, and were dropped",
                             {"stage": "argv", "count": count})  # fmt: skip
        for each in redaction.exposures:
            severity = {"high": "high", "medium": "medium"}.get(each.confidence, "low")
            yield self._say(
                "exposed-secret", f"a {each.kind} stands in the arguments of a program", {}, severity,
                tree=tree, image=image, who=fact.who, exposure=each, when=fact.time,
            )  # fmt: skip

    def reconcile(self, living: Iterable[tuple[int, int, int, int]]) -> Iterator[Told]:
        """Take the kernel's labels for the truth; gives the trees that have ended."""
        for tree in self.lineage.reconcile(living):
            yield self._said(self.admission.stop(tree))
        for stage, count in list(self.lineage.lost.items()):
            del self.lineage.lost[stage]
            yield self._say("loss", f"{count} had no room at stage {stage}", {"stage": stage, "count": count})

    # Rules ------------------------------------------------------------------------------------------

    def _context(self, fact: Fact) -> Context:
        who = fact.who
        context = self.lineage.context(who, self.settings)
        if context.image is NOTHING:
            context = replace(context, image=self._image_now(who))
        if isinstance(fact, (Bind, Listen)):
            return self._bind_context(fact, context)
        if isinstance(fact, Exec):
            row = handing.find(context.image.names, context.image.words)
            if row is not None and row.outside:
                context = replace(context, outside_server=self._server_outside(context.image, fact))
        return context

    def _bind_context(self, fact: Bind | Listen, context: Context) -> Context:
        who = fact.who
        before = self.lineage.bound(who, fact.port)
        bound = isinstance(fact, Listen) and before
        if bound or fact.private:
            return replace(context, bound=bound)
        exe = self._look.link(who.pid, "exe")
        allowed = self._look.allowed_bind(who.uid, context.harness, fact.address, fact.port, exe)
        return replace(context, allowed_bind=allowed)

    def _image_now(self, who: Process) -> Image:
        """What a process runs now, where its exec was not seen; nothing where it is gone."""
        found = self._look.status(who.pid)
        if found is None or not same_start(found.start, who.start):
            return NOTHING
        exe = self._look.link(who.pid, "exe")
        return Image(exe, basename(exe), tuple(map(text_of, self._look.arguments(who.pid))), uid=who.uid)

    def _server_outside(self, image: Image, fact: Exec) -> bool:
        """Whether the server that a multiplexer's client talks to ran before, outside of every tree.

        One that is younger than the client is the client's own, whose birth may not have been read yet.
        """
        who = fact.who
        name = next((name for name in image.names if name in handing.SERVERS), "")
        outside = []
        for pid in self._look.servers(handing.SERVERS.get(name, ()), who.uid):
            found = None if self.lineage.holds(pid) else self._look.status(pid)
            if found is not None and found.start < fact.time and not same_start(found.start, fact.time):
                outside.append(pid)
        if name != "tmux":
            return bool(outside)
        socket = handing.tmux_socket(image.words, who.uid, self._look.variable(who.pid, b"TMUX_TMPDIR"))
        return any(self._look.listens_at(pid, socket) for pid in outside)

    def _is_launcher(self, pid: int, image: Image) -> bool:
        names = {name.split(".")[0] for name in image.names} | set(image.names)
        if names.isdisjoint(self.settings.launchers):
            return False
        path = image.path if image.path.startswith("/") else self._look.link(pid, "exe")
        return self._look.root_installed(path)

    def _judge(self, fact: Fact, context: Context) -> Iterator[Told]:
        tree = self.lineage.tree_of(fact.who)
        now, count = self._clock()[1], 1 + (fact.more if isinstance(fact, (Mode, Connect)) else 0)
        for finding in rules.judge(fact, context):
            if tree is not None:
                if finding.rule in _ONCE:
                    if now - tree.told.get(finding.rule, float("-inf")) < self.settings.limits.window:
                        continue
                    tree.told[finding.rule] = now
                tree.findings[finding.severity] = tree.findings.get(finding.severity, 0) + count
            self.counts[finding.rule] = self.counts.get(finding.rule, 0) + count
            yield Told(finding, tree, context.image, fact.who, None, fact.time)

    # What the monitor says of itself ------------------------------------------------------------------

    def _loss(self, fact: Loss) -> Told:
        severity = "medium" if fact.stage in ("alerts", "trees") else "low"
        return self._say(
            "loss", f"{fact.count} facts were lost at stage {fact.stage}", {"stage": fact.stage, "count": fact.count},
            severity,
        )  # fmt: skip

    def _coverage(self, fact: Coverage) -> Told:
        detail: dict[str, Scalar] = {"full": fact.full, "missing": fact.missing, "blind_ms": round(fact.blind / 1e6, 3)}
        return self._say("coverage", "everything is seen" if fact.full else "less is seen than could be", detail)

    def _say(
        self, rule: str, message: str, detail: Mapping[str, Scalar], severity: str = "", *, tree: Tree | None = None,
        image: Image = NOTHING, who: Process | None = None, exposure: Exposure | None = None, when: int = 0,
    ) -> Told:  # fmt: skip
        severity = self.settings.severities.get(rule, "") or severity
        if exposure is not None and tree is not None and severity:
            tree.findings[severity] = tree.findings.get(severity, 0) + 1
        return self._said(
            say(rule, message, detail, severity, tree=tree, image=image, who=who, exposure=exposure, when=when)
        )

    def _said(self, told: Told) -> Told:
        self.counts[told.finding.rule] = self.counts.get(told.finding.rule, 0) + 1
        return told

    def _say_all(self, told: Iterable[Told]) -> Iterator[Told]:
        return map(self._said, told)
