"""Dumps of bytes in columns (xxd, hexdump, od): the bytes are read, and a secret goes out of both columns.

Lines of one dump are read together up to an offset that ends in zeros, a page; the stream holds a page back until it is
whole, so that chunks change nothing. A word that goes on over a page's end takes its lines into the next page; of the
page before, a few lines are context.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from typing import Final, NamedTuple

from guard.redact.carriers import cast
from guard.redact.lazy import Lazy
from guard.redact.scan import Scanner
from guard.redact.spans import Span

_LAYOUTS: Final = (
    # xxd: 00000000: 746f 6b65  toke
    rb"(?P<x>[0-9a-f]{8}): (?P<xh>(?:[0-9a-f]{2}){1,4}(?: (?:[0-9a-f]{2}){1,4}){0,15}) {2,64}(?P<xt>[^\r\n]{1,16})",
    # hexdump -C: 00000000  74 6f  |to|
    rb"(?P<c>[0-9a-f]{8})  (?P<ch>(?:[0-9a-f]{2} {1,2}){1,16}) {0,64}\|(?P<ct>[^\r\n]{1,16})\|",
    # od -t x1, also with z: 0000000 74 6f  >to<
    rb"(?P<o>[0-9a-f]{6,8})(?P<oh>(?: [0-9a-f]{2}){1,16})(?: {2,64}>(?P<ot>[^\r\n]{1,16})<)?",
    # od -c, hexdump -c: 0000000   t   o  \n
    rb"(?P<t>[0-9a-f]{6,8})(?P<tc>(?:   [!-~ ]|  \\[0abfnrtv\\]| [0-7]{3}){1,16})",
    # hexdump, od -x: words of two bytes, the second first
    rb"(?P<w>[0-9a-f]{6,8})(?P<wh>(?: {1,4}[0-9a-f]{4}){1,8})",
)
_LINE = Lazy(rb"[ \t]{0,8}(?:" + b"|".join(_LAYOUTS) + rb") {0,48}\r?\Z")
_CELL = Lazy(rb"[0-9a-f]{2}")
_WORD = Lazy(rb"[0-9a-f]{4}")

HELD: Final = 65536
"""At most so many bytes of a page wait for its end."""

_CONTEXT: Final = 960
_LEAST_LINES: Final = 16
"""A page is no shorter: the lines of context before each of them would be read over and over."""
_MOST_LINES: Final = 1024
_WORD_LINES: Final = 64
_WORD_BYTES: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+/=.~%!@#$^&*:")


class _Line(NamedTuple):
    """One line: its bytes, where each stands in the text as digits or a cell, and where the readable column begins."""

    data: bytes
    places: tuple[tuple[int, int], ...]
    shown: int
    first: bool


def _read(data: bytes, low: int, high: int) -> _Line | None:
    """Read the line `data[low:high]`; None if it is none of a dump."""
    if high - low > 160 or high - low < 10:
        return None
    found = _LINE.match(data, low, high)
    if found is None:
        return None
    name = str(found.lastgroup)[0]
    if name == "t":
        begin, end = found.span("tc")
        cells = [data[at : at + 4] for at in range(begin, end, 4)]
        places = tuple((begin + 4 * at + 1, begin + 4 * at + 4) for at in range(len(cells)))
        text = bytes(_character(cell) for cell in cells)
    elif name == "w":
        words = [word.start() for word in _WORD.finditer(data, *found.span("wh"))]
        places = tuple((start, start + 2) for word in words for start in (word + 2, word))
        text = bytes(int(data[start:end], 16) for start, end in places)
    else:
        places = tuple(cell.span() for cell in _CELL.finditer(data, *found.span(name + "h")))
        text = bytes(int(data[start:end], 16) for start, end in places)
    shown = -1
    if name in "xco" and found.group(name + "t") is not None:
        # xxd pads a short line between the columns: the readable one is as long as there are bytes.
        begin, end = found.span(name + "t")
        shown = begin if end - begin == len(text) else end - len(text)
    return _Line(text, places, shown, found.group(name).endswith(b"000"))


def _character(cell: bytes) -> int:
    cell = cell[1:]
    if cell.isdigit() and cell[:1] != b" " and len(cell) == 3:
        return int(cell, 8) & 255
    if cell[1:2] == b"\\" and cell[2:] in b"0abfnrtv":
        return b"\0\a\b\f\n\r\t\v"[b"0abfnrtv".index(cell[2:])]
    return cell[-1]


def _running(before: Iterable[_Line], first: _Line) -> int:
    """Return how many lines before a page belong to a word that goes on into it: none, mostly.

    Args:
        before: the lines before the page, the nearest first.
        first: the page's first line.
    """
    count = 0
    for line in before if first.data[0] in _WORD_BYTES else ():
        if line.data[-1] not in _WORD_BYTES:
            break
        count += 1
        if not _WORD_BYTES.issuperset(line.data):
            break
        if count == _WORD_LINES:
            return 0
    return count


def _backwards(pending: bytes | bytearray, end: int) -> Iterator[tuple[int, _Line]]:
    """Yield the lines of the dump that ends at `end`, the last first, each with where it begins."""
    while end > 0:
        before = pending.rfind(b"\n", 0, end - 1) + 1
        line = _read(bytes(pending[before : end - 1]), 0, end - 1 - before) if end - before < 200 else None
        if line is None:
            return
        yield before, line
        end = before


def held(pending: bytes | bytearray, end: int) -> int:
    """Return where the page of a dump begins that the complete lines of `pending[:end]` end in; `end` if in none."""
    at = end
    for at, line in _backwards(pending, end):
        if end - at >= HELD:
            return end
        if line.first:
            running = _running((each for _at, each in _backwards(pending, at)), line)
            return at if not running else next(islice(_backwards(pending, at), running - 1, None))[0]
    return at


def _pages(data: bytes, since: int) -> Iterator[list[_Line]]:
    """Yield the lines of each page behind `since`."""
    page: list[_Line] = []
    pos = since
    while pos < len(data):
        stop = data.find(b"\n", pos)
        stop = len(data) if stop < 0 else stop
        line = _read(data, pos, stop)
        if page and (line is None or (line.first and len(page) >= _LEAST_LINES) or len(page) >= _MOST_LINES):
            running = _running(reversed(page), line) if line is not None and line.first else 0
            if len(page) > running:
                yield page[: len(page) - running]
            page = page[len(page) - running :]
        if line is not None:
            page.append(line)
        pos = stop + 1
    if page:
        yield page


def _before(data: bytes, pos: int) -> list[_Line]:
    """Return the lines of a dump right before `pos`, few enough to be in every block's context."""
    out: list[_Line] = []
    at = data.rfind(b"\n", 0, pos) + 1
    while at > 0 and pos - at < _CONTEXT:
        low = data.rfind(b"\n", 0, at - 1) + 1
        line = _read(data, low, at - 1) if pos - low < _CONTEXT else None
        if line is None:
            break
        out.append(line)
        at = low
    return out[::-1]


