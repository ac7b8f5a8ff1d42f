"""Our own form: the event's line."""

from __future__ import annotations

from guard.events.model import Event


def render(event: Event) -> bytes:
    """The event as one line of JSON (docs/events.md)."""
    return event.to_json()
