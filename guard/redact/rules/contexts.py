# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""Secrets that are recognised by what stands beside them: names, options, programs, headers, addresses, statements.

One row a context: a prefilter pattern, the confirmer that reads the value, and samples. In a sample `<pw>` is a
password, `<key>` a random token of 40 characters, `<hex:32>` and its like as in `guard.redact.samples`; what these
stand for must be gone, the rest must stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from guard.redact import values, words
from guard.redact.lazy import Lazy
from guard.redact.spans import MARKER, Span
from guard.redact.text import Text, begins_token

Confirm = Callable[[Text, int], "list[Span]"]


class Context(NamedTuple):
    """One context; `pattern` ends where `confirm` anchors, `literals` are what it cannot match without."""

    name: str
    pattern: bytes
    literals: tuple[bytes, ...]
    confirm: Confirm
    samples: tuple[str, ...]
    leaves: tuple[str, ...] = ()
    advice: str = (
        "change it where it is used, and hand it to the program by file descriptor, file or keyring instead"
    )


_SET_NAME = Lazy(rb"\\?[\"']?(?:\$env:)?([A-Za-z_][A-Za-z0-9_.\-]{1,80})\\?[\"']?[ \t]{1,8}")
_HEADER_END = Lazy(rb"[\"'\\\r\n<>`]")
_THIN = Lazy(rb"[^\s@\"'\\/]{3,128}(?=@)")
_AUTH_SEPARATOR = Lazy(rb"\\{0,7}[\"']?[ \t]{0,4}[:=][ \t]{0,4}(?:\\{0,7}[\"'])?")
_AUTH_VALUE = Lazy(rb"[A-Za-z0-9+/]{8,400}={0,2}")

# --- judging a value ---------------------------------------------------------------------------------------------

_WORDLIKE = Lazy(rb"[A-Za-z]+(?:[_\-. ][A-Za-z]+)*\Z")
_PATHLIKE = Lazy(rb"(?:\.{0,2}|~|[A-Za-z]:|[a-z]{2,12}:/)[/\\][^\s]*\Z|[a-z][a-z0-9+.\-]{1,12}://")
_DIGIT = Lazy(rb"[0-9]")
_UUID = Lazy(rb"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\Z")
_DIGEST = Lazy(
    rb"(?i)(?:(?:sha\d+|md5)[:-])?(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{56}|[0-9a-f]{64}|[0-9a-f]{96}|[0-9a-f]{128})\Z|sha\d{3}-"
)
_HOST = Lazy(rb"[A-Za-z0-9.\-@]+:\d{1,5}\Z|[a-z0-9\-]+(?:\.[a-z0-9\-]+)+\Z")
_SYMBOL_WORDS = Lazy(rb"[A-Za-z_:.,\-/|\\;()]+\Z")
_PLAIN_TOKEN = Lazy(rb"[A-Za-z0-9+/=_\-.~%:]+\Z")
_NUMBER = Lazy(rb"[+-]?[0-9][0-9_,.]*(?:[eE][+-]?\d+)?[a-zA-Z%]{0,2}\Z|0[xX][0-9a-fA-F]+[uUlL]{0,3}\Z")
_DOTTED = Lazy(rb"[A-Za-z_][A-Za-z0-9_]*(?:(?:\.|->|::)[A-Za-z_][A-Za-z0-9_]*)+\Z")
_IDENTIFIER = Lazy(rb"[A-Za-z_][A-Za-z_]*[0-9]{0,2}\Z")
_FORMATTED = Lazy(
    rb"%[-0-9.]*[sdrixucfgp]\b|%\([a-z_]+\)|\{[a-zA-Z0-9_.:!]*\}|\$\{|\$\(|\{\{|<[A-Za-z_ -]+>|[a-z]\(\)"
)

STRONG_STYLES: Final = frozenset(("env", "cli", "url", "dsn", "sql", "line"))


def classes(value: bytes) -> int:
    """Count the character classes in a value: digits, lower, upper, anything else."""
    digit = words.digits_in(value) > 0
    return digit + (value != value.upper()) + (value != value.lower()) + (not value.isalnum())


