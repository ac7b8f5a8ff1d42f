"""guard-exec makes again what the launcher has made before, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guard.confine.written import MAGIC
from tests.conftest import GUARD, LAUNCHER, LONG, ROOT_HERE, Account
from tests.exec import written

pytestmark = pytest.mark.usefixtures("same_users")
POLICIES = ("alone", "login-node")


def _policy(account: Account, name: str) -> str:
    return account.alone if name == "alone" else name


def _run(account: Account, program: Path, project: Path, policy: str, *command: str, **more: Any) -> tuple[int, str]:
    env = {"GUARD_DEBUG": "1", **more.pop("env", {})}  # says why it left a start to the launcher
    done = account.command([str(program), "run", "--policy", policy, "--", *command], cwd=project, env=env, **more)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", POLICIES)
def test_a_start_that_was_made_before_needs_no_launcher_and_is_confined(
    account: Account, project: Path, exec_alone: Path, name: str
) -> None:
    policy = _policy(account, name)
    key = account.write(account.home / ".ssh/id_test", "secret")
    try:
        written.start_of(account, project, policy)
        script = f"echo x > inside && ! cat {key} && ! touch {account.home}/outside && grep -c '^NoNewPrivs:.1' /proc/self/status"
        code, said = _run(account, exec_alone, project, policy, "sh", "-c", script)
        assert code == 0, said
        assert (project / "inside").read_text() == "x\n"
        assert account.command(["cat", str(key)]).stdout == "secret"
        assert account.command(["touch", f"{account.home}/outside"]).returncode == 0
    finally:
        shutil.rmtree(key.parent)
        (account.home / "outside").unlink(missing_ok=True)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    "command", [["sh", "-c", "exit 42"], ["sh", "-c", "kill -TERM $$"], ["sh", "-c", "kill -KILL $$"]]
)
def test_the_end_is_the_command_s(
    account: Account, project: Path, exec_alone: Path, name: str, command: list[str]
) -> None:
    policy = _policy(account, name)
    written.start_of(account, project, policy)
    bare = account.command(command, cwd=project).returncode
    assert _run(account, exec_alone, project, policy, *command)[0] == bare


def test_what_is_no_program_for_it_is_the_launcher_s(account: Account, project: Path, exec_alone: Path) -> None:
    written.start_of(account, project, account.alone)
    script = account.write(project / "plain", "echo without an interpreter line\n", 0o755)
    code, said = _run(account, exec_alone, project, account.alone, str(script))
    assert code == 0, said
    assert _run(account, exec_alone, project, account.alone, "no-such-program")[0] == 125
    for name, code in (("no-such-program", 127), (str(project), 126)):
        assert _run(account, Path(GUARD), project, account.alone, name)[0] == code


def test_a_program_that_the_policy_does_not_let_run_is_said_and_on_record(
    account: Account, project: Path, exec_alone: Path
) -> None:
    written.start_of(account, project, account.alone)
    place = account.directory("outside", Path("/var/tmp"))
    program = Path(shutil.copy("/bin/true", place / "true"))
    code, said = _run(account, exec_alone, project, account.alone, str(program))
    last = json.loads((account.state / "events.jsonl").read_text().splitlines()[-1])
    shutil.rmtree(place)
    assert code == 126
    assert f"the policy alone does not let {program} be executed" in said
    assert (last["rule"], last["detail"], last["seq"]) == ("session-stop", {"exit": 126}, 2)


def test_the_event_is_the_launcher_s(account: Account, project: Path, exec_alone: Path) -> None:
    written.start_of(account, project, "login-node")
    events = account.state / "events.jsonl"
    lines = []
    for program in (GUARD.replace("/bin/", "/libexec/"), str(exec_alone)):
        before = len(events.read_text().splitlines()) if events.exists() else 0
        assert _run(account, Path(program), project, "login-node", "sh", "-c", ":")[0] == 0
        (line,) = events.read_text().splitlines()[before:]
        lines.append(line)
    made, again = map(json.loads, lines)
    assert list(made) == list(again)
    for event in (made, again):
        assert event["producer"] == f"run:{event['tree']['session']}"
        for part, key in ((event, "id"), (event, "time"), (event, "producer"), (event["tree"], "session"),
                          (event["tree"], "root_pid"), (event["process"], "pid")):  # fmt: skip
            assert part.pop(key)
    assert made == again
    assert len({json.loads(line)["id"] for line in lines}) == 2


Change = Callable[[Account, Path, Path], Callable[[], None]]


def _makes(relative: str) -> Change:
    def change(account: Account, project: Path, start: Path) -> Callable[[], None]:
        path = account.write(project / relative.removeprefix("{project}/"), "x") if "{project}" in relative else (
            account.write(account.home / relative, "x"))  # fmt: skip
        top = account.home / relative.split("/")[0]
        return lambda: path.unlink() if "{project}" in relative else shutil.rmtree(top)

    return change


def _mode(which: str, mode: int) -> Change:
    def change(account: Account, project: Path, start: Path) -> Callable[[], None]:
        path = {"start": start, "shelf": start.parent, "state": account.state}[which]
        before = path.stat().st_mode & 0o7777
        path.chmod(mode)
        return lambda: path.chmod(before)

    return change


def _owner(account: Account, project: Path, start: Path) -> Callable[[], None]:
    if not ROOT_HERE:
        pytest.skip("needs root: gives a file away")
    os.chown(start, 65534, 65534)
    return lambda: None


def _link(account: Account, project: Path, start: Path) -> Callable[[], None]:
    start.rename(start.with_name("aside"))
    start.symlink_to("aside")
    return lambda: None


def _touch_policy(account: Account, project: Path, start: Path) -> Callable[[], None]:
    path = Path(account.alone)
    os.utime(path, ns=(1, 1))
    return lambda: None


def _no_plan(account: Account, project: Path, start: Path) -> Callable[[], None]:
    shutil.rmtree(account.state / "plans")
    return lambda: None


def _site(account: Account, project: Path, start: Path) -> Callable[[], None]:
    path = account.config / "site.toml"
    path.write_text("schema = 1\n")
    return path.unlink


def _another_day(account: Account, project: Path, start: Path) -> Callable[[], None]:
    steps = written.steps_of(start.read_bytes())
    for letter, fields in steps:
        if letter == b"q" and fields[0] == b"t":
            fields[1] = b"1700000000"
    start.write_bytes(written.with_head(written.body_of(steps)))
    return lambda: None


def _another_key(account: Account, project: Path, start: Path) -> Callable[[], None]:
    steps = written.steps_of(start.read_bytes())
    steps[0][1][0] = steps[0][1][0].replace(b"login-node", b"login-nods").replace(b"alone", b"alonf")
    start.write_bytes(written.with_head(written.body_of(steps)))
    return lambda: None


CHANGES: dict[str, Change] = {
    "a denied place appears": _makes(".ssh/id"),
    "a repository appears": _makes("{project}/.git/hooks/x"),
    "a project's policy appears": _makes("{project}/.guard.toml"),
    "a start-up file appears": _makes(".config/autostart/x"),
    "the policy is another": _touch_policy,
    "the plan is gone": _no_plan,
    "a site decides": _site,
    "the file may be written by a group": _mode("start", 0o664),
    "others may write beside it": _mode("shelf", 0o777),
    "others may write in the state": _mode("state", 0o777),
    "the file is another user's": _owner,
    "the file is a link": _link,
    "its day is over": _another_day,
    "another asked": _another_key,
}


@pytest.mark.parametrize("what", CHANGES)
def test_where_anything_is_otherwise_the_launcher_decides_anew(
    account: Account, project: Path, exec_alone: Path, what: str
) -> None:
    for left in (".ssh", ".config/autostart"):  # by another module's tests: what appears must not be there
        shutil.rmtree(account.home / left, ignore_errors=True)
    start = written.start_of(account, project, account.alone)
    assert _run(account, exec_alone, project, account.alone, "touch", "before")[0] == 0  # positive control
    undo = CHANGES[what](account, project, start)
    try:
        code, said = _run(account, exec_alone, project, account.alone, "touch", "after")
    finally:
        undo()
    assert (code, "not started" in said) == (125, True), said
    assert (project / "before").exists()
    assert not (project / "after").exists()


@pytest.mark.parametrize("more", [{"HOME": "/var/tmp"}, {"GUARD_CONFIG_DIR": "/nonexistent"}, {"SLURM_JOB_ID": "7"},
                                  {"MAKEFLAGS": "--jobserver-auth=3,4"}])  # fmt: skip
def test_another_environment_is_another_start(
    account: Account, project: Path, exec_alone: Path, more: dict[str, str]
) -> None:
    written.start_of(account, project, account.alone)
    assert _run(account, exec_alone, project, account.alone, "true")[0] == 0
    assert _run(account, exec_alone, project, account.alone, "true", env=more)[0] == 125


@pytest.mark.parametrize(
    "words", [["--audit"], ["--state", "/tmp/x"], ["--recording", "x"], ["--tell=1"], ["--what"], []]
)
def test_words_that_it_does_not_know_are_the_launcher_s(
    account: Account, project: Path, exec_alone: Path, words: list[str]
) -> None:
    command = [str(exec_alone), "run", *words, "--", "true"] if words else [str(exec_alone), "doctor"]
    done = account.command(command, cwd=project)
    assert done.returncode == 125
    assert "/nonexistent/launcher" in done.stderr


def test_a_start_inside_another_is_the_launcher_s(account: Account, project: Path, exec_alone: Path) -> None:
    written.start_of(account, project, account.alone)
    code, said = _run(account, exec_alone, project, account.alone, str(exec_alone), "run", "--", "true")
    assert code in (125, 126)
    assert "guard" in said


def test_an_audited_session_ends_by_forgetting_the_starts(account: Account, project: Path) -> None:
    start = written.start_of(account, project, account.alone)
    assert account.guard(["true"], "--audit", policy=account.alone, cwd=project).returncode == 0
    assert not start.exists()


def test_a_damaged_file_starts_nothing(account: Account, project: Path, exec_alone: Path) -> None:
    start = written.start_of(account, project, account.alone)
    whole = start.read_bytes()
    assert _run(account, exec_alone, project, account.alone, "true")[0] == 0
    every = range(len(whole)) if LONG else range(0, len(whole), len(whole) // 60)
    for at in (*range(len(MAGIC) + 8), *every):
        start.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        code, said = _run(account, exec_alone, project, account.alone, "touch", "started")
        assert code == 125, (at, said)
    for size in (0, 1, len(MAGIC), len(MAGIC) + 8, len(whole) // 2, len(whole) - 1):
        start.write_bytes(whole[:size])
        assert _run(account, exec_alone, project, account.alone, "touch", "started")[0] == 125
    assert not (project / "started").exists()
    start.write_bytes(whole)
    assert _run(account, exec_alone, project, account.alone, "true")[0] == 0


def test_a_daemon_that_let_go_of_the_lock_keeps_its_directory(
    account: Account, project: Path, exec_alone: Path
) -> None:
    """Its environment names it: a sweep from within a user namespace would not see that."""
    written.start_of(account, project, account.alone)
    daemon = 'echo "$TMPDIR"; (exec 0<&- 1>&- 2>&-; for fd in /proc/self/fd/*; do n=${fd##*/}; eval "exec $n<&-"; done; exec sleep 60) &'
    done = account.command([str(exec_alone), "run", "--policy", account.alone, "--", "bash", "-c", daemon], cwd=project)
    place = Path(done.stdout.strip())
    try:
        for program in (exec_alone, Path(GUARD), Path(GUARD.replace("/bin/", "/libexec/"))):
            assert _run(account, program, project, account.alone, "true")[0] == 0
        # What these left is swept once nobody is left of them; the daemon's is not.
        assert place.is_dir()
    finally:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and f"TMPDIR={place}".encode() in _environment(entry):
                os.kill(int(entry.name), 9)


@pytest.mark.parametrize("name", POLICIES)
def test_what_many_dead_sessions_left_is_swept_and_what_is_named_stays(
    account: Account, project: Path, exec_alone: Path, name: str
) -> None:
    policy = _policy(account, name)
    written.start_of(account, project, policy)
    code, said = _run(account, exec_alone, project, policy, "sh", "-c", 'dirname "$TMPDIR"')
    assert code == 0, said
    places = [Path(said.splitlines()[0]) / f"left{number}" for number in range(5)]
    for place in places:
        account.write(place / "deep/file", "x")
        os.utime(place, (1, 1))
    named = account.environment({"TMPDIR": str(places[2])})
    with subprocess.Popen(["sleep", "60"], env=named, **account.identity()) as daemon:  # type: ignore[call-overload]
        try:
            assert _run(account, exec_alone, project, policy, "true")[0] == 0
            end = time.monotonic() + 30
            while sum(place.exists() for place in places) > 1 and time.monotonic() < end:
                time.sleep(0.05)
            assert [place for place in places if place.exists()] == [places[2]]
        finally:
            daemon.kill()
    shutil.rmtree(places[2])


@pytest.mark.parametrize("is_compiled", [True, False])
def test_few_directories_just_left_wait_for_a_start_that_finds_more(
    account: Account, project: Path, exec_alone: Path, is_compiled: bool
) -> None:
    written.start_of(account, project, account.alone)
    program = exec_alone if is_compiled else Path(LAUNCHER)
    code, said = _run(account, program, project, account.alone, "sh", "-c", 'dirname "$TMPDIR"')
    assert code == 0, said
    shelf = Path(said.splitlines()[0])
    for place in shelf.iterdir():
        shutil.rmtree(place)

    def left(count: int) -> set[Path]:
        for number in range(count):
            account.write(shelf / f"left{number}/file", "x")
        return {shelf / f"left{number}" for number in range(count)}

    few = left(3)
    assert _run(account, program, project, account.alone, "true")[0] == 0
    assert few <= set(shelf.iterdir())
    many = left(8)
    assert _run(account, program, project, account.alone, "true")[0] == 0
    end = time.monotonic() + 30
    while many & set(shelf.iterdir()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not many & set(shelf.iterdir())


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


_CALLS = ("mkdir", "openat", "openat2", "open", "write", "unshare", "mount", "chdir", "flock", "fcntl", "close_range",
          "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "prctl", "capset", "seccomp",
          "prlimit64", "setrlimit", "getrandom", "fstat", "newfstatat", "readlink", "getdents64")  # fmt: skip


def test_whatever_call_fails_nothing_starts_unconfined(account: Account, project: Path, exec_alone: Path) -> None:
    """Each call up to the command's execve is made to fail once; those of the questions in a sample."""
    if not shutil.which("strace"):
        pytest.skip("needs strace")
    outside = account.home / "outside"
    command = ["run", "--policy", account.alone, "--", "sh", "-c", f"echo x > {outside}; echo within"]
    log = project / "trace"

    def traced(*inject: str) -> tuple[int, str, list[str]]:
        log.unlink(missing_ok=True)
        words = ["strace", "-o", str(log), "-e", f"trace={','.join(_CALLS)},execve", *inject, str(exec_alone), *command]
        done = account.command(words, cwd=project, env={"GUARD_DEBUG": "1"})
        return done.returncode, done.stdout + done.stderr, log.read_text(errors="replace").splitlines()

    written.start_of(account, project, account.alone)
    assert _run(account, exec_alone, project, account.alone, "true")[0] == 0
    code, said, lines = traced()
    if "strace:" in said:
        pytest.skip(f"strace does not work here: {said.strip()}")
    assert "within" in said, said
    assert not outside.exists()
    assert account.command(["sh", "-c", f"echo x > {outside}"]).returncode == 0  # positive control
    outside.unlink()
    own = lines[1 : next(at for at, line in enumerate(lines[1:], 1) if line.startswith("execve("))]
    count: dict[str, int] = {}
    refused = 0
    for line in own:
        name = line.partition("(")[0]
        if name not in _CALLS:
            continue  # a signal
        count[name] = number = count.get(name, 0) + 1
        asks = name in ("newfstatat", "readlink", "openat", "fstat", "landlock_add_rule", "openat2", "getdents64")
        if asks and not LONG and number % 23 != 1:
            continue
        code, said, lines = traced("-e", f"inject={name}:error=EPERM:when={number}")
        assert not outside.exists(), line
        if "within" not in said:  # what fails without harm: a sweep's, or one that did not come this time
            assert code == 125, (line, code, said)
            refused += 1
    assert refused > 10


