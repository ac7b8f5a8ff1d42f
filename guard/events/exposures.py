"""From what the redactor records of a secret to an event; never a byte of the value is in either."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Final

import orjson

from guard.errors import GuardError
from guard.events.forms.parts import milliseconds
from guard.events.model import Detail, Event, Severity, Tree, say
from guard.events.producer import Producer
from guard.events.wire import dump
from guard.redact import Redacted, bless, program_name, redact_text, withhold

_TEXTS: Final = ("fingerprint", "key_id", "kind", "confidence", "second_opinion", "advice", "carrier",
    "audience", "context")  # fmt: skip
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ][0-9:.]{5,15}(?:Z|[+-]\d\d:?\d\d)?")
_NUMBERS: Final = ("line", "offset", "length")
_FLAGS: Final = ("incident", "partial", "baseline", "honeytoken", "allowed")


def exposure(
    producer: Producer, row: Mapping[str, object], *, tree: Tree, severity: Severity | None = None, when: int = 0
) -> Event:
    """Make the event of one exposure.

    Args:
        producer: who saw it.
        row: a line of `guard redact --report` (docs/redact.md).
        tree: the session it was seen in, or the user alone.
        severity: where it is known better; else critical for a honeytoken, high for an incident, medium for what is
            likely, low for the rest.
        when: nanoseconds since 1970; now where not given.
    """
    kind = program_name(str(row.get("kind", "secret")))
    detail: dict[str, Detail] = {}
    for name in _TEXTS:
        value = row.get(name)
        if isinstance(value, str):
            detail[name] = redact_text(value) if name in ("advice", "second_opinion") else _word(value)
        elif value is None and name in row:
            detail[name] = None
    for name in (*_NUMBERS, *_FLAGS):
        value = row.get(name)
        if isinstance(value, (int, bool)):
            detail[name] = value
    place = row.get("file", row.get("source"))
    if isinstance(place, str):
        detail["file"] = redact_text(place)
        detail["object"] = redact_text(place)
    happened = row.get("happened")
    if isinstance(happened, (int, float)) and not isinstance(happened, bool):
        detail["happened"] = happened
    elif isinstance(happened, str) and _TIME.fullmatch(happened):
        detail["happened"] = bless(happened)
    former = row.get("former")
    if isinstance(former, list):
        detail["former"] = [
            {"key_id": _word(str(each.get("key_id", ""))), "fingerprint": _word(str(each.get("fingerprint", "")))}
            for each in former
            if isinstance(each, dict)
        ]
    return producer.event(
        "exposure",
        "secret",
        severity or _severity(row),
        say("a {} was seen", kind),
        tree=tree,
        detail=detail,
        mitre=("T1552.001",),
        when=when,
    )


def _severity(row: Mapping[str, object]) -> Severity:
    if row.get("honeytoken") is True:
        return Severity.CRITICAL  # nobody has any business with it
    if row.get("incident") is True:
        return Severity.HIGH
    return Severity.MEDIUM if row.get("confidence") in ("high", "medium") else Severity.LOW


def _word(text: str) -> Redacted:
    """A digest, a key's id or a kind: letters, digits and dashes, or nothing at all."""
    plain = text.replace("-", "").replace("_", "").replace(".", "").replace(":", "")
    return bless(text) if len(text) <= 160 and (plain.isalnum() and plain.isascii()) else withhold(text)


def as_events(
    lines: Sequence[bytes],
    uid: int,
    file: str,
    name: Callable[[int], str] = lambda _: "",
    judge: Callable[[dict[str, object]], object] = lambda _: None,
) -> list[bytes]:
    """Make events of the rows that `guard redact --record` left; the same row is the same event again.

    Args:
        lines: rows of JSON. What is none comes back as it is, to be refused and counted like any such line.
        uid: whose they are.
        file: what tells the file from others of that user's.
        name: gives a user's name.
        judge: adds to a row what the site's lists say of it.
    """
    producer = Producer(f"redact:{uid}", "user" if uid else "service")
    made = []
    for line in lines:
        try:
            row = orjson.loads(line)
            judge(row)
            # Root looks through everybody's files: whose the file is, is whose exposure it is.
            whose = row.get("uid", uid) if uid == 0 else uid
            whose = whose if isinstance(whose, int) and 0 <= whose < 1 << 32 else uid
            event = exposure(producer, row, tree=Tree(uid=whose, user=name(whose)))
        except (orjson.JSONDecodeError, AttributeError, GuardError):
            made.append(line)
            continue
        whole = event.plain()
        moment = row.get("time")
        whole["time"] = moment if isinstance(moment, str) else event.time
        whole["seq"] = 0
        digest = sha256(f"{uid}\n{file}\n".encode() + line).hexdigest()
        when = f"{milliseconds(str(moment)) & 0xFFFFFFFFFFFF:012x}"
        whole["id"] = f"{when[:8]}-{when[8:]}-7{digest[:3]}-8{digest[3:6]}-{digest[6:18]}"
        made.append(dump(whole))
    return made
