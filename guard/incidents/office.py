"""Opens what the commands work on: settings, the ledger brought up to date, and the way to the spool."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from guard.errors import StateError
from guard.events.model import Event
from guard.events.producer import Producer
from guard.events.reader import Reader
from guard.events.sink import socket_path
from guard.feeds.telling import Teller
from guard.incidents import ledger, settings
from guard.incidents.desk import PRODUCER, Desk, operator
from guard.redact.fingerprint import state_dir

STEP: Final = 5_000
"""Events read at once."""


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
    named = os.geteuid() == 0 or state or os.environ.get("GUARD_STATE_DIR")
    if not named and not any(os.path.exists(os.path.join(place, name)) for name in (ledger.FILE, "spool", "site.db")):
        # An empty ledger of one's own would answer "none" from then on.
        raise StateError("the ledger is the site's, and kept by root", "`guard incidents mine` shows what is yours")
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
    except OSError as error:
        raise StateError(f"{place}: {error.strerror}", "the ledger is kept at the site's consumer, as root") from None
    with ledger.Ledger(os.path.join(place, ledger.FILE), clock) as book:
        try:
            catch_up(book, place)
            desk = Desk(book, rules, who or operator(), sender(place))
            desk.tell()
            yield desk
        except sqlite3.Error as error:
            raise StateError(
                f"{book.path}: {error}", "see that there is room on its disk, and that nothing else holds it"
            ) from None


def has_ledger(state: str = "") -> bool:
    """Say whether a ledger is kept in a state directory, or could be made there of what other nodes sent."""
    place = state or state_dir()
    return any(os.path.exists(os.path.join(place, name)) for name in (ledger.FILE, "site.db"))


def catch_up(book: ledger.Ledger, state: str) -> None:
    """Fold what came in since the last time: into the site's store from other nodes, into the spool of this host.

    An event that came by both ways is one still: folding is idempotent.

    Args:
        book: the ledger.
        state: the state directory; what is not there is not folded.
    """
    store = os.path.join(state, "site.db")
    if os.path.exists(store):
        from guard.fleet.store import Store

        with Store(store, write=False) as site:
            position = book.cursor(store)
            while events := site.accepted(position, STEP):
                book.fold(ledger.Received(ledger.decode(line), int(when * 1e6)) for _, when, line in events)
                position = events[-1][0]
                book.advance(store, position)
    spool = os.path.join(state, "spool")
    if not os.path.exists(os.path.join(spool, "spool.db")):
        return
    with Reader(spool) as reader:
        position = book.cursor(spool)
        if position > reader.high():
            position = 0  # another spool lies there now: folding again changes nothing
        while rows := reader.read(position, STEP, quiet=True):
            book.fold(ledger.Received(ledger.decode(row.line), row.accepted * 1_000_000, own=True) for row in rows)
            position = rows[-1].position
            book.advance(spool, position)


def sender(state: str) -> Callable[[Sequence[Event]], None]:
    """Return the way of events into this host's spool: by our own hand, or through the service that writes it."""

    def send(events: Sequence[Event]) -> None:
        teller = Teller(os.path.join(state, "spool"), Producer(PRODUCER), socket_path(state))
        problem = teller.put(*events)
        if problem:
            raise StateError(
                f"the decision stands, its event waits: {problem}", "it is sent at the next `guard incidents`"
            )

    return send


def quietly(desk: Desk) -> None:
    """Tell what waits, and leave it for later where the spool cannot take it now."""
    with suppress(StateError):
        desk.tell()
