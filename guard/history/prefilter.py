"""The expression with which a shell decides, without a process of its own, whether a line is worth asking about.

It is made from the redactor's own tables, so that no rule can be added there and forgotten here: every line in which
the redactor finds something must match (tests/history/test_prefilter.py). A match costs one question, no more. tcsh
has no expressions: what it gets is a pattern that matches all of these lines, and a few more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LONG: Final = "[a-z0-9_+-]{20}"
"""A run of characters as keys have them; the shortest format with a start of its own has twenty."""

_SHAPES: Final = (
    LONG,
    "[a-z0-9]{16}",
    "//[^ /]*@",  # user and password in an address
    "(echo|print|printf)[ \t].*[|]",  # handed to a program through a pipe
    "<<<",
    "thin:",
    ":([0-9]{4,5}|[*]):[^ ]*:",  # .pgpass
    "(%[0-9a-f][0-9a-f]){6}",
    "([\\]x?[0-9a-f]{2,4}){6}",
    "[$][a-z0-9]{1,8}[$][^ ]{8}",  # crypt(5)
    "private key",
    "send[ \t]",
    "(sha|256|512|md5|crypt)[}][a-z0-9+/]{20}",  # slappasswd(8C)
    "[.]login[(]",
    "login with",
    "conn(ect)?[ \t][^ ]*/",  # SQL*Plus
    "_user[= ][^ ]*:",
    "add-mask",
    "snmp-server",
    "samba-tool",
    "\uff1a|\uff1d",
)

_WORDS: Final = (
    "pass", "pwd", "psw", "secret", "token", "key", "cred", "auth", "jwt", "psk", "_pat", "pw", "cookie", "sess",
    "signature", "dsn", "nonce", "kennwort", "senha", "contrase", "webhook", "_tok", "sas", "sid", "wachtwoord",
    "cohere", "mistral", "cloudflare", "snowflake", "okta", "dropbox", "heroku", "datadog", "splunk", "elastic",
    "algolia", "twitch", "twitter", "wandb", "bearer", "basic", "identified", "sig", "obscure",
    "add_user", "eap", "ntlm", "clave", "parola", "\u5bc6\u7801", "\u5bc6\u78bc", "\u53e3\u4ee4", "\u30ef\u30fc\u30c9",
    "\u043e\u043b\u044c", "\ubc88\ud638", "has\u0142o",
)  # fmt: skip


def alternatives(words: Iterable[str]) -> str:
    """Return an expression that matches any of the words, common beginnings written once.

    libc compiles an expression at every match, and bash and zsh match once a line: written out, two hundred names
    cost 0.8 ms, so 0.3 ms.
    """
    rests: dict[str, list[str]] = {}
    complete = False
    for word in sorted(set(words)):
        if word:
            rests.setdefault(word[0], []).append(word[1:])
        else:
            complete = True
    parts = [_literal(first) + alternatives(rest) for first, rest in rests.items()]
    if not parts:
        return ""
    if len(parts) == 1 and not complete:
        return parts[0]
    return f"({'|'.join(parts)})" + "?" * complete


def _literal(character: str) -> str:
    return f"[{character}]" if character in ".+*?|($" else character


def expression(*, called: bool = True) -> str:
    """Return a POSIX extended regular expression, to be matched without regard to case.

    It is one line that libc (bash, zsh, grep) and PCRE (fish) read alike: no back-reference, no class by name.

    Args:
        called: also where one of the `programs` is called, which is two thirds of what it costs to compile.
    """
    named = alternatives(_WORDS) + "[^ \t]*[] \t=:,>\"'(].*[^ \t]"
    if not called:
        return "|".join((*_SHAPES, named))
    return "|".join((*_SHAPES, named, "(^|[^a-z0-9_.])" + alternatives(programs()) + "[ \t\"'].*[-:/%@=]"))


def programs() -> list[str]:
    """Return the names, in small letters, of programs that take a secret in their arguments."""
    from guard.redact.rules.commands import COMMANDS

    # A row of kind `key` waits for a telling word, which is in `_WORDS`: git and npm are called too often to ask.
    return sorted({name.decode().lower() for row in COMMANDS if row.kind != "key" for name in row.programs})


_ALNUM: Final = "abcdefghijklmnopqrstuvwxyz0123456789_"
_BLANK: Final = f"[^-{_ALNUM}./;@%+?*|&~]"
"""A separator. tcsh cuts a pattern at blanks, and its classes cannot hold `]`: so what is none is written out. Ranges
are written out because tcsh asks the locale for their order."""
_HEX: Final = "[0123456789abcdef]"
_PATTERNS: Final = (
    "*" + f"[-{_ALNUM}+]" * 20 + "*",
    "*" + f"[{_ALNUM}]" * 16 + "*",
    "*//*@*",
    "*<<<*",
    f"*{{echo,print,printf}}{_BLANK}*|*",
    "*thin:*",
    "*:" + "[0123456789]" * 4 + "*:*:*",
    "*:[*]:*:*",
    "*" + f"%{_HEX}{_HEX}" * 6 + "*",
    r"*[\]??" * 6 + "*",
    "*[$]*[$]????????*",
    "*private?key*",
    f"*send{_BLANK}*",
    "*{sha,256,512,md5,crypt}?" + f"[{_ALNUM}+/]" * 20 + "*",
    "*.login[(]*",
    "*login?with*",
    "*conn*/*",
    "*_user*:*",
    "*{add-mask,snmp-server,samba-tool,\uff1a,\uff1d}*",
)
"""`_SHAPES` for tcsh."""
LOOP: Final = f"{{{{foreach,while,switch}}{_BLANK}*,if*then}}"
"""What a line that begins a loop of tcsh's, or another block, looks like."""


def pattern() -> str:
    """Return a tcsh pattern for a line in small letters, `x ` before it, that matches wherever `expression` does."""
    named = f"*{{{','.join(sorted(_WORDS))}}}*{_BLANK}?*"
    called = f"*[^{_ALNUM}.]{{{','.join(programs())}}}{_BLANK}*[-:/%@=]*"
    return f"{{{','.join((*_PATTERNS, named, called))}}}"
