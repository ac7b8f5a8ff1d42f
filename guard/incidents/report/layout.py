"""What a report says, in order: headings, sentences, tables and charts, without a form. HTML and Markdown render it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from guard.incidents.audience import WORDS
from guard.incidents.report.figures import Figures, Row
from guard.incidents.settings import DAY
from guard.incidents.workflow import Incident


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `numbers` says from which column on cells are numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int = 1
    empty: str = "nothing"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: `bars` or `stacked`; series are (name, values), values stand over `labels`."""

    kind: str
    title: str
    labels: tuple[str, ...]
    series: tuple[tuple[str, tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what stands below it."""

    anchor: str
    title: str
    text: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report: `banner` is said before all else, `tiles` are (number, what it counts, alarming)."""

    title: str
    period: str
    banner: tuple[str, ...]
    tiles: tuple[tuple[str, str, bool], ...]
    sections: tuple[Section, ...]
    made: str


def page(found: Figures, now: int) -> Page:
    """Lay a report out.

    Args:
        found: the figures.
        now: µs since 1970, for what is left of a clock.
    """
    keys = found.keys
    banner = []
    if not found.complete:
        lost = int(sum(row.values[0] for row in found.losses))
        banner.append(f"Incomplete: {lost:,} events were lost in this period. Every count below is a lower bound.")
    if found.switched_off:
        banner.append(f"guard is switched off on {', '.join(found.switched_off)}.")
    median = "-" if keys.median_days is None else f"{keys.median_days:.1f} d"
    return Page(
        title="Agents on our machines",
        period=f"{found.since} to {found.until}",
        banner=tuple(banner),
        tiles=(
            (f"{keys.new:,}", "new exposed keys", False),
            (f"{keys.open:,}", "open", False),
            (f"{keys.overdue:,}", "overdue", keys.overdue > 0),
            (median, "median to rotation", False),
            (f"{keys.backlog:,}", "in the backlog", False),
        ),
        sections=(_keys(found, now), _acts(found), _commands(found), _coverage(found), _changes(found), _trust(found)),
        made=found.made,
    )


def _keys(found: Figures, now: int) -> Section:
    keys = found.keys
    text = [
        f"{keys.closed} were rotated in the period, {keys.dismissed} dismissed as false positive or accepted.",
        "The backlog is what was there before the site's clock started; it is in no other number.",
    ]
    if keys.remnants:
        text.append(f"{keys.remnants} places of rotated keys still hold them: harmless, and worth a scrub.")
    if keys.unmatched:
        text.append(
            f"{keys.unmatched} open ones have no fingerprint of the site's key: a sighting elsewhere is another."
        )
    titles = {"kind": "kind", "source": "where it stood", "audience": "who could read it", "harness": "agent",
              "group": "group"}  # fmt: skip
    grouped = tuple(
        Table((titles[name], "new", "open", "overdue"), tuple(_counts(row, name) for row in rows[:12]))
        for name, rows in keys.by.items()
    )
    urgent = Table(
        ("incident", "kind", "state", "who", "who could read it", "clock"),
        tuple(
            (i.id, i.kind, str(i.state), ", ".join(i.users), WORDS[i.audience], _clock(i, now)) for i in found.urgent
        ),
        numbers=6,
        empty="No incident is open.",
    )
    days = Chart("bars", "new keys a day", tuple(day for day, _ in keys.days),
                 (("new", tuple(float(n) for _, n in keys.days)),))  # fmt: skip
    return Section("keys", "Exposed keys", tuple(text), (days,), (urgent, *grouped))


def _clock(incident: Incident, now: int) -> str:
    left = (incident.due - now) / DAY
    return f"{left:.0f} days left" if left >= 0 else f"{-left:.0f} days late"


def _counts(row: Row, grouping: str) -> tuple[str, ...]:
    name = WORDS.get(row.name, row.name) if grouping == "audience" else row.name
    return (name, *(f"{value:,.0f}" for value in row.values))


def _acts(found: Figures) -> Section:
    tables = [
        Table(
            ("act", "observed", "would be denied", "stopped"),
            tuple(_numbers(row) for row in found.acts),
            empty="Nothing was observed.",
        )
    ]
    if found.clauses:
        tables.append(Table(("clause of the acceptable use policy", "touched"), tuple(map(_numbers, found.clauses))))
    charts: tuple[Chart, ...] = ()
    if found.acts:
        names = ("observed", "would be denied", "stopped")
        charts = (
            Chart("stacked", "acts by outcome", tuple(row.name for row in found.acts),
                  tuple((name, tuple(row.values[n] for row in found.acts)) for n, name in enumerate(names))),
        )  # fmt: skip
    return Section(
        "acts",
        "What agents did",
        (
            "Stopped are acts that were denied, rewritten or ended by a signal. Severity info is not counted.",
        ),
        charts,
        tuple(tables),
    )


def _commands(found: Figures) -> Section:
    c = found.commands
    if c.share is None:
        return Section("commands", "The agents' share", ("No monitor counted commands in this period.",))
    text = [
        f"{c.agent:,} of {c.agent + c.other:,} commands on {c.nodes:,} nodes were started by agents: {c.share:.1%}.",
        f"Monitors were blind for {c.blind_seconds / 3600:,.1f} hours in sum; what ran then is in neither number.",
        "A tree counts on the day it ends; programs too short for a polling backend are not seen.",
    ]
    if c.polls_per_job is not None:
        text.append(f"Agents asked the scheduler {c.polls:,} times for {c.jobs:,} jobs: {c.polls_per_job:.1f} a job.")
    return Section("commands", "The agents' share", tuple(text))


def _coverage(found: Figures) -> Section:
    head = ("node and week", "trees seen", "guarded", "observed only", "unwrapped", "seconds unseen")
    worst = sorted(found.coverage, key=lambda row: (-row.values[3], -row.values[4], row.name))[:60]
    text = ["Unwrapped are agents that ran without `guard run`: the monitor saw them, nothing confined them."]
    if len(found.coverage) > len(worst):
        text.append(f"The {len(worst)} worst of {len(found.coverage):,} are shown; --json has all.")
    return Section(
        "coverage", "Coverage", tuple(text), (),
        (Table(head, tuple(map(_numbers, worst)), empty="No tree was seen."),
         Table(("control", "enforced", "partial", "absent"), tuple(map(_numbers, found.controls)),
               empty="No node has told its controls.")),
    )  # fmt: skip


def _changes(found: Figures) -> Section:
    rows = tuple((c.time.replace("T", " ").rstrip("Z"), c.host, c.rule, c.who, c.message) for c in found.changes[:200])
    return Section(
        "changes", "Changes", (), (),
        (Table(("time (UTC)", "node", "what", "who", "why"), rows, numbers=5, empty="Nothing was changed."),),
    )  # fmt: skip


def _trust(found: Figures) -> Section:
    return Section(
        "trust", "How far to trust this",
        (f"{found.nodes:,} nodes sent something in the period. A node that sends nothing is not in any number.",),
        (),
        (Table(("lost at", "events"), tuple(map(_numbers, found.losses)), empty="No loss is known."),
         Table(("who read others' records", "times"), tuple(map(_numbers, found.reads)), empty="Nobody.")),
    )  # fmt: skip


def _numbers(row: Row) -> tuple[str, ...]:
    return (row.name, *(f"{value:,.0f}" for value in row.values))


def case(incident: Incident, now: int) -> Page:
    """Lay one incident out as a timeline, for a retrospective.

    Args:
        incident: as it stands.
        now: µs since 1970.
    """
    from guard.incidents.kinds import after
    from guard.redact.rules.advice import advice_for

    moments: list[tuple[int, str, str, str]] = []
    for s in incident.secret.sightings:
        where = s.path + (f":{s.line}" if s.line else "")
        who = s.user or f"uid {s.uid}"
        what = f"{s.source} {where}" + (f" by {s.harness}" if s.harness else "")
        note = "an old place, read again" if s in incident.remnants else f"audience: {WORDS[s.audience]}"
        moments.append((s.happened_first, f"exposed on {s.host}", who, f"{what}; {note}"))
        if s.received_first - s.happened_first > DAY // 24:
            moments.append((s.received_first, "received at the site", "", f"{s.host} {where}"))
    for a in incident.secret.actions:
        extra = "; ".join(x for x in (a.reason, f"ticket {a.ticket}" if a.ticket else "") if x)
        moments.append((a.time, a.verb, a.who, extra))
    if incident.due:
        moments.append((incident.due, "clock ends", "", "overdue" if incident.overdue else ""))
    rows = tuple((_stamp(t), what, who, note) for t, what, who, note in sorted(moments))
    return Page(
        title=f"Incident {incident.id}",
        period=f"{incident.kind}, {incident.state}",
        banner=(),
        tiles=(
            (str(len(incident.secret.sightings)), "places", False),
            (str(len(incident.hosts)), "nodes", False),
            (WORDS[incident.audience], "could read it", False),
            (_clock(incident, now) if incident.due else str(incident.state), "clock", incident.overdue),
        ),
        sections=(
            Section("timeline", "Timeline", (), (), (Table(("time (UTC)", "what", "who", "note"), rows, numbers=4),)),
            Section("advice", "What to do about this kind", (advice_for(incident.kind), after(incident.kind))),
        ),
        made=_stamp(now).replace(" ", "T") + "Z",
    )


def _stamp(moment: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(moment / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")


def chart_text(chart: Chart) -> Sequence[str]:
    """Return a chart as sentences, for who cannot see it."""
    sums = (f"{name}: {sum(values):,.0f}" for name, values in chart.series)
    return (f"{chart.title}; in sum {', '.join(sums)}",)
