"""One feed at work: read, send, note what became of it, wait when the destination is away, go on.

Delivered at least once: what a sink does not settle is read and sent again. The order is the source's, except where a
part of a batch had to be sent again.
"""

from __future__ import annotations

import fnmatch
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from guard.errors import GuardError
from guard.feeds.config import Feed
from guard.feeds.options import SEVERITIES
from guard.feeds.sink import Item, Outcome, Sink, Undelivered
from guard.feeds.status import Status


class Source(Protocol):
    """Where events come from: the node's spool, or a stream."""

    def read(self, limit: int, wait: float) -> list[Item]:
        """Return up to `limit` events not handed out yet; none after `wait` seconds without one."""

    def settle(self, positions: Sequence[int]) -> None:
        """Never hand these out again, also after a restart."""

    def rewind(self, held: Sequence[Item]) -> None:
        """Hand out again what was read and is not settled; `held` is all of that."""

    def behind(self) -> int:
        """Return how many events are not settled."""

    def exhausted(self) -> bool:
        """Whether a `read` that found nothing means that nothing is left."""

    def drop(self) -> None:
        """Close."""


_TELL_EVERY = 60.0
_REASONS = 64  # kept apart; a server that words each refusal differently fills no memory

Tell = Callable[[str, str, Mapping[str, object]], None]
"""(rule, message, detail): what becomes a telemetry event."""