def password_like(value: bytes, style: str, quoted: bool) -> bool:
    """Say whether a value beside a password's name is to be redacted.

    Args:
        value: unescaped, without quotes.
        style: env (`NAME=value`), cli (an option), url, dsn, sql, line (a file of such lines), config (`name: value`),
            code (a quoted literal in a program), call (an argument behind a name).
        quoted: whether it stood in quotes.
    """
    if (
        len(value) < 3
        or len(value) > 1024
        or words.is_placeholder(value)
        or b"[REDACTED" in value
        or b"REDACTED_" in value
    ):
        return False
    if style in STRONG_STYLES:
        if not quoted and words.is_expression(value) and (b"(" in value or b"[" in value):
            return False
        return not (
            style in ("env", "cli", "line")
            and len(value) > 3
            and _PATHLIKE.match(value)
            and value[:1] in b"/.~"
            and not quoted
        )
    kinds = classes(value)
    if b" " in value or b"\t" in value:
        return quoted and _phrase(value)
    if kinds >= 3 and len(value) >= 8 and words.jumble(value) >= 0.4 and value.isalnum():
        return True
    if not quoted:
        if words.is_expression(value) or _DOTTED.match(value) or _PATHLIKE.match(value):
            return False
        if _NUMBER.match(value):
            return value.isdigit() and len(value) >= 6 and style == "config"
        if _IDENTIFIER.match(value) and not _DIGIT.search(value):
            return False
        if value[-1:] in b":?*.!" and _WORDLIKE.match(value[:-1]):
            return False
        if kinds == 1 or (
            kinds == 2 and words.wordiness(value) > 0.7 and not re.search(rb"[0-9@!#$%^&*]", value)
        ):
            return False
        if _SYMBOL_WORDS.match(value) and words.jumble(value) < 0.4:
            return False
        if _FORMATTED.search(value) or (value[:1] in b"$*&-+=|/<>!?~^%:" and not _DIGIT.search(value)):
            return False
        return len(value) >= 4 and not re.match(rb"[A-Za-z_]+[0-9]?\Z", value)
    if style == "call":
        return len(value) >= 6 and kinds >= 3 and not _HOST.match(value) and not _WORDLIKE.match(value) and not _PATHLIKE.match(value) \
            and not _FORMATTED.search(value) and not _IDENTIFIER.match(value) and bool(_DIGIT.search(value))  # fmt: skip
    if (
        _FORMATTED.search(value)
        or _DOTTED.match(value)
        or (_PATHLIKE.match(value) and value[:1] in b"/.~abcdefghijklmnopqrstuvwxyz")
    ):
        return False
    if re.search(rb"(?i)passw|passphrase|secret_|token", value) and not _DIGIT.search(value):
        return False
    if value[-1:] in b":?" or (value[:1] in b"-" and _WORDLIKE.match(value.lstrip(b"-"))):
        return False
    if _NUMBER.match(value):
        return len(value) >= 4 and value.isdigit()
    if kinds == 1 and len(value) < 6:
        return False
    if (value.islower() and _WORDLIKE.match(value)) or (value.isupper() and _WORDLIKE.match(value)):
        return style == "code" and value.isalpha() and len(value) >= 8 and words.wordiness(value) < 0.5
    if not _DIGIT.search(value) and _WORDLIKE.match(value):
        # `CamelCase` and `Two-Words` are names of things; `hUnTeRxQ` is not.
        return words.wordiness(value) < 0.7 and value.isalpha()
    return not re.match(rb"[^A-Za-z0-9]*[A-Za-z]*[^A-Za-z0-9]*\Z", value) or (len(value) >= 8 and kinds >= 3)


def _phrase(value: bytes) -> bool:
    """Say whether a value with blanks is a passphrase and not a sentence for a reader."""
    parts = value.split()
    if len(parts) > 12 or value[-1:] in b":?.!" or len(value) > 120 or _FORMATTED.search(value):
        return False
    if re.search(
        rb"(?i)\b(?:password|passphrase|enter|your|must|please|invalid|the|is|are|not|for|of|to|with|token|secret|key)\b",
        value,
    ):
        return bool(_DIGIT.search(value)) and bool(re.search(rb"[!@#$%^&*]", value))
    if _DIGIT.search(value):
        return True
    return len(parts) >= 3 and all(p.isalpha() and p.islower() for p in parts)


