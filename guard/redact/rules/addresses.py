"""Credentials in addresses: user and password, tokens, query parameters."""

from __future__ import annotations

import re

from guard.redact import values, words
from guard.redact.lazy import Lazy
from guard.redact.rules.judge import FORMATTED, NUMBER, classes, in_program, is_sample, make
from guard.redact.spans import Span
from guard.redact.text import Text

_THIN = Lazy(rb"[^\s@\"'\\/]{3,128}(?=@)")

_USERINFO = Lazy(rb"([^\s/:@\"'<>`\\?#]{0,128}):((?:[^\s/\"'<>`\\?#]|\\(?![nrt\"'\\]))[^\s\"'<>`\\]{0,255})")


def userinfo(text: Text, end: int) -> list[Span]:
    """Confirm `scheme://user:X@host`; `end` is behind `://user:` and the password's first bytes up to an `@`."""
    data = text.data
    start = data.rfind(b"//", max(0, end - 460), end)
    scheme = data.rfind(b":", max(0, start - 8), start)
    if start < 0 or scheme < 0:
        return []
    start += 2
    limit = min(text.line(start)[1], start + 420)
    found = _USERINFO.match(data, start, limit)
    if found is None:
        return []
    region = found.group(2)
    # The password ends at the last @ of the authority. A slash before any @ means a port and a path, not a password.
    stop = len(region)
    for mark in b"/?#,;&|) ":
        at = region.find(bytes([mark]))
        if 0 <= at < stop and b"@" in region[:at]:
            stop = at
    first_slash = region.find(b"/")
    if re.match(rb"\d{1,5},", region) or (0 <= first_slash < region.find(b"@") and re.match(rb"\d{1,5}/", region)):
        return []
    last = region.rfind(b"@", 0, stop)
    if last < 1:
        return []
    if (
        0 <= first_slash < last
        and b"." not in region[last : last + 60]
        and not re.match(rb"@[A-Za-z0-9\-_]+(?::\d+)?(?:/|\Z)", region[last : last + 60])
    ):
        return []
    begin = found.start(2)
    raw = region[:last]
    value = values.canonical(raw)
    if (
        len(value) < 3
        or words.is_placeholder(value)
        or b"[REDACTED" in raw
        or value == b"REDACTED"
        or value[-1:] == b"]"
    ):
        return []
    if FORMATTED.search(value) or (words.is_expression(value) and re.search(rb"[(\[]", value)):
        return []
    if is_sample(value) and in_program(text, begin):
        return []
    incident = (
        len(value) >= 8
        and classes(value) >= 2
        and words.wordiness(value) < 0.6
        and bool(value.translate(None, b"abcdefghijklmnopqrstuvwxyz:-._"))
    )
    return [Span(begin, begin + last, "url-password", incident, False, False, value)]


def relative(text: Text, end: int) -> list[Span]:
    """Confirm `//user:X@host` without a scheme: X must be nothing that a comment holds; `end` is one byte into host."""
    data = text.data
    start = data.rfind(b"//", max(0, end - 300), end)
    if start < 0 or data[max(0, start - 1) : start] in (b":", b"/", b"\\"):
        return []
    user, _colon, raw = data[start + 2 : end - 2].partition(b":")
    value = values.canonical(raw)
    if classes(value) < 2 or words.wordiness(value) > 0.6 or words.is_placeholder(value) or FORMATTED.search(value):
        return []
    begin = start + 3 + len(user)
    if is_sample(value) and in_program(text, begin):
        return []
    return [Span(begin, end - 2, "url-password", False, False, False, value)]


def url_user(text: Text, end: int) -> list[Span]:
    """Confirm `https://TOKEN@host`: a random word alone before the `@`."""
    data = text.data
    start = data.rfind(b"://", max(0, end - 300), end) + 3
    value = data[start : end - 1]
    if start < 3 or not words.looks_random(value, 20) or b"." in value or words.is_example(value):
        return []
    return [Span(start, end - 1, "url-token", True, False, False, value)]


_PATH_TOKEN = Lazy(rb"[A-Za-z0-9_\-]{20,100}")
_TEAM_TOKEN = Lazy(rb"[a-z]{2}-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


def path_token(text: Text, end: int) -> list[Span]:
    """Confirm the token in a conda channel's address, `https://host/t/TOKEN/channel`; `end` is 20 bytes into it."""
    found = _PATH_TOKEN.match(text.data, end - 20, text.line(end)[1])
    value = found.group() if found is not None else b""
    if not (_TEAM_TOKEN.match(value) or (words.looks_random(value, 20) and not words.is_example(value))):
        return []
    return [Span(end - 20, end - 20 + len(value), "url-token", False, False, False, value)]


def query(text: Text, end: int) -> list[Span]:
    """Confirm `?key=X` and `&sig=X`, names that mean a secret only in a query; `end` is behind the `=`."""
    data = text.data
    value = values.read(data, end, text.line(end)[1], "url")
    if value is None or value.quoted:
        return []
    raw = data[value.start : value.end]
    if b"=" in raw.rstrip(b"="):
        return []  # `;a.key=b.key=c`: a chain of assignments
    stop = raw.find(b"%26")
    canonical = values.canonical(raw)
    if stop >= 0:
        canonical = values.canonical(raw[:stop])
    else:
        stop = len(raw)
    if (
        b"[REDACTED" in raw
        or words.is_placeholder(canonical)
        or FORMATTED.search(canonical)
        or words.is_expression(canonical)
    ):
        return []
    if not (
        words.looks_random(canonical, 12)
        or (
            len(canonical) >= 8
            and re.search(rb"[0-9]", canonical)
            and words.wordiness(canonical) < 0.5
            and not NUMBER.match(canonical)
        )
    ):
        return []
    return [
        Span(
            value.start,
            value.start + stop,
            "url-token",
            words.looks_random(canonical, 20),
            False,
            False,
            canonical,
        )
    ]


def jdbc_thin(text: Text, end: int) -> list[Span]:
    """Confirm Oracle's `thin:user/X@host` and `sqlplus user/X@db`; `end` is behind `user/`."""
    data = text.data
    found = _THIN.match(data, end, min(end + 160, text.line(end)[1]))
    if found is None or words.is_placeholder(found.group()):
        return []
    return make(text, found.start(), found.end(), words.PASSWORD, "url", False, "url-password")
