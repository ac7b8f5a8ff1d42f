# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""Passwords in statements and in files of credentials: SQL, netrc, .pgpass, Docker; keys of unknown providers."""

from __future__ import annotations

import re

from guard.redact import values, words
from guard.redact.lazy import Lazy
from guard.redact.rules.assignments import kind_of, password_told, unescaped
from guard.redact.rules.judge import classes, make
from guard.redact.spans import Span
from guard.redact.text import Text, begins_token

_AUTH_VALUE = Lazy(rb"[A-Za-z0-9+/]{8,400}={0,2}")

_AUTH_SEPARATOR = Lazy(rb"\\{0,7}[\"']?[ \t]{0,4}[:=][ \t]{0,4}(?:\\{0,7}[\"'])?")


def statement(text: Text, end: int) -> list[Span]:
    """Confirm SQL's `IDENTIFIED BY 'X'`, `PASSWORD 'X'`, `SET PASSWORD … = 'X'`; `end` is behind the opening quote."""
    data = text.data
    start = values.opening(data, end)
    value = values.read_quoted(data, start, text.line(end)[1])
    if value is None:
        return []
    # In prose things are identified by "names"; a statement shouts or uses single quotes.
    spoken = _STATEMENT_WORD.findall(data[max(0, start - 100) : start])
    shouted = bool(spoken) and spoken[-1].isupper()
    if spoken and spoken[-1] in (b"KEY", b"SECRET") and not password_told(data[value.start : value.end]):
        return []  # a grammar's own words
    if not value.closed and b'"' in data[value.start : value.end]:
        return []  # the quote belonged to the text around it
    if not shouted and (
        data[end - 1 : end] != b"'"
        or not re.search(rb"(?i)user|pgp_sym|sp_|role|login|set |grant|alter|create|pragma", data[max(0, start - 200) : start])
    ):
        return []
    return make(text, value.start, value.end, words.PASSWORD, "sql", True, "password")


_STATEMENT_WORD = Lazy(rb"(?i)identified|password|plugin|pragma|\bsecret|\bkey|sp_addlogin|pgp_sym_[a-z]{7}")


def netrc(text: Text, end: int) -> list[Span]:
    """Confirm netrc's `machine … login … password X`, on one line or over three; `end` is behind `password `."""
    data = text.data
    line_start, line_end = text.line(end)
    # `\n` in an escaped text is a line's end too.
    head = data[max(0, line_start - 256, end - 400) : end]
    if not _NETRC.search(head):
        return []
    pos = end
    value = values.read(data, pos, line_end, "shell")
    if value is None:
        return []
    return make(text, value.start, value.end, words.PASSWORD, "line", value.quoted, "password")


_NETRC = Lazy(
    rb"(?:machine[ \t]+\S+?|(?:\A|\n|\\n)[ \t]*default)(?:[\s+>|-]|\\{1,4}[nt])+(?:(?:login|user|account|port)[ \t]+\S+?(?:[\s+>|-]|\\{1,4}[nt])+){0,3}(?:password|passwd)[ \t]+\Z"
)
_PGPASS = Lazy(
    rb"(?:\\?[A-Za-z0-9_.*-]|\\:){1,80}:(?:\d{4,5}|\*):(?:[A-Za-z0-9_.\-*]){1,64}:(?:[A-Za-z0-9_.\-@*]){1,64}:"
)


def pgpass(text: Text, end: int) -> list[Span]:
    """Confirm .pgpass's `host:port:db:user:X`; `end` is behind the first byte of X."""
    data = text.data
    line_start, line_end = text.line(end)
    begin = max(line_start, end - 240)
    for at in range(end - 2, begin - 1, -1):
        if data[at] in b" \t\"'`\0;>" or (data[at] == 0x6E and at > 0 and data[at - 1] == 0x5C):
            begin = at + 1
            break
    if begin == line_start and data[begin : begin + 1] in b"+-":
        begin += 1
    found = _PGPASS.match(data, begin, end)
    if found is None or found.end() != end - 1:
        return []
    value = values.read(data, end - 1, line_end, "line")
    if value is None or value.quoted:
        return []
    raw = data[value.start : value.end]
    if data[value.end : value.end + 1] not in (b"", b"\n", b"\r", b"\\", b'"', b"'", b"`", b"<", b"\0", b" ") or (
        b":" in raw and b"\\:" not in raw
    ):
        return []
    if raw.isdigit() and len(raw) < 6:
        return []
    return make(text, value.start, value.end, words.PASSWORD, "line", False, "password")


