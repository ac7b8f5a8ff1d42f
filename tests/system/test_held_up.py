"""A file system that does not answer holds up who touches it, and nobody else of the session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from guard.confine.turns import MOST_HELD
from tests.conftest import COMPILED, ROOT, Account, readable_by_all
from tests.system.node import events
from tests.system.stage import PYTHON
from tests.system.test_supervised_life import GUARDED, _alive, _children, _state, _until

pytest.importorskip("mfusepy", reason="the file system for tests is not installed", exc_type=ImportError)
pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="FUSE cannot be used here")

# Reads one line a task, `WAY PATH`, does each in a process of its own, and says what came of it: `WAY CODE`.
WORKER = """
import os, socket, sys, threading
def run(argv):
    pid = os.fork()
    if not pid:
        try:
            os.execv(argv[0], argv)
        except OSError as error:
            os._exit(error.errno)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, "")
def unix(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path)
def reach(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)
ways = {
    "chmod": lambda path: os.chmod(path, 0o640), "utime": lambda path: os.utime(path, (1, 1)),
    "chown": lambda path: os.chown(path, -1, os.getgid()), "tool": lambda path: run([path]),
    "script": lambda path: run(["/bin/sh", path]), "bind": unix, "connect": reach,
    "tcp": lambda path: socket.socket().bind(("127.0.0.1", 0)), "exec": lambda path: run(["/bin/true"]),
    "setuid": lambda path: os.chmod(path, 0o4755), "code": lambda path: run(["/bin/sh", "-c", ":"]), "umask": lambda path: os.umask(os.umask(0)),
}
print("ready", flush=True)
for line in sys.stdin:
    way, path = line.split()
    pid = os.fork()
    if pid:
        continue
    code = 0
    try:
        ways[way](path)
    except OSError as error:
        code = error.errno
    os.write(1, f"{way} {code}\\n".encode())
    os._exit(0)
"""


class Far:
    """A file system of the user's that can be made to answer nobody.

    Attributes:
        place: where it is mounted, in a project.
    """

    def __init__(self, process: subprocess.Popen[bytes], place: Path) -> None:
        self._process, self.place = process, place

    def hang(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        _until(lambda: _state(self._process.pid) == "T")

    def answer(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@pytest.fixture
def far(account: Account, project: Path) -> Iterator[Far]:
    backing, place = account.directory("server", account.state.parent), project / "far"
    place.mkdir()
    os.chown(place, account.uid, account.gid)
    account.write(backing / "file", "text\n")
    account.write(backing / "tool", "#!/bin/sh\nexit 0\n", 0o755)
    program = readable_by_all(ROOT / "tests/redact/clientfs.py")
    process = subprocess.Popen([sys.executable, program, str(backing), str(place), "0"], cwd="/")
    try:
        _until(lambda: account.command(["mountpoint", "-q", str(place)]).returncode == 0)
        yield Far(process, place)
    finally:
        process.send_signal(signal.SIGCONT)
        subprocess.run(["fusermount", "-u", "-z", str(place)], check=False)
        process.kill()
        process.wait()


class Session:
    """A guarded session that does what it is told, each act in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._said: list[str] = []

    def start(self, way: str, path: Path | str = "-") -> None:
        self.process.stdin.write(f"{way} {path}\n")  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]

    def heard(self) -> str:
        """What was done next: `WAY ERRNO`."""
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        assert line, "the session has ended"
        return line.strip()

    def does(self, way: str, path: Path | str = "-") -> int:
        self.start(way, path)
        name, code = self.heard().split()
        assert name == way, f"{name} was done, and {way} not"
        return int(code)


@contextmanager
def session(account: Account, project: Path, told: Path | None = None) -> Iterator[Session]:
    """A session; findings are told in the file `told` where that is given."""
    options = ["--tell"] if told else []
    if COMPILED:
        account.warm("--policy", "login-node", *options, cwd=project)
    with told.open("a") if told else nullcontext(subprocess.PIPE) as stderr:
        process = subprocess.Popen(
            [*GUARDED[:-1], *options, "--", PYTHON, "-c", WORKER], cwd=project, env=account.environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, **account.identity(),
        )  # type: ignore[call-overload] # fmt: skip
    try:
        assert process.stdout.readline() == "ready\n", "it has not begun"  # type: ignore[union-attr]
        yield Session(process)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            pipe.close()  # who is held up has a copy


