"""The ledger: one incident per secret and site, folded from events; SQLite of the standard library.

Folding is idempotent by event id and gives the same ledger in every order: what is kept of many sightings is a
sum, an earliest, a latest or a widest. A batch and the ids that it took are one transaction, so that a process
killed at any moment has taken an event wholly or not at all.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import orjson

from guard.errors import StateError
from guard.events.reader import transaction
from guard.incidents import schema
from guard.incidents.audience import AUDIENCES
from guard.incidents.exposure import CLAIM, VERBS, WORKFLOW, Exposure, microseconds, read
from guard.incidents.tally import Tally

FILE: Final = "ledger.db"
MEMORY: Final = ":memory:"
"""In place of a path: a ledger that lives as long as it is open."""
BATCH: Final = 5_000
"""Events a transaction: what a kill costs to fold again, against one fsync each."""

_COLUMNS: Final = (
    "alias,host,uid,user,source,path,spot,session,claim,baseline,kind,length,strict,honeytoken,harness,job,line,"
    "offset,audience,happened_first,happened_last,observed_first,observed_last,received_first,received_last,count"
)
_SIGHTING: Final = f"""
INSERT INTO sighting ({_COLUMNS}) VALUES ({",".join("?" * (_COLUMNS.count(",") + 1))})
ON CONFLICT DO UPDATE SET
  kind = min(kind, excluded.kind), length = max(length, excluded.length), strict = max(strict, excluded.strict),
  honeytoken = max(honeytoken, excluded.honeytoken), harness = max(harness, excluded.harness),
  job = max(job, excluded.job),
  line = CASE WHEN excluded.observed_last >= observed_last THEN excluded.line ELSE line END,
  offset = CASE WHEN excluded.observed_last >= observed_last THEN excluded.offset ELSE offset END,
  audience = max(audience, excluded.audience),
  happened_first = min(happened_first, excluded.happened_first),
  happened_last = max(happened_last, excluded.happened_last),
  observed_first = min(observed_first, excluded.observed_first),
  observed_last = max(observed_last, excluded.observed_last),
  received_first = min(received_first, excluded.received_first),
  received_last = max(received_last, excluded.received_last), count = count + excluded.count
"""  # noqa: S608 - column names of our own


_READY: Final = """
SELECT * FROM pending p WHERE EXISTS (
  SELECT 1 FROM alias a
  WHERE a.fingerprint >= p.digits AND a.fingerprint < p.digits || 'g' AND (p.holder = '' OR EXISTS (
    SELECT 1 FROM alias b JOIN sighting s ON s.alias = b.id WHERE b.secret = a.secret AND s.user = p.holder)))
