"""From a secret's sightings and the decisions about it to its state, its clock, and what comes next. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from guard.incidents.audience import widest
from guard.incidents.ledger import Action, Secret, Sighting
from guard.incidents.settings import DAY, Settings
from guard.incidents.urgency import priority


class State(StrEnum):
    """Where an incident stands."""

    OPEN = "open"
    NOTIFIED = "notified"
    CLAIMED = "claimed"
    ROTATED = "rotated"
    FALSE_POSITIVE = "false-positive"
    ACCEPTED = "accepted"


CLOSED: Final = frozenset((State.ROTATED, State.FALSE_POSITIVE, State.ACCEPTED))


class Verb(NamedTuple):
    """A decision: the state it leads to, from which states it may be taken, and what it must carry."""

    to: State | None
    sources: frozenset[State]
    needs_reason: bool = False
    needs_until: bool = False


_ANY = frozenset(State)
_UNRESOLVED = _ANY - CLOSED
VERBS: Final[dict[str, Verb]] = {
    "notify": Verb(State.NOTIFIED, frozenset((State.OPEN, State.NOTIFIED))),
    "claim": Verb(State.CLAIMED, _UNRESOLVED),
    "resolve": Verb(State.ROTATED, _UNRESOLVED | {State.ROTATED}),
    "false-positive": Verb(State.FALSE_POSITIVE, _ANY - {State.FALSE_POSITIVE}, needs_reason=True),
    "accept": Verb(State.ACCEPTED, _ANY, needs_reason=True, needs_until=True),
    "reopen": Verb(State.OPEN, CLOSED | {State.CLAIMED}, needs_reason=True),
    "promote": Verb(None, _UNRESOLVED),
    "assign": Verb(None, _UNRESOLVED),
}
"""The workflow's table. `promote` takes an incident out of the backlog, `assign` names who looks after it; neither
changes the state. A claim closes nothing: it is the holder's word, and InfoSec resolves."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A secret with its state at one moment.

    Args:
        secret: sightings and decisions.
        state: of the workflow.
        since: µs since 1970 at which it came into this state.
        kind: the rule's kind.
        audience: the widest of all sightings.
        weak: nothing met the strict threshold: listed only on request, and no clock runs.
        backlog: it was there before the site's clock started.
        reopened: it was closed, and the secret used again after.
        received: µs; the receipt that started its clock.
        due: µs; the end of its clock. 0 when none runs.
        overdue: whether that is past.
        assignee: who looks after it, "" for nobody.
        remnants: sightings of old places after the rotation.
        priority: larger is more urgent.
    """

    secret: Secret
    state: State
    since: int
    kind: str
    audience: str
    weak: bool
    backlog: bool
    reopened: bool
    honeytoken: bool
    received: int
    due: int
    overdue: bool
    assignee: str
    remnants: tuple[Sighting, ...]
    priority: float

    @property
    def id(self) -> str:
        """12 hex digits: those that the secret's marker shows."""
        return self.secret.id

    @property
    def users(self) -> tuple[str, ...]:
        """The account holders, by name, or `uid N` where the name is not known."""
        return tuple(dict.fromkeys(holder(s) for s in self.secret.sightings))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts it was seen on."""
        return tuple(dict.fromkeys(s.host for s in self.secret.sightings))

    @property
    def matched(self) -> bool:
        """Whether it has a fingerprint under the site's key; without one its places on other nodes are others."""
        return self.secret.names[0][0].startswith("site-")

    @property
    def closed(self) -> bool:
        """Whether nothing is left to be done."""
        return self.state in CLOSED


def holder(sighting: Sighting) -> str:
    """Return whose account a sighting belongs to."""
    return sighting.user or (f"uid {sighting.uid}" if sighting.uid >= 0 else "unknown")


def assess(secret: Secret, settings: Settings, now: int) -> Incident:
    """Work out an incident.

    Args:
        secret: as the ledger has it, with at least one sighting.
        settings: the site's.
        now: µs since 1970.
    """
    strict = [s for s in secret.sightings if s.strict]
    counted = strict or list(secret.sightings)
    standing = _Standing(secret.sightings)
    assignee, promoted = "", 0
    for action in secret.actions:
        if action.verb == "assign":
            assignee = action.reason
        elif action.verb == "promote":
            promoted = promoted or action.time
        else:
            standing.decided(action)
    standing.reach(now)
    state, since, reopened = standing.state, standing.since, standing.reopened
    fresh = [s for s in counted if not (s.baseline or s.happened_first < settings.clock_starts)]
    backlog = not fresh and not promoted and not reopened
    received = min((s.received_first for s in (fresh or counted)), default=0)
    if reopened and state not in CLOSED:
        start = max(standing.opened, received)
    else:
        start = promoted if promoted and not fresh else received
    due = start + int((settings.backlog_days if backlog else settings.due_days) * DAY)
    honeytoken = any(s.honeytoken for s in secret.sightings)
    # What a user says of a kind counts where nobody else has told one: it decides on priority and advice.
    kind = min((s.kind for s in [s for s in counted if not s.claim] or counted), default="secret")
    audience = widest(*(s.audience for s in counted))
    weak = not strict and not honeytoken
    closed = state in CLOSED
    return Incident(
        secret=secret,
        state=state,
        since=since or received,
        kind=kind,
        audience=audience,
        weak=weak,
        backlog=backlog,
        reopened=reopened and not closed,
        honeytoken=honeytoken,
        received=start,
        due=0 if closed or weak else due,
        overdue=not closed and not weak and now >= due,
        assignee=assignee,
        remnants=standing.remnants(),
        priority=priority(kind, audience, (now - start) / DAY, honeytoken=honeytoken),
    )


