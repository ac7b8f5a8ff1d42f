"""From a TOML value to the setting of one key, or to one error that shows the place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from guard.policy import addresses, paths
from guard.policy.keys import Key, Kind
from guard.policy.model import BindAllow, ConnectRule, Item, Origin, Setting, Value
from guard.policy.positions import Where
from guard.policy.source import Document

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names of policies, overlays and harnesses: never a path, never hidden."""

PROJECT_MOST = 256
"""Entries in one list of a file that agents write: each costs every start some work."""

_LARGEST = 2**63 - 1  # RLIM_INFINITY is above; a limit is a limit


@dataclass(frozen=True)
class Reading:
    """The document being read, and which variables it may use.

    Args:
        doc: the document.
        variables: names known to it; a variable outside of them is an error.
        most: entries that one list may have.
    """

    doc: Document
    variables: frozenset[str]
    most: int = 1 << 16

    def fail(self, where: Where, sentence: str, *, of_key: bool = False) -> NoReturn:
        """Raise the error that shows a place."""
        raise self.doc.error(where, sentence, of_key=of_key)

    def origin(self, where: Where, reason: str = "", *, of_key: bool = False) -> Origin:
        """Return a place as an origin."""
        line, column = self.doc.positions.place(where, of_key=of_key)
        return Origin(self.doc.file, line, reason, column)

    def unknown(self, where: Where, name: str, known: Iterable[str], what: str) -> NoReturn:
        """Raise the error for a name that is not known, with the nearest that is."""
        names = list(known)
        near = difflib.get_close_matches(name, names, 1, 0.6)
        hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(names)}"
        self.fail(where, f"unknown {what} {name!r}{hint}", of_key=True)

    def table(self, value: object, where: Where, known: Iterable[str], what: str) -> Mapping[str, object]:
        """Check that a value is a table without unknown keys."""
        if not isinstance(value, dict):
            self.fail(where, f"{what} is a table, not {describe(value)}")
        names = list(known)
        for name in value:
            if name not in names:
                self.unknown((*where, name), name, names, f"key in {what}:")
        return value

    def text(self, value: object, where: Where, what: str, *, empty: bool = True) -> str:
        """Check that a value is a string."""
        if not isinstance(value, str):
            self.fail(where, f"{what} is a string, not {describe(value)}")
        if not empty and not value.strip():
            self.fail(where, f"{what} is empty")
        return value

    def array(self, value: object, where: Where, what: str) -> list[object]:
        """Check that a value is an array."""
        if not isinstance(value, list):
            self.fail(where, f"{what} is a list, not {describe(value)}")
        if len(value) > self.most:
            self.fail((*where, self.most), f"{what} has {len(value)} entries, and {self.most} are the most here")
        return value

    def name(self, value: object, where: Where, what: str) -> str:
        """Check that a value is a NAME."""
        name = self.text(value, where, what)
        if not NAME.fullmatch(name):
            self.fail(where, f"{what} is a name (letters, digits, . _ -), not {name!r}")
        return name

    def checked(self, where: Where, check: Callable[[], str]) -> str:
        """Turn the sentence of a ValueError into an error that shows the place."""
        try:
            return check()
        except ValueError as error:
            self.fail(where, str(error))

    def path(self, value: object, where: Where, what: str, *, stars: bool = False) -> str:
        """Check a path pattern and return it in its one spelling."""
        text = self.text(value, where, what)
        return self.checked(where, lambda: paths.normal(text, self.variables, stars=stars))

    def address(self, value: object, where: Where, what: str, names: Iterable[str]) -> str:
        """Check an address: one of the names, a CIDR, or one variable."""
        text = self.text(value, where, what)
        if paths.VARIABLE.fullmatch(text):
            return self.checked(where, lambda: paths.check_variables(text, self.variables))
        return self.checked(where, lambda: addresses.address(text, names))

    def ports(self, value: object, where: Where) -> addresses.Ports:
        """Read one port, one range, or a list of them."""
        if isinstance(value, list):
            if not value:
                self.fail(where, "ports is empty; leave the rule out instead")
            return addresses.union_ports(self._port(each, (*where, index)) for index, each in enumerate(value))
        return (self._port(value, where),)

    def _port(self, value: object, where: Where) -> tuple[int, int]:
        if isinstance(value, str):
            try:
                return addresses.port_range(value)
            except ValueError as error:
                self.fail(where, f"{value!r} {error}")
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(where, f'a port is a number or a range such as "60001-63000", not {describe(value)}')
        try:
            addresses.check_port(value)
        except ValueError as error:
            self.fail(where, f"{value} is no port: {error}")
        return value, value


def describe(value: object) -> str:
    """Name a TOML type the way a person would."""
    for kind, name in (
        (bool, "a boolean"),
        (str, "a string"),
        (int, "a number"),
        (float, "a number with a fraction"),
        (list, "a list"),
        (dict, "a table"),
    ):
        if isinstance(value, kind):
            return name
    return "a date or time"


