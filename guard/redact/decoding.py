# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""Encodings of keys: where base64, hex, escapes, percent-encoding or UTF-16 may hide one, a layer is undone and read."""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable
from typing import Final

from guard.redact import shadow, words
from guard.redact.engine import Pattern
from guard.redact.keys import truncated
from guard.redact.lazy import Lazy
from guard.redact.rules.formats import FORMATS
from guard.redact.spans import Span
from guard.redact.text import DEPTH, WINDOW, Handler, Text, begins_token

Through = Callable[[shadow.Shadow, int], "list[Span]"]
"""What finds the spans of a shadow, at a depth, and maps them back to the text it was made of."""

_PREFIXES: Final = (
    *sorted({re.sub(rb"\\(.)", rb"\1", s) for row in FORMATS for s in row.starts if b"[" not in s and len(s) > 2}),
    b"-----BEGIN ", b"eyJhbGciOi", b"eyJ0eXAiOi", b"eyJraWQiOi", b"https://hooks.slack.com", b"https://discord",
)  # fmt: skip
"""Starts whose base64, hex and percent forms are looked for; short ones only where the encoding keeps them telling."""


def _base64_needles() -> dict[bytes, int]:
    """Return the base64 text of every start at the three alignments, whole characters only, with its alignment."""
    needles: dict[bytes, int] = {}
    for prefix in _PREFIXES:
        for shift in range(3):
            text = binascii.b2a_base64(b"\0" * shift + prefix, newline=False)
            first = (shift * 8 + 5) // 6
            last = (shift + len(prefix)) * 8 // 6
            needle = text[first:last]
            # Fewer than four characters would stop the matcher at ordinary words.
            if len(needle) >= 4:
                needles.setdefault(needle, first)
    return needles


_B64_RUN = Lazy(rb"[A-Za-z0-9+/_\-]{12,65536}={0,2}")
_HEX_RUN = Lazy(rb"(?:[0-9a-fA-F]{2}){8,32768}")

# Base64 and hex of plain ASCII betray themselves: a byte below 128 leaves three of each group's four characters, and a
# pair's first digit, half or less of their alphabet. A word or a digest passes five groups once in 30,000 times.
_TEXT_GROUP: Final = rb"[CDI-Za-f][A-HQ-Xg-nw-z0-3][ABEFIJMNQRUVYZcdghklopstwx014589][A-Za-z0-9+/_\-]"
TEXT_RUN = Lazy(rb"(?:" + _TEXT_GROUP + rb"){5}")
_TEXT_PAIRS = Lazy(rb"(?:[2-7][0-9a-fA-F]|0[9aAdD]){12}")
_NEXT_LINE = Lazy(rb"(?:\\[rn]|[\r\n \t]){1,16}([A-Za-z0-9+/]{4,76}={0,2})(?=[\s\"'\\]|\Z)")
LINE_LEAST: Final = 56
"""A line of base64 that is shorter ends its run, in characters."""

_LINES: Final = 8192
"""So many bytes of lines are read together once an encoding shows itself."""

LONG: Final = 24
"""The least length of a word that is looked at wherever it stands."""

_HEX_PAIR = Lazy(rb"[0-9a-fA-F]{2}")
_LITTLE = Lazy(rb"(?:[\x01-\x7f]\x00){8,}")
_BIG = Lazy(rb"(?:\x00[\x01-\x7f]){8,}")
_B64_GROUP = Lazy(rb"[A-Za-z0-9+/_\-]{4}")
_HEX_HEADS = {p[:3].hex().encode() for p in _PREFIXES if len(p) >= 3 and p[:1] != b"$"}
_REGION_END = Lazy(rb"[ \t\r\n\"'<>`\0]")


def _token_region(data: bytes, end: int, most: int) -> tuple[int, int]:
    """Return the unbroken stretch (no blank, no quote) around an offset."""
    back = _REGION_END.search(data[max(0, end - most) : end][::-1])
    low = end - back.start() if back else max(0, end - most)
    stop = _REGION_END.search(data, end, end + most)
    return low, stop.start() if stop else min(len(data), end + most)


