"""Root's files: the floor under every session, who gets what, exceptions with a date, the last good copy."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GUARD, LONG, ROOT, Account, _Accounts
from tests.system.node import LIBRARY, Node, events

pytestmark = pytest.mark.root

CANARY = f"gtcanary{os.getpid() % 100000}"
FLOOR = """
[site]
default_policy = "login-node"
[files]
deny = ["{home}/vault"]
"""
# What somebody would write who wants the vault open.
WIDE = 'name = "wide"\n[files]\nread = ["/", "{home}"]\nwrite = ["{home}"]\n'


@pytest.fixture(scope="module")
def node_of_module() -> Iterator[Node]:
    node = Node()
    yield node
    node.close()


@pytest.fixture
def node(node_of_module: Node) -> Iterator[Node]:
    yield node_of_module
    node_of_module.clear()


@pytest.fixture(scope="module")
def canary(accounts: _Accounts) -> Account:
    """A user in the group that a site tries things on."""
    return _with_vault(accounts.new(groups=[CANARY]))


@pytest.fixture(scope="module")
def other(accounts: _Accounts) -> Account:
    """A user in no group of interest."""
    return _with_vault(accounts.new())


@pytest.fixture(autouse=True)
def _node_knows_them(node: Node, canary: Account, other: Account) -> None:
    assert canary.uid != other.uid
    node.know_accounts()


def _with_vault(account: Account) -> Account:
    account.write(account.home / "vault/key", "kept\n")
    return account


@pytest.fixture
def project(other: Account) -> Iterator[Path]:
    path = other.directory("project")
    yield path
    shutil.rmtree(path, ignore_errors=True)


def last(account: Account, rule: str = "session-start") -> dict[str, Any]:
    return events(account, rule)[-1]


def opens_vault(node: Node, account: Account, *options: str, **more: Any) -> bool:
    """Whether a session can read what the floor denies; the session itself must have started."""
    script = 'cat "$HOME/vault/key"; echo started'
    done = node.guard(account, ["sh", "-c", script], *options, **more)
    assert done.stdout.endswith("started\n"), done.stderr
    return "kept" in done.stdout


# The floor ----------------------------------------------------------------------------------------------


def test_without_a_site_nothing_denies_the_vault(node: Node, other: Account) -> None:
    assert opens_vault(node, other)


def test_the_floor_denies_what_the_policy_grants(node: Node, other: Account) -> None:
    node.write("site.toml", FLOOR)
    assert not opens_vault(node, other)


@pytest.mark.parametrize("compiled", [False, True], ids=["in-memory", "roots-plans"])
def test_no_layer_below_widens_the_floor(node: Node, other: Account, compiled: bool) -> None:
    own = other.directory("own")
    wide = other.write(own / "wide.toml", "schema = 1\n" + WIDE)
    moved = other.directory("moved")
    other.write(moved / "policies/login-node.toml", "schema = 1\n" + WIDE.replace("wide", "login-node", 1))
    # Positive control: without a site each of these opens everything that is asked here.
    assert opens_vault(node, other, "--policy", str(wide))
    assert opens_vault(node, other, "--config", str(moved))
    node.write("site.toml", FLOOR)
    if compiled:
        assert node.compile().returncode == 0
    other.write(moved / "site.toml", "schema = 1\n[site]\naudit = 'allow'\n")
    other.write(moved / "assign.toml", "schema = 1\n[[assign]]\nmode = 'off'\nreason = 'mine'\n")
    layer = other.write(other.home / ".config/guard/policy.toml", "schema = 1\n[files]\nread = ['/']\n")
    try:
        assert not opens_vault(node, other)
        assert not opens_vault(node, other, "--policy", str(wide))
        assert not opens_vault(node, other, "--config", str(moved))
        assert not opens_vault(node, other, env={"GUARD_CONFIG_DIR": str(moved)})
        project = other.directory("layered")
        other.write(project / ".guard.toml", "schema = 1\n[files]\nread = ['/', '{project}']\n")
        assert not opens_vault(node, other, cwd=project)
        assert not opens_vault(node, other, "--policy", "observe")
    finally:
        layer.unlink()
        shutil.rmtree(own)
        shutil.rmtree(moved)


def test_a_project_layer_tightens_below_the_floor(node: Node, other: Account, project: Path) -> None:
    node.write("site.toml", FLOOR)
    assert node.compile().returncode == 0
    act = ["sh", "-c", "echo x > written"]
    assert node.guard(other, act, cwd=project).returncode == 0
    other.write(project / ".guard.toml", 'schema = 1\n[files]\nwrite = ["{project}/build"]\n')
    assert node.guard(other, act, cwd=project).returncode != 0
    assert node.guard(other, act, "--no-project-policy", cwd=project).returncode == 0


def test_audit_can_be_forbidden(node: Node, other: Account) -> None:
    node.write("site.toml", '[site]\naudit = "allow"\n')
    done = node.guard(other, ["echo", "ran"], "--audit")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    node.write("site.toml", '[site]\naudit = "forbid"\n')
    for compiled in (False, True):
        if compiled:
            assert node.compile().returncode == 0
        done = node.guard(other, ["echo", "ran"], "--audit")
        assert (done.returncode, done.stdout) == (125, "")
        assert "audit" in done.stderr
        assert "site.toml" in done.stderr
    assert last(other, "start-refused")["verdict"] == "denied"


def test_projects_lie_below_the_sites_roots(node: Node, other: Account, project: Path) -> None:
    inside = other.directory("inside", parent=other.directory("roots"))
    write = ["sh", "-c", "echo x > f && echo wrote"]
    node.write("site.toml", "[site]\n")
    assert node.guard(other, write, cwd=project).stdout == "wrote\n"
    node.write("site.toml", f'[site]\nproject_roots = ["{inside.parent}"]\n')
    assert node.guard(other, write, cwd=inside).stdout == "wrote\n"
    done = node.guard(other, write, cwd=project)
    assert done.stdout == ""
    assert "project_roots" in done.stderr
    named = node.guard(other, write, "--project", str(project), cwd=inside)
    assert (named.returncode, named.stdout) == (125, "")
    assert "project_roots" in named.stderr


def test_site_variables_are_put_in(node: Node, other: Account) -> None:
    scratch = other.directory("scratch", parent=Path("/var/tmp"))
    act = ["sh", "-c", f"echo x > {scratch}/f && echo wrote"]
    rule = 'name = "work"\nextends = "login-node"\nreason = "scratch"\n[files]\nwrite = ["{scratch}"]\n'
    try:
        node.write("policies/work.toml", rule)
        node.write("site.toml", f'[site]\ndefault_policy = "work"\n[variables]\nscratch = "{scratch}"\n')
        assert node.compile().returncode == 0
        done = node.guard(other, act)
        assert done.stdout == "wrote\n", done.stderr
        node.write("site.toml", '[site]\ndefault_policy = "work"\n[variables]\nscratch = "/nowhere"\n')
        assert node.guard(other, act).stdout == ""
    finally:
        shutil.rmtree(scratch)


def test_a_named_policy_cannot_be_unassigned_by_the_environment(node: Node, other: Account) -> None:
    node.write("site.toml", FLOOR)
    node.write("assign.toml", '[[assign]]\npolicy = "read-only"\n')
    act = ["sh", "-c", "echo x > f && echo wrote"]
    folder = other.directory("p")
    for env in ({}, {"GUARD_POLICY": "login-node"}, {"GUARD_CONFIG_DIR": "/nonexistent"}):
        assert node.guard(other, act, cwd=folder, env=env).stdout == ""
    assert last(other)["policy"]["name"] == "read-only"
    assert last(other)["detail"]["assigned_by"] == "assign.toml:2"


# Who gets what ------------------------------------------------------------------------------------------

ASSIGN = f"""
[[assign]]
group = "{CANARY}"
mode = "enforce"
reason = "tries it first"
[[assign]]
mode = "observe"
reason = "rolled out group by group"
"""


@pytest.mark.parametrize("compiled", [False, True], ids=["in-memory", "roots-plans"])
def test_a_canary_group_is_enforced_while_all_others_observe(
    node: Node, canary: Account, other: Account, compiled: bool
) -> None:
    node.write("site.toml", FLOOR)
    node.write("assign.toml", ASSIGN)
    if compiled:
        assert node.compile().returncode == 0
        node.hide_compiler()
    assert not opens_vault(node, canary)
    assert opens_vault(node, other)
    done = node.guard(other, ["true"])
    assert "OBSERVE" in done.stderr
    assert "nothing is enforced" in done.stderr
    started = last(other)
    assert {each["state"] for each in started["detail"]["status"].values()} == {"observe"}
    assert started["severity"] == "medium"
    assert last(canary)["detail"]["status"]["files"]["state"] in ("enforced", "partial")
    assert last(canary)["detail"]["assigned_by"].startswith("assign.toml:")


def test_a_harness_or_host_can_decide(node: Node, other: Account) -> None:
    node.write("site.toml", FLOOR)
    host = os.uname().nodename
    node.write(
        "assign.toml",
        f'[[assign]]\nhost = "no-{host}"\nmode = "off"\nreason = "r"\n'
        f'[[assign]]\nharness = "codex"\npolicy = "read-only"\n'
        f'[[assign]]\nhost = "{host[:1]}*"\npolicy = "login-node"\n',
    )
    codex = other.write(other.home / "codex", "#!/bin/sh\nexec true\n", 0o755)
    try:
        for compiled in (False, True):
            if compiled:
                assert node.compile().returncode == 0
                node.hide_compiler()
            assert node.guard(other, ["true"]).returncode == 0
            assert last(other)["policy"]["name"] == "login-node"
            assert node.guard(other, [str(codex)]).returncode == 0
            assert last(other)["policy"]["name"] == "read-only"
            assert last(other)["tree"]["harness"] == "codex"
    finally:
        codex.unlink()


def test_a_user_who_came_after_compiling_gets_what_is_his(node: Node, other: Account) -> None:
    # The name has no number when root compiles: the row is matched by name at the start.
    hidden = Path(f"/proc/{node.pid}/root/etc/passwd")
    known = hidden.read_text()
    hidden.write_text("".join(line for line in known.splitlines(True) if not line.startswith(other.name + ":")))
    node.write("site.toml", FLOOR)
    node.write(
        "assign.toml",
        f'[[assign]]\nuser = "{other.name}"\npolicy = "read-only"\n[[assign]]\nmode = "off"\nreason = "r"\n',
    )
    assert node.compile().returncode == 0
    hidden.write_text(known)
    assert node.guard(other, ["true"]).returncode == 0
    assert last(other)["policy"]["name"] == "read-only"


def test_assign_toml_alone_decides_too(node: Node, other: Account) -> None:
    node.write("assign.toml", '[[assign]]\npolicy = "read-only"\n')
    wide = other.write(other.home / "wide.toml", "schema = 1\n" + WIDE)
    act = ["sh", "-c", "echo x > f && echo wrote"]
    folder = other.directory("p")
    for compiled in (False, True):
        if compiled:
            assert node.compile().returncode == 0
        for options in ([], ["--policy", "login-node"], ["--policy", str(wide)], ["--config", str(folder)]):
            assert node.guard(other, act, *options, cwd=folder).stdout == ""
    wide.unlink()


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_what_root_does_not_enforce_is_told_loudly(node: Node, other: Account, mode: str) -> None:
    node.write("site.toml", FLOOR)
    node.write("assign.toml", f'[[assign]]\nmode = "{mode}"\nreason = "not yet"\n')
    assert opens_vault(node, other)
    done = node.guard(other, ["true"])
    assert f"guard: {mode.upper()}: nothing is enforced in this session" in done.stderr
    assert last(other)["severity"] == "medium"
    assert node.guard(other, ["echo", "ran"], "--require", "files").returncode == 125


def test_a_session_inside_a_session_is_under_the_same_floor(node: Node, other: Account) -> None:
    # guard itself has to be readable inside, wherever it is installed.
    readable = sorted({str(ROOT), str(Path(GUARD).parent.parent), str(LIBRARY)})
    rule = f'name = "work"\nextends = "login-node"\nreason = "guard"\n[files]\nread = {json.dumps(readable)}\n'
    node.write("policies/work.toml", rule)
    node.write("site.toml", FLOOR.replace("login-node", "work"))
    assert node.compile().returncode == 0
    inner = f"{GUARD} run -- sh -c 'cat \"$HOME/vault/key\"; echo started'"
    done = node.guard(other, ["sh", "-c", inner])
    assert done.stdout == "started\n", done.stderr


# Exceptions ---------------------------------------------------------------------------------------------


def exception(folder: Path, until: str, subject: str = f'group = "{CANARY}"', ticket: str = "OPS-7") -> str:
    return (
        f'[[exception]]\n{subject}\ncontrol = "files"\nreason = "a migration"\nticket = "{ticket}"\n'
        f'until = {until}\nwiden = {{ "files.write" = ["{folder}"] }}\n'
    )


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that everybody may write, outside of every grant."""
    path = Path("/var/tmp") / f"guard-shared-{os.getpid()}"
    path.mkdir()
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def writes(node: Node, account: Account, folder: Path) -> bool:
    target = folder / account.name
    target.unlink(missing_ok=True)
    done = node.guard(account, ["sh", "-c", f"echo x > {target}; echo started"])
    assert done.stdout == "started\n", done.stderr
    return target.exists()


