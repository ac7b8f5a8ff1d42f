"""What is stored about an account, taken out for it, or erased: ledger, spool, the site's store and the archive.

A purge takes the person out and leaves the fact: counts stay, and an incident stays for as long as its clock runs,
without whose it was. The record of a purge holds no data, not even the name: a digest of it under a salt of its own.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from guard.incidents.ledger import Ledger

if TYPE_CHECKING:
    from guard.fleet.store import Store

OTHERS: Final = "what NOT LIKE 'own %'"
"""Which rows of `access` are reads of others' records: an account holder's own questions begin with `own`."""
ERASED: Final = "(erased)"
"""In place of a name: no login can be called so, and no mail goes there."""


class Keeper(Protocol):
    """A place that keeps records of people: a spool, a store, an archive.

    Attributes:
        what: how it is named to people.
    """

    what: str

    def records(self, user: str, uid: int, before: int) -> Iterator[bytes]:
        """Yield every record of an account that happened before a moment (µs since 1970), as lines of JSON."""

    def erase(self, user: str, uid: int, before: int) -> int:
        """Erase them; returns how many there were."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What one place holds about an account: how many records, and the oldest as a date, "" for none."""

    what: str
    records: int
    oldest: str


_WHOSE: Final = "(user = ? OR (user = '' AND uid = ? AND uid > 0))"
"""Where the event had no name its number counts, but for root's, and -1, which are nobody's alone."""


def stored(ledger: Ledger, user: str, uid: int) -> list[Stored]:
    """Return what the ledger holds about an account.

    Args:
        ledger: open.
        user, uid: the account; a number of a sighting counts only where it has no name.
    """
    db = ledger.database
    who = (user, uid)
    return [
        _stored("exposures of keys of yours", db.execute(
            f"SELECT count(*), min(happened_first) FROM sighting WHERE {_WHOSE}", who)),  # noqa: S608 - our own
        _stored("decisions by you", db.execute("SELECT count(*), min(time) FROM action WHERE who = ?", (user,))),
        _stored("days with counts of what your agents did", db.execute(
            "SELECT count(DISTINCT day), NULL FROM tally WHERE user = ?", (user,))),
        _stored("changes that name you", db.execute("SELECT count(*), min(time) FROM change WHERE who = ?", (user,))),
        _stored("reads of others' records by you", db.execute(
            f"SELECT count(*), min(time) FROM access WHERE who = ? AND {OTHERS}", (user,))),  # noqa: S608 - our own
    ]  # fmt: skip


def _stored(what: str, rows: sqlite3.Cursor) -> Stored:
    count, oldest = rows.fetchone()
    day = datetime.fromtimestamp(oldest / 1e6, UTC).strftime("%Y-%m-%d") if oldest else ""
    return Stored(what, int(count), day)


