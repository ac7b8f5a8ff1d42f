"""The site's settings for incidents: `incidents.toml` in the configuration directory, root's alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime, time
from typing import Any, Final

from guard.incidents.exposure import DAY as DAY
from guard.incidents.exposure import microseconds
from guard.policy.load import check_schema
from guard.policy.source import Document, check_file, read_document
from guard.policy.values import Reading

FILE: Final = "incidents.toml"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a site decides about its incidents.

    Args:
        due_days: from the receipt of a secret's first exposure to the end of its clock.
        remind_days: days after the receipt at which the account holder is reminded.
        backlog_days: the same clock for what was there before guard.
        clock_starts: µs since 1970; what happened before is backlog. 0: nothing is.
        mail: whether mail is sent at all.
        sender, infosec: mail addresses.
        domain: appended to a login name to make an address, where the account map has none.
        accounts: path of the account map (CSV: user, mail, PI, PI's mail); "" for none.
        smtp: host:port of the site's own MTA.
        per_hour: mails an hour at most.
        contact: one line for the end of a mail: whom to ask. No link of guard's own is ever put in.
        aup: rule or control → the clause of the site's acceptable use policy that it touches.
        infosec_group: Unix group whose members see everybody's incidents on the page.
        proxy_user: account of the web proxy, whose `user_header` names the visitor.
        user_header: set by the proxy, after it has authenticated the visitor.
        keep_days: closed incidents and counts older than this are deleted; 0 keeps them.
    """

    due_days: float = 7.0
    remind_days: tuple[float, ...] = (3.0, 6.0)
    backlog_days: float = 90.0
    clock_starts: int = 0
    mail: bool = False
    sender: str = ""
    infosec: str = ""
    domain: str = ""
    accounts: str = ""
    smtp: str = "localhost:25"
    per_hour: int = 60
    contact: str = ""
    infosec_group: str = ""
    proxy_user: str = ""
    user_header: str = "X-Remote-User"
    keep_days: float = 0.0
    aup: Mapping[str, str] = field(default_factory=dict)


def load(config: str) -> Settings:
    """Read the settings; the defaults where there is no file.

    Args:
        config: the configuration directory.

    Raises:
        PolicyError: the file cannot be used; it shows the place.
        StateError: it can be written by others.
    """
    check_file(os.path.join(config, FILE))
    doc = read_document(os.path.join(config, FILE))
    return _settings(doc) if doc is not None else Settings()


def _settings(doc: Document) -> Settings:
    reading = Reading(doc, frozenset())
    defaults = Settings()
    known = tuple(each.name for each in fields(Settings))
    table = reading.table(doc.data, (), ("schema", *known), FILE)
    check_schema(reading)
    values: dict[str, Any] = {
        key: _value(reading, key, value, getattr(defaults, key)) for key, value in table.items() if key != "schema"
    }
    settings = Settings(**values)
    if settings.mail and not settings.sender:
        reading.fail(("mail",), "mail = true needs `sender`: the address that mail comes from", of_key=True)
    return settings


def _value(reading: Reading, key: str, value: object, default: object) -> object:
    where = (key,)
    if key == "aup":
        clauses = value if isinstance(value, dict) else reading.fail(where, 'aup is a table, as bind = "4.2 services"')
        return {name: reading.text(text, (key, name), name, empty=False) for name, text in clauses.items()}
    if key == "clock_starts":
        return _moment(reading, value)
    if key == "remind_days":
        days = reading.array(value, where, key)
        return tuple(sorted(_number(reading, day, (key, at), key) for at, day in enumerate(days)))
    if isinstance(default, bool):
        if not isinstance(value, bool):
            reading.fail(where, f"{key} is true or false")
        return value
    if isinstance(default, float):
        return _number(reading, value, where, key, zero=key == "keep_days")
    if isinstance(default, int):
        return max(1, int(_number(reading, value, where, key)))
    text = reading.text(value, where, key)
    if "\n" in text or "\r" in text:
        reading.fail(where, f"{key} is one line")
    return text


def _number(reading: Reading, value: object, where: tuple[str | int, ...], key: str, *, zero: bool = False) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (0 if zero else 0.001) <= value <= 36_500:  # type: ignore[operator]
        reading.fail(where, f"{key} is a number above zero, and not of centuries")
    return float(value)  # type: ignore[arg-type]


def _moment(reading: Reading, value: object) -> int:
    if isinstance(value, datetime):
        return int(value.astimezone().timestamp() * 1_000_000)
    if isinstance(value, date):
        return int(datetime.combine(value, time()).astimezone().timestamp() * 1_000_000)
    moment = microseconds(value)
    if not moment:
        reading.fail(("clock_starts",), "clock_starts is a date, as 2026-01-31")
    return moment
