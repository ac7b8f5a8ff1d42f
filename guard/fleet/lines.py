"""An event out of a line, however it came: itself, in a syslog message, in an envelope that names the sender."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from guard.errors import EventError
from guard.events.wire import LINE_MOST, check, dump


@dataclass(frozen=True)
class Found:
    """An event that came in.

    Args:
        event: its JSON object, checked.
        line: the same, on one line.
        sender: who the transport says has sent it, as `tls:NAME`, `nats:NAME`; "" where it does not say.
    """

    event: dict[str, object]
    line: bytes
    sender: str


def read(text: bytes, sender: str = "") -> Found | None:
    """Read one line.

    Args:
        text: without its end. An event; a message of RFC 5424 or 3164 with an event in it, with or without its length
            in front; or `{"sender": …, "message": …}` with any of these as the message.
        sender: who has sent it, where the caller knows.

    Returns:
        The event; None where the line holds none and does not seem to: another program's message.

    Raises:
        EventError: it holds an event that is damaged.
    """
    start = text.find(b"{")
    if start < 0:
        if b"guard@" in text:
            raise EventError("a message of guard's with no event in it", "feed it in the format `event`")
        return None
    body = text[start:]
    try:
        whole = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if start and b" guard " not in text[:start] and b"guard:" not in text[:start]:
            return None
        raise EventError(f"cut off or damaged: {error}", "raise maxMessageSize where it was cut") from None
    if not isinstance(whole, dict):
        return None
    if isinstance(whole.get("message"), str) and "sender" in whole and "schema" not in whole:
        named = whole["sender"]
        return read(str(whole["message"]).encode(), sender or (named if isinstance(named, str) else ""))
    if start and "schema" not in whole:
        return None
    if len(body) > LINE_MOST:
        raise EventError(f"longer than {LINE_MOST >> 10} KiB")
    check(whole)
    host, producer = whole.get("host"), whole.get("producer")
    if not isinstance(host, str) or not host or not isinstance(producer, str) or not producer:
        raise EventError("the event has no host or no producer", "take it from the spool of a node")
    return Found(whole, dump(whole), sender)


def is_itself(sender: str, host: str) -> bool:
    """Say whether a sender may speak for a host.

    The names must agree, or the first label of one with the whole of the other; what a subject of NATS cannot hold is
    `_` in it.

    Args:
        sender: as in `Found`.
        host: as the event says.
    """
    name = sender.partition(":")[2] or sender
    ours, theirs = _plain(host), _plain(name)
    return ours == theirs or (_short(host) == theirs) or (_short(name) == ours)


def _plain(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-_" else "_" for char in name.lower())


def _short(name: str) -> str:
    return _plain(name.partition(".")[0])
