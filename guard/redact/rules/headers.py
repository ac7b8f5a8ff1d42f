# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""Credentials in headers: Authorization in all its forms, bearer tokens, cookies."""

from __future__ import annotations

import re

from guard.redact import values, words
from guard.redact.lazy import Lazy
from guard.redact.rules.judge import DIGIT, FORMATTED, classes
from guard.redact.spans import Span
from guard.redact.text import Text

_HEADER_END = Lazy(rb"[\"'\\\r\n<>`\0]")

_SCHEME = Lazy(
    rb"(?i)(?:bearer|basic|token|apikey|api-key|key|digest|negotiate|ntlm|jwt|splunk|oauth|genietoken|snowflake|sso-key|ssws)(?:[ \t+]|%20|\\u0020|\\{1,7} )+"
)
_OTHER_SCHEME = Lazy(rb"[A-Za-z][A-Za-z0-9_\-]{2,24}[ \t]{1,4}(?=[A-Za-z0-9._~+/\-=]{16,}\Z|[A-Za-z0-9._~+/\-=]{16,}[\s\"'\\])")
_CREDENTIAL = Lazy(rb"[A-Za-z0-9._~+/\-=|:%!@#$^*]{3,8192}")
_AWS_SIGNATURE = Lazy(rb"(?i)signature[=\"' ]{1,3}([0-9a-zA-Z/+=%]{16,128})")


def bearer_value(text: Text, start: int, end: int) -> list[Span]:
    """Return the credential in a header's value: the part behind the scheme, or all of it."""
    data = text.data
    scheme = _SCHEME.match(data, start, end)
    at = scheme.end() if scheme else start
    raw = data[at:end]
    value = values.canonical(raw)
    if len(value) < 4 or words.is_placeholder(value) or FORMATTED.search(value):
        return []
    if b"://" in value or re.match(rb"[a-z_]{3,24}=", value):
        return []  # a link, or a list of parameters that other rules read
    if scheme is None:
        if data[start : start + 4].upper() in (b"AWS4", b"AWS3"):
            signed = _AWS_SIGNATURE.search(data, start, end)
            return (
                [Span(signed.start(1), signed.end(1), "signature", False, False, False, signed.group(1))]
                if signed
                else []
            )
        other = _OTHER_SCHEME.match(data, start, end)
        if other is not None:  # a scheme of a provider's own
            at = other.end()
            raw = data[at:end]
            value = values.canonical(raw)
        if b" " in value or not words.looks_random(value, 16):
            return []
    elif value.isalpha() and value.islower() and words.wordiness(value) > 0.6:
        return []
    if words.is_expression(value) and (b"(" in value or b"[" in value):
        return []
    basic = scheme is not None and scheme.group()[:5].lower() == b"basic"
    kind = "basic-auth" if basic else "bearer-token"
    incident = _basic_strict(value) if basic else words.looks_random(value, 24) and not words.is_example(value)
    return [Span(at, at + len(raw), kind, incident, False, False, value)]


def _basic_strict(value: bytes) -> bool:
    """Say whether a Basic credential holds a password that alone would convince a reader."""
    import binascii

    try:
        password = binascii.a2b_base64(value + b"=" * (-len(value) % 4)).partition(b":")[2]
    except binascii.Error:
        return False
    return len(password) >= 12 and classes(password) >= 3 and words.wordiness(password) < 0.4


_HEADER_SEPARATOR = Lazy(rb"\\{0,7}[\"']?\]?[ \t]{0,4}(?:[:=,]|=>)(?:[ \t]|\\{1,7} ){0,4}(?:\[[ \t]?)?(?:\\{0,7}[\"'])?")


def authorization(text: Text, end: int) -> list[Span]:
    """Confirm `Authorization: Bearer X` and its forms in JSON, argument lists and code; `end` is behind the name."""
    data = text.data
    limit = text.line(end)[1]
    separator = _HEADER_SEPARATOR.match(data, end, min(end + 24, limit))
    if separator is None:
        return []
    start = separator.end()
    scheme = _SCHEME.match(data, start, min(start + 24, limit))
    if scheme is not None:
        found = _CREDENTIAL.match(data, scheme.end(), min(scheme.end() + 8192, limit))
        if found is None:
            return []
        stop = found.end()
        return bearer_value(text, start, stop)
    stop_at = _HEADER_END.search(data, start, min(start + 2048, limit))
    stop = stop_at.start() if stop_at else min(start + 2048, limit)
    while stop > start and data[stop - 1] in b" \t":
        stop -= 1
    return bearer_value(text, start, stop)


def bearer(text: Text, end: int) -> list[Span]:
    """Confirm `Bearer X` where no header name stands before it; the value must look drawn at random."""
    data = text.data
    found = _CREDENTIAL.match(data, end, min(end + 8192, text.line(end)[1]))
    if found is None:
        return []
    value = found.group().rstrip(b".,:=") if found.group()[-1:] in b".,:" else found.group()
    if not words.looks_random(value, 16) or words.is_example(value) or b"://" in value:
        return []
    return [Span(end, end + len(value), "bearer-token", True, False, False, values.canonical(value))]


_COOKIE_PAIR = Lazy(rb"([A-Za-z0-9_.\-]{1,64})=([^;\s\"'\\,]{6,4096})")


def cookie(text: Text, end: int) -> list[Span]:
    """Confirm session values in `Cookie:` and `Set-Cookie:`; `end` is behind the name."""
    data = text.data
    limit = text.line(end)[1]
    separator = _HEADER_SEPARATOR.match(data, end, min(end + 24, limit))
    if separator is None:
        return []
    spans: list[Span] = []
    pos = separator.end()
    for match in _COOKIE_PAIR.finditer(data, pos, min(pos + 8192, limit)):
        if match.start() > pos + 64 and not spans and data[pos : match.start()].strip(b"; ").count(b" ") > 3:
            break
        name = match.group(1).lower()
        if name in (b"expires", b"path", b"domain", b"max-age", b"samesite", b"version", b"_ga", b"_gid"):
            continue
        value = match.group(2)
        if words.is_placeholder(value):
            continue
        session = re.search(rb"sess|sid|token|auth|jwt|csrf|xsrf|login|remember|user|secure|key", name) is not None
        if (
            session and (DIGIT.search(value) or len(value) >= 16) and not words.is_expression(value)
        ) or words.looks_random(value, 16):
            spans.append(Span(match.start(2), match.end(2), "cookie", False, False, False, value))
    return spans
