"""How a producer hands events over to the node's service.

It never waits: `emit` returns at once. The service acknowledges what is durable; until then the sink keeps it, and
sends it again on a new connection, where its id makes it one event still.

The socket carries one event a line; the answers are lines of JSON, `{"through": N, "dropped": D}`: of the lines
that came on this connection the first N are dealt with, of which D were not taken (by ration, form or room; the
service counts them and tells it in an event of its own).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import orjson

from guard.events.model import Event, Severity, say, word
from guard.events.peers import stranger
from guard.events.producer import Producer

SOCKET: Final = "events.sock"
RETRY_MOST: Final = 5.0
"""Seconds between two attempts to reach the service, at most."""
_IN_FLIGHT: Final = 2000


def socket_path(state: str = "") -> str:
    """Where the service listens: as told by the environment, in a state directory that was named, or in /run.

    Args:
        state: the state directory, where one was named.
    """
    given = os.environ.get("GUARD_EVENTS_SOCKET")
    if given:
        return given
    folder = state or os.environ.get("GUARD_STATE_DIR", "")
    return os.path.join(folder or "/run/guard", SOCKET)


class SocketSink:
    """Sends events to the service, from a thread of its own.

    Args:
        producer: whose events these are; it makes the event that tells of a loss.
        path: the service's socket; the usual place where not given.
        most: events kept while the service does not answer. Then telemetry makes way for alerts, and the oldest
            alerts stay: what finds no room is counted, and told once there is.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        producer: Producer,
        path: str = "",
        *,
        most: int = 20_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._producer = producer
        self._path = path or socket_path()
        self._most = most
        self._clock = clock
        self._waiting: deque[tuple[Severity, bytes]] = deque()
        self._sent: deque[tuple[Severity, bytes]] = deque()
        self._lost = 0
        self._closed = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Events that found no room and were not told yet."""
        return self._lost

    @property
    def waiting(self) -> int:
        """Events that the service has not acknowledged."""
        return len(self._waiting) + len(self._sent)

    def emit(self, event: Event) -> None:
        """Take an event; never waits, never raises for want of room or of a service."""
        item = (event.severity, event.to_json() + b"\n")
        with self._change:
            if len(self._waiting) + len(self._sent) >= self._most and not self._make_room(event.severity):
                self._lost += 1
                return
            self._waiting.append(item)
            self._change.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until the service has all; returns whether it has."""
        with self._change:
            return self._change.wait_for(lambda: not (self._waiting or self._sent or self._lost), timeout)

    def close(self) -> None:
        """Take nothing more; what the service has not acknowledged is lost with this process."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join(2)

    def _make_room(self, severity: Severity) -> bool:
        if severity < Severity.MEDIUM:
            return False
        for at, (other, _) in enumerate(self._waiting):
            if other < Severity.MEDIUM:
                del self._waiting[at]
                self._lost += 1
                return True
        return False

    # The thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = 0.05
        while not self._closed:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as channel:
                    channel.settimeout(10)
                    channel.connect(self._path)
                    if stranger(channel) >= 0:
                        raise PermissionError("the service is another user's")
                    pause = 0.05
                    self._converse(channel)
            except OSError:
                pass  # not there, or gone: everything unacknowledged is sent again
            with self._change:
                self._waiting.extendleft(reversed(self._sent))
                self._sent.clear()
                if not self._closed:
                    self._change.wait(pause)
            pause = min(RETRY_MOST, pause * 2)

    def _converse(self, channel: socket.socket) -> None:
        through, rest = 0, b""
        while True:
            batch = self._next_batch()
            if batch is None:
                return
            if batch:
                channel.sendall(b"".join(batch))
            # What is on its way is acknowledged before more is sent than the service may hold for us.
            while self._sent and (len(self._sent) >= _IN_FLIGHT or not self._waiting):
                part = channel.recv(65536)
                if not part:
                    raise ConnectionError("the service broke off")
                *answers, rest = (rest + part).split(b"\n")
                if answers:
                    reached = _through(answers[-1])
                    with self._change:
                        for _ in range(reached - through):
                            self._sent.popleft()
                        self._change.notify_all()
                    through = reached

    def _next_batch(self) -> list[bytes] | None:
        with self._change:
            while not self._waiting and not self._lost:
                if self._closed:
                    return None
                self._change.wait(1.0)
            if self._lost:
                self._waiting.appendleft(self._loss())
                self._lost = 0
            count = min(len(self._waiting), _IN_FLIGHT - len(self._sent))
            batch = [self._waiting.popleft() for _ in range(count)]
            self._sent.extend(batch)
            return [line for _, line in batch]

    def _loss(self) -> tuple[Severity, bytes]:
        event = self._producer.event(
            "telemetry",
            "events-lost",
            Severity.MEDIUM,
            say("{} events found no room while the service did not answer", self._lost),
            detail={"lost": self._lost, "stage": word("producer")},
        )
        return event.severity, event.to_json() + b"\n"


def _through(answer: bytes) -> int:
    with suppress(orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return int(orjson.loads(answer)["through"])
    raise ConnectionError("the service's answer makes no sense")