class LedgerKeeper:
    """The ledger as a place that keeps records of people.

    Args:
        ledger: open.
        addresses: of the account, other than its login at any domain.
    """

    what = "the ledger"

    def __init__(self, ledger: Ledger, addresses: Collection[str] = ()) -> None:
        self._ledger = ledger
        self._addresses = frozenset(addresses)

    def records(self, user: str, uid: int, before: int) -> Iterator[bytes]:
        """Yield every row about an account."""
        db = self._ledger.database
        queries = {
            "exposure": (f"SELECT * FROM sighting WHERE {_WHOSE} AND happened_first < ?",  # noqa: S608 - our own
                         (user, uid, before)),
            "decision": ("SELECT * FROM action WHERE who = ? AND time < ?", (user, before)),
            "count": ("SELECT * FROM tally WHERE user = ? AND day < ?", (user, _day(before))),
            "change": ("SELECT * FROM change WHERE who = ? AND time < ?", (user, before)),
            "read": ("SELECT * FROM access WHERE who = ? AND time < ?", (user, before)),
        }  # fmt: skip
        for address in self._mailed(user):
            queries[f"mail to {address}"] = ("SELECT * FROM sent WHERE recipient = ? AND time < ?", (address, before))
        for name, (query, values) in queries.items():
            found = db.execute(query, values)
            columns = [column[0] for column in found.description]
            for row in found:
                yield orjson.dumps({"record": name.partition(" ")[0], **dict(zip(columns, row, strict=True))})

    def erase(self, user: str, uid: int, before: int) -> int:
        """Take an account out of every row; the rows' numbers stay."""
        db = self._ledger.database
        with self._ledger.transaction():
            rows = db.execute(
                "SELECT alias, host, uid, user, source, path, spot, session, claim, baseline FROM sighting"  # noqa: S608
                f" WHERE {_WHOSE} AND happened_first < ?",
                (user, uid, before),
            ).fetchall()
            for row in rows:
                db.execute(
                    "UPDATE sighting SET user = ?, uid = -1, path = '', spot = ?, session = '', job = '', line = 0,"
                    " offset = 0 WHERE (alias, host, uid, user, source, path, spot, session, claim, baseline)"
                    " = (?,?,?,?,?,?,?,?,?,?)",
                    (ERASED, secrets.token_hex(8), *row),
                )
            count = len(rows)
            # Counts of the same day and rule are added to those of nobody.
            tallies = db.execute("SELECT * FROM tally WHERE user = ? AND day < ?", (user, _day(before))).fetchall()
            for day, host, control, rule, verdict, severity, harness, _, events, facts in tallies:
                db.execute(
                    "INSERT INTO tally VALUES (?,?,?,?,?,?,?,'',?,?) ON CONFLICT DO UPDATE SET"
                    " events = events + excluded.events, facts = facts + excluded.facts",
                    (day, host, control, rule, verdict, severity, harness, events, facts),
                )
            db.execute("DELETE FROM tally WHERE user = ? AND day < ?", (user, _day(before)))
            count += len(tallies)
            for query, values in (
                ("UPDATE action SET who = ?, reason = '' WHERE who = ? AND time < ?", (ERASED, user, before)),
                ("UPDATE action SET reason = ? WHERE verb = 'assign' AND reason = ? AND time < ?",
                 (ERASED, user, before)),
                ("UPDATE change SET who = ?, message = '' WHERE who = ? AND time < ?", (ERASED, user, before)),
                ("UPDATE access SET who = ? WHERE who = ? AND time < ?", (ERASED, user, before)),
                ("DELETE FROM pending WHERE ? IN (holder, who) AND time < ?", (user, before)),
                *(("UPDATE OR REPLACE sent SET recipient = ? WHERE recipient = ? AND time < ?", (ERASED, to, before))
                  for to in self._mailed(user)),
            ):  # fmt: skip
                count += db.execute(query, values).rowcount
            # What others wrote keeps who wrote it; a name is a word, `al` is not in `alice`.
            named = re.compile(rf"(?<![\w.-]){re.escape(user)}(?![\w-])").search
            for table, column in (("change", "message"), ("action", "reason"), ("action", "ticket")):
                rows = db.execute(
                    f"SELECT id, {column} FROM {table} WHERE instr({column}, ?) AND time < ?",  # noqa: S608
                    (user, before),
                ).fetchall()
                ids = [(id_,) for id_, text in rows if named(text)]
                db.executemany(f"UPDATE {table} SET {column} = '' WHERE id = ?", ids)  # noqa: S608 - our own names
                count += len(ids)
        # What was overwritten must not stay in the log or in free pages of the file.
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return count


    def _mailed(self, user: str) -> list[str]:
        """Return the addresses of an account to which something went."""
        found = self._ledger.database.execute("SELECT DISTINCT recipient FROM sent").fetchall()
        return [to for (to,) in found if to in self._addresses or to.rpartition("@")[0] == user]


def _day(moment: int) -> str:
    return datetime.fromtimestamp(min(moment / 1e6, 253_402_300_799), UTC).strftime("%Y-%m-%d")


