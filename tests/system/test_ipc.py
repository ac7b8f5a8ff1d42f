"""Between processes: what other programs of the user share cannot be had from inside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from errno import EACCES, ENOENT, ENOSYS
from pathlib import Path

import pytest

from tests.system.stage import NO_MASK, UNDONE, Stage

pytestmark = pytest.mark.nested


@pytest.mark.parametrize("act", ["shared_memory", "semaphore", "messages"])
def test_system_v_ipc_is_closed(stage: Stage, act: str) -> None:
    key = str(0x4755_0000 + os.getpid() % 65536)
    try:
        stage.refused(ENOSYS, act, key)
    finally:
        stage.account.command(["sh", "-c", f"ipcrm -M {key}; ipcrm -S {key}; ipcrm -Q {key}"])


def test_posix_message_queues_are_closed(stage: Stage) -> None:
    name = f"guard-test-{os.getpid()}"
    stage.refused(ENOSYS, "posix_queue", name)


def test_an_overlay_opens_system_v_ipc(stage: Stage) -> None:
    text = 'schema=1\nname="v"\nextends="login-node"\noverlays=["sysv-ipc"]\nreason="a control"\n'
    key = str(0x4756_0000 + os.getpid() % 65536)
    stage.works("shared_memory", key, policy=stage.policy(text))
    stage.account.command(["ipcrm", "-M", key])


@pytest.fixture
def segment(stage: Stage) -> Iterator[Path]:
    """Shared memory of another program of the user's."""
    path = stage.account.write(Path(f"/dev/shm/guard-test-{os.getpid()}"), "secret", 0o600)
    yield path
    path.unlink(missing_ok=True)


def test_shared_memory_of_other_programs_is_hidden_by_the_mask(stage: Stage, segment: Path) -> None:
    for words in (("read", str(segment)), ("write", str(segment)), ("unlink", str(segment))):
        stage.refused((ENOENT, EACCES, UNDONE), *words)


def test_python_s_semaphores_work(stage: Stage) -> None:
    stage.works("posix_semaphore")
    stage.works("posix_semaphore", policy=stage.policy(NO_MASK))


def test_the_private_directory_of_another_session_is_closed(stage: Stage) -> None:
    from tests.system.stage import guarded

    with stage.beside(
        [*guarded(stage, "--project", str(stage.project)), "sh", "-c", "echo secret > $TMPDIR/file; echo $TMPDIR; sleep 60"]
    ) as other:
        stage.refused(EACCES, "read", f"{other.said}/file")
        stage.refused(EACCES, "create", f"{other.said}/new")


def test_the_shared_tmp_is_closed_and_the_private_one_is_not(stage: Stage) -> None:
    stage.refused(EACCES, "create", f"/tmp/guard-test-{os.getpid()}")
    Path(f"/tmp/guard-test-{os.getpid()}").unlink()
    done = stage.account.guard(["sh", "-c", "f=$(mktemp) && echo x > $f && stat -c %a $TMPDIR"], "--no-project-policy",
                               cwd=stage.project)  # fmt: skip
    assert done.stdout.strip() == "700", done.stderr


@pytest.mark.parametrize("name", ["SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "TMUX", "XDG_RUNTIME_DIR", "DISPLAY"])
def test_doors_named_in_the_environment_are_dropped(stage: Stage, name: str) -> None:
    show = ["sh", "-c", f"echo ${{{name}-gone}}"]
    env = {name: "/run/door"}
    assert stage.account.guard(show, "--no-project-policy", cwd=stage.project, env=env).stdout == "gone\n"
    assert stage.account.command(show, env=env).stdout == "/run/door\n"
