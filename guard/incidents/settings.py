"""The site's settings for incidents: `incidents.toml` in the configuration directory, root's alone."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime, time
from typing import Any, Final

from guard.errors import PolicyError
from guard.incidents.exposure import microseconds

FILE: Final = "incidents.toml"
DAY: Final = 86_400_000_000
"""A day in µs."""


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
        PolicyError: the file cannot be used; it says where and why.
    """
    path = os.path.join(config, FILE)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read ({error.strerror})", "make it readable for this account") from None
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o022:
            raise PolicyError(f"{path}: can be written by others", "chown it to root and chmod 644")
        try:
            table = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise PolicyError(f"{path}: no valid TOML: {error}", "correct it there") from None
    return _settings(table, path)


def _settings(table: Mapping[str, Any], path: str) -> Settings:
    known = {field.name for field in fields(Settings)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key == "schema":
            if value != 1:
                raise PolicyError(f"{path}: schema {value!r} is not known", "this guard reads schema = 1")
            continue
        if key not in known:
            raise PolicyError(f"{path}: `{key}` is no setting", f"known are {', '.join(sorted(known))}")
        values[key] = _value(key, value, path)
    if values.get("mail") and not values.get("sender"):
        raise PolicyError(f"{path}: mail = true needs `sender`", "give the address that mail comes from")
    return Settings(**values)


def _value(key: str, value: object, path: str) -> object:
    default = getattr(Settings(), key)
    if key == "aup":
        if isinstance(value, dict) and all(isinstance(text, str) and text for text in value.values()):
            return dict(value)
        raise PolicyError(f"{path}: aup is no table of clauses", 'write [aup] and a line as bind = "4.2 services"')
    if key == "clock_starts":
        if isinstance(value, datetime):
            return int(value.astimezone().timestamp() * 1_000_000)
        if isinstance(value, date):
            return int(datetime.combine(value, time()).astimezone().timestamp() * 1_000_000)
        if isinstance(value, str) and microseconds(value):
            return microseconds(value)
        raise PolicyError(f"{path}: clock_starts is no date", "write it as 2026-01-31")
    if key == "remind_days":
        if isinstance(value, list) and all(isinstance(d, int | float) and d > 0 for d in value):
            return tuple(sorted(float(d) for d in value))
        raise PolicyError(f"{path}: remind_days is no list of days", "write it as [3, 6]")
    if isinstance(default, bool) or isinstance(value, bool):
        if isinstance(default, bool) and isinstance(value, bool):
            return value
        raise PolicyError(f"{path}: {key} is {value!r}", "docs/incidents.md tells what it takes")
    if isinstance(default, float | int):
        least = 0 if key == "keep_days" else 0.001
        if isinstance(value, int | float) and least <= value <= 36_500:
            return type(default)(value)
        raise PolicyError(f"{path}: {key} is {value!r}", "give a number of days or mails above zero")
    if isinstance(value, str) and "\n" not in value and "\r" not in value:
        return value
    raise PolicyError(f"{path}: {key} is {value!r}", "give one line of text in quotes")