def docker_auth(text: Text, end: int) -> list[Span]:
    """Confirm `"auth": "base64 of user:password"` of .docker/config.json and .npmrc's `_auth=`; `end` behind `auth`."""
    import base64
    import binascii

    data = text.data
    end = max(data.rfind(b"auth", max(0, end - 24), end), data.rfind(b"AUTH", max(0, end - 24), end)) + 4
    separator = _AUTH_SEPARATOR.match(data, end, min(end + 32, text.line(end)[1]))
    if separator is None:
        return []
    found = _AUTH_VALUE.match(data, separator.end(), min(separator.end() + 410, text.line(end)[1]))
    if found is None:
        return []
    try:
        plain = base64.b64decode(found.group() + b"=" * (-len(found.group()) % 4))
    except (binascii.Error, ValueError):
        return []
    if not re.match(rb"[\x21-\x7e]{1,128}:[\x20-\x7e]{3,400}\Z", plain) or words.is_placeholder(
        plain.partition(b":")[2]
    ):
        return []
    return [Span(found.start(), found.end(), "basic-auth", len(plain) >= 12, False, False, found.group())]


# What keys are for, as their starts say it. Behind any other name a word must change case soon.
_USES = Lazy(
    rb"(?i)(?:(?:key|live|test|prod|pat|sk|pk|rk|ak|api|tok|token|secret|sec|auth|access|svc|dev|app|cli|bot|oauth|user|org|sdk|"
    rb"usr|pub|priv|personal|client|int|srv|server|private|production|sandbox|acc|cred|admin|v1|v2)[_-]|[a-z]{3}-)\Z"
)
_CASED = Lazy(rb"_(?:[a-z]{1,6}[A-Z0-9]|[A-Z0-9]{1,5}[a-z])")
_PREFIX_REVERSED = Lazy(rb"(?:[A-Za-z0-9]{1,20}[_-]){0,3}[A-Za-z0-9]{0,19}[A-Za-z]")
_PREFIXED_BODY = Lazy(rb"[A-Za-z0-9]{24,160}(?:_[A-Za-z0-9]{2,80}){0,2}(?![A-Za-z0-9_\-+=]|\.[A-Za-z0-9])")
_MARKED = Lazy(rb"(?:\A|[_-])(?:api|key|sk|tok|token|pat|secret|live|auth|access|bot)(?:\Z|[_-])")


def prefixed(text: Text, start: int) -> list[Span]:
    """Confirm a key of a provider that no row knows: a short name, `_` or `-`, and a body drawn at random.

    Digests are behind names too (`build_<sha1>`), so the body must mix cases and digits; it begins at `start`.
    """
    data = text.data
    low = max(0, start - 96)
    if _CASED.match(data, start - 1) is None and _USES.search(data, max(0, start - 16), start) is None:
        return []
    head = _PREFIX_REVERSED.match(data[low : start - 1][::-1])
    body = _PREFIXED_BODY.match(data, start, start + 400)
    if head is None or body is None:
        return []
    name = head.group()[::-1].lower()
    if name[:1] in b"nrt" and data[start - 2 - len(name) : start - 1 - len(name)] == b"\\":
        name = name[1:]  # an escaped line's end before it
    name_is_upper = head.group().isupper()  # a macro
    value = body.group()
    if re.match(rb"(?:sha|md)\d|integrity|h\d|v\d", name) or (
        data[start - 1 : start] == b"-" and (b"_" in name or len(name) > 12 or len(value) < 32)
    ):
        return []
    digits = words.digits_in(value)
    cased = value != value.lower() and value != value.upper()
    if not (digits >= 2 and words.jumble(value) >= 0.36):
        return []
    if not cased and not (
        _MARKED.search(name) if re.fullmatch(rb"[0-9a-f]+|[0-9A-F]+", value) else digits >= 4 and len(value) >= 28
    ):
        return []
    if words.wordiness(value) > 0.45 or words.is_example(value) or (value.isupper() and name_is_upper):
        return []
    begin = start - 1 - len(name)
    if not begins_token(data, begin, b"_-+"):
        return []
    return [Span(begin, body.end(), "provider-key", False, False, True, data[begin : body.end()])]


def told(text: Text, end: int) -> list[Span]:
    """Confirm `my password is X` in prose: X must be nothing that a sentence holds."""
    value = values.read(text.data, end, text.line(end)[1], "shell")
    if value is None:
        return []
    raw = text.data[value.start : value.end].rstrip(b".,;:!?)")
    telling = words.looks_random(raw, 24) or password_told(raw)
    if not telling or b"://" in raw:
        return []
    strength = words.TOKEN if words.looks_random(raw, 24) else words.PASSWORD
    return make(text, value.start, value.start + len(raw), strength, "config", value.quoted)


_OPTION = Lazy(rb"--?[a-z][a-z\-]{0,24}[ \t=]{1,4}")
_NAME_BEFORE = Lazy(rb"(?:[ \t]{1,8}|t\\{1,7})([A-Za-z0-9_.\-]{1,80})")
_ENDED = Lazy(rb"[ \t]{0,40}(?:[\r\n\"'<\0]|\\{1,7}[nr\"']|\Z)")


