"""What a spool keeps and what it lets go: by size, by age, and when the disk is full."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from guard.events import chain
from guard.events.adopting import FILES_MOST
from guard.events.entry import OVERHEAD, Entry
from guard.events.store import Store

SHARES: Final = (0.7, 0.9, 0.8, 1.0)
"""Of the size limit, up to which rows of each rank find room: what users claim leaves room for what others saw."""
DROPPED: Final = 60
"""Bytes that stay of a row that was displaced."""
OF_ONE_USER: Final = 5000
"""Producers of one user's that are remembered, and exposures that he claims: he can make up any number of both."""
PRODUCERS_S: Final = 7 * 86400
"""Seconds after which a producer that says nothing more is forgotten; should it come back, it counts from one."""
_TOO_MANY_PRODUCERS: Final = """
DELETE FROM producers WHERE name IN (SELECT name FROM (
  SELECT name, row_number() OVER (PARTITION BY uid ORDER BY last DESC) AS number FROM producers) WHERE number > ?)
"""
_TOO_MANY_CLAIMS: Final = """
DELETE FROM kept WHERE kind = 'exposure' AND key IN (SELECT key FROM (
  SELECT key, row_number() OVER (
    PARTITION BY substr(key, 1, 5 + instr(substr(key, 6), ' ')) ORDER BY last DESC) AS number
  FROM kept WHERE kind = 'exposure' AND key GLOB 'user *') WHERE number > ?)
"""
_TOO_MANY_FILES: Final = """
DELETE FROM kept WHERE kind = 'adopted' AND key IN (SELECT key FROM (
  SELECT key, row_number() OVER (PARTITION BY substr(key, 1, instr(key, ' ')) ORDER BY last DESC) AS number
  FROM kept WHERE kind = 'adopted') WHERE number > ?)
"""


