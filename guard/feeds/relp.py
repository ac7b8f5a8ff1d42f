"""Syslog over RELP (the protocol of rsyslog's imrelp): every message is acknowledged by the receiver itself.

A frame is `TXNR SP COMMAND SP DATALEN [SP DATA] LF`; the answer to each is `TXNR SP rsp SP DATALEN SP CODE TEXT LF`
(librelp, doc/relp.html).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from guard.feeds.config import Feed
from guard.feeds.line import Line
from guard.feeds.rfc5424 import message
from guard.feeds.sink import Context, Item, Outcome, Sink, Undelivered

_LAST = 999_999_999  # the number after it is 1
_OFFER = b"relp_version=0\nrelp_software=guard\ncommands=syslog"
_LONGEST = 1 << 20


class Relp(Sink):
    """Keeps at most `in_flight` messages unacknowledged."""

    def __init__(self, feed: Feed, context: Context) -> None:
        super().__init__(feed, context)
        self._line: Line | None = None
        self._number = 0
        self._buffer = b""

    def deliver(self, items: Sequence[Item]) -> Outcome:
        """Send a batch and wait for every answer."""
        outcome = Outcome()
        waiting: dict[int, int] = {}  # transaction → position
        most = self.feed.number("in_flight")
        try:
            line = self._open()
            for item in items:
                while len(waiting) >= most:
                    self._answers(line, waiting, outcome)
                number = self._next()
                waiting[number] = item.position
                line.send(_frame(number, b"syslog", self._message(item)))
            while waiting:
                self._answers(line, waiting, outcome)
        except OSError as error:
            connected = self._line is not None
            self.drop()
            reason = f"{self.feed.text('server')}: {error.strerror or error}"
            raise Undelivered(reason, outcome, again=len(waiting) if connected else 0) from error
        return outcome

    def finish(self) -> Outcome:
        """Close the session; everything is acknowledged already."""
        if self._line is not None:
            try:
                self._line.send(_frame(self._next(), b"close", b""))
                self._line.receive(min(1.0, self.feed.seconds("timeout")))
            except OSError:
                pass  # acknowledged is acknowledged
        self.drop()
        return Outcome()

    def drop(self) -> None:
        """Abandon the connection."""
        if self._line is not None:
            self._line.close()
        self._line = None
        self._buffer = b""

    def _message(self, item: Item) -> bytes:
        feed = self.feed
        return message(
            item,
            facility=feed.text("facility"),
            enterprise=feed.text("enterprise"),
            host=self.context.host,
            feed=feed.name,
        )

    def _open(self) -> Line:
        if self._line is None:
            self._line = Line(self.feed)
            self._number = 0
            number = self._next()
            self._line.send(_frame(number, b"open", _OFFER))
            answered, code, text = self._answer(self._line)
            if answered != number or code != 200:
                raise OSError(0, f"the receiver refused the session: {code} {text}")
        return self._line

    def _next(self) -> int:
        self._number = self._number % _LAST + 1
        return self._number

    def _answers(self, line: Line, waiting: dict[int, int], outcome: Outcome) -> None:
        number, code, text = self._answer(line)
        position = waiting.pop(number, None)
        if position is None:
            raise OSError(0, f"an answer to message {number}, which was not sent")
        if code != 200:
            raise OSError(0, f"the receiver could not take a message: {code} {text}")
        outcome.acked.append(position)

    def _answer(self, line: Line) -> tuple[int, int, str]:
        """Return (transaction, code, text) of the next answer."""
        end = time.monotonic() + self.feed.seconds("timeout")
        while (found := self._parsed()) is None:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError("the receiver does not acknowledge")
            got = line.receive(min(left, 1))
            self.context.beat()
            if got == b"":
                raise ConnectionResetError("the receiver closed the connection")
            self._buffer += got or b""
        return found

    def _parsed(self) -> tuple[int, int, str] | None:
        head = self._buffer.split(b" ", 3)
        if len(head) < 3 or (len(head) == 3 and b"\n" not in head[2]):
            if len(self._buffer) > _LONGEST:
                raise OSError(0, "the receiver does not speak RELP")
            return None
        size_text = head[2].split(b"\n", 1)[0]
        try:
            number, size = int(head[0]), int(size_text)
        except ValueError:
            raise OSError(0, "the receiver does not speak RELP") from None
        if not 0 <= size <= _LONGEST:
            raise OSError(0, "the receiver does not speak RELP")
        start = len(head[0]) + len(head[1]) + len(size_text) + 2 + (1 if size else 0)
        if len(self._buffer) < start + size + 1:
            return None
        data, self._buffer = self._buffer[start : start + size], self._buffer[start + size + 1 :]
        if head[1] == b"serverclose":
            raise ConnectionResetError("the receiver ended the session")
        code, _, text = data.partition(b"\n")[0].partition(b" ")
        if head[1] != b"rsp" or not code.isdigit():
            raise OSError(0, "the receiver does not speak RELP")
        return number, int(code), text.decode("ascii", "replace")[:200]


def _frame(number: int, command: bytes, data: bytes) -> bytes:
    return b"%d %s %d%s%s\n" % (number, command, len(data), b" " if data else b"", data)
