"""The last backend: looks at /proc again and again. Sees processes that live for a round, and sockets that listen."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from guard.monitor import naming, procfs, reach
from guard.monitor.facts import AnyFact, Coverage, Exec, Exit, Fork, Process, Program, boot_time
from guard.monitor.procfs import Listener, Seen
from guard.monitor.source import Label, Settings, Stats, Status

ROUND = 0.25
"""Seconds between two looks."""
_SOCKETS_EVERY = 4


@dataclass
class _Known:
    seen: Seen
    program: Program
    label: Label | None


class PollSource:
    """/proc as a `Source`.

    Args:
        settings: names of programs.
        refused: better backend → why it was not taken.
    """

    def __init__(self, settings: Settings, refused: Mapping[str, str]) -> None:
        begun = time.monotonic()
        self._settings = settings
        self._known: dict[int, _Known] = {}
        self._ready: deque[AnyFact] = deque()
        self._listening: set[tuple[int, Listener]] = set()
        self._execs = 0
        self._scheduler = 0
        self._emitted: dict[str, int] = {}
        self._rounds = 0
        self._looked = 0.0
        self._look(first=True)
        self._status = Status("poll", (), {}, dict(refused), reach.of("poll", {}), time.monotonic() - begun)
        self._ready.append(Coverage(boot_time(), False, reach.without_following("tracepoint")))

    @property
    def status(self) -> Status:
        """What it is."""
        return self._status

    def fileno(self) -> int:
        """Nothing is ever readable: ask every `interval` seconds."""
        return -1

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return ROUND

    def poll(self, timeout: float, limit: int = 4096) -> Iterator[AnyFact]:
        """Look, where a round has passed, and give what is new."""
        wait = self._looked + ROUND - time.monotonic()
        if wait > 0 and not self._ready:
            time.sleep(min(wait, timeout))
        if time.monotonic() - self._looked >= ROUND:
            self._look()
        for _ in range(min(limit, len(self._ready))):
            yield self._ready.popleft()

    def _look(self, first: bool = False) -> None:
        self._looked = time.monotonic()
        old = {pid: known.seen for pid, known in self._known.items()}
        now = {seen.pid: seen for seen in procfs.processes(old)}
        for pid in [pid for pid, seen in old.items() if pid not in now or now[pid].start != seen.start]:
            known = self._known.pop(pid)
            if known.label is not None:
                self._tell(Exit(boot_time(), _who(known.seen, known.label), 0))
        for seen in sorted(now.values(), key=lambda seen: (seen.start, seen.pid)):
            self._meet(seen, first)
        self._rounds += 1
        if self._rounds % _SOCKETS_EVERY == 0:
            self._look_at_sockets()

    def _meet(self, seen: Seen, first: bool) -> None:
        known = self._known.get(seen.pid)
        if known is not None and (known.seen.argv, known.seen.exe) == (seen.argv, seen.exe):
            known.seen = seen
            return
        program = naming.program_of(self._settings.programs, seen.exe, seen.argv)
        label = known.label if known is not None else None
        if known is None and not first:
            parent = self._known.get(seen.ppid)
            if parent is not None and parent.label is not None:
                label = Label(seen.pid, seen.start, parent.label.root, parent.label.root_start, False)
                self._tell(Fork(boot_time(), _who(parent.seen, parent.label), seen.pid, seen.start))
        if program & Program.HARNESS and not first and label is None:
            label = Label(seen.pid, seen.start, seen.pid, seen.start, True)
        self._known[seen.pid] = _Known(seen, program, label)
        if first:
            return
        self._execs += 1
        self._scheduler += bool(program & Program.SCHEDULER and label is None)
        if label is not None or program & (Program.HINT | Program.HARNESS):
            by = naming.code_by(program, seen.argv)
            path = seen.argv[0] if seen.argv else seen.exe
            self._tell(Exec(boot_time(), _who(seen, label), path, seen.exe, seen.argv, seen.unseen, program, by,
                            sid=seen.sid, tty=seen.tty))  # fmt: skip

    def _look_at_sockets(self) -> None:
        still = set()
        for known in list(self._known.values()):
            if known.label is None:
                continue
            for listener in procfs.listening(known.seen.pid):
                key = (known.seen.pid, listener)
                still.add(key)
                if key not in self._listening:
                    self._tell(procfs.listen_fact(boot_time(), known.seen, known.label, listener))
        self._listening = still

    def _tell(self, fact: AnyFact) -> None:
        kind = type(fact).__name__
        self._emitted[kind] = self._emitted.get(kind, 0) + 1
        self._ready.append(fact)

    def label(self, pid: int, root: int, *, harness: bool = False) -> bool:
        """Put a process and its descendants into a tree."""
        if pid not in self._known:
            self._look()
        if pid not in self._known:
            return False
        start = self._known[root].seen.start if root in self._known else 0
        inside = {pid}
        while True:
            more = {p for p, known in self._known.items() if known.seen.ppid in inside and p not in inside}
            if not more:
                break
            inside |= more
        for member in inside:
            known = self._known[member]
            if member == pid or known.label is None:
                known.label = Label(member, known.seen.start, root, start, harness and member == pid)
        return True

    def unlabel(self, pid: int) -> None:
        """Take one process out of its tree."""
        if pid in self._known:
            self._known[pid].label = None

    def labels(self) -> Iterator[Label]:
        """Every process in a tree."""
        for known in list(self._known.values()):
            if known.label is not None:
                yield known.label

    def configure(self, settings: Settings) -> None:
        """Take other names."""
        self._settings = settings

    def follow(self, on: bool) -> tuple[str, ...]:
        """There is nothing that costs others."""
        return ()

    def stats(self) -> Stats:
        """The counters."""
        labelled = sum(1 for _ in self.labels())
        return Stats(dict(self._emitted), {}, self._execs, self._scheduler, labelled, {}, {})

    def close(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._ready.clear()


def _who(seen: Seen, label: Label | None) -> Process:
    if label is None:
        return Process(seen.pid, seen.start, seen.ppid, seen.uid, seen.comm, 0, 0)
    return Process(
        seen.pid, seen.start, seen.ppid, seen.uid, seen.comm, label.root, label.root_start, label.harness
    )  # fmt: skip
