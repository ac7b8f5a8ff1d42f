# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
r"""Terminal recordings: a key that the terminal, or the line editor, wrapped at the right margin.

A program that draws on a terminal ends a full line by CR LF in the midst of a word; readline writes a blank and CR there.
Such lines are read as one, and a key that lies over the margin is put back piece by piece. The stream keeps a line that
may go on together with the next one, so that chunks change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from guard.redact import shadow, words
from guard.redact.carriers import strace
from guard.redact.lazy import Lazy
from guard.redact.rules import tails
from guard.redact.rules.formats import FORMATS
from guard.redact.scan import Scanner
from guard.redact.spans import Span

_TOKEN: Final = rb"[A-Za-z0-9_\-+/=.~%$:@!&?{}]"
_GAP: Final = rb"(?:\r{1,2}\n|(?:\\r){1,2}\\n| \r(?!\n))"
_JOIN = Lazy(rb"(?<=" + _TOKEN + rb")" + tails.CONTROL + rb"{0,4}" + _GAP + tails.CONTROL + rb"{0,4}(?=" + _TOKEN + rb")")
_LINE_TAIL = Lazy(rb"(" + _TOKEN + rb"{2,400})" + tails.CONTROL + rb"{0,4}\r{1,2}\n\Z")
_LEAST_WIDTH: Final = 40
_USUAL_WIDTH: Final = 79
_COMMON_WIDTHS: Final = frozenset((80, 90, 100, 110, 120, 128, 130, 132, 140, 150, 160, 170, 180, 190, 200, 210, 220, 230, 240, 250))
_MOST_LINES: Final = 8
"""A key goes on over at most so many lines of the terminal."""

HELD: Final = 4096
"""At most so many bytes of wrapped lines wait for the next."""


def goes_on(line: bytes) -> bool:
    """Say whether a line, with its end, fills a terminal's width and ends in what may be the beginning of a key."""
    tail = _LINE_TAIL.search(line, max(0, len(line) - 480))
    if tail is None or len(shadow.ANSI.sub(b"", line[-1024:])) < _LEAST_WIDTH + 2:
        return False
    return _open(tail.group(1))


_PART_END = Lazy(rb"[=:@&?{\"']")


def _open(word: bytes) -> bool:
    part = _PART_END.split(word)[-1] or word
    mixed = part != part.lower() or words.digits_in(word) > 0
    return mixed or part[:4] in _CUTS or b"_" in part or b"$" in part or b"://" in word or b"=" in word


_STARTS: Final = tuple(re.sub(rb"\\(.)", rb"\1", start) for row in FORMATS for start in row.starts if b"[" not in start)
_CUTS: Final = frozenset(start[:size] for start in _STARTS for size in range(2, len(start) + 1))


class Wraps:
    """Finds keys that go on behind a line's end at the terminal's width.

    Args:
        scanner: judges the lines together.
    """

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner

    def spans(self, data: bytes, since: int) -> list[Span]:
        """Return the parts of wrapped keys, behind `since`.

        Args:
            data: context and complete lines.
            since: where the new text begins.
        """
        if b"\r" not in data and b"\\r\\n" not in data:
            return []
        found: list[Span] = []
        for low, high in self._stretches(data, since):
            seen = shadow.make(data, low, high, _JOIN, lambda _match: b"")
            for span in self._scanner.find(seen.data, 0, 1):
                start, end = seen.raw(span.start, span.end)
                parts = shadow.pieces(data, start, end, _JOIN)
                if len(parts) > 1 and end > since and self._wrapped(data, span, parts):
                    found += [span._replace(start=begin, end=stop) for begin, stop in parts]
        return found

    def _stretches(self, data: bytes, since: int) -> list[tuple[int, int]]:
        """Return the lines that a word joins, as start and end each: at most `_MOST_LINES` together."""
        out: list[tuple[int, int]] = []
        lines = 0
        for gap in sorted(_gaps(data, since), key=lambda gap: gap.start()):
            before = max(gap.start() - 1024, since, out[-1][0] if out and out[-1][1] > gap.start() else 0)
            edited = b" \r" in gap.group()
            if not edited and not _open(_last_word(data, before, gap.start())):
                continue
            begin = _line_start(data, before, gap.start())
            width = len(shadow.ANSI.sub(b"", data[begin : gap.start()]))
            if not edited and width < _LEAST_WIDTH:
                continue
            stop = _line_end(data, gap.end())
            if out and out[-1][1] >= gap.start() and lines < _MOST_LINES:
                out[-1] = (out[-1][0], max(stop, out[-1][1]))
                lines += 1
            else:
                out.append((begin, stop))
                lines = 1
        return out

    def _wrapped(self, data: bytes, span: Span, parts: list[tuple[int, int]]) -> bool:
        """Say whether a key found over a margin is one key, and not a whole one with the next line's first word."""
        begin, stop = parts[0]
        edited = data[stop : stop + 2] == b" \r"
        rest = data[slice(*parts[1])]
        further = words.drawn(rest, 6) or (strace.jumbled(rest) and len(rest) > 3)
        width = len(shadow.ANSI.sub(b"", data[_line_start(data, max(0, stop - 1024), stop) : stop]))
        if not span.named and not edited:
            # A file with CR LF has its values up to the line's end as well.
            return width in _COMMON_WIDTHS and further and b"=" not in rest
        alone = [s for s in self._scanner.find(data[begin:stop]) if s.named and s.incident and not s.partial]
        if alone and not edited:
            # Many formats have no longest key: at a usual width even a whole one may go on.
            return span.incident and width >= _USUAL_WIDTH and further
        return True


_WORD_END = Lazy(rb"[\s\"'(<\[,;|]")


def _gaps(data: bytes, since: int) -> Iterator[re.Match[bytes]]:
    """Yield where a word goes on behind a carriage return; only what stands around one is looked at."""
    for mark in (b"\r", b"\\r\\n"):
        at = data.find(mark, since)
        while at >= 0:
            word = data[max(since, at - 24) : at].rpartition(b" ")[2]
            # Most lines end in a number, a word or a shell's backslash: no expression need look at those.
            plain = word[-1:] == b"\\" or (word.isdigit() and len(word) < 5 and b":AA" not in data[at : at + 48]) or (
                word.isalpha() and word.islower() and word[:4] not in _CUTS
            )
            found = None if plain else _JOIN.search(data, max(since, at - 48), min(len(data), at + 64))
            if found is not None and found.start() <= at < found.end():
                yield found
            at = data.find(mark, max(at + len(mark), found.end() if found is not None and found.start() <= at else 0))


def _line_start(data: bytes, low: int, pos: int) -> int:
    return max(low, data.rfind(b"\n", low, pos) + 1, data.rfind(b"\\n", low, pos) + 2, data.rfind(b'"', low, pos) + 1)


def _line_end(data: bytes, pos: int) -> int:
    stop = min(x for x in (data.find(b"\n", pos), data.find(b"\\n", pos), len(data)) if x >= 0)
    return min(stop, pos + 1024)


def _last_word(data: bytes, low: int, pos: int) -> bytes:
    head = data[max(low, pos - 200) : pos]
    return _WORD_END.split(shadow.ANSI.sub(b"", head) if b"\x1b" in head else head)[-1]
