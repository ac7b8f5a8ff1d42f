"""The vocabulary of the redactor: spans, the marker, and the one text type that may be stored.

Nothing here imports more than `re`, because `guard run` builds events from `Redacted` text on its hot path.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

MARKER = re.compile(rb"\[REDACTED:[a-z0-9-]{1,40}(?::[0-9a-f]{12})?\]")
MARKER_START = b"[REDACTED:"


class Redacted(str):
    """Text that went through the redactor; only the redactor makes it.

    An event is built from this type alone, so that a type checker refuses to store anything else. Slicing and
    joining give plain `str` back: what was assembled anew has to be redacted anew.
    """

    __slots__ = ()

    def __new__(cls, *_: object) -> NoReturn:
        """Refuse: text becomes `Redacted` by `guard.redact.redact_text`, never by a call of the type."""
        raise TypeError("Redacted text comes from guard.redact.redact_text, not from the type itself")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as plain text: what comes back from a file has not been through the redactor."""
        return (str, (str(self),))


def bless(text: str) -> Redacted:
    """Give text the type `Redacted`; for the redactor's own modules.

    Args:
        text: what the redactor has just cleaned, or a constant of guard's own code.
    """
    made: Redacted = str.__new__(Redacted, text)  # type: ignore[arg-type]
    return made


class Span(NamedTuple):
    """Where a secret stands and what it is.

    `start` and `end` are byte offsets into the text that was scanned. `value` is the canonical secret
    (unescaped, without quotes), the only input of a fingerprint; it never leaves the process. `named` says
    that the secret was recognised by its own format and not by what stands next to it.
    """

    start: int
    end: int
    kind: str
    incident: bool
    partial: bool
    named: bool
    value: bytes


def merge(spans: list[Span]) -> list[Span]:
    """Join overlapping spans into the fewest that cover them, in order.

    The kind and the canonical value come from the span with a format of its own, then from the longest, so
    that one key has one fingerprint whether or not a variable name stands before it.

    Args:
        spans: spans of one text, in any order.
    """
    if len(spans) < 2:
        return spans
    spans = sorted(spans)
    out = [spans[0]]
    for span in spans[1:]:
        last = out[-1]
        if span.start >= last.end:
            out.append(span)
            continue
        best = max(last, span, key=lambda s: (s.named, s.incident, s.end - s.start))
        out[-1] = best._replace(start=last.start, end=max(last.end, span.end))
    return out


def marker(kind: str, fingerprint: str | None) -> bytes:
    """Return what stands in place of a secret.

    Args:
        kind: the rule's kind.
        fingerprint: 64 hex digits, of which 12 are shown; None for kinds of low entropy.
    """
    if fingerprint is None:
        return b"[REDACTED:%s]" % kind.encode()
    return b"[REDACTED:%s:%s]" % (kind.encode(), fingerprint[:12].encode())


def withhold(text: str | bytes) -> Redacted:
    """Keep nothing of a text that nobody has redacted but that there was one."""
    return bless("[WITHHELD]" if text else "")


def program_name(path: str) -> Redacted:
    """Return the base name of a program, the one part of a command line that is stored as it is.

    A name with anything but letters, digits and `._+-@` in it, or of over 64 characters, is withheld: a
    secret can be a file's name too.
    """
    name = path.rpartition("/")[2]
    plain = name.replace(".", "").replace("_", "").replace("+", "").replace("-", "").replace("@", "")
    if len(name) <= 64 and (plain.isalnum() or not plain) and name.isascii():
        return bless(name)
    return withhold(name)
