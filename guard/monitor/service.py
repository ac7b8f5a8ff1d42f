"""The service `guard monitor`: opens a backend, reads it for ever, and hands events on. One thread, one loop.

It is ready when every program is attached; told to stop (SIGTERM, SIGINT) it reads what is there, hands everything
on, remembers its trees and leaves nothing attached but what is pinned on purpose. SIGHUP reads monitor.toml again.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from guard.entry import off
from guard.errors import GuardError
from guard.events.producer import Ids, Producer, boot_id
from guard.monitor import answers, cost, metrics, remembered, rules, settings
from guard.monitor.answers import Answers
from guard.monitor.catalogue import Harness
from guard.monitor.cost import Cap
from guard.monitor.exposure import Arguments
from guard.monitor.facts import AnyFact, Coverage, Loss
from guard.monitor.findings import Scalar
from guard.monitor.lineage import Tree
from guard.monitor.node import Node
from guard.monitor.notifying import Notifier
from guard.monitor.outlet import Outlet, Own
from guard.monitor.programs import program_table
from guard.monitor.record import Recorder
from guard.monitor.settings import MonitorSettings
from guard.monitor.source import BACKENDS, Settings, Source
from guard.monitor.telling import Told, say
from guard.monitor.watch import Watch
from guard.policy.addresses import Network

HOUR = 3600.0
_TICK = 1.0
_BATCH = 2048
"""Facts that are put in order at once, at most."""
_RECONCILE, _RECONCILE_SOON = 60.0, 5.0
"""Seconds between two looks at the kernel's labels; sooner where births and deaths were lost."""
_UNCOVERED = 3.0
"""Seconds with living trees and less than full coverage before it is told."""
_FLUSH = 8.0
_PAUSE = 0.02
_BACKLOG = 2_000
"""Events that wait above which no more facts are taken from the rings: what does not fit there is counted there. With a
batch more it is five megabytes, and less than a sink to the events service holds."""

ENFORCED = {"world-writable": "deny", "bind": "deny", "listen": "deny", "code-from-outside": "deny"}
"""What `--enforce` enforces where the site names nothing."""


@dataclass(frozen=True)
class Options:
    """What the command line says.

    Args:
        config: the configuration directory. state: the state directory.
        backend: a name, or `auto`.
        enforce: whether the rules of `[enforce]` are.
        harnesses: rows that `--harness` adds; `external`: networks.
        named_state: the state directory as it was named, "" where it was not: sockets lie in it then.
    """

    config: str
    state: str
    backend: str = "auto"
    enforce: bool = False
    harnesses: tuple[Harness, ...] = ()
    external: tuple[Network, ...] = ()
    named_state: str = ""


OpenSource = Callable[[str, Settings, bool], Source]
"""Backend's name or `auto`, settings, whether enforcement outlives the process → a source."""


def source_settings(site: MonitorSettings, enforce: bool) -> Settings:
    """Return what the kernel's side is told of a site's settings."""
    return Settings(
        programs=program_table(site.catalogue, site.trusted),
        external=site.external,
        proxies=site.proxies,
        enforce=(site.enforce or ENFORCED) if enforce else {},
    )


