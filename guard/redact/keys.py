# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""The confirmers of keys with a format of their own: from the prefilter's hit to the whole key, one row of the table each."""

from __future__ import annotations

import re
from typing import Final

from guard.redact import words
from guard.redact.lazy import Lazy
from guard.redact.rules.formats import FORMATS, Format, crc62
from guard.redact.spans import MARKER_START, Span
from guard.redact.text import DEPTH, Handler, Text, begins_token

_TRUNCATED = Lazy(rb"\\{0,3}[\"']?(?:\.\.\.|\xe2\x80\xa6)")
_ODD_FOLLOW: Final = frozenset((b"%", b"\\", b'"', b"'", b".", b"\xe2"))
"""What may stand behind a key that goes on in an encoding, or that a tracer cut; most keys end before something else."""
_CONTINUES = Lazy(rb"%(?:25){0,3}[2-7][0-9a-fA-F]|\\u00[2-7]|\\x[2-7]|\\/")


_ENCODED_RUN = Lazy(rb"[A-Za-z0-9_\-+/=.~$]{4,}(?:%(?:25){0,3}(?:2[bBfF4]|3[aAdD]|7[eE])|\\/)")


class FormatRule:
    """The confirmer of one row of `FORMATS`; its expressions are compiled on first use."""

    def __init__(self, row: Format) -> None:
        self.row = row
        self._regex = Lazy(lambda: rb"(?:" + rb"|".join(row.starts) + rb")(?P<body>" + row.body + rb")")
        self._strict = Lazy(row.strict, re.DOTALL)
        self.decode: Handler | None = None

    def confirm(self, text: Text, anchor: int, start_length: int, depth: int) -> list[Span]:
        """Return the span of the key whose literal start stands at `anchor`, or nothing.

        Args:
            text: the text.
            anchor: where the start stands.
            start_length: its bytes.
            depth: how many encodings were undone already.
        """
        row = self.row
        data = text.data
        start = anchor
        if row.grow is not None:
            start = grow_back(data, anchor, row.grow)
        if not begins_token(data, start, b"_-+" if start_length < 4 else b""):
            return []
        found = self._regex.match(data, anchor)
        if found is None:
            if self.decode is not None and depth < DEPTH and _ENCODED_RUN.match(data, anchor, anchor + 4096):
                return self.decode(text, anchor + start_length, depth)
            return []
        end = found.end()
        body = found.group("body")
        token = data[start:end]
        value = token
        follow = data[end : end + 1]
        if follow in _ODD_FOLLOW and depth < DEPTH and self.decode is not None and _CONTINUES.match(data, end, end + 6):
            further = self.decode(text, end, depth)
            if further:
                return further
        if row.before:
            start += len(row.before)
            value = data[start:end]
        cut = follow in _ODD_FOLLOW and _TRUNCATED.match(data, end, end + 8) is not None
        if MARKER_START in token or not (self._passes(body, value, cut) or self._has_right_sum(token)):
            return []
        if row.web:
            start, value = _whole_address(data, start, end)
        good = self._strict.fullmatch(token) is not None and (row.check is None or row.check(token))
        incident = good and not cut and len(body) >= 1 and (row.gate == "jwt" or _dense(value))
        short = len(body) < row.least
        return [Span(start, end, row.kind, incident and not short, cut or short, True, value.replace(b"\\/", b"/"))]

    def _has_right_sum(self, token: bytes) -> bool:
        """Say whether a token's checksum is right: then it is one, also where chance has spelt `YOUR` or `TEST` in it."""
        row = self.row
        return row.check is crc62 and self._strict.fullmatch(token) is not None and row.check(token)

    def _passes(self, body: bytes, value: bytes, cut: bool) -> bool:
        row = self.row
        if words.is_example(body if len(body) > 6 else value):
            return False
        if cut:
            return True
        if row.gate == "random":
            return len(body) >= row.least and (
                words.drawn(body if len(body) >= 16 else value, min(row.least, 16))
                or (row.strict != rb".*" and self._strict.fullmatch(value) is not None and words.mixed(body))
            )
        if row.gate == "jwt":
            return row.check is not None and (row.check(value) or words.looks_random(value, 24))
        if row.gate in ("none", "plain"):
            return True
        if len(body) >= row.least:
            return not words.is_name(body)
        # A known start and too few characters behind it: cut off, or a name. Only what looks random goes.
        return len(body) >= 10 and words.looks_random(body, 10)


