"""asciicast v2 (docs.asciinema.org): one key typed or printed over several events.

Each event is a JSON line `[time, "o", text]`. What a reader sees is the texts one after the other, so they
are joined, input and output apart, and a span is put back piece by piece. The stream holds events back until
one ends a line.
"""

from __future__ import annotations

from typing import Final

from guard.redact import shadow
from guard.redact.lazy import Lazy
from guard.redact.scan import Scanner
from guard.redact.spans import Span

_EVENT: Final = rb'\[\d{1,12}(?:\.\d{1,12})?, ?"%s", ?"'
_OTHER: Final = rb'(?:\[\d{1,12}(?:\.\d{1,12})?, ?"%s", ?"(?:[^"\\\n]|\\.)*"\]\r?\n){0,12}'
_GAPS: Final = tuple(
    Lazy(rb'"\]\r?\n' + _OTHER % other + _EVENT % kind) for kind, other in ((b"o", b"[imr]"), (b"i", b"[omr]"))
)
_LINE = Lazy(_EVENT % b"[io]" + rb'(?:[^"\\\n]|\\.)*"\]\r?\n')
_ENDED = Lazy(rb'(?:\\n|\\r|\\u000[aAdD])(?:\\u001b\[[0-9;?]*[A-Za-z])*"\]\r?\n\Z')

HELD: Final = 65536
"""At most so many bytes of events wait for the end of a line."""


def is_event(line: bytes) -> bool:
    """Say whether a line, with its end, is an input or output event."""
    return line[:1] == b"[" and _LINE.fullmatch(line) is not None


def goes_on(line: bytes) -> bool:
    """Say whether an event's text does not end a line, so that the next event may continue a word of it."""
    return is_event(line) and _ENDED.search(line, max(0, len(line) - 64)) is None


def spans(scanner: Scanner, data: bytes, since: int) -> list[Span]:
    """Return the pieces of keys that lie over events, behind `since`."""
    found: list[Span] = []
    for gap in _GAPS:
        joined = shadow.without(data, gap)
        if len(joined.data) == len(data):
            continue
        for span in scanner.find(joined.data, 0, 1):
            low, high = joined.raw(span.start, span.end)
            if high <= since or b"\n" not in data[low:high]:
                continue
            found += [span._replace(start=start, end=end) for start, end in shadow.pieces(data, low, high, gap)]
    return [span for span in found if span.end > since]


def first_marked(pieces: list[Span]) -> list[Span]:
    """Return the pieces with all but the first of each key marked as partial: one key is one exposure."""
    out: list[Span] = []
    before: bytes | None = None
    for piece in pieces:
        out.append(piece if piece.value != before else piece._replace(partial=True, incident=False))
        before = piece.value
    return out
