"""Whether a caller is the program that a policy names, and nothing else besides.

An allowance by program is as good as the program is its own master. The file must be the very one, and it and
every library mapped with it must lie where neither the tree nor the user can write: a plugin, LD_PRELOAD or
SLURM_CONF with a PluginDir of the tree's making brings in a file that is not. No executable page may have been
changed since it was mapped, none may be without a file, and no tracer may be attached.

An interpreter, once allowed, is allowed with every script.

What remains: a process of the tree that traced the program before can have left it registers of its own
choosing, and then this program makes that one call. It gets an address and a port that the policy names, and
no more: a policy that cannot bear it sets `kernel.ptrace = "deny"`.
"""

import posix as os

from guard.kernel import real_path
from guard.kernel.notify import Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.confine.handlers.base import Supervisor

_KERNELS_OWN = (b"[vdso]", b"[vsyscall]", b"[uprobes]")


def is_program(supervisor: "Supervisor", call: "Call", wanted: str) -> bool:
    """Whether a caller runs a program and is nobody's puppet.

    Args:
        supervisor: knows what the tree may write.
        call: of the caller.
        wanted: the program's path, as the policy has it.

    Raises:
        Gone: the caller has ended.
    """
    try:
        file, running = call.outside(_two_files, wanted, call.pid)
    except OSError:
        return False
    if (file.st_dev, file.st_ino) != (running.st_dev, running.st_ino) or call.status("TracerPid"):
        return False
    try:
        with open(f"/proc/{call.pid}/smaps", "rb") as maps:
            lines = maps.read().split(b"\n")
    except OSError:
        return False
    call.check()
    return bool(call.outside(_unspoilt, supervisor, lines, {}))


def _two_files(wanted: str, pid: int) -> "tuple[os.stat_result, os.stat_result]":
    return os.stat(real_path(wanted)), os.stat(f"/proc/{pid}/exe")


def _unspoilt(supervisor: "Supervisor", lines: "list[bytes]", seen: "dict[bytes, bool]") -> bool:
    """Whether all that is executable in a process's smaps is a file's, unchanged, and nobody's here to change."""
    executable = False
    for line in lines:
        words = line.split(None, 5)
        if len(words) >= 5 and b"-" in words[0] and len(words[1]) == 4:
            executable = words[1][2:3] == b"x"
            name = words[5] if len(words) > 5 else b""
            if not executable or name in _KERNELS_OWN:
                executable = False
            elif b"w" in words[1] or not _trusted(supervisor, name, int(words[4]), seen):
                return False
        elif executable and line.startswith(b"Anonymous:") and words[1] != b"0":
            return False  # a page was written to, and copied for it
    return True


def _trusted(supervisor: "Supervisor", name: bytes, inode: int, seen: "dict[bytes, bool]") -> bool:
    if name not in seen:
        seen[name] = _beyond_reach(supervisor, name, inode)
    return seen[name]


def _beyond_reach(supervisor: "Supervisor", name: bytes, inode: int) -> bool:
    if not name.startswith(b"/"):
        return False
    try:
        about = os.stat(name)  # one that was deleted has another name here, and is not found
    except OSError:
        return False
    if about.st_ino != inode or supervisor.may_write(real_path(name.decode("utf-8", "surrogateescape"))):
        return False
    # As root everything can be written, and what the tree may write is all there is to ask.
    return os.geteuid() == 0 or (about.st_uid != os.geteuid() and not os.access(name, os.W_OK))
