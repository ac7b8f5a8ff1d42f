"""A real `guard monitor` in a fresh process, an agent for it to watch, and what it has told."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from guard.events.reader import Reader
from guard.monitor.answers import ask
from tests.conftest import GUARD

WAIT = 40.0
"""Seconds until a test gives up; what it waits for is an event, not a time."""


class Monitor:
    """One run of the monitor, with state and configuration of its own.

    Attributes:
        before: words in front of guard's commands, as nsenter's.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.state, self.config = place / "state", place / "etc"
        self.state.mkdir(mode=0o700)
        self.config.mkdir(mode=0o755)
        self.agent = place / f"agent-{place.name[-6:]}"
        shutil.copy("/bin/bash", self.agent)
        self.before: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.said = b""
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(place / "notify"))
        self._notify.settimeout(0.2)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET": str(self.place / "notify"),
            "GUARD_STATE_DIR": str(self.state), "GUARD_CONFIG_DIR": str(self.config), "HOME": str(self.place),
        }  # fmt: skip

    def settings(self, text: str) -> None:
        """Write monitor.toml."""
        (self.config / "monitor.toml").write_text(f"schema = 1\n{text}")

    def start(self, *options: str, **environment: str) -> Monitor:
        """Start it, and wait until it is ready."""
        words = [*self.before, GUARD, "monitor", "--harness", f"test={self.agent.name}", *options]
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(words, env={**self.environment, **environment}, stdout=log, stderr=log)
        self.until_notified(b"READY=1")
        return self

    def until_notified(self, word: bytes) -> bytes:
        """Wait for a word to the service manager; gives all that was told so far."""
        deadline = time.monotonic() + WAIT
        said = b""
        while word not in said:
            try:
                said += self._notify.recv(4096) + b"\n"
            except TimeoutError:
                assert self.process is not None
                assert self.process.poll() is None, self.log()
                assert time.monotonic() < deadline, f"{word!r} was never told: {said!r}"
        self.said += said
        return said

    def until_served(self) -> None:
        """Wait until the events service takes what the monitor says."""
        deadline = time.monotonic() + WAIT
        while self.metric("served") != 1:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def metric(self, name: str) -> int:
        """One of its metrics, by name and labels, without the prefix."""
        deadline, text = time.monotonic() + WAIT, ""
        while not text:
            try:
                text = ask(str(self.state / "monitor.sock"), b"GET /metrics HTTP/1.0\r\n\r\n").decode()
            except TimeoutError:  # on a busy machine it may come late
                assert time.monotonic() < deadline
        line = next(line for line in text.splitlines() if line.startswith(f"guard_monitor_{name} "))
        return int(float(line.rsplit(" ", 1)[1]))

    def log(self) -> str:
        """What it has told people."""
        return (self.place / "log").read_text()

    def send(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(WAIT)
        self.process = None
        return code

    def act(self, text: str, **more: object) -> int:
        """Let an agent run a text, to its end; the agent's pid."""
        process = self.begin(text, **more)
        process.wait(WAIT)
        return process.pid

    def begin(self, text: str, **more: object) -> subprocess.Popen[bytes]:
        """Start an agent that runs a text once the monitor knows of it: what it did before is another test's."""
        work = Path(tempfile.mkdtemp(dir=self.place))
        work.chmod(0o755)
        gate = work / "gate"
        os.mkfifo(gate)
        gate.chmod(0o644)
        process = subprocess.Popen(  # type: ignore[call-overload]
            [str(self.agent), "-c", f"read _ < {gate}\n{text}\ntrue"],
            **{"cwd": work, "env": self.environment, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL,
               "stderr": subprocess.DEVNULL, **more},
        )  # fmt: skip
        if self.process is not None:
            self.rule("tree-start", process.pid)
        gate.write_text("go\n")
        return process

    def events(self, root: int = 0) -> list[dict]:
        """What is stored, of one tree or of all."""
        if not (self.state / "spool/spool.db").exists():
            return []
        out, after = [], 0
        with closing(Reader(str(self.state / "spool"))) as reader:
            while rows := reader.read(after, 1000, quiet=True):
                out += [json.loads(row.line) for row in rows]
                after = rows[-1].position
        return [event for event in out if not root or event["tree"]["root_pid"] == root]

    def until(self, holds: Callable[[dict], bool], root: int = 0, seconds: float = WAIT) -> dict:
        """Wait for an event."""
        deadline = time.monotonic() + seconds
        while True:
            events = self.events(root)
            for event in events:
                if holds(event):
                    return event
            said = sorted({event["rule"] for event in events})
            assert time.monotonic() < deadline, f"never told; of {root}: {said}\n{self.log()}"
            time.sleep(0.05)

    def rule(self, name: str, root: int = 0) -> dict:
        """Wait for an event of a rule."""
        return self.until(lambda event: event["rule"] == name, root)

    def all_of(self, text: str, **more: object) -> list[dict]:
        """Everything that is told of an agent that runs a text, to its end."""
        root = self.act(text, **more)
        self.rule("tree-stop", root)
        return self.events(root)

    def guard(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run another command of guard's with its state."""
        command = [*self.before, GUARD, *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)


@contextmanager
def running(*options: str, config: str = "", start: bool = True) -> Iterator[Monitor]:
    """A monitor that is ready, and gone afterwards with all that its agents left."""
    place = Path(tempfile.mkdtemp(prefix="guard-monitor-", dir="/var/tmp"))
    place.chmod(0o755)
    monitor = Monitor(place)
    try:
        if config:
            monitor.settings(config)
        if start:
            monitor.start(*options)
        yield monitor
    finally:
        if monitor.process is not None:
            monitor.process.kill()
            monitor.process.wait()
        _end_all_below(place)
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def events_service(made: Monitor) -> Iterator[None]:
    """An events service that takes what the monitor says."""
    # What users of this very machine have left is another test's.
    adopt = str(made.place / "nobody-{uid}")
    (made.config / "events.toml").write_text(f'schema = 1\n[intake]\nadopt = ["{adopt}"]\n')
    environment = {name: value for name, value in made.environment.items() if name != "NOTIFY_SOCKET"}
    service = subprocess.Popen([GUARD, "serve", "events"], env=environment)
    try:
        made.until_served()
        yield
    finally:
        service.terminate()
        service.wait()


def _end_all_below(place: Path) -> None:
    """Kill by pid what an agent left running in its working directory."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str((entry / "cwd").readlink()).startswith(f"{place}/"):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue


def loud(events: Sequence[dict]) -> list[str]:
    """What asks for a person's attention."""
    return [f"{e['rule']}: {e['message']}" for e in events if e["severity"] in ("medium", "high", "critical")]
