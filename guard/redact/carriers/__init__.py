"""How a text carries secrets: one module a carrier, chosen by name or line by line.

A carrier turns complete lines into spans. Most texts need nothing but the rules, which know quoting and
escapes at any depth; a carrier adds what only the container knows: that JSON must stay JSON, that one key
came in two `write` calls.
"""

from __future__ import annotations

from typing import Protocol

from guard.redact.scan import Scanner
from guard.redact.spans import Span

NAMES = ("auto", "text", "jsonl", "strace", "pty", "history")


class Carrier(Protocol):
    """What finds the spans of complete lines."""

    lines_may_be_json: bool

    def spans(self, data: bytes, since: int, last: bool) -> list[Span]:
        """Return the spans in `data` behind offset `since`; what stands before is context.

        Args:
            data: context and complete lines.
            since: where the new text begins.
            last: whether the text ends here.
        """
        ...


def carrier_for(name: str, scanner: Scanner) -> Carrier:
    """Return the carrier of that name.

    Args:
        name: one of `NAMES`.
        scanner: finds the spans.
    """
    from guard.redact.carriers.mixed import Mixed

    return Mixed(scanner, name)