def _names(far: Far) -> dict[str, Path]:
    """For each way that touches a file, one on the far file system."""
    file = dict.fromkeys(("chmod", "utime", "chown", "connect"), far.place / "file")
    return {**file, "tool": far.place / "tool", "script": far.place / "tool", "bind": far.place / "socket"}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("way", ["chmod", "utime", "chown", "connect", "tool", "script", "bind"])
def test_only_who_touches_a_hung_file_system_waits(account: Account, project: Path, far: Far, way: str) -> None:
    near = account.write(project / "near")
    account.write(project / "script", "exit 0\n", 0o755)
    path = _names(far)[way]
    with session(account, project) as work:
        far.hang()
        bare = subprocess.Popen(["stat", str(path)], stdout=subprocess.DEVNULL, **account.identity())  # type: ignore[call-overload]
        work.start(way, path)
        for other in ("tcp", "exec", "code", "umask"):
            assert work.does(other) == 0
        for other in ("chmod", "utime", "chown"):
            assert work.does(other, near) == 0
        assert work.does("script", project / "script") == 0
        assert work.does("bind", project / "near-socket") == 0
        assert bare.poll() is None, "without guard it does not wait either: the test proves nothing"
        far.answer()
        assert bare.wait(20) in (0, 1)
        name, code = work.heard().split()
        assert (name, int(code)) == (way, 111 if way == "connect" else 0)  # a file is no socket: ECONNREFUSED
        assert work.does("chmod", path) == 0


@pytest.mark.timeout(180)
def test_the_session_ends_although_a_caller_is_held_up(account: Account, project: Path, far: Far) -> None:
    with session(account, project) as work:
        far.hang()
        for _ in range(3):
            work.start("chmod", far.place / "file")
        assert work.does("exec") == 0
        (supervisor,) = _children(work.process.pid)
        (command,) = _children(supervisor)
        held = _until(lambda: (found := _children(command)) and len(found) >= 3 and found)
        work.process.send_signal(signal.SIGTERM)
        assert work.process.wait(20) == -signal.SIGTERM
        for pid in held:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _until(lambda: not any(_alive(pid) for pid in held))
        far.answer()
        _until(lambda: not _alive(supervisor))


@pytest.mark.timeout(300)
def test_how_many_may_be_held_up_is_bounded(account: Account, project: Path, far: Far) -> None:
    near = account.write(project / "near")
    with session(account, project) as work:
        (supervisor,) = _children(work.process.pid)
        far.hang()
        threads = lambda: len(os.listdir(f"/proc/{supervisor}/task"))  # noqa: E731
        for count in range(MOST_HELD):
            work.start("chmod", far.place / "file")
            _until(lambda count=count: threads() >= 3 + count)  # type: ignore[misc]
        _until(lambda: work.does("chmod", near) == 11)  # EAGAIN
        assert threads() < MOST_HELD + 8
        for other in ("tcp", "exec", "umask"):
            assert work.does(other) == 0, "what touches no file goes on"
        assert work.does("tool", far.place / "tool") == 11, "what cannot be judged is not let go"
        far.answer()
        assert {work.heard() for _ in range(MOST_HELD)} == {"chmod 0"}
        assert work.does("chmod", near) == 0
        _until(lambda: threads() < 6)
    found = [one for one in events(account) if one["rule"] == "callers-held-up"]
    assert found, json.dumps([one["rule"] for one in events(account)])
    assert found[0]["verdict"] == "denied"


@pytest.mark.timeout(180)
def test_findings_told_into_a_hung_file_hold_up_nobody(account: Account, project: Path, far: Far) -> None:
    near = account.write(project / "near")
    log = far.place / "log"
    log.touch()
    with session(account, project, told=log) as work:
        far.hang()
        for _ in range(3):
            assert work.does("setuid", near) == 1
            near = account.write(project / f"{near.name}x")  # another finding, not the same again
        assert work.does("exec") == 0
        far.answer()
        _until(lambda: log.read_text().count("setuid") or log.read_text().count("set-id"))
