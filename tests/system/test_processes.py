"""Processes: those outside the tree can be neither signalled nor looked into; those inside can."""

from __future__ import annotations

import os
import shutil
import signal
import time
from errno import EACCES, EPERM

import pytest

from tests.system.act import SIGNALS
from tests.system.conftest import VICTIM
from tests.system.stage import NO_MASK, PYTHON, Stage, guarded
from tests.system.terminal import Terminal

pytestmark = pytest.mark.nested


@pytest.mark.parametrize("how", [how for how in SIGNALS if how != "kill_term"])
def test_no_signal_reaches_a_process_outside(stage: Stage, victim: int, how: str) -> None:
    stage.refused(EPERM, "send", how, "{victim}")


def test_a_process_outside_cannot_be_killed(stage: Stage, victim: int) -> None:
    stage.refused(EPERM, "send", "kill_term", "{victim}")


def test_killing_everybody_kills_nobody_outside(stage: Stage, victim: int) -> None:
    """The control would end everything of the user's: it is left to the test of one process."""
    assert stage.confined("kill_all", "{victim}") == EPERM


@pytest.mark.parametrize("how", ["fcntl", "ioctl"])
def test_the_kernel_sends_no_signal_to_a_process_outside_for_us(stage: Stage, victim: int, how: str) -> None:
    stage.refused(EPERM, "owner_signal", "{victim}", how)


@pytest.mark.parametrize("how", SIGNALS)
def test_one_s_own_child_can_be_signalled(stage: Stage, how: str) -> None:
    stage.works("send", how, "own")


REACHES = [
    ("attach", EPERM), ("seize", EPERM), ("vm_read", EPERM), ("vm_write", EPERM), ("take_descriptor", EPERM),
    ("compare", EPERM), ("pages", EPERM),
]  # fmt: skip


@pytest.mark.parametrize(("act", "answer"), REACHES)
@pytest.mark.parametrize("policy", ["login-node", NO_MASK], ids=["mask", "no-mask"])
def test_a_process_outside_cannot_be_reached_into(
    stage: Stage, victim: int, act: str, answer: int, policy: str
) -> None:
    stage.refused(answer, act, "{victim}", policy=stage.policy(policy) if "\n" in policy else policy)


@pytest.mark.parametrize("act", [act for act, _ in REACHES])
def test_one_s_own_child_can_be_reached_into(stage: Stage, act: str) -> None:
    """Debuggers, and MPI's cross-memory attach."""
    stage.works(act, "own")


ENTRIES = ["environ", "mem", "maps", "fd/1", "fdinfo", "auxv", "cwd", "root", "exe", "stack", "syscall", "personality",
           "pagemap", "io", "ns/mnt", "map_files"]  # fmt: skip


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("policy", ["login-node", NO_MASK], ids=["mask", "no-mask"])
def test_what_proc_tells_of_a_process_outside_is_closed(stage: Stage, victim: int, entry: str, policy: str) -> None:
    if stage.bare("proc", "{victim}", entry):
        pytest.skip("closed to everybody here")
    stage.refused((EACCES, EPERM), "proc", "{victim}", entry, policy=stage.policy(policy) if "\n" in policy else policy)


@pytest.mark.parametrize("entry", ["environ", "mem", "maps", "fd", "cwd", "root", "exe"])
def test_what_proc_tells_of_one_s_own_is_open(stage: Stage, entry: str) -> None:
    stage.works("proc", "own", entry)


@pytest.mark.parametrize("entry", ["root", "cwd"])
@pytest.mark.parametrize("policy", ["login-node", NO_MASK], ids=["mask", "no-mask"])
def test_no_file_is_reached_through_a_process_outside(stage: Stage, victim: int, entry: str, policy: str) -> None:
    path = f"{stage.elsewhere}/file".lstrip("/") if entry == "root" else "file"
    stage.refused((EACCES, EPERM), "through_proc", "{victim}", entry, path,
                  policy=stage.policy(policy) if "\n" in policy else policy)  # fmt: skip


def test_a_descriptor_of_a_process_outside_cannot_be_opened(stage: Stage) -> None:
    code = VICTIM.replace("import time", "held = open('file'); import time")
    with stage.beside([PYTHON, "-c", code]) as process:
        stage.refused((EACCES, EPERM), "read", f"/proc/{process.pid}/fd/3")


