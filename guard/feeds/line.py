"""A TCP or TLS connection to a syslog receiver: every wait has an end, and what the kernel still holds is known."""

from __future__ import annotations

import fcntl
import select
import socket
import ssl
import struct
import time
from typing import Final

from guard.feeds.config import Feed, address
from guard.feeds.secrets import tls_context

SIOCOUTQ: Final = 0x5411
"""tcp(7): bytes sent that the peer's kernel has not acknowledged."""


class Line:
    """One connection.

    Args:
        feed: with `server`, `tls` and what goes with it.

    Raises:
        OSError: it cannot be made in time, or the certificates do not fit.
        FeedError: a file of the configuration cannot be used.
    """

    def __init__(self, feed: Feed) -> None:
        host, port = address(feed.text("server"))
        self._timeout = feed.seconds("timeout")
        context = tls_context(feed) if feed.flag("tls") else None
        plain = socket.create_connection((host, port), timeout=self._timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # A peer that vanished without a word ends the connection after this many ms (tcp(7)).
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._timeout * 1000))
            self._socket: socket.socket = plain
            if context is not None:
                self._socket = context.wrap_socket(plain, server_hostname=feed.text("server_name") or host)
        except BaseException:
            plain.close()
            raise

    def send(self, data: bytes) -> None:
        """Send all of it; OSError when that does not end in time."""
        self._socket.sendall(data)

    def sent(self) -> None:
        """Wait until the peer's kernel has everything.

        Raises:
            OSError: not in time, or the connection ended.
        """
        end = time.monotonic() + self._timeout
        ended = select.poll()
        ended.register(self._socket, select.POLLRDHUP)  # and POLLERR, POLLHUP, which are always told
        pause = 0.5
        while self.held():
            if ended.poll(pause):
                raise ConnectionResetError("the receiver closed the connection")
            if time.monotonic() > end:
                raise TimeoutError("the receiver takes nothing more")
            pause = min(pause * 2, 20)

    def held(self) -> int:
        """Return how many bytes the peer's kernel has not acknowledged."""
        packed = fcntl.ioctl(self._socket.fileno(), SIOCOUTQ, b"\0\0\0\0")
        return int(struct.unpack("i", packed)[0])

    def receive(self, wait: float) -> bytes | None:
        """Return what the peer says, b"" when it has closed, None when it says nothing within `wait` seconds."""
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
        if not pending and not select.select([self._socket], [], [], wait)[0]:
            return None
        self._socket.setblocking(False)
        try:
            return self._socket.recv(65536)
        except (ssl.SSLWantReadError, BlockingIOError):
            return None  # part of a TLS record, or a session ticket
        except ssl.SSLEOFError:
            return b""
        finally:
            self._socket.settimeout(self._timeout)

    def check(self) -> None:
        """Raise OSError when the peer has closed."""
        if self.receive(0) == b"":
            raise ConnectionResetError("the receiver closed the connection")

    def finish(self) -> None:
        """Close so that the peer reads everything first.

        The end is said, and the peer's own end is waited for: a peer that closes with unread data answers with a
        reset, and that is an OSError here.
        """
        try:
            self.sent()
            if isinstance(self._socket, ssl.SSLSocket):
                try:
                    self._socket.unwrap().close()
                except (ssl.SSLError, TimeoutError):
                    return  # it has all by its kernel's word; a close_notify is a courtesy that some leave out
                return
            self._socket.shutdown(socket.SHUT_WR)
            end = time.monotonic() + self._timeout
            while (left := end - time.monotonic()) > 0 and self.receive(left) != b"":
                continue
        finally:
            self.close()

    def close(self) -> None:
        """Close at once."""
        self._socket.close()