def about(line: bytes, user: str, uid: int, before: int) -> bool:
    """Say whether an event's line is of an account and happened before a moment (µs since 1970)."""
    from guard.incidents.exposure import microseconds

    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(event, dict) or microseconds(event.get("time")) >= before:
        return False
    tree, detail = event.get("tree"), event.get("detail")
    if isinstance(detail, dict):
        # Whoever decided or changed something is in no tree.
        told = {str(detail.get(field)) for field in ("who", "user")}
        if event.get("rule") == "incident-assign":
            told.add(str(detail.get("reason")))
        if user in told:
            return True
    if not isinstance(tree, dict):
        return False
    name = tree.get("user")
    return bool(name == user if name else tree.get("uid") == uid and uid > 0)


class StoreKeeper:
    """The site's store of what other nodes sent.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        self.what = f"the store {path}"
        self._path = path

    def records(self, user: str, uid: int, before: int) -> Iterator[bytes]:
        """Yield every event of an account."""
        from guard.fleet.store import Store

        with Store(self._path, write=False) as store:
            yield from (line for _, line in _rows(store) if about(line, user, uid, before))

    def erase(self, user: str, uid: int, before: int) -> int:
        """Take the personal part out of the account's events; their numbers stay, so that none seems missing."""
        from guard.fleet.store import Store

        with Store(self._path) as store:
            found = [(at, _without_person(line)) for at, line in _rows(store) if about(line, user, uid, before)]
            if found:
                store.rewrite(found)
        return len(found)


def _rows(store: Store) -> Iterator[tuple[int, bytes]]:
    position = 0
    while rows := store.read(position, 5000):
        yield from ((at, line) for at, _, line in rows)
        position = rows[-1][0]


class ArchiveKeeper:
    """A folder of JSON lines by day, zstd or plain, as the feed `archive` writes it."""

    def __init__(self, folder: str) -> None:
        self.what = f"the archive {folder}"
        self._folder = folder

    def records(self, user: str, uid: int, before: int) -> Iterator[bytes]:
        """Yield every line about an account."""
        for path in self._files():
            yield from (line for line in _lines(path) if about(line, user, uid, before))

    def erase(self, user: str, uid: int, before: int) -> int:
        """Write each file anew without the personal part of the account's lines; others keep their bytes."""
        count = 0
        for path in self._files():
            if not any(about(line, user, uid, before) for line in _lines(path)):
                continue
            temporary = f"{path}.{os.getpid()}.new"
            with _writer(temporary, packed=path.endswith(".zst"), like=path) as write:
                for line in _lines(path):
                    if about(line, user, uid, before):
                        count += 1
                        line = _without_person(line)
                    write(line + b"\n")
            os.replace(temporary, path)
        return count

    def _files(self) -> list[str]:
        with suppress(OSError):
            names = sorted(os.listdir(self._folder))
            return [os.path.join(self._folder, n) for n in names if n.endswith((".jsonl", ".jsonl.zst"))]
        return []


def _without_person(line: bytes) -> bytes:
    event = orjson.loads(line)
    event.update({"tree": {}, "process": {}, "detail": {}, "message": "", "erased": True})
    return orjson.dumps(event)


def _lines(path: str) -> Iterator[bytes]:
    if path.endswith(".zst"):
        import io

        import zstandard

        with open(path, "rb") as file:
            reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            yield from (line.rstrip(b"\n") for line in io.BufferedReader(reader))
        return
    with open(path, "rb") as file:
        yield from (line.rstrip(b"\n") for line in file)


class _writer:  # noqa: N801 - used as a function
    """Writes a file beside another, with its mode and owner, synced before it takes its place."""

    def __init__(self, path: str, *, packed: bool, like: str) -> None:
        info = os.stat(like)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, info.st_mode & 0o777)
        if os.geteuid() == 0:
            os.fchown(fd, info.st_uid, info.st_gid)
        self._path = path
        self._file = os.fdopen(fd, "wb")
        self._packer: Any = None
        if packed:
            import zstandard

            self._packer = zstandard.ZstdCompressor(level=9).stream_writer(self._file, closefd=False)

    def __enter__(self) -> Callable[[bytes], object]:
        return (self._packer or self._file).write

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._packer is not None:
            self._packer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if kind is not None:
            os.unlink(self._path)
