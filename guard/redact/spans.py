"""The vocabulary of the redactor: spans and the marker."""

from __future__ import annotations

import re
from typing import NamedTuple

MARKER = re.compile(rb"\[REDACTED:[a-z0-9-]{1,40}(?::[0-9a-f]{12})?\]")
MARKER_START = b"[REDACTED:"


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

    @property
    def confidence(self) -> str:
        """How sure the rules are: high, medium or low."""
        return "high" if self.incident else "medium" if self.named and not self.partial else "low"


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
        return f"[REDACTED:{kind}]".encode()
    return f"[REDACTED:{kind}:{fingerprint[:12]}]".encode()
