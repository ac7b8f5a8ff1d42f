"""How incidents are shown: one line each for a list, one whole for a person, JSON with stable keys for a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import ParamSpec

from guard.incidents.audience import WORDS
from guard.incidents.kinds import after, prefix
from guard.incidents.places import Place
from guard.incidents.settings import DAY
from guard.incidents.workflow import Incident, holder
from guard.policy.source import printable
from guard.redact.rules.advice import advice_for

_SHOWN = 20  # sightings of one incident; the rest is counted


_P = ParamSpec("_P")


def _shown(make: Callable[_P, Iterable[str]]) -> Callable[_P, Iterator[str]]:
    """Make lines safe for a terminal: names and paths are whatever somebody called them."""

    @wraps(make)
    def lines(*args: _P.args, **kwargs: _P.kwargs) -> Iterator[str]:
        return map(printable, make(*args, **kwargs))

    return lines


def moment(value: int) -> str:
    """Return µs since 1970 as RFC 3339 to the minute; "-" for none."""
    return datetime.fromtimestamp(value / 1e6, UTC).strftime("%Y-%m-%dT%H:%MZ") if value else "-"


def clock(incident: Incident, now: int) -> str:
    """Return what is left of an incident's clock, in words."""
    if incident.closed or not incident.due:
        return "-"
    left = (incident.due - now) / DAY
    if left < 0:
        return f"{-left:.0f} d late" if left <= -1 else f"{-left * 24:.0f} h late"
    return f"{left:.0f} d" if left >= 1 else f"{left * 24:.0f} h"


@_shown
def lines(incidents: Sequence[Incident], now: int) -> Iterable[str]:
    """Yield a table under 80 columns, the most urgent first."""
    yield f"{'id':13}{'state':15}{'left':9}{'kind':21}{'who':11}seen"
    for one in incidents:
        state = "backlog" if one.backlog and not one.closed else f"{one.state}{'*' if one.reopened else ''}"
        who = _short(one.users[0] if one.users else "-", 9) + ("+" if len(one.users) > 1 else "")
        count = sum(s.count for s in one.secret.sightings)
        kind = ("! " if one.honeytoken else "") + one.kind
        yield f"{one.id:13}{state:15}{clock(one, now):9}{_short(kind, 20):21}{who:11}{count:>4}".rstrip()


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


@_shown
def whole(incident: Incident, now: int, *, advice: bool = True) -> Iterable[str]:
    """Yield everything about one incident."""
    one = incident
    length = max((s.length for s in one.secret.sightings), default=0)
    start = prefix(one.kind)
    yield f"{one.id}  {one.kind}{'  honeytoken' if one.honeytoken else ''}"
    yield f"state      {one.state} since {moment(one.since)}" + (", reopened by a new use" if one.reopened else "")
    if one.backlog:
        yield "           in the backlog: it was there before the site's clock"
    yield f"clock      received {moment(one.received)}, due {moment(one.due)} ({clock(one, now)} left)"
    yield f"key        {length or 'unknown'} bytes{', beginning ' + start if start else ''}"
    if not one.secret.names[0][0]:
        yield "           no fingerprint: told by its place alone, a sighting elsewhere is another incident"
    elif not one.matched:
        yield f"           fingerprint under a user's own key ({one.secret.names[0][0]}): unmatched"
    yield f"audience   {WORDS[one.audience]}"
    yield f"who        {', '.join(one.users)}" + (f"; looked after by {one.assignee}" if one.assignee else "")
    yield ""
    for sighting in one.secret.sightings[:_SHOWN]:
        where = sighting.path + (f":{sighting.line}" if sighting.line else "")
        agent = f" ({sighting.harness})" if sighting.harness else ""
        job = f" job {sighting.job}" if sighting.job else ""
        remnant = "  remnant" if sighting in one.remnants else ""
        at = f"{moment(sighting.happened_last)}  {sighting.host}"
        yield f"seen {sighting.count:>5}x {at} {holder(sighting)}{agent}{job}"
        yield f"           {sighting.source}: {where}{remnant}"
    if len(one.secret.sightings) > _SHOWN:
        yield f"           and {len(one.secret.sightings) - _SHOWN} places more; --json gives all"
    yield ""
    for action in one.secret.actions:
        extra = "".join(
            f"; {text}"
            for text in (
                action.reason,
                f"ticket {action.ticket}" if action.ticket else "",
                f"until {moment(action.until)}" if action.until else "",
            )
            if text
        )
        yield f"{moment(action.time)}  {action.verb} by {action.who}{extra}"
    if advice:
        yield f"revoke     {advice_for(one.kind)}"
        yield f"then       {after(one.kind)}"


def plain(incident: Incident) -> dict[str, object]:
    """Return one incident as JSON gives it."""
    one = incident
    return {
        "id": one.id,
        "state": str(one.state),
        "since": one.since / 1e6,
        "kind": one.kind,
        "priority": one.priority,
        "audience": one.audience,
        "backlog": one.backlog,
        "reopened": one.reopened,
        "honeytoken": one.honeytoken,
        "weak": one.weak,
        "matched": one.matched,
        "received": one.received / 1e6,
        "due": one.due / 1e6 or None,
        "overdue": one.overdue,
        "assignee": one.assignee,
        "users": list(one.users),
        "hosts": list(one.hosts),
        "fingerprints": [{"key_id": key, "fingerprint": value} for key, value in one.secret.names if key],
        "exposures": [
            {
                "host": s.host, "uid": s.uid, "user": s.user, "harness": s.harness, "session": s.session,
                "slurm_job_id": s.job, "source": s.source, "path": s.path, "line": s.line, "offset": s.offset,
                "audience": s.audience, "happened": s.happened_last / 1e6, "observed": s.observed_last / 1e6,
                "received": s.received_first / 1e6, "count": s.count, "claim": s.claim,
                "remnant": s in one.remnants,
            }
            for s in one.secret.sightings
        ],
        "actions": [
            {"id": a.id, "time": a.time / 1e6, "verb": a.verb, "who": a.who, "reason": a.reason, "ticket": a.ticket,
             "at": a.at / 1e6, "until": a.until / 1e6 or None}
            for a in one.secret.actions
        ],
    }  # fmt: skip


@_shown
def places(found: Sequence[Place]) -> Iterable[str]:
    """Yield the places of a secret, and the command that scrubs each."""
    words = {
        "holds": "still holds it", "clean": "clean", "gone": "the file is no more", "unreadable": "cannot be read",
        "elsewhere": "on another host: look there", "ended": "a command's arguments: gone with it",
        "unchecked": "not looked at: --check does",
    }  # fmt: skip
    for place in found:
        seen = place.sighting
        at = f" (line {', '.join(map(str, place.lines[:5]))})" if place.lines else ""
        yield f"{seen.host} {holder(seen)}  {seen.path}"
        yield f"    {words[place.state]}{at}"
        if place.scrub:
            yield f"    as {holder(seen)}: {place.scrub}"
