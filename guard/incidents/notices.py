"""Sending what is due: plans the mails, keeps the rate, marks what went out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from guard.errors import StateError
from guard.incidents import mail
from guard.incidents.accounts import Account
from guard.incidents.desk import Desk
from guard.incidents.workflow import Incident, State, assess

HOUR = 3_600_000_000


class Outcome(NamedTuple):
    """What was done: mails out, mails that wait for the hourly rate, and (incident, role) without an address."""

    sent: list[mail.Mail]
    waiting: list[mail.Mail]
    nowhere: list[tuple[Incident, str]]


def planned(
    desk: Desk, accounts: Mapping[str, Account], incidents: Iterable[Incident] | None = None, only: str = ""
) -> Outcome:
    """Work out what would be sent, and send nothing.

    Args:
        desk: the site's.
        accounts: the account map.
        incidents: to look at; all when not given.
        only: as of `mail.plan`.
    """
    now = desk.ledger.now()
    chosen = incidents
    if chosen is None:
        chosen = (assess(secret, desk.settings, now) for secret in desk.ledger.secrets())
    mails, nowhere = mail.plan(
        chosen,
        desk.settings,
        accounts,
        lambda one, what, to: desk.ledger.was_sent(one.secret, what, to, one.received),
        now,
        only,
    )
    room = max(0, desk.settings.per_hour - desk.ledger.sent_since(now - HOUR))
    return Outcome(mails[:room], mails[room:], nowhere)


def send_due(
    desk: Desk, accounts: Mapping[str, Account], incidents: Iterable[Incident] | None = None, only: str = ""
) -> Outcome:
    """Send what is due, within the hourly rate; an incident whose holder was written to becomes `notified`.

    Raises:
        StateError: mail is not switched on, or the MTA did not take it. What went out before is marked.
    """
    if not desk.settings.mail:
        raise StateError(
            "mail is switched off", "set `mail = true` in incidents.toml; --dry-run shows what would go out"
        )
    outcome = planned(desk, accounts, incidents, only)
    now = desk.ledger.now()
    for one in mail.deliver(outcome.sent, desk.settings, now):
        desk.ledger.mark_sent(
            [(item.incident.secret, item.what, one.to, item.incident.received) for item in one.items], now
        )
        if one.role == "holder":
            told = [item.incident for item in one.items if item.incident.state is State.OPEN]
            fresh = [s for i in told if (s := desk.ledger.named(i.secret.names)) is not None]
            again = [a for s in fresh if (a := assess(s, desk.settings, now)).state is State.OPEN]
            if again:
                desk.decide(again, "notify", "mail to the account holder")
    return outcome
