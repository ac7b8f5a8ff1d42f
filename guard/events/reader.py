"""Reading a spool from any process that may read its directory, and the cursors of feeds."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import Final, Self
from urllib.parse import quote

from guard.errors import SpoolError
from guard.events import chain
from guard.events.model import Severity

DATABASE: Final = "spool.db"
CURSORS: Final = "cursors.db"
VERSION: Final = 1
"""Of the tables; a later guard's are not touched."""
LOG_PAGES: Final = 1000
"""Pages of the log after which it is copied into the database: 4 MB, and as much stays allocated."""
_CURSOR_TABLES: Final = """
CREATE TABLE IF NOT EXISTS cursors(name TEXT PRIMARY KEY, position INTEGER NOT NULL, changed INTEGER NOT NULL)
WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One stored event.

    Args:
        position: rises, never used again.
        id: the event's.
        severity: the event's.
        uid: the user it speaks of; -1 for nobody.
        quiet: why it is not sent to feeds; empty for what is.
        accepted: seconds since 1970.
        line: the event, one line of JSON without its newline.
    """

    position: int
    id: str
    severity: Severity
    uid: int
    quiet: str
    accepted: int
    line: bytes


@dataclass(frozen=True, slots=True)
class Loss:
    """Events that were lost: at which stage, by what key (a feed, a uid, a rank), how many since when."""

    stage: str
    key: str
    count: int
    first: int
    last: int


class Reader:
    """Reads a spool, and keeps the cursors of feeds, from any process that may read its directory.

    Args:
        path: the spool's directory.
        clock: seconds since 1970.

    Raises:
        SpoolError: there is no spool, or it cannot be read.
    """

    def __init__(self, path: str, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._db = open_database(os.path.join(path, DATABASE), "ro")
        self._cursors: sqlite3.Connection | None = None

    def read(
        self,
        after: int,
        limit: int = 500,
        *,
        minimum: Severity | None = None,
        quiet: bool = False,
        uid: int | None = None,
    ) -> list[Row]:
        """Read rows in order.

        Args:
            after: the position behind which to begin; 0 for all.
            limit: rows at most. Fewer does not mean that there are no more: rows that are not wanted count too
                where they stand at the end, so go on from `high(after)` when the answer is empty.
            minimum: the least severity wanted.
            quiet: whether rows that are stored but not sent are wanted too.
            uid: only what speaks of this user.
        """
        where = ["position > ?"]
        values: list[object] = [after]
        if minimum is not None:
            where.append("severity >= ?")
            values.append(int(minimum))
        if not quiet:
            where.append("quiet = ''")
        if uid is not None:
            where.append("uid = ?")
            values.append(uid)
        rows = self._db.execute(
            "SELECT position, id, severity, uid, quiet, accepted, public, personal FROM events"  # noqa: S608
            f" WHERE {' AND '.join(where)} ORDER BY position LIMIT ?",
            (*values, limit),
        )
        return [_row(each) for each in rows]

    def position_at(self, when: float) -> int:
        """The position before the first row that was accepted at or after a time, in seconds since 1970."""
        low, high = self.first(), self.high()
        while low <= high:
            middle = (low + high) // 2
            row = self._db.execute(
                "SELECT position, accepted FROM events WHERE position >= ? ORDER BY position LIMIT 1", (middle,)
            ).fetchone()
            if row is None or row[1] >= when:
                high = middle - 1
            else:
                low = row[0] + 1
        return low - 1

    def high(self) -> int:
        """The position of the newest row there has ever been."""
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
        return int(row[0]) if row else 0

    def first(self) -> int:
        """The position of the oldest row there is; one above `high` where there is none."""
        row = self._db.execute("SELECT min(position) FROM events").fetchone()
        return int(row[0]) if row and row[0] is not None else self.high() + 1

    def wait(self, after: int, timeout: float, step: float = 0.02) -> bool:
        """Wait until there is a row behind a position; returns whether there is."""
        end = time.monotonic() + timeout
        while True:
            if self.high() > after:
                return True
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(step, left))

    def head(self) -> tuple[int, str]:
        """Position and chain digest (hex) of the newest row: what a heartbeat carries off the node."""
        position, head = self._end()
        return position, head.hex()

    def _end(self) -> tuple[int, bytes]:
        """Position and chain of the newest row, which may have been displaced."""
        row = self._db.execute("SELECT position, chain FROM events ORDER BY position DESC LIMIT 1").fetchone()
        position, head = (int(row[0]), bytes(row[1])) if row else (0, self._anchor())
        later = "SELECT digest FROM dropped WHERE position > ? ORDER BY position"
        for (digest,) in self._db.execute(later, (position,)):
            head = chain.extend(head, digest)
        return max(position, self.high()), head

    def verify(self, step: Callable[[int], object] = lambda _: None) -> chain.Verdict:
        """Check every row against the chain.

        Args:
            step: told each position, for progress.
        """
        known = self._meta("first")
        rows = self._db.execute("SELECT position, public, personal, seal, chain FROM events ORDER BY position")
        dropped = self._db.execute("SELECT position, NULL, NULL, digest, NULL FROM dropped ORDER BY position")
        every = merge(rows, dropped, key=itemgetter(0))
        return chain.verify(every, self._anchor(), known if isinstance(known, int) else 1, self.high(), step)

    def losses(self, *, told: bool = False) -> list[Loss]:
        """What was lost and not told yet; with `told` all that was ever lost."""
        rows = self._db.execute("SELECT stage, key, count, told, first, last FROM losses ORDER BY stage, key")
        found = [Loss(s, k, count if told else count - t, first, last) for s, k, count, t, first, last in rows]
        return [each for each in found if each.count > 0]

    def stored_bytes(self) -> int:
        """Bytes of all rows, as `Limits.max_bytes` counts them."""
        value = self._meta("bytes")
        return value if isinstance(value, int) else 0

    def producers(self) -> Mapping[str, tuple[int, int]]:
        """Producer → (uid, its last seq)."""
        return {name: (uid, seq) for name, uid, seq in self._db.execute("SELECT name, uid, seq FROM producers")}

    # Feeds ------------------------------------------------------------------------------------------

    def cursor(self, name: str) -> int:
        """The position up to which a feed has delivered; 0 for a new one, which is known from now on."""
        cursors = self._feeds()
        row = cursors.execute("SELECT position FROM cursors WHERE name = ?", (name,)).fetchone()
        if row is not None:
            return int(row[0])
        with cursors:
            cursors.execute("INSERT OR IGNORE INTO cursors VALUES(?, 0, ?)", (name, int(self._clock())))
        return 0

    def advance(self, name: str, position: int) -> None:
        """Note, durably, that a feed has delivered all up to a position; a cursor never goes back."""
        with self._feeds() as cursors:
            cursors.execute(
                "INSERT INTO cursors VALUES(?, ?, ?) ON CONFLICT(name) DO UPDATE"
                " SET position = max(position, excluded.position), changed = excluded.changed",
                (name, position, int(self._clock())),
            )

    def cursors(self) -> Mapping[str, int]:
        """Feed → the position up to which it has delivered."""
        return dict(self._feeds().execute("SELECT name, position FROM cursors").fetchall())

    def forget(self, name: str) -> None:
        """Remove a feed that is no more, so that nothing waits for it."""
        with self._feeds() as cursors:
            cursors.execute("DELETE FROM cursors WHERE name = ?", (name,))

    def close(self) -> None:
        """Close the files."""
        self._db.close()
        if self._cursors is not None:
            self._cursors.close()
            self._cursors = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _feeds(self) -> sqlite3.Connection:
        if self._cursors is None:
            self._cursors = open_database(os.path.join(self.path, CURSORS), "rwc")
            self._cursors.executescript(_CURSOR_TABLES)
        return self._cursors

    def _meta(self, name: str) -> object:
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def _anchor(self) -> bytes:
        value = self._meta("anchor")
        return value if isinstance(value, bytes) else chain.START


