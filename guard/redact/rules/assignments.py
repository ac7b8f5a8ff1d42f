# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""Values behind a name and a separator, in every language's and shell's syntax."""

from __future__ import annotations

from guard.redact import values, words
from guard.redact.lazy import Lazy
from guard.redact.rules.judge import DOTTED, IDENTIFIER, NUMBER, WORDLIKE, classes, drawn_password, make
from guard.redact.spans import MARKER, Span
from guard.redact.text import Text

NAME_REVERSED = Lazy(rb"[A-Za-z0-9_.\-$\x80-\xff]{1,64}")
_TYPE_THEN = Lazy(
    rb"[ \t]{0,4}(?:&(?:'static )?|\*(?:const )?)?[A-Za-z_][A-Za-z0-9_.]{0,40}(?:[\[<][A-Za-z0-9_., |&'\[\]<>]{0,60}[\]>])?(?: \| None)?\??[ \t]{0,4}=[ \t]{0,4}"
)
_CAST = Lazy(rb"!!?[a-z]{1,10}[ \t]{1,4}")


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
    closed = head.rstrip(b")") if head[-2:] in (b'")', b"')") else head.rstrip(b"]}" if b"{" in head[-72:] else b"]")
    bare = closed.rstrip(b"\"'`*")
    quoted_name = len(bare) != len(closed)
    bare = bare.rstrip(b"\\")
    found = NAME_REVERSED.match(bare[::-1])
    if found is None:
        return []
    name = found.group()[::-1]
    name = unescaped(bare, len(bare) - len(name), name).lstrip(b"-.$")
    strength = words.name_strength(name)
    if strength == 0:
        return []
    if name == b"key" and bare.endswith((b"login(key", b"login( key")):
        strength = words.TOKEN
    line_end = text.line(end)[1]
    pos = values.skip(data, end, line_end)
    marked = _MARKUP.match(data, pos, min(pos + 24, line_end)) if separator == b":" else None
    if marked is not None:
        pos = marked.end()
    if name == b"PASS" and separator == b":" and not quoted_name and data[pos : pos + 1] not in b"\"'\\":
        verdict = values.read(data, pos, line_end, "line")
        if verdict is None or not data[verdict.start : verdict.end].isalnum() or not drawn_password(data[verdict.start : verdict.end]):
            return []  # a test's verdict
    if separator == b"=" and data[pos : pos + 1] in (b"=", b">", b"~"):
        if data[pos : pos + 1] == b"~" or data[pos : pos + 2] == b"==":
            return []
        pos += 1
        while pos < line_end and data[pos] in b" \t":
            pos += 1
        blank = True
    elif separator == b":" and data[pos : pos + 1] in (b"=", b":"):
        if data[pos : pos + 1] == b":":
            # LDIF writes a value in base64 behind two colons (RFC 2849).
            coded = _LDIF.match(data, pos, min(pos + 600, line_end)) if strength == words.PASSWORD else None
            return make(text, *coded.span(1), strength, "cli", False, "password") if coded else []
        pos += 1
        while pos < line_end and data[pos] in b" \t":
            pos += 1
    elif separator == b":":
        typed = _TYPE_THEN.match(data, pos, min(pos + 160, line_end))
        if typed is not None and not _drawn_type(data, typed.group().strip(), typed.end()):
            pos = typed.end()
        elif (cast := _CAST.match(data, pos, min(pos + 20, line_end))) is not None:
            pos = cast.end()
    if pos >= line_end:
        return []
    wrapped = _WRAPPED.match(data, pos, min(pos + 200, line_end)) if data[pos : pos + 1].isalpha() else None
    if wrapped is not None:
        # An argument or a default: `Secret("X")`, `os.getenv("NAME") or "X"`.
        value = values.read_quoted(data, wrapped.end(), line_end)
        raw = data[value.start : value.end] if value is not None and value.closed else b""
        if value is not None and (words.looks_random(raw, 20) or (strength == words.PASSWORD and password_told(raw))):
            return make(text, value.start, value.end, strength, own_style(name, "code"), True, kind_of(name, strength))
    first = data[pos]
    if first == 0x5B and data[pos : pos + 10] != b"[REDACTED:":  # a list of values: ["a", "b"]
        return _list(text, pos + 1, line_end, strength)
    spaced = blank or pos > end
    if separator == b"=" and not spaced and not quoted_name:
        return _shell_assignment(text, pos, name, strength, end - 1 - len(name))
    value = values.read(data, pos, line_end, "config")
    if value is None or value.end == value.start:
        return []
    if value.quoted:
        style = own_style(name, "code")
        spans = make(text, value.start, value.end, strength, style, True, kind_of(name, strength))
        # A plan's `name = "old" -> "new"`
        changed = _CHANGED.match(data, value.end, min(value.end + 24, line_end)) if spans else None
        new = values.read_quoted(data, changed.end(), line_end) if changed is not None else None
        return spans + make(text, new.start, new.end, strength, style, True, kind_of(name, strength)) if new else spans
    if data[value.end : value.end + 1] in b"([{" and data[value.end : value.end + 1]:
        return []
    if quoted_name and NUMBER.match(data[value.start : value.end]):
        return []  # a JSON number stays a number
    if prose_follows(data, value.end, line_end) and not words.looks_random(data[value.start : value.end], 12):
        return []
    return make(text, value.start, value.end, strength, own_style(name, "config"), False, kind_of(name, strength))


