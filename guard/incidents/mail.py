"""Mail to account holders, their PI and InfoSec: what is due, as one digest a recipient, through the site's MTA.

A mail names a key by kind, length and public prefix. It holds no part of the key beyond that, and no link.
"""

from __future__ import annotations

import smtplib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Final

from guard.errors import StateError
from guard.incidents.accounts import Account, address_of
from guard.incidents.audience import WORDS
from guard.incidents.kinds import after, prefix
from guard.incidents.settings import DAY, Settings
from guard.incidents.workflow import Incident, holder
from guard.policy.source import printable
from guard.redact.rules.advice import advice_for

FIRST: Final = "notice"
LAST: Final = "overdue"
PLACES: Final = 10
"""Places of one key a mail lists; the rest is counted."""


Sent = Callable[[Incident, str, str], bool]
"""Says whether (incident, what, recipient) went out already: the ledger's memory behind one call."""


@dataclass(frozen=True, slots=True)
class Item:
    """One incident in one mail: `what` is `notice`, `reminder-D` or `overdue`."""

    incident: Incident
    what: str


@dataclass(frozen=True, slots=True)
class Mail:
    """A digest for one recipient.

    Args:
        to: the address.
        role: `holder`, `pi` or `infosec`.
        items: the most urgent first.
        users: whose places it tells; empty for everybody's. A key that two hold is told to each with their own.
    """

    to: str
    role: str
    items: tuple[Item, ...]
    users: frozenset[str] = frozenset()


def steps(incident: Incident, settings: Settings, now: int) -> list[tuple[str, str]]:
    """Return what is due about an incident by now as (what, role), earlier ones too: each is sent once a clock."""
    if incident.closed or incident.weak or incident.backlog:
        return []
    age = (now - incident.received) / DAY
    due = [(FIRST, "holder")]
    passed = [day for day in settings.remind_days if age >= day]
    if passed:
        due.append((f"reminder-{passed[-1]:g}", "holder"))
    if incident.overdue:
        due += [(LAST, "pi"), (LAST, "infosec")]
    return due


def plan(
    incidents: Iterable[Incident],
    settings: Settings,
    accounts: Mapping[str, Account],
    was_sent: Sent,
    now: int,
    only: str = "",
) -> tuple[list[Mail], list[tuple[Incident, str]]]:
    """Work out who is to be written to.

    Args:
        incidents: to look at.
        settings: the site's.
        accounts: the account map.
        was_sent: says whether (incident, what, recipient) went out already.
        now: µs since 1970.
        only: one of `steps`' words, sent whatever the age; "" for what the clock asks.

    Returns:
        The mails, and the (incident, role) pairs of which no address is known.
    """
    boxes: dict[tuple[str, str], list[Item]] = {}
    people: dict[tuple[str, str], set[str]] = {}
    nowhere: list[tuple[Incident, str]] = []
    for incident in incidents:
        due = [(only, "holder")] if only and not incident.closed else steps(incident, settings, now)
        # A reminder stands for the notice where both are due at once: nobody gets two of one key.
        if len(due) > 1 and due[1][1] == "holder":
            due = due[1:]
        for what, role in due:
            addresses = _addresses(incident, role, settings, accounts)
            if not addresses:
                nowhere.append((incident, role))
            for address, users in addresses.items():
                if not was_sent(incident, what, address):
                    boxes.setdefault((address, role), []).append(Item(incident, what))
                    people.setdefault((address, role), set()).update(users)
    mails = [
        Mail(address, role, tuple(sorted(items, key=lambda i: -i.incident.priority)), frozenset(people[address, role]))
        for (address, role), items in boxes.items()
    ]
    return sorted(mails, key=lambda m: -m.items[0].incident.priority), nowhere


def _addresses(
    incident: Incident, role: str, settings: Settings, accounts: Mapping[str, Account]
) -> dict[str, set[str]]:
    """Return each address with the account holders of whose places it is told; InfoSec's with none: of all."""
    if role == "infosec":
        return {settings.infosec: set()} if settings.infosec else {}
    found: dict[str, set[str]] = {}
    for user in dict.fromkeys(s.user for s in incident.secret.sightings if s.strict or incident.weak):
        if role == "pi":
            address = accounts[user].pi_mail if user in accounts else ""
        else:
            address = address_of(user, accounts, settings.domain)
        if address:
            found.setdefault(address, set()).add(user)
    return found