@pytest.mark.parametrize(("entry", "text"), [("oom_score_adj", "1000"), ("comm", "renamed"), ("coredump_filter", "0")])
def test_nothing_can_be_written_about_a_process_outside(stage: Stage, victim: int, entry: str, text: str) -> None:
    if stage.bare("write_proc", "{victim}", entry, text):
        pytest.skip("closed to everybody here")
    stage.refused(EACCES, "write_proc", "{victim}", entry, text)


def test_a_limit_is_no_way_to_kill(stage: Stage, victim: int) -> None:
    stage.refused(EPERM, "limit", "{victim}")


def test_one_s_own_limits_can_be_lowered_and_read(stage: Stage, victim: int) -> None:
    stage.works("own_limit")
    stage.works("read_limit", "own")


@pytest.mark.parametrize("act", ["priority_of_user", "io_priority_of_user"])
def test_all_processes_of_the_user_cannot_be_slowed_at_once(stage: Stage, act: str) -> None:
    stage.refused(EPERM, act)


@pytest.mark.parametrize("act", ["priority", "affinity"])
def test_priority_of_a_process_outside_is_open_and_the_status_says_so(stage: Stage, victim: int, act: str) -> None:
    # Refused by the kernel itself where the other holds capabilities, as uid 0 of a user namespace does.
    assert stage.confined(act, "{victim}", policy=stage.alone) in (0, EPERM)
    assert stage.bare(act, "{victim}") == 0
    done = stage.account.guard(["true"], "--require", "processes", "--no-project-policy", policy=stage.alone, cwd=stage.project)
    assert done.returncode == 125
    assert "priority and CPU affinity" in done.stderr


def test_a_tracer_cannot_change_a_call_behind_the_filter(stage: Stage) -> None:
    stage.refused(249, "traced_chmod", "{project}/file")


@pytest.mark.parametrize("tool", [
    ["strace", "-f", "-o", "trace", "/bin/true"],
    ["gdb", "-batch", "-ex", "run", "-ex", "bt", "--args", "/bin/true"],
])  # fmt: skip
def test_debuggers_work_inside(stage: Stage, tool: list[str]) -> None:
    if not shutil.which(tool[0]):
        pytest.skip(f"no {tool[0]} here")
    if stage.account.command(tool, cwd=stage.project).returncode:
        pytest.skip(f"{tool[0]} does not work here without guard either")
    done = stage.account.guard(tool, "--no-project-policy", cwd=stage.project)
    assert done.returncode == 0, done.stderr
    if tool[0] == "strace":
        assert "execve" in (stage.project / "trace").read_text()
    else:
        assert "exited normally" in done.stdout


# Exit codes, signals, the terminal ------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 42, 125, 255])
def test_the_exit_code_is_the_command_s(stage: Stage, code: int) -> None:
    done = stage.account.guard(["sh", "-c", f"exit {code}"], "--no-project-policy", cwd=stage.project)
    assert done.returncode == code


@pytest.mark.parametrize("name", ["TERM", "INT", "KILL", "SEGV", "PIPE", "HUP", "QUIT", "USR1"])
def test_the_command_s_death_by_a_signal_is_seen(stage: Stage, name: str) -> None:
    done = stage.account.guard(["sh", "-c", f"kill -{name} $$"], "--no-project-policy", cwd=stage.project)
    assert done.returncode == -getattr(signal, f"SIG{name}")


@pytest.mark.parametrize(("name", "shown"), [("TERM", 143), ("INT", 130), ("HUP", 129)])
def test_a_signal_to_guard_ends_the_command(stage: Stage, name: str, shown: int) -> None:
    """guard has become the command; a shell shows 128 and the number."""
    with stage.beside([*guarded(stage, "--project", str(stage.project)), "sh", "-c", "echo ready; exec sleep 60"]) as run:
        os.kill(run.pid, getattr(signal, f"SIG{name}"))
        assert 128 - run.wait(20) == shown


