"""The node's durable store of events: one writer, many readers in other processes, a cursor a feed.

    spool.db      SQLite, write-ahead log, synchronous=FULL: what `append` returned survives a power cut
    cursors.db    how far each feed has delivered: written by the feeds, so that a stopped one holds up nobody
    lock          held by the writer
    reserve       space that is given up when the disk is full, so that alerts still find room
    unwritten     a file of holes: as long as the number of events that could not even be counted in spool.db

A row's position rises and is never used again. Rows are bounded by size and age: the oldest that every feed has
delivered go first. Where feeds are behind, telemetry (info and low) is refused before alerts are; an alert that
finds no room displaces telemetry, and what a user claims never displaces what kernel or service saw. Each loss is
counted by stage in `losses` until an event has told it.

Each row is sealed into a chain over digests (`chain.py`): personal fields can be erased, and it still verifies.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from guard.errors import SpoolError
from guard.events import chain
from guard.events.disk import Disk
from guard.events.entry import OVERHEAD, Entry
from guard.events.model import Event
from guard.events.reader import DATABASE, Loss, Reader, Row, open_database, rows_of
from guard.events.recent import Recent

__all__ = ["Accepted", "Limits", "Loss", "Reader", "Row", "Spool", "rows_of"]

TELEMETRY_SHARE: Final = 0.9
"""Of the size limit; the rest is for alerts alone."""
DROPPED: Final = 60
"""Bytes that stay of a row that was displaced."""
DISK_PART: Final = 200
"""Alerts that are stored in one transaction on a full disk."""
PRODUCERS_S: Final = 7 * 86400
"""Seconds after which a producer that says nothing more is forgotten; should it come back, it counts from one."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS events(
  position INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB NOT NULL UNIQUE, accepted INTEGER NOT NULL,
  rank INTEGER NOT NULL, severity INTEGER NOT NULL, uid INTEGER NOT NULL, quiet TEXT NOT NULL,
  public BLOB NOT NULL, personal BLOB NOT NULL, seal BLOB NOT NULL, chain BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS by_rank ON events(rank, position) WHERE rank < 3;