def token_like(value: bytes, strength: int, style: str, quoted: bool) -> bool:
    """Say whether a value beside the name of a token, secret or key is to be redacted; arguments as `password_like`."""
    if (
        len(value) < 6
        or len(value) > 4096
        or b"[REDACTED" in value
        or words.is_placeholder(value)
        or b"REDACTED_" in value
    ):
        return False
    if b" " in value or b"\t" in value:
        return False
    if not quoted and words.is_expression(value):
        return False
    if _FORMATTED.search(value) or words.is_example(value):
        return False
    has_digit = _DIGIT.search(value) is not None
    random = words.looks_random(value, 12)
    if strength == words.WEAK:
        if (
            _UUID.match(value)
            or (_DIGEST.match(value) and style != "env")
            or not _PLAIN_TOKEN.match(value)
            or re.search(rb"[^=]=[^=]", value)
        ):
            return False
        return (
            words.looks_random(value, 20 if style in ("code", "call", "config") else 16)
            and not _PATHLIKE.match(value)
            and not _DOTTED.match(value)
        )
    if _PATHLIKE.match(value) or _DOTTED.match(value):
        return False
    if random:
        return True
    if _NUMBER.match(value):
        return style in ("env", "cli") and value.isdigit() and len(value) >= 8
    if style in STRONG_STYLES:
        if _WORDLIKE.match(value):
            return value.isalpha() and (
                len(value) >= 16
                or words.wordiness(value) < 0.5
                or (
                    style in ("env", "cli")
                    and not value.isupper()
                    and len(value) >= 8
                    and not quoted
                    and words.wordiness(value) < 0.75
                )
            )
        return (
            (has_digit and words.wordiness(value) < 0.75)
            or (classes(value) >= 3 and len(value) >= 8 and words.wordiness(value) < 0.75)
            or (has_digit and len(value) >= 8 and strength >= words.TOKEN)
        )
    if not has_digit or len(value) < 8:
        return False
    return (
        words.wordiness(value) < 0.5
        and classes(value) >= 2
        and not re.match(rb"[A-Za-z_]+[0-9]{1,2}\Z", value)
    )


def judge(value: bytes, strength: int, style: str, quoted: bool) -> bool:
    """Say whether a value beside a name of that strength is to be redacted."""
    if strength == words.PASSWORD:
        return password_like(value, style, quoted) or (
            quoted and style in ("code", "config") and token_like(value, words.TOKEN, style, quoted)
        )
    return token_like(value, strength, style, quoted)


def strict(value: bytes, strength: int, style: str) -> bool:
    """Say whether the sighting is an incident: the value alone would convince a reader."""
    if (
        words.is_example(value)
        or words.counts_up(value)
        or _FORMATTED.search(value)
        or _PATHLIKE.match(value)
        or (_UUID.match(value) and strength == words.WEAK)
    ):
        return False
    if strength == words.PASSWORD:
        return (
            style in STRONG_STYLES
            and len(value) >= 8
            and classes(value) >= 3
            and words.wordiness(value) < 0.6
            and words.entropy(value) >= 2.7
        )
    if _DIGEST.match(value) and style == "config":
        return False
    return (
        len(value) >= (16 if style in ("env", "cli", "dsn") else 32)
        and words.looks_random(value, 16)
        and words.entropy(value) >= 3.0
        and words.wordiness(value) < 0.3
    )


KIND_OF: Final = {
    words.PASSWORD: "password",
    words.TOKEN: "secret",
    words.KEY: "key",
    words.WEAK: "credential",
}


def make(
    text: Text, start: int, end: int, strength: int, style: str, quoted: bool, kind: str = ""
) -> list[Span]:
    """Judge the bytes from `start` to `end` and return the span, or nothing; nothing too for a key found already."""
    raw = text.data[start:end]
    if not raw or text.known(start, end):
        return []
    value = values.canonical(raw)
    if not judge(value, strength, style, quoted):
        return []
    return [Span(start, end, kind or KIND_OF[strength], strict(value, strength, style), False, False, value)]


# --- name = value ------------------------------------------------------------------------------------------------

_NAME_REVERSED = Lazy(rb"[A-Za-z0-9_.\-$\x80-\xff]{1,64}")
_TYPE_THEN = Lazy(
    rb"[ \t]{0,4}[A-Za-z_][A-Za-z0-9_.]{0,40}(?:[\[<][A-Za-z0-9_., |\[\]<>]{0,60}[\]>])?(?: \| None)?\??[ \t]{0,4}=[ \t]{0,4}"
)
_CAST = Lazy(rb"!!?[a-z]{1,10}[ \t]{1,4}")
_PLUS_EXPR = Lazy(rb"[ \t]*(?:\+|\.|%|\|\||\?|,[ \t]*[a-z_]+\)?:)")