def test_ignored_and_blocked_signals_are_passed_on_as_they_were(stage: Stage) -> None:
    look = ["sh", "-c", "grep -E 'Sig(Ign|Blk)' /proc/self/status"]
    bare = stage.account.command(look).stdout
    assert stage.account.guard(look, "--no-project-policy", cwd=stage.project).stdout == bare
    ignoring = ["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    bare = stage.account.command([*ignoring, *look]).stdout
    assert stage.account.command([*ignoring, *guarded(stage), *look], cwd=stage.project).stdout == bare


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_command_starts_with_its_standard_streams_closed_as_without_guard(stage: Stage, closed: str) -> None:
    look = ["sh", "-c", "for n in 0 1 2; do [ -e /proc/self/fd/$n ] && echo $n; done > seen"]
    head = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh"]
    seen = []
    for between in ([], guarded(stage)):
        stage.account.command([*head, *between, *look], cwd=stage.project)
        seen.append((stage.project / "seen").read_text())
        (stage.project / "seen").unlink()
    assert seen[0] == seen[1]


def _shell(stage: Stage) -> Terminal:
    return Terminal(stage.account, ["/bin/bash", "--norc", "-i"], stage.project)


def test_control_c_ends_the_command_and_not_the_shell(stage: Stage) -> None:
    with _shell(stage) as terminal:
        terminal.expect("$ ")
        # Not a shell: dash puts an interrupt off while it starts a command.
        code = "import signal; signal.signal(2, signal.SIG_DFL); print('rea' + 'dy', flush=True); signal.pause()"
        terminal.type(" ".join(guarded(stage)) + f' {PYTHON} -IS -c "{code}"\n')
        terminal.expect("ready")
        terminal.type("\x03")
        terminal.expect("$ ")
        terminal.type("echo code=$?\n")
        terminal.expect("code=130")


def test_control_z_and_fg_work(stage: Stage) -> None:
    with _shell(stage) as terminal:
        terminal.expect("$ ")
        terminal.type(" ".join(guarded(stage)) + " sh -c 'echo rea\"\"dy; read line; echo got=$line'\n")
        terminal.expect("ready")
        terminal.type("\x1a")
        terminal.expect("Stopped")
        terminal.expect("$ ")
        terminal.type("jobs\n")
        terminal.expect("Stopped")
        terminal.type("fg\n")
        terminal.expect("guard")
        terminal.type("word\n")
        terminal.expect("got=word")
        terminal.expect("$ ")
        terminal.type("echo code=$?\n")
        terminal.expect("code=0")


def test_a_shell_inside_has_job_control(stage: Stage) -> None:
    with Terminal(stage.account, [*guarded(stage), "/bin/bash", "--norc", "-i"], stage.project) as terminal:
        terminal.expect("$ ")
        terminal.type("sh -c 'echo rea\"\"dy; exec sleep 60'\n")
        terminal.expect("ready")
        terminal.type("\x1a")
        terminal.expect("Stopped")
        terminal.type("kill -KILL %1; exit 7\nexit 7\n")  # the first may find it stopped still
        assert terminal.wait() == 7


def test_a_background_job_s_end_is_seen_by_the_shell(stage: Stage) -> None:
    script = " ".join(guarded(stage)) + " sh -c 'exit 9' & wait $!; echo $?"
    assert stage.account.command(["bash", "-c", script], cwd=stage.project).stdout.strip() == "9"


@pytest.mark.parametrize("pipe", ["cat", "head -c 3"])
def test_orphans_that_hold_the_pipe_hold_it_as_without_guard(stage: Stage, pipe: str) -> None:
    """The reader waits for whoever holds the pipe: as long as the orphan, no longer, and guard is not among them."""
    orphan = "until [ -e gate ]; do sleep 0.05; done"
    for head in ([], guarded(stage)):
        (stage.project / "gate").unlink(missing_ok=True)
        script = " ".join([*head, "sh", "-c", f"'({orphan}) & echo hi'"]) + f" | {pipe}; touch ended"
        script = f"rm -f ended; ({script}) & sleep 1; [ -e ended ] && echo early; touch gate; wait"
        if pipe != "cat":  # who has read enough waits for nobody
            script = script.replace("sleep 1;", "until [ -e ended ]; do sleep 0.05; done;")
        done = stage.account.command(["bash", "-c", script], cwd=stage.project)
        assert done.stdout == ("hi\n" if pipe == "cat" else "hi\nearly\n")


def test_an_orphan_stays_confined(stage: Stage) -> None:
    script = f"(sleep 0.3; {PYTHON} -IS {stage.act} write {stage.home}/file; echo $? > code~; mv code~ code) & exit 0"
    assert stage.account.guard(["sh", "-c", script], "--no-project-policy", cwd=stage.project,
                               stdout=None, stderr=None, capture_output=False).returncode == 0  # fmt: skip
    end = time.monotonic() + 60
    while not (stage.project / "code").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert (stage.project / "code").read_text().strip() == str(EACCES)
    assert stage.bare("write", "{home}/file") == 0
