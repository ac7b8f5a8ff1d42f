# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""Judging a value beside a name: a secret, a placeholder, a reference, or a piece of a program."""

from __future__ import annotations

import binascii
import re
from functools import lru_cache
from typing import Final

from guard.redact import values, words
from guard.redact.lazy import Lazy
from guard.redact.spans import Span
from guard.redact.text import Text

WORDLIKE = Lazy(rb"[A-Za-z]+(?:[_\-. ][A-Za-z]+)*\Z")
_PATHLIKE = Lazy(rb"(?:\.{0,2}|~|[A-Za-z]:|[a-z]{2,12}:/)[/\\][^\s]*\Z|[a-z][a-z0-9+.\-]{1,12}://")
DIGIT = Lazy(rb"[0-9]")
UUID = Lazy(rb"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\Z")
DIGEST = Lazy(
    rb"(?i)(?:(?:sha\d+|md5)[:-])?(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{56}|[0-9a-f]{64}|[0-9a-f]{96}|[0-9a-f]{128})\Z|sha\d{3}-"
)
KUBEADM = Lazy(rb"(?=[a-z0-9.]*[0-9])[a-z0-9]{6}\.[a-z0-9]{16}\Z")
K3S = Lazy(rb"K10[0-9a-f]{64}::")
_HOST = Lazy(rb"[A-Za-z0-9.\-@]+:\d{1,5}\Z|[a-z0-9\-]+(?:\.[a-z0-9\-]+)+\Z")
_SYMBOL_WORDS = Lazy(rb"[A-Za-z_:.,\-/|\\;()]+\Z")
_PLAIN_TOKEN = Lazy(rb"[A-Za-z0-9+/=_\-.~%:]+\Z")
NUMBER = Lazy(rb"[+-]?[0-9][0-9_,.]*(?:[eE][+-]?\d+)?[a-zA-Z%]{0,2}\Z|0[xX][0-9a-fA-F]+[uUlL]{0,3}\Z")
DOTTED = Lazy(rb"[A-Za-z_][A-Za-z0-9_]*(?:(?:\.|->|::)[A-Za-z_][A-Za-z0-9_]*)+\Z")
IDENTIFIER = Lazy(rb"[A-Za-z_][A-Za-z_]*[0-9]{0,2}\Z")
FORMATTED = Lazy(rb"%[-0-9.]*[sdrixucfgp]\b|%\([a-z_]+\)|\{[a-zA-Z0-9_.:!]*\}|\$\{|\$\(|\{\{|<[A-Za-z_ -]+[0-9]{0,3}(?::[0-9]{1,4})?>|[a-z]\(\)|(?:A-Z|a-z|0-9)(?:A-Z|a-z|0-9|A-F|a-f|_)")

def _is_path(value: bytes) -> bool:
    """Say whether a value is a path or an address; one base64 text in sixty-four begins with a slash as well."""
    if not _PATHLIKE.match(value):
        return False
    drawn = len(value) >= 20 and b"." not in value and words.jumble(value) >= 0.4 and words.digits_in(value) > 0
    return not (drawn and value[:1] == b"/" and value != value.lower() and value != value.upper())


_FIELDS = Lazy(rb"[a-z]+_[a-z]+(?::[a-z]+_[a-z]+)+\Z")
"""The names of a line's fields, as passwd(5) writes them."""

STRONG_STYLES: Final = frozenset(("env", "cli", "url", "dsn", "sql", "line", "named"))


