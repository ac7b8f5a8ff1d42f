"""systemd's journal, by its native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL)."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Sequence

from guard.feeds.config import Feed
from guard.feeds.rfc5424 import SEVERITY
from guard.feeds.sink import Context, Item, Outcome, Sink, Undelivered

_FIELDS = ("id", "time", "host", "producer", "seq", "origin", "control", "rule", "severity", "verdict")


class Journald(Sink):
    """One datagram an event; the event itself stands in GUARD_EVENT, its fields in GUARD_ID, GUARD_RULE and so on."""

    def __init__(self, feed: Feed, context: Context) -> None:
        super().__init__(feed, context)
        self._socket: socket.socket | None = None

    def deliver(self, items: Sequence[Item]) -> Outcome:
        """Hand over the batch; the journal's socket takes it or blocks."""
        outcome = Outcome()
        path = self.feed.text("socket")
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._socket.settimeout(self.feed.seconds("timeout"))
                self._socket.connect(path)
            for item in items:
                self._send(self._socket, entry(item))
                outcome.acked.append(item.position)
                self.context.beat()
        except OSError as error:
            self.drop()
            raise Undelivered(f"{path}: {error.strerror or error}", outcome) from error
        return outcome

    def drop(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _send(self, connection: socket.socket, data: bytes) -> None:
        try:
            connection.send(data)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                raise
            _send_large(connection, data)

def entry(item: Item) -> bytes:
    """Return an event as one journal entry."""
    event = item.event
    fields: list[tuple[str, bytes]] = [
        ("MESSAGE", (item.word("message") or item.word("rule") or "event").encode("utf-8", "replace")),
        ("PRIORITY", b"%d" % SEVERITY.get(item.severity, 6)),
        ("SYSLOG_IDENTIFIER", b"guard"),
        ("GUARD_EVENT", item.body),
    ]
    for name in _FIELDS:
        value = event.get(name)
        if value not in (None, ""):
            fields.append((f"GUARD_{name.upper()}", str(value).encode("utf-8", "replace")))
    return b"".join(_field(name, value) for name, value in fields)


def _field(name: str, value: bytes) -> bytes:
    if b"\n" not in value:
        return b"%s=%s\n" % (name.encode(), value)
    return b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(value)), value)


def _send_large(connection: socket.socket, data: bytes) -> None:
    """Hand over a sealed memory file: an entry larger than a datagram may be."""
    file = os.memfd_create("guard-event", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        os.write(file, data)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        connection.sendmsg([b""], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]).tobytes())])
    finally:
        os.close(file)
