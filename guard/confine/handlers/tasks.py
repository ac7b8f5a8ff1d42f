"""Priority, scheduling and affinity: a tree may set its own processes' and threads', nobody else's."""

import posix as os

from guard.confine.handlers import paths
from guard.confine.handlers.base import CONTINUE, Call, Supervisor
from guard.kernel import process_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.confine.handlers.base import Handler

_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1  # each one less than that of a process group
_EPERM, _ESRCH = 1, 3


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
    return _judge_which(supervisor, call, _PRIO_PROCESS)


def ioprio_set(supervisor: "Supervisor", call: "Call") -> int:
    """ioprio_set(which, who, priority)."""
    return _judge_which(supervisor, call, _IOPRIO_WHO_PROCESS)


def scheduling(supervisor: "Supervisor", call: "Call") -> int:
    """sched_setaffinity(pid, …) and its kin."""
    return _judge(supervisor, call, call.args[0] & 0xFFFFFFFF)


def _judge_which(supervisor: "Supervisor", call: "Call", process: int) -> int:
    """Judge a call about a process, a process group (one more than that) or a user."""
    which, who = call.args[0] & 0xFFFFFFFF, call.args[1] & 0xFFFFFFFF
    if which == process:
        return _judge(supervisor, call, who) if who else CONTINUE
    if which != process + 1 or not _is_ours(who or _group_of(call.pid)):
        kind = "a process group" if which == process + 1 else "a user"
        supervisor.decide("processes", "task-outside", f"scheduling of {kind}", _EPERM, call)
    return CONTINUE


def _judge(supervisor: "Supervisor", call: "Call", pid: int) -> int:
    """Let the kernel do it for a task of the tree: the register says which, and a tree's ids stay its own."""
    if not paths.in_tree(pid, os.getpid()):
        try:
            os.stat(f"/proc/{pid}")
        except OSError:
            raise OSError(_ESRCH, "No such process") from None
        supervisor.decide("processes", "task-outside", f"scheduling of process {pid}", _EPERM, call)
    return CONTINUE


def _is_ours(group: int) -> bool:
    """Whether every process of a group is the tree's; the group that guard was started in is not."""
    for name in os.listdir("/proc"):
        if name.isdigit() and _group_of(int(name)) == group and not paths.in_tree(int(name), os.getpid()):
            return False
    return True


def _group_of(pid: int) -> int:
    try:
        return int(process_fields(pid)[2])
    except OSError:
        return -1
