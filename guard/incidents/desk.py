"""Decisions about incidents: checked against the workflow, written down, and told as events."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from guard.errors import UsageError
from guard.events.model import Event, Severity, Tree, say, word
from guard.events.producer import Ids, Producer, user_name
from guard.incidents.exposure import WORKFLOW
from guard.incidents.ledger import Action, Ledger, Secret
from guard.incidents.settings import DAY, Settings
from guard.incidents.workflow import Incident, assess, problem
from guard.redact import redact_text

PRODUCER = "incidents"
Emit = Callable[[Sequence[Event]], None]
"""Takes events into the site's spool; durable when it returns, idempotent by id."""


class Desk:
    """Where decisions are taken.

    Args:
        ledger: open.
        settings: the site's.
        who: who decides.
        emit: where their events go.
        host: this host's name; the kernel's where not given.
    """

    def __init__(self, ledger: Ledger, settings: Settings, who: str, emit: Emit, host: str = "") -> None:
        self.ledger = ledger
        self.settings = settings
        self.who = who
        self._emit = emit
        self._producer = Producer(PRODUCER, "service", host=host)
        self._ids = Ids()

    def by(self, who: str) -> Desk:
        """Return the same desk with somebody else at it."""
        return Desk(self.ledger, self.settings, who, self._emit)

    def problems(self, incidents: Sequence[Incident], verb: str, reason: str, until: int) -> dict[str, str]:
        """Say of each incident for which a decision cannot be taken why not."""
        now = self.ledger.now()
        found = ((one.id, problem(one, verb, reason, until, now)) for one in incidents)
        return {id_: why for id_, why in found if why}

    def decide(
        self,
        incidents: Sequence[Incident],
        verb: str,
        reason: str = "",
        ticket: str = "",
        at: int = 0,
        until: int = 0,
    ) -> list[Incident]:
        """Take one decision about each of some incidents, and return them as they are then.

        Args:
            incidents: of this ledger.
            verb: of `workflow.VERBS`.
            reason: kept after redaction; of `assign` it is the name.
            ticket: a reference of the site's own.
            at: when it was done, µs since 1970; 0 for now.
            until: when it ends, µs since 1970; 0 for never.

        Raises:
            UsageError: one of them cannot be decided so; nothing was changed.
        """
        bad = self.problems(incidents, verb, reason, until)
        if bad:
            id_, why = next(iter(bad.items()))
            raise UsageError(f"{id_}: {why}" + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""))
        now = self.ledger.now()
        clean, reference = str(redact_text(reason)), str(redact_text(ticket))
        self.ledger.act(
            (one.secret, Action(self._ids.new(), now, verb, self.who, clean, reference, at or now, until))
            for one in incidents
        )
        self.tell()
        again = [self.ledger.named(one.secret.names) for one in incidents]
        return [assess(secret, self.settings, now) for secret in again if secret is not None]

    def tell(self) -> int:
        """Send the events of decisions that were not told yet, also those of a process that died before."""
        untold = self.ledger.untold()
        if not untold:
            return 0
        self._emit([self._decided(secret, action) for secret, action in untold])
        self.ledger.told(action.id for _, action in untold)
        return len(untold)

    def _decided(self, secret: Secret, action: Action) -> Event:
        incident = assess(secret, self.settings, self.ledger.now())
        event = self._producer.event(
            "exposure",
            f"{WORKFLOW}{action.verb}",
            Severity.INFO,
            say("incident {} is {}: {} by {}", word(incident.id), word(incident.state), word(action.verb),
                redact_text(action.who)),
            detail={
                "incident": word(incident.id),
                "state": word(incident.state),
                "kind_of": redact_text(incident.kind),
                "who": redact_text(action.who),
                "reason": redact_text(action.reason),
                "ticket": redact_text(action.ticket),
                "at": action.at / 1e6,
                "until": action.until / 1e6,
            },
            when=action.time * 1000,
        )  # fmt: skip
        return replace(event, id=action.id)

    def retire(self) -> int:
        """Delete what the site keeps no longer: incidents closed long enough, counts of old days. Returns how many.

        An event of a deleted incident that is folded again changes nothing: its id is known.
        """
        if not self.settings.keep_days:
            return 0
        now = self.ledger.now()
        before = now - int(self.settings.keep_days * DAY)
        old = [
            one.secret
            for secret in self.ledger.secrets()
            if (one := assess(secret, self.settings, now)).closed
            and one.since < before
            and max(s.received_last for s in secret.sightings) < before
        ]
        return self.ledger.forget(old, before)

    def alert_overdue(self) -> list[Incident]:
        """Alert of each incident whose clock has run out, once a clock; return those alerted now."""
        now = self.ledger.now()
        late = [
            one
            for secret in self.ledger.secrets()
            if (one := assess(secret, self.settings, now)).overdue and not one.backlog
        ]
        fresh = [one for one in late if not self.ledger.was_sent(one.secret, "overdue", "feed", one.received)]
        if fresh:
            self._emit([self._overdue(one, now) for one in fresh])
            self.ledger.mark_sent([(one.secret, "overdue", "feed", one.received) for one in fresh], now)
        return fresh

    def _overdue(self, incident: Incident, now: int) -> Event:
        days = (now - incident.received) // 86_400_000_000
        last = incident.secret.sightings[-1]
        return self._producer.event(
            "exposure",
            f"{WORKFLOW}overdue",
            Severity.CRITICAL if incident.honeytoken else Severity.HIGH,
            say("incident {}: a {} is exposed for {} days and not rotated", word(incident.id),
                redact_text(incident.kind), days),
            tree=Tree(uid=last.uid, user=last.user),
            detail={"incident": word(incident.id), "kind_of": redact_text(incident.kind), "days": days,
                    "state": word(incident.state)},
        )  # fmt: skip


def operator() -> str:
    """Return who runs this: the login that the kernel keeps for this session, else the account.

    `/proc/self/loginuid` (CONFIG_AUDITSYSCALL) survives sudo and su, and cannot be set again once it is set.
    """
    uid = os.getuid()
    with suppress(OSError, ValueError), open("/proc/self/loginuid", encoding="ascii") as text:
        kept = int(text.read())
        uid = kept if kept != 0xFFFF_FFFF else uid
    given = os.environ.get("SUDO_UID", "")
    if uid == 0 and given.isdigit():
        uid = int(given)
    return user_name(uid) or f"uid {uid}"
