"""The kernel's surface: what no program here needs cannot be reached, whatever the registers say."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
from errno import EACCES, EFAULT, EINVAL, ENOENT, ENOSYS, ENOTTY, EPERM
from pathlib import Path

import pytest

from tests.conftest import GUARD
from tests.system.mask import masked
from tests.system.stage import NO_MASK, PYTHON, UNTRIED, Stage, guarded
from tests.system.terminal import Terminal

pytestmark = pytest.mark.nested
X86 = platform.machine() == "x86_64"

# (call, arguments, answer under guard, what the kernel says itself); arguments that make no sense, so that
# nothing happens where the call gets through: another answer than guard's proves that it did.
CALLS = [
    ("io_uring_setup 0 null", ENOSYS, (EFAULT, EINVAL, EPERM)),
    ("io_uring_enter -1 0 0 0 null 0", ENOSYS, None),
    ("io_uring_register -1 0 null 0", ENOSYS, None),
    ("bpf 999 null 0", EPERM, (EINVAL, EFAULT)),
    ("perf_event_open null 0 -1 -1 0", EPERM, (EFAULT, EACCES)),
    ("keyctl 999 0 0 0 0", EPERM, None),
    ("add_key null null null 0 -3", EPERM, None),
    ("request_key null null null -3", EPERM, None),
    ("userfaultfd 0x40000001", EPERM, (EINVAL,)),
    ("clone3 null 0", ENOSYS, (EINVAL,)),
    ("clone3 null 88", ENOSYS, (EFAULT, EINVAL)),
    ("setns -1 0", EPERM, None),
    ("mount null null null 0 null", EPERM, (EFAULT,)),
    ("open_tree -1 null 0", EPERM, (EFAULT, EINVAL)),
    ("open_tree -1 null 0x100000000", EPERM, (EFAULT, EINVAL)),
    ("open_tree_attr -1 null 0 null 0", EPERM, None),
    ("mount_setattr -1 null 0 null 0", EPERM, (EINVAL, EFAULT)),
    ("personality 0x0040000", EPERM, (0,)),
    ("personality 0x100040000", EPERM, (0,)),
    ("modify_ldt 99 null 0", EPERM, (0,)),
    ("fanotify_init 0x200 0", EPERM, (0,)),
    ("open_by_handle_at -1 null 0", EPERM, None),
    ("name_to_handle_at -1 null null null 0", EPERM, None),
    ("quotactl_fd -1 0x80000800 0 null", EPERM, None),
    ("openat2 -100 null null 0", ENOSYS, (EINVAL,)),
    ("newest 0 0 0", ENOSYS, (ENOSYS,)),
]
# What asks for root first: only root's own control can tell the difference.
ROOT = [
    ("kexec_load 0 99 null 0", EPERM),
    ("kexec_file_load -1 -1 0 null 0xffff", EPERM),
    ("init_module null 0 null", EPERM),
    ("finit_module -1 null 0", EPERM),
    ("delete_module null 0", EPERM),
    ("swapon null 0", EPERM),
    ("reboot 1 2 3 null", EPERM),
    ("syslog 99 null 0", EPERM),
    ("clock_settime 99 null", EPERM),
    ("pivot_root null null", EPERM),
    ("chroot null", EPERM),
    ("umount2 null 0", EPERM),
    ("sethostname null 65", EPERM),
    ("acct 1", EPERM),
    ("move_mount -1 null -1 null 0", EPERM),
    ("fsopen null 0", EPERM),
]


@pytest.mark.parametrize(("line", "answer", "kernel"), CALLS, ids=[row[0] for row in CALLS])
def test_the_call_does_not_reach_the_kernel(
    stage: Stage, line: str, answer: int, kernel: tuple[int, ...] | None
) -> None:
    words = ("ask", *line.split())
    control = stage.bare(*words)
    if control == UNTRIED or (control == ENOSYS and line.split()[0] != "newest"):
        pytest.skip("this kernel has no such call")
    assert stage.confined(*words) == answer
    if kernel is not None:
        assert control in kernel
    if line.split()[0] != "newest":
        assert control != answer, "the kernel says the same by itself: the test proves nothing"


@pytest.mark.root
@pytest.mark.parametrize(("line", "answer"), ROOT, ids=[row[0] for row in ROOT])
def test_root_confined_is_refused_what_root_may(stage: Stage, tmp_path: Path, line: str, answer: int) -> None:
    words = stage.words(("ask", *line.split()))
    control = subprocess.run(words, check=False, capture_output=True).returncode
    if control in (ENOSYS, EPERM):
        pytest.skip("not even root may here, or this kernel has no such call")
    for name in ("state", "config"):
        (tmp_path / name).mkdir(mode=0o700)
    environment = {"GUARD_STATE_DIR": f"{tmp_path}/state", "GUARD_CONFIG_DIR": f"{tmp_path}/config", "HOME": "/root"}
    done = subprocess.run(
        [*guarded(stage, "--project", str(stage.project)), *words], check=False, capture_output=True, text=True,
        env={**os.environ, **environment}, cwd=stage.project,
    )  # fmt: skip
    assert done.returncode == answer, done.stderr


NAMESPACES = {
    "user": "10000000", "mount and user": "10020000", "net and user": "50000000", "pid and user": "30000000",
    "uts and user": "14000000", "ipc and user": "18000000", "cgroup and user": "12000000",

}  # fmt: skip


@pytest.mark.parametrize("how", ["unshare", "clone"])
@pytest.mark.parametrize("kind", NAMESPACES)
def test_no_namespace_can_be_made(stage: Stage, how: str, kind: str) -> None:
    words = ("namespace", how, NAMESPACES[kind])
    if stage.bare(*words):
        pytest.skip("user namespaces are closed here")
    stage.refused(EPERM, *words)


def test_a_time_namespace_cannot_be_made(stage: Stage) -> None:
    stage.refused(EPERM, "namespace", "unshare", "10000080")


def test_nothing_can_be_mounted_over_a_place(stage: Stage) -> None:
    stage.refused(EPERM, "mount_in_namespace", "{project}/directory")


@pytest.mark.parametrize("tool", ["bwrap --dev-bind / / true", "unshare -Ur true", "setarch -R true"])
def test_tools_that_change_the_ground_fail(stage: Stage, tool: str) -> None:
    if stage.account.command(tool.split()).returncode:
        pytest.skip("not installed, or closed here")
    assert stage.account.guard(tool.split(), "--no-project-policy", cwd=stage.project).returncode != 0


def test_key_rings_are_closed(stage: Stage) -> None:
    stage.refused(EPERM, "keyring")


def test_asking_for_the_personality_works(stage: Stage) -> None:
    stage.works("personality", "ffffffff")


# Other entries into the kernel ---------------------------------------------------------------------------


@pytest.mark.skipif(not X86, reason="x86-64 only")
def test_a_32_bit_program_is_killed(stage: Stage) -> None:
    if stage.bare("binary32", "{project}"):
        pytest.skip("no 32-bit programs on this kernel")
    stage.refused(-signal.SIGSYS, "binary32", "{project}")


@pytest.mark.skipif(not X86, reason="x86-64 only")
def test_int_80_from_a_64_bit_program_is_killed(stage: Stage) -> None:
    if stage.bare("int80_chmod", "{project}", "{project}/other"):
        pytest.skip("no 32-bit calls on this kernel")
    stage.refused(-signal.SIGSYS, "int80_chmod", "{project}", "{project}/file")


@pytest.mark.skipif(not X86, reason="x86-64 only")
def test_an_x32_call_is_killed(stage: Stage) -> None:
    assert stage.bare("x32") in (0, ENOSYS)
    assert stage.confined("x32") == -signal.SIGSYS


# Terminals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("high", ["0", "1", "2147483648"])
@pytest.mark.parametrize(("name", "command"), [("TIOCSTI", "5412"), ("TIOCLINUX", "541C"), ("TIOCSETD", "5423")])
def test_nothing_can_be_typed_into_the_terminal(stage: Stage, name: str, command: str, high: str) -> None:
    words = ("terminal", command, high)
    with Terminal(stage.account, stage.words(words), stage.project) as control:
        bare = control.wait()
    with Terminal(stage.account, [*guarded(stage), *stage.words(words)], stage.project) as confined:
        assert confined.wait() == EPERM
    # The kernel itself: done, or not its terminal (ENOTTY, EINVAL), or switched off (EIO).
    if name == "TIOCSTI" and bare != 0:
        pytest.skip(f"legacy_tiocsti is off here ({bare})")
    assert bare in (0, ENOTTY, EINVAL)


def test_raw_mode_and_the_own_terminal_work(stage: Stage) -> None:
    for act in ("raw_mode", "open_terminal"):
        with Terminal(stage.account, [*guarded(stage), *stage.words([act])], stage.project) as terminal:
            assert terminal.wait() == 0


def test_another_terminal_of_the_user_cannot_be_opened(stage: Stage) -> None:
    with Terminal(stage.account, ["cat"], stage.project) as other:
        stage.refused((EACCES, ENOENT), "open_both", other.name)
        stage.refused(EACCES, "open_both", other.name, policy=stage.policy(NO_MASK))


TERMINAL = """
import os, pty, subprocess, sys
assert os.ttyname(0) == sys.argv[1], os.ttyname(0)
inner, outer = os.openpty()
assert os.ttyname(outer).startswith("/dev/pts/")
assert os.path.realpath("/dev/ptmx") in ("/dev/ptmx", "/dev/pts/ptmx")
open(os.ttyname(0), "w").write("through its name\\n")
assert os.stat(os.ttyname(0)).st_rdev == os.fstat(0).st_rdev
pty.spawn(["tty"])
"""


def test_with_the_mask_a_session_makes_terminals_of_its_own_and_sees_no_others(stage: Stage) -> None:
    policy = masked(stage.account)
    with Terminal(stage.account, ["cat"], stage.project) as other:
        assert other.name.startswith("/dev/pts/")
        listed = stage.account.guard(["ls", "/dev/pts"], policy=policy, cwd=stage.project)
        assert listed.stdout == "ptmx\n"
    program = [PYTHON, "-c", TERMINAL, "/dev/console"]
    with Terminal(stage.account, [*guarded(stage, policy=policy), *program], stage.project) as terminal:
        assert terminal.wait() == 0, terminal.output


BY_NAME = 'echo out > /dev/stdout; echo err > /dev/stderr; echo name > "$(tty)"; read -r line < /dev/stdin; echo "got $line"'


@pytest.mark.parametrize("policy", ["with the mask", "without"])
def test_the_terminal_one_stands_at_can_be_opened_by_name(stage: Stage, policy: str) -> None:
    """What `> /dev/stderr` does. Three starts: the launcher's, which writes it down, and guard-exec's own."""
    chosen = masked(stage.account) if policy == "with the mask" else stage.policy(NO_MASK)
    for _ in range(3):
        command = [*guarded(stage, policy=chosen), "sh", "-c", BY_NAME]
        with Terminal(stage.account, command, stage.project) as terminal:
            terminal.expect("name")
            terminal.type("typed\n")
            terminal.expect("got typed")
            assert terminal.wait() == 0, terminal.output
    with Terminal(stage.account, [GUARD, "explain", "--policy", chosen, "write", "/dev/stderr"], stage.project) as terminal:
        assert terminal.wait() == 0, terminal.output
        assert b"allowed: write" in terminal.output
        assert b"files.devices /dev/tty" in terminal.output


# Running from memory, raising privilege -------------------------------------------------------------------


def test_running_from_memory_is_no_way_round(stage: Stage) -> None:
    """Open on purpose without a supervisor: the project may be written and executed, so memory gives nothing more."""
    stage.works("from_memory", policy=stage.alone)
    stage.refused(EACCES, "from_memory")


@pytest.mark.root
def test_a_set_user_id_program_gives_nobody_its_rights(stage: Stage) -> None:
    program = Path("/usr/local/bin") / f"guard-test-{os.getpid()}"
    program.write_bytes(Path("/usr/bin/id").read_bytes())
    program.chmod(0o4755)
    try:
        stage.refused(EPERM, "raise_privilege", str(program))
    finally:
        program.unlink()

