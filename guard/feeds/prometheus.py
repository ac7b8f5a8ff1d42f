"""Counters for Prometheus: events by control, severity and verdict, and how each feed of the node is doing.

Counters begin at zero when the feed starts, as Prometheus expects of a process (`rate` and `increase` allow for it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, start_http_server, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from guard.feeds.config import Feed, address
from guard.feeds.options import SEVERITIES
from guard.feeds.sink import Context, FeedError, Item, Outcome, Sink, Undelivered
from guard.feeds.status import Status, read_all

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

_MOST_CONTROLS = 64  # a sender cannot fill the server's memory with labels


class Prometheus(Sink):
    """Counts, and shows by HTTP or a file."""

    def __init__(self, feed: Feed, context: Context) -> None:
        super().__init__(feed, context)
        self._registry = CollectorRegistry()
        self._events = Counter(
            "guard_events", "Events by control, severity and verdict.", ("control", "severity", "verdict"),
            registry=self._registry,
        )  # fmt: skip
        self._controls: set[str] = set()
        collector: Collector = _Feeds(context.statuses)
        self._registry.register(collector)
        if feed.text("listen"):
            host, port = address(feed.text("listen"))
            try:
                start_http_server(port, host, self._registry)
            except OSError as error:
                raise FeedError(
                    f"feed {feed.name}: cannot listen on {feed.text('listen')}: {error.strerror}",
                    "choose a free port of this node",
                ) from error

    def deliver(self, items: Sequence[Item]) -> Outcome:
        """Count the batch."""
        for item in items:
            control = item.word("control") or "none"
            if control not in self._controls:
                if len(self._controls) >= _MOST_CONTROLS:
                    control = "other"
                self._controls.add(control)
            severity = item.severity if item.severity in SEVERITIES else "info"
            self._events.labels(control, severity, item.word("verdict")[:20] or "none").inc()
        self.settle()
        return Outcome([item.position for item in items])

    def settle(self) -> Outcome:
        """Write the file anew."""
        if self.feed.text("textfile"):
            try:
                write_to_textfile(self.feed.text("textfile"), self._registry)
            except OSError as error:
                raise Undelivered(f"{self.feed.text('textfile')}: {error.strerror}") from error
        return Outcome()


class _Feeds:
    """Reads every feed's status when asked."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def describe(self) -> Iterable[CounterMetricFamily]:
        """Nothing is known before the first status is written."""
        return []

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        """One sample a feed and figure."""
        statuses: list[Status] = read_all(self._folder) if self._folder else []
        for name, text in (
            ("delivered", "Events acknowledged."),
            ("refused", "Events that the destination will never take."),
            ("filtered", "Events that the feed does not send."),
            ("retries", "Failed tries."),
        ):
            counter = CounterMetricFamily(f"guard_feed_{name}", text, labels=["feed"])
            for status in statuses:
                counter.add_metric([status.name], getattr(status, name))
            yield counter
        for name, text in (
            ("behind", "Events that wait."),
            ("last_delivery", "Seconds since the epoch at the last acknowledgement."),
        ):
            gauge = GaugeMetricFamily(f"guard_feed_{name}", text, labels=["feed"])
            for status in statuses:
                gauge.add_metric([status.name], getattr(status, name))
            yield gauge