def grow_back(data: bytes, anchor: int, grow: tuple[bytes, int]) -> int:
    """Return where a token that goes on before its literal begins; `grow` is the class and the most characters."""
    most = grow[1]
    back = re.compile(grow[0]).match
    start = anchor
    while start > 0 and anchor - start < most and back(data, start - 1):
        start -= 1
    return start


_SCHEME = Lazy(rb"https?:\\?/\\?/(?:[A-Za-z0-9.\-]{0,80})\Z")


def _whole_address(data: bytes, start: int, end: int) -> tuple[int, bytes]:
    """Let a webhook's span begin at `https://`: the whole address is the secret."""
    found = _SCHEME.search(data, max(0, start - 100), start)
    if found is not None:
        start = found.start()
    return start, data[start:end]


def _dense(value: bytes) -> bool:
    return len(value) < 20 or len(set(value[:32])) >= 14 or len(set(value)) >= 14 or words.entropy(value) >= 2.8


_ATOM = Lazy(rb"(?:\[(?:\\.|[^\]\\])*\]|\\.|[^\[\]{}\\])(?:\{(\d+)\})?")


def width(pattern: bytes) -> int:
    """Return how many bytes a start matches: literals and classes with a fixed repetition only."""
    return sum(int(atom.group(1) or 1) for atom in _ATOM.finditer(pattern))


def literals(start: bytes) -> tuple[bytes, ...]:
    """Return what a start cannot match without, in lower case: its longest literal piece."""
    plain = re.sub(rb"\\(.)", rb"\1", start)
    if re.escape(plain) == start or b"[" not in start:
        return (plain.lower(),)
    pieces = [p for p in re.split(rb"\[[^\]]*\](?:\{\d+\})?", start) if p]
    best = max((re.sub(rb"\\(.)", rb"\1", p) for p in pieces), key=len, default=b"")
    return (best.lower(),) if best else ()


_STARTS = sorted(
    sorted({s for row in FORMATS if row.kind not in ("jwt", "keytab") for s in row.starts}),
    key=len,
    reverse=True,
)


def _by_first(starts: list[bytes]) -> bytes:
    """Return an alternation that is decided by a first byte where it can be: tried at every byte of a word."""
    groups: dict[bytes, list[bytes]] = {}
    for start in starts:
        groups.setdefault(start[:1] if start[:1].isalnum() else start, []).append(start)
    return b"|".join(
        first + b"(?:" + b"|".join(start[len(first) :] for start in group) + b")" for first, group in groups.items()
    )


_ANY_START = Lazy(lambda: rb"(?:" + _by_first([*_STARTS, b"eyJ"]) + rb")(?=[A-Za-z0-9_\-+/=%~.$]{8})")
_WORD_REVERSED = Lazy(rb"[A-Za-z0-9_\-+/=%~.$:,]{0,2048}")


def truncated(data: bytes, end: int) -> list[Span]:
    """Confirm a key that strace cut: a known start and at least eight characters before `"...`."""
    stop = end - (3 if data[end - 1 : end] == b"." or data[end - 3 : end] == b"\xe2\x80\xa6" else 0)
    while stop > 0 and data[stop - 1] in b"\"'\\":
        stop -= 1
    word = _WORD_REVERSED.match(data[max(0, stop - 2048) : stop][::-1])
    start = stop - (word.end() if word else 0)
    for found in _ANY_START.finditer(data, start, stop):
        body = data[found.end() : stop]
        row = next((row for row in FORMATS if any(re.match(s, found.group()) for s in row.starts)), None)
        begin = grow_back(data, found.start(), row.grow) if row is not None and row.grow is not None else found.start()
        if (
            not begins_token(data, begin, b"_")
            or words.is_example(body)
            or (words.is_name(body) and (row is None or row.gate != "plain"))
        ):
            continue
        if found.end() - found.start() < 4 and not words.looks_random(body, 8):
            continue
        return [
            Span(
                begin,
                stop,
                row.kind if row is not None else "secret-key",
                False,
                True,
                True,
                data[begin:stop],
            )
        ]
    return []