def read_setting(reading: Reading, key: Key, value: object, where: Where, reason: str) -> Setting:
    """Read what a file says of one key.

    Args:
        reading: the document.
        key: the row of the table.
        value: of the document.
        where: the way to it.
        reason: that of the table, else of the file.

    Raises:
        PolicyError: the value is not what the key takes.
    """
    origin = reading.origin(where, reason, of_key=True)
    if not key.kind.is_list:
        return Setting((Item(_scalar(reading, key, value, where), origin),), origin)
    if key.kind is Kind.CONNECT and isinstance(value, str):
        if value != "any":
            reading.fail(where, f'{key.name} is "any" or a list of ports and rules, not {value!r}')
        return Setting((), origin, everything=True)
    entries = reading.array(value, where, key.name)
    read = _ENTRY[key.kind]
    items: dict[Value, Item] = {}
    for index, entry in enumerate(entries):
        place = (*where, index)
        for item in read(reading, key, entry, place, reason):
            items.setdefault(item.value, item)
    return Setting(tuple(items.values()), origin)


def _scalar(reading: Reading, key: Key, value: object, where: Where) -> Value:
    if key.kind is Kind.FLAG:
        if not isinstance(value, bool):
            reading.fail(where, f"{key.name} is true or false, not {describe(value)}")
        return value
    if key.kind is Kind.NUMBER:
        if isinstance(value, bool) or not isinstance(value, int):
            reading.fail(where, f"{key.name} is a whole number, not {describe(value)}")
        if not 0 <= value <= _LARGEST:
            reading.fail(where, f"{key.name} is between 0 and 2^63-1")
        return value
    if not isinstance(value, str):
        reading.fail(where, f"{key.name} is one of {', '.join(key.words)}, not {describe(value)}")
    if value not in key.words:
        near = difflib.get_close_matches(value, key.words, 1, 0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        reading.fail(where, f"{key.name} is one of {', '.join(key.words)}, not {value!r}{hint}")
    return value


def _entry_reason(reading: Reading, entry: Mapping[str, object], where: Where, reason: str) -> str:
    if "reason" not in entry:
        return reason
    return reading.text(entry["reason"], (*where, "reason"), "reason", empty=False)


def _place(reading: Reading, key: Key, entry: object, where: Where, reason: str) -> list[Item]:
    place, at = entry, where
    if isinstance(entry, dict):
        table = reading.table(entry, where, ("path", "reason"), f"an entry of {key.name}")
        if "path" not in table:
            reading.fail(where, f"an entry of {key.name} needs a path")
        place, at = table["path"], (*where, "path")
        reason = _entry_reason(reading, table, where, reason)
    elif not isinstance(entry, str):
        reading.fail(where, f"an entry of {key.name} is a path or {{path, reason}}, not {describe(entry)}")
    devices = key.kind is Kind.DEVICES
    path = reading.path(place, at, "a path", stars=devices)
    if devices and not path.startswith("/dev/"):
        reading.fail(at, f"{path!r} is not below /dev")
    return [Item(path, reading.origin(where, reason))]


def _glob(reading: Reading, key: Key, entry: object, where: Where, reason: str) -> list[Item]:
    text = reading.text(entry, where, f"an entry of {key.name}")
    try:
        return [Item(paths.check_glob(text), reading.origin(where, reason))]
    except ValueError as error:
        reading.fail(where, f"{text!r} {error}")


def _connect(reading: Reading, key: Key, entry: object, where: Where, reason: str) -> list[Item]:
    if isinstance(entry, int) and not isinstance(entry, bool):
        return [Item(ConnectRule(reading.ports(entry, where)), reading.origin(where, reason))]
    if not isinstance(entry, dict):
        reading.fail(where, f"an entry of {key.name} is a port or {{ports, to, except}}, not {describe(entry)}")
    table = reading.table(entry, where, ("ports", "to", "except", "reason"), f"an entry of {key.name}")
    if "ports" not in table:
        reading.fail(where, f"an entry of {key.name} needs ports")
    rule = ConnectRule(
        reading.ports(table["ports"], (*where, "ports")),
        reading.address(table.get("to", "any"), (*where, "to"), "to", ("any", "loopback")),
        tuple(
            sorted(
                {
                    reading.address(each, (*where, "except", index), "except", addresses.EXCEPTIONS)
                    for index, each in enumerate(reading.array(table.get("except", []), (*where, "except"), "except"))
                }
            )
        ),
    )
    return [Item(rule, reading.origin(where, _entry_reason(reading, table, where, reason)))]


def _bind(reading: Reading, key: Key, entry: object, where: Where, reason: str) -> list[Item]:
    what = f"an entry of {key.name}"
    table = reading.table(entry, where, ("addr", "ports", "exec", "reason"), what)
    for name in ("addr", "ports", "reason"):
        if name not in table:
            reading.fail(where, f"{what} needs {'a reason' if name == 'reason' else name}")
    why = _entry_reason(reading, table, where, reason)
    program = table.get("exec", "")
    rule = BindAllow(
        reading.address(table["addr"], (*where, "addr"), "addr", ("any", "loopback")),
        reading.ports(table["ports"], (*where, "ports")),
        reading.path(program, (*where, "exec"), "exec") if program != "" else "",
        why,
    )
    return [Item(rule, reading.origin(where, why))]


_ENTRY: dict[Kind, Callable[[Reading, Key, object, Where, str], list[Item]]] = {
    Kind.PATHS: _place,
    Kind.DEVICES: _place,
    Kind.SOCKETS: _place,
    Kind.GLOBS: _glob,
    Kind.CONNECT: _connect,
    Kind.BIND_ALLOW: _bind,
}
