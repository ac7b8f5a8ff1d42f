"""The figures of a period, worked out once and given in every form alike."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final

from guard.incidents.accounts import Account
from guard.incidents.choose import in_order
from guard.incidents.ledger import Ledger, Sighting
from guard.incidents.privacy import OTHERS
from guard.incidents.settings import DAY, Settings
from guard.incidents.workflow import Incident, State, as_of, assess

ACTS: Final = {
    "world-writable": "world-writable modes",
    "pipe-to-shell": "downloads run as code",
    "bind": "services not on loopback",
    "hand-off": "work handed out of the tree",
    "setuid": "set-user-id bits",
    "connect": "refused connections",
    "unix-sockets": "sockets of other services",
    "files": "files outside the grants",
    "metadata": "modes and owners outside the grants",
    "processes": "other processes",
    "kernel-surface": "kernel interfaces",
    "rates": "rates above the site's limits",
}
"""Control → how a report names what its events tell of, in the order in which they are shown."""

STOPPED: Final = ("denied", "rewritten", "killed")
"""Verdicts of acts that did not happen as asked."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table: a name and its numbers."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Keys:
    """Exposed keys. Each is counted once; the backlog apart, and in no other number.

    Args:
        new: received in the period.
        open, overdue: at its end.
        closed: in it, by rotation; `dismissed` as false positive or accepted.
        backlog: open keys that were there before the clock.
        unmatched: open ones without a fingerprint under the site's key.
        remnants: places of rotated keys that still hold them.
        median_days: from receipt to rotation, of those closed in the period; None where there were none.
        by: grouping (`kind`, `source`, `audience`, `harness`, `group`) → rows of (new, open, overdue).
        days: (day, new) over the period.
    """

    new: int
    open: int
    overdue: int
    closed: int
    dismissed: int
    backlog: int
    unmatched: int
    remnants: int
    median_days: float | None
    by: Mapping[str, tuple[Row, ...]]
    days: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands of agents and of everybody else, as the monitors counted them.

    Args:
        agent, other: programs started.
        polls, jobs: questions to the scheduler, and submissions, by agents.
        nodes: that counted at all.
        blind_seconds: in which some node counted nothing.
    """

    agent: int
    other: int
    polls: int
    jobs: int
    nodes: int
    blind_seconds: int

    @property
    def share(self) -> float | None:
        """The agents' share of all commands, 0 to 1; None where nothing was counted."""
        whole = self.agent + self.other
        return self.agent / whole if whole else None

    @property
    def polls_per_job(self) -> float | None:
        """Questions to the scheduler for each submission; None without a submission."""
        return self.polls / self.jobs if self.jobs else None


@dataclass(frozen=True, slots=True)
class Change:
    """Something that somebody changed: `time` as RFC 3339."""

    time: str
    host: str
    rule: str
    who: str
    message: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything a report shows.

    Args:
        since, until: the period, as dates or times in UTC; `until` is its end.
        made: when, RFC 3339.
        keys: exposed keys.
        urgent: the most urgent open incidents, at most 20.
        acts: rows of (observed, would have been denied, stopped).
        clauses: rule of the site → how often it was touched.
        commands: the agents' share.
        coverage: rows of (trees seen, guarded, observed only, unwrapped, seconds unseen), by node and week.
        changes: of policy, mode, exceptions, suppressions and the switch.
        controls: rows of (enforced, partial, absent): nodes by control.
        losses: events lost, by stage.
        reads: who read other people's records, and how often.
        nodes: that sent anything in the period.
    """

    since: str
    until: str
    made: str
    keys: Keys
    urgent: tuple[Incident, ...]
    acts: tuple[Row, ...]
    clauses: tuple[Row, ...]
    commands: Commands
    coverage: tuple[Row, ...]
    changes: tuple[Change, ...]
    controls: tuple[Row, ...]
    losses: tuple[Row, ...]
    reads: tuple[Row, ...]
    nodes: int
    switched_off: tuple[str, ...] = field(default=())

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing from these figures."""
        return not self.losses


