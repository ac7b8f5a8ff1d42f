"""The node's spool as a source: a cursor that moves over what is settled without a hole, and a look-ahead before it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from guard.errors import SpoolError
from guard.events.reader import Reader, Row
from guard.feeds.sink import Item, Undelivered

_BYTES: Final = 8 << 20


class SpoolSource:
    """Reads ahead of the cursor; what is settled out of order waits until the rows before it are.

    Args:
        path: the spool's directory.
        name: of the cursor.
    """

    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self._name = name
        self._reader: Reader | None = None
        self._cursor = 0
        self._read_to = 0
        self._out: dict[int, bool] = {}  # position → settled: what was read, rising, all behind the cursor
        self._done: set[int] = set()  # settled before a rewind
        self._rows = 64  # read at once: as many as make up `_BYTES`, so that long events take no more memory

    def read(self, limit: int, wait: float) -> list[Item]:
        """Return up to `limit` events not handed out yet; none after `wait` seconds without one.

        Raises:
            Undelivered: there is no spool yet, or it cannot be read just now.
        """
        reader = self._opened()
        try:
            found: list[Item] = []
            high = reader.high()
            # What was settled in an earlier try is not sent again: reading goes on until something else is found.
            while not found and (rows := self._next(reader, limit)):
                for row in rows:
                    self._out[row.position] = row.position in self._done
                    if row.position not in self._done:
                        found.append(Item(row.position, row.id, row.severity.label, row.line))
                self._read_to = rows[-1].position
            if found:
                return found
            self._pass()
            # Where only rows that are not sent stand behind, the cursor passes them, so that they may be trimmed.
            if not self._out and high > self._cursor and not reader.read(self._cursor, 1):
                self._advance(high)
            reader.wait(max(high, self._read_to), wait)
        except (SpoolError, sqlite3.Error) as error:
            raise self._broken(error) from error
        return []

    def settle(self, positions: Sequence[int]) -> None:
        """Move the cursor over everything settled up to the first row that is not.

        Raises:
            Undelivered: the cursor cannot be written; the events may be sent again after a restart.
        """
        for position in positions:
            if position in self._out:
                self._out[position] = True
        try:
            self._pass()
        except (SpoolError, sqlite3.Error) as error:
            raise self._broken(error) from error

    def rewind(self, held: Sequence[Item]) -> None:
        """Hand out again what is not settled."""
        self._done.update(position for position, settled in self._out.items() if settled)
        # Rows may have been displaced or erased since, so nothing that is read again is taken for granted.
        self._out.clear()
        self._read_to = self._cursor

    def behind(self) -> int:
        """Return how many positions lie behind the cursor: events, and a few rows that are not sent."""
        try:
            return max(0, self._opened().high() - self._cursor)
        except (SpoolError, sqlite3.Error, Undelivered):
            return 0

    def exhausted(self) -> bool:
        """Whether nothing is left when a `read` found nothing."""
        return True

    def drop(self) -> None:
        """Close the spool."""
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    def _opened(self) -> Reader:
        if self._reader is None:
            try:
                self._reader = Reader(self._path)
                self._cursor = self._read_to = self._reader.cursor(self._name)
                self._out.clear()
                self._done.clear()
            except (SpoolError, sqlite3.Error) as error:
                raise self._broken(error) from error
        return self._reader

    def _next(self, reader: Reader, limit: int) -> list[Row]:
        rows = reader.read(self._read_to, min(limit, self._rows))
        size = sum(len(row.line) for row in rows)
        if size > _BYTES:
            self._rows = max(1, len(rows) * _BYTES // size)
        elif len(rows) == self._rows:
            self._rows = min(2 * self._rows, 1 << 15)
        return rows

    def _pass(self) -> None:
        """Move the cursor up to the first row that is not settled."""
        passed = []
        for position, settled in self._out.items():
            if not settled:
                break
            passed.append(position)
        if passed:
            self._advance(passed[-1])
            for position in passed:
                del self._out[position]
            self._done.difference_update(passed)

    def _advance(self, position: int) -> None:
        self._opened().advance(self._name, position)
        self._cursor = position
        self._read_to = max(self._read_to, position)

    def _broken(self, error: Exception) -> Undelivered:
        self.drop()
        return Undelivered(f"the spool: {error}")
