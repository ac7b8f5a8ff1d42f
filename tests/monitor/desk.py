"""What the tests of the monitor's meaning share: a kernel's side that only remembers what it was told, and a /proc."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from guard.monitor.exposure import Arguments
from guard.monitor.facts import AnyFact, Exec, Exit, Fork, Process, Program
from guard.monitor.lineage import Lineage
from guard.monitor.proc import Status
from guard.monitor.settings import MonitorSettings
from guard.monitor.telling import Told
from guard.monitor.watch import Watch
from guard.redact import samples


@dataclass
class FakeProc:
    """A process as /proc would tell it."""

    argv: tuple[bytes, ...] = ()
    exe: str = ""
    ppid: int = 1
    uid: int = 1000
    start: int = 1_000_000_000
    comm: str = "x"
    environment: dict[bytes, str] = field(default_factory=dict)
    confined: bool = False
    socket: str = ""


class FakeNode:
    """A /proc, a name service and a policy, all given."""

    def __init__(self) -> None:
        self.table: dict[int, FakeProc] = {}
        self.installed: set[str] = set()
        self.allowed: dict[int, str] = {}

    def status(self, pid: int) -> Status | None:
        at = self.table.get(pid)
        return None if at is None else Status(pid, at.ppid, at.start, at.comm, pid, 0)

    def processes(self) -> Iterable[Status]:
        return [found for pid in sorted(self.table) if (found := self.status(pid)) is not None]

    def arguments(self, pid: int) -> tuple[bytes, ...]:
        return self.table[pid].argv if pid in self.table else ()

    def link(self, pid: int, name: str) -> str:
        return self.table[pid].exe if pid in self.table and name == "exe" else ""

    def owner(self, pid: int) -> int:
        return self.table[pid].uid if pid in self.table else -1

    def confined(self, pid: int) -> bool:
        return pid in self.table and self.table[pid].confined

    def login(self, pid: int) -> int:
        return 7

    def slurm_job(self, pid: int) -> int | None:
        return 42

    def variable(self, pid: int, name: bytes) -> str:
        return self.table[pid].environment.get(name, "") if pid in self.table else ""

    def servers(self, comms: tuple[str, ...], uid: int) -> Iterable[int]:
        return [pid for pid, at in self.table.items() if at.comm in comms and at.uid == uid]

    def listens_at(self, pid: int, path: str) -> bool:
        return pid in self.table and self.table[pid].socket == path

    def root_installed(self, path: str) -> bool:
        return path in self.installed

    def user_name(self, uid: int) -> str:
        return f"u{uid}"

    def allowed_bind(self, uid: int, harness: str, address: str, port: int, exe: str) -> str:
        return self.allowed.get(port, "")


_CHANCE = random.Random("keys of the monitor's tests")


def token() -> str:
    """A new key; the same ones in each run, so that a failure repeats itself."""
    return samples.fill("ghp_<crc62>", _CHANCE)[0]


@lru_cache
def arguments() -> Arguments:
    """One for all tests: its rules take a tenth of a second to compile."""
    return Arguments()


class Desk:
    """A watch over facts that a test makes."""

    def __init__(self, settings: MonitorSettings | None = None, lineage: Lineage | None = None) -> None:
        self.node = FakeNode()
        self.labelled: dict[int, tuple[int, bool]] = {}
        self.now = 1000.0
        self._times = itertools.count(10_000_000_000)
        numbers = itertools.count(1)
        self.watch = Watch(
            settings or MonitorSettings(), self, self.node, arguments(), lambda: f"session-{next(numbers)}",
            lambda: (self.now, self.now), lineage,
        )  # fmt: skip

    # The kernel's side
    def label(self, pid: int, root: int, *, harness: bool = False) -> bool:
        self.labelled[pid] = (root, harness)
        return True

    def unlabel(self, pid: int) -> None:
        self.labelled.pop(pid, None)

    # Facts
    def time(self) -> int:
        return next(self._times)

    def who(self, pid: int, root: int = 100, *, ppid: int = 1, uid: int = 1000, harness: bool = False) -> Process:
        return Process(pid, pid * 10, ppid, uid, b"x", root, root * 10 if root else 0, harness)

    def exec(self, pid: int, line: str | tuple[str, ...], *, root: int = 100, path: str = "", name: str = "",
             ppid: int = 1, uid: int = 1000, harness: bool = False, fed: bool = False,
             program: Program = Program.NONE) -> Exec:  # fmt: skip
        words = tuple(line.split(" ")) if isinstance(line, str) else line
        path = path or f"/usr/bin/{words[0]}"
        return Exec(
            self.time(), self.who(pid, root, ppid=ppid, uid=uid, harness=harness), path.encode(),
            (name or path.rpartition("/")[2]).encode(), tuple(word.encode() for word in words), 0, program, fed=fed,
        )  # fmt: skip

    def claude(self, pid: int = 100) -> list[Told]:
        return self.take(self.exec(pid, "claude", root=pid, harness=True))

    def fork(self, pid: int, child: int, root: int = 100) -> Fork:
        return Fork(self.time(), self.who(pid, root), child, child * 10)

    def exit(self, pid: int, root: int = 100) -> Exit:
        return Exit(self.time(), self.who(pid, root), 0)

    def take(self, *facts: AnyFact) -> list[Told]:
        return list(self.watch.take(facts))


def names(told: Iterable[Told]) -> list[str]:
    """The rules that spoke."""
    return [each.finding.rule for each in told]
