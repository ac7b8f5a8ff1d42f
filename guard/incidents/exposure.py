"""An exposure event as the ledger takes it: whose secret, where it stands, when, and who could read it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from guard.incidents.audience import AUDIENCES, UNKNOWN

SOURCES: Final = ("argv", "history", "transcript", "file", "trace")
"""Where secrets are seen (design: events of control `exposure`)."""

WORKFLOW: Final = "incident-"
"""Rules of the events about incidents themselves begin so."""

VERBS: Final = ("notify", "claim", "resolve", "false-positive", "accept", "reopen", "promote", "assign")
"""Decisions; an event's rule is `incident-VERB`. What each does: `workflow.VERBS`."""

CLAIM: Final = "incident-claimed"
"""An account holder's word, from a node without the site's service, that the secret of `detail.incident` is rotated."""

MOST: Final = 1 << 48
"""A number of an event beyond this is none: sums of them stay within SQLite's 64 bits."""

DAY: Final = 86_400_000_000
"""A day in µs."""

LATEST: Final = 1 << 53
"""A time of an event beyond this (the year 2255), or before 1970, is none: a clock that is wrong, or a lie."""

_KIND: Final = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}")
_TRANSCRIPTS: Final = ("/.claude/", "/.codex/", "/.cursor/", "/.copilot/", "/.gemini/", "/.aider", "/opencode/")
_HISTORIES: Final = ("history", "histfile", "_hist")
_TRACES: Final = (".strace", ".trace", "strace.", ".ltrace")


@dataclass(frozen=True, slots=True)
class Exposure:
    """One sighting of a secret, never a byte of it.

    Args:
        names: (key id, 64 hex digits) pairs, the current key's first; one secret has several during a rotation's
            overlap. Without a fingerprint there is one pair with an empty key id, made of the place.
        kind: the rule's kind, as `github-token`.
        length: of the secret in bytes, 0 where it is not told.
        strict: whether the strict threshold is met; only such a sighting opens an incident.
        baseline: found while a site recorded what was there before guard.
        honeytoken: the secret is a bait of the site's.
        host, uid, user, harness, session, job: whose and where; uid -1 where it is not known.
        source: one of `SOURCES`.
        path: the file, or the program whose arguments held it.
        spot: tells two places in one path apart; stays the same when the place is read again.
        line, offset: as seen last, 0 where not known.
        audience: one of `audience.AUDIENCES`.
        happened: when the secret was put there, µs since 1970; an upper bound where only the file's time is known.
        observed: when guard saw it, µs since 1970.
        count: sightings that this event stands for.
        claim: whether it has origin `user`.
    """

    names: tuple[tuple[str, str], ...]
    kind: str
    length: int
    strict: bool
    baseline: bool
    honeytoken: bool
    host: str
    uid: int
    user: str
    harness: str
    session: str
    job: str
    source: str
    path: str
    spot: str
    line: int
    offset: int
    audience: str
    happened: int
    observed: int
    count: int
    claim: bool


def read(event: Mapping[str, Any]) -> Exposure | None:
    """Return the exposure an event tells of; None for every other event.

    What a field lacks or has in another type is taken for unknown: an event of a later version is no error.

    Args:
        event: one decoded event of schema 1.
    """
    detail = event.get("detail")
    if event.get("control") != "exposure" or not isinstance(detail, Mapping) or not detail.get("kind"):
        return None
    if str(event.get("rule")).startswith(WORKFLOW):
        return None
    tree = _mapping(event.get("tree"))
    process = _mapping(event.get("process"))
    path = _text(detail.get("file")) or _text(detail.get("place")) or _text(process.get("exe"))
    source = _text(detail.get("source"))
    if source not in SOURCES:
        source = source_of(path) if detail.get("file") else "argv"
    session = _text(tree.get("session"))
    observed = microseconds(event.get("time"))
    happened = microseconds(detail.get("happened")) or observed
    happened = min(happened, observed) if observed else happened
    line, offset = _number(detail.get("line")), _number(detail.get("offset"))
    host, uid = _text(event.get("host")), _number(tree.get("uid", detail.get("uid")), -1)
    # A session that uses a secret for weeks is a place a day, so that a use after a rotation has a time of its own.
    spot = _text(detail.get("context")) or (f"{session} {happened // DAY}" if source == "argv" else f"{line}")
    kind = _text(detail.get("kind")).lower()
    kind = kind if _KIND.fullmatch(kind) else "secret"
    names = _names(detail)
    if not names:
        place = "\0".join((kind, host, str(uid), source, path, spot))
        names = (("", hashlib.sha256(place.encode("utf-8", "surrogatepass")).hexdigest()),)
    audience = _text(detail.get("audience"))
    return Exposure(
        names=names,
        kind=kind,
        length=_number(detail.get("length")),
        strict=detail.get("incident") is True and not detail.get("partial"),
        baseline=detail.get("baseline") is True,
        honeytoken=detail.get("honeytoken") is True,
        host=host,
        uid=uid,
        user=_text(tree.get("user")) or _text(detail.get("user")),
        harness=_text(tree.get("harness")),
        session=session,
        job=_text(tree.get("slurm_job_id")),
        source=source,
        path=path,
        spot=spot,
        line=line,
        offset=offset,
        audience=audience if audience in AUDIENCES else UNKNOWN,
        happened=happened,
        observed=observed,
        count=max(1, _number(detail.get("count"), 1)),
        claim=event.get("origin") == "user",
    )


def source_of(path: str) -> str:
    """Tell by its path what a file is: a shell's history, an agent's transcript, a trace, or any other file."""
    name = path.rpartition("/")[2].lower()
    if any(part in path for part in _TRANSCRIPTS):
        return "transcript"
    if any(part in name for part in _HISTORIES):
        return "history"
    if any(part in name for part in _TRACES):
        return "trace"
    return "file"


def microseconds(value: object) -> int:
    """Read a time, RFC 3339 or seconds since 1970, as whole microseconds; 0 for what is none, or none of ours."""
    if isinstance(value, bool):
        return 0
    if isinstance(value, int | float):
        return round(value * 1_000_000) if 0 < value * 1_000_000 < LATEST else 0
    if not isinstance(value, str):
        return 0
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    found = round(moment.timestamp() * 1_000_000)
    return found if 0 < found < LATEST else 0


def _names(detail: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return every fingerprint of the secret that the event carries, each with its key."""
    found: list[tuple[str, str]] = []
    former = detail.get("former")
    for row in (detail, *(former if isinstance(former, list) else ())):
        if not isinstance(row, Mapping):
            continue
        key, value = row.get("key_id"), row.get("fingerprint")
        if isinstance(key, str) and isinstance(value, str) and key and _is_digest(value):
            found.append((key, value))
    return tuple(dict.fromkeys(found))


def _is_digest(value: str) -> bool:
    return len(value) == 64 and not value.strip("0123456789abcdef")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _number(value: object, otherwise: int = 0) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and -MOST < value < MOST:
        return value
    return otherwise
