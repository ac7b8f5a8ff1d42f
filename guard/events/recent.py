"""The ids of late, in memory: whether an event is new is asked of the disk only where its id is older.

An id begins with the time at which it was made (RFC 9562). Every stored id from `window` on is held here, so one
that is not here is new.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

MOST: Final = 100_000
BACK_MS: Final = 60_000
_CHUNK: Final = 500


class Recent:
    """Knows which ids are stored.

    Args:
        db: the spool's database.
        now: milliseconds since 1970.
    """

    def __init__(self, db: sqlite3.Connection, now: int) -> None:
        self._db = db
        self._window = max(0, now - BACK_MS).to_bytes(6, "big")
        self._ids: set[bytes] = set()
        (count,) = db.execute("SELECT count(*) FROM events WHERE id >= ?", (self._window,)).fetchone()
        if count > MOST:
            self._window = b"\xff" * 16  # ids from the future: every one is asked for, until their time has come
        else:
            self._ids = {row[0] for row in db.execute("SELECT id FROM events WHERE id >= ?", (self._window,))}

    def known(self, ids: Sequence[bytes]) -> set[bytes]:
        """Which of these ids are stored."""
        found = {each for each in ids if each in self._ids}
        asked = [each for each in ids if each < self._window]
        for at in range(0, len(asked), _CHUNK):
            part = asked[at : at + _CHUNK]
            marks = ",".join("?" * len(part))
            found.update(row[0] for row in self._db.execute(f"SELECT id FROM events WHERE id IN ({marks})", part))  # noqa: S608 - marks only
        return found

    def add(self, ids: Iterable[bytes]) -> None:
        """Take note of ids that are stored now."""
        window = self._window
        self._ids.update(each for each in ids if each >= window)
        if len(self._ids) > MOST:
            ordered = sorted(self._ids)
            self._window = ordered[len(ordered) // 2]
            self._ids = set(ordered[len(ordered) // 2 :])