@pytest.mark.parametrize("compiled", [False, True], ids=["in-memory", "roots-plans"])
def test_an_exception_widens_one_group_only(
    node: Node, canary: Account, other: Account, shared: Path, compiled: bool
) -> None:
    node.write("site.toml", FLOOR)
    assert not writes(node, canary, shared)
    node.write("exceptions.d/move.toml", exception(shared, "2999-12-31"))
    if compiled:
        assert node.compile().returncode == 0
        node.hide_compiler()
    assert writes(node, canary, shared)
    assert not writes(node, other, shared)
    assert last(canary)["detail"]["exceptions"] == ["move.toml#OPS-7"]
    assert last(other)["detail"]["exceptions"] == []
    assert not opens_vault(node, canary), "it widens one key only"


@pytest.mark.parametrize("until", ["2020-01-01", "2020-01-01T00:00:00Z", "2020-01-01 01:00:00+01:00"])
def test_an_exception_that_has_ended_widens_nothing(node: Node, canary: Account, shared: Path, until: str) -> None:
    node.write("site.toml", FLOOR)
    node.write("exceptions.d/move.toml", exception(shared, until))
    assert not writes(node, canary, shared)
    assert last(canary)["detail"]["exceptions"] == []


def test_a_date_alone_holds_until_its_day_has_ended(node: Node, canary: Account, shared: Path) -> None:
    node.write("site.toml", FLOOR)
    wrote, day = False, None
    while day != datetime.datetime.now(datetime.UTC).date():  # once more where midnight came meanwhile
        day = datetime.datetime.now(datetime.UTC).date()
        node.write("exceptions.d/move.toml", exception(shared, str(day)))
        wrote = writes(node, canary, shared)
    assert wrote
    node.write("exceptions.d/move.toml", exception(shared, str(day - datetime.timedelta(days=1))))
    assert not writes(node, canary, shared)


