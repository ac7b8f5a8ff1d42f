"""What a feed has to say of itself (a cut, a refused event) as a telemetry event in the same spool."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from guard.errors import GuardError
from guard.events.entry import Entry
from guard.events.model import Detail, say
from guard.events.producer import Producer
from guard.events.sink import SocketSink
from guard.events.spool import Spool
from guard.events.wire import Severity
from guard.redact import redact_text

Say = Callable[[str], None]


class Losses:
    """Makes the events of one feed.

    Args:
        spool: the spool's directory.
        feed: the feed's name.
        complain: told what could not be put on record.
        socket: of the service; the usual place where not given.
    """

    def __init__(self, spool: str, feed: str, complain: Say, socket: str = "") -> None:
        self._spool = spool
        self._producer = Producer(f"feed:{feed}")
        self._complain = complain
        self._socket = socket

    def __call__(self, rule: str, message: str, detail: Mapping[str, object]) -> None:
        """Put one on record."""
        serious = rule == "feed.refused" or bool(detail.get("lost_at_most"))
        event = self._producer.event(
            "telemetry",
            rule,
            Severity.MEDIUM if serious else Severity.LOW,
            say("{}", redact_text(message, "text")),
            detail={name: _redacted(value) for name, value in detail.items()},
        )
        try:
            with Spool(self._spool) as spool:
                spool.append([Entry(event.plain(), renumber=True)])
        except GuardError as error:
            # The service writes the node's spool: it is told, and numbers the event itself.
            sink = SocketSink(self._producer, self._socket)
            sink.emit(event)
            told = sink.flush(2)
            sink.close()
            if not told:
                self._complain(f"{message} (not on record: {error})")


def _redacted(value: object) -> Detail:
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [_redacted(each) for each in value]
    return redact_text(str(value), "text")


