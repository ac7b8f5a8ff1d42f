"""What one user can use up is his own: another's sessions start as before, with all that holds in them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Account, _Accounts
from tests.system.node import events

pytestmark = pytest.mark.root

# Each takes of one thing all that a user can have, says how much it was, and stays until its input ends.
TAKERS = {
    "inotify instances": """
        import ctypes
        libc = ctypes.CDLL(None)
        while libc.inotify_init1(0) >= 0: count += 1
    """,
    "keys": """
        import ctypes
        libc = ctypes.CDLL(None)
        while count < 100000 and libc.syscall(248, b"user", b"k%d" % count, b"x" * 100, 100, -4) >= 0: count += 1
    """,
    "processes": """
        import resource, signal
        resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))
        try:
            while True:
                if os.fork() == 0: signal.pause()
                count += 1
        except BlockingIOError: pass
    """,
    "locks on what all can read": """
        import fcntl
        for top in ("/etc/passwd", "/tmp", "/var/tmp", "/dev/shm", "/run", "/var/lib", "/proc/self/ns"):
            for path in (top, *(os.path.join(top, name) for name in (os.listdir(top) if os.path.isdir(top) else ()))):
                try: fcntl.flock(os.open(path, os.O_RDONLY | os.O_NONBLOCK), fcntl.LOCK_EX | fcntl.LOCK_NB); count += 1
                except OSError: pass
    """,
    "names in shared directories": """
        for top in ("/tmp", "/var/tmp", "/dev/shm"):
            for uid in (UID,):
                try: os.mkdir(f"{top}/guard-{uid}"); count += 1
                except OSError: pass
    """,
}
PROGRAM = """
import os, sys
count, UID = 0, int(sys.argv[1])
{body}
print(count, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(accounts: _Accounts) -> Account:
    """A user whose sessions are to go on."""
    return accounts.new()


@contextmanager
def taking(account: Account, what: str, victim: int) -> Iterator[int]:
    """Another user who has taken all there is of something; how much it was."""
    body = "\n".join(line[8:] for line in TAKERS[what].splitlines())
    process = subprocess.Popen(
        ["/usr/bin/python3", "-c", PROGRAM.format(body=body), str(victim)], cwd=account.home, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, process_group=0, env=account.environment(), **account.identity(),
    )  # type: ignore[call-overload] # fmt: skip
    try:
        yield int(process.stdout.readline())
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        for top in ("/tmp", "/var/tmp", "/dev/shm"):
            shutil.rmtree(f"{top}/guard-{victim}", ignore_errors=True)


def session(account: Account, project: Path) -> dict[str, Any]:
    """Start a session with all that guard has; what its start event says holds."""
    script = 'echo x > "$TMPDIR/f" && echo y > /dev/shm/f && chmod 666 "$TMPDIR/f" && stat -c %a "$TMPDIR/f"'
    done = account.guard(["sh", "-c", script], cwd=project, env={"GUARD_STATE_DIR": ""})
    assert (done.returncode, done.stdout) == (0, "664\n"), done.stderr
    ours = [Path(f"/var/tmp/guard-{account.uid}/events.jsonl")]
    lines = [json.loads(line) for path in ours if path.exists() for line in path.read_text().splitlines()]
    lines = [line for line in lines if line["rule"] == "session-start"] or events(account, "session-start")
    status: dict[str, Any] = lines[-1]["detail"]["status"]
    return status


@pytest.mark.parametrize("what", [what for what in TAKERS if not what.startswith("names")])
def test_what_one_user_uses_up_is_not_another_s(account: Account, other: Account, what: str) -> None:
    project = other.directory("project")
    (project / ".git").mkdir()  # names in it are watched by the supervisor
    os.chown(project / ".git", other.uid, other.gid)
    before = session(other, project)
    assert {state["state"] for state in before.values()} <= {"enforced", "partial"}
    with taking(account, what, other.uid) as count:
        assert count > 3, "positive control: there was something to take"
        assert session(other, project) == before
        assert session(other, project) == before  # by guard-exec, where that is here


def test_a_name_that_another_took_first_keeps_nobody_from_a_session(account: Account, other: Account) -> None:
    project = other.directory("project")
    with taking(account, "names in shared directories", other.uid) as count:
        assert count == 3
        done = other.guard(
            ["sh", "-c", 'echo x > "$TMPDIR/f" && cat "$TMPDIR/f"'], cwd=project, env={"GUARD_STATE_DIR": ""}
        )
        assert (done.returncode, done.stdout) == (0, "x\n"), done.stderr
        for top in ("/tmp", "/var/tmp", "/dev/shm"):
            assert not os.listdir(f"{top}/guard-{other.uid}"), "nothing of the other's is written there"
