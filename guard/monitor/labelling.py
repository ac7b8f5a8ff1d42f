"""Who is in a tree, as the kernel's table of labels has it: read and changed from here."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping

from guard.monitor import wire
from guard.monitor.maps import Map
from guard.monitor.source import Label

_PROC = struct.Struct("=QQIIII")
"""The beginning of struct proc (bpf/state.h): start, root_start, root, flags, program, by."""
_F_HARNESS = 1
_F_EXECED = 16
_F_MARKED = 2 | 4


class Labelling:
    """The labels of a loaded object.

    Args:
        procs, counters: its maps.
        processes: every process now: pid → start (ns since boot), parent.
    """

    def __init__(self, procs: Map, counters: Map, processes: Callable[[], Mapping[int, tuple[int, int]]]) -> None:
        self._procs = procs
        self._counters = counters
        self._processes = processes
        # The kernel's counter is per CPU: the labels of user space stand in a count of their own.
        self._own = 0

    def label(self, pid: int, root: int, *, harness: bool = False) -> bool:
        """Put a process and its descendants into a tree; see `Source`."""
        known = self._processes()
        if pid not in known:
            return False
        root_start = known[root][0] if root in known else self._root_start(root)
        self._put(pid, known[pid][0], root, root_start, harness)
        inside = {pid}
        # A child made before the label was seen by no fork; one made after it has the kernel's. So look until no more
        # come: the second list is younger than the label.
        while True:
            known = self._processes()
            more = {child for child, (_, parent) in known.items() if parent in inside and child not in inside}
            if not more:
                break
            for child in more:
                if self._procs.get(_key(child)) is None:
                    self._put(child, known[child][0], root, root_start, harness=False)
            inside |= more
        for member in inside:
            if member not in known:  # it ended before its label was there, and no exit took that away
                self.unlabel(member)
        return pid in known

    def _put(self, pid: int, start: int, root: int, root_start: int, harness: bool) -> None:
        old = self._procs.get(_key(pid))
        flags = _F_EXECED | (_F_HARNESS if harness else 0)
        row = bytearray(old or bytes(self._procs.value_size))
        _PROC.pack_into(row, 0, start, root_start, root, flags, *_PROC.unpack_from(row)[4:])
        if self._procs.set(_key(pid), bytes(row)) and old is None:
            self._own += 1

    def unlabel(self, pid: int) -> None:
        """Take one process out of its tree."""
        if self._procs.get(_key(pid)) is not None:
            self._procs.drop(_key(pid))
            self._own -= 1

    def exempt(self, pid: int) -> bool:
        """Take a process in a tree for a harness; False: it is gone, and its number may be the next one's."""
        row = self._procs.get(_key(pid))
        if row is None:
            return False
        start, root_start, root, flags, program, by = _PROC.unpack_from(row)
        fresh = bytearray(row)
        _PROC.pack_into(fresh, 0, start, root_start, root, (flags & ~_F_MARKED) | _F_HARNESS, program, by)
        return self._procs.change(_key(pid), bytes(fresh))

    def recount(self) -> None:
        """Count the labels anew: those of an earlier start were counted, and changed meanwhile, by its programs."""
        self._own = sum(1 for _ in self._procs.keys()) - self._signed()  # noqa: SIM118 - no mapping

    def _signed(self) -> int:
        kernel = self._counters.sum(wire.COUNT_LABELLED)
        return kernel - (1 << 64) if kernel >= 1 << 63 else kernel

    def count(self) -> int:
        """How many processes are in trees."""
        return max(0, self._signed() + self._own)

    def all(self) -> Iterator[Label]:
        """Every process in a tree."""
        for key in list(self._procs.keys()):
            row = self._procs.get(key)
            if row is not None:
                start, root_start, root, flags, _, _ = _PROC.unpack_from(row)
                yield Label(int.from_bytes(key, "little"), start, root, root_start, bool(flags & _F_HARNESS))

    def start_of(self, pid: int) -> int:
        """The start of a process in a tree, 0: it is in none."""
        row = self._procs.get(_key(pid))
        return int(_PROC.unpack_from(row)[0]) if row is not None else 0

    def is_of(self, root: int, pid: int) -> bool:
        """Whether a process is in a tree."""
        row = self._procs.get(_key(pid))
        return row is not None and _PROC.unpack_from(row)[2] == root

    def _root_start(self, root: int) -> int:
        """The start of a root that is gone, as its tree remembers it."""
        return next((label.root_start for label in self.all() if label.root == root), 0)


def _key(pid: int) -> bytes:
    return pid.to_bytes(4, "little")