def spans(scanner: Scanner, data: bytes, since: int) -> list[Span]:
    """Return the places of secrets in the columns of dumps, behind `since`.

    Args:
        scanner: finds the spans of the dumped bytes.
        data: context and complete lines.
        since: where the new text begins.
    """
    out: list[Span] = []
    for page in _pages(data, since):
        # What stood in the page before may have been given out: it is context, and stays.
        begin = data.rfind(b"\n", 0, page[0].places[0][0]) + 1
        lines = [*_before(data, begin), *page]
        text = b"".join(line.data for line in lines)
        starts = list(accumulate((len(line.data) for line in lines), initial=0))
        for span in scanner.find(text, 0, 1):
            places = _columns(lines, starts, span)
            out += [span._replace(start=low, end=high) for low, high in places if low >= begin]
    return cast.first_marked(out)


def _columns(lines: list[_Line], starts: list[int], span: Span) -> Iterator[tuple[int, int]]:
    """Yield where the bytes of a span stand: in each line the digits, and what is readable of them."""
    for at in range(bisect_right(starts, span.start) - 1, bisect_left(starts, span.end)):
        line, pos = lines[at], starts[at]
        low, high = max(0, span.start - pos), min(len(line.data), span.end - pos)
        places = line.places[low:high]
        yield min(place[0] for place in places), max(place[1] for place in places)
        if line.shown >= 0:
            yield line.shown + low, line.shown + high
