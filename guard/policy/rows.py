"""assign.toml and exceptions.d: who gets which policy, and who may do more until when."""

from __future__ import annotations

import datetime
import fnmatch
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from guard.policy.keys import CONTROLS, KEYS, MODES
from guard.policy.load import check_schema, known_variables
from guard.policy.model import Item, Origin, Policy, Setting
from guard.policy.positions import Where
from guard.policy.source import Document, read_document
from guard.policy.values import Reading, read_setting
from guard.policy.variables import fill

DAY = 86400.0
_SUBJECT = ("user", "group", "host", "harness")


@dataclass(frozen=True)
class Subject:
    """Whom a row speaks of: everything that is given must match, an empty tuple is not given.

    Args:
        users, groups: exact names.
        hosts: globs, tried on the whole name and on its first label.
        harnesses: exact names.
    """

    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    harnesses: tuple[str, ...] = ()

    def matches(self, user: str, groups: Collection[str], host: str, harness: str) -> bool:
        """Whether the row speaks of this user, host and harness."""
        hosts = (host, host.split(".")[0])
        return (
            (not self.users or user in self.users)
            and (not self.groups or not set(self.groups).isdisjoint(groups))
            and (not self.hosts or any(fnmatch.fnmatchcase(name, glob) for name in hosts for glob in self.hosts))
            and (not self.harnesses or harness in self.harnesses)
        )

    def covers(self, other: Subject) -> bool:
        """Whether every session that `other` matches, this one matches too (without looking into globs)."""
        pairs = (
            (self.users, other.users),
            (self.groups, other.groups),
            (self.hosts, other.hosts),
            (self.harnesses, other.harnesses),
        )
        return all(not mine or (theirs and set(theirs) <= set(mine)) for mine, theirs in pairs)


@dataclass(frozen=True)
class Assignment:
    """One row of assign.toml.

    Args:
        subject: whom it speaks of.
        policy: NAME with its place, None: the site's default.
        overlays: NAMEs with their places.
        mode: `enforce`, `observe` or `off`.
        reason: why, "" when not given.
        origin: the row's place.
        doc: the document, to show a place in an error.
    """

    subject: Subject
    policy: Item | None
    overlays: tuple[Item, ...]
    mode: str
    reason: str
    origin: Origin
    doc: Document = field(compare=False, repr=False)


@dataclass(frozen=True)
class Exemption:
    """One row of exceptions.d.

    Args:
        subject: whom it widens; nobody given is everyone.
        control: the one it widens, "" for keys that belong to none.
        widen: key → what is added, or replaced.
        reason: why.
        ticket: of the site's tracker; the row's number where none is given.
        until: seconds since the epoch: from then on it is ignored.
        origin: the row's place.
    """

    subject: Subject
    control: str
    widen: Mapping[str, Setting]
    reason: str
    ticket: str
    until: float
    origin: Origin

    @property
    def label(self) -> str:
        """Name it as events and `policy show` do."""
        return f"{os.path.basename(self.origin.file)}#{self.ticket}"


def _subject(reading: Reading, row: Mapping[str, object], where: Where) -> Subject:
    found: dict[str, tuple[str, ...]] = {}
    for name in _SUBJECT:
        value = row.get(name, [])
        place = (*where, name)
        texts = [value] if isinstance(value, str) else reading.array(value, place, name)
        if name in row and not texts:
            reading.fail(place, f"{name} is empty, so the row would match nobody; leave it out or name somebody")
        found[name] = tuple(
            reading.text(each, place if isinstance(value, str) else (*place, index), name, empty=False)
            for index, each in enumerate(texts)
        )
    return Subject(found["user"], found["group"], found["host"], found["harness"])


def _rows(reading: Reading, table: str, known: tuple[str, ...]) -> list[tuple[Where, Mapping[str, object]]]:
    check_schema(reading)
    reading.table(reading.doc.data, (), ("schema", table), "this file")
    rows = reading.array(reading.doc.data.get(table, []), (table,), f"[[{table}]]")
    return [
        ((table, index), reading.table(row, (table, index), known, f"[[{table}]]")) for index, row in enumerate(rows)
    ]


