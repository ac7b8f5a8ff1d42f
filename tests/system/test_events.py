"""What is recorded of a session: its start with all that held, refusals, and no text that nobody redacted."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GUARD, Account
from tests.system.node import events

KEYS = {
    "schema", "id", "time", "host", "boot", "producer", "seq", "origin", "control", "rule", "severity", "verdict",
    "tree", "process", "policy", "detail", "mitre", "message",
}  # fmt: skip
CONTROLS = {
    "files", "metadata", "world-writable", "setuid", "bind", "connect", "unix-sockets", "pipe-to-shell",
    "processes", "kernel-surface", "limits",
}  # fmt: skip
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
SECRET = "hunter2-s3cr3t"


@pytest.fixture(autouse=True)
def _no_events(account: Account) -> None:
    for name in ("events.jsonl", "events.lost"):
        (account.state / name).unlink(missing_ok=True)


@pytest.fixture
def folder(account: Account) -> Iterator[Path]:
    made = account.directory("events")
    yield made
    shutil.rmtree(made)


def one(account: Account, rule: str) -> dict[str, Any]:
    (found,) = events(account, rule)
    return found


def assert_whole(event: dict[str, Any], account: Account) -> None:
    """Every key that the contract names, each in its form."""
    assert set(event) == KEYS
    assert event["schema"] == 1
    assert UUID7.fullmatch(event["id"])
    assert TIME.fullmatch(event["time"])
    assert event["host"] == os.uname().nodename
    assert event["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert event["origin"] == "user"
    assert event["severity"] in ("info", "low", "medium", "high", "critical")
    assert event["verdict"] in ("observed", "would_deny", "denied", "rewritten", "killed")
    assert {"session", "harness", "root_pid", "uid", "user"} <= set(event["tree"])
    assert event["tree"]["uid"] == account.uid
    assert event["producer"] == f"run:{event['tree']['session']}"
    assert set(event["process"]) == {"pid", "ppid", "exe", "argv", "argc", "cwd"}
    assert set(event["policy"]) == {"name", "digest"}
    assert event["mitre"] == []
    assert len(event["message"]) < 100
    assert "\n" not in event["message"]


# The start ----------------------------------------------------------------------------------------------


def test_a_start_says_what_held_and_who_decided(account: Account, project: Path) -> None:
    done = account.guard(["true"], policy="login-node", cwd=project)
    assert done.returncode == 0
    started = one(account, "session-start")
    assert_whole(started, account)
    assert (started["control"], started["severity"], started["verdict"]) == ("session", "info", "observed")
    assert started["seq"] == 1
    assert started["tree"]["user"] == account.name
    detail = started["detail"]
    version = account.cli("--version").stdout.split()[-1]
    assert detail["version"] == version
    assert re.fullmatch("[0-9a-f]{64}", detail["plan"])
    assert re.fullmatch("[0-9a-f]{64}", started["policy"]["digest"])
    assert started["policy"]["name"] == "login-node"
    assert "login-node.toml" in detail["layers"]
    assert "base.toml" in detail["layers"]
    assert detail["exceptions"] == []
    assert detail["assigned_by"] == "--policy"
    assert set(detail["modes"]) == CONTROLS
    assert set(detail["modes"].values()) <= {"enforce", "observe", "off"}
    assert set(detail["status"]) == CONTROLS
    for control, status in detail["status"].items():
        assert set(status) == {"state", "missing"}
        assert status["state"] in ("enforced", "partial", "absent", "observe", "off"), control
        assert bool(status["missing"]) or status["state"] not in ("partial", "absent"), control
    assert detail["audit"] is False
    assert detail["last_good"] is False


def test_the_root_process_is_the_command_itself(account: Account) -> None:
    done = account.guard(["sh", "-c", "echo $$ $GUARD_SESSION"], policy=account.alone)
    pid, session = done.stdout.split()
    started = one(account, "session-start")
    assert started["tree"]["root_pid"] == int(pid) == started["process"]["pid"]
    assert started["tree"]["session"] == session


def test_an_unsupervised_run_writes_its_start_only(account: Account) -> None:
    assert account.guard(["sh", "-c", "exit 3"], policy=account.alone).returncode == 3
    assert [each["rule"] for each in events(account)] == ["session-start"]


def test_a_digest_can_be_turned_back_into_the_policys_text(account: Account, folder: Path) -> None:
    policy = account.write(
        folder / "p.toml", 'schema = 1\nname = "p"\nextends = "base"\n[files]\ndeny = ["{home}/q"]\n'
    )
    assert account.guard(["true"], policy=str(policy)).returncode == 0
    digest = one(account, "session-start")["policy"]["digest"]
    text = (account.state / "policies" / f"{digest}.toml").read_text()
    assert "{home}/q" in text
    again = account.write(folder / "again.toml", text)
    done = account.cli("policy", "lint", str(again))
    assert "error" not in done.stdout, done.stdout


def test_layers_of_the_callers_own_are_named_without_their_paths(account: Account, folder: Path) -> None:
    private = account.write(folder / f"{SECRET}.toml", 'schema = 1\nname = "p"\nextends = "login-node"\n')
    account.write(folder / ".guard.toml", 'schema = 1\n[files]\ndeny = ["{project}/x"]\n')
    layer = account.write(account.home / ".config/guard/policy.toml", "schema = 1\n")
    try:
        assert account.guard(["true"], policy=str(private), cwd=folder).returncode == 0
    finally:
        layer.unlink()
    named = one(account, "session-start")["detail"]["layers"]
    assert "{project}/.guard.toml" in named
    assert "{home}/.config/guard/policy.toml" in named
    assert "[WITHHELD]" in named
    assert not [name for name in named if name.startswith("/")]


def test_a_harness_and_a_slurm_job_are_told(account: Account, folder: Path) -> None:
    claude = account.write(folder / "claude", "#!/bin/sh\nexit 0\n", 0o755)
    assert account.guard([str(claude)], env={"SLURM_JOB_ID": "4711"}, cwd=folder).returncode == 0
    tree = one(account, "session-start")["tree"]
    assert tree["harness"] == "claude"
    assert tree["slurm_job_id"] == 4711


@pytest.mark.parametrize("value", ["", "x", "-1", "9" * 6000, "1; rm", "\u0661"])
def test_an_odd_job_number_is_left_out(account: Account, value: str) -> None:
    assert account.guard(["true"], env={"SLURM_JOB_ID": value}).returncode == 0
    assert "slurm_job_id" not in one(account, "session-start")["tree"]


# Refusals -----------------------------------------------------------------------------------------------

REFUSED: dict[str, list[str]] = {
    "usage": ["--policy"],
    "an-unknown-option": ["--frobnicate", "--", "true"],
    "an-unknown-policy": ["--policy", "no-such-policy", "--", "true"],
    "a-policy-that-is-not-there": ["--policy", "/nowhere/policy.toml", "--", "true"],
    "a-required-control": ["--require", "pipe-to-shell", "--", "true"],
    "a-project-that-cannot-be": ["--project", "/", "--", "true"],
}


@pytest.mark.parametrize("how", REFUSED)
def test_a_refusal_is_recorded(account: Account, how: str) -> None:
    done = account.command([GUARD, "run", *REFUSED[how]])
    assert done.returncode == 125
    assert done.stderr.startswith("guard: ")
    assert "guard: not started: " in done.stderr
    refused = one(account, "start-refused")
    assert_whole(refused, account)
    assert (refused["verdict"], refused["severity"]) == ("denied", "medium")
    assert refused["detail"]["reason"] == "[WITHHELD]"
    assert refused["seq"] == 1
    assert not events(account, "session-start")


def test_a_refusal_names_its_control(account: Account) -> None:
    account.guard(["true"], "--require", "pipe-to-shell")
    refused = one(account, "start-refused")
    assert refused["control"] == "pipe-to-shell"
    assert refused["detail"]["control"] == "pipe-to-shell"


def test_a_command_that_is_not_there_starts_no_session(account: Account, folder: Path) -> None:
    account.write(folder / "plain", "x", 0o644)
    for argv, code in ((["no-such-command"], 127), ([str(folder / "plain")], 126), ([str(folder)], 126)):
        done = account.guard(argv, cwd=folder)
        assert done.returncode == code
    assert not events(account, "session-start")


# Nothing unredacted -------------------------------------------------------------------------------------


def test_no_text_of_the_callers_is_stored(account: Account) -> None:
    folder = account.directory(SECRET)
    try:
        env = {"TOKEN": SECRET, "SLURM_JOB_ID": SECRET}
        options = ("--session", SECRET, "--project", str(folder))
        started = account.guard(["sh", "-c", "exit 0", "--password", SECRET], *options, cwd=folder, env=env)
        assert started.returncode == 0, started.stderr
        account.guard(["true", SECRET], "--require", "metadata", cwd=folder)
        account.guard(["true"], policy=f"./{SECRET}.toml", cwd=folder)
        account.guard(["true"], policy=SECRET, cwd=folder)
        account.guard(["true", SECRET], "--audit", cwd=folder)
        account.guard([f"/nowhere/{SECRET}"], cwd=folder)
        text = (account.state / "events.jsonl").read_text()
        assert SECRET not in text
        assert "hunter2" not in text
        assert len(text.splitlines()) >= 5
        event = events(account, "session-start")[0]
        assert event["process"]["argv"] == ["sh"]
        assert event["process"]["argc"] == 5
        assert event["process"]["cwd"] == "[WITHHELD]"
        assert event["detail"]["label"] is True
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["my secret", "p\nq", "päss", "tok:en", "x" * 65, '"quoted"', "$(id)"])
def test_a_program_of_an_odd_name_is_not_named(account: Account, folder: Path, name: str) -> None:
    program = account.write(folder / name, "#!/bin/sh\nexit 0\n", 0o755)
    assert account.guard([str(program)], cwd=folder).returncode == 0
    process = one(account, "session-start")["process"]
    assert process["argv"] == ["[WITHHELD]"]
    assert process["exe"] == "[WITHHELD]"


def test_only_the_redactor_makes_redacted_text(account: Account) -> None:
    code = (
        "from guard.redact import Redacted, withhold, program_name\n"
        "for make in (lambda: Redacted('x'), lambda: Redacted('x', object()), lambda: Redacted(str(withhold('x')))):\n"
        "    try:\n        make()\n    except TypeError as error:\n        print(error)\n"
        "print(type(withhold('a') + 'b').__name__, type(withhold('a').lower()).__name__)\n"
        "print(withhold(''), withhold('x'), program_name('/usr/bin/ls'), program_name('a b'))\n"
    )
    done = account.command([str(Path(GUARD).with_name("python")), "-c", code])
    lines = done.stdout.splitlines()
    assert lines[:3] == ["Redacted text comes from guard.redact.redact_text, not from the type itself"] * 3
    assert lines[3:] == ["str str", " [WITHHELD] ls [WITHHELD]"]


# The form of a line -------------------------------------------------------------------------------------

ODD = {
    "quotes": ["echo", '"', "'", "\\", '\\"'],
    "controls": ["echo", "\n", "\r\n", "\t", "\x1b[31m", "\x7f", "\x01"],
    "not-utf-8": ["echo", os.fsdecode(b"\xff\xfe"), os.fsdecode(b"caf\xe9")],
    "separators": ["echo", "\u2028", "\u2029", "\x85", "\ufeff"],
    "empty": ["echo", "", ""],
    "long": ["echo", "x" * 100_000],
    "many": ["echo", *["y"] * 5000],
}


@pytest.mark.parametrize("how", ODD)
def test_every_line_is_json_whatever_is_started(account: Account, how: str) -> None:
    done = account.guard(ODD[how], capture_output=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert done.returncode == 0
    content = (account.state / "events.jsonl").read_bytes()
    assert content.count(b"\n") == 1
    assert content.endswith(b"\n")
    event = json.loads(content.decode("utf-8"))
    assert_whole(event, account)
    assert event["process"]["argc"] == len(ODD[how])


def test_a_working_directory_of_an_odd_name_is_no_trouble(account: Account, folder: Path) -> None:
    odd = os.fsencode(folder) + b'/\xff"\n\x1b'
    os.mkdir(odd)
    if os.geteuid() == 0:
        os.chown(odd, account.uid, account.gid)
    done = account.guard(["sh", "-c", "echo x > f && echo wrote"], cwd=os.fsdecode(odd))
    assert done.stdout == "wrote\n", done.stderr
    assert_whole(one(account, "session-start"), account)


def test_producers_count_from_one_without_gaps(account: Account) -> None:
    for _ in range(3):
        account.guard(["true"])
        account.guard(["sh", "-c", "exit 0"], "--audit")
    by_producer: dict[str, list[int]] = {}
    for event in events(account):
        by_producer.setdefault(event["producer"], []).append(event["seq"])
    assert len(by_producer) == 6
    assert sorted(by_producer.values()) == [[1]] * 3 + [[1, 2]] * 3
    assert len({event["id"] for event in events(account)}) == 9


def test_concurrent_sessions_mix_no_lines(account: Account) -> None:
    line = f"for i in 1 2 3 4 5 6; do {GUARD} run --policy login-node -- true & done; wait"
    assert account.guard(["true"]).returncode == 0  # the plan is at hand
    assert account.command(["sh", "-c", line]).returncode == 0
    found = events(account, "session-start")
    assert len(found) == 7
    for event in found:
        assert_whole(event, account)


def test_the_lines_are_the_users_alone(account: Account) -> None:
    account.guard(["true"])
    about = (account.state / "events.jsonl").stat()
    assert about.st_mode & 0o7777 == 0o600
    assert about.st_uid == account.uid


@pytest.mark.parametrize("kind", ["a-link", "a-fifo", "a-directory"])
def test_a_place_that_is_no_file_is_not_written(account: Account, folder: Path, kind: str) -> None:
    spool = account.state / "events.jsonl"
    victim = account.write(folder / "victim", "mine")
    if kind == "a-link":
        spool.symlink_to(victim)
    elif kind == "a-fifo":
        os.mkfifo(spool)
    else:
        spool.mkdir()
    try:
        done = account.guard(["echo", "ran"])
        assert (done.returncode, done.stdout) == (0, "ran\n")
        assert "could not be recorded" in done.stderr
        assert victim.read_text() == "mine"
    finally:
        spool.rmdir() if kind == "a-directory" else spool.unlink()
        (account.state / "events.lost").unlink(missing_ok=True)


def test_a_session_cannot_write_its_own_record(account: Account, folder: Path) -> None:
    spool = account.state / "events.jsonl"
    done = account.guard(["sh", "-c", f"echo forged >> {spool}; rm -f {spool}; echo started"], cwd=folder)
    assert done.stdout == "started\n"
    assert len(events(account)) == 1
    assert account.command(["sh", "-c", f"echo forged >> {spool}"]).returncode == 0, "without guard it can"
    spool.unlink()
