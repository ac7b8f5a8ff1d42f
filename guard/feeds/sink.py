"""What a destination is: it takes a batch, and says which events are acknowledged, refused, or neither."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import orjson

from guard.errors import GuardError
from guard.feeds.config import Feed


class FeedError(GuardError):
    """A feed cannot be used as it is configured."""


@dataclass(frozen=True)
class Item:
    """One event on its way.

    Args:
        position: of the source, growing.
        id: the event's.
        severity: one of `options.SEVERITIES`.
        line: the event as stored, one JSON object without a line end.
        body: the event in the feed's format.
        sender: who is known to have sent it, by the transport; "" where nobody vouches.
    """

    position: int
    id: str
    severity: str
    line: bytes
    body: bytes = b""
    sender: str = ""

    @cached_property
    def event(self) -> Mapping[str, object]:
        """The event, parsed; empty where the line is no JSON object."""
        try:
            found = orjson.loads(self.line)
        except orjson.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}

    def word(self, name: str) -> str:
        """Return a field of the event that is text, "" where it is not."""
        value = self.event.get(name)
        return value if isinstance(value, str) else ""


@dataclass
class Outcome:
    """What became of events.

    Args:
        acked: positions that the destination answers for now.
        refused: position → why the destination will never take it.
    """

    acked: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        """Take over another outcome."""
        self.acked += other.acked
        self.refused.update(other.refused)


class Undelivered(Exception):  # noqa: N818 - not an error of the program: a destination that is away
    """The destination did not take all; what `outcome` does not name is sent again.

    Args:
        reason: one line, without secrets.
        outcome: what is settled all the same.
        lost: events that the destination may never have got although they count as acknowledged.
        again: events in flight that may arrive twice.
        after: seconds that the destination asks to be left alone.
    """

    def __init__(
        self, reason: str, outcome: Outcome | None = None, *, lost: int = 0, again: int = 0, after: float = 0
    ) -> None:
        super().__init__(reason)
        self.reason = " ".join(reason.split())[:300]
        self.outcome = outcome or Outcome()
        self.lost = lost
        self.again = again
        self.after = after


@dataclass(frozen=True)
class Context:
    """What a sink may use of its surroundings.

    Args:
        beat: a sign of life, to be given at least every few seconds while waiting.
        host: this node's name.
        state: the state directory.
        spool: the node's spool, for what a sink has to tell itself.
        store: the site's store.
        statuses: directory with every feed's status.
    """

    beat: Callable[[], None] = lambda: None
    host: str = field(default_factory=socket.gethostname)
    state: str = ""
    spool: str = ""
    store: str = ""
    statuses: str = ""


class Sink:
    """A destination. A subclass connects when it first needs to, and again after `drop`.

    Args:
        feed: its configuration.
        context: what it may use.
    """

    def __init__(self, feed: Feed, context: Context) -> None:
        self.feed = feed
        self.context = context

    def deliver(self, items: Sequence[Item]) -> Outcome:
        """Send a batch; return when each is acknowledged, refused, or held in a window.

        Raises:
            Undelivered: the destination is away or will not answer.
        """
        raise NotImplementedError

    def settle(self) -> Outcome:
        """Tell what has become of events held since; called when there is nothing to send.

        Raises:
            Undelivered: the connection is gone.
        """
        return Outcome()

    def finish(self) -> Outcome:
        """Bring everything held to an end, and close.

        Raises:
            Undelivered: not everything is known to have arrived.
        """
        self.drop()
        return Outcome()

    def drop(self) -> None:
        """Abandon the connection without waiting for anything."""


_CLASSES: Mapping[str, str] = {
    "jsonl": "guard.feeds.jsonl:JsonLines",
    "syslog": "guard.feeds.syslog:Syslog",
    "relp": "guard.feeds.relp:Relp",
    "journald": "guard.feeds.journald:Journald",
    "webhook": "guard.feeds.webhook:Webhook",
    "splunk-hec": "guard.feeds.splunk_hec:SplunkHec",
    "opensearch": "guard.feeds.opensearch:OpenSearch",
    "prometheus": "guard.feeds.prometheus:Prometheus",
    "nats": "guard.feeds.nats:Nats",
    "archive": "guard.feeds.archive:Archive",
    "incidents": "guard.feeds.incidents:Incidents",
}
"""Kind → where its class lives; imported when a feed of that kind is opened."""


def open_sink(feed: Feed, context: Context) -> Sink:
    """Make the sink of a feed; nothing is connected yet.

    Raises:
        FeedError: what the configuration names cannot be used.
    """
    module, _, name = _CLASSES[feed.kind].partition(":")
    try:
        made = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise FeedError(
            f"a feed of kind {feed.kind} needs a library that is not installed: {error.name}",
            "install guard with its dependencies",
        ) from error
    sink: Sink = made(feed, context)
    return sink