# What fails, and whether the start is on record by then: before, the launcher makes it; after, nobody does.
_BESIDE = {
    "unshare": False,
    "mount": False,
    "landlock_add_rule": False,
    "landlock_restrict_self": True,
    "seccomp": True,
}


@pytest.mark.parametrize("call", _BESIDE)
def test_what_fails_beside_the_supervisor_starts_nothing(
    account: Account, project: Path, exec_alone: Path, call: str
) -> None:
    if not shutil.which("strace"):
        pytest.skip("needs strace")
    start = written.start_of(account, project, "login-node")
    if call in ("unshare", "mount") and b"u" not in {letter for letter, _ in written.steps_of(start.read_bytes())}:
        pytest.skip("no mask here")
    events = account.state / "events.jsonl"
    before = len(events.read_text().splitlines()) if events.exists() else 0
    traced = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:error=EPERM"]
    words = [str(exec_alone), "run", "--policy", "login-node", "--", "touch", "started"]
    done = account.command([*traced, *words], cwd=project, env={"GUARD_DEBUG": "1"})
    said = [json.loads(line)["rule"] for line in events.read_text().splitlines()[before:]] if events.exists() else []
    assert done.returncode == 125, done.stderr
    assert ("/nonexistent/launcher" in done.stderr) == (not _BESIDE[call]), done.stderr
    assert said == (["session-start", "start-refused"] if _BESIDE[call] else [])
    assert not (project / "started").exists()
    assert _run(account, exec_alone, project, "login-node", "touch", "started")[0] == 0  # positive control
    assert (project / "started").exists()


@pytest.mark.parametrize("program", ["/nonexistent/python", "/bin/false", "/bin/true"])
def test_without_its_supervisor_nothing_starts(account: Account, project: Path, exec_alone: Path, program: str) -> None:
    start = written.start_of(account, project, "login-node")
    whole = start.read_bytes()
    steps = written.steps_of(whole)
    next(fields for letter, fields in steps if letter == b"S")[0] = program.encode()
    start.write_bytes(written.with_head(written.body_of(steps)))
    code, said = _run(account, exec_alone, project, "login-node", "touch", "started")
    assert code in (1, 125), said
    assert not (project / "started").exists()
    start.write_bytes(whole)
    assert _run(account, exec_alone, project, "login-node", "touch", "started")[0] == 0  # positive control