def assign(text: Text, end: int) -> list[Span]:
    """Confirm `NAME = value` in any syntax; `end` is just behind the separator."""
    data = text.data
    window = data[max(0, end - 140) : end]
    separator = window[-1:]
    head = window[:-1].rstrip(b" \t")
    if separator == b">":
        if head[-1:] in b"=-":
            if head[-1:] == b"-":
                return []
            head = head[:-1].rstrip(b" \t")
        else:
            return _element(text, end, head)
    if separator == b"=" and head[-1:] in b":+?!~<>|=":
        if head[-1:] in b"!~<>":
            return []
        head = head.rstrip(b":+?|=").rstrip(b" \t")
    if (
        head[-1:] == b"]"
        and MARKER.search(head[-64:] + b"\0") is not None
        and head.rfind(b"[REDACTED:") > head.rfind(b" ")
    ):
        return []  # a marker's own kind is no name
    blank = len(head) < len(window) - 1
    closed = head.rstrip(b")") if head[-2:] in (b'")', b"')") else head.rstrip(b"]")
    bare = closed.rstrip(b"\"'`*")
    quoted_name = len(bare) != len(closed)
    bare = bare.rstrip(b"\\")
    found = _NAME_REVERSED.match(bare[::-1])
    if found is None:
        return []
    name = found.group()[::-1].lstrip(b"-.$")
    strength = words.name_strength(name)
    if strength == 0:
        return []
    line_end = text.line(end)[1]
    pos = end
    while pos < line_end and pos < end + 40 and data[pos] in b" \t":
        pos += 1
    if separator == b"=" and data[pos : pos + 1] in (b"=", b">", b"~"):
        if data[pos : pos + 1] == b"~" or data[pos : pos + 2] == b"==":
            return []
        pos += 1
        while pos < line_end and data[pos] in b" \t":
            pos += 1
        blank = True
    elif separator == b":" and data[pos : pos + 1] in (b"=", b":"):
        if data[pos : pos + 1] == b":":
            return []
        pos += 1
        while pos < line_end and data[pos] in b" \t":
            pos += 1
    elif separator == b":":
        typed = _TYPE_THEN.match(data, pos, min(pos + 160, line_end))
        if typed is not None:
            pos = typed.end()
        elif (cast := _CAST.match(data, pos, min(pos + 20, line_end))) is not None:
            pos = cast.end()
    if pos >= line_end:
        return []
    first = data[pos]
    if first == 0x5B and data[pos : pos + 10] != b"[REDACTED:":  # a list of values: ["a", "b"]
        return _list(text, pos + 1, line_end, strength)
    spaced = blank or pos > end
    if separator == b"=" and not spaced and not quoted_name:
        return _shell_assignment(text, pos, line_end, name, strength, end - 1 - len(name))
    value = values.read(data, pos, line_end, "config")
    if value is None or value.end == value.start:
        return []
    if value.quoted:
        return make(text, value.start, value.end, strength, "code", True, _kind_of(name, strength))
    if data[value.end : value.end + 1] in b"([{" and data[value.end : value.end + 1]:
        return []
    if quoted_name and _NUMBER.match(data[value.start : value.end]):
        return []  # a JSON number stays a number
    if _prose_follows(data, value.end, line_end) and not words.looks_random(
        data[value.start : value.end], 12
    ):
        return []
    return make(text, value.start, value.end, strength, "config", False, _kind_of(name, strength))


def _kind_of(name: bytes, strength: int) -> str:
    if strength == words.PASSWORD:
        return "password"
    low = name.lower()
    for word, kind in (
        (b"token", "token"),
        (b"secret", "secret"),
        (b"jwt", "token"),
        (b"key", "key"),
        (b"cookie", "cookie"),
    ):
        if word in low:
            return kind
    return "credential"


_PROSE = Lazy(rb"[ \t]+[A-Za-z]{2,}[ \t,.)]+[A-Za-z]{2,}")


def _prose_follows(data: bytes, pos: int, limit: int) -> bool:
    return _PROSE.match(data, pos, min(pos + 60, limit)) is not None