def drawn_password(value: bytes) -> bool:
    """Say whether a password was drawn at random, so that a dot or a per cent sign in it makes no program of it."""
    return (
        len(value) >= 8
        and words.digits_in(value) > 0
        and value != value.lower()
        and value != value.upper()
        and words.jumble(value) >= 0.4
        and words.wordiness(value) < 0.4
        and b"{" not in value
        and b"$" not in value
    )


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
        or b"REDACTED_" in value
    ):
        return False
    if _FIELDS.match(value):
        return False
    if style in STRONG_STYLES:
        if not quoted and words.is_expression(value) and (b"(" in value or b"[" in value):
            return False
        return not (
            style in ("env", "cli", "line")
            and len(value) > 3
            and _is_path(value)
            and value[:1] in b"/.~"
            and not quoted
        )
    kinds = classes(value)
    if value != value.translate(None, b" \t\r\n"):
        return quoted and _phrase(value)
    if kinds >= 3 and len(value) >= 8 and value.isalnum() and (words.jumble(value) >= 0.4 or words.wordiness(value) < 0.2):
        return True
    if not quoted:
        if drawn_password(value) and not words.is_expression(value) and not _is_path(value) and not value.endswith(b"="):
            return True
        if len(value) >= 8 and value.isalpha() and words.jumble(value) >= 0.45 and words.wordiness(value) < 0.35:
            return True  # drawn letters: a variable's name changes case once a word
        if words.is_expression(value) or DOTTED.match(value) or _is_path(value):
            return False
        if NUMBER.match(value):
            return value.isdigit() and len(value) >= 6 and style == "config"
        if IDENTIFIER.match(value) and not DIGIT.search(value):
            return False
        if value[-1:] in b":?*.!" and WORDLIKE.match(value[:-1]):
            return False
        if kinds == 1 or (kinds == 2 and words.wordiness(value) > 0.7 and not re.search(rb"[0-9@!#$%^&*]", value)):
            return False
        if _SYMBOL_WORDS.match(value) and words.jumble(value) < 0.4:
            return False
        if FORMATTED.search(value) or (value[:1] in b"$*&-+=|/<>!?~^%:" and not DIGIT.search(value)):
            return False
        return len(value) >= 4 and not re.match(rb"[A-Za-z_]+[0-9]?\Z", value)
    if style == "call":
        return len(value) >= 6 and kinds >= 3 and not _HOST.match(value) and not WORDLIKE.match(value) and not _is_path(value) \
            and not FORMATTED.search(value) and not IDENTIFIER.match(value) and bool(DIGIT.search(value))  # fmt: skip
    if (
        (FORMATTED.search(value) or DOTTED.match(value)) and not drawn_password(value)
    ) or (_is_path(value) and value[:1] in b"/.~abcdefghijklmnopqrstuvwxyz"):
        return False
    if re.search(rb"(?i)passw|passphrase|secret_|token", value) and not DIGIT.search(value):
        return False
    if value[-1:] in b":?" or (value[:1] in b"-" and WORDLIKE.match(value.lstrip(b"-"))):
        return False
    if NUMBER.match(value):
        return len(value) >= 4 and value.isdigit()
    if kinds == 1 and len(value) < 6:
        return False
    if (value.islower() and WORDLIKE.match(value)) or (value.isupper() and WORDLIKE.match(value)):
        return style == "code" and value.isalpha() and len(value) >= 8 and words.wordiness(value) < 0.5
    if not DIGIT.search(value) and WORDLIKE.match(value):
        # `CamelCase` and `Two-Words` are names of things; `hUnTeRxQ` is not.
        return words.wordiness(value) < 0.7 and value.isalpha()
    return not re.match(rb"[^A-Za-z0-9]*[A-Za-z]*[^A-Za-z0-9]*\Z", value) or (len(value) >= 8 and kinds >= 3)


def _phrase(value: bytes) -> bool:
    """Say whether a value with blanks is a passphrase and not a sentence for a reader."""
    parts = value.split()
    if len(parts) > 12 or value[-1:] in b":?.!" or len(value) > 120 or FORMATTED.search(value) or DIGEST.match(parts[-1]):
        return False
    if re.search(
        rb"(?i)\b(?:password|passphrase|enter|your|must|please|invalid|the|is|are|not|for|of|to|with|token|secret|key)\b",
        value,
    ):
        return bool(DIGIT.search(value)) and bool(re.search(rb"[!@#$%^&*]", value))
    if DIGIT.search(value):
        return True
    return len(parts) >= 3 and all(p.isalpha() and p.islower() for p in parts)