def decoding_rows(through: Through) -> tuple[list[tuple[Pattern, Handler]], Handler, Handler]:
    """Return the patterns behind which one layer of an encoding is undone, what undoes it, and who reads a long word."""
    needles = _base64_needles()

    def base64_hit(text: Text, end: int, depth: int) -> list[Span]:
        if depth >= DEPTH:
            return []
        data = text.data
        for size in range(min(32, end), 3, -1):
            first = needles.get(data[end - size : end])
            if first is not None:
                low = end - size - first
                if low < 0 or (size == 4 and first == 0 and not begins_token(data, low, b"+/_-")):
                    continue
                # back by whole groups, for what stands before the start (user:TOKEN)
                while low >= 4 and end - low < 120 and _B64_GROUP.match(data, low - 4, low):
                    low -= 4
                name = f"base64-{low & 3}"
                past = text.vain.get(name, (0, -1))
                if past[0] <= low and end <= past[1]:
                    continue
                run = _B64_RUN.match(data, low, min(len(data), low + 65536))
                if run is None:
                    continue
                text.vain[name] = (low, run.end())
                seen = shadow.base64_run(data, low, run.end())
                if seen is None:
                    continue
                found = through(seen, depth)
                out = [s for s in found if s.named or s.incident]
                if out:
                    return [s._replace(end=min(len(data), s.end + _padding(data, s.end))) for s in out]
        return []

    def base64_text(text: Text, end: int, depth: int) -> list[Span]:
        """Read a base64 run that begins with plain text at `end`, over the lines it is wrapped into."""
        low = end
        past = text.vain.get("text64", (0, -1))
        if end <= past[1]:
            return []
        run = _B64_RUN.match(text.data, low, min(len(text.data), low + 65536))
        if run is None:
            return []
        lines = [run.span()]
        stop = run.end()
        while stop - lines[-1][0] >= LINE_LEAST and text.data[stop - 1] != 0x3D and stop - low < 65536:
            further = _NEXT_LINE.match(text.data, stop, min(len(text.data), stop + 128))
            if further is None:
                break
            lines.append(further.span(1))
            stop = further.end()
        text.vain["text64"] = (low, stop)
        seen = shadow.base64_lines(text.data, lines)
        found = through(seen, depth) if seen is not None else []
        return [s._replace(end=min(len(text.data), s.end + _padding(text.data, s.end))) for s in found]

    def hex_text(text: Text, end: int, depth: int) -> list[Span]:
        """Read a run of hex digits that begins with plain text at `end`."""
        past = text.vain.get("text16", (0, -1))
        if end <= past[1]:
            return []
        run = _HEX_RUN.match(text.data, end, min(len(text.data), end + 65536))
        if run is None:
            return []
        text.vain["text16"] = run.span()
        return through(shadow.hexadecimal(text.data, run.start(), run.end()), depth)

    def hex_hit(text: Text, end: int, depth: int) -> list[Span]:
        if depth >= DEPTH:
            return []
        data = text.data
        low = end - 24
        for start in range(max(0, low), end):
            if data[start : start + 6].lower() in _HEX_HEADS:
                while start >= 2 and end - start < 600 and _HEX_PAIR.match(data, start - 2, start):
                    start -= 2
                name = f"hex-{start & 1}"
                past = text.vain.get(name, (0, -1))
                if past[0] <= start and end <= past[1]:
                    continue
                run = _HEX_RUN.match(data, start, start + 65536)
                if run is None:
                    continue
                text.vain[name] = (start, run.end())
                found = [s for s in through(shadow.hexadecimal(data, start, run.end()), depth) if s.named]
                if found:
                    return found
        return []

    def escaped_hit(text: Text, end: int, depth: int) -> list[Span]:
        if depth >= DEPTH:
            return []
        low, high = _token_region(text.data, end, 4096)
        last = text.vain.get("escaped", (0, -1))
        if low >= last[0] and end <= last[1]:
            return []
        # a quoted value may hold blanks: the name before it is part of what is read
        low = max(text.line(end)[0], low - 48, last[1] - 512)
        text.vain["escaped"] = (low, high)
        return through(shadow.escapes(text.data, low, high), depth)

    def lines_hit(name: str, undo: Callable[[bytes, int, int], shadow.Shadow], text: Text, end: int, depth: int) -> list[Span]:
        """Read whole lines from `end`'s on with one encoding undone: once for many of them, not once for each."""
        last = text.vain.get(name, (0, -1))
        if depth >= DEPTH or end <= last[1] - WINDOW:
            return []
        data = text.data
        begin = max(text.line(end)[0], end - WINDOW)
        low = max(0, begin - WINDOW)
        high = data.find(b"\n", min(len(data), end + _LINES), min(len(data), end + 2 * _LINES))
        high = min(len(data), end + 2 * _LINES) if high < 0 else high
        text.vain[name] = (low, high + WINDOW if data[high : high + 1] == b"\n" or high == len(data) else high)
        return [span for span in through(undo(data, low, high), depth) if span.end > begin]

    def marked_hit(text: Text, end: int, depth: int) -> list[Span]:
        """Read lines in which punctuation was written as escapes."""
        return lines_hit("marked", shadow.escapes, text, end, depth)

    def entity_hit(text: Text, end: int, depth: int) -> list[Span]:
        """Read lines with the character references of HTML and XML undone."""
        return lines_hit("entity", shadow.entities, text, end, depth)

    def audited_hit(text: Text, end: int, depth: int) -> list[Span]:
        """Read what auditd wrote in hexadecimal since it holds a blank or a quote (auditd(8), `proctitle=`, `cmd=`)."""
        if depth >= DEPTH:
            return []
        run = _HEX_RUN.match(text.data, end - 24, min(len(text.data), end + 65536))
        if run is None:
            return []
        seen = shadow.hexadecimal(text.data, run.start(), run.end())
        return through(seen, depth)

    def percent_hit(text: Text, end: int, depth: int) -> list[Span]:
        if depth >= DEPTH:
            return []
        low, high = _token_region(text.data, end, 4096)
        last = text.vain.get("percent", (0, -1))
        if low >= last[0] and end <= last[1]:
            return []
        low = max(low, last[1] - 512)
        text.vain["percent"] = (low, high)
        return through(shadow.percent(text.data, low, high), depth)

    def libedit_hit(text: Text, end: int, depth: int) -> list[Span]:
        low, high = text.line(end)
        last = text.vain.get("libedit", (0, -1))
        if depth >= DEPTH or (low >= last[0] and end <= last[1]):
            return []
        low = max(low, end - 4096, last[1] - 512)
        high = min(high, end + 8192)
        text.vain["libedit"] = (low, high)
        return through(shadow.escapes(text.data, low, high), depth)

    def utf16_hit(text: Text, end: int, depth: int) -> list[Span]:
        last = text.vain.get("utf16", (0, -1))
        if depth >= DEPTH or end <= last[1]:
            return []
        data = text.data
        start = end - 16
        little = data[start + 1] == 0
        while (
            start >= 2
            and end - start < 512
            and (
                data[start - 1] == 0 and 0 < data[start - 2] < 128
                if little
                else data[start - 2] == 0 and 0 < data[start - 1] < 128
            )
        ):
            start -= 2
        if start > 0 and end - start < 512 and (data[start - 1] == 0 if little else 0 < data[start - 1] < 128):
            return []  # the other byte order: here every second byte only looks like a pair (a byte order mark does not)
        run = (_LITTLE if little else _BIG).match(data, start, min(len(data), start + 131072))
        if run is None:
            return []
        text.vain["utf16"] = (start, run.end() - 2)
        return through(shadow.utf16(data, start, run.end(), little), depth)

    def truncated_hit(text: Text, end: int, depth: int) -> list[Span]:
        return truncated(text.data, end)

    b64_literals = sorted(needles)
    rows: list[tuple[Pattern, Handler]] = []
    rows.append(
        (
            Pattern(
                b"|".join(re.escape(n) for n in b64_literals),
                tuple(n.lower() for n in b64_literals),
                False,
                False,
            ),
            base64_hit,
        )
    )
    heads = sorted({p[:8] for p in _PREFIXES if len(p) >= 3 and p[:1] != b"$"})
    rows.append(
        (
            Pattern(
                b"|".join(h.hex().encode() for h in heads),
                tuple(h.hex().encode() for h in heads),
                False,
                True,
            ),
            hex_hit,
        )
    )
    rows.append(
        (
            Pattern(
                rb"(?:\\x[0-9a-f]{2}){8}|(?:\\[0-7]{3}){8}|(?:\\u00[2-7][0-9a-f]){4}|(?:\\u001b|\\x1b|\\033|\\e)\[[0-9;?]{0,16}m[a-z0-9_\-+/]",
                (b"\\x", b"\\0", b"\\1", b"\\u00", b"\\e["),
                False,
                True,
            ),
            escaped_hit,
        )
    )
    rows.append(
        (
            Pattern(
                rb"[a-z0-9](?:\\u00(?:2[1345a-f]|5[ef]|7e|3[adf]|[346][0-9a-f]|[57][0-9a])|\\x(?:2[4def]|5f|7e|3[ad])|\\055|\\137)[a-z0-9\\]|\\u0024(?:[1-7y]|2[aby]|gy|apr1|argon2)",
                (b"\\u00", b"\\x", b"\\055", b"\\137"),
                False,
                True,
            ),
            escaped_hit,
        )
    )
    # .NET writes quotes so, Go `&`, `<` and `>`.
    rows.append((Pattern(rb"\\u00(?:2[1-9a-f]|3[a-f]|40|5[b-f]|60|7[b-e])", (b"\\u00",), False, True), marked_hit))
    foreign = {re.escape(json.dumps(word)[1:-1].encode()).replace(b"\\\\", b"\\\\{1,7}") for word in words.FOREIGN}
    rows.append((Pattern(b"|".join(sorted(foreign)), (b"\\u",), False, True), marked_hit))
    rows.append((Pattern(shadow.ENTITY, (b"&",), False, True), entity_hit))
    audited = rb"(?:cmd|proctitle| a[0-9])=[0-9a-f]{24}"
    rows.append((Pattern(audited, (b"cmd=", b"proctitle=", b" a"), False, True), audited_hit))
    forms = [rb"[0-9]{8}%3aAA", rb"[0-9]Q%7e", rb"[0-9a-f]{24}%2dus", rb"00[A-Za-z0-9]{13}%21"]
    forms += sorted({form for prefix in _PREFIXES if prefix != b"-----BEGIN " for form in _percent_forms(prefix)})
    forms += [rb"%3a%2f%2f", rb"bearer%20"]
    forms.append(rb"(?:passw|passwd|pwd|secret|token|api_?key|access_?key)[a-z0-9_.\-]{0,24}%3d")
    again = rb"%(?:25){0,3}"  # encoded more than once
    regex = rb"(?:%[0-9a-f]{2}){8}|(?:%25[0-9a-f]{2}){6}|" + b"|".join(forms).replace(b"%", again)
    rows.append((Pattern(regex, (b"%",), False, True), percent_hit))
    # A body has its punctuation encoded, perhaps before the matcher has seen enough of it. Which byte it is would make the
    # matcher's database three times as long to compile.
    rows.append((Pattern(_opened(_is_encoded) + rb"%[2-7][0-9a-fA-F]", (b"%",), False, False), percent_hit))
    # JSON may write a slash as `\/`.
    rows.append((Pattern(_opened(lambda _start, body: b"/" in body) + rb"\\/", (b"\\/",), False, False), escaped_hit))
    rows.append((Pattern(rb"\\040", (b"\\040",), True, False), libedit_hit))
    rows.append((Pattern(rb"(?:[\x20-\x7e]\x00){8}", (b"\0",), True, False), utf16_hit))
    rows.append((Pattern(rb"(?:\x00[\x20-\x7e]){8}", (b"\0",), True, False), utf16_hit))
    rows.append(
        (
            Pattern(
                rb"[a-z0-9_\-+/=%~.$]{8}\\{0,3}[\"'](?:\.\.\.|\xe2\x80\xa6)",
                (b'"...', b"'...", b"\xe2\x80\xa6"),
                False,
                True,
            ),
            truncated_hit,
        )
    )

    def continued(text: Text, end: int, depth: int) -> list[Span]:
        low, high = _token_region(text.data, end, 8192)
        undo = shadow.percent if text.data.find(b"%", end, high) >= 0 else shadow.escapes
        return through(undo(text.data, low, high), depth)

    def long_run(text: Text, end: int, depth: int) -> list[Span]:
        """Read what stands in a long word that is base64 or hex of plain text."""
        if _TEXT_PAIRS.match(text.data, end) is not None:
            return hex_text(text, end, depth)
        return base64_text(text, end, depth) if TEXT_RUN.match(text.data, end) is not None else []

    return rows, continued, long_run


