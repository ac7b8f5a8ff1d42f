"""Audit: nothing is enforced, nobody can overlook it, and exit codes, signals and jobs are as without guard."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.confine.launch import Options
from guard.errors import UsageError
from tests.conftest import GUARD, ROOT, Account
from tests.system.node import events
from tests.system.stage import PYTHON
from tests.system.terminal import Terminal

AUDIT = [GUARD, "run", "--audit", "--"]
LOUD = "guard: AUDIT: nothing is enforced in this session"


# Says whether it has the terminal, whenever that changes or it goes on after a stop.
IN_FRONT = """
import os, signal, time
resumed, said = 0, None
def resume(*_):
    global resumed
    resumed += 1
signal.signal(signal.SIGCONT, resume)
while True:
    now = resumed, "in front" if os.tcgetpgrp(0) == os.getpgrp() else "behind"
    if now != said:
        print(now[1], flush=True)
    said = now
    time.sleep(0.02)
"""


@pytest.fixture
def folder(account: Account) -> Iterator[Path]:
    for name in ("events.jsonl", "events.lost"):
        (account.state / name).unlink(missing_ok=True)
    made = account.directory("audit")
    yield made
    shutil.rmtree(made)


def wait_for(path: Path, seconds: float = 20) -> str:
    """What a file says as soon as it ends in a line."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text.strip()
        time.sleep(0.01)
    raise AssertionError(f"{path} never came")


def state_of(pid: int) -> str:
    """The letter of proc(5): T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until(pid: int, states: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while state_of(pid) not in states:
        assert time.monotonic() < end, f"{pid} is {state_of(pid)}"
        time.sleep(0.01)


def test_audit_enforces_nothing_and_says_so(account: Account, folder: Path) -> None:
    act = ["sh", "-c", "echo x > ../outside && chmod 666 ../outside && echo done"]
    assert account.guard(act, cwd=folder).stdout == ""
    done = account.guard(act, "--audit", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert LOUD in done.stderr
    (account.home / "outside").unlink()


def test_audit_says_so_in_the_event_of_the_session(account: Account, folder: Path) -> None:
    assert account.guard(["sh", "-c", "exit 7"], "--audit", cwd=folder).returncode == 7
    started, stopped = events(account)
    assert started["severity"] == "high"
    assert started["detail"]["audit"] is True
    assert {each["state"] for each in started["detail"]["status"].values()} == {"audit"}
    assert stopped["rule"] == "session-stop"
    assert stopped["detail"] == {"exit": 7}
    assert stopped["tree"]["session"] == started["tree"]["session"]


def test_the_policy_observe_by_a_user_is_as_loud(account: Account, folder: Path) -> None:
    done = account.guard(["sh", "-c", "echo x > ../outside && echo done"], policy="observe", cwd=folder)
    assert done.stdout == "done\n"
    assert "guard: OBSERVE: " in done.stderr
    (started,) = events(account, "session-start")
    assert started["severity"] == "medium"
    assert started["detail"]["status"]["files"]["state"] == "observe"
    (account.home / "outside").unlink()


@pytest.mark.parametrize("audit", [True, False], ids=["audit", "enforced"])
@pytest.mark.parametrize("code", [0, 1, 2, 125, 126, 127, 128, 130, 255])
def test_exit_codes_pass(account: Account, audit: bool, code: int) -> None:
    options = ["--audit"] if audit else []
    assert account.guard(["sh", "-c", f"exit {code}"], *options).returncode == code


@pytest.mark.parametrize("audit", [True, False], ids=["audit", "enforced"])
@pytest.mark.parametrize("name", ["TERM", "KILL", "INT", "QUIT", "SEGV", "ABRT", "PIPE", "HUP", "USR1", "XFSZ"])
def test_death_by_a_signal_passes(account: Account, folder: Path, audit: bool, name: str) -> None:
    options = ["--audit"] if audit else []
    number = getattr(signal, f"SIG{name}")
    # The command leaves no core of its own here, so that one could only be guard's.
    act = ["sh", "-c", f"ulimit -S -c 0; kill -{name} $$"]
    done = account.command(
        ["sh", "-c", 'ulimit -c unlimited; exec "$@"', "sh", GUARD, "run", *options, "--", *act], cwd=folder
    )
    assert done.returncode == -number
    assert not list(folder.glob("core*"))
    shell = account.command(["sh", "-c", f"{GUARD} run {' '.join(options)} -- sh -c 'kill -{name} $$'; echo $?"])
    assert shell.stdout == f"{128 + number}\n"


@pytest.mark.parametrize(
    ("argv", "code"), [(["no-such-command"], 127), (["/nowhere/x"], 127), (["/etc/passwd"], 126), (["/etc"], 126)]
)
def test_what_cannot_be_started_has_the_shells_code(account: Account, argv: list[str], code: int) -> None:
    for options in ([], ["--audit"]):
        done = account.guard(argv, *options)
        assert done.returncode == code
        assert done.stderr.rstrip().splitlines()[-1].startswith(f"guard: {argv[0]}: ")


def test_an_interrupt_before_anything_is_started_starts_nothing(account: Account, folder: Path) -> None:
    # A first start compiles for a while; whenever the interrupt comes, it is one or the other. The last comes while it
    # compiles: then there is a child that does.
    seen = set()
    for wait in (0.02, 0.05, 0.1, 0.15, 0.2, None):
        shutil.rmtree(account.state / "plans", ignore_errors=True)
        process = subprocess.Popen(
            [GUARD, "run", "--", "sh", "-c", "trap 'exit 7' INT; echo started; sleep 5 & wait"],
            cwd=folder, env=account.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, **account.identity(),  # type: ignore[call-overload]
        )  # fmt: skip
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        end = time.monotonic() + (20 if wait is None else wait)
        while time.monotonic() < end and not (wait is None and children.read_text()):
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGINT)
        said, told = process.communicate(timeout=20)
        assert "Traceback" not in told or not said
        if process.returncode == -signal.SIGINT:
            assert said == ""
            seen.add("guard: not started: interrupted" in told)
        else:
            assert process.returncode == 7, (process.returncode, said, told)
            assert said in ("started\n", ""), "the command's own trap may come before its word"
    assert True in seen


IN_A_CALLBACK = """
import os, signal, sys, weakref
sys.path.insert(0, sys.argv[1])
from guard.confine import launch
class Thing: pass
def run(self, argv):
    thing = Thing()
    watched = weakref.ref(thing, lambda _: [os.kill(os.getpid(), signal.SIGINT), *range(9)])
    del thing
    print("started", flush=True)
