"""Priority, scheduling and affinity: a tree may set its own processes' and threads', nobody else's."""

import posix as os

from guard.confine.handlers import paths
from guard.confine.handlers.base import CONTINUE, Call, Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.confine.handlers.base import Handler

_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1


def handlers(supervisor: "Supervisor") -> "dict[str, Handler]":
    """The calls of this file."""
    return {
        "setpriority": setpriority,
        "ioprio_set": ioprio_set,
        "sched_setaffinity": scheduling,
        "sched_setscheduler": scheduling,
        "sched_setparam": scheduling,
        "sched_setattr": scheduling,
    }


def setpriority(supervisor: "Supervisor", call: "Call") -> int:
    """setpriority(which, who, priority)."""
    return _judge(supervisor, call, call.args[1], call.args[0] & 0xFFFFFFFF == _PRIO_PROCESS)


def ioprio_set(supervisor: "Supervisor", call: "Call") -> int:
    """ioprio_set(which, who, priority)."""
    return _judge(supervisor, call, call.args[1], call.args[0] & 0xFFFFFFFF == _IOPRIO_WHO_PROCESS)


def scheduling(supervisor: "Supervisor", call: "Call") -> int:
    """sched_setaffinity(pid, …) and its kin."""
    return _judge(supervisor, call, call.args[0], True)


def _judge(supervisor: "Supervisor", call: "Call", number: int, one: bool) -> int:
    """Let the kernel do it for a task of the tree: the register says which, and a tree's ids stay its own.

    A whole process group or user (`one` is false) may reach beyond the tree.
    """
    pid = number & 0xFFFFFFFF
    if one and not _exists(pid):
        raise OSError(3, "No such process")
    if not one or not paths.in_tree(pid, os.getpid()):
        supervisor.decide("processes", "task-outside", f"scheduling of {'process' if one else 'group'} {pid}", 1, call)
    return CONTINUE


def _exists(pid: int) -> bool:
    try:
        os.stat(f"/proc/{pid}")
    except OSError:
        return False
    return True