def _shell_assignment(
    text: Text, pos: int, line_end: int, name: bytes, strength: int, name_start: int
) -> list[Span]:
    """Confirm `NAME=value` without blanks: a shell's assignment, .env, ini, a query's parameter, a program's argument."""
    data = text.data
    before = data[name_start - 1 : name_start] if name_start > 0 else b"\n"
    limit = text.command_end(pos)
    if before in (b"?", b"&") or data[max(0, name_start - 5) : name_start] == b"&amp;" or before == b"#":
        value = values.read(data, pos, limit, "url")
        return (
            make(text, value.start, value.end, strength, "url", False, _kind_of(name, strength))
            if value
            else []
        )
    if before == b";" or _dsn_around(data, name_start):
        value = values.read(data, pos, limit, "dsn")
        return (
            make(text, value.start, value.end, strength, "dsn", value.quoted, _kind_of(name, strength))
            if value
            else []
        )
    upper = name.isupper()
    if not upper and not name.islower() and data[pos : pos + 1] not in b"\"'\\":
        upper = name[:1].isupper() and b"_" in name
    style_of_value = "shell"
    start_of_line = text.line(pos)[0]
    prefix = data[start_of_line:name_start].strip()
    own_line = (
        prefix in (b"", b"export", b"set", b"declare -x", b"+", b"-", b"+export", b"-export", b"env")
        and data[pos : pos + 1] not in b"\"'("
    )
    if own_line and not upper and prefix in (b"", b"+", b"-"):
        style_of_value = "line"
    value = values.read(data, pos, limit, style_of_value)
    if value is None or value.end == value.start:
        return []
    raw = data[value.start : value.end]
    follow = data[value.end : value.end + 1]
    if value.quoted:
        style = "env" if upper or prefix[-6:] == b"export" or prefix == b"env" else "code"
        if (
            style == "code"
            and strength == words.PASSWORD
            and (before in b" \t" and (b"," not in data[max(0, name_start - 2) : name_start]))
            and follow in b"\"'"
        ):
            after = data[value.end + 1 : value.end + 2]
            style = (
                "cli"
                if after in b" \n\t\\\"';"
                and b"(" not in data[start_of_line:name_start]
                and b"def " not in data[start_of_line:name_start]
                else "code"
            )
        return make(text, value.start, value.end, strength, style, True, _kind_of(name, strength))
    if follow in b"([{" and follow:
        return []
    if upper or prefix in (b"export", b"set", b"env", b"declare -x"):
        return make(text, value.start, value.end, strength, "env", False, _kind_of(name, strength))
    # lower-case, no blanks: ini, a key=value log or option, or a keyword argument of a program
    end = value.end
    while end > value.start and data[end - 1] in b",)];}":
        if data[end - 1] in b"]})" and data[value.start] in b"[{(":
            break
        end -= 1
    raw = data[value.start : end]
    if raw.isupper() and _WORDLIKE.match(raw) and len(raw) < 24:
        return []  # `--passwd=FILE`, `password=PASSWORD`
    if end < value.end or raw[-1:] in b"," or before in b"(," or _in_call(data, start_of_line, name_start):
        comma = raw.find(b",")
        if comma > 0 and style_of_value != "line":
            end = value.start + comma
        return make(text, value.start, end, strength, "config", False, _kind_of(name, strength))
    code_line = follow == b"\n" or not follow or follow in b" \t\r"
    style = (
        "line"
        if code_line
        and strength == words.PASSWORD
        and not words.is_expression(raw)
        and not _identifier_value(raw, name)
        else "config"
    )
    return make(text, value.start, end, strength, style, False, _kind_of(name, strength))


def _identifier_value(raw: bytes, name: bytes) -> bool:
    """Say whether `name=value` is a keyword argument given a variable: `password=pw`, `passwd=self._passwd`."""
    return (
        raw.lower() == name.lower()
        or _DOTTED.match(raw) is not None
        or (_IDENTIFIER.match(raw) is not None and b"_" in raw)
    )


def _in_call(data: bytes, line_start: int, pos: int) -> bool:
    """Say whether an open parenthesis of a call stands before `pos` on its line: `f(user, password=pw)`."""
    head = data[max(line_start, pos - 200) : pos]
    return head.count(b"(") > head.count(b")")


_DSN_BEFORE = Lazy(
    rb"(?i)(?:server|data source|host|hostname|driver|dsn|database|dbname|uid|user id|user|username|port|endpointsuffix|accountname|sharedaccesskeyname|endpoint|initial catalog)=[^;\n\"']{0,120};[^\n\"']{0,120}\Z"
)


def _dsn_around(data: bytes, pos: int) -> bool:
    """Say whether a connection string (`Server=…;Uid=…;`) leads up to `pos`."""
    low = max(0, pos - 200)
    if data.rfind(b";", low, pos) < 0:
        return False
    return b";" in data[max(0, pos - 3) : pos] or _DSN_BEFORE.search(data, low, pos) is not None


