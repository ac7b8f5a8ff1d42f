"""A supervised session begins, stops, goes on and ends as without guard; its supervisor's death opens nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import GUARD, Account


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _until(what: object, limit: float = 20) -> object:
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found = what()  # type: ignore[operator]
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("did not happen")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def _session(account: Account, project: Path, script: str) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """A running session: guard (W), its supervisor (S), the command (A)."""
    process = subprocess.Popen(
        [GUARD, "run", "--policy", "login-node", "--", "sh", "-c", script],
        cwd=project, env=account.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, **account.identity(),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.stderr.read() if process.stderr else ""
        (supervisor,) = _children(process.pid)
        (command,) = _children(supervisor)
        yield process, supervisor, command
    finally:
        for pid in (process.pid,):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.communicate()


@pytest.mark.parametrize(("script", "code"), [("exit 42", 42), ("kill -TERM $$", -15), ("kill -KILL $$", -9), ("true", 0)])
def test_a_supervised_command_ends_with_its_own_code(account: Account, project: Path, script: str, code: int) -> None:
    assert account.command(["sh", "-c", script], cwd=project).returncode == code
    assert account.guard(["sh", "-c", script], cwd=project).returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_sent_to_guard_reaches_the_command(account: Account, project: Path, number: signal.Signals) -> None:
    script = f"trap 'echo caught; exit 7' {number.name[3:]}; echo ready; while :; do sleep 0.1; done"
    with _session(account, project, script) as (process, _, _):
        os.kill(process.pid, number)
        assert process.wait(20) == 7
        assert process.stdout is not None
        assert process.stdout.read() == "caught\n"


def test_killing_the_supervisor_opens_nothing_and_ends_the_session(account: Account, project: Path) -> None:
    script = (
        "echo ready; while :; do python3 -c 'import socket; s = socket.socket(); s.bind((\"0.0.0.0\", 0));"
        " open(\"bound\", \"w\").write(str(s.getsockname()[0]))' 2>/dev/null;"
        " grep -q '^0' bound 2>/dev/null && : > escaped; done"
    )
    with _session(account, project, script) as (process, supervisor, command):
        os.kill(supervisor, signal.SIGKILL)
        assert process.wait(20) == 125
        assert process.stderr is not None
        assert "the supervisor is gone" in process.stderr.read()
        _until(lambda: not _alive(command))
    assert not (project / "escaped").exists()


def test_killing_guard_kills_the_command(account: Account, project: Path) -> None:
    with _session(account, project, "echo ready; exec sleep 60") as (process, supervisor, command):
        os.kill(process.pid, signal.SIGKILL)
        _until(lambda: not _alive(command))
        _until(lambda: not _alive(supervisor))


def test_the_tree_cannot_signal_or_read_its_supervisor(account: Account, project: Path) -> None:
    script = (
        "echo ready; S=$(cut -d' ' -f4 /proc/self/stat); S=$PPID;"
        " kill -9 $S && echo killed; cat /proc/$S/environ >/dev/null 2>&1 && echo read; sleep 0.5; echo alive"
    )
    with _session(account, project, script) as (process, supervisor, _):
        assert process.stdout is not None
        assert process.stdout.read() == "alive\n"
        assert process.wait(20) == 0
        assert supervisor


def test_a_daemon_that_outlives_the_command_stays_supervised(account: Account, project: Path) -> None:
    daemon = (
        "import os, socket, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "time.sleep(1)\n"
        "os.system('true')\n"
        "s = socket.socket(); s.bind(('0.0.0.0', 0)); open('where', 'w').write(s.getsockname()[0])\n"
    )
    account.write(project / "daemon.py", daemon)
    assert account.command(["python3", "daemon.py"], cwd=project).returncode == 0
    _until(lambda: (project / "where").exists() and (project / "where").read_text() == "0.0.0.0")
    (project / "where").unlink()
    began = time.monotonic()
    assert account.guard(["python3", "daemon.py"], cwd=project, capture_output=False).returncode == 0
    assert time.monotonic() - began < 5
    _until(lambda: (project / "where").exists() and (project / "where").read_text() == "127.0.0.1")


def test_a_stopped_command_stops_guard_and_goes_on_with_it(account: Account, project: Path) -> None:
    with _session(account, project, "echo ready; sleep 1; echo done") as (process, _, command):
        os.kill(command, signal.SIGSTOP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout is not None
        assert process.stdout.read() == "done\n"


def test_a_supervised_guard_runs_inside_another(account: Account, project: Path) -> None:
    inner = [GUARD, "run", "--policy", "login-node", "--", "sh", "-c", "echo in; touch ../outside"]
    got = account.guard(inner, cwd=project)
    assert got.stdout == "in\n"
    assert "Permission denied" in got.stderr
