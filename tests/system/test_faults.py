"""What is missing, full, read-only or refused: a start is confined, or it does not happen and says why.

Other hosts are played by `tests/fakehost.py`, other disks by mounts in a namespace of a test's own, single
failing writes by strace's fault injection.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import FAKEHOST, GUARD, LAUNCHER, LONG, Account
from tests.system.node import Node, events

PLAY = ["/usr/bin/python3", FAKEHOST]
CANNOT = 77
# Reads what is denied and writes outside of the project; tells of each, and that it ran at all.
ACT = ["sh", "-c", 'cat "$HOME/vault/key"; echo x > "$HOME/outside"; echo started']
POLICY = """schema = 1
name = "mine"
extends = "login-node"
[files]
deny = ["{home}/vault"]
[supervisor]
use = "never"
"""


@pytest.fixture(scope="module", autouse=True)
def vault(account: Account) -> None:
    account.write(account.home / "vault/key", "kept\n")


@pytest.fixture(scope="module")
def mine(account: Account) -> str:
    return str(account.write(account.home / "mine.toml", POLICY))


@pytest.fixture(autouse=True)
def _clean(account: Account) -> None:
    shutil.rmtree(account.state / "plans", ignore_errors=True)
    (account.home / "outside").unlink(missing_ok=True)


def on(
    account: Account, host: list[str], options: list[str], argv: list[str], **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run guard on another host than this one."""
    done = account.command([*PLAY, *host, "--", GUARD, "run", *options, "--", *argv], **more)
    if done.returncode == CANNOT and "fakehost: this host cannot" in done.stderr:
        pytest.skip(done.stderr.strip())
    return done


def is_confined(account: Account, done: subprocess.CompletedProcess[str]) -> bool:
    """Whether a session ran `ACT` and both acts failed."""
    assert done.stdout.endswith("started\n"), done.stderr
    return "kept" not in done.stdout and not (account.home / "outside").exists()