_WRAPPED = Lazy(
    rb"(?:[^\n\"'=]{1,60}(?:\\{0,7}[\"'][A-Za-z0-9_.\-]{1,40}\\{0,7}[\"'])?[)\]]{0,2}[ \t]{0,2}(?:\|\||\?\?|\bor\b)[ \t]{0,2}|"
    rb"[A-Za-z_][A-Za-z0-9_.]{0,40}(?:::[A-Za-z_]{1,24}){0,2}!?\((?:[A-Za-z_]{1,16}\()?)(?=\\{0,7}[\"'])"
)
_CHANGED = Lazy(rb"\\{0,7}[\"'][ \t]{1,4}->[ \t]{1,4}(?=\\{0,7}[\"'])")
_ANY_QUOTE = Lazy(rb"\\{0,7}[\"']")
_LDIF = Lazy(rb":[ \t]{1,4}((?:[A-Za-z0-9+/]{4}){2,120}[A-Za-z0-9+/]{0,3}={0,2})(?=[\s\\\"'<\0]|\Z)")


def _drawn_type(data: bytes, typed: bytes, end: int) -> bool:
    """Say whether what looks like `name:type=value` is a value drawn at random with a `=` in it."""
    return (
        typed[-2:-1] not in b" \t"
        and (len(typed) >= 12 or _ANY_QUOTE.match(data, end) is None)
        and (words.digits_in(typed) > 1 or words.jumble(typed[:-1]) >= (0.35 if words.digits_in(typed) else 0.5))
    )


def unescaped(data: bytes, start: int, name: bytes) -> bytes:
    r"""Return a name without the letter of an escaped line's end before it (`\nNAME`).

    Args:
        data: what the name stands in.
        start: where it begins.
        name: the name.
    """
    return name[1:] if start > 0 and data[start - 1] == 0x5C and name[:1] in b"nrt" else name


_MARKUP = Lazy(rb"(?:\*\*|__|</(?:b|strong|td|th|dt|span|code)>)[ \t]{0,4}")
_OWN = Lazy(rb"(?:[A-Z0-9]+_)+(?:KEY|CREDENTIALS?|CREDS?|AUTH)\Z|[xX]-(?:[A-Za-z0-9]+-)+[kK][eE][yY]\Z")


def own_style(name: bytes, style: str) -> str:
    """Return `named` where a weak name is a variable's or a header's of its own (`ENTREZ_KEY`, `x-functions-key`).

    There a digest or a UUID is a key, which it is not beside `key` or `cacheKey`.
    """
    return "named" if words.name_strength(name) == words.WEAK and _OWN.search(name) is not None else style


def arrow(text: Text, end: int) -> list[Span]:
    """Confirm `name -> X` in a table or a log: X must look drawn at random; `end` is eight characters into it."""
    data = text.data
    at = max(data.rfind(b"->", max(0, end - 32), end), data.rfind(b"\xe2\x86\x92", max(0, end - 32), end))
    if at < 0:
        return []
    head = data[max(0, at - 80) : at].rstrip(b" \t")
    end = at + (2 if data[at] == 0x2D else 3)
    head = head.rstrip(b"\"'`*")
    found = NAME_REVERSED.match(head[::-1])
    if found is None:
        return []
    name = unescaped(head, len(head) - found.end(), found.group()[::-1]).lstrip(b"-.$")
    strength = words.name_strength(name)
    if strength < words.KEY:
        return []
    limit = text.line(end)[1]
    pos = end
    while pos < limit and pos < end + 8 and data[pos] in b" \t":
        pos += 1
    value = values.read(data, pos, limit, "shell")
    if value is None or not (
        words.looks_random(data[value.start : value.end], 20) or password_told(data[value.start : value.end])
    ):
        return []
    return make(text, value.start, value.end, strength, "env", value.quoted, kind_of(name, strength))


def password_told(raw: bytes) -> bool:
    """Say whether a word behind the word `password` is nothing that a sentence holds."""
    return (
        len(raw) >= 8
        and classes(raw) >= 2
        and (words.jumble(raw) >= 0.4 or (classes(raw) >= 3 and (words.digits_in(raw) > 0 or words.jumble(raw) >= 0.3)))
        and words.wordiness(raw) <= 0.6
    )


def kind_of(name: bytes, strength: int) -> str:
    """Return the kind that a name gives its value."""
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


