"""A disk that is nearly full: what is kept back for alerts, and how a database goes on without a free block.

SQLite's log and database are overwritten in place once they are as long as they will be. So the log is brought to
its length at the start, and the database is kept from growing while the disk is scarce: rows that come use pages of
rows that were displaced. What the log holds beyond the database's end at the moment when the disk fills up has
room in the reserve.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import Final

LEAST: Final = 256 << 10
MOST: Final = 4 << 20
_PAGE: Final = 4096
_ENDLESS: Final = 1 << 30


class Disk:
    """The file system of a spool.

    Args:
        path: the spool's directory.
        db: its database, open for writing.
        brief: open for one batch: its log is not brought to its length.

    Attributes:
        unit: bytes of the reserve, of the log, and below which the disk is scarce: an eighth of a small file
            system, at most 4 MiB.
    """

    def __init__(self, path: str, db: sqlite3.Connection, *, brief: bool = False) -> None:
        self._path = path
        self._db = db
        self._reserve = os.path.join(path, "reserve")
        self._frozen = False
        self._brief = brief
        about = os.statvfs(path)
        self.unit = max(LEAST, min(MOST, about.f_blocks * about.f_frsize // 8))
        db.execute(f"PRAGMA wal_autocheckpoint = {self.unit // _PAGE}")

    def is_scarce(self) -> bool:
        """Whether only alerts may still take room."""
        try:
            about = os.statvfs(self._path)
        except OSError:
            return False
        return about.f_bavail * about.f_frsize < self.unit

    def has_room(self) -> bool:
        """Whether more than alerts may take room; a database that was held in place then grows again at once."""
        if self.is_scarce():
            return False
        if self._frozen:
            self.prepare()
        return True

    def prepare(self) -> None:
        """Make the reserve, and bring the log to its length."""
        if self.is_scarce():
            return
        try:
            fd = os.open(self._reserve, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, self.unit)
            finally:
                os.close(fd)
            if self._frozen:
                self._db.execute(f"PRAGMA max_page_count = {_ENDLESS}")
                self._frozen = False
            log = os.path.join(self._path, "spool.db-wal")
            if self._brief:
                return
            if not os.path.exists(log) or os.stat(log).st_size < self.unit:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.execute("CREATE TABLE ballast(x)")
                self._db.execute("INSERT INTO ballast VALUES(zeroblob(?))", (self.unit,))
                self._db.execute("DROP TABLE ballast")
                self._db.execute("COMMIT")
        except (OSError, sqlite3.OperationalError):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self.give_up()

    def give_up(self) -> None:
        """Free the reserve's blocks."""
        with suppress(OSError):
            os.unlink(self._reserve)

    def hold(self) -> None:
        """Go on in place: copy the log into the database, which then grows by what is left at most.

        Raises:
            sqlite3.OperationalError: not even that is possible.
        """
        self.give_up()
        self._db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        # Three quarters of what is left, so that the log never holds more than there is room for.
        about = os.statvfs(self._path)
        (pages,) = self._db.execute("PRAGMA page_count").fetchone()
        self._db.execute(f"PRAGMA max_page_count = {pages + about.f_bavail * about.f_frsize * 3 // 4 // _PAGE}")
        self._frozen = True
