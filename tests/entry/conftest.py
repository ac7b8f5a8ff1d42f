"""An sshd on loopback whose user comes in through guard: by ForceCommand, and with guard as the login shell."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.beds.sshd import Sshd, sshd
from tests.conftest import GUARD, ROOT_HERE, Account, users

SETTINGS = "Subsystem sftp /usr/lib/openssh/sftp-server\nMaxStartups 200\nMaxSessions 100\nAcceptEnv LANG LC_*\n"


@dataclass(frozen=True)
class Way:
    """A way in through guard.

    Attributes:
        name: `force`, `shell`, or `bare`, which is without guard.
        account: who comes in. server: the sshd. place: keys and settings. config: guard's configuration.
    """

    name: str
    account: Account
    server: Sshd
    place: Path
    config: Path

    def ssh(self, *words: str, options: tuple[str, ...] = (), **more: object) -> subprocess.CompletedProcess[bytes]:
        """Run `ssh here WORDS…`; output is bytes."""
        sent = {"input": more.pop("input")} if "input" in more else {"stdin": subprocess.DEVNULL}
        return subprocess.run(
            ["ssh", "-F", str(self.server.config), *options, "here", *words], capture_output=True, check=False,
            cwd=self.account.home, env=self.account.environment(), timeout=more.pop("timeout", 60), **sent, **self.account.identity(),  # type: ignore[call-overload]
        )  # fmt: skip

    def client(self, *argv: str, **more: object) -> subprocess.CompletedProcess[str]:
        """Run scp, sftp, rsync, git: whatever starts ssh with our settings."""
        env = {"GIT_SSH_COMMAND": f"ssh -F {self.server.config}", "RSYNC_RSH": f"ssh -F {self.server.config}", "HOME": str(self.account.home)}
        return self.account.command(list(argv), env=env, **more)  # type: ignore[arg-type]


def wrapper(account: Account, config: Path, name: str = "login") -> Path:
    """A script that says what docs/shells.md says a login shell says."""
    # Where the tests made no account, its home is not the one that the user database names.
    home = "" if ROOT_HERE else f"HOME={account.home}\nexport HOME\ncd\n"
    return account.write(
        config / name, f'#!/bin/sh\n{home}GUARD_CONFIG_DIR={config} GUARD_STATE_DIR={account.state}\nexport GUARD_CONFIG_DIR GUARD_STATE_DIR\nexec {GUARD} shell "$@"\n', 0o755
    )  # fmt: skip


@pytest.fixture(scope="session", params=["force", "shell"])
def way(request: pytest.FixtureRequest, account: Account) -> Iterator[Way]:
    """Both ways, one after the other."""
    place = account.directory("ssh")
    config = account.directory("config", account.state.parent)
    script = wrapper(account, config)
    more = SETTINGS
    if request.param == "force":
        more += f"ForceCommand {script}\n"
    elif not ROOT_HERE:
        pytest.skip("needs root: changes a login shell")
    else:
        with users(change=True):
            subprocess.run(["usermod", "-s", str(script), account.name], check=True)
    try:
        with sshd(account, place, more, as_root=ROOT_HERE) as server:
            yield Way(request.param, account, server, place, config)
    finally:
        if request.param == "shell" and ROOT_HERE:
            with users(change=True):
                subprocess.run(["usermod", "-s", "/bin/bash", account.name], check=True)
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(config, ignore_errors=True)
