"""From a key that somebody holds to its incident, without keeping the key."""

from __future__ import annotations

from guard.redact.fingerprint import fingerprinted
from guard.redact.marking import Marks
from guard.redact.scan import Scanner
from guard.redact.spans import Span
from guard.redact.stream import Redactor
from guard.redact.stream import Sighting as Seen

LIMIT = 65536
"""Bytes of a key that are read; a private key of 16384 bits has 13,000."""


def names_of(text: bytes, marks: Marks) -> list[tuple[str, str]]:
    """Return the fingerprints of what a text holds: each secret the rules see in it, and the whole line as a key.

    Args:
        text: what was pasted; white space around it does not count.
        marks: gives the fingerprints.
    """
    found: list[tuple[str, str]] = []

    def add(span: Span) -> None:
        identity = marks.identity(span)
        if identity is not None:
            found.extend(((identity.key_id, identity.fingerprint), *identity.former))

    def observe(seen: Seen) -> None:
        add(seen.span)

    whole = text.strip()[:LIMIT]
    # As it stands, and as the value of a name: a key of a provider nobody knows is told by its context alone.
    for shown in (whole, b"api_key='" + whole + b"'"):
        redactor = Redactor(Scanner(), None, "text", observe)
        redactor.feed(shown + b"\n")
        redactor.finish()
    if b"\n" not in whole:
        span = Span(0, len(whole), "generic-key", False, False, False, whole)
        if fingerprinted(span):
            add(span)
    return list(dict.fromkeys(found))