_WORD_BYTES: Final = bytes(1 if (chr(byte).isalnum() and byte < 128) or byte == 0x2B else 0 for byte in range(256))
_LONG: Final = b"\1" * LONG
_WORD_BACK = Lazy(rb"[A-Za-z0-9+_\-]{1,64}\Z")


def long_words(data: bytes) -> tuple[list[int], list[int]]:
    """Find words of `LONG` letters and digits and more.

    A matcher would pay for this at every byte; translating a text and looking for a run costs a millisecond a MB.

    Returns:
        Where what may be base64 or hex of plain text begins, and where a word stands behind `_` or `-`.
    """
    marks = data.translate(_WORD_BYTES)
    out = []
    joined = []
    at = marks.find(_LONG)
    while at >= 0:
        # A letter behind a backslash is an escape; behind `/` a path goes on, behind `_` and `-` perhaps base64 for addresses.
        before = data[at - 1 : at] if at else b""
        if before == b"\\" and data[at : at + 1] in (b"n", b"r", b"t", b"x"):
            out.append(at + 1)
        elif before in (b"_", b"-"):
            joined.append(at)
            begin = _WORD_BACK.search(data, max(0, at - 64), at)
            if begin and data[begin.start() - 1 : begin.start()] != b"/" and (not out or out[-1] < begin.start()):
                out.append(begin.start())
        elif before != b"/":
            out.append(at + 2 if data[at : at + 2] == b"0x" else at)
        stop = marks.find(b"\0", at)
        if stop < 0:
            break
        at = marks.find(_LONG, stop)
    return out, joined


