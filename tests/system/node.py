"""A node of its own for tests of what root installs: /etc/guard and /var/lib/guard in a mount namespace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GUARD, ROOT, Account

# A copy of all of /etc: a mount on /etc/passwd alone would go as soon as somebody outside replaces that file.
_SETUP = """
set -e
cp -a /etc "$1/etc" 2> /dev/null || test -s "$1/etc/passwd"
mount --bind "$1/etc" /etc
rm -rf /etc/guard
mkdir -m 0755 /etc/guard
mount -t tmpfs -o mode=0755 guard-state /var/lib/guard
echo ready
exec sleep infinity
"""
LIBRARY = Path(
    subprocess.run(
        [str(ROOT / ".venv/bin/python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()
)  # fmt: skip


class Node:
    """Root's files are written through `etc` and `state`; `guard` starts a session there as any account."""

    def __init__(self) -> None:
        # Stays until the run ends (conftest.py): taking it away here would take away another's mount on it, too.
        os.makedirs("/var/lib/guard", exist_ok=True)
        self._scratch = tempfile.mkdtemp(prefix="guard-node-")
        os.chmod(self._scratch, 0o755)
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SETUP, "sh", self._scratch],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self.close()
            pytest.skip("this host lets its root make no mounts")
        self.pid = self._process.pid
        self.etc = Path(f"/proc/{self.pid}/root/etc/guard")
        self.state = Path(f"/proc/{self.pid}/root/var/lib/guard")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._scratch)

    def know_accounts(self) -> None:
        """Take over the accounts that were made meanwhile; the files change only if they differ."""
        for name in ("passwd", "group"):
            copy = Path(self._scratch, "etc", name)
            if copy.read_bytes() != Path("/etc", name).read_bytes():
                copy.write_bytes(Path("/etc", name).read_bytes())

    def clear(self) -> None:
        """Back to a node without any file of root's."""
        self.show_compiler()
        for top in (self.etc, self.state):
            top.chmod(0o755)
            for path in top.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        """A file of root's in /etc/guard; `schema = 1` is put before it."""
        path = self.etc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("schema = 1\n" + text)
        path.chmod(mode)
        return path

    def root(self, *argv: str, **more: object) -> subprocess.CompletedProcess[str]:
        """Run a command as root there."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "--", *argv],
            capture_output=True, text=True, check=False, env=environment, timeout=60, **more,
        )  # fmt: skip

    def compile(self) -> subprocess.CompletedProcess[str]:
        """Root compiles the site's plans."""
        return self.root(GUARD, "policy", "compile")

    def hide_compiler(self) -> None:
        """From now on a start that needs a plan made finds nothing that makes one."""
        empty = os.path.join(self._scratch, "empty.py")
        with open(empty, "wb"):
            pass
        done = self.root("mount", "--bind", empty, str(LIBRARY / "guard/policy/prepare.py"))
        assert done.returncode == 0, done.stderr

    def show_compiler(self) -> None:
        """Undo `hide_compiler`."""
        self.root("umount", "-q", str(LIBRARY / "guard/policy/prepare.py"))

    def command(
        self,
        account: Account,
        argv: Sequence[str],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as an account there, without guard."""
        groups = ["--groups", ",".join(map(str, account.groups))] if account.groups else ["--clear-groups"]
        return subprocess.run(
            [
                "nsenter", f"--mount=/proc/{self.pid}/ns/mnt", f"--wdns={cwd or account.home}", "--",
                "setpriv", "--reuid", str(account.uid), "--regid", str(account.gid), *groups, "--", *argv,
            ],
            capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
            env=account.environment(env),
        )  # fmt: skip

    def guard(
        self,
        account: Account,
        argv: Sequence[str],
        *options: str,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as an account there, under guard."""
        return self.command(account, [GUARD, "run", *options, "--", *argv], cwd=cwd, env=env)


def events(account: Account, rule: str = "") -> list[dict[str, Any]]:
    """The account's event lines, each parsed; of one rule if it is given."""
    try:
        lines = (account.state / "events.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = [json.loads(line) for line in lines if line]
    return [each for each in found if not rule or each["rule"] == rule]