@pytest.mark.parametrize("compiled", [False, True], ids=["in-memory", "roots-plans"])
def test_an_exception_ends_while_plans_are_at_hand(node: Node, canary: Account, shared: Path, compiled: bool) -> None:
    node.write("site.toml", FLOOR)
    node.write("exceptions.d/long.toml", exception(Path("/nowhere"), "2999-01-01", ticket="L"))
    for seconds in (2.5, 10, 40):  # on a busy machine all that comes before the end takes longer
        ends = time.time() + seconds
        moment = datetime.datetime.fromtimestamp(ends, datetime.UTC).isoformat()
        node.write("exceptions.d/brief.toml", exception(shared, moment))
        if compiled:
            assert node.compile().returncode == 0
            node.hide_compiler()
        wrote = writes(node, canary, shared)
        if time.time() < ends:
            break
        node.show_compiler()
    assert wrote
    assert last(canary)["detail"]["exceptions"] == ["brief.toml#OPS-7", "long.toml#L"]
    time.sleep(max(0.0, ends - time.time()) + 0.05)  # the date is what is waited for
    assert not writes(node, canary, shared)
    assert last(canary)["detail"]["exceptions"] == ["long.toml#L"]


def test_an_exception_for_one_user(node: Node, canary: Account, other: Account, shared: Path) -> None:
    node.write("site.toml", FLOOR)
    node.write("exceptions.d/one.toml", exception(shared, "2999-12-31", f'user = "{other.name}"'))
    assert node.compile().returncode == 0
    node.hide_compiler()
    assert writes(node, other, shared)
    assert not writes(node, canary, shared)


