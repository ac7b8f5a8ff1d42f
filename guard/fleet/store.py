"""The site's store: every event once by its id, who sent it and when; what each node last said; what is missing.

    received   one row an event: what the ledger of incidents reads, in the order of `position`
    seen       which `seq` of each host and producer have come, as runs
    gaps       what lies between the runs, and since when it is known
    nodes      each host's last heartbeat, backend, controls
    notices    what was judged and is told as an event; `told` once it is

An event whose sender may not speak for its host is kept, under the sender's name, and counts for nothing else.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Final, Self

from guard.errors import StateError
from guard.events.reader import transaction
from guard.events.wire import Severity
from guard.fleet.judge import Gap, Node, Notice
from guard.fleet.lines import Found, is_itself
from guard.policy.source import printable

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS received(
  position INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB NOT NULL, host TEXT NOT NULL, foreigner TEXT NOT NULL,
  sender TEXT NOT NULL, received REAL NOT NULL, time TEXT NOT NULL, producer TEXT NOT NULL, seq INTEGER NOT NULL,
  origin TEXT NOT NULL, control TEXT NOT NULL, rule TEXT NOT NULL, severity INTEGER NOT NULL, line BLOB NOT NULL,
  UNIQUE(id, host, foreigner));
CREATE INDEX IF NOT EXISTS by_control ON received(control, position);
CREATE TABLE IF NOT EXISTS seen(
  host TEXT, producer TEXT, first INTEGER, last INTEGER NOT NULL, changed REAL NOT NULL,
  PRIMARY KEY(host, producer, first)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gaps(
  host TEXT, producer TEXT, first INTEGER, last INTEGER NOT NULL, noticed REAL NOT NULL,
  PRIMARY KEY(host, producer, first)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS nodes(host TEXT PRIMARY KEY, sender TEXT NOT NULL, first REAL NOT NULL, last REAL NOT NULL,
  beat REAL NOT NULL, every REAL NOT NULL, state TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notices(
  number INTEGER PRIMARY KEY AUTOINCREMENT, host TEXT NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL,
  opened REAL NOT NULL, closed REAL, detail TEXT NOT NULL, event BLOB, told INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS open_notices ON notices(host, kind, subject) WHERE closed IS NULL;
"""

VERSION: Final = 1
RUNS_MOST: Final = 1000
"""Runs kept of one producer: a node cannot fill the site's disk with holes."""


@dataclass
class Received:
    """What became of a batch.

    Args:
        count: events new to the store.
        known: events that it had.
        foreign: of the new ones, those whose sender may not speak for their host.
    """

    count: int = 0
    known: int = 0
    foreign: int = 0

    def add(self, other: Received) -> None:
        """Count another batch in."""
        self.count += other.count
        self.known += other.known
        self.foreign += other.foreign


@dataclass
class _Batch:
    now: float
    seqs: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)


