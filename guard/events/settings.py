"""`events.toml` and `suppressions.toml`: root's files for the events of a node.

Nothing here is read from a user's file: what is left out of events, who is exempt, who may read others' events and
what is not sent are root's to decide. A file that does not load is one error with file, line, column and a caret.
"""

from __future__ import annotations

import datetime
import grp
import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final

from guard.errors import PolicyError
from guard.events.budget import Rules
from guard.events.privacy import ARGV, PATHS, Keep, Privacy, Rule
from guard.events.spool import Limits
from guard.events.wire import Severity
from guard.policy.positions import Where
from guard.policy.source import Document, check_file, read_document
from guard.policy.values import Reading

FILE: Final = "events.toml"
SUPPRESSIONS: Final = "suppressions.toml"
ADOPT: Final = ("/var/tmp/guard-{uid}",)  # noqa: S108 - opened as its owner, and only if it is his


@dataclass(frozen=True)
class Suppression:
    """Findings that a site does not want to be sent; they are stored and counted.

    Args:
        rule: a glob over `control/rule` or over the rule alone.
        user, group: whose; empty for anybody's.
        path, program: globs over the object and the program; empty for any.
        reason: why, for who comes after.
        until: seconds since 1970 from which on it acts no more.
        line: where it stands.
    """

    rule: str
    user: str
    group: str
    path: str
    program: str
    reason: str
    until: float
    line: int

    def matches(self, control: str, rule: str, user: str, groups: frozenset[str], path: str, program: str) -> bool:
        """Say whether a finding is one of these; whether the time is over is not asked here."""
        return (
            (fnmatchcase(f"{control}/{rule}", self.rule) or fnmatchcase(rule, self.rule))
            and self.user in ("", user)
            and (not self.group or self.group in groups)
            and (not self.path or fnmatchcase(path, self.path))
            and (not self.program or fnmatchcase(program, self.program))
        )

    @property
    def name(self) -> str:
        """How it is called where it is counted."""
        return f"line {self.line}: {self.rule}"


@dataclass(frozen=True)
class Ration:
    """Events that a uid other than root may hand in.

    Args:
        rate: a second, in the long run.
        burst: at once.
    """

    rate: int = 200
    burst: int = 5000


@dataclass(frozen=True)
class Settings:
    """All that root has said about events.

    Args:
        spool: the spool's directory; empty for `spool` in the state directory.
        limits: how much is kept.
        readers: Unix groups whose members may read everybody's events.
        ration: of each uid.
        adopt: directories of users' state; `{uid}` stands for the number.
        budget: of alerts.
        privacy: what of a person is left out.
        suppressions: what is not sent.
        heartbeat_s: seconds between two heartbeats.
    """

    spool: str = ""
    limits: Limits = field(default_factory=Limits)
    readers: tuple[str, ...] = ()
    ration: Ration = field(default_factory=Ration)
    adopt: tuple[str, ...] = ADOPT
    budget: Rules = field(default_factory=Rules)
    privacy: Privacy = field(default_factory=Privacy)
    suppressions: tuple[Suppression, ...] = ()
    heartbeat_s: int = 300
    stamps: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)


def load(config: str, *, reader: Callable[[str], Document | None] = read_document) -> Settings:
    """Read both files of a configuration directory; what is not there has its defaults.

    Args:
        config: the directory.
        reader: reads a file; for tests.

    Raises:
        PolicyError: the sentence begins with `file:line:column:`.
        StateError: a file or its directory can be written by others.
    """
    settings = Settings(stamps=stamps(config))
    for name in (FILE, SUPPRESSIONS):
        check_file(os.path.join(config, name))
    doc = reader(os.path.join(config, FILE))
    if doc is not None:
        settings = _read(doc, settings)
    doc = reader(os.path.join(config, SUPPRESSIONS))
    if doc is not None:
        settings = replace(settings, suppressions=_suppressions(doc))
    return settings