"""
SKEW: Final = 60_000_000
"""µs by which a node's clock may be ahead of the site's."""


class Received(NamedTuple):
    """An event as it came in: decoded, when the site accepted it (µs since 1970), whether it is of its own spool."""

    event: Mapping[str, Any]
    received: int
    own: bool = False


class Folded(NamedTuple):
    """What a fold did: events taken, known already, and lines that were no event."""

    taken: int
    known: int
    refused: int


@dataclass(frozen=True, slots=True)
class Sighting:
    """One place of a secret, as all its events together tell it. Fields as in `Exposure`; times in µs."""

    alias: int
    host: str
    uid: int
    user: str
    source: str
    path: str
    spot: str
    session: str
    claim: bool
    baseline: bool
    kind: str
    length: int
    strict: bool
    honeytoken: bool
    harness: str
    job: str
    line: int
    offset: int
    audience: str
    happened_first: int
    happened_last: int
    observed_first: int
    observed_last: int
    received_first: int
    received_last: int
    count: int


@dataclass(frozen=True, slots=True)
class Action:
    """One decision: `verb` of `workflow.VERBS`, by whom and why; `at` and `until` in µs, 0 for none."""

    id: str
    time: int
    verb: str
    who: str
    reason: str
    ticket: str
    at: int
    until: int


@dataclass(frozen=True, slots=True)
class Secret:
    """Everything the ledger holds of one secret.

    Args:
        id: 12 hex digits, those that its marker shows.
        names: (key id, fingerprint) pairs.
        sightings, actions: in the order of time.
    """

    id: str
    names: tuple[tuple[str, str], ...]
    sightings: tuple[Sighting, ...]
    actions: tuple[Action, ...]


class Ledger:
    """An open ledger.

    Args:
        path: the file; made with mode 0600 when absent.
        clock: seconds since 1970.

    Raises:
        StateError: it cannot be opened, is another's, or is of a later version.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        if path != MEMORY:
            _prepare(path)
        try:
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA cache_size = -65536")  # KiB: the index of ids is read all over
            self._db.execute("PRAGMA wal_autocheckpoint = 8192")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version > schema.VERSION:
                raise StateError(f"{path} was written by a later guard", "update guard on this host")
            self._db.executescript(schema.TABLES)
            self._db.execute(f"PRAGMA user_version = {schema.VERSION}")
        except sqlite3.Error as error:
            raise StateError(
                f"{path} cannot be used as a ledger ({error})",
                "restore it from a copy, or move it away and fold the archive again: guard incidents ingest",
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # --- events in

    def fold(self, events: Iterable[Received]) -> Folded:
        """Take events in, each once whatever the order and however often it is given.

        Returns:
            Counts. What is no event (no id, no time) is counted as refused and changes nothing.
        """
        taken = known = refused = 0
        for batch in _batches(events):
            with self.transaction():
                tally = Tally()
                names: dict[tuple[str, str], int] = {}
                for received in batch:
                    event = received.event
                    id_ = event.get("id")
                    time_ = event.get("time")
                    if not isinstance(id_, str) or not id_ or not isinstance(time_, str) or not microseconds(time_):
                        refused += 1
                        continue
                    key = _key(id_)
                    # A decision that came round by another node first, where it counts for nothing, is still ours.
                    if _decides(received) and self._is_new(key + b" own"):
                        self._said(received)
                    if not self._is_new(key):
                        known += 1
                        continue
                    taken += 1
                    exposure = read(event)
                    if exposure is not None:
                        self._expose(exposure, received.received, names)
                    elif event.get("control") == "exposure" and event.get("rule") == CLAIM:
                        self._said(received)
                    tally.add(event)
                tally.store(self._db)
                self._settle()
        return Folded(taken, known, refused)

    def _is_new(self, key: bytes) -> bool:
        return self._db.execute("INSERT OR IGNORE INTO folded VALUES (?)", (key,)).rowcount == 1

    def _expose(self, seen: Exposure, received: int, names: dict[tuple[str, str], int]) -> None:
        # That two fingerprints are one secret is no user's to say: joined to a dismissed one, a key would be hidden.
        given = seen.names[:1] if seen.claim else seen.names
        alias = names.get(given[0]) if len(given) == 1 else None
        if alias is None:
            alias = self._alias(given)
            names[given[0]] = alias
        # Nothing happened after it was received: a node whose clock is ahead would reopen what is rotated.
        happened, observed = (received if t > received + SKEW else t for t in (seen.happened, seen.observed))
        self._db.execute(
            _SIGHTING,
            (
                alias, seen.host, seen.uid, seen.user, seen.source, seen.path, seen.spot, seen.session, seen.claim,
                seen.baseline, seen.kind, seen.length, seen.strict, seen.honeytoken, seen.harness, seen.job,
                seen.line, seen.offset, AUDIENCES.index(seen.audience), happened, happened, observed, observed,
                received, received, seen.count,
            ),
        )  # fmt: skip

    def _said(self, received: Received) -> None:
        """Keep what an event says was decided until the incident it speaks of is known: events come in any order.

        A holder's claim counts from every node, a decision only from this site's own spool: no node decides for it.
        """
        event = received.event
        tree, detail = event.get("tree"), event.get("detail")
        verb = str(event.get("rule") or "").removeprefix(WORKFLOW)
        if not isinstance(detail, Mapping) or not isinstance(tree, Mapping):
            return
        moment = microseconds(event["time"])
        if event.get("rule") == CLAIM:
            holder = who = str(tree.get("user") or "")
            verb, at, until = "claim", moment, 0
            if not holder:
                return
        else:
            holder, who = "", str(detail.get("who") or "")
            at, until = microseconds(detail.get("at")), microseconds(detail.get("until"))
        digits = str(detail.get("incident") or "").lower()
        if not 4 <= len(digits) <= 64 or digits.strip("0123456789abcdef"):
            return  # no incident will ever have it
        self._db.execute(
            "INSERT OR IGNORE INTO pending VALUES (?,?,?,?,?,?,?,?,?,?)",
            (event["id"], digits, holder, moment, verb, who,
             str(detail.get("reason") or ""), str(detail.get("ticket") or ""), at, until),
        )  # fmt: skip

    def _settle(self) -> None:
        # Users may claim what is not theirs, or is nothing, as often as they like: SQLite passes over those.
        for id_, digits, holder, *rest in self._db.execute(_READY).fetchall():
            secrets = [s for s in self.find(digits) if not holder or any(seen.user == holder for seen in s.sightings)]
            if len(secrets) == 1:
                self._write(secrets[0], Action(id_, *rest), told=1)
                self._db.execute("DELETE FROM pending WHERE id = ?", (id_,))

    def _alias(self, names: tuple[tuple[str, str], ...]) -> int:
        """Return the first name's alias, after joining all the names to one secret."""
        ids, secrets = [], set()
        for key_id, fingerprint in names:
            row = self._db.execute(
                "SELECT id, secret FROM alias WHERE key_id = ? AND fingerprint = ?", (key_id, fingerprint)
            ).fetchone()
            if row is None:
                new = self._db.execute(
                    "INSERT INTO alias (key_id, fingerprint, secret) VALUES (?, ?, -1) RETURNING id",
                    (key_id, fingerprint),
                ).fetchone()[0]
                self._db.execute("UPDATE alias SET secret = ? WHERE id = ?", (new, new))
                row = (new, new)
            ids.append(int(row[0]))
            secrets.add(int(row[1]))
        if len(secrets) > 1 and not self._differ(secrets):
            first = min(secrets)
            for other in secrets - {first}:
                self._db.execute("UPDATE alias SET secret = ? WHERE secret = ?", (first, other))
        return ids[0]

    def _differ(self, secrets: Iterable[int]) -> bool:
        """Whether some secrets cannot be one: under one key a secret has one fingerprint."""
        names = {
            pair
            for secret in secrets
            for pair in self._db.execute("SELECT key_id, fingerprint FROM alias WHERE secret = ?", (secret,))
        }
        return len({key_id for key_id, _ in names}) < len(names)

    # --- decisions in

    def act(self, decisions: Iterable[tuple[Secret, Action]]) -> None:
        """Write decisions down, all or none; one whose id is there already changes nothing."""
        with self.transaction():
            for secret, action in decisions:
                self._write(secret, action)

    def _write(self, secret: Secret, action: Action, told: int = 0) -> None:
        alias = self._db.execute(
            "SELECT id FROM alias WHERE (key_id, fingerprint) = (?, ?)", secret.names[0]
        ).fetchone()[0]
        self._db.execute(
            "INSERT OR IGNORE INTO action VALUES (?,?,?,?,?,?,?,?,?,?)",
            (action.id, alias, action.time, action.verb, action.who, action.reason, action.ticket, action.at,
             action.until, told),
        )  # fmt: skip

    def untold(self) -> list[tuple[Secret, Action]]:
        """Return the decisions of which no event has been sent yet, oldest first."""
        rows = self._db.execute(
            "SELECT a.secret, t.id FROM action t JOIN alias a ON a.id = t.alias WHERE told = 0 ORDER BY t.time, t.id"
        ).fetchall()
        found = {secret: self._secret(secret) for secret in {row[0] for row in rows}}
        return [
            (found[row[0]], next(action for action in found[row[0]].actions if action.id == row[1])) for row in rows
        ]

    def told(self, ids: Iterable[str]) -> None:
        """Note that the events of these decisions are in the spool."""
        with self.transaction():
            self._db.executemany("UPDATE action SET told = 1 WHERE id = ?", ((one,) for one in ids))

    def was_sent(self, secret: Secret, what: str, recipient: str, clock: int) -> bool:
        """Say whether something was sent to somebody about a secret, in this run of its clock (its start, µs)."""
        return (
            self._db.execute(
                "SELECT 1 FROM sent t JOIN alias a ON a.id = t.alias JOIN alias b ON b.secret = a.secret"
                " WHERE (b.key_id, b.fingerprint) = (?, ?) AND (t.what, t.recipient, t.clock) = (?, ?, ?)",
                (*secret.names[0], what, recipient, clock),
            ).fetchone()
            is not None
        )

    def mark_sent(self, rows: Iterable[tuple[Secret, str, str, int]], now: int) -> None:
        """Note that each (secret, what, recipient, clock) was sent."""
        with self.transaction():
            self._db.executemany(
                "INSERT OR IGNORE INTO sent SELECT id, ?, ?, ?, ? FROM alias WHERE (key_id, fingerprint) = (?, ?)",
                ((what, recipient, clock, now, *secret.names[0]) for secret, what, recipient, clock in rows),
            )

    def sent_since(self, moment: int) -> int:
        """Return how many mails went out since a moment (µs since 1970)."""
        return int(
            self._db.execute(
                "SELECT count(DISTINCT recipient || time) FROM sent WHERE time >= ? AND recipient != 'feed'", (moment,)
            ).fetchone()[0]
        )

    def forget(self, secrets: Iterable[Secret], before: int) -> int:
        """Delete secrets with all that belongs to them, and the counts of days before a moment (µs since 1970).

        Returns:
            How many secrets and rows of counts there were.
        """
        count = 0
        day = datetime.fromtimestamp(before / 1e6, UTC).strftime("%Y-%m-%d")
        with self.transaction():
            for secret in secrets:
                ids = "SELECT id FROM alias WHERE (key_id, fingerprint) = (?, ?)"
                for pair in secret.names:
                    for table in ("sighting", "action", "sent"):
                        self._db.execute(f"DELETE FROM {table} WHERE alias IN ({ids})", pair)  # noqa: S608
                    self._db.execute("DELETE FROM alias WHERE (key_id, fingerprint) = (?, ?)", pair)
                count += 1
            for table in ("tally", "gauge", "loss"):
                count += self._db.execute(f"DELETE FROM {table} WHERE day < ?", (day,)).rowcount  # noqa: S608
            for table in ("change", "access", "pending"):
                count += self._db.execute(f"DELETE FROM {table} WHERE time < ?", (before,)).rowcount  # noqa: S608
        return count

    # --- secrets out

    def secrets(self, where: str = "", values: tuple[object, ...] = ()) -> list[Secret]:
        """Return secrets in a stable order.

        Args:
            where: a condition on columns of `sighting` of our own making, as `user = ?`; a secret is returned
                whole when one of its sightings meets it.
            values: for its place holders.
        """
        condition = f" WHERE {where}" if where else ""
        wanted = self._db.execute(
            f"SELECT DISTINCT a.secret FROM sighting s JOIN alias a ON a.id = s.alias{condition}",  # noqa: S608
            values,
        ).fetchall()
        if where and len(wanted) < 500:
            return sorted((self._secret(row[0]) for row in wanted), key=lambda s: s.id)
        keep = {row[0] for row in wanted}
        return [secret for number, secret in self._all() if number in keep]

    def find(self, prefix: str) -> list[Secret]:
        """Return the secrets one of whose fingerprints begins with some hex digits."""
        low = prefix.lower()
        if not low or low.strip("0123456789abcdef"):
            return []
        rows = self._db.execute(
            "SELECT DISTINCT secret FROM alias WHERE fingerprint >= ? AND fingerprint < ? ORDER BY secret",
            (low, low + "g"),
        ).fetchall()
        return [self._secret(row[0]) for row in rows]

    def named(self, names: Iterable[tuple[str, str]]) -> Secret | None:
        """Return the secret of one of some (key id, fingerprint) pairs."""
        for pair in names:
            row = self._db.execute("SELECT secret FROM alias WHERE (key_id, fingerprint) = (?, ?)", pair).fetchone()
            if row is not None:
                return self._secret(row[0])
        return None

    def _secret(self, number: int) -> Secret:
        return next(secret for _, secret in self._all("WHERE a.secret = ?", (number,)))

    def _all(self, where: str = "", values: tuple[object, ...] = ()) -> Iterator[tuple[int, Secret]]:
        names: dict[int, list[tuple[str, str]]] = {}
        for number, key_id, fingerprint in self._db.execute(
            f"SELECT a.secret, a.key_id, a.fingerprint FROM alias a {where}",  # noqa: S608 - see above
            values,
        ):
            names.setdefault(number, []).append((key_id, fingerprint))
        sightings: dict[int, list[Sighting]] = {}
        columns = ",".join(f"s.{name}" for name in _COLUMNS.split(","))
        for row in self._db.execute(
            f"SELECT a.secret, {columns} FROM sighting s JOIN alias a ON a.id = s.alias {where}",  # noqa: S608
            values,
        ):
            sightings.setdefault(row[0], []).append(_sighting(row[1:]))
        actions: dict[int, list[Action]] = {}
        for number, *row in self._db.execute(
            "SELECT a.secret, t.id, t.time, t.verb, t.who, t.reason, t.ticket, t.at, t.until FROM action t"  # noqa: S608
            f" JOIN alias a ON a.id = t.alias {where} ORDER BY t.time, t.id",
            values,
        ):
            actions.setdefault(number, []).append(Action(*row))
        whole = [
            (number, _whole(pairs, sightings.get(number, []), actions.get(number, [])))
            for number, pairs in names.items()
        ]
        yield from sorted(whole, key=lambda pair: pair[1].id)

    def note_access(self, who: str, what: str) -> None:
        """Record that somebody read other people's records, or tried a key."""
        now = self.now()
        self._db.execute("INSERT INTO access (time, who, what) VALUES (?, ?, ?)", (now, who, what))

    # --- the file

    def cursor(self, source: str) -> int:
        """Return how far a source (a spool, a store) was folded: a saving of time, since folding is idempotent."""
        row = self._db.execute("SELECT position FROM cursor WHERE source = ?", (source,)).fetchone()
        return int(row[0]) if row else 0

    def advance(self, source: str, position: int) -> None:
        """Note how far a source was folded."""
        self._db.execute("INSERT OR REPLACE INTO cursor VALUES (?, ?)", (source, position))

    @property
    def database(self) -> sqlite3.Connection:
        """The open database, for the parts of this package that read the other tables."""
        return self._db

    def now(self) -> int:
        """The time in µs since 1970."""
        return int(self._clock() * 1_000_000)

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a context in which everything written is kept wholly or not at all."""
        return transaction(self._db)


def decode(line: bytes) -> dict[str, Any]:
    """Decode a line of JSON; what is no object becomes an empty event, which `fold` counts as refused."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {}


def _key(id_: str) -> bytes:
    """Return an event's id as the sixteen bytes that it stands for; one of another form as it is."""
    try:
        return bytes.fromhex(id_.replace("-", ""))
    except ValueError:
        return id_.encode("utf-8", "surrogatepass")


def _decides(received: Received) -> bool:
    """Whether an event is a decision of this site's."""
    event = received.event
    rule = event.get("rule")
    return (
        received.own
        and event.get("origin") == "service"
        and event.get("control") == "exposure"
        and isinstance(rule, str)
        and rule.startswith(WORKFLOW)
        and rule.removeprefix(WORKFLOW) in VERBS
    )


def _batches(events: Iterable[Received]) -> Iterator[list[Received]]:
    batch: list[Received] = []
    for event in events:
        batch.append(event)
        if len(batch) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _sighting(row: tuple[Any, ...]) -> Sighting:
    values = list(row)
    for place in (8, 9, 12, 13):  # claim, baseline, strict, honeytoken
        values[place] = bool(values[place])
    values[18] = AUDIENCES[values[18]]
    return Sighting(*values)


def _whole(names: list[tuple[str, str]], sightings: list[Sighting], actions: list[Action]) -> Secret:
    # A site's key before a user's own, and both before a mere place: what most markers show names the secret.
    ordered = sorted(names, key=lambda pair: (not pair[0].startswith("site-"), not pair[0], pair))
    return Secret(
        ordered[0][1][:12],
        tuple(ordered),
        tuple(sorted(sightings, key=lambda s: (s.happened_first, s.host, s.path, s.spot, s.session, s.user))),
        tuple(actions),
    )


def _prepare(path: str) -> None:
    """Make the file ours alone before SQLite opens it.

    Raises:
        StateError: the directory is missing, or the file is another's or readable by others.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StateError(
            f"{path} cannot be opened ({error.strerror})", "the ledger is kept at the site's consumer, as root"
        ) from None
    try:
        info = os.fstat(fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise StateError(f"{path} is another's or can be read by others", "chown and chmod 600 it")