def prose_follows(data: bytes, pos: int, limit: int) -> bool:
    """Say whether a sentence goes on behind `pos`: two more words of letters."""
    return _PROSE.match(data, pos, min(pos + 60, limit)) is not None


def _shell_assignment(text: Text, pos: int, name: bytes, strength: int, name_start: int) -> list[Span]:
    """Confirm `NAME=value` without blanks: a shell's assignment, .env, ini, a query's parameter, a program's argument."""
    data = text.data
    before = data[name_start - 1 : name_start] if name_start > 0 else b"\n"
    limit = text.command_end(pos)
    if before in (b"?", b"&") or data[max(0, name_start - 5) : name_start] == b"&amp;" or before == b"#":
        value = values.read(data, pos, limit, "url")
        return make(text, value.start, value.end, strength, "url", False, kind_of(name, strength)) if value else []
    if before == b";" or _dsn_around(data, name_start):
        value = values.read(data, pos, limit, "dsn")
        return (
            make(text, value.start, value.end, strength, own_style(name, "dsn"), value.quoted, kind_of(name, strength))
            if value
            else []
        )
    upper = name.isupper()
    if not upper and not name.islower() and data[pos : pos + 1] not in b"\"'\\":
        upper = name[:1].isupper() and b"_" in name
    style_of_value = "shell"
    start_of_line = text.line(pos)[0]
    escaped = data.rfind(b"\\n", max(start_of_line, name_start - 200), name_start)
    start_of_line = max(start_of_line, escaped + 2 if escaped >= 0 else 0)
    prefix = data[start_of_line:name_start].strip()
    own_line = (
        prefix in (b"", b"export", b"set", b"declare -x", b"+", b"-", b"+export", b"-export", b"env")
        and data[pos : pos + 1] not in b"\"'("
    )
    if own_line and not upper and prefix in (b"", b"+", b"-"):
        style_of_value = "line"
    if before in (b'"', b"'") and data[pos : pos + 1] == before and data[name_start - 2 : name_start - 1] != b"\\":
        return []  # `"password="`: the string ends here
    value = values.read(data, pos, limit, style_of_value)
    if value is None or value.end == value.start:
        return []
    raw = data[value.start : value.end]
    follow = data[value.end : value.end + 1]
    if value.quoted:
        style = own_style(name, "env") if upper or prefix[-6:] == b"export" or prefix == b"env" else "code"
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
        return make(text, value.start, value.end, strength, style, True, kind_of(name, strength))
    if follow in b"([{" and follow:
        return []
    if upper or prefix in (b"export", b"set", b"env", b"declare -x"):
        return make(text, value.start, value.end, strength, own_style(name, "env"), False, kind_of(name, strength))
    # lower-case, no blanks: ini, a key=value log or option, or a keyword argument of a program
    end = value.end
    while end > value.start and data[end - 1] in b",)];}":
        if data[end - 1] in b"]})" and data[value.start] in b"[{(":
            break
        end -= 1
    raw = data[value.start : end]
    if raw.isupper() and WORDLIKE.match(raw) and len(raw) < 24:
        return []  # `--passwd=FILE`, `password=PASSWORD`
    if end < value.end or raw[-1:] in b"," or before in b"(," or _in_call(data, start_of_line, name_start):
        comma = raw.find(b",")
        if comma > 0 and style_of_value != "line":
            end = value.start + comma
        return make(text, value.start, end, strength, "config", False, kind_of(name, strength))
    code_line = follow == b"\n" or not follow or follow in b" \t\r"
    style = (
        "line"
        if code_line
        and strength == words.PASSWORD
        and not words.is_expression(raw)
        and not _identifier_value(raw, name)
        else "config"
    )
    return make(text, value.start, end, strength, style, False, kind_of(name, strength))


def _identifier_value(raw: bytes, name: bytes) -> bool:
    """Say whether `name=value` is a keyword argument given a variable: `password=pw`, `passwd=self._passwd`."""
    return (
        raw.lower() == name.lower()
        or DOTTED.match(raw) is not None
        or (IDENTIFIER.match(raw) is not None and b"_" in raw)
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
    return make(text, end, value.end(), strength, "code", True, kind_of(name, strength))


def _list(text: Text, pos: int, limit: int, strength: int) -> list[Span]:
    """Confirm the quoted members of a list behind a sensitive name, at most 32."""
    spans: list[Span] = []
    for _ in range(32):
        while pos < limit and text.data[pos] in b" \t,":
            pos += 1
        value = values.read_quoted(text.data, pos, limit)
        if value is None:
            value = values.read(text.data, pos, limit, "config")
            if value is None or not words.looks_random(text.data[value.start : value.end], 20):
                break
        if not value.closed:
            break
        spans += make(text, value.start, value.end, strength, "code", True)
        pos = value.end
        if value.quoted:
            while pos < limit and text.data[pos] in b"\\":
                pos += 1
            pos += 1
    return spans
