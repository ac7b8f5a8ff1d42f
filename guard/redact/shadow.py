"""Shadow texts: what a reader sees, with a map back to the bytes that say it.

A key may be hidden from a matcher by colour codes, escapes or an encoding. The shadow is the text without
them; a span found there is mapped back to whole units of the raw text, so that no escape is ever cut in two.
"""

from __future__ import annotations

import binascii
import re
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from guard.redact.lazy import Lazy
from guard.redact.values import SIMPLE_ESCAPES

Decode = Callable[["re.Match[bytes]"], "bytes | None"]


class Shadow:
    """A decoded text with its map.

    Pieces are (shadow offset, raw offset, raw length, literal). In a literal piece offsets run in step; in
    any other the whole raw unit stands for the whole decoded piece.
    """

    __slots__ = ("_begins", "_pieces", "data")

    def __init__(self, data: bytes, pieces: list[tuple[int, int, int, bool]]) -> None:
        self.data = data
        self._pieces = pieces
        self._begins = [piece[0] for piece in pieces]

    def raw(self, start: int, end: int) -> tuple[int, int]:
        """Map a shadow span to the raw offsets that cover it."""
        begin, raw, _length, literal = self._pieces[bisect_right(self._begins, start) - 1]
        low = raw + (start - begin) if literal else raw
        begin, raw, length, literal = self._pieces[max(0, bisect_right(self._begins, end - 1) - 1)]
        high = raw + (end - begin) if literal else raw + length
        return low, high


def make(raw: bytes, low: int, high: int, pattern: Lazy, decode: Decode) -> Shadow:
    """Build the shadow of `raw[low:high]`: every match becomes what `decode` returns (None: stays)."""
    out: list[bytes] = []
    pieces: list[tuple[int, int, int, bool]] = []
    size = 0
    pos = low
    for match in pattern.finditer(raw, low, high):
        text = decode(match)
        if text is None:
            continue
        start, end = match.span()
        if start > pos:
            pieces.append((size, pos, start - pos, True))
            out.append(raw[pos:start])
            size += start - pos
        if text:
            pieces.append((size, start, end - start, False))
            out.append(text)
            size += len(text)
        pos = end
    if high > pos or not pieces:
        pieces.append((size, pos, high - pos, True))
        out.append(raw[pos:high])
    return Shadow(b"".join(out), pieces)


def without(raw: bytes, gap: Lazy) -> Shadow:
    """Return a text without the matches of `gap`."""
    return make(raw, 0, len(raw), gap, lambda _match: b"")


def pieces(raw: bytes, low: int, high: int, gap: Lazy) -> list[tuple[int, int]]:
    """Return what stands between the matches of `gap` in `raw[low:high]`, as start and end each."""
    out: list[tuple[int, int]] = []
    pos = low
    for between in gap.finditer(raw, low, high):
        out.append((pos, between.start()))
        pos = between.end()
    out.append((pos, high))
    return [(start, end) for start, end in out if end > start]


_CONTROLS = (
    rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b\n]{0,16}?;|\\|[P_^X]|[()*+#%][0-9A-Za-z]"
    rb"|[=>78cDEHMNOZ])"
    rb"|\x07"
)
ANSI: Final = Lazy(_CONTROLS)
"""Colours, cursor moves, titles' frames: the title's text stays visible to the rules."""

_OVERWRITTEN: Final = b"|".join(rb"[\x20-\x7e]{%d}\x08{%d}(?=[\x20-\x7e])" % (size, size) for size in range(8, 0, -1))
TYPED: Final = Lazy(_CONTROLS + rb"|[^\x08\x1b\n\r]\x08 \x08|" + _OVERWRITTEN)
"""The same with typed and erased characters; slow, since any character may begin a match."""

