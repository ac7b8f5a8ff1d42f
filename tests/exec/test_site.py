"""Where root's files decide, a written start serves only while all of them say what they said."""

from __future__ import annotations

import dataclasses
import datetime
import grp
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import GUARD, Account, _Accounts
from tests.exec import written
from tests.system.node import Node

pytestmark = pytest.mark.root

FLOOR = """
[site]
default_policy = "house"
[files]
deny = ["{home}/vault"]
"""
HOUSE = 'name = "house"\nextends = "login-node"\n'
ASSIGNED = '[[assign]]\ngroup = "{}"\nmode = "observe"\nreason = "a trial"\n'
LOOKS = "echo begun; cat ~/vault/key; echo ended"
USUAL = {"GUARD_STATE_DIR": "", "GUARD_DEBUG": "1"}  # nothing is asked elsewhere where root decides


@pytest.fixture(scope="module")
def node_of_module() -> Iterator[Node]:
    node = Node()
    yield node
    node.close()


@pytest.fixture(scope="module")
def canary() -> Iterator[str]:
    """A group of the node's that root's files name."""
    name = f"gtwritten{os.getpid() % 100000}"
    subprocess.run(["groupadd", "-f", name], check=True, capture_output=True)
    yield name
    subprocess.run(["groupdel", name], check=False, capture_output=True)


@pytest.fixture(scope="module")
def user(accounts: _Accounts) -> Account:
    account = accounts.new()
    account.write(account.home / "vault/key", "kept\n")
    return account


@pytest.fixture
def node(node_of_module: Node, user: Account, canary: str) -> Iterator[Node]:
    node = node_of_module
    node.know_accounts()
    node.write("site.toml", FLOOR)
    node.write("policies/house.toml", HOUSE)
    node.write("assign.toml", ASSIGNED.format(canary))
    node.write("exceptions.d/one.toml", exception(user, "2999-12-31"))
    compile_(node)
    yield node
    node.clear()
    shutil.rmtree(f"/var/tmp/guard-{user.uid}", ignore_errors=True)


@pytest.fixture
def project(user: Account, node: Node) -> Iterator[Path]:
    """A project in which a start has been written down."""
    path = user.directory("project")
    warm(node, user, path)
    yield path
    shutil.rmtree(path)


def exception(user: Account, until: str) -> str:
    """An exception of root's for a user."""
    return (
        f'[[exception]]\nuser = "{user.name}"\ncontrol = "files"\nreason = "a course"\nticket = "T1"\n'
        f'until = {until}\nwiden = {{ "files.read" = ["/srv"] }}\n'
    )


def compile_(node: Node) -> None:
    """Compile root's files, which are not of this moment: those may change again within the clock's tick."""
    for path in (*node.etc.rglob("*"), node.etc):
        os.utime(path, (time.time() - 60,) * 2)
    done = node.compile()
    assert done.returncode == 0, done.stderr


def warm(node: Node, user: Account, project: Path) -> None:
    """Let a start be written down."""
    for _ in range(2):
        done = node.guard(user, ["true"], cwd=project, env=USUAL)
        assert done.returncode == 0, done.stderr


def alone(node: Node, user: Account, program: Path, project: Path, **more: str) -> tuple[bool, str]:
    """Start by guard-exec alone: whether it did, and what was said; what root denies stays denied in any case."""
    done = node.command(user, [str(program), "run", "--", "sh", "-c", LOOKS], cwd=project, env={**USUAL, **more})
    assert "kept" not in done.stdout
    assert done.stdout in ("", "begun\nended\n")
    assert (done.returncode == 125) == (not done.stdout), done.stderr
    return bool(done.stdout), done.stderr


def shelf(user: Account) -> Path:
    """Where a user's starts lie on such a node, and nowhere else."""
    return Path(f"/var/tmp/guard-{user.uid}/starts")


def test_a_start_that_roots_files_decided_is_made_again_and_confined(
    node: Node, user: Account, project: Path, exec_alone: Path
) -> None:
    served, said = alone(node, user, exec_alone, project)
    assert served, said
    assert "Permission denied" in said or "No such file" in said
    assert node.command(user, ["cat", "vault/key"]).stdout == "kept\n"


def _rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"# another\n")


def _new_plan(node: Node) -> None:
    for path in (node.state / "plans").glob("*.plan"):
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)


def _own_plan(node: Node, user: Account) -> None:
    for path in (node.state / "plans").glob("*.plan"):
        os.chown(path, user.uid, user.gid)


def _own_layer(user: Account) -> None:
    user.write(user.home / ".config/guard/policy.toml", "schema = 1\n[files]\ndeny = ['{home}/entry']\n")


