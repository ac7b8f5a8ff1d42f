"""Between processes: what other programs of the user share cannot be had from inside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from errno import EACCES, ENOENT, ENOSYS
from pathlib import Path

import pytest

from tests.system.mask import masked
from tests.system.stage import NO_MASK, UNDONE, Stage

pytestmark = pytest.mark.nested


SYSTEM_V = {"shared_memory": "-M", "semaphore": "-S", "messages": "-Q"}


@pytest.mark.parametrize("act", SYSTEM_V)
def test_system_v_ipc_is_closed_without_the_mask(stage: Stage, act: str) -> None:
    key = str(0x4755_0000 + os.getpid() % 65536)
    try:
        stage.refused(ENOSYS, act, key, policy=stage.policy(NO_MASK))
    finally:
        stage.account.command(["ipcrm", SYSTEM_V[act], key])


@pytest.mark.parametrize("act", SYSTEM_V)
def test_with_the_mask_system_v_ipc_is_the_session_s_own(stage: Stage, act: str) -> None:
    """Made outside it is not found inside; made inside it works, and nobody outside sees it."""
    key = str(0x4757_0000 + os.getpid() % 65536)
    policy = masked(stage.account)
    outside = ["sh", "-c", f"ipcs -a | grep -c {int(key):#010x}"]
    try:
        stage.works(act, key, policy=policy)
        assert stage.account.command(outside).stdout == "0\n"
        assert stage.bare(act, key) == 0
        assert stage.account.command(outside).stdout == "1\n"
        stage.refused(ENOENT, "opened_" + act, key, policy=policy)
    finally:
        stage.account.command(["ipcrm", SYSTEM_V[act], key])


def test_posix_message_queues_are_closed_without_the_mask(stage: Stage) -> None:
    name = f"guard-test-{os.getpid()}"
    try:
        stage.refused(ENOSYS, "posix_queue", name, policy=stage.policy(NO_MASK))
    finally:  # what is left counts against the user's RLIMIT_MSGQUEUE
        stage.bare("remove_posix_queue", name)


def test_with_the_mask_posix_message_queues_are_the_session_s_own(stage: Stage) -> None:
    name = f"guard-test-{os.getpid()}-own"
    policy = masked(stage.account)
    stage.works("posix_queue", name, policy=policy)
    assert stage.bare("opened_posix_queue", name) == ENOENT  # what was made inside is not there
    assert stage.bare("posix_queue", name) == 0
    try:
        stage.refused(ENOENT, "opened_posix_queue", name, policy=policy)
    finally:
        stage.bare("remove_posix_queue", name)


def test_an_overlay_opens_the_user_s_system_v_ipc(stage: Stage) -> None:
    text = 'schema=1\nname="v"\nextends="login-node"\noverlays=["sysv-ipc"]\nreason="a control"\n'
    key = str(0x4756_0000 + os.getpid() % 65536)
    stage.works("shared_memory", key, policy=stage.policy(text))
    assert stage.bare("opened_shared_memory", key) == 0
    stage.account.command(["ipcrm", "-M", key])


@pytest.fixture
def segment(stage: Stage) -> Iterator[Path]:
    """Shared memory of another program of the user's."""
    path = stage.account.write(Path(f"/dev/shm/guard-test-{os.urandom(6).hex()}"), "secret", 0o600)
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
