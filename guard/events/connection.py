"""One producer's connection: its peer, and the lines that have come so far."""

from __future__ import annotations

import socket

from guard.events.peers import Peer
from guard.events.wire import LINE_MOST


class Connection:
    """A connection of the service's.

    Args:
        channel: non-blocking.
        peer: who is at the other end.

    Attributes:
        through: lines dealt with.
        dropped: of them not taken.
        adopting: users' spools that it waits for.
    """

    def __init__(self, channel: socket.socket, peer: Peer) -> None:
        self.channel = channel
        self.peer = peer
        self.through = 0
        self.dropped = 0
        self.adopting = 0
        self._rest = b""
        self._number = channel.fileno()

    def fileno(self) -> int:
        """The descriptor it had, closed or not."""
        return self._number

    def lines(self, most: int) -> tuple[list[bytes], bool]:
        """Take what has come: whole lines, and whether the other end has no more to say.

        Args:
            most: bytes to take at once.

        Raises:
            OSError: the connection broke, or a line does not end.
        """
        try:
            part = self.channel.recv(most)
        except BlockingIOError:
            return [], False
        if not part:
            return ([self._rest] if self._rest.strip() else []), True
        *lines, self._rest = (self._rest + part).split(b"\n")
        if len(self._rest) > LINE_MOST:
            raise OSError("a line that does not end")
        return [line for line in lines if line], False