class Service:
    """One run of the monitor.

    Args:
        options: of the command line.
        open_source: opens a backend.
        log: takes a line for people.
    """

    def __init__(self, options: Options, open_source: OpenSource, log: Callable[[str], None]) -> None:
        self._options = options
        self._open_source = open_source
        self._log = log
        self._site = self._read_site()
        self._off = off.read(options.config)
        self._arguments = Arguments()
        self._producer = Producer("monitor", "kernel")
        self._outlet = Outlet(self._producer, self._open_own, options.named_state)
        self._recorder = Recorder(self._producer, self._arguments, self._site.record_argv)
        self._node = Node(options.config, self._site.bind_allow)
        self._notifier = Notifier(os.environ)
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._asked_to_stop = False
        self._asked_to_reload = False
        self._uncovered: tuple[float, tuple[str, ...]] | None = None
        self._full = True
        self._mistaken = False
        self._untold = 0
        self._remembered: set[int] = set()
        self._saving = 0.0
        self._cap = Cap()
        self._counted = (0, 0)
        self._hour = time.monotonic()

    def _open_own(self) -> Own:
        from guard.monitor.own_spool import open_own

        return open_own(self._options.config, self._options.state, self._node.groups)

    # The site's settings ----------------------------------------------------------------------------

    def _read_site(self) -> MonitorSettings:
        site = settings.load(self._options.config, rules.NAMES)
        return site.with_options(self._options.harnesses, self._options.external)

    def _reload(self) -> None:
        try:
            self._site = self._read_site()
        except GuardError as error:
            self._log(f"{error}; the settings before stay in force")
            self._tell(say("settings", "monitor.toml does not load; what was in force stays", {"why": str(error)}))
            return
        self._watch.configure(self._site)
        self._recorder.record_argv = self._site.record_argv
        self._node.configure(self._site.bind_allow)
        self._source.configure(self._source_settings())
        self._log("monitor.toml was read again")

    def _source_settings(self) -> Settings:
        """What the source is told: to deny where that is asked for, and not switched off by root (docs/shells.md)."""
        return source_settings(self._site, self._options.enforce and self._off is None)

    def _look_at_switch(self) -> None:
        found = off.read(self._options.config)
        if (found is None) == (self._off is None):
            return
        self._off = found
        self._source.configure(self._source_settings())
        state, severity = ("off", "high") if found else ("on", "medium")
        detail: dict[str, Scalar] = {"state": state, "reason": found.reason if found else ""}
        self._tell(say("switch", f"guard was switched {state} on this node", detail, severity))

    # Running ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until told to stop.

        Raises:
            MonitorError: no backend loads, or another monitor runs. Nothing is left attached.
        """
        before = {number: signal.signal(number, self._signalled) for number in _SIGNALS}
        try:
            self._run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wake)
            os.close(self._woken)

    def _signalled(self, number: int, _frame: object) -> None:
        if number == signal.SIGHUP:
            self._asked_to_reload = True
        else:
            self._asked_to_stop = True
        with suppress(OSError):
            os.write(self._woken, b"x")

    def _run(self) -> None:
        started = time.time()
        self._answers = Answers(
            answers.socket_path(self._options.named_state), self._site.metrics_port, self.rows, self.metrics,
            lambda uid: uid == 0,
        )  # fmt: skip
        try:
            self._source = self._open_source(self._options.backend, self._source_settings(), self._site.fail_closed)
        except BaseException:
            self._answers.close()
            raise
        try:
            ids = Ids()
            self._watch = Watch(self._site, self._source, self._node, self._arguments, ids.new, _clock)
            self._begin(started)
            self._loop()
        finally:
            try:
                self._finish()
            finally:
                self._source.close()
                self._answers.close()
                self._outlet.close()

    def _begin(self, started: float) -> None:
        status = self._source.status
        before = remembered.load(self._options.state)
        see = {name: can.see for name, can in status.can.items()}
        act = {name: can.act for name, can in status.can.items()}
        detail: dict[str, Scalar] = {
            "backend": status.backend, "seconds": round(status.seconds, 3), "programs": len(status.programs),
            "skipped": tuple(f"{name}: {why}" for name, why in status.skipped.items()),
            "refused": tuple(f"{name}: {why}" for name, why in status.refused.items()),
            "enforce": tuple(f"{name}: {how}" for name, how in self._source_settings().enforce.items()),
            **{f"see {name}": value for name, value in see.items()},
        }  # fmt: skip
        self._tell(say("monitor-start", f"the monitor watches by {status.backend}", detail))
        lost = remembered.worse(before, BACKENDS, status.backend, see, act)
        if lost:
            self._tell(say("backend-worse", "the monitor sees or prevents less than before", {"worse": tuple(lost)}))
        if before.until:
            gap: dict[str, Scalar] = {
                "from": _stamp(before.until), "to": _stamp(started), "seconds": round(started - before.until, 3),
                "taint_lost": True, "clean": before.clean, "rebooted": before.boot != boot_id(),
            }  # fmt: skip
            severity = "low" if before.clean else "medium"
            self._tell(say("monitor-gap", "nobody watched for a while", gap, severity))
        if before.boot == boot_id():
            for tree, living in before.trees:
                self._watch.admission.restore(tree, living)
        self._tell_all(self._watch.seed())
        self._outlet.pump()
        self._notifier.tell("READY=1", f"STATUS={self._state()}")
        self._remember(clean=False)
        self._log(f"ready: backend {status.backend}, {len(self._watch.lineage.trees)} trees")

    def _loop(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._answers.fileno(), select.POLLIN)
        descriptor = self._source.fileno()
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
        interval = min(self._source.interval, _TICK)
        ticked = reconciled = cost_at = remembered_at = time.monotonic()
        self._hour = time.monotonic()
        fed = 0.0
        while not self._asked_to_stop:
            poll.poll(int(interval * 1000))
            with suppress(BlockingIOError):
                os.read(self._wake, 64)
            if self._outlet.backlog < _BACKLOG:
                self._drain()
            else:
                time.sleep(_PAUSE)  # the rings stay readable: poll would not wait
            self._outlet.pump()
            self._answers.serve()
            if self._asked_to_reload:
                self._asked_to_reload = False
                self._notifier.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
                self._reload()
                self._notifier.tell("READY=1")
            now = time.monotonic()
            if self._notifier.watchdog and now - fed >= self._notifier.watchdog:
                self._notifier.tell("WATCHDOG=1")
                fed = now
            if now - ticked >= _TICK:
                ticked = now
                self._look_at_switch()
                self._judge_coverage(now)
                if set(self._watch.lineage.trees) != self._remembered and now - remembered_at > 2 + 50 * self._saving:
                    remembered_at = now
                    self._remember(clean=False)
            if now - cost_at >= cost.EVERY:
                told = self._cap.judge(self._source, self._site.max_cost, now, now - cost_at)
                cost_at = now
                if told is not None:
                    self._tell(told)
            if now - reconciled >= (_RECONCILE_SOON if self._mistaken else _RECONCILE):
                self._mistaken = False
                reconciled = now
                self._reconcile()
                self._remember(clean=False)
                self._notifier.tell(f"STATUS={self._state()}")
            if now - self._hour >= HOUR:
                self._count_hour(now)

    def _drain(self) -> int:
        """Take and judge what is there; returns how many facts that was."""
        count = 0
        while self._outlet.backlog < _BACKLOG:
            # Two rings, read in turn: an alert may be read before the exec that explains it, which was said first.
            facts: list[AnyFact] = []
            while len(facts) < _BATCH and (more := list(self._source.poll(0))):
                facts += more
            if not facts:
                break
            count += len(facts)
            self._note(facts)
            self._tell_all(self._watch.take(facts))
        return count

    def _note(self, facts: Iterable[AnyFact]) -> None:
        for fact in facts:
            if isinstance(fact, Coverage):
                self._full = fact.full
                self._uncovered = None if fact.full else (time.monotonic(), fact.missing)
            elif isinstance(fact, Loss):
                self._mistaken = True

    def _tell_all(self, told: Iterable[Told]) -> None:
        for each in told:
            self._tell(each)

    def _tell(self, told: Told) -> None:
        try:
            self._outlet.emit(self._recorder.event(told))
        except GuardError as error:
            # A finding that cannot become an event is our own mistake: counted and said, and the rest goes on.
            self._untold += 1
            self._log(f"a finding of {told.finding.rule} could not be recorded: {error}")

    # Looking after itself ---------------------------------------------------------------------------

    def _judge_coverage(self, now: float) -> None:
        """Tell where trees live and not all is seen, after a moment: a tree that begins attaches what it needs."""
        if self._uncovered is None or not self._watch.lineage.trees or self._cap.resting:
            return
        since, missing = self._uncovered
        if now - since >= _UNCOVERED:
            self._uncovered = None
            self._tell(say("coverage-lost", "agents run, and the monitor does not see all", {"missing": missing}))

    def _reconcile(self) -> None:
        living = [(each.pid, each.start, each.root, each.root_start) for each in self._source.labels()]
        self._tell_all(self._watch.reconcile(living))

    def _remember(self, *, clean: bool) -> None:
        begun = time.monotonic()
        status = self._source.status
        self._remembered = set(self._watch.lineage.trees)
        living: dict[int, list[tuple[int, int]]] = {}
        for pid, start, root in self._watch.lineage.members():
            living.setdefault(root, []).append((pid, start))
        rows = tuple((tree, tuple(living.get(tree.pid, ()))) for tree in self._watch.lineage.trees.values())
        state = remembered.Remembered(
            boot_id(), time.time(), status.backend, {name: can.see for name, can in status.can.items()},
            {name: can.act for name, can in status.can.items()}, rows, clean,
        )  # fmt: skip
        try:
            state.save(self._options.state)
        except OSError as error:
            self._log(f"{self._options.state}: what the monitor remembers cannot be written: {error.strerror}")
        self._saving = time.monotonic() - begun

    def _count_hour(self, now: float) -> None:
        """Tell what was started since the last such event, by agents and by nobody's agent: numbers to be added up."""
        stats, work = self._source.stats(), self._watch.take_work()
        before, self._counted = self._counted, (stats.unlabelled_execs, stats.unlabelled_scheduler)
        seconds, self._hour = now - self._hour, now
        detail: dict[str, Scalar] = {
            "execs": self._counted[0] - before[0], "scheduler": self._counted[1] - before[1],
            "agents_execs": work.execs, "agents_polls": work.polls, "agents_submissions": work.submissions,
            "seconds": round(seconds, 1),
        }  # fmt: skip
        self._tell(say("executions", "programs started, outside of every agent's tree and in them", detail))

    def _finish(self) -> None:
        """Read what is there, hand on everything, remember; within the ten seconds that a stop may take."""
        if not hasattr(self, "_watch"):
            return
        self._notifier.tell("STOPPING=1")
        end = time.monotonic() + _FLUSH
        while time.monotonic() < end and (self._drain() or self._outlet.backlog >= _BACKLOG):
            if not self._outlet.pump() or self._outlet.backlog >= _BACKLOG:
                time.sleep(_PAUSE)
        self._count_hour(time.monotonic())
        self._remember(clean=True)
        self._tell(say("monitor-stop", "the monitor was stopped", {"trees": len(self._watch.lineage.trees)}))
        if not self._outlet.flush(max(0.5, end - time.monotonic())):
            self._log(f"{self._outlet.backlog} events could not be handed on: {self._outlet.fault}")

    # What is asked ----------------------------------------------------------------------------------

    def _state(self) -> str:
        trees = len(self._watch.lineage.trees)
        return f"backend {self._source.status.backend}, {trees} tree{'' if trees == 1 else 's'}"

    def rows(self) -> list[dict[str, object]]:
        """Every tree, as `guard ps` shows it."""
        return [_row(tree) for tree in self._watch.lineage.trees.values()]

    def metrics(self) -> str:
        """The metrics' text."""
        numbers = metrics.Numbers(
            self._source.status.backend, self._full, len(self._watch.lineage.trees), self._watch.counts,
            self._source.stats(), {"outlet": self._outlet.lost, "argv": self._arguments.dropped, "record": self._untold,
                                    "look": self._node.patience.left},
            self._outlet.backlog, self._outlet.served, self._cap.share,
        )  # fmt: skip
        return metrics.render(numbers)


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _row(tree: Tree) -> dict[str, object]:
    return {
        "pid": tree.pid, "harness": tree.harness, "user": tree.user, "uid": tree.uid, "session": tree.session,
        "since": _stamp(tree.since), "guarded": tree.guarded, "processes": len(tree.alive), "execs": tree.execs,
        "findings": dict(tree.findings), "login": tree.login, "slurm_job_id": tree.slurm_job,
        "confidence": tree.confidence, "seeded": tree.seeded,
    }  # fmt: skip


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _clock() -> tuple[float, float]:
    return time.time(), time.monotonic()