def subject(mail: Mail) -> str:
    """Return the subject line."""
    count = len(mail.items)
    keys = "An exposed key" if count == 1 else f"{count} exposed keys"
    if mail.role == "holder":
        again = all(item.what.startswith("reminder") for item in mail.items)
        return f"{'Reminder: ' if again else ''}{keys} of yours: please rotate"
    return f"{keys} not rotated in time"


def text(mail: Mail, settings: Settings, now: int) -> str:
    """Write the body of a mail, plain text under 78 columns."""
    yours = mail.role == "holder"
    out = [
        "guard saw the following in places where a key does not belong."
        if yours
        else "These keys were seen exposed and are past the site's time for rotation.",
        "The keys themselves are not stored and not in this mail.",
        "",
    ]
    for item in mail.items:
        out += _one(item.incident, now, mail)
    if yours:
        each = mail.items[0].incident.id if len(mail.items) == 1 else "ID   (the 12 digits above, of each)"
        out += [
            "To find out which key it is, on any node (it asks for the key, and keeps nothing):",
            "    guard incidents match",
            "When you have revoked it and made a new one:",
            f"    guard incidents rotated {each}",
            "To see where it still stands, and how to scrub it:",
            f"    guard incidents places {each} --check",
            "",
        ]
    if settings.contact:
        out += [settings.contact, ""]
    return "\n".join(map(printable, out))  # a line break in a path would write lines of its own


def _one(incident: Incident, now: int, mail: Mail) -> list[str]:
    seen = [s for s in incident.secret.sightings if not mail.users or s.user in mail.users]
    length = max((s.length for s in seen), default=0)
    start = prefix(incident.kind)
    shape = ", ".join(
        part for part in (f"{length} characters" if length else "", f"beginning {start}" if start else "") if part
    )
    left = (incident.due - now) / DAY
    clock = f"due {_day(incident.due)}" if left >= 0 else f"{-left:.0f} days overdue"
    out = [
        f"{incident.id}  {incident.kind}" + (f" ({shape})" if shape else ""),
        f"  clock     {clock}",
        f"  audience  {WORDS[incident.audience]}",
    ]
    if mail.role != "holder":
        out.append(f"  account   {', '.join(dict.fromkeys(map(holder, seen)))}")
    for sighting in seen[:PLACES]:
        where = sighting.path + (f":{sighting.line}" if sighting.line else "")
        what = "arguments of" if sighting.source == "argv" else sighting.source
        out.append(f"  seen      {_day(sighting.happened_last)} {sighting.host}: {what} {where}")
    if len(seen) > PLACES:
        out.append(f"            and {len(seen) - PLACES} places more")
    out += [f"  revoke    {advice_for(incident.kind)}", f"  then      {after(incident.kind)}", ""]
    return out


def _day(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1e6, UTC).strftime("%Y-%m-%d")


def message(mail: Mail, settings: Settings, now: int) -> EmailMessage:
    """Make the message (RFC 5322)."""
    out = EmailMessage()
    out["From"] = settings.sender
    out["To"] = mail.to
    out["Subject"] = subject(mail)
    out["Date"] = formatdate(now / 1e6, usegmt=True)
    out["Message-ID"] = make_msgid(domain=settings.sender.rpartition("@")[2] or None)
    out["Auto-Submitted"] = "auto-generated"  # RFC 3834: no vacation replies
    out.set_content(text(mail, settings, now))
    return out


def deliver(mails: Sequence[Mail], settings: Settings, now: int, timeout: float = 20) -> Iterator[Mail]:
    """Hand mails to the site's MTA, one connection for all, and yield each that it took.

    Raises:
        StateError: the MTA cannot be reached, or refused one; those yielded before are out.
    """
    host, _, port = settings.smtp.rpartition(":")
    try:
        with smtplib.SMTP(host or "localhost", int(port), timeout=timeout) as server:
            for mail in mails:
                server.send_message(message(mail, settings, now))
                yield mail
    except (OSError, smtplib.SMTPException, ValueError) as error:
        raise StateError(
            f"the mail server {settings.smtp} did not take the mail ({error})", "what is left goes out at the next run"
        ) from None
