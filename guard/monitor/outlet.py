"""Where the monitor's events go: to the node's events service, or into the spool itself where none runs.

The service minimises, folds and ranks what it is given. Where none runs only the first is done here: what a site does
not keep of a person is stored by nobody. The spool has one writer, so the monitor takes it for each batch and lets go
again: a service that starts later finds it free, and from then on everything goes there.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from guard.errors import GuardError
from guard.events.model import Event, Severity, say, word
from guard.events.producer import Producer
from guard.events.sink import SocketSink, socket_path

MOST = 50_000
"""Events that wait while neither takes them; then telemetry makes way for alerts."""
_BATCH = 500
_LOOK = 1.0
"""Seconds between two looks for a service."""


class Own(Protocol):
    """Writes the spool itself: `guard.monitor.own_spool`, which is loaded where no service runs and nowhere else."""

    def write(self, events: Sequence[Event]) -> None:
        """Store events durably; raises GuardError or OSError where that cannot be."""

    def close(self) -> None:
        """Let go of the spool."""


class Outlet:
    """Hands events on, durable once `pump` says so; keeps what cannot be handed on now.

    Args:
        producer: makes the event that tells of a loss.
        own: opens the spool, for one batch after the other.
        state: the state directory, "" for the usual places.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        producer: Producer,
        own: Callable[[], Own],
        state: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._producer = producer
        self._own = own
        self._path = socket_path(state)
        self._clock = clock
        self._sink: SocketSink | None = None
        self._waiting: deque[Event] = deque()
        self._looked = float("-inf")
        self.lost = 0
        self.fault = ""

    @property
    def backlog(self) -> int:
        """Events that are not handed on."""
        return len(self._waiting) + (self._sink.waiting if self._sink is not None else 0)

    @property
    def served(self) -> bool:
        """Whether the events service takes them."""
        return self._sink is not None

    def emit(self, event: Event) -> None:
        """Take an event; never waits."""
        if self._sink is not None:
            self._sink.emit(event)
            return
        if len(self._waiting) >= MOST and (event.severity < Severity.MEDIUM or not self._displace()):
            self.lost += 1
            return
        self._waiting.append(event)

    def _displace(self) -> bool:
        for at, other in enumerate(self._waiting):
            if other.severity < Severity.MEDIUM:
                del self._waiting[at]
                self.lost += 1
                return True
        return False

    def pump(self) -> bool:
        """Hand on what waits; returns whether nothing waits any more."""
        if self._sink is not None:
            return True
        if self._clock() - self._looked >= _LOOK:
            self._looked = self._clock()
            if self._answers():
                self._sink = SocketSink(self._producer, self._path)
                while self._waiting:
                    self._sink.emit(self._waiting.popleft())
                return True
        if not self._waiting:
            return True
        if self.lost:
            self._waiting.appendleft(self._loss())
            self.lost = 0
        return self._write()

    def _write(self) -> bool:
        try:
            spool = self._own()
        except (GuardError, OSError) as error:
            self.fault = str(error)
            return False
        try:
            while self._waiting:
                batch = [self._waiting[at] for at in range(min(_BATCH, len(self._waiting)))]
                spool.write(batch)
                for _ in batch:
                    self._waiting.popleft()
        except (GuardError, OSError) as error:
            self.fault = str(error)
            return False
        finally:
            spool.close()
        self.fault = ""
        return True

    def _answers(self) -> bool:
        if not os.path.exists(self._path):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
            probe.settimeout(0.2)
            try:
                probe.connect(self._path)
            except OSError:
                return False
        return True

    def _loss(self) -> Event:
        return self._producer.event(
            "telemetry",
            "loss",
            Severity.MEDIUM,
            say("{} events found no room before they could be stored", self.lost),
            detail={"count": self.lost, "stage": word("outlet")},
        )

    def flush(self, timeout: float) -> bool:
        """Wait until all is durable; returns whether it is."""
        end = self._clock() + timeout
        while not self.pump() and self._clock() < end:
            time.sleep(0.05)
        if self._sink is not None:
            return self._sink.flush(max(0.0, end - self._clock()))
        return not self._waiting

    def close(self) -> None:
        """Take nothing more."""
        if self._sink is not None:
            self._sink.close()
