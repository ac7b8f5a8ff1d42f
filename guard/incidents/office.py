"""Opens what the commands work on: settings, the ledger brought up to date, and the way to the spool."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from guard.errors import SpoolError, StateError
from guard.events.model import Event
from guard.events.producer import Producer
from guard.events.sink import SocketSink, socket_path
from guard.events.spool import Reader, Spool
from guard.incidents import ledger, settings
from guard.incidents.desk import PRODUCER, Desk, operator
from guard.redact.fingerprint import state_dir

STEP: Final = 5_000
WAIT: Final = 2.0
"""Seconds that the service has to take the events of a decision; then they are sent at the next command."""


@contextmanager
def opened(state: str = "", config: str = "", clock: Callable[[], float] = time.time, who: str = "") -> Iterator[Desk]:
    """Open the site's ledger, fold what came in since, and tell what was not told.

    Args:
        state: the state directory; where this account's lies when not given.
        config: the configuration directory; `/etc/guard` when not given.
        clock: seconds since 1970.
        who: who decides; the login of this session when not given.

    Raises:
        StateError: the ledger cannot be used by this account.
        PolicyError: the settings are wrong.
    """
    place = state or state_dir()
    rules = settings.load(config or "/etc/guard")
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
    except OSError as error:
        raise StateError(f"{place}: {error.strerror}", "the ledger is kept at the site's consumer, as root") from None
    with ledger.Ledger(os.path.join(place, ledger.FILE), clock) as book:
        catch_up(book, place)
        desk = Desk(book, rules, who or operator(), sender(place))
        desk.tell()
        yield desk


def catch_up(book: ledger.Ledger, state: str) -> None:
    """Fold what the spool of this host got since the last time; where there is none, nothing is to be done."""
    spool = os.path.join(state, "spool")
    if not os.path.exists(os.path.join(spool, "spool.db")):
        return
    with Reader(spool) as reader:
        source = f"spool:{spool}"
        position = book.cursor(source)
        if position > reader.high():
            position = 0  # another spool lies there now: folding again changes nothing
        while rows := reader.read(position, STEP, quiet=True):
            book.fold(ledger.Received(ledger.decode(row.line), row.accepted * 1_000_000) for row in rows)
            position = rows[-1].position
            book.advance(source, position)


def sender(state: str) -> Callable[[Sequence[Event]], None]:
    """Return the way of events into this host's spool: through the service, or by our own hand where none runs."""

    def send(events: Sequence[Event]) -> None:
        path = socket_path(state)
        if os.path.exists(path):
            sink = SocketSink(Producer(PRODUCER), path)
            for event in events:
                sink.emit(event)
            done = sink.flush(WAIT)
            sink.close()
            if done:
                return
        try:
            with Spool(os.path.join(state, "spool")) as spool:
                spool.append(events)
        except SpoolError as error:
            raise StateError(
                f"the events of this decision wait: {error.what}", "they are sent at the next `guard incidents`"
            ) from None

    return send


def quietly(desk: Desk) -> None:
    """Tell what waits, and leave it for later where the spool cannot take it now."""
    with suppress(StateError):
        desk.tell()
