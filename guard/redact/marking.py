"""From a span to what stands in its place: who makes the fingerprint, and when there is none."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from guard.errors import GuardError
from guard.redact.spans import Span, marker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guard.redact.client import Client
    from guard.redact.fingerprint import Key
    from guard.redact.lists import Lists


class Identity(NamedTuple):
    """A secret's fingerprint (64 hex digits) and its key; `former` during a rotation's overlap."""

    key_id: str
    fingerprint: str
    former: tuple[tuple[str, str], ...] = ()

    @classmethod
    def under(cls, keys: Sequence[Key], value: bytes, now: float) -> Identity:
        """Return a secret's identity under the current key, the first, and those whose overlap has not ended."""
        first, *former = keys
        earlier = tuple((key.key_id, key.of(value)) for key in former if key.until > now)
        return cls(first.key_id, first.of(value), earlier)


class Marks:
    """Makes markers.

    Root uses the installed site key, a user asks the resident service, and where neither is there the
    user's own key serves. Nothing is loaded before the first secret turns up.

    Args:
        service: whether the resident service may be asked.
    """

    def __init__(self, service: bool = True) -> None:
        self._service = service
        self._known: dict[bytes, Identity | None] = {}
        self._source: list[Key] | Client | None = None
        self._ready = False

    def identity(self, span: Span) -> Identity | None:
        """Return the identity of a sighting; None for partial sightings and kinds that could be guessed."""
        from guard.redact.fingerprint import fingerprinted

        if not fingerprinted(span):
            return None
        known = self._known.get(span.value)
        if known is None and span.value not in self._known:
            known = self._make(span)
            if len(self._known) > 65536:
                self._known.clear()
            self._known[span.value] = known
        return known

    def prepare(self) -> None:
        """Choose the source of fingerprints now, before rights are dropped and root's key is out of reach."""
        if not self._ready:
            self._ready = True
            self._source = self._choose()

    def mark(self, span: Span) -> bytes:
        """Return what stands in place of a span."""
        identity = self.identity(span)
        return marker(span.kind, identity.fingerprint if identity else None)

    def honeytoken(self, span: Span, lists: Lists) -> str | None:
        """Return the fingerprint of a honeytoken, also of one that could be guessed, where the key is at hand.

        Args:
            span: a sighting.
            lists: the site's.
        """
        self.prepare()
        if not isinstance(self._source, list):
            return None
        return next((name for key in self._source if (name := key.of(span.value)) in lists.honeytokens), None)

    def _make(self, span: Span) -> Identity | None:
        self.prepare()
        source = self._source
        if source is None:
            return None
        if isinstance(source, list):
            return Identity.under(source, span.value, time.time())
        try:
            answer = source.fingerprint(span.kind, span.value)
        except (OSError, GuardError):
            # The service went away or would not answer: the user's own key, and the exposure says so.
            self._source = _own_keys()
            return self._make(span)
        return Identity(*answer) if answer is not None else None

    def _choose(self) -> list[Key] | Client | None:
        from guard.redact import fingerprint

        keys = fingerprint.site_keys()
        if keys is not None:
            return keys
        if self._service:
            from guard.redact.client import Client

            client = Client()
            if client.available():
                return client
        return _own_keys()


def _own_keys() -> list[Key] | None:
    """Return the user's own keys; None, and markers without digits, where there is no place that could hold them."""
    from guard.redact import fingerprint

    try:
        return fingerprint.user_keys()
    except (OSError, GuardError):
        return None
