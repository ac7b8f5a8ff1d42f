"""What the monitor answers on its socket: the trees (`guard ps`), and metrics for Prometheus.

The socket is root's and readable by all; whose trees one sees goes by the peer's uid, which the kernel gives. The
metrics name no user, path or session, so that they may stand on a loopback port as well.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from guard.errors import MonitorError

SOCKET = "monitor.sock"
SO_PEERCRED = 17
_CONVERSATIONS = 64
_REQUEST_MOST = 4096


def socket_path(state: str = "") -> str:
    """Where the monitor listens: in a state directory that was named, or in /run.

    Args:
        state: the state directory, where one was named.
    """
    return os.path.join(state or os.environ.get("GUARD_STATE_DIR") or "/run/guard", SOCKET)


Row = Mapping[str, object]


class Answers:
    """Listens, and answers from what it is given; never waits, so that it runs beside the rings.

    Args:
        path: of the unix socket; "" for none.
        port: on loopback, for the metrics alone; 0 for none.
        trees: gives every tree as a row for `guard ps`; `uid` in it says whose.
        metrics: gives the metrics' text.
        sees_all: whether a uid may see everybody's trees.

    Raises:
        MonitorError: a socket cannot be made, or another monitor listens.
    """

    def __init__(
        self, path: str, port: int, trees: Callable[[], Sequence[Row]], metrics: Callable[[], str],
        sees_all: Callable[[int], bool],
    ) -> None:  # fmt: skip
        self._path = path
        self._trees, self._metrics, self._sees_all = trees, metrics, sees_all
        self._selector = selectors.DefaultSelector()
        self._listeners: list[socket.socket] = []
        self._open: dict[socket.socket, bytearray] = {}
        try:
            if path:
                self._listen(_unix(path))
            if port:
                listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", port))
                self._listen(listener)
        except OSError as error:
            self.close()
            raise MonitorError(
                f"{path or port}: {error.strerror}", "stop what listens there, or name another"
            ) from None

    def _listen(self, listener: socket.socket) -> None:
        listener.listen(16)
        listener.setblocking(False)
        self._listeners.append(listener)
        self._selector.register(listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """A descriptor that is readable when somebody asks."""
        return self._selector.fileno()

    def serve(self) -> None:
        """Answer whoever has asked."""
        for key, ready in self._selector.select(0):
            peer = key.fileobj
            assert isinstance(peer, socket.socket)  # noqa: S101 - nothing else was registered
            if peer in self._listeners:
                self._accept(peer)
            elif peer not in self._open:
                continue  # it had to make way for one that was accepted a moment ago
            elif ready & selectors.EVENT_WRITE:
                self._write(peer)
            else:
                self._read(peer)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            peer, _ = listener.accept()
            if len(self._open) >= _CONVERSATIONS:
                self._end(next(iter(self._open)))
            peer.setblocking(False)
            self._open[peer] = bytearray()
            self._selector.register(peer, selectors.EVENT_READ)

    def _read(self, peer: socket.socket) -> None:
        request = self._open[peer]
        try:
            part = peer.recv(_REQUEST_MOST)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        request += part
        if not part or len(request) > _REQUEST_MOST:
            self._end(peer)
            return
        http = request.startswith(b"GET ")
        if (http and b"\r\n\r\n" not in request and b"\n\n" not in request) or b"\n" not in request:
            return
        self._open[peer] = bytearray(self._answer(peer, bytes(request), http))
        self._selector.modify(peer, selectors.EVENT_WRITE)
        self._write(peer)

    def _write(self, peer: socket.socket) -> None:
        """Send what the reader takes; a slow one holds up nobody, and makes way when there are too many."""
        left = self._open[peer]
        try:
            while left:
                del left[: peer.send(left)]
        except BlockingIOError:
            return
        except OSError:
            pass  # gone: there is nobody left to tell
        self._end(peer)

    def _answer(self, peer: socket.socket, request: bytes, http: bool) -> bytes:
        if http:
            path = request.split()[1] if len(request.split()) > 1 else b""
            if path.split(b"?")[0] != b"/metrics":
                return b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n"
            body = self._metrics().encode()
            return (
                b"HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body)
            ) + body
        if peer.family != socket.AF_UNIX:
            return b""
        if request.split() == [b"ps"]:
            uid = int.from_bytes(peer.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12)[4:8], sys.byteorder)
            everybody = self._sees_all(uid)
            rows = [row for row in self._trees() if everybody or row.get("uid") == uid]
            return json.dumps({"schema": 1, "trees": rows}).encode() + b"\n"
        return b'{"error": "ask `ps`, or GET /metrics"}\n'

    def _end(self, peer: socket.socket) -> None:
        self._open.pop(peer, None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(peer)
        peer.close()

    def close(self) -> None:
        """Stop listening."""
        for peer in [*self._open, *self._listeners]:
            self._end(peer)
        if self._path and self._listeners:
            with suppress(OSError):
                os.unlink(self._path)
        self._listeners.clear()
        self._selector.close()


def _unix(path: str) -> socket.socket:
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(path)
        except OSError:
            with suppress(FileNotFoundError):
                os.unlink(path)  # what a killed monitor left behind
        else:
            raise MonitorError(f"a monitor listens at {path} already", "one runs a node; stop it first")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    umask = os.umask(0o111)
    try:
        listener.bind(path)
    finally:
        os.umask(umask)
    return listener


def ask(path: str, request: bytes, timeout: float = 2.0) -> bytes:
    """Ask a monitor.

    Args:
        path: of its socket.
        request: `ps`, or an HTTP request.
        timeout: seconds.

    Raises:
        OSError: there is none, or it does not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as channel:
        channel.settimeout(timeout)
        channel.connect(path)
        owner = int.from_bytes(channel.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12)[4:8], sys.byteorder)
        if owner not in (0, os.geteuid()):
            raise PermissionError(f"{path}: another user's")
        channel.sendall(request + b"\n")
        parts = []
        while part := channel.recv(65536):
            parts.append(part)
        return b"".join(parts)