def token_like(value: bytes, strength: int, style: str, quoted: bool) -> bool:
    """Say whether a value beside the name of a token, secret or key is to be redacted; arguments as `password_like`."""
    if (
        len(value) < 6
        or len(value) > 4096
        or words.is_placeholder(value)
        or b"REDACTED_" in value
    ):
        return False
    if b" " in value or b"\t" in value or (b"::" in value and not K3S.match(value)):
        return False
    if KUBEADM.match(value):
        return True
    if not quoted and words.is_expression(value):
        return False
    if FORMATTED.search(value) or words.is_example(value):
        return False
    has_digit = DIGIT.search(value) is not None
    random = words.looks_random(value, 12)
    if strength == words.WEAK:
        if (
            (UUID.match(value) and style != "named")
            or (DIGEST.match(value) and style not in ("env", "named"))
            or not _PLAIN_TOKEN.match(value)
            or re.search(rb"[^=]=[^=]", value)
        ):
            return False
        return (
            words.looks_random(value, 20 if style in ("code", "call", "config") else 16)
            and not _is_path(value)
            and not DOTTED.match(value)
        )
    if words.is_spelt_out(value):
        return False  # an issued key is no `s3cr3t-value`
    if _is_path(value) or (DOTTED.match(value) and not words.looks_random(value.rpartition(b".")[2], 20)):
        return False
    if random:
        return True
    if (
        len(value) >= 20
        and value.isalnum()
        and value != value.lower()
        and value != value.upper()
        and words.jumble(value) >= 0.25
        and words.wordiness(value) < 0.62
    ):
        return True  # drawn letters of both cases with few digits among them
    if NUMBER.match(value):
        return style in ("env", "cli") and value.isdigit() and len(value) >= 8
    if style in STRONG_STYLES:
        if WORDLIKE.match(value):
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
    return words.wordiness(value) < 0.5 and classes(value) >= 2 and not re.match(rb"[A-Za-z_]+[0-9]{1,2}\Z", value)


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
        or words.counts_apart(value)
        or words.is_spelt_out(value)
        or FORMATTED.search(value)
        or _is_path(value)
        or (UUID.match(value) and strength == words.WEAK)
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
    if DIGEST.match(value) and style == "config":
        return False
    return (
        len(value) >= (16 if style in ("env", "cli", "dsn") else 32)
        and words.looks_random(value, 16)
        and words.entropy(value) >= 3.0
        and words.wordiness(value) < 0.3
    )


_DOCUMENTED: Final = frozenset(
    (
        0x3B8878D3, 0xFC7E4EEF, 0xF060CF72, 0xBE3D5DD4,  # systemd.netdev(5), wg(8), wg-quick(8)
        0x9E49269D, 0x2BDD531A, 0x269D4CEA, 0x7A77589D, 0x0FC657B9, 0xE0318833,  # RFC 6749, 7617, 6750
        0xE379CEA5, 0xB4A1FFD1, 0xB4CBD586, 0x87707360, 0xFA4F3738,  # RFC 7519, Firebase, Azurite, Cosmos DB's emulator, Vault
    )
)  # fmt: skip
"""CRC-32 of secrets that manuals print as examples: no key stands in this file either."""


def is_documented(value: bytes) -> bool:
    """Say whether a secret is one that a manual prints as its example: redacted, and no incident."""
    return binascii.crc32(value) in _DOCUMENTED


KIND_OF: Final = {
    words.PASSWORD: "password",
    words.TOKEN: "secret",
    words.KEY: "key",
    words.WEAK: "credential",
}


_CONTROLS: Final = bytes([*range(9), *range(11, 32), 127])


def _readable(value: bytes) -> bool:
    """Say whether a value that is not ASCII is text and not a stretch of a binary file."""
    high = len(value) - len(value.translate(None, bytes(range(128, 256))))
    if high * 4 <= len(value):
        return True
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def make(text: Text, start: int, end: int, strength: int, style: str, quoted: bool, kind: str = "") -> list[Span]:
    """Judge the bytes from `start` to `end` and return the span, or nothing; nothing too for a key found already."""
    raw = text.data[start:end]
    if not raw or text.known(start, end):
        return []
    value = values.canonical(raw)
    if not value.isascii() and not _readable(value):
        return []
    if value.translate(None, _CONTROLS) != value:
        return []
    if not judge(value, strength, style, quoted) or value in _starts():
        return []
    sure = strict(value, strength, style)
    if strength == words.PASSWORD and style in ("cli", "url") and (sure or is_sample(value)) and in_program(text, start):
        if is_sample(value):
            return []
        sure = False
    return [Span(start, end, kind or KIND_OF[strength], sure, False, False, value)]


_LITERAL = Lazy(rb"\b(?:[bfr]|rb|br|fr|rf)[\"']|(?<!execve)\([\"']|[A-Za-z_] = [\"']")


def in_program(text: Text, pos: int) -> bool:
    """Say whether a command or an address stands in a program's literal: `run("mysql -pX")`. The value may be a test's.

    Args:
        text: the text.
        pos: where the value begins.
    """
    return _LITERAL.search(text.data, max(text.line(pos)[0], pos - 400), pos) is not None


def is_sample(value: bytes) -> bool:
    """Say whether a password is of the kind that tests and manuals write: `S3cr3t-pass`, `Abc12345`, `pw1`."""
    return len(value) < 5 or words.counts_apart(value) or words.is_spelt_out(value)


@lru_cache(maxsize=1)
def _starts() -> frozenset[bytes]:
    """Return what keys begin with: by itself no secret."""
    from guard.redact.rules.tails import KINDS

    return frozenset(start.rstrip(b"-_.") for start in KINDS if len(start) > 6) | frozenset(KINDS)
