"""What a spool's writer stands on: its lock, tables, transactions, counts of losses, and states kept with events."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from guard.errors import SpoolError
from guard.events.disk import Disk
from guard.events.reader import DATABASE, Reader, open_database, transaction
from guard.events.recent import Recent

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS events(
  position INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB NOT NULL UNIQUE, accepted INTEGER NOT NULL,
  rank INTEGER NOT NULL, severity INTEGER NOT NULL, uid INTEGER NOT NULL, quiet TEXT NOT NULL,
  public BLOB NOT NULL, personal BLOB NOT NULL, seal BLOB NOT NULL, chain BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS by_rank ON events(rank, position) WHERE rank < 3;
CREATE INDEX IF NOT EXISTS by_uid ON events(uid, position);
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
_DAMAGED: Final = "it is no spool, or damaged: move it away, and a new one is begun"


@dataclass(frozen=True)
class Limits:
    """How much is kept.

    Args:
        max_bytes: of rows, log and indexes apart.
        max_age_s: seconds; older rows that every feed has delivered go, twice as old ones go whatever feeds do.
    """

    max_bytes: int = 2 << 30
    max_age_s: int = 90 * 86400


class Store(Reader):
    """A spool open for writing, by one process.

    Args:
        path: its directory, made 0700 if need be.
        limits: how much is kept.
        clock: seconds since 1970. It may jump: `accepted` never falls.
        patience: seconds to wait for another writer, such as a monitor that hands on a batch while no service runs.
        brief: for one batch: its log is not laid out beforehand, which the last writer's end takes away again.

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
        brief: bool = False,
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
        try:
            self._db = open_database(os.path.join(path, DATABASE), "rwc")
            self._db.executescript(_TABLES)
        except sqlite3.Error as error:
            os.close(self._lock)
            raise SpoolError(f"{os.path.join(path, DATABASE)}: {error}", _DAMAGED) from None
        except SpoolError:
            os.close(self._lock)
            raise
        os.chmod(os.path.join(path, DATABASE), 0o600)
        last = self._db.execute("SELECT accepted FROM events ORDER BY position DESC LIMIT 1").fetchone()
        self._accepted = int(last[0]) if last else 0
        self._position, self._chain = self._end()
        self._bytes = self.stored_bytes()
        self._producers = dict(self.producers())
        self._unwritten = os.path.join(path, "unwritten")
        self._recent = Recent(self._db, int(clock() * 1000))
        self._disk = Disk(path, self._db, brief=brief)
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

    def _transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        return transaction(self._db)

    def close(self) -> None:
        """Close the files, and let another process write."""
        super().close()
        os.close(self._lock)


def is_full(error: sqlite3.OperationalError) -> bool:
    """Whether it is the disk that is full."""
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
