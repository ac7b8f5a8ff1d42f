"""A stage for acts: a project, places beside it, and the same act once confined and once bare."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from guard.kernel import diag
from tests.conftest import GUARD, Account

PYTHON = "/usr/bin/python3"
ACT = Path(__file__).with_name("act.py")
UNDONE, UNTRIED = 249, 250

NO_MASK = """
schema = 1
name = "no-mask"
extends = "login-node"
[files]
mask = "never"
"""
DENY = """
schema = 1
name = "deny-modes"
extends = "login-node"
[modes]
world_writable = "deny"
"""


@functools.cache
def _compiled() -> bytes:
    """The acts as byte code of the interpreter that runs them: compiling them costs more than most acts."""
    with tempfile.TemporaryDirectory() as place:
        code = "import py_compile, sys; py_compile.compile(sys.argv[1], sys.argv[2], doraise=True)"
        subprocess.run([PYTHON, "-IS", "-c", code, str(ACT), f"{place}/act.pyc"], check=True)
        return Path(place, "act.pyc").read_bytes()


class Stage:
    """One test's ground.

    Attributes:
        project: writable under guard.
        home: a directory in the user's home: readable, not writable.
        elsewhere: a directory in no grant.
        kind: of the file system that the home lies on, as the file suite names it.
    """

    def __init__(self, account: Account) -> None:
        self.account = account
        self.kind = "plain"
        self.project = account.directory("project")
        self.home = account.directory("beside")
        self.elsewhere = account.directory("elsewhere", account.state.parent)
        self.act = account.write(self.project / "act.pyc", _compiled())
        for place in (self.project, self.home, self.elsewhere):
            self._furnish(place)
        self._values = {name: str(getattr(self, name)) for name in ("project", "home", "elsewhere")}
        self._count = 0
        self._values |= {"user_home": str(account.home), "uid": str(account.uid)}

    def _furnish(self, place: Path) -> None:
        write = self.account.write
        for name in ("file", "other", "spare", "movable"):
            write(place / name, "secret")
        write(place / "full/inner/file", "secret")
        write(place / "directory/.keep")
        os.rename(place / "directory/.keep", place / "keep")
        write(place / "tool", Path("/bin/true").read_bytes(), 0o755)

    def set(self, **values: object) -> None:
        """Name more values for the words of acts."""
        self._values |= {name: str(value) for name, value in values.items()}

    def words(self, words: Sequence[str], shell: str = "") -> list[str]:
        """An act's command line, its `{places}` filled in; `shell` starts it as `"$@"`.

        `{new}` is another name in the project each time.
        """
        self._count += 1
        self.set(new=self.project / f"new-{self._count}")
        act = [PYTHON, "-IS", str(self.act), *(word.format(**self._values) for word in words)]
        return ["/bin/sh", "-c", shell, "sh", *act] if shell else act

    def policy(self, text: str) -> str:
        """The path of a policy with this text."""
        path = self.account.state.parent / f"policy-{zlib.crc32(text.encode()):08x}.toml"
        if not path.exists():
            self.account.write(path, text)
        return str(path)

    def bare(self, *words: str, cwd: Path | None = None, shell: str = "", **more: object) -> int:
        """Perform an act without guard; 0, an errno, or minus the signal it died by."""
        return self.account.command(self.words(words, shell), cwd=cwd or self.project, **more).returncode

    @property
    def alone(self) -> str:
        """A policy under which no supervisor stands beside the tree: what Landlock and the filter hold by themselves."""
        return self.account.alone

    def confined(
        self, *words: str, policy: str = "login-node", cwd: Path | None = None, options: Sequence[str] = (),
        shell: str = "", **more: object,
    ) -> int:  # fmt: skip
        """Perform an act under guard."""
        named = ["--project", str(self.project)] if cwd and cwd != self.project else []
        done = self.account.guard(
            self.words(words, shell), "--no-project-policy", *named, *options, policy=policy, cwd=cwd or self.project, **more
        )  # fmt: skip
        assert "not started" not in (done.stderr or ""), done.stderr
        return done.returncode

    def refused(self, code: int | tuple[int, ...], *words: str, policy: str = "login-node", **more: object) -> None:
        """Assert that an act is refused under guard with exactly this errno, and succeeds without."""
        expected = code if isinstance(code, tuple) else (code,)
        found = self.confined(*words, policy=policy, **more)
        assert found in expected, f"confined: {_said(found)}, expected {' or '.join(map(_said, expected))}"
        control = self.bare(*words, **more)
        assert control == 0, f"without guard: {_said(control)}: the test proves nothing"

    def works(self, *words: str, policy: str = "login-node", **more: object) -> None:
        """Assert that an act succeeds under guard."""
        found = self.confined(*words, policy=policy, **more)
        assert found == 0, f"confined: {_said(found)}"

    def remove(self) -> None:
        for place in (self.project, self.home, self.elsewhere):
            shutil.rmtree(place, ignore_errors=True)

    @contextmanager
    def beside(self, argv: Sequence[str], **more: object) -> Iterator[subprocess.Popen[str]]:
        """A process of the same user outside the tree; it has said a line when this returns."""
        process = subprocess.Popen(  # type: ignore[call-overload]
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=self.elsewhere,
            env=self.account.environment(), start_new_session=True, **{**self.account.identity(), **more},
        )  # fmt: skip
        try:
            process.said = process.stdout.readline().strip()
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
            process.stdout.close()


def address_of_host() -> str:
    """An IPv4 address of this host that is not loopback, "" where it has none."""
    own = (host for host in diag.local_addresses() if len(host) == 4 and host[0] != 127)
    return next((socket.inet_ntop(socket.AF_INET, host) for host in own), "")


def _said(code: int) -> str:
    import errno
    import signal

    if code < 0:
        return signal.Signals(-code).name
    special = {0: "done", UNDONE: "said to be done, and not done", UNTRIED: "not tried", 251: "a fault of the act"}
    return special.get(code) or errno.errorcode.get(code, str(code))


def guarded(stage: Stage, *options: str, policy: str = "login-node") -> list[str]:
    """A command line's head that confines what follows."""
    return [GUARD, "run", "--policy", policy, "--no-project-policy", *options, "--"]