def assert_refused(account: Account, done: subprocess.CompletedProcess[str], *said: str) -> None:
    """Nothing was started, the code is 125, one sentence says why."""
    assert (done.returncode, done.stdout) == (125, ""), done.stderr
    assert not (account.home / "outside").exists()
    (sentence,) = re.findall(r"^guard: not started: (.*)$", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr
    for words in said:
        assert words in sentence


def test_the_acts_succeed_without_guard(account: Account) -> None:
    done = account.command(ACT)
    assert "kept" in done.stdout
    assert (account.home / "outside").exists()


# libseccomp and Landlock --------------------------------------------------------------------------------


def test_without_libseccomp_and_a_plan_nothing_starts(account: Account, mine: str) -> None:
    done = on(account, ["--hide-libseccomp"], ["--policy", mine], ACT)
    assert_refused(account, done, "library missing: libseccomp", "libseccomp2", "install it")


def test_with_a_plan_a_missing_libseccomp_changes_nothing(account: Account, mine: str) -> None:
    assert is_confined(account, account.guard(ACT, policy=mine))
    before = events(account, "session-start")[-1]["detail"]
    done = on(account, ["--hide-libseccomp"], ["--policy", mine], ACT)
    assert is_confined(account, done)
    after = events(account, "session-start")[-1]["detail"]
    assert before["plan"] == after["plan"]


LANDLOCK = {
    "EOPNOTSUPP": ("Landlock is not enabled at boot", "lsm="),
    "ENOSYS": ("Landlock", "a kernel "),
    "EPERM": ("a seccomp filter above us refuses Landlock", "landlock_*"),
}


@pytest.mark.parametrize("error", LANDLOCK)
@pytest.mark.parametrize("plan", [False, True], ids=["empty-cache", "with-a-plan"])
def test_without_landlock_nothing_starts_and_the_cause_is_told(
    account: Account, mine: str, error: str, plan: bool
) -> None:
    if plan:
        assert is_confined(account, account.guard(ACT, policy=mine))
    done = on(account, ["--landlock", error], ["--policy", mine], ACT)
    assert_refused(account, done, "not enforced on this host: ", *LANDLOCK[error])


def test_the_causes_of_a_missing_landlock_are_distinct(account: Account, mine: str) -> None:
    said = {on(account, ["--landlock", error], ["--policy", mine], ACT).stderr for error in LANDLOCK}
    assert len(said) == len(LANDLOCK)


@pytest.mark.parametrize(
    "host", [["--hide-libseccomp"], ["--landlock", "EOPNOTSUPP"], ["--landlock", "ENOSYS"], ["--no-seccomp"]]
)
def test_audit_runs_where_nothing_can_be_enforced_and_warns(account: Account, mine: str, host: list[str]) -> None:
    done = on(account, host, ["--policy", mine, "--audit"], ["echo", "ran"])
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert "AUDIT: nothing is enforced" in done.stderr
    # What audit made for itself serves nobody else.
    assert is_confined(account, account.guard(ACT, policy=mine))


FAILING = {
    "no-seccomp": ["--no-seccomp"],
    "seccomp-refused": ["--fail", "seccomp=EPERM"],
    "layers-full": ["--layers", "16"],
    "restrict-refused": ["--fail", "landlock_restrict_self=E2BIG"],
    "ruleset-refused": ["--fail", "landlock_create_ruleset=ENOMEM"],
    "rules-refused": ["--fail", "landlock_add_rule=EINVAL"],
    "no-new-privs-refused": ["--fail", "prctl=EPERM"],
    "rhel8": ["--like", "rhel8"],
    "sles15": ["--like", "sles15"],
}


@pytest.mark.parametrize("plan", [False, True], ids=["empty-cache", "with-a-plan"])
@pytest.mark.parametrize("host", FAILING)
def test_whatever_the_kernel_refuses_nothing_starts(account: Account, mine: str, host: str, plan: bool) -> None:
    if plan:
        assert is_confined(account, account.guard(ACT, policy=mine))
    done = on(account, FAILING[host], ["--policy", mine], ACT)
    assert_refused(account, done)
    refusals = events(account, "start-refused")
    assert refusals[-1]["verdict"] == "denied"


@pytest.mark.parametrize("abi", range(1, 8))
def test_each_landlock_abi_starts_and_says_what_is_missing(account: Account, abi: int) -> None:
    lines = [POLICY, "[on_fault]", 'bind = "warn"', 'connect = "warn"', 'unix_sockets = "warn"', 'reason = "older"']
    policy = account.write(account.home / "older.toml", "\n".join(lines))
    done = on(account, ["--abi", str(abi)], ["--policy", str(policy)], ACT)
    assert is_confined(account, done)
    told = events(account, "session-start")[-1]["detail"]
    missing = {control: " ".join(status["missing"]) for control, status in told["status"].items()}
    for need, control in ((2, "files"), (3, "files"), (5, "files"), (4, "bind"), (4, "connect"), (6, "processes")):
        assert (f"Landlock ABI {abi}, this needs {need}" in missing[control]) == (abi < need), missing[control]
    if abi < 4:
        assert "guard: bind: NOT ENFORCED: " in done.stderr
        strict = account.write(account.home / "strict.toml", POLICY)
        assert_refused(account, on(account, ["--abi", str(abi)], ["--policy", str(strict)], ACT), "bind, connect")


# --require ----------------------------------------------------------------------------------------------

HELD = """schema = 1
name = "held"
extends = "base"
[controls]
files = "off"
metadata = "off"
setuid = "off"
bind = "off"
connect = "off"
unix_sockets = "off"
pipe_to_shell = "off"
processes = "off"
"""


def test_require_is_met_by_enforced_only(account: Account, mine: str) -> None:
    wanted = account.guard(ACT, "--require", "kernel-surface,world-writable", policy=mine)
    assert is_confined(account, wanted)
    for option in ("metadata", "kernel-surface,metadata", "all", "pipe-to-shell"):
        done = account.guard(ACT, "--require", option, policy=mine)
        assert_refused(account, done, "--require ")
    assert "partial" in account.guard(ACT, "--require", "metadata", policy=mine).stderr
    assert "absent" in account.guard(ACT, "--require", "pipe-to-shell", policy=mine).stderr


def test_require_all_means_what_the_plan_asks_for(account: Account) -> None:
    held = str(account.write(account.home / "held.toml", HELD))
    assert account.guard(["echo", "ran"], "--require", "all", policy=held).stdout == "ran\n"
    assert_refused(account, account.guard(ACT, "--require", "files", policy=held), "--require files", "off")


@pytest.mark.parametrize("value", ["nothing", "files,", ",", "Files", "all,nothing", ""])
def test_require_knows_its_words(account: Account, value: str) -> None:
    assert_refused(account, account.guard(ACT, f"--require={value}"))


def test_require_is_refused_in_audit(account: Account) -> None:
    assert_refused(account, account.guard(ACT, "--audit", "--require", "limits"), "--require")


@pytest.mark.parametrize("rule", ["files", "bind"])
def test_on_fault_refuse_refuses_what_is_partial_too(account: Account, rule: str) -> None:
    policy = account.write(account.home / "hard.toml", POLICY + f'[on_fault]\n{rule} = "refuse"\n')
    host = ["--no-userns"] if rule == "files" else []  # without a mask protected places are writable
    done = on(account, host, ["--policy", str(policy)], ACT) if host else account.guard(ACT, policy=str(policy))
    assert_refused(account, done, f"{rule} is only partly enforced")


# Disks --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node_of_module() -> Iterator[Node]:
    node = Node()
    yield node
    node.close()


@pytest.fixture
def node(node_of_module: Node) -> Iterator[Node]:
    yield node_of_module
    node_of_module.clear()


DISKS = {
    "full": ("size=1m", "head -c 2m /dev/zero > {0}/filler"),
    # An event's line begins to fit: half of it must not stay.
    "full-within-a-line": ("size=1m", "yes '' | head -c 3000 > {0}/events.jsonl; head -c 2m /dev/zero > {0}/filler"),
    "without-inodes": ("size=1m,nr_inodes=3", "touch {0}/a {0}/b {0}/c"),
    "read-only": ("size=1m", "mount -o remount,ro {0}"),
}


@pytest.fixture
def disk(node: Node, account: Account, request: pytest.FixtureRequest) -> Iterator[str]:
    """A small file system of the account's, brought into a state by the parameter."""
    options, script = DISKS[request.param]
    where = f"/var/lib/guard/{account.name}"
    who = f"uid={account.uid},gid={account.gid},mode=700"
    done = node.root("sh", "-c", f"mkdir {where} && mount -t tmpfs -o {options},{who} small {where}")
    assert done.returncode == 0, done.stderr
    node.root("sh", "-c", script.format(where))
    node.root("sh", "-c", f"chown {account.uid} {where}/*")
    yield where
    node.root("umount", where)


@pytest.mark.root
@pytest.mark.parametrize("disk", DISKS, indirect=True)
def test_with_state_that_cannot_be_written_the_session_starts_confined(
    node: Node, account: Account, mine: str, disk: str
) -> None:
    done = node.guard(account, ACT, "--policy", mine, "--state", disk)
    assert done.returncode == 0, done.stderr
    assert is_confined(account, done)
    assert "could not be recorded" in done.stderr
    assert node.root("sh", "-c", f"ls {disk}/plans/*.plan").returncode != 0
    assert node.root("sh", "-c", f"cat {disk}/events.jsonl").stdout.strip() == ""


@pytest.mark.root
@pytest.mark.parametrize("disk", DISKS, indirect=True)
def test_events_refuse_keeps_a_start_that_cannot_be_recorded(node: Node, account: Account, disk: str) -> None:
    strict = account.write(account.home / "told.toml", POLICY + '[on_fault]\nevents = "refuse"\n')
    assert is_confined(account, account.guard(ACT, policy=str(strict)))
    done = node.guard(account, ACT, "--policy", str(strict), "--state", disk)
    assert_refused(account, done, "cannot be recorded")


@pytest.mark.root
@pytest.mark.parametrize("disk", ["full", "full-within-a-line"], indirect=True)
def test_events_that_were_lost_are_counted_and_told_later(node: Node, account: Account, mine: str, disk: str) -> None:
    for _ in range(3):
        assert "could not be recorded" in node.guard(account, ACT, "--policy", mine, "--state", disk).stderr
    node.root("rm", f"{disk}/filler")
    for _ in range(2):  # told once, and not again
        assert is_confined(account, node.guard(account, ACT, "--policy", mine, "--state", disk))
        (account.state / "events.jsonl").unlink(missing_ok=True)
        account.write(account.state / "events.jsonl", node.root("cat", f"{disk}/events.jsonl").stdout)
        told = events(account, "events-lost")
        assert {each["control"] for each in told} == {"telemetry"}
        assert sum(each["detail"]["lost"] for each in told) == 3
    (account.state / "events.jsonl").unlink()


@pytest.mark.root
def test_without_any_state_directory_the_session_starts_confined(node: Node, account: Account, mine: str) -> None:
    for where in ("/var/lib/guard/of/nobody", "/proc/nothing", "/etc/guard/x"):
        done = node.guard(account, ACT, "--policy", mine, "--state", where)
        assert done.returncode == 0, done.stderr
        assert is_confined(account, done)
        assert "could not be recorded" in done.stderr


def test_a_file_where_the_state_directory_should_be_is_no_way_out(account: Account, mine: str) -> None:
    where = account.write(account.home / "file", "x")
    done = account.guard(ACT, "--state", str(where), policy=mine)
    if done.returncode == 0:
        assert is_confined(account, done)
    else:
        assert_refused(account, done, str(where))


@pytest.mark.root
def test_without_a_place_for_temporary_files_nothing_starts(node: Node, account: Account, mine: str) -> None:
    places = ("/tmp", "/dev/shm", "/var/tmp")
    if GUARD.startswith(tuple(f"{place}/" for place in places)):
        pytest.skip("what is taken away here is where guard lies")
    state = account.directory("state")
    try:
        for count in range(1, 4):
            node.root("mount", "-t", "tmpfs", "-o", "ro,mode=1777", "none", places[count - 1])
            done = node.guard(account, ACT, "--policy", mine, "--state", str(state))
            if count < 3:
                assert is_confined(account, done)
            else:
                assert_refused(account, done, "temporary", "Read-only file system")
    finally:
        for place in places:
            node.root("umount", place)
        shutil.rmtree(state)


# Every single write -------------------------------------------------------------------------------------

WRITES = re.compile(r"^(mkdir|rename|openat|write|ftruncate|fsync)\((.*)= ", re.MULTILINE)


def traced(account: Account, mine: str, *inject: str) -> tuple[subprocess.CompletedProcess[str], str]:
    log = account.home / "trace"
    log.unlink(missing_ok=True)
    calls = "mkdir,rename,openat,write,ftruncate,fsync,execve"
    done = account.command(
        ["strace", "-o", str(log), "-e", f"trace={calls}", *inject, LAUNCHER, "run", "--policy", mine, "--", *ACT]
    )
    return done, log.read_text(errors="replace") if log.exists() else ""


@pytest.mark.parametrize("error", ["EDQUOT", "EROFS", "ENOSPC"] if LONG else ["EDQUOT"])
def test_no_failing_write_makes_a_start_unconfined(account: Account, mine: str, error: str) -> None:
    if not shutil.which("strace"):
        pytest.skip("needs strace")
    done, log = traced(account, mine)
    if "strace:" in done.stderr:
        pytest.skip(f"strace does not work here: {done.stderr.strip()}")
    assert is_confined(account, done)
    count: dict[str, int] = {}
    points: list[tuple[str, int, str]] = []
    execs = 0
    for line in log.splitlines():
        name = line.partition("(")[0]
        execs += name == "execve"
        if execs > 1:
            break  # from here on it is the command's own
        count[name] = count.get(name, 0) + 1
        own = str(account.state) in line or "/guard-" in line or "O_CREAT" in line
        if name in ("mkdir", "rename", "ftruncate", "fsync") or (name == "openat" and "O_CREAT" in line and own):
            points.append((name, count[name], line))
        if name == "write" and not line.startswith(("write(1,", "write(2,")):
            points.append((name, count[name], line))
    assert {name for name, _, _ in points} >= {"mkdir", "rename", "openat", "write"}
    recorded = 0
    for name, number, line in points:
        shutil.rmtree(account.state / "plans", ignore_errors=True)
        (account.home / "outside").unlink(missing_ok=True)
        done, log = traced(account, mine, "-e", f"inject={name}:error={error}:when={number}")
        assert f"{error} " in log, line
        if done.returncode == 0:
            assert is_confined(account, done), line
            recorded += "could not be recorded" in done.stderr
        else:
            assert_refused(account, done)
        if str(account.state) in line and "/proc/" not in line:
            assert done.returncode == 0, (line, done.stderr)
    assert recorded, "the event's own write is among them"
