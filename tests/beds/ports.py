"""Ports of loopback for tests to give to servers: none that the kernel hands out itself meanwhile."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

_LOWEST, _ENOUGH, _USUAL = 10_000, 20_000, 32_768
_chance = random.SystemRandom()


def free_ports(count: int, kind: int = socket.SOCK_STREAM) -> list[int]:
    """Ports that nobody has just now, on no address.

    One that bind(2) chooses comes from the range of ip(7)'s ip_local_port_range, from which connections beside this
    test get theirs: it may be another's before the server of the test has begun, or while it is down. So these lie
    below that range, and each process of pytest-xdist has a part of its own.

    Args:
        count: how many. kind: of the socket that is to have them.
    """
    highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    highest = highest if highest >= _ENOUGH else _USUAL  # a node that gives out nearly all: then it is chance alone
    workers, number = (int(os.environ.get(f"PYTEST_XDIST_WORKER{name}", of).removeprefix("gw"))
                       for name, of in (("_COUNT", "1"), ("", "0")))  # fmt: skip
    part = (highest - _LOWEST) // workers
    mine = range(_LOWEST + number * part, _LOWEST + (number + 1) * part)
    found: list[int] = []
    while len(found) < count:
        port = _chance.choice(mine)
        if port not in found and is_free("0.0.0.0", port, kind):
            found.append(port)
    return found


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    """One of them."""
    return free_ports(1, kind)[0]


def is_free(host: str, port: int, kind: int = socket.SOCK_STREAM) -> bool:
    """Whether a server could have this port now."""
    with socket.socket(type=kind) as held:
        if kind == socket.SOCK_STREAM:  # what a connection that has ended leaves behind keeps no server away
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind((host, port))
        except OSError:
            return False
    return True
