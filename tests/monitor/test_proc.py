"""What is asked of /proc and of others' files: with a deadline, and believed only where root alone decides."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from guard.monitor import proc
from guard.monitor.patience import MOST, Patience
from tests.conftest import ROOT_HERE, Account


def test_what_never_answers_costs_a_deadline_and_is_left_behind() -> None:
    patience = Patience(deadline=0.05)
    for_ever = threading.Event()
    assert patience.ask(lambda: for_ever.wait() and "late", "default") == "default"
    assert patience.left == 1
    for_ever.set()
    assert Patience(deadline=30).ask(lambda: "quick", "default") == "quick"


def test_only_so_many_threads_are_left_behind_and_they_come_back() -> None:
    patience = Patience(deadline=0.02)
    for_ever = threading.Event()
    before = threading.active_count()
    for _ in range(MOST * 3):
        assert patience.ask(for_ever.wait, False) is False
    assert threading.active_count() - before <= MOST
    for_ever.set()
    for thread in threading.enumerate():
        if thread.name == "ask":
            thread.join(30)
    patience._deadline = 30.0
    assert patience.ask(lambda: 1, 0) == 1


def test_an_error_is_the_default() -> None:
    def fails() -> str:
        raise OSError("gone")

    assert Patience().ask(fails, "default") == "default"


def test_a_process_is_told_by_its_start_and_not_by_its_pid_alone() -> None:
    found = proc.status(os.getpid())
    assert found is not None
    assert found.ppid == os.getppid()
    assert proc.same(os.getpid(), found.start)
    assert not proc.same(os.getpid(), found.start + 10**9)
    assert proc.status(2**22 + 5) is None


def test_a_zombie_is_no_process() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert proc.status(process.pid) is None
    process.wait()


@pytest.mark.root
def test_a_program_is_roots_only_where_nobody_else_can_replace_it(account: Account, tmp_path: Path) -> None:
    assert proc.root_installed("/usr/bin/env")
    assert proc.root_installed("/bin/sh")
    mine = account.write(account.home / "bin/srun", "#!/bin/sh\n", 0o755)
    assert not proc.root_installed(str(mine))
    link = account.home / "srun"
    link.symlink_to("/usr/bin/env")
    assert not proc.root_installed(str(link))
    for_all = Path("/var/tmp") / f"guard-test-{os.getpid()}"
    for_all.write_text("x")
    try:
        assert not proc.root_installed(str(for_all)), "anybody may put a name into a sticky directory"
    finally:
        for_all.unlink()
    assert not proc.root_installed("env")
    assert not proc.root_installed("/usr/bin/../../no/such")
    assert ROOT_HERE


def test_the_socket_of_a_server_is_found(tmp_path: Path) -> None:
    import socket

    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        assert proc.listens_at(os.getpid(), path)
        assert not proc.listens_at(os.getppid(), path)
        assert not proc.listens_at(os.getpid(), path + "x")


def test_slurms_job_is_told_by_the_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, job in (
        (b"0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n", 42),
        (b"4:memory:/slurm/uid_1000/job_7/step_batch\n0::/\n", 7),
        (b"0::/user.slice/user-1000.slice/job_x\n", None),
        (b"", None),
    ):
        monkeypatch.setattr(proc, "_read", lambda pid, name, most, text=text: text)
        assert proc.slurm_job(1) == job
