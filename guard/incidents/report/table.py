"""Tables as CSV (RFC 4180), safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from guard.incidents.report.figures import Figures, Row
from guard.incidents.workflow import Incident
from guard.policy.source import printable


def _cell(value: object) -> object:
    """Keep a spreadsheet from taking a name or a path for a formula (OWASP: CSV injection)."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if value[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text


def _write(rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def incidents(found: Sequence[Incident], now: int) -> str:
    """Return incidents as CSV, a line each.

    Args:
        found: in the order in which they are to stand.
        now: µs since 1970.
    """
    head = ("id", "state", "kind", "priority", "audience", "received", "due", "overdue", "backlog", "users", "hosts",
            "sources", "exposures", "assignee")  # fmt: skip
    return _write(
        [
            head,
            *(
                (
                    one.id, str(one.state), one.kind, one.priority, one.audience, _time(one.received), _time(one.due),
                    one.overdue, one.backlog, " ".join(one.users), " ".join(one.hosts),
                    " ".join(dict.fromkeys(s.source for s in one.secret.sightings)),
                    sum(s.count for s in one.secret.sightings), one.assignee,
                )
                for one in found
            ),
        ]
    )  # fmt: skip


def figures(found: Figures) -> str:
    """Return a report's figures as CSV: section, name, measure, value."""
    keys, commands = found.keys, found.commands
    rows: list[Sequence[object]] = [("section", "name", "measure", "value"), ("period", "", "since", found.since),
                                    ("period", "", "until", found.until),
                                    ("period", "", "complete", found.complete)]  # fmt: skip
    for name in ("new", "open", "overdue", "closed", "dismissed", "backlog", "unmatched", "remnants", "median_days"):
        value = getattr(keys, name)
        rows.append(("keys", "", name, "" if value is None else value))
    for grouping, lines in keys.by.items():
        rows += _rows(f"keys by {grouping}", lines, ("new", "open", "overdue"))
    rows += _rows("acts", found.acts, ("observed", "would_deny", "stopped"))
    rows += _rows("clauses", found.clauses, ("touched",))
    for name in ("agent", "other", "polls", "jobs", "nodes", "blind_seconds"):
        rows.append(("commands", "", name, getattr(commands, name)))
    rows += _rows("coverage", found.coverage, ("seen", "guarded", "observed", "unwrapped", "unseen_seconds"))
    rows += _rows("controls", found.controls, ("enforced", "partial", "absent"))
    rows += _rows("losses", found.losses, ("events",))
    rows += _rows("reads", found.reads, ("times",))
    rows += [("changes", change.host, change.rule, f"{change.time} {change.who}".strip()) for change in found.changes]
    return _write(rows)


def _rows(section: str, lines: Iterable[Row], measures: Sequence[str]) -> list[Sequence[object]]:
    return [
        (section, line.name, measure, int(value))
        for line in lines
        for measure, value in zip(measures, line.values, strict=True)
    ]


def _time(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else ""