def test_exceptions_of_two_groups_add_up(node: Node, accounts: _Accounts, canary: Account, shared: Path) -> None:
    second = f"{CANARY}b"
    both = accounts.new(groups=[CANARY, second])
    node.know_accounts()
    one, two = shared / "one", shared / "two"
    for path in (one, two):
        path.mkdir()
        path.chmod(0o1777)
    node.write("site.toml", "[site]\n")
    node.write("exceptions.d/a.toml", exception(one, "2999-12-31"))
    node.write("exceptions.d/b.toml", exception(two, "2999-12-31", f'group = "{second}"', ticket="OPS-8"))
    assert node.compile().returncode == 0
    node.hide_compiler()
    assert writes(node, both, one)
    assert writes(node, both, two)
    assert last(both)["detail"]["exceptions"] == ["a.toml#OPS-7", "b.toml#OPS-8"]
    assert writes(node, canary, one)
    assert not writes(node, canary, two)


def test_an_exception_for_everyone(node: Node, canary: Account, other: Account, shared: Path) -> None:
    node.write("site.toml", FLOOR)
    node.write("exceptions.d/all.toml", exception(shared, "2999-12-31", "everyone = true"))
    for compiled in (False, True):
        if compiled:
            assert node.compile().returncode == 0
            node.hide_compiler()
        assert writes(node, canary, shared)
        assert writes(node, other, shared)