class Store:
    """The site's store; several processes may have it open.

    Args:
        path: the database file; its directory is made, 0700, where it is absent.
        write: False opens it for reading alone.

    Raises:
        StateError: it cannot be opened.
    """

    def __init__(self, path: str, *, write: bool = True) -> None:
        self.path = path
        try:
            if write:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            elif not os.path.exists(path):
                raise StateError(f"{printable(path)} does not exist", "nothing has been ingested here yet")
            self._db = sqlite3.connect(path, isolation_level=None, timeout=30)
            self._db.execute("PRAGMA query_only = OFF" if write else "PRAGMA query_only = ON")
            if write:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")  # what `receive` returned survives a power cut
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise StateError(f"{printable(path)} was written by a later guard", "update guard on this host")
            if write:
                self._db.executescript(_TABLES)
                self._db.execute(f"PRAGMA user_version = {VERSION}")
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise StateError(f"{printable(path)}: {reason}", "name a store that you may use: --store") from error

    def receive(self, events: Sequence[Found], now: float) -> Received:
        """Take events in, each once, durably when this returns.

        Args:
            events: in any order.
            now: seconds since 1970, by the site's clock.

        Raises:
            StateError: the store cannot be written; nothing of the batch was taken.
        """
        done = Received()
        batch = _Batch(now)
        try:
            with transaction(self._db):
                for each in events:
                    self._take(each, batch, done)
                for key, seqs in batch.seqs.items():
                    self._note_seqs(key, seqs, now)
                for node in batch.nodes.values():
                    self._keep_node(node)
                self._open(batch.notices)
        except sqlite3.Error as error:
            raise StateError(f"{printable(self.path)}: {error}", "see that there is room on its disk") from error
        return done

    def _take(self, each: Found, batch: _Batch, done: Received) -> None:
        event = each.event
        host, producer = str(event["host"]), str(event["producer"])
        foreign = bool(each.sender) and not is_itself(each.sender, host)
        seq = event.get("seq")
        number = seq if isinstance(seq, int) else 0
        taken = self._db.execute(
            "INSERT OR IGNORE INTO received(id, host, foreigner, sender, received, time, producer, seq, origin,"
            " control, rule, severity, line) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                bytes.fromhex(str(event["id"]).replace("-", "")), host, each.sender if foreign else "", each.sender,
                batch.now, str(event["time"]), producer, number, str(event.get("origin", "")), str(event["control"]),
                str(event["rule"]), int(Severity.of(str(event["severity"]))), each.line,
            ),
        ).rowcount  # fmt: skip
        if not taken:
            done.known += 1
            return
        done.count += 1
        if foreign:
            done.foreign += 1
            detail = {"claims": host, "sender": each.sender}
            batch.notices.append(Notice(host, "sender", each.sender, detail, batch.now))
            return
        if number > 0:
            batch.seqs.setdefault((host, producer), []).append(number)
        node = batch.nodes.get(host) or self.node(host) or Node(host, first=batch.now)
        node, notices = node.heard(event, each.sender, batch.now)
        batch.nodes[host] = node
        batch.notices += notices

    # Numbers that came, and those that did not -------------------------------------------------------

    def _note_seqs(self, key: tuple[str, str], seqs: Iterable[int], now: float) -> None:
        known = self._db.execute(
            "SELECT first, last FROM seen WHERE host = ? AND producer = ? ORDER BY first", key
        ).fetchall()
        runs = _merged([*known, *((number, number) for number in seqs)])
        if runs == known:
            return
        dropped = 0
        while len(runs) > RUNS_MOST:
            dropped += runs[1][0] - runs[0][1] - 1
            runs[:2] = [(runs[0][0], runs[1][1])]
        before, after = set(known), set(runs)
        self._db.executemany(
            "DELETE FROM seen WHERE host = ? AND producer = ? AND first = ?",
            [(*key, first) for first, _ in before - after],
        )
        self._db.executemany(
            "INSERT OR REPLACE INTO seen VALUES(?, ?, ?, ?, ?)", [(*key, *run, now) for run in after - before]
        )
        self._note_gaps(key, runs, dropped, now)

    def _note_gaps(self, key: tuple[str, str], runs: Sequence[tuple[int, int]], dropped: int, now: float) -> None:
        old = self._db.execute("SELECT first, last, noticed FROM gaps WHERE host = ? AND producer = ?", key).fetchall()
        holes = [(left[1] + 1, right[0] - 1) for left, right in pairwise(runs)]
        # Holes that are no longer followed one by one stay missing: together one gap, below all numbers.
        dropped += sum(last - first + 1 for first, last, _ in old if first < 0)
        if dropped:
            holes.insert(0, (-dropped, -1))
        self._db.execute("DELETE FROM gaps WHERE host = ? AND producer = ?", key)
        for first, last in holes:
            # What is left of a hole is as old as the hole.
            noticed = min((when for low, high, when in old if low <= last and first <= high), default=now)
            self._db.execute("INSERT INTO gaps VALUES(?, ?, ?, ?, ?)", (*key, first, last, noticed))

    def gaps(self) -> list[Gap]:
        """Every hole in a producer's numbers."""
        rows = self._db.execute("SELECT host, producer, first, last, noticed FROM gaps ORDER BY 1, 2, 3")
        return [Gap(*row) for row in rows]

    # Nodes -------------------------------------------------------------------------------------------

    def node(self, host: str) -> Node | None:
        """What is known of a host."""
        row = self._db.execute("SELECT * FROM nodes WHERE host = ?", (host,)).fetchone()
        return _node(row) if row else None

    def nodes(self) -> list[Node]:
        """Every host there has been, by name."""
        return [_node(row) for row in self._db.execute("SELECT * FROM nodes ORDER BY host")]

    def forget_node(self, host: str) -> bool:
        """Remove a host that is no more, with its gaps; its events stay. Returns whether there was one."""
        with transaction(self._db):
            for table in ("seen", "gaps"):
                self._db.execute(f"DELETE FROM {table} WHERE host = ?", (host,))  # noqa: S608 - our own names
            self._db.execute("UPDATE notices SET closed = opened, told = 1 WHERE host = ? AND closed IS NULL", (host,))
            return self._db.execute("DELETE FROM nodes WHERE host = ?", (host,)).rowcount > 0

    def _keep_node(self, node: Node) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO nodes VALUES(?, ?, ?, ?, ?, ?, ?)",
            (node.host, node.sender, node.first, node.last, node.beat, node.every, json.dumps(node.state)),
        )

    # Notices -----------------------------------------------------------------------------------------

    def settle(self, true: Sequence[Notice], now: float) -> None:
        """Open what is true now and was not, close what was and is not.

        Args:
            true: all notices of the kinds that last (`silent`, `gap`).
            now: seconds since 1970.
        """
        with transaction(self._db):
            wanted = {(each.host, each.kind, each.subject) for each in true}
            rows = self._db.execute(
                # One that is not told yet stays open until it is: its end alone would say nothing.
                "SELECT number, host, kind, subject FROM notices"
                " WHERE closed IS NULL AND told = 1 AND kind IN ('silent', 'gap')"
            ).fetchall()
            for number, *key in rows:
                if tuple(key) not in wanted:
                    self._db.execute(
                        "UPDATE notices SET closed = ?, told = 0, event = NULL WHERE number = ?", (now, number)
                    )
            self._open(true)

    def _open(self, notices: Iterable[Notice]) -> None:
        for each in notices:
            key = (each.host, each.kind, each.subject)
            known = self._db.execute(
                "SELECT 1 FROM notices WHERE host = ? AND kind = ? AND subject = ? AND closed IS NULL", key
            ).fetchone()
            if known is None or each.kind not in ("silent", "gap", "sender"):
                self._db.execute(
                    "INSERT INTO notices(host, kind, subject, opened, detail) VALUES(?, ?, ?, ?, ?)",
                    (*key, each.when, json.dumps(each.detail)),
                )

    def untold(self) -> list[tuple[int, Notice, bytes | None]]:
        """What has to be told: (number, notice, the event made for it before a crash)."""
        rows = self._db.execute(
            "SELECT number, host, kind, subject, detail, opened, closed, event FROM notices"
            " WHERE told = 0 ORDER BY number"
        ).fetchall()
        return [
            (number, Notice(host, kind, subject, json.loads(detail), opened, closed), event)
            for number, host, kind, subject, detail, opened, closed, event in rows
        ]

    def made(self, number: int, event: bytes) -> None:
        """Keep the event made for a notice, so that a second try has the same id."""
        self._db.execute("UPDATE notices SET event = ? WHERE number = ?", (event, number))

    def told(self, number: int) -> None:
        """Note that a notice is on record."""
        self._db.execute("UPDATE notices SET told = 1 WHERE number = ?", (number,))

    def open_notices(self) -> list[Notice]:
        """What is not closed, in the order in which it was opened."""
        rows = self._db.execute(
            "SELECT host, kind, subject, detail, opened FROM notices WHERE closed IS NULL ORDER BY number"
        )
        return [Notice(host, kind, subject, json.loads(detail), opened) for host, kind, subject, detail, opened in rows]

    # Events ------------------------------------------------------------------------------------------

    def read(self, after: int, limit: int = 1000) -> list[tuple[int, str, bytes]]:
        """Return (position, sender, line) of events behind a position, in the order in which they came."""
        rows = self._db.execute(
            "SELECT position, sender, line FROM received WHERE position > ? ORDER BY position LIMIT ?", (after, limit)
        )
        return [(position, sender, bytes(line)) for position, sender, line in rows]

    def accepted(self, after: int, limit: int = 1000) -> list[tuple[int, float, bytes]]:
        """Return (position, received in seconds since 1970, line) of what its sender may say, behind a position."""
        rows = self._db.execute(
            "SELECT position, received, line FROM received WHERE position > ? AND foreigner = '' ORDER BY position"
            " LIMIT ?",
            (after, limit),
        )
        return [(position, received, bytes(line)) for position, received, line in rows]

    def line(self, id_: str, host: str) -> bytes | None:
        """Return the event of a host with this id, which its sender may say; None for none."""
        row = self._db.execute(
            "SELECT line FROM received WHERE id = ? AND host = ? AND foreigner = ''",
            (bytes.fromhex(id_.replace("-", "")), host),
        ).fetchone()
        return bytes(row[0]) if row else None

    def rewrite(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Put other lines in the place of events, and leave nothing of the old ones in the file.

        Args:
            lines: (position, line).
        """
        with transaction(self._db):
            self._db.executemany("UPDATE received SET line = ? WHERE position = ?", [(line, at) for at, line in lines])
        self._db.execute("VACUUM")
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def count(self) -> int:
        """Return how many events there are."""
        return int(self._db.execute("SELECT count(*) FROM received").fetchone()[0])

    def trim(self, before: float) -> int:
        """Remove what was received before a time, in seconds since 1970; returns how many events."""
        with transaction(self._db):
            gone = self._db.execute("DELETE FROM received WHERE received < ?", (before,)).rowcount
            self._db.execute(
                "DELETE FROM notices WHERE told = 1"
                " AND (closed < ?1 OR opened < ?1 AND kind IN ('backend', 'control'))",
                (before,),
            )
            old = self._db.execute("SELECT host, producer FROM seen GROUP BY 1, 2 HAVING max(changed) < ?", (before,))
            for key in old.fetchall():
                self._db.execute("DELETE FROM seen WHERE host = ? AND producer = ?", key)
                self._db.execute("DELETE FROM gaps WHERE host = ? AND producer = ?", key)
        return gone

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _merged(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for first, last in sorted(runs):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], last))
        else:
            out.append((first, last))
    return out


def _node(row: tuple[str, str, float, float, float, float, str]) -> Node:
    host, sender, first, last, beat, every, state = row
    return Node(host, sender, first, last, beat, every, json.loads(state))
