"""What a node says of itself beside the service's own figures: the monitor's backend, controls, feeds.

A heartbeat must not hold the service up: controls are found out by `guard doctor` in a process beside it, and the
newest answer is told, so that the first heartbeat after a start has none. Where the service itself runs confined
(systemd's unit), what it would find is its own confinement, so there a timer leaves the answer in `doctor.json`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Final

from guard.errors import EventError
from guard.events.heartbeat import Beat, heartbeat
from guard.events.model import Detail, Event, word
from guard.events.producer import Producer
from guard.feeds import status

EVERY: Final = 900.0
"""Seconds between two looks at the controls: each costs about a second of one core."""

_LONGEST: Final = 120.0
_STALE: Final = 7200.0  # seconds after which a timer's answer counts for nothing
_DEAD: Final = 300.0  # the monitor says every few seconds that it watches
_FEEDS: Final = 32
_BACKEND: Final = re.compile(rb'"backend": "([a-z0-9_-]{1,32})"')
_UNTIL: Final = re.compile(rb'"until": ([0-9.]{1,20})')


TRIALS: Final = "trials"
"""Below the state directory: the state of `guard doctor`'s own sessions."""


class NodeBeat:
    """Makes heartbeats with what is known of the node.

    Args:
        state: the state directory of the service and the monitor.
        config: the configuration directory.
        spool: the spool's directory.
        look: the command that tells the controls as JSON; `guard doctor`'s where not given.
        confined: whether this process is held in ways that the node's sessions are not; systemd's units are.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        state: str,
        config: str,
        spool: str,
        look: tuple[str, ...] = (),
        confined: bool | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._feeds = status.folder(spool)
        # The trials are sessions, some of them refused: their events belong into no stream that is delivered.
        trials = os.path.join(state, TRIALS)
        self._trials = "" if look else trials
        self._look = look or (sys.executable, *_HOW, "--config", config, "--state", trials, "doctor", "--json")
        self._clock = clock
        self._confined = "INVOCATION_ID" in os.environ if confined is None else confined  # systemd.exec(5)
        self._controls: dict[str, Detail] = {}
        self._looked = float("-inf")
        self._doctor: tuple[subprocess.Popen[bytes], IO[bytes]] | None = None

    def __call__(self, producer: Producer, beat: Beat) -> Event:
        """Make the heartbeat."""
        self._consult()
        more: dict[str, Detail] = {}
        if backend := self.backend():
            more["backend"] = word(backend)
        if self._controls:
            more["controls"] = dict(self._controls)
        if feeds := self.feeds():
            more["feeds"] = feeds
        return heartbeat(producer, beat, more)

    def backend(self) -> str:
        """The monitor's backend; `none` where it watches no more, "" where it never has."""
        try:
            with open(os.path.join(self._state, "monitor.json"), "rb") as file:
                head = file.read(4096)  # these stand before its trees
        except OSError:
            return ""
        found, until = _BACKEND.search(head), _UNTIL.search(head)
        if found is None or until is None:
            return ""
        watching = self._clock() - float(until.group(1)) < _DEAD
        return found.group(1).decode() if watching else "none"

    def feeds(self) -> dict[str, Detail]:
        """How each feed of the node is doing."""
        found: dict[str, Detail] = {}
        for each in status.read_all(self._feeds)[:_FEEDS]:
            with suppress(EventError):
                found[str(word(each.name))] = {
                    "state": word(each.state), "behind": each.behind, "refused": each.refused, "retries": each.retries,
                }  # fmt: skip
        return found

    def close(self) -> None:
        """End a look that is on its way."""
        if self._doctor is not None:
            self._doctor[0].kill()
            self._doctor[0].wait()
            self._doctor[1].close()
            self._doctor = None

    def _left(self) -> dict[str, Detail]:
        try:
            with open(os.path.join(self._state, "doctor.json"), "rb") as file:
                if self._clock() - os.fstat(file.fileno()).st_mtime > _STALE:
                    return {}
                return _controls(file.read(1 << 20))
        except OSError:
            return {}

    def _consult(self) -> None:
        """Take the answer that a timer left, or of a look that has ended; begin another when it is time."""
        if left := self._left():
            self._controls = left
            return
        now = time.monotonic()
        if self._doctor is not None:
            process, output = self._doctor
            if process.poll() is None and now - self._looked < _LONGEST:
                return
            if process.poll() is not None:
                output.seek(0)
                self._controls = _controls(output.read()) or self._controls
            self.close()
        if now - self._looked < EVERY or self._confined:
            return
        self._looked = now
        # A file, not a pipe: nobody reads while it runs.
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            if self._trials:
                os.makedirs(self._trials, mode=0o700, exist_ok=True)
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                self._look, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL
            )
        except OSError:
            output.close()
            return  # the next heartbeat tries again in its turn
        self._doctor = (process, output)


_HOW: Final = (
    "-I",
    "-c",
    f"import sys; sys.path[:0] = {sys.path!r}; from guard.cli import main; sys.exit(main(sys.argv[1:]))",
)
"""The full command line in a fresh interpreter, with the same library as this one."""


def _controls(answer: bytes) -> dict[str, Detail]:
    """Control → status, of what `guard doctor --json` printed."""
    try:
        rows = json.loads(answer)["controls"]
    except (ValueError, KeyError, TypeError):
        return {}
    found: dict[str, Detail] = {}
    if isinstance(rows, Mapping):
        for name, row in rows.items():
            if isinstance(row, Mapping):
                with suppress(EventError):
                    found[str(word(str(name)))] = word(str(row.get("status")))
    return found