# Files that do not load ---------------------------------------------------------------------------------

BROKEN = {
    "syntax": "this is not TOML = = =\n",
    "key": "schema = 1\n[files]\nrite = []\n",
    "kind": None,  # a directory
    "empty": "",
    "fifo": "fifo",
    "link": "link",
    "large": "#" * (2 << 20),
}


def _break(path: Path, how: str) -> None:
    path.unlink(missing_ok=True)
    text = BROKEN[how]
    if text is None:
        path.mkdir()
    elif text == "fifo":
        os.mkfifo(path)
    elif text == "link":
        path.symlink_to("/proc/self/nowhere")
    else:
        path.write_text(text)


@pytest.mark.parametrize(
    ("name", "how"),
    [("site.toml", how) for how in sorted(BROKEN)]
    + [
        (name, how)
        for name in ("assign.toml", "exceptions.d/a.toml")
        for how in (sorted(BROKEN) if LONG else ("syntax", "link"))
    ],
)
def test_a_broken_site_file_is_refused_or_the_last_good_one_holds(
    node: Node, canary: Account, name: str, how: str
) -> None:
    node.write("site.toml", FLOOR)
    node.write("assign.toml", ASSIGN)
    node.write("exceptions.d/a.toml", exception(Path("/nowhere"), "2999-01-01"))
    assert node.compile().returncode == 0
    _break(node.etc / name, how)
    done = node.guard(canary, ["sh", "-c", 'cat "$HOME/vault/key"; echo started'])
    assert "kept" not in done.stdout, done.stderr
    if "started" in done.stdout:
        assert "last good" in done.stderr
        assert last(canary)["detail"]["last_good"] is True
        assert last(canary)["detail"]["status"]["files"]["state"] != "observe"
    else:
        assert done.returncode == 125
    # Without a last good copy nothing starts that is not held by what is left.
    shutil.rmtree(node.state / "last-good")
    done = node.guard(canary, ["sh", "-c", 'cat "$HOME/vault/key"; echo started'])
    assert "kept" not in done.stdout
    assert (done.returncode, done.stdout) == (125, "")
    assert os.path.basename(name) in done.stderr
    assert "guard: not started: " in done.stderr


