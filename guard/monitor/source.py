"""How a backend is asked and told: the one interface between the kernel's side and the meaning's.

A source is opened with `guard.monitor.choose.open_source`. It labels the processes whose names it was given by
itself, in the kernel, at exec; anything finer is the caller's: `label` and `unlabel`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from guard.monitor.facts import AnyFact, Loss, Program, boot_time
from guard.policy.addresses import Network

BACKENDS = ("lsm", "fmod", "tracepoint", "bcc", "poll")
"""From the best to the least; `auto` takes the first that loads."""


@dataclass(frozen=True)
class Settings:
    """What a source is told; replaced as a whole (`configure`) on reload.

    Args:
        programs: name of a file (at most 31 bytes), or of a word of argv, → what it is. HARNESS labels at once; HINT
            gives an `Exec` of a process in no tree and leaves the label to the caller.
        external: networks that count as outside, whatever else they are.
        proxies: loopback ports behind which is the outside.
        enforce: rule → `deny`, or `rewrite` (bind: to loopback).
    """

    programs: Mapping[str, Program] = field(default_factory=dict)
    external: Sequence[Network] = ()
    proxies: Sequence[int] = ()
    enforce: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Can:
    """What a backend can do about one rule.

    Args:
        see: `all`, `part` or `no`.
        act: of `deny`, `rewrite`, those that it can.
        misses: what it does not see or cannot stop, in words.
    """

    see: str
    act: tuple[str, ...] = ()
    misses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Status:
    """What was chosen, and what it can do.

    Args:
        backend: its name.
        programs: attached programs, by section name.
        skipped: program → why it is not there.
        refused: better backend → why it was not taken.
        can: rule or fact → what holds.
        seconds: the load and attach took.
    """

    backend: str
    programs: tuple[str, ...]
    skipped: Mapping[str, str]
    refused: Mapping[str, str]
    can: Mapping[str, Can]
    seconds: float


@dataclass(frozen=True)
class Label:
    """A process in a tree, as the kernel holds it.

    Args:
        pid, start: the process.
        root, root_start: its tree.
        harness: exempt from taint.
    """

    pid: int
    start: int
    root: int
    root_start: int
    harness: bool


@dataclass(frozen=True)
class Stats:
    """Counters since the source was opened.

    Args:
        emitted: kind of fact → how many the kernel offered.
        lost: stage → how many did not fit (`Loss` facts tell of each change).
        unlabelled_execs: execs outside every tree.
        unlabelled_scheduler: of them, scheduler commands.
        labelled: processes in trees now.
        run_ns, run_count: program → time spent in it and runs (the kernel's bpf_stats), empty where switched off.
    """

    emitted: Mapping[str, int]
    lost: Mapping[str, int]
    unlabelled_execs: int
    unlabelled_scheduler: int
    labelled: int
    run_ns: Mapping[str, int]
    run_count: Mapping[str, int]


class Source(Protocol):
    """A loaded backend. One thread; closing it leaves nothing attached but what was pinned on purpose."""

    @property
    def status(self) -> Status:
        """What it is."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable (poll, epoll) when there are facts; -1: ask every `interval` seconds."""
        ...

    @property
    def interval(self) -> float:
        """Seconds between two calls of `poll` where nothing is readable: losses, liveness, detaching."""
        ...

    def poll(self, timeout: float, limit: int = 4096) -> Iterator[AnyFact]:
        """Take what is there, alerts first.

        Args:
            timeout: seconds to wait for the first; 0 does not wait.
            limit: at most so many facts.
        """
        ...

    def label(self, pid: int, root: int, *, harness: bool = False) -> bool:
        """Put a living process into a tree, and all its descendants.

        The kernel is told first and /proc read after it, so that a child made meanwhile is missed by neither.

        Args:
            pid: the process.
            root: pid of the tree's harness, living or not.
            harness: it is the harness itself.

        Returns:
            whether the process was there.
        """
        ...

    def unlabel(self, pid: int) -> None:
        """Take a process out of its tree (a hint that was none), not its descendants."""
        ...

    def labels(self) -> Iterator[Label]:
        """Every process in a tree."""
        ...

    def configure(self, settings: Settings) -> None:
        """Take other settings without detaching."""
        ...

    def follow(self, on: bool) -> tuple[str, ...]:
        """Allow (the default) or forbid the syscall-wide programs: `max_cost`.

        Returns:
            what is not seen from now on; () where nothing was taken off: there is nothing, or it enforces.
        """
        ...

    def stats(self) -> Stats:
        """The counters."""
        ...

    def close(self) -> None:
        """Detach and free. What was pinned by configuration stays."""
        ...


def newly_lost(known: dict[str, int], now: Mapping[str, int]) -> Iterator[Loss]:
    """Tell what was lost at each stage since it was last told.

    Args:
        known: stage → how much has been told; kept up.
        now: stage → how much has been lost.
    """
    for stage, count in now.items():
        if count > known[stage]:
            yield Loss(boot_time(), stage, count - known[stage])
            known[stage] = count
