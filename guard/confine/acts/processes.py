"""Acts on processes: others' signals, memory and limits, one's own limits, a shell fed by a download."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess

from . import Stage, Untried, allow, call, forbid, number, text

# A struct iovec: one byte where nothing is mapped. The right is judged before the address; no bytes at all
# would be a success that asks nobody.
_ONE_BYTE = (4096).to_bytes(8, "little") + (1).to_bytes(8, "little")


def _seize(stage: Stage) -> None:
    call("ptrace", 0x4206, number(stage, "victim"), 0, 0)  # PTRACE_SEIZE; our end lets it go again


def _same_limit(stage: Stage) -> None:
    limit = bytes.fromhex(text(stage, "victim_limit"))
    call("prlimit64", number(stage, "victim"), resource.RLIMIT_CORE, limit, None)


def _environment_of(pid: int) -> None:
    with open(f"/proc/{pid}/environ", "rb") as file:
        file.read(1)


def _command_line(stage: Stage) -> None:
    with open(f"/proc/{number(stage, 'victim')}/cmdline", "rb") as file:
        if not file.read():
            raise OSError(errno.EACCES, "empty")


def _own_child(_: Stage) -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _priority(stage: Stage) -> int:
    return os.getpriority(os.PRIO_PROCESS, number(stage, "victim"))


PROCESSES = [
    forbid("processes", "signal a process outside", lambda s: os.kill(number(s, "victim"), 0), gap="signal"),
    forbid("processes", "trace a process outside", _seize),
    forbid(
        "processes",
        "read memory of a process outside",
        lambda s: call("process_vm_readv", number(s, "victim"), _ONE_BYTE, 1, _ONE_BYTE, 1, 0),
    ),
    forbid(
        "processes",
        "read the environment of a process outside",
        lambda s: _environment_of(number(s, "victim")),
        gap="environment",
    ),
    forbid(
        "processes",
        "open the memory of a process outside",
        lambda s: os.close(os.open(f"/proc/{number(s, 'victim')}/mem", os.O_RDONLY)),
        gap="memory",
    ),
    forbid(
        "processes",
        "take a descriptor of a process outside",
        lambda s: call("pidfd_getfd", os.pidfd_open(number(s, "victim")), 0, 0),
    ),
    forbid("processes", "set limits of a process outside", _same_limit),
    forbid(
        "processes",
        "set the priority of a process outside",
        lambda s: os.setpriority(os.PRIO_PROCESS, number(s, "victim"), _priority(s)),
        gap="priorit",
    ),
    forbid("processes", "read the command line of a process outside", _command_line, gap="command line"),
    allow("processes", "signal a child of one's own", _own_child),
    allow("processes", "read the environment of one's own", lambda _: _environment_of(os.getpid())),
]


def _raise_limit(number: int, value: int) -> None:
    try:
        resource.setrlimit(number, (value + 1, value + 1))
    except ValueError as error:  # how Python tells EPERM here
        raise OSError(errno.EPERM, str(error)) from error


def _raise_limits(stage: Stage) -> None:
    limits = stage.get("limits")
    if not isinstance(limits, list) or not limits:
        raise Untried
    for resource_number, value in limits:
        hard = resource.getrlimit(resource_number)[1]
        if hard == resource.RLIM_INFINITY or hard > value:
            return
        try:
            _raise_limit(resource_number, value)
        except OSError:
            continue
        return
    raise OSError(errno.EPERM, "every limit held")


LIMITS = [
    forbid("limits", "go past the limits", _raise_limits),
    allow("limits", "start a process", _own_child),
]


def _pipe_to_shell(stage: Stage) -> None:
    if not shutil.which("curl"):
        raise Untried
    project = text(stage, "project")
    mark = f"{project}/ran-{os.getpid()}"
    with open(f"{project}/script", "w", encoding="utf-8") as script:
        script.write(f": > '{mark}'\n")
    subprocess.run(  # noqa: S602 - the pipe into a shell is the act
        'curl -s "file://$SCRIPT" | sh',  # noqa: S607 - the user's own curl
        shell=True,
        env={**os.environ, "SCRIPT": f"{project}/script"},
        check=False,
    )
    if not os.path.exists(mark):
        raise OSError(errno.EPERM, "the shell did not run it")


PIPE = [
    forbid("pipe-to-shell", "curl of a local file into sh", _pipe_to_shell, gap="supervisor|curl|pipe|exec"),
    allow(
        "pipe-to-shell",
        "run a script by its name",
        lambda _: subprocess.run(["/bin/sh", "-c", ":"], check=True),
    ),
]
