# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""Values that stand beside a name without any separator of an assignment: `setToken("X")`, `set token X`, markup."""

from __future__ import annotations

from guard.redact import values, words
from guard.redact.lazy import Lazy
from guard.redact.rules.assignments import kind_of, own_style, password_told, unescaped
from guard.redact.rules.judge import DIGEST, UUID, make
from guard.redact.spans import Span
from guard.redact.text import Text

_NAMED_BEFORE = Lazy(
    rb"(?:[\"'`]\\{0,7}|[\x98\x9c]\x80\xe2)?(?:\(|(?:[= \t]{1,2}[a-z\-]{0,20}[a-z]-{1,2})?[ \t]{1,8}(?:[0-9]{1,2}[ \t]{1,4})?)"
    rb"(?:[\"'`]\\{0,7})?([A-Za-z0-9_.\-]{1,64})"
)
_NAMED_PART = Lazy(rb"[A-Za-z_\-]{2,}={1,2}[^=]|[^=]*=[^=]*=[^=]")
_BARE_WORD = Lazy(rb"(?:(?!\xe2\x80[\x99\x9d])[^\s\"'`\\,;()|&<>\0]){8,400}")


def beside(text: Text, end: int) -> list[Span]:
    """Confirm `set api_key X`, `setApiKey("X")`, `secret "X"`, `requirepass X`: X must look drawn at random.

    Args:
        text: the text.
        end: eight characters into the value.
    """
    data = text.data
    start = end - 8
    named = _NAMED_BEFORE.match(data[max(0, start - 128) : start][::-1])
    found = _BARE_WORD.match(data, start, min(start + 400, text.line(start)[1]))
    if named is None or found is None:
        return []
    name = unescaped(data, max(0, start - 128) + max(0, min(128, start) - named.end()), named.group(1)[::-1]).lstrip(b"-.")
    strength = words.name_strength(name)
    if strength < words.KEY and name.count(b".") + name.count(b"-") > 0:
        # `pypi-token.pypi`: a section's name behind the setting's
        strength = words.name_strength(name.rpartition(b".")[0])
    raw = found.group().rstrip(b".:")
    if strength == words.WEAK and own_style(name, "") == "named":
        strength = words.KEY
    quote = data[start - 1 : start]
    quoted = quote in (b'"', b"'", b"`")
    if strength < words.KEY or raw[:1] in b"-$" or _NAMED_PART.match(raw) or (not quoted and (quote == b"(" or name.lower() in (b"pass", b"pwd", b"key"))):
        return []
    if data[found.end() : found.end() + 1] == b"(" or (quoted and data[found.end() : found.end() + 1] not in (quote, b"\\")):
        return []
    if not (words.looks_random(raw, 16) or ((strength == words.PASSWORD or name.lower() == b"secret") and password_told(raw))):
        return []
    return make(text, start, start + len(raw), strength, "cli", quoted, kind_of(name, strength))


_ATTRIBUTE = Lazy(rb"(?i)(?:name|key|id)=\\{0,7}[\"']([A-Za-z0-9_.\-]{1,64})\\{0,7}[\"'][^<>\n]{0,80}>(?:[ \t]{0,4}<value>)?\Z|>([A-Za-z0-9_.\-]{1,64})</(?:name|key)>(?:[\s+>|-]|\\{1,7}[nrt]|\\\n){0,40}<(?:value|string)>\Z")


def element(text: Text, end: int) -> list[Span]:
    """Confirm `<entry key="NAME">X</entry>` and `<name>NAME</name> <value>X</value>`; `end` is behind the opening tag."""
    data = text.data
    named = _ATTRIBUTE.search(data, max(0, end - 240), end)
    if named is None:
        return []
    name = named.group(1) or named.group(2)
    strength = words.name_strength(name)
    stop = data.find(b"<", end, min(end + 2048, text.line(end)[1]))
    if strength == 0 or stop <= end:
        return []
    return make(text, end, stop, strength, "code", True, kind_of(name, strength))