def _element(text: Text, end: int, head: bytes) -> list[Span]:
    """Confirm `<password>value</password>`; `end` is just behind the `>`."""
    opening = head.rfind(b"<")
    if opening < 0:
        return []
    tag = head[opening + 1 :].split(None, 1)[0] if head[opening + 1 :].strip() else b""
    name = tag.rpartition(b":")[2]
    strength = words.name_strength(name)
    line_end = text.line(end)[1]
    if strength == 0:
        return []
    value = values._BARE["xml"].match(text.data, end, min(end + 512, line_end))
    if value is None or text.data[value.end() : value.end() + 2] not in (b"</", b"<\\"):
        return []
    return make(text, end, value.end(), strength, "code", True, _kind_of(name, strength))


def _list(text: Text, pos: int, limit: int, strength: int) -> list[Span]:
    """Confirm the quoted members of a list behind a sensitive name, at most 32."""
    spans: list[Span] = []
    for _ in range(32):
        while pos < limit and text.data[pos] in b" \t,":
            pos += 1
        value = values.read_quoted(text.data, pos, limit)
        if value is None or not value.closed:
            break
        spans += make(text, value.start, value.end, strength, "code", True)
        pos = value.end
        while pos < limit and text.data[pos] in b"\\":
            pos += 1
        pos += 1
    return spans


# --- name value, as options and as arguments ------------------------------------------------------------------------

_FLAG_REVERSED = Lazy(rb"([A-Za-z0-9_.\-]{0,48}[A-Za-z0-9])(-{1,2}|/)(?=[\s\"'=,(\[;|]|\Z)")


def flag(text: Text, end: int) -> list[Span]:
    """Confirm `--token X`, `--token=X`, `-password X`, and `"--token", "X"`; `end` is behind name and separator."""
    data = text.data
    window = data[max(0, end - 96) : end]
    head = window.rstrip(b" \t=")
    listed = False
    if head[-1:] in b"\"',":
        stripped = head.rstrip(b"\"', \t\\")
        listed = True
        head = stripped
    found = _FLAG_REVERSED.match(head[::-1])
    if found is None:
        return []
    name = found.group(1)[::-1]
    strength = words.name_strength(name)
    if strength == 0 or (found.group(2) != b"--" and b"-" not in found.group(2)):
        return []
    limit = text.command_end(end)
    pos = end
    if listed:
        # the opening quote of the next argument is the last byte of the match, with its backslashes before it
        pos -= 1
        while pos > 0 and data[pos - 1] == 0x5C:
            pos -= 1
        value = values.read_quoted(data, pos, limit)
    else:
        while pos < limit and data[pos] in b" \t":
            pos += 1
        if data[pos : pos + 2] == b"\\\n":
            pos += 2
            while pos < limit and data[pos] in b" \t":
                pos += 1
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
    if not value.quoted and spaced and raw.isalpha() and _prose_follows(data, value.end, limit):
        return []
    if not value.quoted and raw[-1:] in b",.:)]":
        raw = raw.rstrip(b",.:)]")
    style = (
        "cli"
        if not (spaced and raw.isalpha() and raw.islower() and words.wordiness(raw) > 0.8 and len(raw) < 5)
        else "config"
    )
    return make(
        text,
        value.start,
        value.start + len(raw),
        strength if strength > words.WEAK else words.WEAK,
        style,
        value.quoted,
        _kind_of(name, strength),
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
    style = "code" if macro else "env" if value.quoted or named.group(1).isupper() else "config"
    return make(
        text, value.start, value.end, strength, style, value.quoted, _kind_of(named.group(1), strength)
    )


def called(text: Text, end: int) -> list[Span]:
    """Confirm a value that stands as the argument behind a name: `setenv("NAME", "v")`, `getenv('NAME', 'v')`."""
    data = text.data
    start = end - 1
    while start > 0 and data[start - 1] == 0x5C:
        start -= 1
    window = data[max(0, start - 120) : start].rstrip(b", \t")
    stripped = window.rstrip(b"\"'").rstrip(b"\\")
    found = _NAME_REVERSED.match(stripped[::-1])
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
        )
    )
    if before.endswith(b"[") and name.lower() in (b"authorization",):
        return _bearer_value(text, value.start, value.end)
    return make(
        text, value.start, value.end, strength, "env" if setting else "call", True, _kind_of(name, strength)
    )


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
        return _bearer_value(text, value.start, value.end)
    strength = words.name_strength(name)
    if strength == 0:
        return []
    style = "env" if name.isupper() else "code" if value.quoted else "config"
    return make(text, value.start, value.end, strength, style, value.quoted, _kind_of(name, strength))


