"""The site's store as a destination: as `guard incidents ingest`, for a stream; and the site's watch over its nodes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from guard.errors import EventError, StateError
from guard.events.producer import Producer
from guard.events.sink import socket_path
from guard.feeds.config import Feed
from guard.feeds.sink import Context, Item, Outcome, Sink, Undelivered
from guard.feeds.telling import Teller
from guard.fleet.alerts import tell
from guard.fleet.lines import Found, read
from guard.fleet.store import Store

_WATCH = 20.0  # seconds between two looks for silent nodes
_TRIM = 3600.0


class Incidents(Sink):
    """Takes events in by id, with who sent them, and tells what is wrong with the fleet."""

    def __init__(self, feed: Feed, context: Context) -> None:
        super().__init__(feed, context)
        self._path = feed.text("path") or context.store
        self._store: Store | None = None
        self._teller = Teller(context.spool, Producer("fleet"), socket_path(context.state))
        self._watched = self._trimmed = time.monotonic()

    def deliver(self, items: Sequence[Item]) -> Outcome:
        """Take a batch in."""
        outcome, found = Outcome(), []
        for item in items:
            try:
                event = read(item.line, item.sender)
            except EventError as error:
                outcome.refused[item.position] = error.what
                continue
            if event is None:
                outcome.refused[item.position] = "no event"
                continue
            found.append(Found(event.event, item.line, event.sender))
            outcome.acked.append(item.position)
        try:
            self._opened().receive(found, time.time())
        except StateError as error:
            self.drop()
            raise Undelivered(str(error)) from error
        try:
            self.settle()
        except Undelivered as error:
            # What came in is in: only the word of something is not out yet, and is tried again.
            raise Undelivered(error.reason, outcome) from error
        return outcome

    def settle(self) -> Outcome:
        """Look after the fleet, now and then."""
        now = time.monotonic()
        try:
            if now - self._watched >= _WATCH:
                self._watched = now
                _, problem = tell(self._opened(), self._teller, time.time())
                if problem:
                    raise Undelivered(f"an alert could not be put on record: {problem}")
            if now - self._trimmed >= _TRIM:
                self._trimmed = now
                self._opened().trim(time.time() - self.feed.number("keep_days") * 86400)
        except StateError as error:
            self.drop()
            raise Undelivered(str(error)) from error
        return Outcome()

    def drop(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()
        self._store = None

    def _opened(self) -> Store:
        if self._store is None:
            self._store = Store(self._path)
        return self._store