def gather(ledger: Ledger, settings: Settings, accounts: Mapping[str, Account], since: int, until: int) -> Figures:
    """Work out the figures of a period.

    Args:
        ledger: open.
        settings: the site's.
        accounts: the account map, for groups.
        since, until: µs since 1970; the days in which they fall count whole.
    """
    now = min(ledger.now(), until)
    first, last = _day(since), _day(until - 1)
    # What was received after the period is none of it; an incident counts as it stood at its end.
    then = (secret for whole in ledger.secrets() if (secret := as_of(whole, until)) is not None)
    incidents = [one for secret in then if not (one := assess(secret, settings, now)).weak]
    sums = _Sums(ledger, first, last)
    return Figures(
        since=first,
        until=last,
        made=datetime.fromtimestamp(ledger.now() / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        keys=_keys(incidents, accounts, since, until),
        urgent=tuple(in_order(one for one in incidents if not one.closed and not one.backlog)[:20]),
        acts=sums.acts(),
        clauses=sums.clauses(settings.aup),
        commands=sums.commands(),
        coverage=sums.coverage(),
        changes=sums.changes(since, until),
        controls=sums.controls(),
        losses=sums.losses(),
        reads=sums.reads(since, until),
        nodes=sums.nodes(),
        switched_off=sums.switched_off(),
    )


def _day(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1e6, UTC).strftime("%Y-%m-%d")


def _keys(incidents: Sequence[Incident], accounts: Mapping[str, Account], since: int, until: int) -> Keys:
    current = [one for one in incidents if not one.backlog]
    new = [one for one in current if since <= _received(one) < until]
    open_ = [one for one in current if not one.closed]
    overdue = [one for one in open_ if one.overdue]
    ended = [one for one in current if one.closed and since <= one.since < until]
    rotated = [one for one in ended if one.state is State.ROTATED]
    groupings: dict[str, Callable[[Incident], Iterable[str]]] = {
        "kind": lambda one: (one.kind,),
        "audience": lambda one: (one.audience,),
        "source": lambda one: _each(one, lambda s: s.source),
        "harness": lambda one: _each(one, lambda s: s.harness or "no agent"),
        "group": lambda one: _each(
            one, lambda s: accounts[s.user].group or "no group" if s.user in accounts else "no group"
        ),
    }
    return Keys(
        new=len(new),
        open=len(open_),
        overdue=len(overdue),
        closed=len(rotated),
        dismissed=len(ended) - len(rotated),
        backlog=sum(one.backlog and not one.closed for one in incidents),
        unmatched=sum(not one.matched for one in open_),
        remnants=sum(len(one.remnants) for one in current),
        median_days=round(statistics.median(max(0, _rotated(one) - _received(one)) / DAY for one in rotated), 2)
        if rotated
        else None,
        by={name: _grouped((new, open_, overdue), of) for name, of in groupings.items()},
        days=_daily(new, since, until),
    )


def _received(incident: Incident) -> int:
    """Return when the site first received it outside of the backlog: a reopened one is no new key."""
    return min(
        (s.received_first for s in incident.secret.sightings if s.strict and not s.baseline),
        default=incident.received,
    )


def _rotated(incident: Incident) -> int:
    """Return when a key was rotated, which may be long before somebody wrote it down."""
    return next((a.at or a.time for a in reversed(incident.secret.actions) if a.verb == "resolve"), incident.since)


def _each(incident: Incident, of: Callable[[Sighting], str]) -> Iterable[str]:
    return {of(s) for s in incident.secret.sightings if s.strict}


def _grouped(columns: Sequence[Sequence[Incident]], of: Callable[[Incident], Iterable[str]]) -> tuple[Row, ...]:
    counts = [Counter(name for one in column for name in of(one)) for column in columns]
    names = {name for count in counts for name in count}
    rows = [Row(name, tuple(float(count[name]) for count in counts)) for name in names]
    return tuple(sorted(rows, key=lambda row: (tuple(-v for v in row.values), row.name)))


def _daily(new: Sequence[Incident], since: int, until: int) -> tuple[tuple[str, int], ...]:
    counts = Counter(_day(_received(one)) for one in new)
    first, last = date.fromisoformat(_day(since)), date.fromisoformat(_day(until - 1))
    days = [first + timedelta(n) for n in range((last - first).days + 1)]
    return tuple((day.isoformat(), counts[day.isoformat()]) for day in days)


class _Sums:
    """Sums over the ledger's counts of a span of days, both ends included."""

    def __init__(self, ledger: Ledger, first: str, last: str) -> None:
        self._db = ledger.database
        self._span = (first, last)

    def acts(self) -> tuple[Row, ...]:
        rows: dict[str, list[float]] = {control: [0, 0, 0] for control in ACTS}
        for control, verdict, facts in self._db.execute(
            "SELECT control, verdict, sum(facts) FROM tally WHERE day BETWEEN ? AND ?"
            " AND severity != 'info' GROUP BY 1, 2",
            self._span,
        ):
            if control in rows:
                rows[control][2 if verdict in STOPPED else 1 if verdict == "would_deny" else 0] += facts
        return tuple(Row(ACTS[c], tuple(values)) for c, values in rows.items() if any(values))

    def clauses(self, aup: Mapping[str, str]) -> tuple[Row, ...]:
        counts: Counter[str] = Counter()
        for control, rule, facts in self._db.execute(
            "SELECT control, rule, sum(facts) FROM tally WHERE day BETWEEN ? AND ? AND severity != 'info'"
            " GROUP BY 1, 2",
            self._span,
        ):
            clause = aup.get(rule) or aup.get(control)
            if clause:
                counts[clause] += facts
        return tuple(Row(name, (float(n),)) for name, n in sorted(counts.items(), key=lambda i: (-i[1], i[0])))

    def commands(self) -> Commands:
        sums: Counter[str] = Counter()
        for name, value in self._db.execute(
            "SELECT name, sum(value) FROM gauge WHERE day BETWEEN ? AND ? GROUP BY 1", self._span
        ):
            sums[name] = value
        nodes = self._db.execute(
            "SELECT count(DISTINCT host) FROM gauge WHERE day BETWEEN ? AND ?"
            " AND name IN ('agent_commands', 'other_commands')",
            self._span,
        ).fetchone()[0]
        return Commands(
            sums["agent_commands"], sums["other_commands"], sums["agent_polls"], sums["jobs"], nodes,
            sums["unseen_seconds"],
        )  # fmt: skip

    def coverage(self) -> tuple[Row, ...]:
        rows: dict[tuple[str, str], list[float]] = {}
        kinds = {"tree-start": 0, "session-start": 1, "session-observed": 2, "unwrapped-agent": 3}
        for day, host, rule, facts in self._db.execute(
            "SELECT day, host, rule, sum(facts) FROM tally WHERE day BETWEEN ? AND ? AND rule IN"
            " ('tree-start', 'session-start', 'session-observed', 'unwrapped-agent') GROUP BY 1, 2, 3",
            self._span,
        ):
            rows.setdefault((_week(day), host), [0.0] * 5)[kinds[rule]] += facts
        for day, host, value in self._db.execute(
            "SELECT day, host, sum(value) FROM gauge WHERE day BETWEEN ? AND ? AND name = 'unseen_seconds'"
            " GROUP BY 1, 2",
            self._span,
        ):
            rows.setdefault((_week(day), host), [0.0] * 5)[4] += value
        return tuple(Row(f"{host} {week}", tuple(values)) for (week, host), values in sorted(rows.items()))

    def changes(self, since: int, until: int) -> tuple[Change, ...]:
        return tuple(
            Change(datetime.fromtimestamp(time / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), *rest)
            for time, *rest in self._db.execute(
                "SELECT time, host, rule, who, message FROM change WHERE time >= ? AND time < ? ORDER BY time, id",
                (since, until),
            )
        )

    def controls(self) -> tuple[Row, ...]:
        rows: dict[str, list[float]] = {}
        levels = {"enforced": 0, "partial": 1, "absent": 2}
        for control, status, nodes in self._db.execute("SELECT control, status, count(*) FROM status GROUP BY 1, 2"):
            if status in levels:
                rows.setdefault(control, [0, 0, 0])[levels[status]] += nodes
        return tuple(Row(name, tuple(values)) for name, values in sorted(rows.items()))

    def losses(self) -> tuple[Row, ...]:
        found = self._db.execute(
            "SELECT stage, sum(count) FROM loss WHERE day BETWEEN ? AND ? GROUP BY 1 ORDER BY 2 DESC, 1", self._span
        )
        return tuple(Row(stage, (float(count),)) for stage, count in found)

    def reads(self, since: int, until: int) -> tuple[Row, ...]:
        found = self._db.execute(
            f"SELECT who, count(*) FROM access WHERE time >= ? AND time < ? AND {OTHERS}"  # noqa: S608 - our own
            " GROUP BY 1 ORDER BY 2 DESC, 1",
            (since, until),
        )
        return tuple(Row(who, (float(count),)) for who, count in found)

    def nodes(self) -> int:
        return int(
            self._db.execute("SELECT count(DISTINCT host) FROM tally WHERE day BETWEEN ? AND ?", self._span).fetchone()[
                0
            ]
        )

    def switched_off(self) -> tuple[str, ...]:
        """Return the hosts whose last switch event is "off"."""
        last = self._db.execute(
            "SELECT host, rule, max(time) FROM change WHERE rule IN ('switched-off', 'switched-on') GROUP BY host"
        )
        return tuple(sorted(host for host, rule, _ in last if rule == "switched-off"))


def _week(day: str) -> str:
    """Return a day's week as ISO 8601 names it, 2026-W05; the day itself where it is none."""
    try:
        year, week, _ = date.fromisoformat(day).isocalendar()
    except ValueError:
        return day
    return f"{year}-W{week:02d}"
