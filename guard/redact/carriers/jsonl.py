"""JSON Lines: spans stay inside strings and never cut an escape, so that a line that parsed still parses."""

from __future__ import annotations

import re
from bisect import bisect_right

from guard.redact.lazy import Lazy
from guard.redact.spans import Span

_STRING = Lazy(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_UNIT = Lazy(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)


def looks_json(line: bytes) -> bool:
    """Say whether a line begins and ends as a JSON object or array does."""
    line = line.strip()
    return line[:1] in (b"{", b"[") and line[-1:] in (b"}", b"]") and len(line) > 1


def is_json(line: bytes) -> bool:
    """Say whether a line parses as JSON, whatever bytes its strings hold."""
    import json

    try:
        json.loads(line.decode("utf-8", "surrogateescape"), strict=False)
    except (ValueError, RecursionError):
        return False
    return True


def fit(data: bytes, low: int, high: int, spans: list[Span]) -> list[Span]:
    """Cut spans of one JSON line to the insides of its strings and to whole escapes.

    Args:
        data: the text.
        low: where the line begins.
        high: where it ends.
        spans: spans between `low` and `high`, in order.
    """
    strings = [match.span(1) for match in _STRING.finditer(data, low, high)]
    begins = [start for start, _end in strings]
    out: list[Span] = []
    for span in spans:
        index = max(0, bisect_right(begins, span.start) - 1)
        while index < len(strings) and strings[index][0] < span.end:
            start, end = max(span.start, strings[index][0]), min(span.end, strings[index][1])
            if start < end:
                start, end = _whole_units(data, strings[index][0], start, end)
                out.append(span._replace(start=start, end=end))
            index += 1
    return out


def _whole_units(data: bytes, string: int, start: int, end: int) -> tuple[int, int]:
    """Widen a span to whole escapes of the string that begins at `string`."""
    if data.find(b"\\", max(string, start - 12), min(end + 12, len(data))) < 0:
        return start, end
    # Escapes have no memory further back than an unescaped character: begin at one that is surely a boundary.
    low = start
    while low > string and (data[low - 1] == 0x5C or start - low < 12):
        low -= 1
    for unit in _UNIT.finditer(data, low, min(len(data), end + 12)):
        if unit.start() < start < unit.end():
            start = unit.start()
        if unit.start() < end < unit.end():
            end = unit.end()
        if unit.start() >= end:
            break
    return start, end
