r"""Reading a value beside a name: where it begins and ends, in whatever quoting it stands.

The same text occurs bare, in a JSON string, in JSON within JSON, in an strace string. One convention serves
all: a quote is taken with the backslashes before it, and the value ends at the same quote with the same
number of them. At depth n a quote carries 2^n - 1 backslashes, so a run of `c` backslashes closes when
`c mod 2(k+1) == k`; more is a quote inside the value, fewer ends the string around it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from guard.redact.lazy import Lazy

LONGEST = 4096
"""A value is read no further than this many bytes, so that confirming stays linear."""


class Value(NamedTuple):
    """A value and how it stood: `quoted`, and `closed` when its closing quote was found."""

    start: int
    end: int
    quoted: bool
    closed: bool


_OPEN = Lazy(
    rb"(?:[bBrRuUfFlL@$]{1,2}(?=\\{0,15}[\"']))?(\\{0,15})(\"\"\"|'''|[\"'`])|(&quot;|&#3[49];|%22|\xe2\x80[\x98\x9c]|\\{1,15}u201[8cC])"
)
_CLOSING = {b"\x98": b"\x99", b"\x9c": b"\x9d", b"8": b"9", b"c": b"d", b"C": b"D"}
_BLANKS = Lazy(rb"(?:[ \t]|\\{1,7}t|\xc2\xa0){0,40}")
_BARE = {
    # A shell word outside quotes; a backslash before n, r, t or a quote ends it, since that is the text
    # around it.
    "shell": Lazy(rb"(?:[^\s\"'`\\;&|<>()\x00\x1b]|\\(?![nrtvabfeu0x\"'\\\s])[^\s])+"),
    # A line of its own (.env, ini): everything but blanks.
    "line": Lazy(rb"(?:[^\s\"'`\\\x00\x1b]|\\(?![nrtvabfeu0x\"'\\\s])[^\s])+"),
    "config": Lazy(rb"(?:[^\s\"'`\\;&|<>(){}\[\],\x00\x1b]|\\(?![nrtvabfeu0x\"'\\\s])[^\s])+"),
    "url": Lazy(rb"(?:[^\s\"'`\\;&|<>(){}\[\],#\x00\x1b])+"),
    "xml": Lazy(rb"[^<\n\x00]+"),
    # ODBC and JDBC: up to the semicolon, blanks included only inside braces.
    "dsn": Lazy(rb"(?:\{[^}\n]{1,200}\}|[^;\"'`\\\s&\x00\x1b])+"),
}


def skip(data: bytes, pos: int, limit: int) -> int:
    r"""Return where the blanks at `pos` end, an escaped text's tabs (`\t`) among them."""
    blanks = _BLANKS.match(data, pos, limit)
    return blanks.end() if blanks else pos


def opening(data: bytes, end: int) -> int:
    """Return where an opening quote that ends at `end` begins, the backslashes before it included."""
    start = end - 1
    while start > 0 and data[start - 1] == 0x5C:
        start -= 1
    return start


def read_quoted(data: bytes, pos: int, limit: int) -> Value | None:
    """Read a quoted value whose opening quote, with its backslashes, stands at `pos`; else None."""
    opening = _OPEN.match(data, pos, min(pos + 24, limit))
    if opening is None:
        return None
    start = opening.end()
    stop = min(start + LONGEST, limit)
    entity = opening.group(3)
    if entity is not None:
        # A typographic quote closes with the next character of its block.
        closing = entity[:-1] + _CLOSING.get(entity[-1:], entity[-1:])
        end = data.find(closing, start, stop)
        return Value(start, end, True, True) if end >= 0 else Value(start, _cut(data, start, stop), True, False)
    k = len(opening.group(1))
    quote = opening.group(2)
    i = start
    while True:
        i = data.find(quote, i, stop)
        if i < 0:
            end = _cut(data, start, stop)
            return Value(start, end, True, False)
        c = i
        while c > start and data[c - 1] == 0x5C:
            c -= 1
        count = i - c
        if k == 0 and quote in (b"'", b"`"):
            # The shell's single quotes know no escape; a language that does writes \' inside.
            if count % 2 == 0 or quote == b"`":
                return Value(start, i, True, True)
        elif count % (2 * (k + 1)) == k:
            return Value(start, i - k, True, True)
        elif count < k:
            return Value(start, i - count, True, False)
        i += 1