CREATE TABLE IF NOT EXISTS dropped(position INTEGER PRIMARY KEY, digest BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS losses(
  stage TEXT, key TEXT, count INTEGER NOT NULL, told INTEGER NOT NULL, first INTEGER, last INTEGER,
  PRIMARY KEY(stage, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS producers(
  name TEXT PRIMARY KEY, uid INTEGER NOT NULL, seq INTEGER NOT NULL, last INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS kept(kind TEXT, key TEXT, value BLOB, last INTEGER NOT NULL,
  PRIMARY KEY(kind, key)) WITHOUT ROWID;
"""
@dataclass(frozen=True)
class Limits:
    """How much is kept.

    Args:
        max_bytes: of rows, log and indexes apart.
        max_age_s: seconds; older rows that every feed has delivered go, twice as old ones go whatever feeds do.
    """

    max_bytes: int = 2 << 30
    max_age_s: int = 90 * 86400


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


class Spool(Reader):
    """The one writer of a spool; a `Reader` too.

    Args:
        path: its directory, made 0700 if need be.
        limits: how much is kept.
        clock: seconds since 1970. It may jump: `accepted` never falls.
        patience: seconds to wait for another writer, such as a monitor that hands on a batch while no service runs.

    Raises:
        SpoolError: another process writes it, or it cannot be made or opened.
    """

    def __init__(
        self,
        path: str,
        *,
        limits: Limits = Limits(),
        clock: Callable[[], float] = time.time,
        patience: float = 0.0,
    ) -> None:
        self.path = path
        self._clock = clock
        self._limits = limits
        self._cursors = None
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            self._lock = os.open(os.path.join(path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SpoolError(f"{error.filename or path}: {error.strerror}", "name a directory of your own") from None
        if not self._locked(patience):
            os.close(self._lock)
            raise SpoolError(f"{path}: another process writes this spool", "stop it first, or let it accept") from None
        self._db = open_database(os.path.join(path, DATABASE), "rwc")
        self._db.executescript(_TABLES)
        os.chmod(os.path.join(path, DATABASE), 0o600)
        last = self._db.execute("SELECT accepted FROM events ORDER BY position DESC LIMIT 1").fetchone()
        self._accepted = int(last[0]) if last else 0
        self._position, self._chain = self._end()
        self._bytes = self.stored_bytes()
        self._producers = dict(self.producers())
        self._unwritten = os.path.join(path, "unwritten")
        self._recent = Recent(self._db, int(clock() * 1000))
        self._disk = Disk(path, self._db)
        self._disk.prepare()

    def _locked(self, patience: float) -> bool:
        """Take the writer's lock, if need be after a while."""
        end = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() >= end:
                    return False
                time.sleep(0.02)
            else:
                return True

    # Writing ----------------------------------------------------------------------------------------

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
        done = None if self._disk.is_scarce() else self._try(entries, kept, lost)
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
            if not _is_full(error):
                raise SpoolError(f"{self.path}: {error}", "see `guard doctor`") from None
            return None

    def _append(
        self,
        entries: list[Entry],
        kept: list[tuple[str, str, bytes | None]],
        lost: dict[tuple[str, str], int],
    ) -> Accepted:
        before = self._position, self._chain, self._bytes, self._accepted, dict(self._producers)
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
                for at, each in enumerate(room):
                    public, personal = each.sealed(self._next_seq(each))
                    salt = salts[at * chain.SALT : (at + 1) * chain.SALT]
                    self._position += 1
                    self._chain = chain.link(self._chain, public, chain.commit(salt, personal))
                    self._bytes += len(public) + len(personal) + OVERHEAD
                    rows.append((
                        self._position, each.id, now, each.rank, each.severity, each.uid, each.quiet,
                        public, personal, salt, self._chain,
                    ))  # fmt: skip
                db.executemany("INSERT INTO events VALUES(?,?,?,?,?,?,?,?,?,?,?)", rows)
                self._note_producers(room, now)
                self._note(kept, lost, now)
                unwritten = self._take_unwritten(now)
                self._set("bytes", self._bytes)
        except BaseException:
            self._position, self._chain, self._bytes, self._accepted, self._producers = before
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

    def _note(
        self, kept: Iterable[tuple[str, str, bytes | None]], lost: Mapping[tuple[str, str], int], now: int
    ) -> None:
        for kind, key, value in kept:
            if value is None:
                self._db.execute("DELETE FROM kept WHERE kind = ? AND key = ?", (kind, key))
            else:
                self._db.execute("INSERT OR REPLACE INTO kept VALUES(?, ?, ?, ?)", (kind, key, value, now))
        for (stage, key), count in lost.items():
            self._db.execute(
                "INSERT INTO losses VALUES(?, ?, ?, 0, ?, ?) ON CONFLICT(stage, key) DO UPDATE"
                " SET count = count + excluded.count, last = excluded.last,"
                " first = CASE WHEN count = told THEN excluded.first ELSE first END",
                (stage, key, count, now, now),
            )

    def kept(self, kind: str) -> Mapping[str, bytes]:
        """What was kept under a kind with the events it belongs to."""
        rows = self._db.execute("SELECT key, value FROM kept WHERE kind = ?", (kind,))
        return {key: bytes(value) for key, value in rows}

    def recall(self, kind: str, key: str) -> bytes | None:
        """One of them."""
        row = self._db.execute("SELECT value FROM kept WHERE kind = ? AND key = ?", (kind, key)).fetchone()
        return bytes(row[0]) if row else None

    def known(self, ids: Sequence[bytes]) -> set[bytes]:
        """Which of these ids (16 bytes each) are stored."""
        return self._recent.known(ids)

    def forget_kept(self, kind: str, before: int) -> int:
        """Remove what was kept under a kind and not touched since a time; returns how much."""
        with self._transaction() as db:
            return db.execute("DELETE FROM kept WHERE kind = ? AND last < ?", (kind, before)).rowcount

    def tell(self, losses: Iterable[Loss], event: Event | Entry) -> Accepted:
        """Store the event that tells losses, and note in the same transaction that they are told."""
        entry = event if isinstance(event, Entry) else Entry.of(event)
        told = [(f"{each.stage}\n{each.key}", each.count) for each in losses]
        done = self.append([entry])
        if done.count:
            with self._transaction() as db:
                for name, count in told:
                    stage, _, key = name.partition("\n")
                    db.execute("UPDATE losses SET told = told + ? WHERE stage = ? AND key = ?", (count, stage, key))
        return done

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

    # Bounds -----------------------------------------------------------------------------------------

    def trim(self) -> int:
        """Remove what is too old or too much and delivered by every feed; returns how many rows.

        What no feed has delivered goes only when it is twice as old as the limit, and is counted by feed.
        """
        now = max(int(self._clock()), self._accepted)
        cursors = self.cursors()
        floor = min(cursors.values(), default=self.high())
        removed = 0
        with self._transaction():
            old = self._position_before(now - self._limits.max_age_s)
            removed += self._remove_up_to(min(old, floor))
            ancient = self._position_before(now - 2 * self._limits.max_age_s)
            if ancient > floor:
                lost = self._undelivered(cursors, ancient)
                removed += self._remove_up_to(ancient)
                self._note([], lost, now)
            if self._bytes > self._limits.max_bytes * TELEMETRY_SHARE:
                removed += self._remove_delivered(self._bytes - int(self._limits.max_bytes * TELEMETRY_SHARE), floor)
            self._db.execute("DELETE FROM producers WHERE last < ?", (now - PRODUCERS_S,))
            self._set("bytes", self._bytes)
        self._producers = dict(self.producers())
        self._disk.prepare()
        return removed

    def _position_before(self, when: int) -> int:
        return self.position_at(when)

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
        cap = self._limits.max_bytes
        share = int(cap * TELEMETRY_SHARE)
        if self._bytes + needed <= share:
            return fresh
        floor = min(self.cursors().values(), default=self._position)
        self._remove_delivered(self._bytes + needed - share, floor)
        taken: list[Entry] = []
        size = self._bytes
        for each in fresh:
            if size + each.size > (cap if each.is_alert else share):
                size -= self._displace(each, size + each.size - cap, lost) if each.is_alert else 0
                if size + each.size > (cap if each.is_alert else share):
                    lost["spool", each.key] = lost.get(("spool", each.key), 0) + 1
                    continue
            size += each.size
            taken.append(each)
        return taken

    def _displace(self, entry: Entry, wanted: int, lost: dict[tuple[str, str], int]) -> int:
        """Drop stored rows of lower rank until an alert finds room; their places in the chain stay."""
        freed = 0
        rows = self._db.execute(
            "SELECT position, public, personal, seal, rank, quiet FROM events INDEXED BY by_rank"
            " WHERE rank < ? AND rank < 3 ORDER BY rank, position LIMIT ?",
            (entry.displaces, max(64, wanted // 256)),
        ).fetchall()
        for position, public, personal, seal, rank, quiet in rows:
            if freed >= wanted:
                break
            # The row goes, so that its page can serve another; its digest stays for the chain.
            self._db.execute("DELETE FROM events WHERE position = ?", (position,))
            digest = chain.digest(public, chain.commitment(seal, personal))
            self._db.execute("INSERT INTO dropped VALUES(?, ?)", (position, digest))
            if not quiet:
                key = Entry.RANKS[rank]
                lost["displaced", key] = lost.get(("displaced", key), 0) + 1
            freed += len(public) + len(personal) + OVERHEAD - DROPPED
        self._bytes -= freed
        return freed

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

    def _count_unwritten(self, count: int) -> None:
        """Count what is lost without a block of disk: a file longer by a hole."""
        try:
            fd = os.open(self._unwritten, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(fd, os.fstat(fd).st_size + count)
            finally:
                os.close(fd)
        except OSError:
            raise SpoolError(f"{self.path}: {os.strerror(errno.ENOSPC)}", "free space") from None

    def _take_unwritten(self, now: int) -> int:
        try:
            count = os.stat(self._unwritten).st_size
        except OSError:
            return 0
        if count:
            self._note([], {("disk", "unwritten"): count}, now)
        return count

    def _set(self, name: str, value: object) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES(?, ?)", (name, value))

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db)

    def close(self) -> None:
        """Close the files, and let another process write."""
        super().close()
        os.close(self._lock)


class _Transaction:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK where something was raised."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> sqlite3.Connection:
        self._db.execute("BEGIN IMMEDIATE")
        return self._db

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self._db.execute("COMMIT")
            except sqlite3.Error:
                self._undo()
                raise
        else:
            self._undo()

    def _undo(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")


def _is_full(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


