"""An event's line: JSON on one line (RFC 8259), the fields it has, and their check."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import orjson

from guard.errors import EventError

LINE_MOST: Final = 256 << 10
"""Longest line that is taken from anybody, in bytes: 16 KiB of arguments, escaped, and what stands around them."""
DEEPEST: Final = 64
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
# What some reader takes for the end of a line, or a terminal for an order, never stands raw in one (orjson leaves
# everything from U+007F on as it is).
_BREAKS = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]")


class Severity(IntEnum):
    """How much an event asks for: medium and higher for a person's attention, less is for the log."""

    INFO = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4

    @property
    def label(self) -> str:
        """The name it has in an event."""
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> Severity:
        """Give the severity of a name.

        Raises:
            EventError: there is none of that name.
        """
        found = _SEVERITIES.get(label)
        if found is None:
            raise EventError(f"no severity {label!r}", f"known are {', '.join(_SEVERITIES)}")
        return found


_SEVERITIES = {each.name.lower(): each for each in Severity}
FIELDS: Final[Mapping[str, type]] = {
    "schema": int,
    "id": str,
    "time": str,
    "host": str,
    "boot": str,
    "producer": str,
    "seq": int,
    "origin": str,
    "control": str,
    "rule": str,
    "severity": str,
    "verdict": str,
    "policy": dict,
    "mitre": list,
    "tree": dict,
    "process": dict,
    "detail": dict,
    "message": str,
}
"""Top-level field → the type it has in JSON."""
_NEEDED: Final = ("schema", "id", "time", "control", "rule", "severity")
_NAMES: Final = tuple(FIELDS)
_TYPES: Final = list(FIELDS.values())


def dump(whole: Mapping[str, object]) -> bytes:
    """JSON (RFC 8259) on one line, whatever the texts hold."""
    try:
        line = orjson.dumps(whole)
    except orjson.JSONEncodeError:
        # A lone surrogate stands for a byte that was no UTF-8: shown as such.
        line = orjson.dumps(_without_surrogates(whole))
    return one_line(line)


def one_line(line: bytes) -> bytes:
    """Escape in JSON what some reader takes for the end of a line or an order to a terminal."""
    if line.isascii() and b"\x7f" not in line:
        return line
    return _BREAKS.sub(lambda found: b"\\u%04x" % ord(found.group().decode()), line)


def parse(line: bytes | str) -> dict[str, object]:
    """Read one line as a JSON object.

    Raises:
        EventError: it is none.
    """
    try:
        whole = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise EventError(f"this is no JSON: {error}", "one event a line (RFC 8259)") from None
    if not isinstance(whole, dict):
        raise EventError("this line is no JSON object", "one event a line")
    raw = line if isinstance(line, bytes) else line.encode()
    if raw.count(b"{") + raw.count(b"[") > DEEPEST:
        _check_depth(whole)
    return whole


def _check_depth(whole: dict[str, object]) -> None:
    """Refuse what is nested so deeply that it could be read and not be written again (orjson writes 254 levels)."""
    level: list[object] = [whole]
    for _ in range(DEEPEST):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise EventError(f"this line is nested more than {DEEPEST} levels deep", "no event is")


def table(whole: Mapping[str, object], name: str) -> dict[str, object]:
    """A field of an object that is an object itself; an empty one where it is none."""
    value = whole.get(name)
    return value if isinstance(value, dict) else {}


def check(whole: Mapping[str, object]) -> None:
    """Check that an object has what every event has, each of its type; more fields are no fault.

    Raises:
        EventError: the sentence names the field.
    """
    # What has all fields, each of its type, is what nearly every event is.
    if list(map(type, map(whole.get, _NAMES))) != _TYPES:
        _check_fields(whole)
    if not _ID.fullmatch(str(whole["id"])):
        raise EventError("id is no UUIDv7", "see RFC 9562; a producer makes one for each event")
    Severity.of(str(whole["severity"]))


def _check_fields(whole: Mapping[str, object]) -> None:
    for name in _NEEDED:
        if whole.get(name) is None:
            raise EventError(f"the event has no {name}", "see docs/events.md for the fields")
    for name, value in whole.items():
        # By identity: a bool is no number here.
        if value is not None and type(value) is not FIELDS.get(name, type(value)):
            raise EventError(f"{name} is not as an event has it", "see docs/events.md for the fields")


def _without_surrogates(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {str(_without_surrogates(str(name))): _without_surrogates(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_surrogates(each) for each in value]
    return value
