"""`guard run --recording FILE`: what a session shows is kept, redacted, and the session does not notice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import termios
from pathlib import Path

import pytest

from guard.redact import samples
from tests.conftest import GUARD, Account
from tests.system.terminal import Terminal


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return samples.fill("ghp_<crc62>", random.Random(request.node.name))[0]


def shown(path: Path) -> str:
    """What a player would show."""
    head, *events = [json.loads(line) for line in path.read_text().splitlines()]
    assert head["version"] == 2
    assert [event[0] for event in events] == sorted(event[0] for event in events)
    return "".join(event[2] for event in events if event[1] == "o")


def at_terminal(account: Account, project: Path, *command: str, size: tuple[int, int] | None = None) -> Terminal:
    argv = [GUARD, "run", "--recording", str(account.home / "r.cast"), "--", *command]
    return Terminal(account, argv, project, size=size)


def test_a_key_is_shown_and_not_kept(account: Account, project: Path, key: str) -> None:
    account.write(project / "show.sh", f"printf 'k {key[:9]}'; printf '{key[9:]} end\\n'; printf ok")
    with at_terminal(account, project, "sh", "show.sh") as terminal:
        assert terminal.wait() == 0
        assert f"k {key} end\r\nok" in terminal.output.decode()
    text = shown(account.home / "r.cast")
    assert text.startswith("k [REDACTED:github-token:")
    assert text.endswith("] end\r\nok")
    assert (account.home / "r.cast").stat().st_mode & 0o777 == 0o600


def test_a_key_on_the_command_line_is_not_in_the_head(account: Account, project: Path, key: str) -> None:
    got = account.cli("run", "--recording", str(account.home / "r.cast"), "--", "true", key, cwd=project)
    assert got.returncode == 0, got.stderr
    assert key[8:16] not in (account.home / "r.cast").read_text()


def test_what_is_typed_is_not_kept(account: Account, project: Path) -> None:
    with at_terminal(
        account, project, "sh", "-c", "stty -echo; printf 'Password: '; read x; echo got ${#x}"
    ) as terminal:
        terminal.expect("Password: ")
        terminal.type("hunter2hunter\r")
        assert terminal.wait() == 0
        assert "got 13" in terminal.output.decode()
    assert "hunter" not in (account.home / "r.cast").read_text()


@pytest.mark.parametrize(("script", "code"), [("exit 42", 42), ("kill -TERM $$", -15), ("kill -KILL $$", -9)])
def test_the_end_is_the_commands(account: Account, project: Path, script: str, code: int) -> None:
    with at_terminal(account, project, "sh", "-c", script) as terminal:
        assert terminal.wait() == code
    got = account.cli("run", "--recording", str(account.home / "r.cast"), "--", "sh", "-c", script, cwd=project)
    assert got.returncode == code


def test_interrupt_reaches_the_command_alone(account: Account, project: Path) -> None:
    script = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done"
    with at_terminal(account, project, "sh", "-c", script) as terminal:
        terminal.expect("ready")
        terminal.type("\x03")
        assert terminal.wait() == 7
        assert "caught" in terminal.output.decode()
    with at_terminal(account, project, "sh", "-c", "echo ready; exec sleep 60") as terminal:
        terminal.expect("ready")
        terminal.type("\x03")
        assert terminal.wait() == -signal.SIGINT


def test_the_session_has_a_terminal_of_the_same_size(account: Account, project: Path) -> None:
    script = "trap 'stty size; exit' WINCH; stty size; echo ready; while :; do sleep 0.05; done"
    with at_terminal(account, project, "sh", "-c", script, size=(33, 111)) as terminal:
        assert "33 111" in terminal.expect("ready")
        termios.tcsetwinsize(terminal.master, (44, 122))
        terminal.expect("44 122")
        assert terminal.wait() == 0
    events = [json.loads(line) for line in (account.home / "r.cast").read_text().splitlines()[1:]]
    assert [event[2] for event in events if event[1] == "r"][-1] == "122x44"


def test_a_session_stops_and_goes_on_in_its_shell(account: Account, project: Path) -> None:
    record = account.home / "r.cast"
    with Terminal(account, ["bash", "--norc", "-i"], project) as shell:
        shell.type(f"{GUARD} run --recording {record} -- sh -c 'echo re\"\"ady; read x; echo got $x'\r")
        shell.expect("ready\r\n")
        shell.type("\x1a")
        shell.expect("Stopped")
        shell.type('echo in-be""tween; fg\r')
        shell.expect("in-between")
        shell.expect("guard run")
        shell.type("word\r")
        shell.expect("got word")
        shell.expect("$ ")
        shell.type("stty -a\r")
        assert " icanon" in shell.expect(" echoke")
        shell.type("exit\r")
        assert shell.wait() == 0
    assert "got word" in shown(record)


def test_outputs_that_are_no_terminal_are_byte_equal(account: Account, project: Path, key: str) -> None:
    script = f"printf 'a\\r\\nb\\n\\0\\377{key}\\n'; printf 'error\\n' >&2; cat"
    command = [GUARD, "run", "--recording", str(account.home / "r.cast"), "--", "sh", "-c", script]
    got = subprocess.run(
        command, cwd=project, input=b"typed", capture_output=True, check=False, env=account.environment(), **account.identity(),
    )  # type: ignore[call-overload]  # fmt: skip
    assert got.returncode == 0
    assert got.stdout == b"a\r\nb\n\0\xff" + key.encode() + b"\ntyped"
    assert got.stderr == b"error\n"
    text = shown(account.home / "r.cast")
    assert "error\r\n" in text
    assert key[8:16] not in text


def test_a_reader_that_goes_away_ends_the_command(account: Account, project: Path) -> None:
    command = f"{GUARD} run --recording {account.home}/r.cast -- sh -c 'while :; do echo y || exit; done' | head -1"
    got = account.command(["bash", "-o", "pipefail", "-c", command], cwd=project)
    assert got.stdout == "y\n"
    assert got.returncode == 128 + signal.SIGPIPE


def test_what_is_left_behind_keeps_its_output_and_holds_nobody(account: Account, project: Path) -> None:
    script = "(until [ -e gate ]; do sleep 0.02; done; echo late) & echo early"
    command = f"{GUARD} run --recording {account.home}/r.cast -- sh -c '{script}' > out; cat out; touch gate; until grep -q late out; do sleep 0.02; done"
    got = account.command(["bash", "-c", command], cwd=project)
    assert got.stdout == "early\n"


def test_a_file_that_cannot_be_written_starts_nothing(account: Account, project: Path) -> None:
    got = account.cli("run", "--recording", "/nowhere/r.cast", "--", "touch", "started", cwd=project)
    assert got.returncode == 125
    assert "/nowhere/r.cast" in got.stderr
    assert not (project / "started").exists()


def test_a_device_stays_one(account: Account, project: Path) -> None:
    got = account.cli("run", "--recording", "/dev/null", "--", "echo", "x", cwd=project)
    assert (got.returncode, got.stdout) == (0, "x\n")
    assert not os.path.isfile("/dev/null")


def test_the_session_is_confined_as_without_a_recorder(account: Account, project: Path) -> None:
    """The denial, and that the same write is possible where it is allowed."""
    record = str(account.home / "r.cast")
    got = account.cli(
        "run", "--recording", record, "--", "sh", "-c", "echo x > ~/outside; echo x > inside", cwd=project
    )
    assert "Permission denied" in got.stderr
    assert not (account.home / "outside").exists()
    assert (project / "inside").exists()


def test_a_signal_to_the_recorder_is_for_the_command(account: Account, project: Path) -> None:
    with at_terminal(
        account, project, "sh", "-c", "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    ) as terminal:
        terminal.expect("ready")
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.wait() == 3
        assert "told" in terminal.output.decode()


def test_a_terminal_that_goes_away_ends_the_session(account: Account, project: Path) -> None:
    with at_terminal(
        account, project, "sh", "-c", "trap 'echo > hung-up; exit' HUP; echo ready; while :; do sleep 0.05; done"
    ) as terminal:
        terminal.expect("ready")
        os.close(os.dup2(os.open(os.devnull, os.O_RDWR), terminal.master))
        terminal.master = os.open(os.devnull, os.O_RDWR)
        assert os.waitpid(terminal.pid, 0)[0] == terminal.pid
        terminal.pid = 0
    assert (project / "hung-up").exists()


def test_a_session_in_the_background_leaves_the_shells_terminal_alone(account: Account, project: Path) -> None:
    record = account.home / "r.cast"
    with Terminal(account, ["bash", "--norc", "-i"], project) as shell:
        shell.type(f'{GUARD} run --recording {record} -- sh -c \'echo beh""ind\' & wait; stty -a; echo do""ne\r')
        said = shell.expect("done\r\n")
        assert "behind" in said
        assert " icanon" in said
        shell.type("exit\r")
        assert shell.wait() == 0
    assert shown(record) == "behind\r\n"