launch.Launch.run = run
launch.main(["--", "true"], [sys.executable])
"""


def test_an_interrupt_in_a_callback_of_the_interpreters_is_not_lost(account: Account, folder: Path) -> None:
    package = next(Path(GUARD).parent.parent.glob("lib/python*/site-packages"))
    done = account.command([PYTHON, "-c", IN_A_CALLBACK, str(package)], cwd=folder)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "")
    assert done.stderr == "guard: not started: interrupted\n"


def test_what_the_kernel_does_not_execute_is_126(account: Account, folder: Path) -> None:
    broken = account.write(folder / "broken", b"\x7fELF\x02\x01\x01", 0o755)
    lost = account.write(folder / "lost", "#!/nowhere/interpreter\n", 0o755)
    plain = account.write(folder / "plain", "echo plain\n", 0o755)
    for options in ([], ["--audit"]):
        assert account.guard([str(broken)], *options, cwd=folder).returncode in (2, 126, 127)
        assert account.guard([str(lost)], *options, cwd=folder).returncode == 126
        # A script without an interpreter line runs as execvp(3) runs it.
        assert account.guard([str(plain)], *options, cwd=folder).stdout == "plain\n"


@pytest.mark.parametrize("name", ["TERM", "HUP", "USR1", "USR2"])
def test_a_signal_sent_to_guard_reaches_the_command(account: Account, folder: Path, name: str) -> None:
    script = f"trap 'echo got {name} > got; exit 5' {name}; echo $$ > pid; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        [*AUDIT, "sh", "-c", script],
        cwd=folder, env=account.environment(), stderr=subprocess.DEVNULL, **account.identity(),  # type: ignore[call-overload]
    )  # fmt: skip
    try:
        wait_for(folder / "pid")
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert process.wait(20) == 5
        assert wait_for(folder / "got") == f"got {name}"
    finally:
        process.kill()


def test_a_command_stopped_alone_stops_guard_and_both_go_on(account: Account, folder: Path) -> None:
    process = subprocess.Popen(
        [*AUDIT, "sh", "-c", "echo $$ > pid; while [ ! -e go ]; do sleep 0.05; done; exit 4"],
        cwd=folder, env=account.environment(), stderr=subprocess.DEVNULL, **account.identity(),  # type: ignore[call-overload]
    )  # fmt: skip
    try:
        child = int(wait_for(folder / "pid"))
        os.kill(child, signal.SIGSTOP)
        wait_until(process.pid, "T")
        process.send_signal(signal.SIGCONT)
        wait_until(child, "SR")
        account.write(folder / "go")
        assert process.wait(20) == 4
    finally:
        process.kill()


@pytest.mark.parametrize("audit", [True, False], ids=["audit", "enforced"])
def test_jobs_are_controlled_from_a_terminal(account: Account, folder: Path, audit: bool) -> None:
    option = "--audit " if audit else ""
    with Terminal(account, ["bash", "--norc", "--noprofile", "-i"], folder) as shell:
        shell.expect("$ ")
        script = account.write(folder / "job", IN_FRONT)
        shell.type(f"{GUARD} run {option}-- {PYTHON} {script}\n")
        shell.expect("in front\r\n")
        for _ in range(3):
            shell.type("\x1a")
            shell.expect("Stopped")
            shell.type("bg\n")
            shell.expect("behind\r\n")
            shell.type("jobs\n")
            shell.expect("Running")
            shell.type("fg\n")
            shell.expect("in front\r\n")
            shell.type("\x1a")
            shell.expect("Stopped")
            shell.type("fg\n")
            shell.expect("in front\r\n")
        shell.type("\x03")
        shell.expect("$ ")
        shell.type("echo code=$?\n")
        shell.expect("code=130\r\n")


@pytest.mark.parametrize("audit", [True, False], ids=["audit", "enforced"])
def test_a_shell_inside_has_the_terminal(account: Account, folder: Path, audit: bool) -> None:
    option = ["--audit"] if audit else []
    argv = [GUARD, "run", *option, "--", "bash", "--norc", "--noprofile", "-i"]
    with Terminal(account, argv, folder) as shell:
        shell.expect("$ ")
        shell.type("sh -c 'echo sta''rted; exec sleep 60'\n")
        shell.expect("started\r\n")
        shell.type("\x1a")
        shell.expect("Stopped")
        shell.type("kill %1; wait; stty size > /dev/null && echo tty=$?\n")
        shell.expect("tty=0")
        shell.type("exit 9\n")
        assert shell.wait() == 9


def test_the_environment_is_the_callers_own_in_audit(account: Account, folder: Path) -> None:
    env = {
        "LD_LIBRARY_PATH": "/opt/lib",
        "SSH_AUTH_SOCK": "/tmp/x",
        "PYTHONPATH": "/p",
        "ODD": "a\nb=c",
        "TMPDIR": "/var/tmp",
    }
    bare = account.command(["env", "-0"], env=env, cwd=folder).stdout
    audited = account.guard(["env", "-0"], "--audit", env=env, cwd=folder).stdout
    assert sorted(audited.split("\0")) == sorted(bare.split("\0"))


def test_audit_inside_a_session_lifts_nothing(account: Account, folder: Path) -> None:
    act = f"{GUARD} run --audit --state {folder}/s -- sh -c 'echo x > {account.home}/outside; echo started'"
    # guard itself has to be readable inside, wherever it is installed.
    readable = json.dumps(sorted({str(ROOT), str(Path(GUARD).parent.parent)}))
    rule = f'schema = 1\nname = "work"\nextends = "login-node"\nreason = "guard"\n[files]\nread = {readable}\n'
    policy = account.write(folder / "work.toml", rule)
    done = account.guard(["sh", "-c", act], policy=str(policy), cwd=folder)
    assert done.stdout == "started\n", done.stderr
    assert not (account.home / "outside").exists()
    assert account.command(["sh", "-c", act], cwd=folder).stdout == "started\n"
    assert (account.home / "outside").exists(), "positive control: outside of a session it does"
    (account.home / "outside").unlink()


def test_nothing_of_guard_stays_beside_an_enforced_session(account: Account, folder: Path) -> None:
    done = account.guard(["sh", "-c", "echo $PPID; cat /proc/$PPID/comm"], cwd=folder, policy=account.alone)
    parent, _, name = done.stdout.partition("\n")
    assert int(parent) == os.getpid(), f"the session's parent is {name}"


# The arguments ------------------------------------------------------------------------------------------

WRONG = [
    [], ["--"], ["--", ""], ["--audit"], ["--policy"], ["--policy", "--"], ["--policy=", "true"],
    ["--session", "x" * 65, "--", "true"], ["--policy", os.fsdecode(b"\xff"), "--", "true"],
    ["--session", "a\nb", "--", "true"], ["--require", "every", "--", "true"], ["--audit=yes", "--", "true"],
    ["-x", "--", "true"], ["--polic", "base", "--", "true"], ["--policy", "../base", "--", "true"],
    ["--policy", "a\0b".replace("\0", "\x01"), "--", "true"], ["--policy", "x" * 5000, "--", "true"],
    ["--project", "/nowhere", "--", "true"], ["--project", "", "--", "true"], ["--state", "", "--", "true"],
    ["--config", "", "--", "true"], ["--environment-fd", "77", "--", "true"],
    ["--config", os.fsdecode(b"/\xff/\xfe"), "--policy", "nope", "true"],
]  # fmt: skip


@pytest.mark.parametrize("words", WRONG, ids=range(len(WRONG)))
def test_a_wrong_command_line_starts_nothing(account: Account, folder: Path, words: list[str]) -> None:
    done = account.command([GUARD, "run", *words], cwd=folder, errors="replace")
    assert (done.returncode, done.stdout) == (125, ""), done.stderr
    assert "guard: not started: " in done.stderr
    assert "Traceback" not in done.stderr


WORDS = [
    "--", "--audit", "--audit=", "--policy", "--policy=x", "--project", "--project=/", "--require", "--require=all",
    "--require=files,,", "files", "", "-", "=", "--=x", "--x", "--session", "a" * 70, "--state", "--config",
    "--environment-fd", "9" * 30, "--environment-fd=-1", "--no-project-policy", "\udcff", "echo",
]  # fmt: skip


def test_any_words_give_a_command_or_a_sentence() -> None:
    chance = random.Random(3)
    outcomes = set()
    for _ in range(5000):
        words = [chance.choice(WORDS) for _ in range(chance.randrange(7))]
        options = Options({}, 1000)
        try:
            options.parse(list(words))
        except UsageError:
            outcomes.add("refused")
            continue
        assert options.command[0]
        assert words[len(words) - len(options.command) :] == options.command, "the command is the words' end"
        outcomes.add("parsed")
    assert outcomes == {"parsed", "refused"}


def test_options_of_the_command_are_the_commands_own(account: Account, folder: Path) -> None:
    for words in (["echo", "--audit", "--policy"], ["--", "echo", "--audit", "--policy"]):
        done = account.command([GUARD, "run", *words], cwd=folder)
        assert (done.returncode, done.stdout) == (0, "--audit --policy\n")
    assert account.command([GUARD, "run", "--", "echo", "--"], cwd=folder).stdout == "--\n"


def test_an_option_may_be_joined_to_its_value(account: Account, folder: Path) -> None:
    done = account.command(
        [GUARD, "run", "--policy=read-only", "--session=a b", "sh", "-c", "echo $GUARD_POLICY"], cwd=folder
    )
    assert done.stdout == "read-only\n"


def test_help_is_no_start(account: Account) -> None:
    done = account.command([GUARD, "run", "--help"])
    assert done.returncode == 0
    assert "--policy" in done.stdout