def _cut(data: bytes, start: int, stop: int) -> int:
    """Return where an unclosed value ends: at the line's end, or where the text around it ends."""
    newline = data.find(b"\n", start, stop)
    end = stop if newline < 0 else newline
    while end > start and data[end - 1] in b"\r":
        end -= 1
    return end


_FRAGMENT = Lazy(rb"[\"']")


def read(data: bytes, pos: int, limit: int, style: str) -> Value | None:
    """Read the value that begins at `pos`, quoted or bare.

    Args:
        data: the text.
        pos: where the value begins, blanks already skipped.
        limit: where it must have ended (the end of the line or of the text).
        style: how a bare value ends: shell, line, config, url, xml, dsn.
    """
    if pos >= limit:
        return None
    quoted = read_quoted(data, pos, limit)
    if quoted is not None:
        if style == "shell" and quoted.closed:
            return _continue_word(data, quoted, limit)
        return quoted
    bare = _BARE[style].match(data, pos, min(pos + LONGEST, limit))
    if bare is None:
        return None
    value = Value(pos, bare.end(), False, True)
    if style == "shell" and bare.end() < limit and _FRAGMENT.match(data, bare.end()):
        return _continue_word(data, value, limit)
    return value


_APART = Lazy(rb"[\s,]")


def _continue_word(data: bytes, value: Value, limit: int) -> Value:
    """Follow a shell word over its further fragments: `abc'd e'"f"`.

    A quote that is not closed on the line belongs to the text around the word, not to it.
    """
    opened = data[value.start - 1 : value.start] if value.quoted else b""
    end = value.end + 1 if value.quoted else value.end
    if value.quoted and (opened not in (b'"', b"'", b"`") or (value.start >= 2 and data[value.start - 2] == 0x5C)):
        return value  # a quote of a text around this one
    first = end
    for _ in range(16):
        if end >= limit:
            break
        byte = data[end : end + 1]
        if byte in (b'"', b"'"):
            if byte == opened and not value.quoted:
                break
            part = read_quoted(data, end, limit)
            if part is None or not part.closed or part.start == part.end or _APART.search(data, part.start, part.end):
                break
            follow = data[part.end + 1 : part.end + 2]
            if (
                follow
                and follow not in b" \t\r\n;|&)\"'"
                and not follow.isalnum()
                and follow not in b"@!#$%^*-_+=?./:~"
            ):
                break
            if data[part.start : part.start + 1] in b", :}])" and not value.quoted:
                break
            end = part.end + 1
            continue
        bare = _BARE["shell"].match(data, end, min(end + LONGEST, limit))
        if bare is None or bare.group()[:1] in b",:}])=":
            break
        end = bare.end()
    if end == first:
        return value
    start = value.start - 1 if value.quoted else value.start
    return Value(start, end, False, True)


_JSON_ESCAPE = Lazy(rb"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([0-7]{1,3})|(.))", re.DOTALL)
SIMPLE_ESCAPES = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
    b"a": b"\a",
    b"e": b"\x1b",
}


def unescape(value: bytes) -> bytes:
    r"""Undo one level of C or JSON escapes: `\u002d`, `\x2d`, `\055`, `\"`; what is no escape stays."""
    if b"\\" not in value:
        return value

    def one(match: re.Match[bytes]) -> bytes:
        if match.group(1):
            return chr(int(match.group(1), 16)).encode("utf-8", "surrogatepass")
        if match.group(2):
            return bytes([int(match.group(2), 16)])
        if match.group(3):
            return bytes([int(match.group(3), 8) & 255])
        char = match.group(4)
        return SIMPLE_ESCAPES.get(char, char)

    return _JSON_ESCAPE.sub(one, value)


def canonical(value: bytes) -> bytes:
    """Return a secret as its owner typed it: unescaped, without quotes, commas and newlines around it."""
    for _ in range(3):
        if b"\\" not in value:
            break
        value = unescape(value)
    return value.strip(b" \t\r\n\"'`,;")