class Runner:
    """Drives one feed.

    Args:
        feed: its configuration.
        source: where events come from.
        sink: where they go.
        render: event line → body in the feed's format; ValueError where that cannot be.
        status: counted up, and handed to `report`.
        report: shows the status; called about once a second, and at the end.
        tell: makes a telemetry event of a loss.
        stop: ends the run, between two batches.
        beat: a sign of life for the watchdog.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        feed: Feed,
        source: Source,
        sink: Sink,
        *,
        render: Callable[[bytes], bytes],
        status: Status,
        report: Callable[[Status], None],
        tell: Tell,
        stop: threading.Event,
        beat: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._feed = feed
        self._source = source
        self._sink = sink
        self._render = render
        self.status = status
        self._report = report
        self._tell = tell
        self._stop = stop
        self._beat = beat
        self._clock = clock
        self._chosen = chooser(feed)
        self._held: dict[int, Item] = {}
        self._failures = 0
        self._reported = -1e9
        self._untold: dict[str, list[str]] = {}  # why refused → ids
        self._told = -1e9

    def run(self, *, drain: bool = False, idle: float = 0.05) -> None:
        """Deliver until told to stop, or, to drain, until nothing is left.

        Args:
            drain: end when everything is delivered.
            idle: seconds between two looks at an empty source.
        """
        while not self._stop.is_set():
            self._beat()
            try:
                done = self._step(idle) and drain
                if done:
                    self._settled(self._sink.finish())
                    if not self._held and self._source.exhausted():
                        break
            except Undelivered as error:
                self._failed(error)
        self._finish()
        self._tell_refused(now=True)
        self.status.state = "stopped"
        self.status.pid = 0
        self._show(now=True)

    def _step(self, idle: float) -> bool:
        """Deliver one batch; True when there was none."""
        items = self._source.read(self._feed.number("batch"), idle)
        if not items:
            self._settled(self._sink.settle())
            if not self._held:
                self.status.state = "idle"
            self._show()
            return True
        self._held.update((item.position, item) for item in items)
        chosen, skipped, outcome = [], [], Outcome()
        for item in items:
            if not self._chosen(item):
                skipped.append(item.position)
                continue
            try:
                chosen.append(replace(item, body=self._render(item.line)))
            except (GuardError, ValueError, KeyError, TypeError, AttributeError) as error:
                outcome.refused[item.position] = f"cannot be written as {self._feed.text('format')}: {error}"
        if chosen:
            self.status.state = "delivering"
            try:
                outcome.add(self._sink.deliver(chosen))
            except Undelivered as error:
                outcome.add(error.outcome)
                self._settled(outcome, skipped)
                error.outcome = Outcome()
                raise
            self._failures = 0
            self.status.problem = ""
        self._settled(outcome, skipped)
        self._show()
        return False

    def _settled(self, outcome: Outcome, skipped: Sequence[int] = ()) -> None:
        positions = [*outcome.acked, *outcome.refused, *skipped]
        if not positions:
            return
        # The word of a first refusal goes into the spool before the event itself is let go.
        self._refused(outcome.refused)
        self._source.settle(positions)
        for position in positions:
            self._held.pop(position, None)
        self.status.delivered += len(outcome.acked)
        self.status.refused += len(outcome.refused)
        self.status.filtered += len(skipped)
        if outcome.acked:
            self.status.last_delivery = time.time()

    def _refused(self, refused: Mapping[int, str]) -> None:
        for position, why in refused.items():
            item = self._held.get(position)
            # What tells of a refusal and is refused itself must not bring forth another.
            if item is None or not item.word("rule").startswith("feed."):
                reason = why if why in self._untold or len(self._untold) < _REASONS else "other reasons"
                self._untold.setdefault(reason, []).append(item.id if item is not None else str(position))
        self._tell_refused()

    def _tell_refused(self, *, now: bool = False) -> None:
        """Tell what was refused: the first at once, more of it once a minute."""
        if not self._untold or (not now and self._clock() - self._told < _TELL_EVERY):
            return
        self._told = self._clock()
        untold, self._untold = self._untold, {}
        for reason, ids in untold.items():
            self._tell(
                "feed.refused",
                f"feed {self._feed.name}: {len(ids)} events refused for good",
                {"feed": self._feed.name, "count": len(ids), "reason": reason[:200], "events": ids[:20]},
            )

    def _failed(self, error: Undelivered) -> None:
        try:
            self._settled(error.outcome)
        except Undelivered as worse:
            error = worse  # the source is in trouble itself: what was acknowledged is sent again
        self._sink.drop()
        if error.lost or (error.again and self._feed.kind == "syslog"):
            self._tell(
                "feed.cut",
                f"feed {self._feed.name}: cut, {error.again} events sent again, {error.lost} may be lost",
                {"feed": self._feed.name, "again": error.again, "lost_at_most": error.lost, "reason": error.reason},
            )
        self._source.rewind(list(self._held.values()))
        self._held.clear()
        self.status.retries += 1
        self.status.problem = error.reason
        self.status.problem_at = time.time()
        self.status.state = "waiting"
        self._show(now=self._failures == 0)
        # Full jitter keeps a thousand nodes from coming back in step after an outage of the receiver.
        ceiling = min(self._feed.seconds("backoff_most"), self._feed.seconds("backoff") * 2 ** min(self._failures, 30))
        self._failures += 1
        self._pause(max(ceiling * random.uniform(0.5, 1), min(error.after, self._feed.seconds("backoff_most"))))  # noqa: S311

    def _pause(self, seconds: float) -> None:
        end = self._clock() + seconds
        while (left := end - self._clock()) > 0 and not self._stop.wait(min(left, 0.5)):
            self._beat()
            self._show()

    def _finish(self) -> None:
        try:
            try:
                self._settled(self._sink.finish())
            except Undelivered as error:
                self._settled(error.outcome)
        except Undelivered:
            return  # what is not settled is sent again after the next start
        finally:
            self._sink.drop()
            self._source.drop()

    def _show(self, *, now: bool = False) -> None:
        self._tell_refused()
        clock = self._clock()
        if now or clock - self._reported >= 1:
            self._reported = clock
            self.status.written = time.time()
            self.status.behind = self._source.behind()
            self._report(self.status)


def chooser(feed: Feed) -> Callable[[Item], bool]:
    """Return what says whether a feed sends an event."""
    least = SEVERITIES.index(feed.text("minimum"))
    rank = {name: index for index, name in enumerate(SEVERITIES)}

    def chosen(item: Item) -> bool:
        # An unknown severity, of a newer guard, is sent rather than dropped.
        if rank.get(item.severity, len(SEVERITIES)) < least:
            return False
        if any(not _matches(item, key, globs) for key, globs in feed.only.items()):
            return False
        return not any(_matches(item, key, globs) for key, globs in feed.without.items())

    return chosen


def _matches(item: Item, key: str, globs: Sequence[str]) -> bool:
    value = item.event.get(key)
    if key in ("harness", "user"):
        tree = item.event.get("tree")
        value = tree.get(key) if isinstance(tree, dict) else None
    return isinstance(value, str) and any(fnmatch.fnmatchcase(value, glob) for glob in globs)
