# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""Private keys that span lines: PEM, PGP and PuTTY blocks, on many lines, on one, escaped, prefixed or cut off."""

from __future__ import annotations

import re
from typing import Final

from guard.redact.lazy import Lazy
from guard.redact.spans import Span
from guard.redact.text import Text, begins_token

BLOCK: Final = 32768
"""No private key's text form is longer than this, in bytes."""

BEGIN = Lazy(
    rb"-----BEGIN (?:[A-Z0-9]{2,12} ){0,4}PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-[123]:|---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----"
)
_END = Lazy(rb"-----END (?:[A-Z0-9]{2,12} ){0,4}PRIVATE KEY(?: BLOCK)?-----|---- END SSH2 ENCRYPTED PRIVATE KEY ----")
# What a PEM body is made of, escapes of line ends and prefixes of diffs, quotes and comments included.
_BODY = Lazy(
    rb"(?:[A-Za-z0-9+/=\s]|\\{1,8}(?:[nrt/]|u000[aAdD]|x0[aAdD]|012|015)|\\{0,7}[\"'][ \t,+.\\]{0,4}(?:\\?\n[ \t]{0,40})?\\{0,7}[\"']|[>#|*+\-:]{1,3}|\x1b\[[0-9;?]{0,12}[A-Za-z]|(?:Proc-Type|DEK-Info|Version|Comment|Charset|Hash|MessageID)[:= ][^\n\\]{0,120})+"
)
_LINE_BODY = Lazy(
    rb"[A-Za-z0-9+/]{16,}={0,2}|(?:Proc-Type|DEK-Info|Version|Comment)[: ]|\A[\s>#|*+\-\"',;]*\Z|[A-Za-z0-9+/]{2,}={0,2}[\"',;\\]*\s*\Z"
)
_PUTTY_PRIVATE = Lazy(rb"Private-Lines: (\d{1,3})")
_PUTTY_MAC = Lazy(rb"Private-(?:MAC|Hash): [0-9a-f]{16,128}")


def extent(data: bytes, start: int) -> tuple[int, bool, bool]:
    """Return where the block that begins at `start` ends, whether it is whole, and whether more text could prolong it.

    Args:
        data: the text, at least `BLOCK` bytes of it behind `start` unless it ends earlier.
        start: the offset of `-----BEGIN`.
    """
    limit = min(len(data), start + BLOCK)
    head_end = data.find(b"\n", start, limit)
    header = BEGIN.match(data, start, limit)
    if header is None:
        return start, False, False
    if header.group()[:5] == b"PuTTY":
        return _putty_extent(data, start, limit)
    if head_end >= 0 and data[header.end() : head_end].strip(b"\\rn\r\"' ,+;"):
        # Escaped, all on this line: what stands on the next belongs to somebody else.
        limit = head_end
    again = data.find(b"-----BEGIN", header.end(), limit)
    body_limit = limit if again < 0 else again
    end = _END.search(data, header.end(), body_limit)
    if end is not None:
        return end.end(), True, False
    pos = header.end()
    if head_end < 0 or head_end >= body_limit:
        return _run(data, pos, body_limit), False, limit == len(data) and again < 0
    # Cut off: as long as whole lines look like a key's body, behind whatever prefix the header's line had.
    pos = head_end
    first = data[header.end() : head_end].strip(b"\r\n\"' ,")
    if first:
        stop = _run(data, header.end(), head_end)
        if stop < head_end - 3:
            return stop, False, False
    line_start = data.rfind(b"\n", 0, start) + 1
    prefix = data[line_start:start]
    while pos < body_limit:
        following = data.find(b"\n", pos + 1, body_limit)
        stop = body_limit if following < 0 else following
        line = data[pos + 1 : stop]
        body = line[len(prefix) :] if prefix and line.startswith(prefix) else _strip_prefix(line, prefix)
        if following < 0 and not line:
            return pos, False, limit == len(data)
        if not _LINE_BODY.search(body) or (b" " in body.strip() and b":" not in body and len(body.split()) > 2):
            return pos, False, False
        pos = stop
    return pos, False, limit == len(data) and again < 0


def _strip_prefix(line: bytes, prefix: bytes) -> bytes:
    """Take away a log's or a quotation's prefix of the same length as the header's (time stamps differ in digits)."""
    if prefix and len(line) > len(prefix) and re.sub(rb"\d", b"0", line[: len(prefix)]) == re.sub(rb"\d", b"0", prefix):
        return line[len(prefix) :]
    return line


def _run(data: bytes, pos: int, limit: int) -> int:
    """Return the end of a body on one line: the last base64 run of the kind that a key's body has."""
    found = _BODY.match(data, pos, limit)
    if found is None:
        return pos
    end = found.end()
    while end > pos and data[end - 1] in b"\"',;}] \t\r\n.:-+>#|*&%$":
        end -= 1
    return end


