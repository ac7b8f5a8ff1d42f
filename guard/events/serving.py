"""What `guard serve events` does around the service: signals, systemd, and the reading process beside it."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from guard.confine.state import prepare_state
from guard.events import answers, settings
from guard.events.heartbeat import Beat, heartbeat
from guard.events.model import Event
from guard.events.producer import Producer
from guard.events.service import Service
from guard.events.sink import SOCKET
from guard.redact.server import notify

ROOT_SOCKET: Final = f"/run/guard/{SOCKET}"
_RESTART: Final = 1.0
_CODE: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from guard.events.answers import main; main(sys.argv[1:])"
)


class Reading:
    """The reading process; one that ends is started again.

    Args:
        arguments: of `answers.main`.
    """

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0

    def keep(self) -> None:
        """Start it where it does not run."""
        if self._process is not None and self._process.poll() is None:
            return
        if time.monotonic() - self._started < _RESTART:
            return
        self._started = time.monotonic()
        library = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
            [sys.executable, "-I", "-c", _CODE, library, str(os.getpid()), *self._arguments]
        )

    def end(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            with suppress(OSError):
                os.unlink(self._arguments[-1])


def serve(
    state: str,
    config: str,
    socket_at: str = "",
    *,
    named: bool = False,
    beat: Callable[[str], Callable[[Producer, Beat], Event]] = lambda _: heartbeat,
) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP reads root's files again.

    Args:
        state: the state directory.
        config: the configuration directory.
        socket_at: where to listen; the usual place where not given.
        named: whether the state directory was named: then its sockets are in it.
        beat: the spool's directory → what makes heartbeats of this node.

    Raises:
        GuardError: the files do not load, or the socket or the spool cannot be had.
        OSError: the state directory cannot be made, or must not be trusted.
    """
    stop: list[int] = []
    again: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stop.append(number))
    signal.signal(signal.SIGHUP, lambda number, _: again.append(number))
    prepare_state(state, os.geteuid())
    path = socket_at or (ROOT_SOCKET if os.geteuid() == 0 and not named else os.path.join(state, SOCKET))
    service = Service(state, config, path, beat=beat(settings.load(config).spool or os.path.join(state, "spool")))
    reading = Reading([service.spool_path, config, path, os.path.join(os.path.dirname(path), answers.SOCKET)])
    ours, theirs = socket.socketpair()
    service.wake_by(ours)
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno())
    reading.keep()
    # What is there now stays; events live for one turn, and there is no use in looking through them again and again.
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    notify(b"READY=1\nSTATUS=taking events")
    try:
        while not stop:
            service.attempt()
            reading.keep()
            if again:
                again.clear()
                notify(b"RELOADING=1\nMONOTONIC_USEC=%d" % (time.monotonic_ns() // 1000))
                service.reload()
                notify(b"READY=1")
            notify(b"WATCHDOG=1")
        service.turn(0)
    finally:
        notify(b"STOPPING=1")
        signal.set_wakeup_fd(-1)
        reading.end()
        service.close()
