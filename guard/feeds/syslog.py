"""Syslog (RFC 5424) over TCP or TLS (RFC 5425). It has no acknowledgement, so what was sent lately is kept.

A message counts as delivered once the receiver's kernel has it *and* `window` seconds have gone by without a cut. A cut
sends the window again, which may give duplicates (each with its event's id). What left the window early because it
held too many events may be lost: that number is told, as a loss event. RELP and NATS acknowledge; this does not.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from guard.feeds.config import Feed
from guard.feeds.line import Line
from guard.feeds.rfc5424 import framed, message
from guard.feeds.sink import Context, Item, Outcome, Sink, Undelivered

_PIECE = 1 << 16


class Syslog(Sink):
    """Sends, and remembers what may still be cut off."""

    def __init__(self, feed: Feed, context: Context, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(feed, context)
        self._clock = clock
        self._line: Line | None = None
        self._window: deque[tuple[int, float]] = deque()  # (position, when sent)
        self._early: deque[float] = deque()  # when sent, of what had to leave the window before its time

    def deliver(self, items: Sequence[Item]) -> Outcome:
        """Send a batch; what is old enough is acknowledged."""
        try:
            line = self._open()
            line.check()
            for piece in self._pieces(items):
                line.send(piece)
                self.context.beat()
            line.sent()
        except OSError as error:
            # Of this batch nothing is known: it counts as in flight with the rest.
            raise self._cut(error, len(items)) from error
        now = self._clock()
        self._window.extend((item.position, now) for item in items)
        return self._aged(now)

    def settle(self) -> Outcome:
        """Acknowledge what is old enough, and see whether the connection stands."""
        if self._line is not None:
            try:
                self._line.check()
            except OSError as error:
                raise self._cut(error) from error
        return self._aged(self._clock())

    def finish(self) -> Outcome:
        """Close in order, which tells that the receiver has read everything."""
        if self._line is not None:
            line, self._line = self._line, None
            try:
                line.finish()
            except OSError as error:
                raise self._cut(error) from error
        outcome = Outcome([position for position, _ in self._window])
        self._window.clear()
        return outcome

    def drop(self) -> None:
        """Abandon the connection; the window is read from the spool again."""
        if self._line is not None:
            self._line.close()
        self._line = None
        self._window.clear()

    def _open(self) -> Line:
        if self._line is None:
            self._line = Line(self.feed)
        return self._line

    def _pieces(self, items: Sequence[Item]) -> list[bytes]:
        pieces, piece = [], bytearray()
        for item in items:
            piece += framed(
                message(
                    item,
                    facility=self.feed.text("facility"),
                    enterprise=self.feed.text("enterprise"),
                    host=self.context.host,
                    feed=self.feed.name,
                )
            )
            if len(piece) > _PIECE:
                pieces.append(bytes(piece))
                piece.clear()
        return [*pieces, bytes(piece)] if piece else pieces

    def _aged(self, now: float) -> Outcome:
        outcome = Outcome()
        span, most = self.feed.seconds("window"), self.feed.number("window_events")
        while self._window and (now - self._window[0][1] >= span or len(self._window) > most):
            position, sent = self._window.popleft()
            outcome.acked.append(position)
            if now - sent < span:
                self._early.append(sent)
        while self._early and now - self._early[0] >= span:
            self._early.popleft()
        return outcome

    def _cut(self, error: OSError, more: int = 0) -> Undelivered:
        lost, again = len(self._early), len(self._window)
        self._early.clear()
        connected = self._line is not None
        self.drop()
        reason = f"{self.feed.text('server')}: {error.strerror or error}"
        return Undelivered(reason, lost=lost, again=again + more if connected else 0)