def _putty_extent(data: bytes, start: int, limit: int) -> tuple[int, bool, bool]:
    lines = _PUTTY_PRIVATE.search(data, start, limit)
    if lines is None:
        return start, False, limit == len(data) and limit - start < 4096
    mac = _PUTTY_MAC.search(data, lines.end(), limit)
    if mac is not None:
        return mac.end(), True, False
    return min(limit, _run(data, lines.end(), limit)), False, limit == len(data)


def block(text: Text, end: int) -> list[Span]:
    """Confirm a private key block; `end` is behind the header's first words."""
    data = text.data
    low = max(0, end - 80)
    start = max(
        data.rfind(b"---- BEGIN", low, end),
        data.rfind(b"-----BEGIN", low, end),
        data.rfind(b"PuTTY-User-Key-File", low, end),
    )
    if start < 0:
        return []
    stop, whole, _more = extent(data, start)
    header = BEGIN.match(data, start)
    if header is None:
        return []
    if data[start : start + 5] == b"PuTTY":
        lines = _PUTTY_PRIVATE.search(data, start, stop)
        if lines is None:
            return []
        body_start = lines.end()
        if stop - body_start < 16:
            return []
        value = re.sub(rb"[^A-Za-z0-9+/=]", b"", data[body_start:stop])
        return [Span(lines.start(), stop, "putty-key", whole, not whole, True, value)]
    body = data[header.end() : stop]
    if len(body) < 16 or b"[REDACTED" in body:
        return []
    value = re.sub(rb"\\{1,8}(?:[nrt]|u000[aAdD]|x0[aAdD]|012|015)|\x1b\[[0-9;?]{0,12}[A-Za-z]", b"", body)
    if not re.search(rb"[A-Za-z0-9+/]{16}", value):
        return []  # a program that speaks of such blocks
    value = re.sub(rb"-----(?:END[A-Z0-9 ]*-----)?|[^A-Za-z0-9+/=]", b"", value)
    kind = "pgp-private-key" if b"PGP" in header.group() else "private-key"
    return [Span(start, stop, kind, whole and len(set(value)) > 20 and len(value) >= 40, not whole, True, value)]


_WRAPPED = Lazy(rb"\r?\n[ \t]{0,12}[A-Za-z0-9+/=]{4,80}(?=\r?\n|\Z)")
_ENCODED = Lazy(rb"[A-Za-z0-9+/=_\-]{40,65536}")


def encoded_block(text: Text, end: int) -> list[Span]:
    """Confirm a PEM block in base64 (`LS0tLS1CRUdJTi…`); `end` is behind that start."""
    import base64
    import binascii

    data = text.data
    start = data.rfind(b"LS0tLS1", max(0, end - 40), end)
    if start < 0 or not begins_token(data, start, b""):
        return []
    found = _ENCODED.match(data, start, min(start + 65536, len(data)))
    if found is None:
        return []
    try:
        head = base64.b64decode(found.group()[:80])
    except (binascii.Error, ValueError):
        return []
    if b"PRIVATE KEY" not in head:
        return []
    stop = found.end()
    # wrapped at 60 to 76 columns (base64 without -w0)
    while (more := _WRAPPED.match(data, stop, min(stop + 128, len(data)))) and stop - start < BLOCK:
        stop = more.end()
    return [Span(start, stop, "private-key", True, False, True, re.sub(rb"\s", b"", data[start:stop]))]


def open_block(data: bytes, upto: int) -> int | None:
    """Return where a key block begins in `data` that is still open at offset `upto`, up to which lines are complete.

    For the stream: None when nothing behind `upto` can change what stands before it.
    """
    found = BEGIN.search(data, 0, upto)
    if found is not None:
        return found.start() if extent(data[:upto], found.start())[2] else None
    at = data.find(b"LS0tLS1", 0, upto)
    # base64 wrapped over lines: open while whole lines of base64 follow
    return at if at >= 0 and _WRAPPED_LINES.fullmatch(data, at, upto) is not None else None


_WRAPPED_LINES = Lazy(rb"(?:[A-Za-z0-9+/=]{1,80}\r?\n[ \t]{0,12})+")


_BODY_LINE = Lazy(rb"(?:\\{1,8}[nr]|\s)?[A-Za-z0-9+/]{16,}={0,2}(?=[\\\s\"'=]|\Z)")


def body_end(data: bytes, start: int, limit: int) -> int:
    """Return where a key's body that goes on at `start` ends, its last line included; `start` when none does."""
    end = _END.search(data, start, limit)
    if end is not None and _BODY.fullmatch(data, start, end.start()) is not None:
        return end.end()
    found = _BODY.match(data, start, limit)
    head = _BODY_LINE.match(data, start, limit)
    if found is None or head is None or not head.group().strip(b"0123456789abcdefABCDEF"):
        return start  # prose, or hexadecimal: what was cut is followed by something else
    stop = found.end()
    tail = data.find(b"-----", stop, limit)
    return limit if stop == limit or tail == stop else stop
