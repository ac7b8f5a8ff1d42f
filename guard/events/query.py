"""What is asked of the stored events: which of them, from when, and whether to go on."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

import orjson

from guard.errors import UsageError
from guard.events.reader import Reader, Row
from guard.events.wire import Severity, dump, table

_SPAN: Final = re.compile(r"(\d{1,9})\s*(s|m|h|d|w)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
PART: Final = 500


@dataclass(frozen=True)
class Query:
    """Which events are wanted.

    Args:
        since, until: seconds since 1970, of acceptance; 0 for no bound.
        minimum: the least severity.
        control, rule, session, harness, verdict: names; empty for any.
        user: a name or a number; empty for anybody.
        sent: whether only what is sent to feeds is wanted, without what was folded or suppressed.
        limit: the newest so many; 0 for all.
        follow: whether to wait for more.
    """

    since: float = 0.0
    until: float = 0.0
    minimum: str = "info"
    control: str = ""
    rule: str = ""
    session: str = ""
    harness: str = ""
    verdict: str = ""
    user: str = ""
    sent: bool = False
    limit: int = 0
    follow: bool = False

    def plain(self) -> dict[str, object]:
        """The JSON object."""
        return asdict(self)

    @classmethod
    def of(cls, whole: object) -> Query:
        """Read what `plain` gave; what is not known or of another type is left out."""
        base = cls()
        if not isinstance(whole, dict):
            return base
        given: dict[str, Any] = {
            name: value for name, value in whole.items()
            if isinstance(name, str) and name in asdict(base) and isinstance(value, _types(getattr(base, name)))
        }  # fmt: skip
        return replace(base, **given)

    def matches(self, event: dict[str, object]) -> bool:
        """Whether an event is wanted; times and severity are looked at elsewhere."""
        tree = table(event, "tree")
        return (
            self.control in ("", event.get("control"))
            and self.rule in ("", event.get("rule"))
            and self.verdict in ("", event.get("verdict"))
            and self.session in ("", tree.get("session"))
            and self.harness in ("", tree.get("harness"))
            and self.user in ("", tree.get("user"), str(tree.get("uid")))
        )

    def matches_line(self, line: bytes) -> bool:
        """Whether a stored line is wanted."""
        if not any((self.control, self.rule, self.verdict, self.session, self.harness, self.user)):
            return True
        whole = orjson.loads(line)
        return isinstance(whole, dict) and self.matches(whole)


def _types(value: object) -> tuple[type, ...]:
    return (int, float) if isinstance(value, float) else (type(value),)


def find(reader: Reader, query: Query, uid: int | None) -> Iterator[Row | None]:
    """The rows that are wanted, in order; None now and then while there is nothing new to follow.

    Args:
        reader: of the spool.
        query: what is wanted.
        uid: only events about this user.
    """
    after = reader.position_at(query.since) if query.since else reader.first() - 1
    least = Severity.of(query.minimum)
    if query.limit > 0:
        after = _before_newest(reader, query, uid, after, least)
    while True:
        rows = reader.read(after, PART, minimum=least, quiet=not query.sent, uid=uid)
        for row in rows:
            after = row.position
            if query.until and row.accepted > query.until:
                return
            if query.matches_line(row.line):
                yield row
        if rows:
            continue
        if not query.follow:
            return
        after = max(after, reader.high())
        reader.wait(after, 0.5, step=0.1)
        yield None


def _before_newest(reader: Reader, query: Query, uid: int | None, first: int, least: Severity) -> int:
    """The position behind which the newest `limit` rows stand."""
    found: list[int] = []
    high = reader.high()
    while high > first and len(found) < query.limit:
        low = max(first, high - 4 * PART)
        part = [
            row.position for row in reader.read(low, 4 * PART, minimum=least, quiet=not query.sent, uid=uid)
            if row.position <= high and not (query.until and row.accepted > query.until)
            and query.matches_line(row.line)
        ]  # fmt: skip
        found = part + found
        high = low
    return found[-query.limit] - 1 if len(found) >= query.limit else first


def moment(text: str, now: float | None = None) -> float:
    """A time as people write it: `2h`, `3d`, `2027-01-31`, `2027-01-31T10:00`, with a zone or the node's.

    Raises:
        UsageError: it is none.
    """
    now = time.time() if now is None else now
    span = _SPAN.fullmatch(text.strip())
    if span:
        return now - int(span.group(1)) * _SECONDS[span.group(2)]
    try:
        return datetime.fromisoformat(text.strip().replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is no time", "as 2h, 3d, 2027-01-31 or 2027-01-31T10:00Z") from None


def framed(row: Row) -> bytes:
    """A row as the service sends it to a reader."""
    return b'{"position":%d,"quiet":%s,"event":%s}\n' % (row.position, dump({"q": row.quiet})[5:-1], row.line)


def unframed(line: bytes) -> bytes:
    """The event of a line that `framed` made, byte for byte as it is stored."""
    return line[line.index(b'"event":') + 8 :].rstrip()[:-1]