_PAIR_NAME = Lazy(
    rb"(?i)(?:name|key|id|field|header|parameter|property)\\{0,7}[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,7}[\"']?([A-Za-z][A-Za-z0-9_.\-]{1,80})(?=\\{0,7}[\"'\s,])"
)

# --- headers -----------------------------------------------------------------------------------------------------

_SCHEME = Lazy(
    rb"(?i)(?:bearer|basic|token|apikey|api-key|key|digest|negotiate|ntlm|jwt|splunk|oauth|genietoken|snowflake|sso-key|ssws)(?:[ \t+]|%20|\\u0020)+"
)
_CREDENTIAL = Lazy(rb"[A-Za-z0-9._~+/\-=|:%!@#$^*]{3,8192}")
_AWS_SIGNATURE = Lazy(rb"(?i)signature[=\"' ]{1,3}([0-9a-zA-Z/+=%]{16,128})")


def _bearer_value(text: Text, start: int, end: int) -> list[Span]:
    """Return the credential in a header's value: the part behind the scheme, or all of it."""
    data = text.data
    scheme = _SCHEME.match(data, start, end)
    at = scheme.end() if scheme else start
    raw = data[at:end]
    value = values.canonical(raw)
    if len(value) < 4 or words.is_placeholder(value) or b"[REDACTED" in value or _FORMATTED.search(value):
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
        if b" " in value or not words.looks_random(value, 16):
            return []
    elif value.isalpha() and value.islower() and words.wordiness(value) > 0.6:
        return []
    if words.is_expression(value) and (b"(" in value or b"[" in value):
        return []
    basic = scheme is not None and scheme.group()[:5].lower() == b"basic"
    kind = "basic-auth" if basic else "bearer-token"
    incident = (
        _basic_strict(value) if basic else words.looks_random(value, 24) and not words.is_example(value)
    )
    return [Span(at, at + len(raw), kind, incident, False, False, value)]


def _basic_strict(value: bytes) -> bool:
    """Say whether a Basic credential holds a password that alone would convince a reader."""
    import binascii

    try:
        password = binascii.a2b_base64(value + b"=" * (-len(value) % 4)).partition(b":")[2]
    except binascii.Error:
        return False
    return len(password) >= 12 and classes(password) >= 3 and words.wordiness(password) < 0.4


_HEADER_SEPARATOR = Lazy(rb"\\{0,7}[\"']?\]?[ \t]{0,4}(?:[:=,]|=>)[ \t]{0,4}(?:\\{0,7}[\"'])?")


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
        return _bearer_value(text, start, stop)
    stop_at = _HEADER_END.search(data, start, min(start + 2048, limit))
    stop = stop_at.start() if stop_at else min(start + 2048, limit)
    while stop > start and data[stop - 1] in b" \t":
        stop -= 1
    return _bearer_value(text, start, stop)


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
        if words.is_placeholder(value) or b"[REDACTED" in value:
            continue
        session = (
            re.search(rb"sess|sid|token|auth|jwt|csrf|xsrf|login|remember|user|secure|key", name) is not None
        )
        if (
            session and (_DIGIT.search(value) or len(value) >= 16) and not words.is_expression(value)
        ) or words.looks_random(value, 16):
            spans.append(Span(match.start(2), match.end(2), "cookie", False, False, False, value))
    return spans


# --- addresses ---------------------------------------------------------------------------------------------------

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
    if 0 <= first_slash < region.find(b"@") and re.match(rb"\d{1,5}/", region):
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
    if _FORMATTED.search(value) or (words.is_expression(value) and re.search(rb"[(\[]", value)):
        return []
    incident = len(value) >= 8 and classes(value) >= 2 and words.wordiness(value) < 0.6
    return [Span(begin, begin + last, "url-password", incident, False, False, value)]


def url_user(text: Text, end: int) -> list[Span]:
    """Confirm `https://TOKEN@host`: a random word alone before the `@`."""
    data = text.data
    start = data.rfind(b"://", max(0, end - 300), end) + 3
    value = data[start : end - 1]
    if start < 3 or not words.looks_random(value, 20) or b"." in value or words.is_example(value):
        return []
    return [Span(start, end - 1, "url-token", True, False, False, value)]


