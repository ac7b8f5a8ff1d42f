"""Acts on sockets: addresses bound, ports connected to, unix sockets of others."""

from __future__ import annotations

import errno
import os
import socket

from . import Stage, allow, forbid, number, text

ANYWHERE = "0.0.0.0"  # noqa: S104 - binding it must be refused


def _bind(family: int, kind: int, address: str) -> None:
    with socket.socket(family, kind) as new:
        new.bind((address, 0))
        if new.getsockname()[0] in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
            raise OSError(errno.EACCES, "rewritten to loopback")


def _listen() -> None:
    with socket.socket() as new:
        new.listen(1)


def _protocol(number: int) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM, number).close()


def _connect(port: int) -> None:
    with socket.socket() as new:
        new.settimeout(2)
        new.connect(("127.0.0.1", port))


def _reach(port: int) -> None:
    """Connect; the rule of ports is asked before the address, so that nobody listening is good enough."""
    try:
        _connect(port)
    except TimeoutError:
        return
    except OSError as error:
        if error.errno not in (errno.ECONNREFUSED, errno.ENETUNREACH, errno.EADDRNOTAVAIL):
            raise


def _fast_open(port: int) -> None:
    with socket.socket() as new:
        new.sendto(b"x", 0x20000000, ("127.0.0.1", port))


BIND = [
    forbid(
        "bind",
        "bind TCP 0.0.0.0",
        lambda _: _bind(socket.AF_INET, socket.SOCK_STREAM, ANYWHERE),
        unless="network.bind=any",
    ),
    forbid(
        "bind",
        "bind TCP ::",
        lambda _: _bind(socket.AF_INET6, socket.SOCK_STREAM, "::"),
        unless="network.bind=any",
    ),
    forbid("bind", "listen without bind", lambda _: _listen(), gap="listen", unless="network.bind=any"),
    forbid(
        "bind",
        "bind UDP 0.0.0.0",
        lambda _: _bind(socket.AF_INET, socket.SOCK_DGRAM, ANYWHERE),
        gap="UDP",
        unless="network.bind=any",
    ),
    forbid("bind", "make an MPTCP socket", lambda _: _protocol(262)),
    allow("bind", "make a TCP socket", lambda _: socket.socket().close()),
]

CONNECT = [
    forbid("connect", "connect to a port that is not granted", lambda s: _connect(number(s, "port_denied"))),
    forbid("connect", "the same by TCP fast open", lambda s: _fast_open(number(s, "port_denied"))),
    allow("connect", "connect to a granted port", lambda s: _reach(number(s, "port_granted"))),
]


def _unix(address: str | bytes) -> None:
    with socket.socket(socket.AF_UNIX) as new:
        new.settimeout(2)
        new.connect(address)


def _own_unix(stage: Stage) -> None:
    # A short relative name: an address holds 108 bytes, the project's path may be longer.
    os.chdir(text(stage, "project"))
    with socket.socket(socket.AF_UNIX) as own:
        own.bind("socket")
        own.listen(1)
        _unix("socket")


def _outside_unix(stage: Stage) -> None:
    os.chdir(text(stage, "sockets"))
    _unix("socket")


UNIX = [
    forbid(
        "unix-sockets",
        "connect to an outside abstract socket",
        lambda s: _unix(b"\0" + text(s, "abstract").encode()),
        gap="abstract",
        unless="unix.abstract=allow",
    ),
    forbid("unix-sockets", "connect to an outside socket by path", _outside_unix, gap="path"),
    forbid(
        "unix-sockets",
        "make a datagram socket",
        lambda _: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).close(),
        gap="datagram|seccomp",
        unless="unix.datagram=allow",
    ),
    allow("unix-sockets", "make a socket pair", lambda _: socket.socketpair()),
    allow("unix-sockets", "listen and connect in the project", _own_unix),
]
