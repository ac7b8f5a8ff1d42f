"""Argument lists: `--token X` over two elements, `-pX`, whole scripts behind `-c`."""

from __future__ import annotations

from typing import Final

from guard.redact import Redacted, bless, redact_text

QUOTED: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})
"""How an argument is written when a list is read as a list."""


def redact_arguments(argv: tuple[str, ...]) -> tuple[Redacted, ...]:
    """Redact an argument list.

    Each element is read on its own, since it may be a script, a header or a URL; then the list is read as a
    list, for a value whose name is the element before it. An element that the second reading touches takes
    its result.

    Args:
        argv: the arguments.
    """
    alone = [redact_text(word) for word in argv]
    listed = "[" + ", ".join('"' + word.translate(QUOTED) + '"' for word in alone) + "]"
    together = redact_text(listed, "text")
    if together == listed:
        return tuple(alone)
    parts = _split(together)
    if len(parts) != len(alone):
        # The marker swallowed an element's border: keep no element that the list reading changed.
        return tuple(bless("[REDACTED:argument]") for _ in alone)
    return tuple(
        word if part == word.translate(QUOTED) else bless(part) for word, part in zip(alone, parts, strict=True)
    )


def _split(listed: str) -> list[str]:
    parts: list[str] = []
    pos = 1
    while pos < len(listed) and listed[pos] == '"':
        end = pos + 1
        while end < len(listed) and listed[end] != '"':
            end += 2 if listed[end] == "\\" else 1
        parts.append(listed[pos + 1 : end])
        pos = end + 3
    return parts
