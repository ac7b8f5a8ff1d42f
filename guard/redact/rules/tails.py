# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""Where a carrier has to look further: a key's start that runs up to the end of an strace string or a terminal's line."""

from __future__ import annotations

import re
from typing import Final

from guard.redact.engine import Pattern
from guard.redact.rules.formats import FORMATS

TOKEN: Final = rb"[A-Za-z0-9_\-+/=.~%]"
CALLS: Final = rb"write|read|send|sendto|recv|recvfrom|pwrite64|pread64"
CONTROL: Final = rb"(?:\x1b\[[0-9;?]{0,12}[A-Za-z])"
"""A terminal's control sequence (ECMA-48 CSI)."""

_NO_START: Final = frozenset(
    (
        "crypt-hash", "azure-client-secret", "azure-storage-key", "google-refresh-token", "elevenlabs-key", "clickup-token", "modal-token",
        "firecrawl-key", "cursor-key", "launchdarkly-key", "password-hash", "django-hash", "declared-token", "mapbox-token", "adobe-secret",
    )
)  # fmt: skip


def _starts() -> dict[bytes, str]:
    out: dict[bytes, str] = {}
    for row in FORMATS:
        for start in row.starts:
            if b"[" not in start and row.kind not in _NO_START:
                out.setdefault(re.sub(rb"\\(.)", rb"\1", start), row.kind)
    return out


KINDS: Final = _starts()
"""The literal starts of keys, with their kinds."""

STARTS: Final = sorted(KINDS, key=len, reverse=True)
ANY: Final = b"|".join(re.escape(start) for start in STARTS)
CUTS: Final = b"|".join(
    re.escape(cut)
    for cut in sorted(sorted({s[:n] for s in KINDS if len(s) > 2 for n in range(2, len(s))}), key=len, reverse=True)
)
"""Starts that were themselves cut."""

BEHEADED: Final = b"|".join(re.escape(s[1:]) for s in STARTS if len(s) > 2)
"""Starts without their first character."""

NAME: Final = rb"(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|bearer|basic)[a-z_]{0,12}(?:\\{0,3}[\"'])?[ \t]{0,2}[=: ][ \t]{0,2}(?:\\{0,3}[\"'])?"
_END: Final = rb"\"(?:\.\.\.)?(?:, [0-9]|, iov| <)"

STRACE: Final = (
    Pattern(rb"[^A-Za-z0-9](?:" + ANY + rb")" + TOKEN + rb"*" + _END, (b'"',), False, False),
    Pattern(rb"[^A-Za-z0-9](?:" + CUTS + rb")" + _END, (b'"',), False, False),
    Pattern(
        NAME + rb"[^\s\"'\\]{0,200}" + _END,
        (b"passw", b"secret", b"token", b"key", b"bearer", b"basic", b"passphrase"),
        False,
        True,
    ),
    Pattern(rb"(?:(?:" + CALLS + rb")\([0-9]+, |iov_base=)\"(?:" + BEHEADED + rb")[A-Za-z0-9_\-]{8}", (b'"',), False, False),
    Pattern(rb"PRIVATE KEY(?: BLOCK)?-----", (b"private key",), False, False),
)
"""Patterns behind which a call's string may go on in the next call."""

EVENTS: Final = (Pattern(rb"\[[0-9]{1,12}(?:\.[0-9]{1,12})?, ?\"[io]\", ?\"", (b'"o"', b'"i"'), False, False),)
"""What an asciicast's event begins with."""

DUMPS: Final = (
    # One pattern, and a whole offset: otherwise each would be tried wherever a zero ends a number.
    Pattern(
        rb"[0-9a-f]{5}0(?:: (?:[0-9a-f]{2}){1,4} (?:[0-9a-f]{2}){1,4} |  ?[0-9a-f]{2}(?: [0-9a-f]{2}){6} |(?:   [!-~ ]|  \\[0abfnrtv\\]){7}|"
        rb" {1,4}(?:[0-9a-f]{4} {1,4}){7})",
        (b"0: ", b"0 "),
        False,
        False,
    ),
)
"""Full lines of xxd, hexdump and od."""
