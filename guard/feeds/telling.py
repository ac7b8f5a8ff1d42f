"""What feeds and the site have to say themselves (a cut, a refusal, a silent node), as events of the node's spool."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from guard.errors import GuardError
from guard.events.entry import Entry
from guard.events.model import Detail, Event, say
from guard.events.producer import Producer
from guard.events.sink import SocketSink, socket_path
from guard.events.spool import Spool
from guard.events.wire import Severity
from guard.redact import redact_text

Say = Callable[[str], None]

_PATIENCE: Final = 3.0


class Teller:
    """Puts events on record: into the spool where nobody else writes it, else through the service that does.

    Args:
        spool: the spool's directory.
        producer: whose events these are.
        socket: of the service; the usual place where not given.
    """

    def __init__(self, spool: str, producer: Producer, socket: str = "") -> None:
        self.producer = producer
        self._spool = spool
        self._socket = socket or socket_path()

    def put(self, *events: Event) -> str:
        """Put events on record; the same id again changes nothing. Returns "" or why they could not be."""
        # Where there is a service its socket comes first: taking the spool from under one that starts would stop it.
        if os.path.exists(self._socket) and self._by_socket(events):
            return ""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                with Spool(self._spool) as spool:
                    spool.append([Entry(event.plain(), renumber=True) for event in events])
            except GuardError as error:
                # Another feed says something just now; it takes milliseconds.
                if time.monotonic() > end:
                    return str(error)
                time.sleep(0.05)
            else:
                return ""

    def _by_socket(self, events: Sequence[Event]) -> bool:
        sink = SocketSink(self.producer, self._socket)
        for event in events:
            sink.emit(event)
        told = sink.flush(_PATIENCE)
        sink.close()
        return told


class Losses:
    """Makes the events of one feed.

    Args:
        teller: puts them on record.
        complain: told what could not be.
    """

    def __init__(self, teller: Teller, complain: Say) -> None:
        self._teller = teller
        self._complain = complain

    def __call__(self, rule: str, message: str, detail: Mapping[str, object]) -> None:
        """Put one on record."""
        serious = rule == "feed.refused" or bool(detail.get("lost_at_most"))
        event = self._teller.producer.event(
            "telemetry",
            rule,
            Severity.MEDIUM if serious else Severity.LOW,
            say("{}", redact_text(message, "text")),
            detail={name: redacted(value) for name, value in detail.items()},
        )
        if problem := self._teller.put(event):
            self._complain(f"{message} (not on record: {problem})")


def redacted(value: object) -> Detail:
    """Return a value as it may stand in an event: every text through the redactor."""
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(name): redacted(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(each) for each in value]
    return redact_text(str(value), "text")
