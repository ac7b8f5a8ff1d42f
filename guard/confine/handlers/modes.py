"""World-writable modes and set-user-id bits: chmod in all its forms, and umask.

The mode is judged, then set on the very file that was judged, through its descriptor. `strip` does what was
asked without the bit that lets everybody write. A set-group-id bit on a directory is how groups share and
passes; on anything else it is a program's, and does not.
"""

import posix as os

from guard.confine.handlers import paths
from guard.confine.handlers.base import Call, Denied, Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.confine.handlers.base import Handler

_EPERM = 1
_OTHERS_WRITE, _SETUID, _SETGID = 0o2, 0o4000, 0o2000
_AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = 0x100, 0x1000
_FORMAT, _DIRECTORY, _LINK = 0o170000, 0o040000, 0o120000


def handlers(supervisor: "Supervisor") -> "dict[str, Handler]":
    """The calls of this file."""
    return {"chmod": chmod, "fchmod": fchmod, "fchmodat": fchmodat, "fchmodat2": fchmodat2, "umask": umask}


def chmod(supervisor: "Supervisor", call: "Call") -> int:
    """chmod(path, mode)."""
    return _by_path(supervisor, call, paths.AT_FDCWD, call.string(call.args[0]), call.args[1], 0)


def fchmodat(supervisor: "Supervisor", call: "Call") -> int:
    """fchmodat(directory, path, mode); the call itself has no flags."""
    return _by_path(supervisor, call, call.args[0], call.string(call.args[1]), call.args[2], 0)


def fchmodat2(supervisor: "Supervisor", call: "Call") -> int:
    """fchmodat2(directory, path, mode, flags)."""
    flags = call.args[3] & 0xFFFFFFFF
    if flags & ~(_AT_SYMLINK_NOFOLLOW | _AT_EMPTY_PATH):
        raise OSError(22, "Invalid argument")
    return _by_path(supervisor, call, call.args[0], call.string(call.args[1]), call.args[2], flags)


def fchmod(supervisor: "Supervisor", call: "Call") -> int:
    """fchmod(descriptor, mode)."""
    fd = call.descriptor(call.args[0])
    try:
        paths.refuse_path_only(fd)
        mode = judge(supervisor, call, fd, call.args[1])
        call.check()
        call.outside(os.chmod, fd, mode)
    finally:
        os.close(fd)
    return 0


def _by_path(supervisor: "Supervisor", call: "Call", start: int, path: bytes, mode: int, flags: int) -> int:
    if not path and flags & _AT_EMPTY_PATH:
        fd = paths.directory(call, start)
    else:
        fd = paths.resolve(call, start, path, not flags & _AT_SYMLINK_NOFOLLOW)
    try:
        mode = judge(supervisor, call, fd, mode)
        call.check()
        call.outside(os.chmod, f"/proc/self/fd/{fd}", mode)
    finally:
        os.close(fd)
    return 0


def judge(supervisor: "Supervisor", call: "Call", fd: int, mode: int) -> int:
    """Return the mode that may be set on an open file.

    Raises:
        Denied: none may.
        OSError: a symbolic link has none (EOPNOTSUPP).
    """
    mode &= 0o7777
    about = paths.about(call, fd)
    kind = about.st_mode & _FORMAT
    if kind == _LINK:
        raise OSError(95, "Operation not supported")
    if about.st_uid != os.geteuid():
        return mode  # the kernel refuses: neither the caller nor we have CAP_FOWNER
    real = paths.real(fd)
    supervisor.check_metadata(call, real, "chmod")
    if mode & _SETUID or (mode & _SETGID and kind != _DIRECTORY):
        supervisor.decide("setuid", "setuid-mode", f"chmod {mode:04o} {real}", _EPERM, call)
    if mode & _OTHERS_WRITE:
        what = f"chmod {mode:04o} {real}"
        if supervisor.strips():
            supervisor.tell("world-writable", "world-writable-mode", "rewritten", what, "", call.pid, "low")
            return mode & ~_OTHERS_WRITE
        supervisor.decide("world-writable", "world-writable-mode", what, _EPERM, call)
    return mode


def umask(supervisor: "Supervisor", call: "Call") -> int:
    """umask(mask) with a mask that would let others write: the mask stays, its old value is told truly."""
    return call.status("Umask", 8)


__all__ = ["Denied", "handlers", "judge"]