Change = Callable[[Node, Account], object]
CHANGES: dict[str, Change] = {
    "the site's file is another": lambda node, user: _rewrite(node.etc / "site.toml"),
    "the policy is another": lambda node, user: _rewrite(node.etc / "policies/house.toml"),
    "the assignment is another": lambda node, user: _rewrite(node.etc / "assign.toml"),
    "the user is switched off": lambda node, user: node.write(
        "assign.toml", f'[[assign]]\nuser = "{user.name}"\nmode = "off"\nreason = "asked for"\n'),
    "nothing is assigned any more": lambda node, user: (node.etc / "assign.toml").unlink(),
    "an exception is another": lambda node, user: node.write("exceptions.d/one.toml", exception(user, "2999-12-30")),
    "an exception is taken back": lambda node, user: (node.etc / "exceptions.d/one.toml").unlink(),
    "an exception is added": lambda node, user: node.write(
        "exceptions.d/two.toml", exception(user, "2999-12-31").replace("T1", "T2")),
    "no site decides any more": lambda node, user: [(node.etc / f"{each}.toml").unlink() for each in ("site", "assign")],
    "the plan is another": lambda node, user: _new_plan(node),
    "the plan is the user's": _own_plan,
    "the plans are gone": lambda node, user: shutil.rmtree(node.state / "plans"),
    "the index is another": lambda node, user: (node.state / "plans/index").rename(node.state / "plans/was"),
    "others may write in root's plans": lambda node, user: (node.state / "plans").chmod(0o777),
    "others may write in root's files": lambda node, user: node.etc.chmod(0o777),
    "the user has a layer of his own": lambda node, user: _own_layer(user),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_where_root_says_otherwise_the_launcher_decides_anew(
    node: Node, user: Account, project: Path, exec_alone: Path, what: str
) -> None:
    served, said = alone(node, user, exec_alone, project)
    assert served, said  # positive control
    try:
        CHANGES[what](node, user)
        served, said = alone(node, user, exec_alone, project)
        assert not served, said
    finally:
        shutil.rmtree(user.home / ".config", ignore_errors=True)


def test_an_exception_ends_for_a_written_start_too(node: Node, user: Account, project: Path, exec_alone: Path) -> None:
    for seconds in (4, 15, 45):  # on a busy machine all that comes before the end takes longer
        ends = int(time.time()) + seconds  # a written start ends with a whole second
        moment = datetime.datetime.fromtimestamp(ends, datetime.UTC).isoformat()
        node.write("exceptions.d/one.toml", exception(user, moment))
        compile_(node)
        warm(node, user, project)
        served, said = alone(node, user, exec_alone, project)
        if time.time() < ends:
            break
    assert served, said
    time.sleep(max(0, ends + 0.1 - time.time()))
    served, said = alone(node, user, exec_alone, project)
    assert not served, said


def test_a_user_in_another_group_is_decided_anew(
    node: Node, user: Account, project: Path, exec_alone: Path, canary: str
) -> None:
    assert alone(node, user, exec_alone, project)[0]
    member = dataclasses.replace(user, groups=(grp.getgrnam(canary).gr_gid,))
    words = ["run", "--", "cat", str(user.home / "vault/key")]
    done = node.command(member, [str(exec_alone), *words], cwd=project, env=USUAL)
    assert (done.returncode, done.stdout) == (125, "")
    done = node.command(member, [GUARD, *words], cwd=project, env=USUAL)
    assert done.stdout == "kept\n", "root only observes whoever is in that group"


@pytest.mark.parametrize("how", ["a project's layer", "a policy by name"])
def test_a_start_of_which_root_has_made_no_plan_is_not_written_down(node: Node, user: Account, how: str) -> None:
    project = user.directory("layered")
    options = []
    if how == "a policy by name":
        node.write("policies/site.toml", 'name = "site"\nextends = "login-node"\n')
        compile_(node)
        options = ["--policy", "site"]
    else:
        user.write(project / ".guard.toml", "schema = 1\n[files]\ndeny = ['{project}/secret']\n")
    shutil.rmtree(shelf(user), ignore_errors=True)
    try:
        for _ in range(3):
            assert node.guard(user, ["true"], *options, cwd=project, env=USUAL).returncode == 0
        assert not shelf(user).exists() or not list(shelf(user).iterdir())
        (project / ".guard.toml").unlink(missing_ok=True)
        warm(node, user, project)
        assert list(shelf(user).iterdir()), "positive control: without it, there is one"
    finally:
        shutil.rmtree(project)


def test_a_start_that_lies_elsewhere_is_not_taken(node: Node, user: Account, project: Path, exec_alone: Path) -> None:
    assert alone(node, user, exec_alone, project)[0]
    elsewhere = user.directory("elsewhere")
    assert user.command(["cp", "-r", str(shelf(user)), str(elsewhere)]).returncode == 0
    served, said = alone(node, user, exec_alone, project, GUARD_STATE_DIR=str(elsewhere))
    assert not served, said
    shutil.rmtree(elsewhere)


def test_a_start_that_another_user_planted_is_not_taken(
    node: Node, user: Account, project: Path, exec_alone: Path, accounts: _Accounts
) -> None:
    """Whoever comes first can take the name of a state directory; his files there are still his."""
    assert alone(node, user, exec_alone, project)[0]
    (path,) = shelf(user).iterdir()
    steps = written.steps_of(path.read_bytes())
    steps.insert(-1, (b"w", [b"planted\n"]))
    forged = written.with_head(written.body_of(steps))
    other = accounts.new()
    for owned, is_his in (((other, other, other), True), ((user, other, other), True), ((user, user, other), True),
                          ((user, user, user), False)):  # fmt: skip
        path.write_bytes(forged)
        for place, account in zip((path.parent.parent, path.parent, path), owned, strict=True):
            os.chown(place, account.uid, account.gid)
        served, said = alone(node, user, exec_alone, project)
        assert (served, "planted" in said) == ((False, False) if is_his else (True, True)), said


def test_a_session_cannot_write_starts(node: Node, user: Account, project: Path) -> None:
    (path,) = shelf(user).iterdir()
    script = f"echo begun; echo x >> {path} && echo wrote; echo x > {path.parent}/0123456789abcdef && echo wrote"
    done = node.guard(user, ["sh", "-c", script], cwd=project, env=USUAL)
    assert done.stdout == "begun\n", done.stderr
    assert node.command(user, ["sh", "-c", script], cwd=project).stdout == "begun\nwrote\nwrote\n"
