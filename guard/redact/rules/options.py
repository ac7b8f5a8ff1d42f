# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""Values behind an option, a setting, a name in a call, or a name in a pair."""

from __future__ import annotations

from guard.redact import values, words
from guard.redact.lazy import Lazy
from guard.redact.rules.assignments import NAME_REVERSED, kind_of, own_style, prose_follows
from guard.redact.rules.commands import CONTINUED
from guard.redact.rules.headers import bearer_value
from guard.redact.rules.judge import make
from guard.redact.spans import Span
from guard.redact.text import Text

_SET_NAME = Lazy(rb"\\?[\"']?(?:\$env:)?([A-Za-z_][A-Za-z0-9_.\-]{1,80})\\?[\"']?[ \t]{1,8}")

_CONTINUED = Lazy(CONTINUED)
_FLAG_REVERSED = Lazy(rb"([A-Za-z0-9_.\-]{0,48}[A-Za-z0-9])(-{1,2}|/)(?=[\s\"'=,(\[;|]|[nrt]\\|\Z)")


def flag(text: Text, end: int) -> list[Span]:
    """Confirm `--token X`, `--token=X`, `-password X`, and `"--token", "X"`; `end` is behind name and separator."""
    data = text.data
    window = data[max(0, end - 96) : end]
    head = window.rstrip(b" \t=")
    listed = head[-1:] in b"\"',"
    if listed:
        head = head.rstrip(b"\"', \t\\")
    found = _FLAG_REVERSED.match(head[::-1])
    if found is None:
        return []
    name = found.group(1)[::-1]
    strength = words.name_strength(name)
    if strength == 0 or found.group(2) == b"/":
        return []
    limit = text.command_end(end)
    pos = end
    if listed:
        # the opening quote of the next argument is the last byte of the match
        value = values.read_quoted(data, values.opening(data, end), limit)
    else:
        if window[-1:] == b"=" and data[pos : pos + 1] in (b" ", b"\t"):
            return []
        while pos < limit and data[pos] in b" \t":
            pos += 1
        continued = _CONTINUED.match(data, pos, limit)
        pos = continued.end() if continued else pos
        value = values.read(data, pos, limit, "shell")
    if value is None or value.end == value.start:
        return []
    raw = data[value.start : value.end]
    if not value.quoted and (
        raw[:1] == b"-" or raw[:1] in b"[" or (raw.isupper() and raw.replace(b"_", b"").isalpha())
    ):
        return []
    if data[value.end : value.end + 1] == b"(":
        return []
    spaced = window[-1:] in b" \t" and not listed
    if not value.quoted and spaced and raw.isalpha() and prose_follows(data, value.end, limit):
        return []
    if not value.quoted and raw[-1:] in b",.:)]":
        raw = raw.rstrip(b",.:)]")
    style = (
        "named"
        if name == b"auth"
        else "cli"
        if not (spaced and raw.isalpha() and raw.islower() and words.wordiness(raw) > 0.8 and len(raw) < 5)
        else "config"
    )
    return make(
        text,
        value.start,
        value.start + len(raw),
        strength,
        style,
        value.quoted,
        kind_of(name, strength),
    )


def setter(text: Text, end: int) -> list[Span]:
    """Confirm `set -gx NAME value`, `setenv NAME value`, `ENV NAME value`, `#define NAME "value"`."""
    data = text.data
    limit = text.command_end(end)
    begin = end
    while begin > 0 and data[begin - 1] not in b" \t\n" and end - begin < 120:
        begin -= 1
    end = begin
    named = _SET_NAME.match(data, end, min(end + 120, limit))
    if named is None:
        return []
    strength = words.name_strength(named.group(1))
    if strength == 0:
        return []
    value = values.read(data, named.end(), limit, "shell")
    if value is None or data[value.end : value.end + 1] == b"(":
        return []
    raw = data[value.start : value.end]
    macro = data[max(0, begin - 12) : begin].rstrip().endswith(b"define")
    if raw[:1] == b"=" or (macro and not value.quoted):
        return []
    style = "code" if macro else own_style(named.group(1), "env") if value.quoted or named.group(1).isupper() else "config"
    return make(text, value.start, value.end, strength, style, value.quoted, kind_of(named.group(1), strength))


def called(text: Text, end: int) -> list[Span]:
    """Confirm a value that stands as the argument behind a name: `setenv("NAME", "v")`, `getenv('NAME', 'v')`."""
    data = text.data
    start = values.opening(data, end)
    window = data[max(0, start - 120) : start].rstrip(b", \t")
    stripped = window.rstrip(b"\"'").rstrip(b"\\")
    found = NAME_REVERSED.match(stripped[::-1])
    if found is None or len(stripped) == len(window):
        return []
    name = found.group()[::-1]
    if name[:1] == b"-":
        return []
    strength = words.name_strength(name)
    if strength == 0:
        return []
    value = values.read_quoted(data, start, text.line(end)[1])
    if value is None or not value.closed:
        return []
    before = stripped[: len(stripped) - len(name)].rstrip(b"\"'\\ ")[-24:].lower()
    setting = before.endswith(
        (
            b"setenv(",
            b"putenv(",
            b"getenv(",
            b"environ.get(",
            b"setvar(",
            b"setdefault(",
            b"setproperty(",
            b"variable(",
            b"pushenv(",
            b"define(",
        )
    )
    if before.endswith(b"[") and name.lower() in (b"authorization",):
        return bearer_value(text, value.start, value.end)
    style = own_style(name, "env" if setting else "call")
    return make(text, value.start, value.end, strength, style, True, kind_of(name, strength))


def pair(text: Text, end: int) -> list[Span]:
    """Confirm `{"name": "DB_PASSWORD", "value": "x"}` and `- name: X` followed by `  value: y`; `end` behind `value:`."""
    data = text.data
    limit = text.line(end)[1]
    head = data[max(0, end - 400) : end]
    named = list(_PAIR_NAME.finditer(head))
    if not named:
        return []
    name = named[-1].group(1)
    pos = end
    while pos < limit and data[pos] in b" \t":
        pos += 1
    value = values.read(data, pos, limit, "config")
    if value is None:
        return []
    if name.lower() in (b"authorization", b"proxy-authorization", b"cookie", b"set-cookie"):
        return bearer_value(text, value.start, value.end)
    strength = words.name_strength(name)
    if strength == 0:
        return []
    style = own_style(name, "env" if name.isupper() else "code" if value.quoted else "config")
    return make(text, value.start, value.end, strength, style, value.quoted, kind_of(name, strength))


_PAIR_NAME = Lazy(
    rb"(?i)(?:name|key|id|field|header|parameter|property|input[ \t]{1,4}type)\\{0,7}[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,7}[\"']?([A-Za-z][A-Za-z0-9_.\-]{1,80})(?=\\{0,7}[\"'\s,]|\\{1,7}[nt])"
)
