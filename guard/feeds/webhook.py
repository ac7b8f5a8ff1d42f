"""A webhook, signed as Standard Webhooks 1.0 says: HMAC-SHA256 over `ID.TIMESTAMP.BODY`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Sequence

from guard.feeds.config import Feed
from guard.feeds.http import CONTENT_AT_FAULT, Http, in_parts
from guard.feeds.secrets import secret, secret_bytes
from guard.feeds.sink import Context, FeedError, Item, Outcome, Sink, Undelivered

_TYPES = {"object": "application/json", "array": "application/json", "lines": "application/x-ndjson"}


class Webhook(Sink):
    """Posts batches; any 2xx acknowledges."""

    def __init__(self, feed: Feed, context: Context) -> None:
        super().__init__(feed, context)
        self._shape = feed.text("body")
        self._key = _key(secret_bytes(feed, "hmac_file"))
        token = secret(feed, "token_file")
        self._head = {"Content-Type": _TYPES[self._shape] if feed.text("format") != "cef" else "text/plain"}
        if token:
            self._head["Authorization"] = f"Bearer {token}"
        self._http = Http(feed)

    def deliver(self, items: Sequence[Item]) -> Outcome:
        """Post the batch, one request or, for `body = "object"`, one an event."""
        if self._shape != "object":
            return in_parts(items, self._send)
        outcome = Outcome()
        for item in items:
            try:
                outcome.add(in_parts([item], self._send))
            except Undelivered as error:
                outcome.add(error.outcome)
                raise Undelivered(error.reason, outcome, after=error.after) from error
        return outcome

    def drop(self) -> None:
        """Close the connection."""
        self._http.close()

    def _send(self, items: Sequence[Item]) -> str:
        self.context.beat()
        body = _body(self._shape, items)
        # The same events have the same id, so that a receiver may tell a second try from a second batch.
        identity = items[0].id if len(items) == 1 else _batch_id(items)
        head = {**self._head, "webhook-id": identity, "webhook-timestamp": str(int(time.time()))}
        if self._key:
            head["webhook-signature"] = signature(self._key, identity, head["webhook-timestamp"], body)
        status, _, after = self._http.post("", body, head)
        if 200 <= status < 300:
            return ""
        if status in CONTENT_AT_FAULT:
            return f"refused with {status}"
        raise Undelivered(f"answered {status}", after=after)


def signature(key: bytes, identity: str, timestamp: str, body: bytes) -> str:
    """Return the value of `webhook-signature`."""
    signed = hmac.new(key, f"{identity}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(signed).decode()


def _key(secret: bytes) -> bytes:
    """Return the key's bytes; `whsec_` before base64 is how the standard writes one."""
    if secret.startswith(b"whsec_"):
        try:
            return base64.b64decode(secret[6:], validate=True)
        except ValueError as error:
            raise FeedError("hmac_file: what follows whsec_ is no base64", "write the key as you got it") from error
    return secret


def _batch_id(items: Sequence[Item]) -> str:
    return "batch_" + hashlib.sha256("\n".join(item.id for item in items).encode()).hexdigest()[:32]


def _body(shape: str, items: Sequence[Item]) -> bytes:
    if shape == "object":
        return items[0].body
    if shape == "lines":
        return b"".join(item.body + b"\n" for item in items)
    return b"[" + b",".join(item.body for item in items) + b"]"