def spaced(text: Text, end: int) -> list[Span]:
    """Confirm a name and its value with blanks between: `secret.key X`, `secret set NAME --body X`; `end` behind them."""
    data = text.data
    named = _NAME_BEFORE.match(data[max(0, end - 90) : end][::-1])
    if named is None:
        return []
    name = named.group(1)[::-1]
    name = unescaped(data, end - named.end(), name)
    strength = words.name_strength(name)
    if strength < words.KEY:
        return []
    limit = text.command_end(end)
    end = values.skip(data, end, limit)
    option = _OPTION.match(data, end, min(end + 32, limit))
    value = values.read(data, option.end() if option else end, limit, "shell")
    if value is None or not value.closed:
        return []
    raw = data[value.start : value.end]
    if name.isalpha() and (name.islower() or name.isupper()):
        # An ordinary word: a column's name where X ends the line.
        if not _ENDED.match(data, value.end) or not (words.looks_random(raw, 16) or (strength == words.PASSWORD and password_told(raw))):
            return []
        return make(text, value.start, value.end, strength, "env", value.quoted, kind_of(name, strength))
    dotted = (
        b"." in name and len(raw) >= 8 and words.digits_in(raw) and classes(raw) >= 3 and words.wordiness(raw) <= 0.5
    )
    if not (dotted or words.looks_random(raw, 20)) or raw[:1] in b"-$":
        return []
    return make(
        text,
        value.start,
        value.end,
        words.TOKEN if words.looks_random(raw, 20) else words.PASSWORD,
        "env",
        value.quoted,
    )


_CELL_NAME = Lazy(rb"(?:\||[\x82\x83]\x94\xe2)[ \t]{0,24}[`*]{0,2}([A-Za-z0-9_.\-]{1,48})")
_CELL = Lazy(rb"[ \t]{0,24}[`*]{0,2}([^\s|`*]{8,400})[`*]{0,2}[ \t]{0,24}(?:\||\xe2\x94|\\|\Z|\n)")


def cell(text: Text, end: int) -> list[Span]:
    """Confirm `| NAME | X |`, a table's row; `end` is behind the bar between them."""
    data = text.data
    named = _CELL_NAME.match(data[max(0, end - 80) : end][::-1])
    found = _CELL.match(data, end, min(end + 480, text.line(end)[1] + 1))
    strength = words.name_strength(named.group(1)[::-1]) if named is not None else 0
    if found is None or not strength:
        return []
    if b"\\(" in found.group(1) or b"[^" in found.group(1):
        return []  # an expression's alternatives
    if words.looks_random(found.group(1), 16):
        strength = words.TOKEN
    elif strength != words.PASSWORD or not password_told(found.group(1)):
        return []
    return make(text, found.start(1), found.end(1), strength, "env", False)


_COLUMNS = Lazy(
    rb"(?i)insert[ \t]+(?:or[ \t]+[a-z]+[ \t]+)?into[ \t]+[^\s(]{1,80}[ \t]{0,4}\(([^()]{1,400})\)(?:[ \t\r\n]|\\n){0,8}\Z"
)
_FIELD = Lazy(rb"[ \t]{0,8}(?:(\\{0,7}')|[^,')(]{1,80})")


def inserted(text: Text, end: int) -> list[Span]:
    """Confirm SQL's `INSERT INTO t (…, password) VALUES (…, 'X')`; `end` is behind the opening parenthesis."""
    data = text.data
    at = data.rfind(b"(", 0, end)
    columns = _COLUMNS.search(data[max(0, at - 600) : at].rstrip().removesuffix(b"VALUES").removesuffix(b"values"))
    if columns is None:
        return []
    spans: list[Span] = []
    limit = min(text.line(end)[1], end + 4096)
    pos = at + 1
    for name in columns.group(1).split(b",")[:64]:
        field = _FIELD.match(data, pos, limit)
        if field is None:
            break
        pos = field.end()
        if field.group(1):
            value = values.read_quoted(data, field.start(1), limit)
            if value is None or not value.closed:
                break
            strength = words.name_strength(name.strip(b" \t`\"[]'\\"))
            if strength:
                spans += make(text, value.start, value.end, strength, "sql", True)
            pos = value.end + len(field.group(1))
        comma = data.find(b",", pos, min(pos + 16, limit))
        if comma < 0:
            break
        pos = comma + 1
    return spans


def expect(text: Text, end: int) -> list[Span]:
    """Confirm what an expect script sends when it was asked for a password; `end` is behind the quote."""
    data = text.data
    head = data[max(0, text.line(end)[0] - 256, end - 400) : end]
    asked = head.lower().rfind(b"assword")
    if asked < 0 or b"send" in head[asked : len(head) - 8]:
        return []
    start = values.opening(data, end)
    value = values.read_quoted(data, start, text.line(end)[1])
    if value is None:
        return []
    stop = value.end
    while data[value.start : stop].endswith((b"r", b"n")) and data[stop - 2 : stop - 1] == b"\\":
        stop -= 2
        while stop > value.start and data[stop - 1] == 0x5C:
            stop -= 1
    return make(text, value.start, stop, words.PASSWORD, "cli", True)
