"""A real terminal under a test's control: a pty of its own session, as a login has one."""

from __future__ import annotations

import os
import pty
import select
import signal
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.conftest import ROOT_HERE, Account


class Terminal:
    """A command as the leader of a session whose terminal the test holds.

    Args:
        account: who runs it.
        argv: the command.
        cwd: where.
        env: variables besides a login's.
        size: of the terminal, lines and columns.
    """

    def __init__(
        self, account: Account, argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.master, slave = pty.openpty()
        if size:
            termios.tcsetwinsize(slave, size)
        self.name = os.ttyname(slave)
        if ROOT_HERE:
            os.chown(self.name, account.uid, -1)
        self.output = b""
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._become(account, argv, cwd, env or {"TERM": "dumb", "PS1": "$ "}, slave)
            finally:
                os._exit(255)
        os.close(slave)

    def _become(self, account: Account, argv: Sequence[str], cwd: Path, env: Mapping[str, str], slave: int) -> None:
        os.login_tty(slave)
        os.closerange(3, 256)
        if "user" in account.identity():
            os.setgroups(account.groups)
            os.setgid(account.gid)
            os.setuid(account.uid)
        os.umask(0o022)
        os.chdir(cwd)
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(argv[0], list(argv), account.environment(env))

    def __enter__(self) -> Terminal:
        return self

    def type(self, text: str) -> None:
        """Type, as a person would."""
        data = text.encode()
        while data:
            data = data[os.write(self.master, data[:1024]) :]

    def expect(self, text: str, seconds: float = 20) -> str:
        """Read until this was printed; what came before it."""
        end = time.monotonic() + seconds
        while text.encode() not in self.output:
            left = end - time.monotonic()
            if left <= 0 or not self._read(left):
                raise AssertionError(f"no {text!r} in {self.output!r}")
        before, _, self.output = self.output.partition(text.encode())
        return before.decode(errors="replace")

    def hang_up(self) -> None:
        """Close our end: the kernel hangs up, as when a connection is cut."""
        os.close(self.master)
        self.master = -1

    def _read(self, seconds: float) -> bool:
        if self.master < 0:
            time.sleep(seconds)
            return False
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:  # EIO: the last holder of the other end is gone
            return False
        self.output += data
        return bool(data)

    def wait(self, seconds: float = 20) -> int:
        """Its exit code, or minus the signal it died by; what it printed is in `output`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._read(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"still running; said {self.output!r}")

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, whatever it does."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self.master >= 0:
            os.close(self.master)
