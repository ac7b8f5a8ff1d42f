"""The node's durable store of events: one writer, many readers in other processes, a cursor a feed.

    spool.db      SQLite, write-ahead log, synchronous=FULL: what `append` returned survives a power cut
    cursors.db    how far each feed has delivered: written by the feeds, so that a stopped one holds up nobody
    lock          held by the writer
    reserve       space that is given up when the disk is full, so that alerts still find room
    unwritten     a file of holes: as long as the number of events that could not even be counted in spool.db

A row's position rises and is never used again. Rows are bounded by size and age: the oldest that every feed has
delivered go first. Where one feed is behind, telemetry (info and low) that another has delivered goes; where all
are, telemetry is refused before alerts are. An alert that finds no room displaces telemetry, and what a user claims
never displaces what kernel or service saw. Each loss is counted by stage in `losses` until an event has told it.

Each row is sealed into a chain over digests (`chain.py`): personal fields can be erased, and it still verifies.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from guard.errors import SpoolError
from guard.events import chain
from guard.events.bounds import Bounded
from guard.events.entry import OVERHEAD, Entry
from guard.events.model import Event
from guard.events.reader import Loss, Reader, Row, rows_of
from guard.events.store import Limits, is_full

__all__ = ["Accepted", "Limits", "Loss", "Reader", "Row", "Spool", "rows_of"]

_ROW: Final = "(?,?,?,?,?,?,?,?,?,?,?)"
_ROWS: Final = 64
"""Rows of one statement, each of which costs SQLite something by itself; at most 999 values stand in one."""
DISK_PART: Final = 200
"""Alerts that are stored in one transaction on a full disk."""


@dataclass(frozen=True)
class Accepted:
    """What became of a batch.

    Args:
        count: stored, durably.
        duplicates: known already by their id.
        dropped: refused for want of room, and counted as lost.
        position: of the last row.
    """

    count: int
    duplicates: int
    dropped: int
    position: int


class Spool(Bounded):
    """The one writer of a spool; a `Reader` too. Its arguments are those of `Store`."""

    _told: Sequence[tuple[int, str, str]] = ()
    """What the event that is being stored tells."""

    def append(
        self,
        lines: Iterable[Event | bytes | Entry],
        *,
        kept: Iterable[tuple[str, str, bytes | None]] = (),
        lost: Mapping[tuple[str, str], int] | None = None,
    ) -> Accepted:
        """Store events, each once, durably when this returns.

        Args:
            lines: events, or lines of JSON that are events; the same id twice is one event.
            kept: (kind, key, value or None to remove) to keep in the same transaction, read back by `kept`.
            lost: (stage, key) → how many events were lost before they came here, counted in it too.

        Returns:
            How many were stored, known before, or refused for want of room (and counted as lost).

        Raises:
            EventError: a line is no event; nothing of the batch was stored.
            SpoolError: nothing can be written; what is lost by that is counted where that is possible.
        """
        entries = [each if isinstance(each, Entry) else Entry.of(each) for each in lines]
        kept = list(kept)
        lost = dict(lost or {})
        done = self._try(entries, kept, lost) if self._disk.has_room() else None
        return done if done is not None else self._append_on_a_full_disk(entries, kept, lost)

    def _append_on_a_full_disk(
        self,
        entries: list[Entry],
        kept: list[tuple[str, str, bytes | None]],
        lost: dict[tuple[str, str], int],
    ) -> Accepted:
        """Keep the alerts, a part at a time; refuse the telemetry of the batch."""
        fresh = {each.id: each for each in entries}
        known = self.known(list(fresh))
        alerts = [each for each in fresh.values() if each.is_alert and each.id not in known]
        refused = [each for each in fresh.values() if not each.is_alert and each.id not in known]
        for each in refused:
            lost["disk", each.key] = lost.get(("disk", each.key), 0) + 1
        stored = 0
        for at in range(0, len(alerts), DISK_PART):
            part = alerts[at : at + DISK_PART]
            done = self._try(part, kept, lost)
            if done is None and self._make_disk_room(part):
                done = self._try(part, kept, lost)
            if done is None:
                for each in part:
                    lost["disk", each.key] = lost.get(("disk", each.key), 0) + 1
                continue
            stored += done.count
            kept, lost = [], {}
        if lost and self._try([], kept, lost) is None:
            self._count_unwritten(sum(lost.values()))
        unknown = len(alerts) + len(refused)
        return Accepted(stored, len(entries) - unknown, unknown - stored, self._position)

    def _try(
        self,
        entries: list[Entry],
        kept: list[tuple[str, str, bytes | None]],
        lost: dict[tuple[str, str], int],
    ) -> Accepted | None:
        """As `_append`; None where the disk is full."""
        try:
            return self._append(entries, kept, lost)
        except sqlite3.OperationalError as error:
            if not is_full(error):
                raise SpoolError(f"{self.path}: {error}", "see `guard doctor`") from None
            return None

    def _append(
        self,
        entries: list[Entry],
        kept: list[tuple[str, str, bytes | None]],
        lost: dict[tuple[str, str], int],
    ) -> Accepted:
        before = self._position, self._chain, self._bytes, self._accepted
        producers = {each.producer: self._producers.get(each.producer) for each in entries if each.renumber}
        now = max(int(self._clock()), self._accepted)
        lost = dict(lost)
        try:
            with self._transaction() as db:
                known = self.known([each.id for each in entries])
                fresh: list[Entry] = []
                for each in entries:
                    if each.id not in known:
                        known.add(each.id)
                        fresh.append(each)
                room = self._make_room(fresh, lost)
                rows = []
                salts = os.urandom(chain.SALT * len(room))
                link, size = self._chain, self._bytes
                for at, each in enumerate(room, 1):
                    public, personal = each.sealed(self._next_seq(each))
                    salt = salts[(at - 1) * chain.SALT : at * chain.SALT]
                    link = chain.link(link, public, chain.commit(salt, personal))
                    size += len(public) + len(personal) + OVERHEAD
                    rows.append((
                        before[0] + at, each.id, now, each.rank, each.severity, each.uid, each.quiet, public, personal,
                        salt, link,
                    ))  # fmt: skip
                self._position, self._chain, self._bytes = before[0] + len(room), link, size
                _insert(db, rows)
                self._note_producers(room, now)
                self._note(kept, lost, now)
                if room:
                    db.executemany("UPDATE losses SET told = told + ? WHERE stage = ? AND key = ?", self._told)
                unwritten = self._take_unwritten(now)
                self._set("bytes", self._bytes)
        except BaseException:
            self._position, self._chain, self._bytes, self._accepted = before
            for name, value in producers.items():
                if value is None:
                    self._producers.pop(name, None)
                else:
                    self._producers[name] = value
            raise
        self._accepted = now
        self._recent.add(each.id for each in room)
        if unwritten:
            with suppress(OSError):
                os.truncate(self._unwritten, 0)
        return Accepted(len(room), len(entries) - len(fresh), len(fresh) - len(room), self._position)

    def _next_seq(self, entry: Entry) -> int | None:
        """Number what is sent by producer, without gaps whatever is folded, suppressed or refused before."""
        if entry.quiet or not entry.renumber:
            return None
        _, seq = self._producers.get(entry.producer, (entry.uid, 0))
        self._producers[entry.producer] = (entry.owner, seq + 1)
        return seq + 1

    def _note_producers(self, entries: Sequence[Entry], now: int) -> None:
        names = {each.producer: each for each in entries if each.renumber}
        self._db.executemany(
            "INSERT INTO producers VALUES(?, ?, ?, ?) ON CONFLICT(name) DO UPDATE SET seq = excluded.seq,"
            " last = excluded.last",
            [(name, each.owner, self._producers.get(name, (0, 0))[1], now) for name, each in names.items()],
        )

    def tell(self, losses: Iterable[Loss], event: Event | Entry) -> Accepted:
        """Store the event that tells losses, and note in the same transaction that they are told."""
        self._told = [(each.count, each.stage, each.key) for each in losses]
        try:
            return self.append([event])
        finally:
            self._told = []

    def erase(self, positions: Iterable[int]) -> int:
        """Erase what is personal in rows; the chain still verifies. Returns how many there were."""
        count = 0
        with self._transaction() as db:
            for position in positions:
                row = db.execute(
                    "SELECT personal, seal FROM events WHERE position = ?", (position,)
                ).fetchone()
                if row is None or len(row[1]) != chain.SALT:
                    continue
                count += 1
                self._bytes += len(Entry.ERASED) - len(row[0])
                db.execute(
                    "UPDATE events SET personal = ?, seal = ?, uid = -1 WHERE position = ?",
                    (Entry.ERASED, chain.commit(row[1], row[0]), position),
                )
            self._set("bytes", self._bytes)
        # What was deleted must not stay readable in the log or in freed pages (secure_delete is on).
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return count

    def forget_user(self, uid: int) -> None:
        """Remove the states that name a user: of the alert budget, of sessions, of known exposures."""
        with self._transaction() as db:
            db.execute("DELETE FROM kept WHERE kind = 'budget' AND key LIKE ?", (f"% {uid} %",))
            db.execute("DELETE FROM kept WHERE kind = 'exposure' AND key LIKE ?", (f"user {uid} %",))
            db.execute("DELETE FROM kept WHERE kind = 'session' AND value LIKE ?", (f"[{uid},%",))


def _insert(db: sqlite3.Connection, rows: Sequence[tuple[object, ...]]) -> None:
    whole = len(rows) - len(rows) % _ROWS
    for at in range(0, whole, _ROWS):
        values = [value for row in rows[at : at + _ROWS] for value in row]
        db.execute(f"INSERT INTO events VALUES {','.join([_ROW] * _ROWS)}", values)  # noqa: S608 - marks only
    db.executemany(f"INSERT INTO events VALUES {_ROW}", rows[whole:])  # noqa: S608 - marks only
