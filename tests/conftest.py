"""What every test of the command line starts from: an ordinary user, a throw-away home, guard as installed.

As root the tests make a user of their own and become it for everything they run; as an ordinary user they
run as that one, with a temporary directory as its home, and skip what needs root.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
GUARD = str((ROOT / ".venv/bin").resolve() / "guard")
LAUNCHER = str(Path(GUARD).parent.parent / "libexec/guard")  # the Python program behind it
# Each test's first start is the launcher's. GUARD_TEST_LAUNCHER=exec makes it guard-exec's, by starts before it.
COMPILED = os.environ.get("GUARD_TEST_LAUNCHER") == "exec"
LONG = bool(os.environ.get("GUARD_TEST_LONG"))
# The same examples each time, whatever they take on a busy machine; new ones are looked for by `make test-long`.
hypothesis.settings.register_profile(
    "guard", derandomize=not LONG, database=None, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("guard")

# A shell's background job ignores ^C, and so would all that is started here: what a test sends must arrive.
for _number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)


def readable_by_all(path: Path) -> str:
    """A copy of a file of the clone for users who cannot reach it: root's clone often lies in a private home."""
    if os.geteuid() != 0:
        return str(path)
    place = Path(tempfile.mkdtemp(prefix="guard-test-", dir="/var/tmp"))
    place.chmod(0o755)
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return str(shutil.copyfile(path, place / path.name))


FAKEHOST = readable_by_all(ROOT / "tests/fakehost.py")


def _is_root() -> bool:
    """Whether we are root of the machine; in a user namespace uid 0 is an ordinary user with a grand name."""
    with open("/proc/self/uid_map", encoding="ascii") as table:
        return os.geteuid() == 0 and table.read().split() == ["0", "0", "4294967295"]


ROOT_HERE = _is_root()


