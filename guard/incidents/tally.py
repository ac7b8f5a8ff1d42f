"""What a report needs of all the other events: counts by day, gauges, each control's status, changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from guard.incidents.exposure import MOST, microseconds

CHANGES: Final = frozenset(
    (
        "policy-changed", "mode-changed", "exception-added", "exception-expired", "suppression-added",
        "suppression-expired", "site-files-broken", "switched-off", "switched-on", "backend-worse", "coverage-lost",
        "settings", "key-rotated", "privacy-purged", "privacy-held", "privacy-released",
        "bypass", "backend", "control",
    )
)  # fmt: skip
"""Rules of events that tell of a change which somebody made or must know of."""

GAUGES: Final[Mapping[str, Mapping[str, str]]] = {
    "executions": {
        "execs": "other_commands", "agents_execs": "agent_commands", "agents_polls": "agent_polls",
        "agents_submissions": "jobs",
    },
    "monitor-gap": {"seconds": "unseen_seconds"},
    "coverage-lost": {"seconds": "unseen_seconds"},
}
"""Rule → number in its `detail` → what it is summed up as, by day and host. Each is what came since the event before: a
tree's own sums, told when it ends, are left out, or a command would count twice."""

LOSSES: Final[Mapping[str, str]] = {"loss": "count", "events-lost": "lost"}
"""Rule of an event that tells of a loss → the number in its `detail`. A heartbeat repeats sums: it is none."""


class Tally:
    """Counts of a batch of events, added to the ledger's tables at its end."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._gauges: dict[tuple[str, str, str, str], int] = {}
        self._status: dict[tuple[str, str], tuple[int, str]] = {}
        self._losses: dict[tuple[str, str, str], int] = {}
        self._changes: list[tuple[object, ...]] = []

    def add(self, event: Mapping[str, Any]) -> None:
        """Count one event of schema 1."""
        detail = event.get("detail")
        detail = detail if isinstance(detail, dict) else {}
        tree = event.get("tree")
        tree = tree if isinstance(tree, dict) else {}
        time, host, control, rule = (str(event.get(k) or "") for k in ("time", "host", "control", "rule"))
        day = time[:10] if time.endswith("Z") and time[4:8:3] == "--" else _day(time)
        harness = str(tree.get("harness") or "")
        if rule == "session-start" and detail.get("audit") is True:
            rule = "session-observed"
        key = (
            day, host, control, rule, str(event.get("verdict") or ""), str(event.get("severity") or ""), harness,
            str(tree.get("user") or ""),
        )  # fmt: skip
        count = detail.get("count")
        facts = count if isinstance(count, int) and 0 < count < MOST else 1
        row = self._counts.get(key)
        if row is None:
            self._counts[key] = [1, facts]
        else:
            row[0] += 1
            row[1] += facts
        for name, gauge in GAUGES.get(rule, {}).items():
            value = detail.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MOST:
                place = (day, host, gauge, harness)
                self._gauges[place] = self._gauges.get(place, 0) + int(value)
        lost = detail.get(LOSSES[rule]) if rule in LOSSES else None
        if control == "telemetry" and isinstance(lost, int) and 0 < lost < MOST:
            at = (day, host, str(detail.get("stage") or "several stages"))
            self._losses[at] = self._losses.get(at, 0) + lost
        if event.get("origin") == "user":
            return  # a claim sets no node's status and tells of no change
        controls = detail.get("controls")
        if isinstance(controls, dict):
            self._note_status(host, controls, microseconds(time))
        if rule in CHANGES:
            who = str(detail.get("who") or tree.get("user") or "")
            message = str(event.get("message") or "")
            self._changes.append((event["id"], microseconds(time), host, rule, who, message))

    def _note_status(self, host: str, controls: Mapping[str, Any], moment: int) -> None:
        for name, status in controls.items():
            word = status.get("state") if isinstance(status, dict) else status
            new = (moment, str(word or ""))
            if new[1] and new > self._status.get((host, str(name)), (0, "")):
                self._status[host, str(name)] = new

    def store(self, database: sqlite3.Connection) -> None:
        """Add the counts to the tables, within the caller's transaction."""
        database.executemany(
            "INSERT INTO tally VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET"
            " events = events + excluded.events, facts = facts + excluded.facts",
            [(*key, *row) for key, row in self._counts.items()],
        )
        database.executemany(
            "INSERT INTO gauge VALUES (?,?,?,?,?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
            [(*key, value) for key, value in self._gauges.items()],
        )
        database.executemany(
            "INSERT INTO loss VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET count = count + excluded.count",
            [(*key, count) for key, count in self._losses.items()],
        )
        database.executemany(
            "INSERT INTO status VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET status = excluded.status,"
            " time = excluded.time WHERE (excluded.time, excluded.status) > (time, status)",
            [(*key, status, moment) for key, (moment, status) in self._status.items()],
        )
        database.executemany("INSERT OR IGNORE INTO change VALUES (?,?,?,?,?,?)", self._changes)


def _day(time: str) -> str:
    """Return the day in UTC of a time that is not written as guard writes it."""
    return datetime.fromtimestamp(microseconds(time) / 1e6, UTC).strftime("%Y-%m-%d")
