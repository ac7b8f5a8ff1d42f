"""Which incidents a command means: ids, filters, or ids on standard input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from guard.errors import UsageError
from guard.incidents.ledger import Ledger, Secret
from guard.incidents.settings import Settings
from guard.incidents.workflow import Incident, assess


@dataclass(frozen=True, slots=True)
class Filter:
    """What the listed incidents have in common; an empty field asks for nothing.

    Args:
        states: of the workflow.
        kinds, users, hosts, harnesses, sources, audiences: one of each must match a sighting.
        overdue: only those past their clock.
        backlog: True only the backlog, False without it, None both.
        closed: whether resolved ones are listed too.
        weak: whether those below the strict threshold are listed too.
        since: µs since 1970; received then or later.
    """

    states: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    harnesses: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    audiences: tuple[str, ...] = ()
    overdue: bool = False
    backlog: bool | None = None
    closed: bool = False
    weak: bool = False
    since: int = 0

    def meets(self, incident: Incident) -> bool:
        """Say whether an incident is meant."""
        seen = incident.secret.sightings
        return (
            (not self.states or incident.state in self.states)
            and (self.closed or bool(self.states) or not incident.closed)
            and (self.weak or not incident.weak)
            and (not self.overdue or incident.overdue)
            and (self.backlog is None or incident.backlog is self.backlog)
            and (not self.kinds or incident.kind in self.kinds)
            and (not self.audiences or incident.audience in self.audiences)
            and (not self.users or any(s.user in self.users for s in seen))
            and (not self.hosts or any(s.host in self.hosts for s in seen))
            and (not self.harnesses or any(s.harness in self.harnesses for s in seen))
            and (not self.sources or any(s.source in self.sources for s in seen))
            and incident.received >= self.since
        )


def every(ledger: Ledger, settings: Settings, wanted: Filter) -> list[Incident]:
    """Return the incidents that a filter means, the most urgent first."""
    now = ledger.now()
    # The one filter with an index.
    secrets = ledger.secrets("s.user = ?", wanted.users) if len(wanted.users) == 1 else ledger.secrets()
    found = (assess(secret, settings, now) for secret in secrets)
    return in_order(incident for incident in found if wanted.meets(incident))


def in_order(incidents: Iterable[Incident]) -> list[Incident]:
    """Sort: overdue first, then by priority, then by what ends first."""
    return sorted(incidents, key=lambda i: (i.closed, not i.overdue, i.backlog, -i.priority, i.due, i.id))


def by_ids(ledger: Ledger, settings: Settings, ids: Sequence[str]) -> list[Incident]:
    """Return incidents by their ids or unambiguous beginnings, as given, each once.

    Raises:
        UsageError: one names none, or several.
    """
    now = ledger.now()
    found: dict[str, Incident] = {}
    for given in ids:
        secret = one(ledger, given)
        found.setdefault(secret.id, assess(secret, settings, now))
    return list(found.values())


def digits(given: str) -> str:
    """Return the digits of an id, or of a marker."""
    text = given.strip()
    return text.removesuffix("]").rpartition(":")[2] if text.startswith("[REDACTED:") else text


def one(ledger: Ledger, given: str) -> Secret:
    """Return the secret that an id, or the beginning of one, or a marker names.

    Raises:
        UsageError: it names none, or several.
    """
    start = digits(given)
    matches = [secret for secret in ledger.find(start) if secret.sightings] if len(start) >= 4 else []
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(
            f"{given} is the beginning of {len(matches)} incidents",
            f"give more digits: {', '.join(m.id for m in matches[:5])}",
        )
    raise UsageError(
        f"there is no incident {given}", "`guard incidents list` shows them; an id is at least 4 hex digits of one"
    )