_ESCAPES = Lazy(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[0-3]?[0-7]{1,2}|[nrtbfvae\"'\\/])"
)


def _escape(match: re.Match[bytes]) -> bytes:
    body = match.group()[1:]
    first = body[:1]
    if first == b"u":
        if len(body) > 5:
            return (
                bytes(match.group())
                .decode("unicode_escape")
                .encode("utf-16", "surrogatepass")
                .decode("utf-16", "replace")
                .encode()
            )
        return chr(int(body[1:], 16)).encode("utf-8", "surrogatepass")
    if first == b"x":
        return bytes([int(body[1:], 16)])
    if first.isdigit():
        return bytes([int(body, 8) & 255])
    return SIMPLE_ESCAPES.get(first, first)


def without_controls(raw: bytes, low: int, high: int) -> bytes:
    """Return the text of a terminal stream without its control sequences, and without a map back: ten times as fast."""
    return _controls(raw, low, high).sub(b"", raw[low:high])


def ansi(raw: bytes, low: int, high: int) -> Shadow:
    """Return the text of a terminal stream without its control sequences."""
    return make(raw, low, high, _controls(raw, low, high), lambda _match: b"")


def _controls(raw: bytes, low: int, high: int) -> Lazy:
    return TYPED if raw.find(b"\x08", low, high) >= 0 else ANSI


def controlled_lines(raw: bytes) -> list[tuple[int, int]]:
    """Return the stretches of whole lines in which control sequences or backspaces stand."""
    out: list[tuple[int, int]] = []
    pos = 0
    escape, back = raw.find(b"\x1b"), raw.find(b"\x08")
    while escape >= 0 or back >= 0:
        first = min(escape if escape >= 0 else back, back if back >= 0 else escape)
        low = max(pos, raw.rfind(b"\n", pos, first) + 1)
        high = raw.find(b"\n", first) + 1
        high = len(raw) if high == 0 else high
        if out and out[-1][1] == low:
            out[-1] = (out[-1][0], high)
        else:
            out.append((low, high))
        pos = high
        escape = raw.find(b"\x1b", high) if 0 <= escape < high else escape
        back = raw.find(b"\x08", high) if 0 <= back < high else back
    return out


def escapes(raw: bytes, low: int, high: int) -> Shadow:
    r"""Return a text with one level of C or JSON escapes undone (`\u002d`, `\x2d`, `\055`, `\n`)."""
    return make(raw, low, high, _ESCAPES, _escape)


_PERCENT = Lazy(rb"%(?:25){0,4}([0-9a-fA-F]{2})")


def percent(raw: bytes, low: int, high: int) -> Shadow:
    """Return a text with percent-encoding undone, also where it was applied more than once."""
    return make(raw, low, high, _PERCENT, lambda match: bytes([int(match.group(1), 16)]))


_NAMES: Final = (
    b"quot amp apos lt gt equals colon commat sol bsol plus num dollar percnt excl lowbar hyphen period comma "
    b"semi quest ast lpar rpar lsqb rsqb lcub rcub lbrace rbrace vert hat grave nbsp"
)
_NAMED: Final = dict(zip(_NAMES.split(), map(chr, b"\"&'<>=:@/\\+#$%!_-.,;?*()[]{}{}|^` "), strict=True))
ENTITY: Final = rb"&(?:amp;){0,2}(?:#x0{0,4}[0-9a-f]{2}|#0{0,4}[0-9]{2,3}|" + b"|".join(sorted(_NAMED)) + rb");"
"""A character reference of HTML or XML to an ASCII character, also where it was escaped more than once (HTML 13.5)."""

_ENTITIES = Lazy(ENTITY, re.IGNORECASE)


def _character(match: re.Match[bytes]) -> bytes | None:
    name = match.group()[1:-1].lower().rpartition(b";")[2].removeprefix(b"&")
    if name[:1] != b"#":
        return _NAMED[name].encode()
    code = int(name[2:], 16) if name[1:2] == b"x" else int(name[1:])
    return bytes([code]) if 32 <= code < 127 else None


def entities(raw: bytes, low: int, high: int) -> Shadow:
    """Return a text with the character references of HTML and XML undone."""
    return make(raw, low, high, _ENTITIES, _character)


class Grouped(Shadow):
    """A shadow of equal groups: `chars` raw bytes for `size` decoded ones (hex 2:1, base64 4:3)."""

    __slots__ = ("_chars", "_low", "_size")

    def __init__(self, data: bytes, low: int, chars: int, size: int) -> None:
        self.data = data
        self._low, self._chars, self._size = low, chars, size

    def raw(self, start: int, end: int) -> tuple[int, int]:
        """Map a shadow span to whole groups."""
        return self._low + start // self._size * self._chars, self._low + -(-end // self._size) * self._chars


def utf16(raw: bytes, low: int, high: int, little: bool) -> Shadow:
    """Return the ASCII of a UTF-16 stretch of whole units."""
    return Grouped(raw[low + (not little) : high : 2], low, 2, 1)


def hexadecimal(raw: bytes, low: int, high: int) -> Shadow:
    """Return the bytes of a run of hex digits that begins at a byte's first digit."""
    high -= (high - low) % 2
    return Grouped(bytes.fromhex(raw[low:high].decode("ascii")), low, 2, 1)


def base64_run(raw: bytes, low: int, high: int) -> Shadow | None:
    """Return the bytes of a base64 run that begins at a group's first character; None if it is none."""
    run = raw[low:high].rstrip(b"=")
    run = run[: len(run) - 1] if len(run) % 4 == 1 else run
    try:
        text = binascii.a2b_base64(run.translate(_URLSAFE) + b"=" * (-len(run) % 4))
    except (binascii.Error, ValueError):
        return None
    return Grouped(text, low, 4, 3)


def base64_lines(raw: bytes, lines: list[tuple[int, int]]) -> Shadow | None:
    """Return the bytes of base64 that is wrapped into lines of whole groups; None if it is none.

    Args:
        raw: the text.
        lines: start and end of each line's base64.
    """
    if len(lines) == 1:
        return base64_run(raw, *lines[0])
    text: list[bytes] = []
    groups: list[tuple[int, int, int, bool]] = []
    size = 0
    for low, high in lines:
        line = base64_run(raw, low, high)
        if line is None:
            break
        text.append(line.data)
        for at in range(0, len(line.data), 3):
            groups.append((size + at, low + at // 3 * 4, min(4, high - low - at // 3 * 4), False))
        size += len(line.data)
    return Shadow(b"".join(text), groups) if groups else None


_URLSAFE = bytes.maketrans(b"-_", b"+/")