def _opened(fits: Callable[[bytes, bytes], bool]) -> bytes:
    """Return an expression for the starts that fit, each with what may follow before an encoded byte of the body."""
    starts = {start for row in FORMATS for start in row.starts if b"[" not in start and len(start) > 2 and fits(start, row.body)}
    return rb"(?:" + b"|".join(sorted(starts)) + rb")[A-Za-z0-9]{0,24}"


def _is_encoded(start: bytes, body: bytes) -> bool:
    """Say whether a body's punctuation may be encoded where its start's is not: that of `sk-` would be, too."""
    return re.search(rb"\[[^\]]*[/+=!:@~$%]|={", body) is not None or (
        re.search(rb"[_.-]", start) is None and re.search(rb"\[[^\]]*(?:_|\\-|\.)|_|\\\.", body) is not None
    )


def _percent_forms(prefix: bytes) -> list[bytes]:
    """Return how a start looks percent-encoded: reserved characters only, or the first of `-_.` too."""
    forms = []
    reserved = re.sub(rb"[^A-Za-z0-9_.\-]", lambda match: b"%%%02x" % match.group()[0], prefix)
    if reserved != prefix:
        forms.append(re.escape(reserved))
    position = re.search(rb"[_.\-]", prefix)
    if position is not None:
        forms.append(re.escape(prefix[: position.start()]) + b"%%%02x" % position.group()[0])
    return forms


def _padding(data: bytes, end: int) -> int:
    size = 0
    while size < 2 and data[end + size : end + size + 1] == b"=":
        size += 1
    return size