class _Standing:
    """The state of a secret as time goes on: decisions move it, and so do the end of one and a use in between.

    Each decision meets the state that whoever took it saw: one about an incident that a use or an expiry had opened
    again is about an open one.
    """

    def __init__(self, sightings: tuple[Sighting, ...]) -> None:
        self.state, self.since, self.reopened = State.OPEN, 0, False
        self.opened = 0  # when it was opened again: its clock runs from there, whatever is decided meanwhile
        self._sightings = sightings
        self._until = self._rotated = 0

    def decided(self, action: Action) -> None:
        """Take a decision, where its state allows it."""
        self.reach(action.time)
        verb = VERBS[action.verb]
        if verb.to is None or self.state not in verb.sources:
            return
        self._until = action.until if verb.to in (State.ACCEPTED, State.FALSE_POSITIVE) else 0
        if action.verb in ("resolve", "claim"):
            self._rotated = action.at or action.time
        elif action.verb == "reopen":
            self._rotated, self.reopened, self.opened = 0, True, action.time
        self.state, self.since = verb.to, action.time

    def reach(self, moment: int) -> None:
        """Let time pass until a moment (µs since 1970)."""
        if self.state in (State.ACCEPTED, State.FALSE_POSITIVE):
            if 0 < self._until <= moment:
                self.state, self.since, self.reopened = State.OPEN, self._until, True
                self.opened = self._until
        elif self._rotated and self.state in (State.ROTATED, State.CLAIMED):
            seen = [used for s in self._sightings if (used := self._use(s)) and used <= moment]
            if seen:
                if self.state is State.ROTATED:
                    self.reopened, self.opened = True, min(seen)
                self.state, self.since = State.OPEN, min(seen)

    def remnants(self) -> tuple[Sighting, ...]:
        """Return the old places that were read again after the rotation."""
        if not self._rotated or self.state in (State.ACCEPTED, State.FALSE_POSITIVE):
            return ()
        return tuple(s for s in self._sightings if s.observed_last > self._rotated and not self._use(s))

    def _use(self, sighting: Sighting) -> int:
        """Return when the site learned that a secret was used after the rotation; 0 where it was not."""
        if not used_after(sighting, self._rotated):
            return 0
        return sighting.received_first if sighting.happened_first > self._rotated else sighting.received_last


def as_of(secret: Secret, moment: int) -> Secret | None:
    """Return what was known of a secret at an earlier moment (µs since 1970, left out); None where nothing was.

    A place that was seen before and after keeps its last times: the ledger has sums, not a row for each event.
    """
    sightings = tuple(s for s in secret.sightings if s.received_first < moment)
    actions = tuple(a for a in secret.actions if a.time < moment)
    return replace(secret, sightings=sightings, actions=actions) if sightings else None


def used_after(sighting: Sighting, rotated: int) -> bool:
    """Tell a new use of a secret from an old place that was read again.

    A command's arguments are a new use each time. A place in a file is one when the secret was put there after the
    rotation: a known place that is read again keeps the time at which it was put there.

    Args:
        sighting: of the secret.
        rotated: µs since 1970.
    """
    return (sighting.happened_last if sighting.source == "argv" else sighting.happened_first) > rotated


def problem(incident: Incident, verb: str, reason: str, until: int, now: int) -> str:
    """Say why a decision cannot be taken; "" when it can.

    Args:
        incident: as it stands.
        verb: of `VERBS`.
        reason: the reason given; of `assign` it is the name.
        until: µs since 1970, 0 for none.
        now: µs since 1970.
    """
    row = VERBS[verb]
    if incident.state not in row.sources:
        return f"it is {incident.state} already" if incident.state is row.to else f"it is {incident.state}"
    if row.needs_reason and not reason.strip():
        return f"{verb} needs --reason"
    if row.needs_until and not until:
        return f"{verb} needs --until"
    if until and until <= now:
        return "--until is in the past"
    if verb == "promote" and not incident.backlog:
        return "it is not in the backlog"
    if verb == "accept" and incident.honeytoken:
        return "it is a honeytoken: somebody used the bait"
    return ""