@dataclass(frozen=True)
class Account:
    """An ordinary user to run things as; `command` runs bare, `guard` under guard."""

    name: str
    uid: int
    gid: int
    home: Path
    groups: tuple[int, ...] = ()
    state: Path = field(default=Path("/nonexistent"))
    config: Path = field(default=Path("/nonexistent"))

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """A login's environment, and nothing of the one who runs the tests."""
        plain = {
            "HOME": str(self.home),
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": "/bin/bash",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "GUARD_STATE_DIR": str(self.state),
            "GUARD_CONFIG_DIR": str(self.config),
        }
        return {**plain, **(more or {})}

    def identity(self) -> dict[str, object]:
        """Arguments that make subprocess become this user, where that is not who we are already."""
        if not ROOT_HERE:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": list(self.groups)}

    def command(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        input: str | bytes | None = None,
        timeout: float = 60,
        **more: object,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this user, without guard."""
        text = not isinstance(input, bytes)
        more.setdefault("capture_output", True)
        if input is None:
            more.setdefault("stdin", subprocess.DEVNULL)
        else:
            more["input"] = input
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            list(argv), cwd=cwd or self.home, env=self.environment(env), timeout=timeout, check=False, text=text,
            umask=0o022, **{**self.identity(), **more},
        )  # fmt: skip

    def guard(
        self, argv: Sequence[str], *options: str, policy: str | None = "login-node", **more: object
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this user under `guard run`."""
        named = ["--policy", policy] if policy else []
        if COMPILED:
            self.warm(*named, *options, **more)
        return self.command([GUARD, "run", *named, *options, "--", *argv], **more)  # type: ignore[arg-type]

    def warm(self, *options: str, **more: object) -> None:
        """Let a start be written down, so that guard-exec makes the next one with these options by itself.

        The first makes the plan, the second finds it and is written down.
        """
        same = {key: more[key] for key in ("cwd", "env", "umask") if key in more}
        events = self.state / "events.jsonl"
        size = events.stat().st_size if events.is_file() else None
        for _ in range(2):
            self.command([GUARD, "run", *options, "--", "/bin/true"], **same)  # type: ignore[arg-type]
        if size is not None:
            os.truncate(events, size)
        elif events.is_file():
            events.unlink()

    def cli(self, *words: str, **more: object) -> subprocess.CompletedProcess[str]:
        """Run another command of guard's as this user."""
        return self.command([GUARD, *words], **more)  # type: ignore[arg-type]

    @property
    def alone(self) -> str:
        """A policy under which no supervisor stands beside the tree: login-node, held by the kernel by itself."""
        path = self.state.parent / "alone.toml"
        if not path.exists():
            self.write(path, 'schema = 1\nname = "alone"\nextends = "login-node"\n[supervisor]\nuse = "never"\n')
        return str(path)

    def directory(self, prefix: str = "d", parent: Path | None = None) -> Path:
        """A new directory of this user's, in its home unless told otherwise."""
        path = Path(tempfile.mkdtemp(prefix=prefix + "-", dir=parent or self.home))
        if ROOT_HERE:
            os.chown(path, self.uid, self.gid)
        path.chmod(0o755)
        return path

    def write(self, path: Path, text: str | bytes = "", mode: int = 0o644) -> Path:
        """A file of this user's, its directories made as needed."""
        missing = [parent for parent in path.parents if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(mode)
        if ROOT_HERE:
            for made in (*missing, path):
                os.chown(made, self.uid, self.gid)
        return path


def end_processes_of(uid: int) -> None:
    """Kill what a test user left running, by pid."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == uid:
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, ProcessLookupError):
                continue


@contextmanager
def users(change: bool) -> Iterator[None]:
    """Change the machine's users, or rely on their staying as they are: files run beside one another.

    Args:
        change: whether they are changed here; else by nobody until the block ends.
    """
    with open(shutil.which("useradd") or "/dev/null", "rb") as program:  # any file that all runs share
        fcntl.flock(program, fcntl.LOCK_EX if change else fcntl.LOCK_SH)
        yield


class _Accounts:
    """Users made for this run, and taken away after it."""

    def __init__(self) -> None:
        self._made: list[Account] = []
        self._groups: set[str] = set()

    def new(self, groups: Sequence[str] = ()) -> Account:
        name = f"gt{os.getpid() % 100000}x{len(self._made)}"
        with users(change=True):
            subprocess.run(["useradd", "-m", "-s", "/bin/bash", name], check=True, capture_output=True)
            for group in groups:
                subprocess.run(["groupadd", "-f", group], check=True, capture_output=True)
                subprocess.run(["usermod", "-aG", group, name], check=True, capture_output=True)
        self._groups.update(groups)
        entry = pwd.getpwnam(name)
        account = _with_directories(
            name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir),
            tuple(gid for gid in os.getgrouplist(name, entry.pw_gid) if gid != entry.pw_gid),
        )  # fmt: skip
        self._made.append(account)
        return account

    def remove(self) -> None:
        for account in self._made:
            end_processes_of(account.uid)
            for left in (  # while the number is still this user's: the next one who is made may get it
                account.state.parent,
                Path(f"/var/tmp/guard-{account.uid}"),
                Path(f"/tmp/guard-{account.uid}"),
            ):
                shutil.rmtree(left, ignore_errors=True)
            with users(change=True):
                subprocess.run(["userdel", "-rf", account.name], check=False, capture_output=True)
        for group in self._groups:
            subprocess.run(["groupdel", group], check=False, capture_output=True)


def _with_directories(name: str, uid: int, gid: int, home: Path, groups: tuple[int, ...]) -> Account:
    base = Path(tempfile.mkdtemp(prefix="guard-test-", dir="/var/tmp"))
    base.chmod(0o755)
    state, config = base / "state", base / "config"
    state.mkdir(mode=0o700)
    config.mkdir(mode=0o755)
    if ROOT_HERE:
        os.chown(state, uid, gid)
    return Account(name, uid, gid, home, groups, state, config)


@pytest.fixture(scope="session", autouse=True)
def _time_to_scan() -> Iterator[None]:
    """Let a scan in this very process take what it takes: a slow machine would give up lines that it had no time for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("guard.redact.scan.BUDGET", 60.0)
        yield


@pytest.fixture(scope="session")
def accounts() -> Iterator[_Accounts]:
    """Makes further users; root only."""
    if not ROOT_HERE:
        pytest.skip("needs root: makes users")
    made = _Accounts()
    yield made
    made.remove()


@pytest.fixture(scope="session")
def account(request: pytest.FixtureRequest) -> Iterator[Account]:
    """The ordinary user of this run."""
    if ROOT_HERE:
        yield request.getfixturevalue("accounts").new()
        return
    entry = pwd.getpwuid(os.geteuid())
    home = Path(tempfile.mkdtemp(prefix="guard-home-", dir="/var/tmp"))
    home.chmod(0o755)
    made = _with_directories(entry.pw_name, entry.pw_uid, entry.pw_gid, home, ())
    yield made
    shutil.rmtree(home, ignore_errors=True)
    shutil.rmtree(made.state.parent, ignore_errors=True)


@pytest.fixture
def project(account: Account) -> Iterator[Path]:
    """An empty project of the user's."""
    path = account.directory("project")
    yield path
    shutil.rmtree(path, ignore_errors=True)


_STATE = Path("/var/lib/guard")
"""What tests of a node mount their own state on, each in a namespace (tests/system/node.py)."""


def pytest_configure(config: pytest.Config) -> None:
    """Put each process that runs tests into a group of its own: what is sent to a group ends nobody else's tests.

    And whoever started them in the background or by nohup(1) left signals ignored, which programs pass on.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if hasattr(config, "workerinput"):
        os.setpgid(0, 0)
    elif not _STATE.exists():
        config.add_cleanup(_remove_state)


def _remove_state() -> None:
    """Take it away after the last test of all: rmdir(2) of a directory takes every mount on it along, in any namespace."""
    with suppress(OSError):  # not made, or somebody else's by now
        _STATE.rmdir()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs root where we are not, and say so."""
    if not ROOT_HERE:
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip(reason="needs root"))