def given(text: Text, end: int) -> list[Span]:
    """Confirm `login("X")` and `auth=("bob", "X")`; `end` is behind the opening quote."""
    start = values.opening(text.data, end)
    value = values.read_quoted(text.data, start, text.line(end)[1])
    if value is None or not value.closed:
        return []
    raw = text.data[value.start : value.end]
    pair = text.data[max(0, start - 1) : start] != b"("
    if not (words.looks_random(raw, 20) or (pair and password_told(raw))):
        return []
    return make(text, value.start, value.end, words.PASSWORD if pair else words.TOKEN, "cli", True, "password" if pair else "token")


def secured(text: Text, end: int) -> list[Span]:
    """Confirm PowerShell's `ConvertTo-SecureString X`; `end` is behind the value's first byte."""
    value = values.read(text.data, end - 1, text.line(end)[1], "shell")
    if value is None:
        value = values.read(text.data, values.opening(text.data, end), text.line(end)[1], "shell")
    return make(text, value.start, value.end, words.PASSWORD, "cli", value.quoted) if value is not None else []


def last_argument(text: Text, end: int) -> list[Span]:
    """Confirm `set_password("service", "bob", "X")`, `imap.login(user, "X")`; `end` is behind an argument's opening quote."""
    data = text.data
    value = values.read_quoted(data, values.opening(data, end), text.line(end)[1])
    if value is None or not value.closed or data[value.end : value.end + 10].lstrip(b"\\\"'")[:1] != b")":
        return []
    raw = data[value.start : value.end]
    if data[max(0, end - 240) : end].lower().rfind(b"set_password(") < 0 and not (words.looks_random(raw, 20) or password_told(raw)):
        return []
    return make(text, value.start, value.end, words.PASSWORD, "code", True)


_VARIABLE = Lazy(rb"(?i)variable[ \t]+\\{0,7}[\"']([A-Za-z0-9_\-]{1,80})")


def default(text: Text, end: int) -> list[Span]:
    """Confirm a Terraform variable's default, `variable "db_password" { default = "X" }`; `end` is behind the opening quote."""
    data = text.data
    named = list(_VARIABLE.finditer(data, max(0, end - 420), end))
    value = values.read_quoted(data, values.opening(data, end), text.line(end)[1])
    strength = words.name_strength(named[-1].group(1)) if named else 0
    if value is None or strength == 0:
        return []
    return make(text, value.start, value.end, strength, "code", True, kind_of(named[-1].group(1), strength))


_OWNER = Lazy(rb"([A-Za-z][A-Za-z0-9_.@+\-]{0,63}):\Z")
_NO_OWNER = Lazy(rb"(?i)(?:sha\d+|md5|blake\w+|bearer|basic|token|urn|arn)\Z")
_WORD = Lazy(rb"[^\s\"'`\\<>\0]{8,128}")


def user_pass(text: Text, end: int) -> list[Span]:
    """Confirm `credentials: bob:X`, `auth = "bob:X"`: X must be nothing that a sentence holds; `end` is 8 bytes into it."""
    data = text.data
    owner = _OWNER.search(data, max(0, end - 80), end - 8)
    word = _WORD.match(data, end - 8, min(end + 120, text.line(end)[1]))
    if owner is None or word is None or _NO_OWNER.match(owner.group(1)):
        return []
    raw = word.group().rstrip(b",;)]}")
    if not password_told(raw) or UUID.match(raw) or DIGEST.match(raw) or words.is_expression(raw):
        return []
    quoted = data[owner.start() - 1 : owner.start()] in (b'"', b"'")
    return make(text, end - 8, end - 8 + len(raw), words.PASSWORD, "cli", quoted, "password")


_USER = Lazy(rb"\\{0,7}[\"']username\\{0,7}[\"'][ \t]{0,4}:[ \t]{0,4}\\{0,7}[\"'][^\"'\\\n]{1,64}\\{0,7}[\"'][ \t]{0,4},[\s\\n]{0,16}\\{0,7}[\"']key\\{0,7}[\"'][ \t]{0,4}:[ \t]{0,4}\\{0,7}[\"']\Z")


def user_key(text: Text, end: int) -> list[Span]:
    """Confirm Kaggle's `{"username": "bob", "key": "X"}`; `end` is behind X's opening quote."""
    data = text.data
    value = values.read_quoted(data, values.opening(data, end), text.line(end)[1])
    if value is None or _USER.search(data, max(0, end - 200), end) is None:
        return []
    return make(text, value.start, value.end, words.KEY, "code", True, "key")