class Bounded(Store):
    """A spool within its bounds."""

    def trim(self) -> int:
        """Remove what is too old or too much and delivered by every feed; returns how many rows.

        What no feed has delivered goes only when it is twice as old as the limit, and is counted by feed.
        """
        now = max(int(self._clock()), self._accepted)
        cursors = self.cursors()
        floor = min(cursors.values(), default=self.high())
        removed = 0
        with self._transaction():
            old = self.position_at(now - self._limits.max_age_s)
            removed += self._remove_up_to(min(old, floor))
            ancient = self.position_at(now - 2 * self._limits.max_age_s)
            if ancient > floor:
                lost = self._undelivered(cursors, ancient)
                removed += self._remove_up_to(ancient)
                self._note([], lost, now)
            over = self._bytes - int(self._limits.max_bytes * SHARES[0])
            if over > 0:
                removed += self._remove_delivered(over, floor)
            self._db.execute("DELETE FROM producers WHERE last < ?", (now - PRODUCERS_S,))
            self._db.execute(_TOO_MANY_PRODUCERS, (OF_ONE_USER,))
            self._db.execute(_TOO_MANY_CLAIMS, (OF_ONE_USER,))
            self._db.execute(_TOO_MANY_FILES, (FILES_MOST,))
            self._set("bytes", self._bytes)
        self._producers = dict(self.producers())
        self._disk.prepare()
        return removed

    def _undelivered(self, cursors: Mapping[str, int], upto: int) -> dict[tuple[str, str], int]:
        lost = {}
        for feed, cursor in cursors.items():
            (count,) = self._db.execute(
                "SELECT count(*) FROM events WHERE position > ? AND position <= ? AND quiet = ''",
                (cursor, upto),
            ).fetchone()
            if count:
                lost["undelivered", feed] = count
        return lost

    def _remove_up_to(self, position: int) -> int:
        """Remove the oldest rows; the chain goes on from the last of them."""
        row = self._db.execute(
            "SELECT chain, position FROM events WHERE position <= ? ORDER BY position DESC LIMIT 1", (position,)
        ).fetchone()
        if row is None:
            return 0
        position = row[1]
        size, count = self._db.execute(
            "SELECT sum(length(public) + length(personal)), count(*) FROM events"
            " WHERE position <= ?",
            (position,),
        ).fetchone()
        self._db.execute("DELETE FROM events WHERE position <= ?", (position,))
        gone = self._db.execute("DELETE FROM dropped WHERE position <= ?", (position,)).rowcount
        self._bytes -= size + count * OVERHEAD + gone * DROPPED
        self._set("anchor", bytes(row[0]))
        self._set("first", position + 1)
        return int(count)

    def _remove_delivered(self, wanted: int, floor: int) -> int:
        """Remove the oldest delivered rows until so many bytes are free."""
        upto, freed = 0, 0
        rows = self._db.execute(
            "SELECT position, length(public) + length(personal) FROM events"
            " WHERE position <= ? ORDER BY position",
            (floor,),
        )
        for position, size in rows:
            if freed >= wanted:
                break
            upto, freed = position, freed + size + OVERHEAD
        rows.close()
        return self._remove_up_to(upto) if upto else 0

    def _make_room(self, fresh: list[Entry], lost: dict[tuple[str, str], int]) -> list[Entry]:
        """Which of these entries find room; the others are counted as lost."""
        needed = sum(each.size for each in fresh)
        least = int(self._limits.max_bytes * SHARES[0])
        if self._bytes + needed <= least:
            return fresh
        floor = min(self.cursors().values(), default=self._position)
        self._remove_delivered(self._bytes + needed - least, floor)
        taken: list[Entry] = []
        size = self._bytes
        for each in fresh:
            share = int(self._limits.max_bytes * SHARES[each.rank])
            if size + each.size > share and each.displaces:
                size -= self._displace(each, size + each.size - share, lost)
            if size + each.size > share and not each.is_alert:
                size -= self._let_go(each, max(size + each.size - share, self._limits.max_bytes >> 7), lost)
            if size + each.size > share:
                lost["spool", each.key] = lost.get(("spool", each.key), 0) + 1
                continue
            size += each.size
            taken.append(each)
        return taken

    def _displace(self, entry: Entry, wanted: int, lost: dict[tuple[str, str], int]) -> int:
        """Drop stored rows of lower rank until a row finds room; their places in the chain stay."""
        freed = 0
        rows = self._db.execute(
            "SELECT position, public, personal, seal, rank, quiet FROM events INDEXED BY by_rank"
            " WHERE rank < ? AND rank < 3 ORDER BY rank, position LIMIT ?",
            (entry.displaces, max(64, wanted // 256)),
        ).fetchall()
        for position, public, personal, seal, rank, quiet in rows:
            if freed >= wanted:
                break
            if not quiet:
                key = Entry.RANKS[rank]
                lost["displaced", key] = lost.get(("displaced", key), 0) + 1
            freed += self._drop(position, public, personal, seal)
        self._bytes -= freed
        return freed

    def _let_go(self, entry: Entry, wanted: int, lost: dict[tuple[str, str], int]) -> int:
        """Drop telemetry that one feed has delivered and another has not: a dead feed costs the others nothing.

        Counted by feed, as what is too old is.
        """
        cursors = self.cursors()
        freed = 0
        rows = self._db.execute(
            "SELECT position, public, personal, seal, quiet FROM events INDEXED BY by_rank"
            " WHERE rank <= ? AND rank < 3 AND position <= ? ORDER BY rank, position LIMIT ?",
            (entry.rank, max(cursors.values(), default=0), max(64, wanted // 256)),
        ).fetchall()
        for position, public, personal, seal, quiet in rows:
            if freed >= wanted:
                break
            for feed, cursor in cursors.items():
                if cursor < position and not quiet:
                    lost["undelivered", feed] = lost.get(("undelivered", feed), 0) + 1
            freed += self._drop(position, public, personal, seal)
        self._bytes -= freed
        return freed

    def _drop(self, position: int, public: bytes, personal: bytes, seal: bytes) -> int:
        """Drop one row, so that its page can serve another; its digest stays for the chain. Returns bytes freed."""
        self._db.execute("DELETE FROM events WHERE position = ?", (position,))
        digest = chain.digest(public, chain.commitment(seal, personal))
        self._db.execute("INSERT INTO dropped VALUES(?, ?)", (position, digest))
        return len(public) + len(personal) + OVERHEAD - DROPPED

    # A full disk ------------------------------------------------------------------------------------

    def _make_disk_room(self, alerts: Sequence[Entry]) -> bool:
        """Displace telemetry for alerts on a full disk; returns whether that may have helped."""
        before = self._bytes
        lost: dict[tuple[str, str], int] = {}
        try:
            self._disk.hold()
            with self._transaction():
                best = max(alerts, key=lambda each: each.displaces)
                self._displace(best, max(3 * sum(each.size for each in alerts), self._disk.unit // 4), lost)
                self._note([], lost, max(int(self._clock()), self._accepted))
                self._set("bytes", self._bytes)
            self._disk.hold()
        except sqlite3.OperationalError:
            self._bytes = before
            return False
        return True
