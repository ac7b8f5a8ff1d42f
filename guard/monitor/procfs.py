"""/proc: processes, their descriptors and their listening sockets.

For the poll backend, and for the one look of the others after their blind time.
"""

from __future__ import annotations

import ipaddress
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from guard.monitor import proc, wire
from guard.monitor.facts import Listen, Process
from guard.monitor.source import Label

_LISTEN = "0A"
_UDP_UNCONNECTED = "07"
_TABLES = (("tcp", "inet", "stream", 6), ("tcp6", "inet6", "stream", 6), ("udp", "inet", "dgram", 17),
           ("udp6", "inet6", "dgram", 17))  # fmt: skip
_EPHEMERAL = "/proc/sys/net/ipv4/ip_local_port_range"


@dataclass(frozen=True)
class Seen:
    """A process, as /proc tells it.

    Args:
        pid, ppid, uid: numbers.
        start: nanoseconds since boot, in steps of a clock tick (10 ms).
        comm: its name.
        argv: words, at most 16 KiB.
        exe: name of its file; b"" where it may not be read.
        sid, tty: session, and device of its terminal.
    """

    pid: int
    ppid: int
    uid: int
    start: int
    comm: bytes
    argv: tuple[bytes, ...] = ()
    unseen: int = 0
    exe: bytes = b""
    sid: int = 0
    tty: int = 0


MOST_ARGV = 16384


def processes(known: Mapping[int, Seen] | None = None) -> Iterator[Seen]:
    """Every process, with argv.

    Args:
        known: those of the last look: argv is read again where the name has changed, as exec does.
    """
    for name in os.listdir(b"/proc"):
        if name.isdigit():
            seen = process(int(name), known)
            if seen is not None:
                yield seen


def process(pid: int, known: Mapping[int, Seen] | None = None) -> Seen | None:
    """One process; None: it is gone, or its /proc is hidden."""
    found = proc.stat_line(pid)
    if found is None:
        return None
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    comm, fields = found
    start = int(fields[19]) * proc.TICK
    ppid, sid, tty = int(fields[1]), int(fields[3]), int(fields[4])
    before = known.get(pid) if known is not None else None
    if before is not None and (before.start, before.comm, before.uid) == (start, comm, uid):
        return before if before.ppid == ppid else replace(before, ppid=ppid)
    argv, unseen = _argv(pid)
    try:
        exe = os.path.basename(os.readlink(f"/proc/{pid}/exe".encode())).removesuffix(b" (deleted)")
    except OSError:
        exe = b""
    return Seen(pid, ppid, uid, start, comm, argv, unseen, exe, sid, tty)


def _argv(pid: int) -> tuple[tuple[bytes, ...], int]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read(MOST_ARGV + 1)
            rest = len(file.read()) + 1 if len(raw) > MOST_ARGV else 0
    except OSError:
        return (), 0
    words = raw[:MOST_ARGV].split(b"\0")
    if words and not words[-1]:
        words.pop()
    return tuple(words), rest


@dataclass(frozen=True)
class Listener:
    """A socket that waits for anybody.

    Args:
        address: 16 bytes, v4-mapped for IPv4.
        port, family, kind, protocol: as facts name them.
    """

    address: bytes
    port: int
    family: str
    kind: str
    protocol: int


def listeners(pid: int) -> Iterator[tuple[int, Listener]]:
    """Listening sockets of a process's network namespace: inode, socket."""
    try:
        with open(_EPHEMERAL, encoding="ascii") as file:
            first, last = (int(word) for word in file.read().split())
    except OSError:
        first, last = 32768, 60999
    for table, family, kind, protocol in _TABLES:
        try:
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
                rows = file.readlines()[1:]
        except OSError:
            continue
        for row in rows:
            words = row.split()
            wanted = _LISTEN if kind == "stream" else _UDP_UNCONNECTED
            if words[3] != wanted:
                continue
            raw, _, port = words[1].partition(":")
            # A UDP socket with a port the kernel chose is a client's.
            if kind == "dgram" and first <= int(port, 16) <= last:
                continue
            whole = b"".join(struct.pack("=I", int(raw[i : i + 8], 16)) for i in range(0, len(raw), 8))
            address = whole if len(whole) == 16 else bytes(10) + b"\xff\xff" + whole
            yield int(words[9]), Listener(address, int(port, 16), family, kind, protocol)


def listening(pid: int) -> Iterator[Listener]:
    """A process's own listening sockets that are not on loopback."""
    own = proc.sockets(pid)
    for inode, listener in listeners(pid) if own else ():
        address = ipaddress.IPv6Address(listener.address)
        if inode in own and not (address.ipv4_mapped or address).is_loopback:
            yield listener


def listen_fact(time: int, seen: Seen, label: Label, listener: Listener) -> Listen:
    """A socket of /proc as a fact."""
    who = Process(seen.pid, label.start, seen.ppid, seen.uid, seen.comm, label.root, label.root_start, label.harness)
    return Listen(
        time, who, wire.address(listener.address), listener.port, listener.family, listener.kind,
        listener.protocol, private(seen.pid),
    )  # fmt: skip


def private(pid: int) -> bool:
    """Whether a process is in another network namespace than this one."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return False