def open_database(path: str, mode: str) -> sqlite3.Connection:
    """Open one of the spool's databases.

    Args:
        path: the file.
        mode: `ro` or `rwc`, as SQLite's URIs have it.

    Raises:
        SpoolError: it is none, or may not be opened.
    """
    try:
        db = sqlite3.connect(
            f"file:{quote(path)}?mode={mode}", uri=True, isolation_level=None, timeout=10, cached_statements=64
        )
        if mode != "ro":
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")  # the log is synced at each commit, before it is acknowledged
            db.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
            db.execute("PRAGMA secure_delete = ON")
        db.execute("PRAGMA query_only = ON" if mode == "ro" else "PRAGMA temp_store = MEMORY")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise SpoolError(f"{path} was written by a later guard", "update guard on this host")
        if mode != "ro" and version < VERSION:
            db.execute(f"PRAGMA user_version = {VERSION}")
    except sqlite3.Error as error:
        raise SpoolError(f"{path}: {error}", "is this a spool, and may you read it?") from None
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK where something was raised, the COMMIT itself included."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk may have ended it already (sqlite.org/lang_transaction.html)
            db.execute("ROLLBACK")
        raise


def _row(row: tuple[int, bytes, int, int, str, int, bytes, bytes]) -> Row:
    position, raw, severity, uid, quiet, accepted, public, personal = row
    text = raw.hex()
    identity = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return Row(position, identity, Severity(severity), uid, quiet, accepted, public[:-1] + b"," + personal[1:])


def rows_of(reader: Reader, after: int = 0, **wanted: object) -> Iterator[Row]:
    """Every row behind a position, read in parts."""
    while True:
        part = reader.read(after, **wanted)  # type: ignore[arg-type]
        if not part:
            return
        yield from part
        after = part[-1].position
