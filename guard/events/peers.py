"""Who is at the other end of a socket, as the kernel has it (unix(7), SO_PEERCRED and its like)."""

from __future__ import annotations

import os
import select
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

SO_PEERCRED: Final = 17
SO_PEERGROUPS: Final = 59
SO_PEERPIDFD: Final = 77
"""From Linux 6.5 on; before it a pidfd is opened by number, and a number can be used again in between."""
_ADMIN: Final = 1 << 21 | 1 << 39  # CAP_SYS_ADMIN, CAP_BPF: what no session of `guard run` keeps


@dataclass(frozen=True)
class Peer:
    """The other end.

    Args:
        pid, uid, gid: when it connected.
        groups: all its groups' numbers.
        inside: whether it is in a sandbox, and so perhaps part of a guarded tree. A peer that is gone before it
            could be looked at counts as inside: it can have become what it started.
    """

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]
    inside: bool

    @property
    def is_root(self) -> bool:
        """Whether it speaks for the node itself."""
        return self.uid == 0 and not self.inside


def peer_of(connection: socket.socket) -> Peer:
    """Ask the kernel for the peer of a connected unix socket.

    Raises:
        OSError: it is none.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12)
    pid, uid, gid = struct.unpack("iII", raw)
    try:
        groups = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 1024)  # Python gives no more
        numbers = frozenset(struct.unpack(f"{len(groups) // 4}I", groups))
    except OSError:
        numbers = frozenset()  # over 256 of them: counted as none, which lets see less
    return Peer(pid, uid, gid, numbers | {gid}, _is_inside(pid, uid, _pidfd(connection, pid)))


def stranger(channel: socket.socket) -> int:
    """The uid of a service that is neither root's nor our own, and so not to be trusted; -1 where it is.

    Args:
        channel: connected to it.
    """
    _, uid, _ = struct.unpack("iII", channel.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12))
    return -1 if uid in (0, os.geteuid()) else int(uid)


def _pidfd(connection: socket.socket, pid: int) -> int:
    try:
        return struct.unpack("i", connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4))[0]  # type: ignore[no-any-return]
    except OSError:
        pass
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _is_inside(pid: int, uid: int, pidfd: int) -> bool:
    """Whether a seccomp filter stands above a process: no session is without one, and none can be left."""
    if pidfd < 0:
        return True
    try:
        status = _status(pid)
        # The number was the peer's as long as the peer lived: what was read is his if he lives still.
        if select.select([pidfd], [], [], 0)[0]:
            return True
    finally:
        with suppress(OSError):
            os.close(pidfd)
    if status.get("Seccomp", "2") != "2":
        return False
    # Root's services have filters too (systemd), and rights that no session has.
    return uid != 0 or not int(status.get("CapEff", "0"), 16) & _ADMIN


def _status(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    except OSError:
        return {}


def ancestors(pid: int, most: int = 256) -> list[int]:
    """A process and those above it, the nearest first."""
    found: list[int] = []
    while pid > 1 and pid not in found and len(found) < most:
        found.append(pid)
        try:
            pid = int(_status(pid).get("PPid", "0"))
        except ValueError:
            break
    return found


def owner_of(pid: int) -> int:
    """The user of a process; -1 where there is none of that number."""
    words = _status(pid).get("Uid", "").split()
    return int(words[0]) if words else -1