def stamps(config: str) -> dict[str, tuple[int, int, int]]:
    """What tells whether a file has changed: its time, size and inode."""
    found = {}
    for name in (FILE, SUPPRESSIONS):
        try:
            status = os.stat(os.path.join(config, name))
        except OSError:
            continue
        found[name] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return found


_TABLES: Final = {
    "spool": ("path", "max_mb", "max_age_days"),
    "access": ("readers",),
    "intake": ("rate", "burst", "adopt"),
    "alerts": ("window_s", "hourly", "summaries", "floods"),
    "privacy": ("argv", "paths", "cwd", "rule", "exempt"),
    "heartbeat": ("every_s",),
}


def _read(doc: Document, settings: Settings) -> Settings:
    reading = Reading(doc, frozenset())
    whole = reading.table(doc.data, (), ("schema", *_TABLES, "feed", "fleet"), "events.toml")
    _schema(reading, whole)
    tables = {
        name: reading.table(whole.get(name, {}), (name,), keys, f"[{name}]") for name, keys in _TABLES.items()
    }
    spool, intake = tables["spool"], tables["intake"]

    def number(table: str, key: str, default: int, least: int = 1) -> int:
        value = tables[table].get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            reading.fail((table, key), f"{key} is a whole number, {least} or more")
        return value

    path = reading.text(spool.get("path", ""), ("spool", "path"), "path")
    if path and not path.startswith("/"):
        reading.fail(("spool", "path"), "path is absolute")
    base = settings.limits
    limits = Limits(
        number("spool", "max_mb", base.max_bytes >> 20) << 20,
        number("spool", "max_age_days", base.max_age_s // 86400) * 86400,
    )
    budget = Rules(**{key: number("alerts", key, getattr(settings.budget, key)) for key in _TABLES["alerts"]})
    adopt = _texts(reading, intake.get("adopt", list(settings.adopt)), ("intake", "adopt"), "adopt")
    for at, each in enumerate(adopt):
        if not each.startswith("/") or "{uid}" not in each.rpartition("/")[2]:
            reading.fail(("intake", "adopt", at), "a place to adopt from is absolute, with {uid} in its last part")
    return replace(
        settings,
        spool=path,
        limits=limits,
        readers=_texts(reading, tables["access"].get("readers", []), ("access", "readers"), "readers"),
        ration=Ration(number("intake", "rate", settings.ration.rate), number("intake", "burst", settings.ration.burst)),
        adopt=adopt,
        budget=budget,
        privacy=_privacy(reading, tables["privacy"]),
        heartbeat_s=number("heartbeat", "every_s", settings.heartbeat_s),
    )


def _schema(reading: Reading, whole: Mapping[str, object]) -> None:
    if whole.get("schema") != 1:
        where: Where = ("schema",) if "schema" in whole else ()
        reading.fail(where, "schema = 1 is missing: this version reads no other")


def _texts(reading: Reading, value: object, where: Where, what: str) -> tuple[str, ...]:
    return tuple(
        reading.text(each, (*where, at), what, empty=False)
        for at, each in enumerate(reading.array(value, where, what))
    )


def _choice(reading: Reading, value: object, where: Where, known: tuple[str, ...]) -> str:
    if value not in known:
        reading.fail(where, f"one of {', '.join(known)}")
    return str(value)


def _keep(reading: Reading, table: Mapping[str, object], where: Where, base: Keep) -> Keep:
    return Keep(
        _choice(reading, table.get("argv", base.argv), (*where, "argv"), ARGV),
        _choice(reading, table.get("paths", base.paths), (*where, "paths"), PATHS),
        _choice(reading, table.get("cwd", base.cwd), (*where, "cwd"), ("none", *PATHS)),
    )


def _privacy(reading: Reading, table: Mapping[str, object]) -> Privacy:
    base = Privacy()
    if set(table) & {"argv", "paths", "cwd"}:
        # One word for all severities, where a site wants one.
        everywhere = _keep(reading, table, ("privacy",), base.alert)
        low = _keep(reading, table, ("privacy",), base.log)
        base = replace(base, alert=everywhere, log=low)
    rules = []
    for at, each in enumerate(reading.array(table.get("rule", []), ("privacy", "rule"), "rule")):
        where: Where = ("privacy", "rule", at)
        known = ("controls", "below", "from", "argv", "paths", "cwd", "reason")
        row = reading.table(each, where, known, "[[privacy.rule]]")
        least = Severity.of(_choice(reading, row.get("from", "info"), (*where, "from"), _LABELS))
        below = row.get("below")
        most = Severity.of(_choice(reading, below, (*where, "below"), _LABELS)) - 1 if below else Severity.CRITICAL
        controls = frozenset(_texts(reading, row.get("controls", []), (*where, "controls"), "controls"))
        keep = _keep(reading, row, where, base.alert)
        rules.append(Rule(controls, int(least), int(most), keep, frozenset(set(row) & {"argv", "paths", "cwd"})))
    users: set[int] = set()
    groups: set[str] = set()
    for at, each in enumerate(reading.array(table.get("exempt", []), ("privacy", "exempt"), "exempt")):
        where = ("privacy", "exempt", at)
        row = reading.table(each, where, ("user", "group", "reason"), "[[privacy.exempt]]")
        reading.text(row.get("reason", ""), (*where, "reason"), "reason: whom the site exempts has one", empty=False)
        if ("user" in row) == ("group" in row):
            reading.fail(where, "an exemption names a user or a group")
        if "user" in row:
            name = reading.text(row["user"], (*where, "user"), "user", empty=False)
            try:
                users.add(pwd.getpwnam(name).pw_uid)
            except KeyError:
                reading.fail((*where, "user"), f"no user {name!r} on this node")
        else:
            name = reading.text(row["group"], (*where, "group"), "group", empty=False)
            try:
                grp.getgrnam(name)
            except KeyError:
                reading.fail((*where, "group"), f"no group {name!r} on this node")
            groups.add(name)
    return replace(base, rules=tuple(rules), exempt_users=frozenset(users), exempt_groups=frozenset(groups))


_LABELS: Final = tuple(each.label for each in Severity)


def _suppressions(doc: Document) -> tuple[Suppression, ...]:
    reading = Reading(doc, frozenset())
    whole = reading.table(doc.data, (), ("schema", "suppression"), "suppressions.toml")
    _schema(reading, whole)
    found = []
    for at, each in enumerate(reading.array(whole.get("suppression", []), ("suppression",), "suppression")):
        where: Where = ("suppression", at)
        known = ("rule", "user", "group", "path", "program", "reason", "until")
        row = reading.table(each, where, known, "[[suppression]]")
        for name in ("rule", "reason", "until"):
            if name not in row:
                reading.fail(where, f"a suppression has a {name}")
        until = row["until"]
        if not isinstance(until, datetime.date):
            reading.fail((*where, "until"), "until is a date or a time, as 2027-01-31")
        texts = {
            name: reading.text(row.get(name, ""), (*where, name), name, empty=name not in ("rule", "reason"))
            for name in ("rule", "user", "group", "path", "program", "reason")
        }
        if not any(texts[name] for name in ("user", "group", "path", "program")) and texts["rule"].strip("*/") == "":
            reading.fail(where, "this would suppress everything; name a rule, a user, a path or a program")
        line, _ = doc.positions.place(where)
        found.append(Suppression(**texts, until=_seconds(until), line=line))
    return tuple(found)


def _seconds(when: datetime.date) -> float:
    """The moment at which a date is over, or a time is reached; one without a zone is the node's."""
    if isinstance(when, datetime.datetime):
        return when.timestamp()
    return datetime.datetime.combine(when + datetime.timedelta(days=1), datetime.time()).timestamp()


__all__ = ["FILE", "SUPPRESSIONS", "PolicyError", "Ration", "Settings", "Suppression", "load", "stamps"]
