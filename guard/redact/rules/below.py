# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""Values that stand on the line below their name, behind what announces them, or behind a full-width separator."""

from __future__ import annotations

import re

from guard.redact import values, words
from guard.redact.lazy import Lazy
from guard.redact.rules.assignments import kind_of, password_told, unescaped
from guard.redact.rules.judge import make
from guard.redact.spans import Span
from guard.redact.text import Text, begins_token

MARK = rb"(?:[|>][+-]?|\(|\\{1,3}|<<[~-]?[\"']?[A-Za-z_]{1,12}[\"']?)?"
"""What may stand between a separator and the end of its line: YAML's block scalars, a parenthesis, a here-document."""

LINE_END = rb"[ \t]{0,2}(?:\\?\r?\n|\\{1,7}n|\\{1,7}r\\{1,7}n)"

_NAMED_ABOVE = Lazy(rb"([A-Za-z0-9_.\-]{1,64})(?:\\{0,7}[\"'`])?[ \t]{0,4}[:=][ \t]{0,4}(" + MARK + rb")" + LINE_END + rb".\Z", re.DOTALL)
_INDENT = Lazy(rb"(?:[ \t+>|]|\\{1,7}t|-(?=[ \t])){0,40}")
_LINE_OVER = Lazy(rb"[ \t,;)]{0,4}(?:[\r\n\"'<\0]|\\{1,7}[nr\"']|\Z)")


def below(text: Text, end: int) -> list[Span]:
    r"""Confirm `password: |`, `token = (`, `secret:` with X on the next line; `end` is one byte into that line.

    X is whatever a block scalar or a here-document holds for a password; elsewhere it must look drawn at random.
    """
    data = text.data
    low = max(0, end - 160)
    newline = data.rfind(b"\n", max(0, end - 2), end)
    if newline > low:
        low = max(low, data.rfind(b"\n", low, newline) + 1)  # the line above, and no more of them
    named = _NAMED_ABOVE.search(data, low, end)
    if named is None:
        return []
    name = unescaped(data, named.start(), named.group(1)).lstrip(b"-.")
    strength = words.name_strength(name)
    limit = text.line(end)[1]
    indent = _INDENT.match(data, end - 1, limit)
    if strength < words.KEY or indent is None:
        return []
    value = values.read(data, indent.end(), limit, "line")
    if value is None or not value.closed:
        return []
    raw = data[value.start : value.end]
    block = named.group(2)[:1] in (b"|", b">", b"<") and named.group(2) != b""
    if not value.quoted:
        raw = raw.rstrip(b",;)")
        if _LINE_OVER.match(data, value.start + len(raw)) is None or raw.endswith(b":"):
            return []
    drawn = words.looks_random(raw, 16) or (strength == words.PASSWORD and password_told(raw))
    if not drawn and not (block and strength == words.PASSWORD):
        return []
    return make(text, value.start, value.start + len(raw), strength, "line" if block else "cli", value.quoted, kind_of(name, strength))


ANNOUNCED = (
    rb"::add-mask::|::set-output name=[a-z0-9_\-]{0,24}(?:token|secret|password|key)[a-z0-9_\-]{0,12}::|;issecret=true[^\]\n]{0,40}\]|(?:unseal|recovery) key [0-9]{1,2}(?: \([^)\n]{1,40}\))?:[ \t]|"
    rb"(?-i:AUTH|HELLO 3 AUTH)[ \t](?:[a-z][a-z0-9_\-]{0,31}[ \t])?|(?-i:EAP|XAUTH|NTLM)[ \t]{1,4}\\{0,7}\"|"
    rb"snmp-server community[ \t]|(?:tacacs|radius)-server (?:host [^ \n]{1,60} )?key[ \t](?:[057][ \t])?|"
    rb"password is generated for [^\s:]{1,80}:[ \t]|sonar\.login[=:][ \t]?|identified by[ \t]|conn(?:ect)?[ \t][a-z0-9_$#]{1,30}/|"
    rb"(?:github|gitlab|bitbucket)-(?:oauth|token)(?:\.[a-z.]{3,40}[ \t]|\\{0,7}\"[ \t]{0,4}:[ \t]{0,4}\{[\s\\n]{0,16}\\{0,7}\"[a-z.]{3,40}\\{0,7}\"[ \t]{0,4}:[ \t]{0,4}\\{0,7}\")"
)
"""What stands before a secret and nothing else, in workflows, Vault, Redis, IPsec, routers, MySQL, SQL*Plus, Composer."""

_CONNECT = Lazy(rb"(?i)conn(?:ect)?[ \t][A-Za-z0-9_$#]{1,30}/\Z")
_WORD = Lazy(rb"[^\s\"'`\\<>;@,\0]{6,400}")


def announced(text: Text, end: int) -> list[Span]:
    """Confirm what is announced as a secret; `end` is behind the announcement."""
    data = text.data
    word = _WORD.match(data, end, min(end + 400, text.line(end)[1]))
    if word is None:
        return []
    connect = _CONNECT.search(data, max(0, end - 48), end)
    head = data[max(text.line(end)[0], end - 100) : end].lower()
    if connect is not None and not begins_token(data, connect.start(), b"_"):
        return []
    if head[-14:-1] == b"identified by" and b"user " not in head:
        return []
    raw = word.group()
    if data[end - 1 : end] == b'"':
        value = values.read_quoted(data, values.opening(data, end), text.line(end)[1])
        raw = data[end : value.end] if value is not None and value.closed else raw
    masked = data[max(0, end - 12) : end] == b"::add-mask::"
    if masked and raw[:1] in b"|()[]{}$*":
        return []  # a text about masking
    if not (masked or words.looks_random(raw, 16) or password_told(raw)):
        return []
    strength = words.TOKEN if words.looks_random(raw, 20) else words.PASSWORD
    return make(text, end, end + len(raw), strength, "cli", False)


def key_pair(text: Text, end: int) -> list[Span]:
    """Confirm `AKIA…:X`, `AKIA…,X`, an AWS key's two halves; `end` is behind the forty characters of X."""
    data = text.data
    raw = data[end - 40 : end]
    if data[end : end + 1].isalnum() or data[end : end + 1] in (b"+", b"/", b"=") or not words.looks_random(raw, 40):
        return []
    return make(text, end - 40, end, words.TOKEN, "cli", False, "secret")


_WIDE_NAME = re.compile(rb"(?:[A-Za-z0-9_.\-]|[\x80-\xff]){1,64}\Z")


def wide(text: Text, end: int) -> list[Span]:
    """Confirm a value behind a full-width colon or equals sign, or a Chinese `is`; `end` is behind it."""
    data = text.data
    head = data[max(0, end - 80) : end - 3].rstrip(b" \t").rstrip(b"\"'`*")
    name = _WIDE_NAME.search(head)
    strength = words.name_strength(name.group()) if name is not None else 0
    limit = text.line(end)[1]
    value = values.read(data, values.skip(data, end, limit), limit, "shell")
    if name is None or strength < words.KEY or value is None:
        return []
    raw = data[value.start : value.end]
    if not (words.looks_random(raw, 16) or (strength == words.PASSWORD and password_told(raw))):
        return []
    return make(text, value.start, value.end, strength, "cli", value.quoted, kind_of(name.group(), strength))
