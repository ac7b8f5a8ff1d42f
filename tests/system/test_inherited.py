"""A directory whose default access list lets everybody write: what a session makes there loses that right at once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Account
from tests.system.node import events
from tests.system.stage import DENY, NO_MASK, PYTHON, Stage
from tests.system.test_supervised_modes import _world_writable

OBSERVE = NO_MASK + '[modes]\nworld_writable = "observe"\n'
# Makes things in every way there is, waits until none is writable by others (or for LIMIT seconds), says how many are.
MAKER = """
import os, shutil, socket, sys, time
top, limit = sys.argv[1], float(sys.argv[2])
os.umask(0o022)
os.chdir(top)
os.close(os.open("opened", os.O_CREAT | os.O_WRONLY, 0o666))
os.mkdir("directory")
os.mkfifo("fifo", 0o666)
os.symlink("opened", "link")
with socket.socket(socket.AF_UNIX) as one:
    one.bind("socket")
os.makedirs("a/b/c/d")
for place in ("many", "a/b/c/d", "directory"):
    os.makedirs(place, exist_ok=True)
    for count in range(60):
        os.close(os.open(f"{place}/{count}", os.O_CREAT | os.O_WRONLY, 0o666))
os.mkdir("again"); os.rmdir("again"); os.mkdir("again")
os.close(os.open("again/one", os.O_CREAT | os.O_WRONLY, 0o666))
end = time.monotonic() + limit
def writable(top):  # waits until nothing is
    while True:
        found = [os.path.join(where, name) for where, below, files in os.walk(top) for name in below + files]
        found = [name for name in found if not name.endswith("/before") and not os.path.islink(name) and os.stat(name).st_mode & 2]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)
writable("many")  # a copy takes the mode with it, which may be refused
shutil.copytree("many", "copied")
found = writable(".")
print(len(found), oct(os.stat("opened").st_mode & 0o777), oct(os.stat("directory").st_mode & 0o777))
"""


@pytest.fixture
def stage(account: Account) -> Iterator[Stage]:
    """A project with two directories: one that has such a list, and a plain one."""
    made = Stage(account)
    for name in ("shared", "plain"):
        account.write(made.project / name / "before", "", 0o666)
    if made.bare("acl", "setxattr", "{project}/shared", "default"):
        pytest.skip("no access lists here")
    yield made
    shutil.rmtree(made.project, ignore_errors=True)
    made.remove()


def _told(stage: Stage) -> list[dict[str, object]]:
    """What the last session's events say of it."""
    every = events(stage.account)
    last = [one["tree"]["session"] for one in every if one["rule"] == "session-start"][-1]
    return [one for one in every if one["rule"] == "world-writable-inherited" and one["tree"]["session"] == last]


def _make(stage: Stage, top: Path, policy: str, limit: float = 20) -> list[str]:
    done = stage.account.guard([PYTHON, "-c", MAKER, str(top), str(limit)], cwd=stage.project, policy=policy)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("policy", ["login-node", NO_MASK, DENY])
def test_what_is_made_under_a_default_list_loses_the_right_of_others(stage: Stage, policy: str) -> None:
    named = stage.policy(policy) if "\n" in policy else policy
    assert _make(stage, stage.project / "shared", named) == ["0", "0o664", "0o775"]
    assert _world_writable(stage.project / "shared") == [stage.project / "shared/before"], "what was there stays"
    assert {one["verdict"] for one in _told(stage)} == {"rewritten"}
    control = stage.account.directory("control", stage.project / "shared")
    done = stage.account.command([PYTHON, "-c", MAKER, str(control), "0"])
    assert int(done.stdout.split()[0]) > 200, "without guard it does not come to be: the test proves nothing"


SOCKETS = """
import os, socket, sys
os.umask(0)
for number in range(50):
    name = f"shared/{number}"
    new = socket.socket(socket.AF_UNIX)
    new.bind(name)
    if os.stat(name).st_mode & 2:
        print(name)
"""


@pytest.mark.parametrize("policy", ["login-node", NO_MASK])
def test_a_socket_made_under_a_default_list_never_has_the_right_of_others(stage: Stage, policy: str) -> None:
    """The supervisor makes it: there is no moment in which it is writable."""
    named = stage.policy(policy) if "\n" in policy else policy
    done = stage.account.guard([PYTHON, "-c", SOCKETS], cwd=stage.project, policy=named)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for place in (stage.project / "shared").glob("[0-9]*"):
        place.unlink()
    control = stage.account.command([PYTHON, "-c", SOCKETS], cwd=stage.project)
    assert len(control.stdout.splitlines()) == 50


def test_the_project_itself_may_have_such_a_list(stage: Stage) -> None:
    assert stage.bare("acl", "setxattr", "{project}", "default") == 0
    top = stage.account.directory("top", stage.project)
    assert _make(stage, top, "login-node")[0] == "0"
    assert _make(stage, stage.project / "plain", "login-node")[0] == "0"
    assert _world_writable(stage.project / "plain") == [stage.project / "plain/before"], "what was there stays"


def test_where_modes_are_only_observed_it_is_told_and_left(stage: Stage) -> None:
    assert int(_make(stage, stage.project / "shared", stage.policy(OBSERVE), 1)[0]) > 200
    assert {one["verdict"] for one in _told(stage)} == {"would_deny"}


def test_a_plain_project_costs_no_watch(stage: Stage) -> None:
    """A user has 128 of them (fs.inotify.max_user_instances), for all sessions."""
    script = "sleep 0.5; for fd in /proc/$PPID/fd/*; do readlink $fd; done | grep -c inotify"
    (stage.project / "shared").rename(stage.elsewhere / "shared")
    done = stage.account.guard(["sh", "-c", script], cwd=stage.project)
    assert done.stdout.strip() in ("0", "1"), done.stdout + done.stderr  # one for protected names that are not there
