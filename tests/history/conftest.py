"""A resident redactor for the shells to ask, run by the user whose shells they are."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import GUARD, Account


class Service:
    """`guard serve redact`, started and stopped at will."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.socket = account.state / "redact.sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it says that it listens (sd_notify(3))."""
        import socket

        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            name = f"\0guard-test-{os.getpid()}-{threading.get_ident()}"
            told.bind(name)
            told.settimeout(30)
            self.process = subprocess.Popen(
                [GUARD, "serve", "redact"], env=self.account.environment({"NOTIFY_SOCKET": "@" + name[1:]}),
                stdin=subprocess.DEVNULL, cwd=self.account.home, **self.account.identity(),  # type: ignore[call-overload]
            )  # fmt: skip
            assert b"READY=1" in told.recv(256)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)
            self.process = None


@pytest.fixture
def service(account: Account) -> Iterator[Service]:
    made = Service(account)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def absent(account: Account) -> Path:
    """Nobody listens at the socket."""
    path = account.state / "redact.sock"
    assert not path.exists()
    return path