def query(text: Text, end: int) -> list[Span]:
    """Confirm `?key=X` and `&sig=X`, names that mean a secret only in a query; `end` is behind the `=`."""
    data = text.data
    value = values.read(data, end, text.line(end)[1], "url")
    if value is None or value.quoted:
        return []
    raw = data[value.start : value.end]
    stop = raw.find(b"%26")
    canonical = values.canonical(raw)
    if stop >= 0:
        canonical = values.canonical(raw[:stop])
    else:
        stop = len(raw)
    if (
        b"[REDACTED" in raw
        or words.is_placeholder(canonical)
        or _FORMATTED.search(canonical)
        or words.is_expression(canonical)
    ):
        return []
    if not (
        words.looks_random(canonical, 12)
        or (
            len(canonical) >= 8
            and re.search(rb"[0-9]", canonical)
            and words.wordiness(canonical) < 0.5
            and not _NUMBER.match(canonical)
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


# --- statements --------------------------------------------------------------------------------------------------


def statement(text: Text, end: int) -> list[Span]:
    """Confirm SQL's `IDENTIFIED BY 'X'`, `PASSWORD 'X'`, `SET PASSWORD … = 'X'`; `end` is behind the opening quote."""
    data = text.data
    start = end - 1
    while start > 0 and data[start - 1] == 0x5C:
        start -= 1
    value = values.read_quoted(data, start, text.line(end)[1])
    if value is None:
        return []
    # In prose things are identified by "names"; a statement shouts or uses single quotes.
    shouted = re.search(rb"IDENTIFIED|PASSWORD|PLUGIN|PRAGMA", data[max(0, start - 100) : start]) is not None
    if not shouted and (
        data[end - 1 : end] != b"'"
        or not re.search(
            rb"(?i)user|role|login|set |grant|alter|create|pragma", data[max(0, start - 200) : start]
        )
    ):
        return []
    return make(text, value.start, value.end, words.PASSWORD, "sql", True, "password")


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
    rb"(?:machine[ \t]+\S+|(?:\A|\n|\\n)[ \t]*default)(?:\s|\\n|\\t)+(?:(?:login|user|account|port)[ \t]+\S+?(?:\s|\\n|\\t)+){0,3}(?:password|passwd)[ \t]+\Z"
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
        if data[at] in b" \t\"'`\0;" or (data[at] == 0x6E and at > 0 and data[at - 1] == 0x5C):
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
    if data[value.end : value.end + 1] not in (b"", b"\n", b"\r", b"\\", b'"', b"'", b"\0", b" ") or (
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


_PREFIX_REVERSED = Lazy(rb"(?:[A-Za-z0-9]{1,20}[_-]){0,3}[A-Za-z0-9]{0,19}[A-Za-z](?![A-Za-z0-9_\-+/=.])")
_PREFIXED_BODY = Lazy(rb"[A-Za-z0-9]{24,160}(?:_[A-Za-z0-9]{2,80}){0,2}(?![A-Za-z0-9_\-+/=.])")


def prefixed(text: Text, end: int) -> list[Span]:
    """Confirm a key of a provider that no row knows: a short name, `_` or `-`, and a body drawn at random.

    Digests are behind names too (`build_<sha1>`), so the body must mix cases and digits. `end` is 24 characters into it.
    """
    data = text.data
    start = end - 24
    low = max(0, start - 96)
    last = text.vain.get("prefixed", (0, -1))
    if last[0] <= start <= last[1]:
        return []
    text.vain["prefixed"] = (start, start + 23)
    head = _PREFIX_REVERSED.match(data[low : start - 1][::-1])
    body = _PREFIXED_BODY.match(data, start, start + 400)
    if head is None or body is None:
        return []
    name = head.group()[::-1].lower()
    value = body.group()
    if re.match(rb"(?:sha|md)\d|integrity|h\d|v\d", name) or (
        data[start - 1 : start] == b"-" and (b"_" in name or len(name) > 12 or len(value) < 32)
    ):
        return []
    digits = words.digits_in(value)
    if not (
        digits >= 2 and value != value.lower() and value != value.upper() and words.jumble(value) >= 0.36
    ):
        return []
    if words.wordiness(value) > 0.55 or words.is_example(value):
        return []
    begin = start - 1 - len(name)
    if not begins_token(data, begin, b"_-+/="):
        return []
    return [Span(begin, body.end(), "provider-key", False, False, True, data[begin : body.end()])]
