"""Records of the rings to facts: the other half of `bpf/wire.h`.

Every record begins with the same head. Strings end at their first NUL: what stands behind it is whatever was in the
ring before and is never read.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable

from guard.monitor.facts import (
    Bind,
    CodeBy,
    CodeFromOutside,
    CodeHow,
    Connect,
    Exec,
    Exit,
    Fact,
    Fork,
    Hold,
    IoUring,
    Listen,
    Mode,
    ModeBy,
    Process,
    Program,
    RawSyscall,
    Received,
    Taint,
    TaintRead,
    Through,
    Verdict,
    Walk,
    WroteThenRan,
)

KINDS = (
    "", "Exec", "Fork", "Exit", "Mode", "Bind", "Listen", "Connect", "Received", "Taint", "TaintRead",
    "CodeFromOutside", "WroteThenRan", "RawSyscall", "IoUring", "Walk", "Hold",
)  # fmt: skip
"""enum kind: the index is the number."""

LOST = {24: "alerts", 25: "telemetry", 26: "trees", 27: "argv", 28: "scratch"}
"""enum counter: index → stage of a Loss."""
COUNT_EXECS, COUNT_SCHEDULER, COUNT_MARKS, COUNT_LABELLED = 29, 30, 31, 32

_HEAD = struct.Struct("=QQQIIIIIIII16s")
_EXEC = struct.Struct("=QIIIIIIII32s256s")
_FORK = struct.Struct("=QII")
_EXIT = struct.Struct("=i")
_MODE = struct.Struct("=IIIIIIII256s512s")
_SOCKET = struct.Struct("=IIIIII16s")
_RECEIVED = struct.Struct("=II16s64s")
_FLOW = struct.Struct("=IIIIiIII16s64s64s")
_NUMBER = struct.Struct("=IIII")
HEAD_BYTES = _HEAD.size
_TIME_BYTES = _START_BYTES = 8
_HEADS_MOST = 64
"""Heads that are remembered: a process that tells much has the same one, but for its time, in all of its records."""

_VERDICTS = (Verdict.OBSERVED, Verdict.DENIED, Verdict.REWRITTEN)
_BY = (CodeBy.NONE, CodeBy.STDIN, CodeBy.ARGUMENT, CodeBy.FILE, CodeBy.DESCRIPTOR)
_HOW = (
    CodeHow.STDIN, CodeHow.DESCRIPTOR, CodeHow.SCRIPT, CodeHow.SOURCED, CodeHow.EXECUTED, CodeHow.MAPPED,
)  # fmt: skip
_THROUGH = (Through.PIPE, Through.FILE, Through.SOCKET, Through.MAPPING, Through.TERMINAL)
_MODE_BY = (
    ModeBy.CHMOD, ModeBy.ACL, ModeBy.DEFAULT_ACL, ModeBy.OPEN, ModeBy.MKDIR, ModeBy.MKNOD, ModeBy.BIND,
)  # fmt: skip
_FAMILIES = {2: "inet", 10: "inet6"}
_TYPES = {1: "stream", 2: "dgram", 3: "raw", 5: "seqpacket"}
_NOT_KNOWN = 0xFFFFFFFF
_ENTRIES = {1: "int80", 2: "x32"}
_RING_SETUP = 255
_HOLDS = ("process", "terminal")
_OPERATIONS = {
    _RING_SETUP: "setup", 16: "connect", 18: "openat", 28: "openat2", 37: "mkdirat", 41: "fsetxattr", 42: "setxattr",
    56: "bind", 57: "listen",
}  # fmt: skip


def text(raw: bytes) -> bytes:
    """What stands before the first NUL."""
    return raw.split(b"\0", 1)[0]


def address(raw: bytes) -> str:
    """16 bytes as an address, v4-mapped ones unfolded."""
    value = ipaddress.IPv6Address(raw)
    return str(value.ipv4_mapped or value)


def path(given: bytes, walk: bytes, cut: bool) -> bytes:
    """A path out of what the program gave and the names the kernel walked, from the inside out.

    Args:
        given: the argument; b"": the walk is of the object itself. Of an absolute one the walk is of the root that
            it begins at: empty, but for who changed it.
        walk: names, each ended by NUL.
        cut: the walk ended before the root.
    """
    if given.startswith(b"/") and not walk:
        return given
    names = walk.split(b"\0")[:-1]
    base = b"/".join(reversed(names))
    base = b".../" + base if cut else b"/" + base
    return base.rstrip(b"/") + b"/" + given.lstrip(b"/") if given else base


class Decoder:
    """Turns records into facts.

    Args:
        start_of: pid → start of a process in a tree, 0 unknown (its label tells): some records know a pid alone.
    """

    def __init__(self, start_of: Callable[[int], int]) -> None:
        self._start_of = start_of
        self._heads: dict[bytes, tuple[int, int, Process]] = {}

    def fact(self, record: bytes) -> Fact:
        """One record as a fact.

        Raises:
            ValueError, struct.error, IndexError, KeyError: it is none; the caller counts it as lost.
        """
        head = record[_TIME_BYTES:HEAD_BYTES]
        known = self._heads.get(head)
        if known is None:
            known = self._head(record)
            if any(head[:_START_BYTES]):  # a start that a label told may be another's when the pid is used again
                if len(self._heads) >= _HEADS_MOST:
                    self._heads.clear()
                self._heads[head] = known
        kind, verdict, who = known
        read: _Read = _READERS[kind]
        return read(int.from_bytes(record[:_TIME_BYTES], "little"), who, _VERDICTS[verdict], record)

    def _head(self, record: bytes) -> tuple[int, int, Process]:
        _, start, root_start, kind, pid, ppid, uid, root, verdict, harness, _, comm = _HEAD.unpack_from(record)
        return kind, verdict, Process(
            pid, start or self._start_of(pid), ppid, uid, text(comm), root, root_start, bool(harness)
        )  # fmt: skip


def _exec(time: int, who: Process, verdict: Verdict, record: bytes) -> Fact:
    unseen, program, by, fed, author, sid, tty, length, _, name, asked = _EXEC.unpack_from(record, HEAD_BYTES)
    begin = HEAD_BYTES + _EXEC.size
    raw = record[begin : begin + length]
    words = raw.split(b"\0")
    if words and not words[-1]:
        words.pop()
    return Exec(
        time, who, text(asked), text(name), tuple(words), unseen, Program(program), _BY[by], bool(fed), author, sid, tty
    )


def _fork(time: int, who: Process, verdict: Verdict, record: bytes) -> Fact:
    child_start, child, _ = _FORK.unpack_from(record, HEAD_BYTES)
    return Fork(time, who, child, child_start)


def _exit(time: int, who: Process, verdict: Verdict, record: bytes) -> Fact:
    return Exit(time, who, _EXIT.unpack_from(record, HEAD_BYTES)[0])


def _mode(time: int, who: Process, verdict: Verdict, record: bytes) -> Fact:
    mode, kind, before, by, ring, _unsure, walked, cut, given, walk = _MODE.unpack_from(record, HEAD_BYTES)
    return Mode(
        time,
        who,
        path(text(given), walk[:walked], bool(cut)),
        kind | mode,
        -1 if before == _NOT_KNOWN else before,
        _MODE_BY[by],
        verdict,
        bool(ring),
    )


def _socket(make: type[Bind] | type[Listen] | type[Connect]) -> Callable[[int, Process, Verdict, bytes], Fact]:
    def read(time: int, who: Process, verdict: Verdict, record: bytes) -> Fact:
        family, kind, protocol, port, private, _, raw = _SOCKET.unpack_from(record, HEAD_BYTES)
        return make(
            time, who, address(raw), port, _FAMILIES[family], _TYPES.get(kind, str(kind)), protocol, bool(private),
            verdict,
        )  # fmt: skip

    return read


def _received(time: int, who: Process, verdict: Verdict, record: bytes) -> Fact:
    port, length, raw, sample = _RECEIVED.unpack_from(record, HEAD_BYTES)
    return Received(time, who, address(raw), port, sample[:length])


def _taint(time: int, who: Process, verdict: Verdict, record: bytes) -> Fact:
    through, _, _, _, _, _, length, _, _, name, sample = _FLOW.unpack_from(record, HEAD_BYTES)
    return Taint(time, who, _THROUGH[through], text(name), sample[:length])


def _taint_read(time: int, who: Process, verdict: Verdict, record: bytes) -> Fact:
    through, _, _, _, fd, writer, length, _, comm, name, sample = _FLOW.unpack_from(record, HEAD_BYTES)
    return TaintRead(time, who, _THROUGH[through], text(name), fd, writer, text(comm), sample[:length])


def _code(time: int, who: Process, verdict: Verdict, record: bytes) -> Fact:
    through, how, program, by, _, writer, _, _, comm, name, _ = _FLOW.unpack_from(record, HEAD_BYTES)
    return CodeFromOutside(
        time, who, _HOW[how], _THROUGH[through], text(name), Program(program), _BY[by], writer, text(comm), verdict
    )


def _wrote(time: int, who: Process, verdict: Verdict, record: bytes) -> Fact:
    _, _, program, _, _, writer, _, _, comm, name, _ = _FLOW.unpack_from(record, HEAD_BYTES)
    return WroteThenRan(time, who, text(name), writer, text(comm), Program(program))


def _raw(time: int, who: Process, verdict: Verdict, record: bytes) -> Fact:
    number, entry, program32, _ = _NUMBER.unpack_from(record, HEAD_BYTES)
    return RawSyscall(time, who, _ENTRIES[entry], number, bool(program32))


def _ring(time: int, who: Process, verdict: Verdict, record: bytes) -> Fact:
    return IoUring(time, who, _OPERATIONS[_NUMBER.unpack_from(record, HEAD_BYTES)[0]])


def _walk(time: int, who: Process, verdict: Verdict, record: bytes) -> Fact:
    return Walk(time, who, _NUMBER.unpack_from(record, HEAD_BYTES)[0])


def _hold(time: int, who: Process, verdict: Verdict, record: bytes) -> Fact:
    other, how, _, _ = _NUMBER.unpack_from(record, HEAD_BYTES)
    return Hold(time, who, other, _HOLDS[how])


_Read = Callable[[int, Process, Verdict, bytes], Fact]
_READERS: tuple[_Read, ...] = (
    _exec,  # no record is of kind 0
    _exec,
    _fork,
    _exit,
    _mode,
    _socket(Bind),
    _socket(Listen),
    _socket(Connect),
    _received,
    _taint,
    _taint_read,
    _code,
    _wrote,
    _raw,
    _ring,
    _walk,
    _hold,
)


def unsure(record: bytes) -> bool:
    """Whether a record of a mode tells what was asked and not what was done (io_uring)."""
    kind = _HEAD.unpack_from(record)[3]
    return KINDS[kind] == "Mode" and bool(_MODE.unpack_from(record, HEAD_BYTES)[5])
