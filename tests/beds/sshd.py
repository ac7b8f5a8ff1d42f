"""An sshd of the test user's own, on a free loopback port, that lets that user in by a fresh key."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.beds.ports import free_port, is_free
from tests.conftest import Account, users

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin")


@dataclass(frozen=True)
class Sshd:
    """What a client needs.

    Attributes:
        port: on 127.0.0.1. key: the private key. config: a client's settings, whose host is `here`.
    """

    port: int
    key: Path
    config: Path


def new_key(account: Account, path: Path) -> Path:
    """Make a key pair without a passphrase."""
    made = account.command(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)])
    assert made.returncode == 0, made.stderr
    return path


def client_config(
    account: Account, path: Path, port: int, key: Path | None, host: str = "127.0.0.1"
) -> Path:
    """Write an ssh client's settings for the host `here`; without a key an agent must have it."""
    lines = ["Host here", f" HostName {host}", f" Port {port}", " StrictHostKeyChecking no",
             " UserKnownHostsFile /dev/null", " LogLevel ERROR", " BatchMode yes"]  # fmt: skip
    lines += [f" IdentityFile {key}", " IdentitiesOnly yes"] if key else []
    return account.write(path, "\n".join(lines) + "\n", 0o600)


@contextmanager
def sshd(
    account: Account, keys: Path, more: str = "", as_root: bool = False, host: str = "127.0.0.1",
    ports: tuple[int, ...] = (),
) -> Iterator[Sshd]:  # fmt: skip
    """Run one; skips the test where there is none.

    Args:
        account: whose server it is, and whom it lets in.
        keys: a directory for the client's key and settings.
        more: further lines of the server's settings.
        as_root: run it as root, as a node does: an ordinary user's can give no terminal.
        host: where it listens. ports: which may be taken; none: any that is free.
    """
    if not SSHD:
        pytest.skip("not installed: sshd")
    place = account.directory("sshd", account.state.parent)
    Path("/run/sshd").mkdir(exist_ok=True) if not Path("/run/sshd").exists() and account.identity() else None
    if as_root:  # without PAM sshd refuses an account that is locked, as new ones are
        with users(change=True):
            subprocess.run(["usermod", "-p", "*", account.name], check=True)
        more += f"AllowUsers {account.name}\n"
    own, key = new_key(account, place / "host"), new_key(account, keys / "key")
    shutil.copy(key.with_suffix(".pub"), place / "authorized")
    port = next((port for port in ports if is_free(host, port)), 0) if ports else free_port()
    if not port:
        pytest.skip(f"taken on {host}: {ports}")
    settings = account.write(
        place / "config",
        f"ListenAddress {host}\nPort {port}\nHostKey {own}\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {place}/authorized\nPasswordAuthentication no\n{more}",
    )
    log = open(place / "log", "wb")  # noqa: SIM115 - closed below
    server = subprocess.Popen(  # type: ignore[call-overload]
        [SSHD, "-D", "-e", "-f", str(settings)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        env=account.environment(), **({} if as_root else account.identity()),
    )  # fmt: skip
    try:
        wait_for_port(port, server, place / "log", host)
        yield Sshd(port, key, client_config(account, keys / "ssh_config", port, key, host))
    finally:
        server.terminate()
        server.wait()
        log.close()
        shutil.rmtree(place, ignore_errors=True)


def wait_for_port(port: int, server: subprocess.Popen[bytes], log: Path, host: str = "127.0.0.1") -> None:
    """Return once somebody listens on a port; fails where the server ended before."""
    for _ in range(400):
        with socket.socket() as new:
            if new.connect_ex((host, port)) == 0:
                return
        assert server.poll() is None, log.read_text(errors="replace")
        time.sleep(0.025)
    raise AssertionError(f"nobody listens on {port}: {log.read_text(errors='replace')}")
