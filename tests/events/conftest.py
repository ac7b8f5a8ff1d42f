"""A service of the node's own: root's, in a state directory of its own, with its own configuration."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GUARD, ROOT_HERE, Account


def eventually(true: Callable[[], object], seconds: float = 20) -> None:
    """Wait until something holds; fail if it never does."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "this never came true"
        time.sleep(0.02)


class Node:
    """`guard serve events` and what is asked of it; `start` and `kill` as often as a test likes."""

    def __init__(self) -> None:
        self.top = Path(tempfile.mkdtemp(prefix="guard-events-", dir="/var/tmp"))
        self.top.chmod(0o755)
        self.state, self.config = self.top / "state", self.top / "config"
        self.config.mkdir(mode=0o755)
        self.process: subprocess.Popen[bytes] | None = None
        self.write("events.toml", f'[intake]\nadopt = ["{self.top}/guard-{{uid}}"]\n')

    def write(self, name: str, text: str) -> None:
        (self.config / name).write_text("schema = 1\n" + text)

    def start(self) -> None:
        """Start it, and wait until it is ready as systemd would be told."""
        address = str(self.top / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.bind(address)
            ready.settimeout(30)
            with (self.top / "log").open("ab") as log:
                self.process = subprocess.Popen(
                    [GUARD, "serve", "events", "--state", str(self.state), "--config", str(self.config)],
                    env={**os.environ, "NOTIFY_SOCKET": address}, stderr=log,
                )  # fmt: skip
            assert b"READY=1" in ready.recv(4096)
        os.unlink(address)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(20)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.top, ignore_errors=True)

    @property
    def log(self) -> str:
        return (self.top / "log").read_text()

    @property
    def socket(self) -> str:
        return str(self.state / "events.sock")

    def events(self, *options: str, account: Account | None = None) -> list[dict[str, Any]]:
        """What `guard events --json` shows; as root, or as an account."""
        done = self.show("--json", *options, account=account)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def show(self, *options: str, account: Account | None = None) -> subprocess.CompletedProcess[str]:
        words = ["events", "--state", str(self.state), "--config", str(self.config), *options]
        if account is not None:
            return account.cli(*words)
        return subprocess.run([GUARD, *words], capture_output=True, text=True, check=False, timeout=60)

    def users_state(self, account: Account) -> Path:
        """The user's own state directory, where the service adopts from."""
        path = self.top / f"guard-{account.uid}"
        if not path.exists():
            path.mkdir(mode=0o700)
            os.chown(path, account.uid, account.gid)
        return path


@pytest.fixture
def node() -> Iterator[Node]:
    """A node whose service runs."""
    if not ROOT_HERE:
        pytest.skip("needs root: the node's own service")
    made = Node()
    made.start()
    yield made
    made.close()


@pytest.fixture
def idle() -> Iterator[Node]:
    """A node whose service does not run yet."""
    if not ROOT_HERE:
        pytest.skip("needs root: the node's own service")
    made = Node()
    yield made
    made.close()