def test_compile_reports_a_broken_file_and_keeps_the_last_good_one(node: Node, canary: Account) -> None:
    node.write("site.toml", FLOOR)
    assert node.compile().returncode == 0
    node.write("site.toml", "[files]\ndeny = 7\n")
    done = node.compile()
    assert done.returncode == 3
    assert "site.toml:3:" in done.stderr
    assert "last good" in done.stderr
    lines = (node.state / "events.jsonl").read_text().splitlines()
    alert = json.loads(lines[-1])
    assert (alert["rule"], alert["severity"]) == ("site-files-broken", "high")
    assert "deny" not in lines[-1], "what a file holds is not redacted yet"
    assert not opens_vault(node, canary)
    # Mended, it is in force again, without anything else being done.
    node.write("site.toml", FLOOR.replace("vault", "elsewhere"))
    assert opens_vault(node, canary)


def test_what_does_not_load_from_the_start_is_refused(node: Node, canary: Account) -> None:
    node.write("site.toml", "[files]\ndeny = 7\n")
    done = node.compile()
    assert done.returncode == 3
    assert "site.toml" in done.stderr
    done = node.guard(canary, ["echo", "ran"])
    assert (done.returncode, done.stdout) == (125, "")


def test_a_site_that_hides_its_files_starts_nothing(node: Node, canary: Account) -> None:
    for hide in (lambda: node.etc.chmod(0o700), lambda: (node.etc / "site.toml").chmod(0o600)):
        node.clear()
        node.write("site.toml", FLOOR)
        hide()
        done = node.guard(canary, ["echo", "ran"])
        assert (done.returncode, done.stdout) == (125, ""), done.stderr
        assert "guard" in done.stderr


@pytest.mark.parametrize("name", ["site.toml", "assign.toml", "exceptions.d"])
def test_a_site_file_that_others_may_write_decides_nothing(node: Node, other: Account, name: str) -> None:
    node.write("site.toml", FLOOR)
    node.write("assign.toml", '[[assign]]\npolicy = "read-only"\n')
    node.write("exceptions.d/a.toml", exception(Path("/nowhere"), "2999-01-01"))
    assert node.compile().returncode == 0
    path = node.etc / name
    safe = path.stat().st_mode & 0o777
    for spoil in (lambda: path.chmod(safe | 0o020), lambda: os.chown(path, other.uid, other.gid)):
        assert node.guard(other, ["echo", "ran"]).stdout == "ran\n"
        spoil()
        done = node.guard(other, ["echo", "ran"])
        assert (done.returncode, done.stdout) == (125, "")
        assert f"/etc/guard/{name}" in done.stderr
        path.chmod(safe)
        os.chown(path, 0, 0)


def test_a_configuration_that_others_may_write_is_refused(node: Node, other: Account) -> None:
    node.write("site.toml", FLOOR)
    node.etc.chmod(0o777)
    done = node.guard(other, ["echo", "ran"])
    assert (done.returncode, done.stdout) == (125, "")
    assert "writable by others" in done.stderr
    node.clear()
    moved = other.directory("moved")
    moved.chmod(0o777)
    done = node.guard(other, ["echo", "ran"], "--config", str(moved))
    assert (done.returncode, done.stdout) == (125, "")
    assert "writable by others" in done.stderr


def test_without_root_files_there_is_nothing_to_compile(node: Node) -> None:
    done = node.compile()
    assert done.returncode == 3
    assert "neither a site.toml nor an assign.toml" in done.stderr