def load_assignments(path: str) -> tuple[Assignment, ...] | None:
    """Read assign.toml; None when there is none.

    Raises:
        PolicyError: it is there and cannot be used.
    """
    doc = read_document(path)
    if doc is None:
        return None
    reading = Reading(doc, frozenset())
    out = []
    for where, row in _rows(reading, "assign", (*_SUBJECT, "policy", "overlays", "mode", "reason")):
        policy = None
        if "policy" in row:
            name = reading.name(row["policy"], (*where, "policy"), "policy")
            policy = Item(name, reading.origin((*where, "policy")))
        overlays = reading.array(row.get("overlays", []), (*where, "overlays"), "overlays")
        mode = row.get("mode", "enforce")
        if not isinstance(mode, str) or mode not in MODES:
            reading.fail((*where, "mode"), f"mode is one of {', '.join(MODES)}, not {mode!r}")
        out.append(
            Assignment(
                subject=_subject(reading, row, where),
                policy=policy,
                overlays=tuple(
                    Item(
                        reading.name(each, (*where, "overlays", index), "an overlay"),
                        reading.origin((*where, "overlays", index)),
                    )
                    for index, each in enumerate(overlays)
                ),
                mode=mode,
                reason=reading.text(row.get("reason", ""), (*where, "reason"), "reason"),
                origin=reading.origin(where),
                doc=doc,
            )
        )
    return tuple(out)


def load_exceptions(
    path: str, variables: Mapping[str, tuple[str, ...]], notes: list[str]
) -> tuple[Exemption, ...] | None:
    """Read one file of exceptions.d; None when there is none.

    Args:
        path: the file.
        variables: the site's, put into the values.
        notes: what was left out is added.

    Raises:
        PolicyError: it is there and cannot be used.
    """
    doc = read_document(path)
    if doc is None:
        return None
    reading = Reading(doc, known_variables("policy", variables))
    known = (*_SUBJECT, "everyone", "control", "widen", "reason", "ticket", "until")
    return tuple(_exemption(reading, row, where, variables, notes) for where, row in _rows(reading, "exception", known))


def _exemption(
    reading: Reading,
    row: Mapping[str, object],
    where: Where,
    variables: Mapping[str, tuple[str, ...]],
    notes: list[str],
) -> Exemption:
    for name in ("control", "widen", "reason", "until"):
        if name not in row:
            reading.fail(where, f"an exception needs {name!r}")
    everyone = row.get("everyone", False)
    if not isinstance(everyone, bool):
        reading.fail((*where, "everyone"), "everyone is true or left out")
    named = [name for name in ("user", "group") if name in row]
    if len(named) + everyone != 1:
        reading.fail(where, "an exception widens one subject: give one of user, group and everyone = true")
    control = reading.text(row["control"], (*where, "control"), "control")
    if control not in CONTROLS:
        near = [name for name in CONTROLS if name == control.replace("_", "-")]
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(CONTROLS)}"
        reading.fail((*where, "control"), f"unknown control {control!r}; {hint}")
    reason = reading.text(row["reason"], (*where, "reason"), "reason", empty=False)
    widen: dict[str, Setting] = {}
    for name, value, place in _widened(reading, row["widen"], (*where, "widen")):
        key = KEYS[name]
        if key.control not in (control, ""):
            reading.fail(place, f"{name} belongs to the control {key.control}, and this widens {control}", of_key=True)
        widen[name] = read_setting(reading, key, value, place, reason)
    if not widen:
        reading.fail((*where, "widen"), "widen is empty, so the exception widens nothing")
    ticket = row.get("ticket", str(int(where[-1]) + 1))
    origin = reading.origin(where, reason)
    stand_in = Policy("exception", "policy", reading.doc.file, settings=widen, doc=reading.doc)
    return Exemption(
        subject=_subject(reading, row, where),
        control=control,
        widen=fill(stand_in, variables, notes),
        reason=reason,
        ticket=reading.text(ticket, (*where, "ticket"), "ticket", empty=False),
        until=_until(reading, row["until"], (*where, "until")),
        origin=origin,
    )


def _widened(reading: Reading, value: object, where: Where) -> list[tuple[str, object, Where]]:
    """Return (key, value, way) of `{ "files.write" = […] }`, or of the same as nested tables."""
    if not isinstance(value, dict):
        reading.fail(where, 'widen is a table such as { "files.write" = ["/data"] }')
    out: list[tuple[str, object, Where]] = []
    for name, content in value.items():
        if name in KEYS:
            out.append((name, content, (*where, name)))
        elif isinstance(content, dict) and any(key.startswith(f"{name}.") for key in KEYS):
            for inner, each in content.items():
                if f"{name}.{inner}" not in KEYS:
                    reading.unknown((*where, name, inner), f"{name}.{inner}", KEYS, "key")
                out.append((f"{name}.{inner}", each, (*where, name, inner)))
        else:
            reading.unknown((*where, name), name, KEYS, "key")
    return out


def _until(reading: Reading, value: object, where: Where) -> float:
    if isinstance(value, datetime.datetime):
        return (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).timestamp()
    if isinstance(value, datetime.date):
        start = datetime.datetime(value.year, value.month, value.day, tzinfo=datetime.UTC)
        return start.timestamp() + DAY  # a date alone holds until its day has ended, in UTC
    reading.fail(where, "until is a date such as 2026-12-31, without quotes")
