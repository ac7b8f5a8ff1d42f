"""Owner, times, extended attributes and access lists of files: only of those the tree may write.

Each call is done by the supervisor on the file it judged, through its descriptor.
"""

import _struct as struct
import posix as os

from guard.confine.handlers import paths
from guard.confine.handlers.base import Call, Supervisor
from guard.kernel import syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.confine.handlers.base import Handler

_AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = 0x100, 0x1000
_FORMAT, _LINK, _DEVICE = 0o170000, 0o120000, 0o020000
_EPERM, _E2BIG, _EFAULT, _EINVAL, _ERANGE, _ENAMETOOLONG, _EOPNOTSUPP = 1, 7, 14, 22, 34, 36, 95
_XATTR_SIZE_MAX, _XATTR_NAME_MAX, _XATTR_FLAGS = 65536, 255, 3
_MAY_BE_SET = (b"user.", b"lustre.")
_ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
_ACL_OTHER, _ACL_WRITE = 0x20, 2


def handlers(supervisor: "Supervisor") -> "dict[str, Handler]":
    """The calls of this file."""
    return {
        "chown": lambda s, c: _chown(s, c, paths.AT_FDCWD, c.string(c.args[0]), c.args[1], c.args[2], True),
        "lchown": lambda s, c: _chown(s, c, paths.AT_FDCWD, c.string(c.args[0]), c.args[1], c.args[2], False),
        "fchown": fchown,
        "fchownat": fchownat,
        "utime": utime,
        "utimes": lambda s, c: _utimes(s, c, paths.AT_FDCWD, c.args[0], c.args[1]),
        "futimesat": lambda s, c: _utimes(s, c, c.args[0], c.args[1], c.args[2]),
        "utimensat": utimensat,
        "setxattr": lambda s, c: _set_attribute(s, c, True),
        "lsetxattr": lambda s, c: _set_attribute(s, c, False),
        "fsetxattr": lambda s, c: _set_attribute(s, c, None),
        "removexattr": lambda s, c: _remove_attribute(s, c, True),
        "lremovexattr": lambda s, c: _remove_attribute(s, c, False),
        "fremovexattr": lambda s, c: _remove_attribute(s, c, None),
    }


# Owner --------------------------------------------------------------------------------------------------


def fchown(supervisor: "Supervisor", call: "Call") -> int:
    """fchown(descriptor, user, group)."""
    fd = call.descriptor(call.args[0])
    try:
        _judge(supervisor, call, fd, "chown")
        call.outside(syscall, "fchown", fd, call.args[1] & 0xFFFFFFFF, call.args[2] & 0xFFFFFFFF)
    finally:
        os.close(fd)
    return 0


def fchownat(supervisor: "Supervisor", call: "Call") -> int:
    """fchownat(directory, path, user, group, flags)."""
    start, user, group, flags = call.args[0], call.args[2], call.args[3], call.args[4] & 0xFFFFFFFF
    if flags & ~(_AT_SYMLINK_NOFOLLOW | _AT_EMPTY_PATH):
        raise OSError(_EINVAL, "Invalid argument")
    path = call.string(call.args[1])
    if not path and flags & _AT_EMPTY_PATH:
        return _chown_open(supervisor, call, paths.directory(call, start), user, group)
    return _chown(supervisor, call, start, path, user, group, not flags & _AT_SYMLINK_NOFOLLOW)


def _chown(supervisor: "Supervisor", call: "Call", start: int, path: bytes, user: int, group: int, follow: bool) -> int:
    return _chown_open(supervisor, call, paths.resolve(call, start, path, follow), user, group)


def _chown_open(supervisor: "Supervisor", call: "Call", fd: int, user: int, group: int) -> int:
    try:
        _judge(supervisor, call, fd, "chown")
        call.outside(syscall, "fchownat", fd, b"", user & 0xFFFFFFFF, group & 0xFFFFFFFF, _AT_EMPTY_PATH)
    finally:
        os.close(fd)
    return 0


def _judge(supervisor: "Supervisor", call: "Call", fd: int, act: str) -> None:
    """The last look before the act: where the file lies, and whether the caller still waits.

    Another user's file without the right to write it is the kernel's to refuse, and no event.
    """
    about = paths.about(call, fd)
    real = paths.real(fd)
    if act == "utimensat" and about.st_mode & _FORMAT == _DEVICE:
        pass  # `touch /dev/null`: a character device's times tell nobody anything
    elif about.st_uid == os.geteuid() or (
        act != "chown" and call.outside(os.access, f"/proc/self/fd/{fd}", os.W_OK)
    ):
        supervisor.check_metadata(call, real, act)
    call.check()


# Times --------------------------------------------------------------------------------------------------

_UTIME_OMIT = 0x3FFFFFFE
_MICROSECONDS = 1_000_000


def utimensat(supervisor: "Supervisor", call: "Call") -> int:
    """utimensat(directory, path, times[2], flags); without a path it is the descriptor's own file."""
    start, path_at, times_at, flags = call.args[0], call.args[1], call.args[2], call.args[3] & 0xFFFFFFFF
    times = None
    if times_at:
        times = call.read(times_at, 32)
        _, access, _, change = struct.unpack("@4q", times)
        if access == change == _UTIME_OMIT:
            return 0  # nothing is asked for; the kernel does not look at the path either
    if not path_at and start & 0xFFFFFFFF != paths.AT_FDCWD:
        if flags:
            raise OSError(_EINVAL, "Invalid argument")
        return _set_open_times(supervisor, call, start, times)
    if flags & ~(_AT_SYMLINK_NOFOLLOW | _AT_EMPTY_PATH):
        raise OSError(_EINVAL, "Invalid argument")
    path = call.string(path_at)
    if not path and flags & _AT_EMPTY_PATH:
        return _set_times(supervisor, call, paths.directory(call, start), times)
    return _set_times(supervisor, call, paths.resolve(call, start, path, not flags & _AT_SYMLINK_NOFOLLOW), times)


def utime(supervisor: "Supervisor", call: "Call") -> int:
    """utime(path, {access, change} in seconds)."""
    times = None
    if call.args[1]:
        access, change = struct.unpack("@2q", call.read(call.args[1], 16))
        times = struct.pack("@4q", access, 0, change, 0)
    return _set_times(supervisor, call, paths.resolve(call, paths.AT_FDCWD, call.string(call.args[0])), times)


def _utimes(supervisor: "Supervisor", call: "Call", start: int, path_at: int, times_at: int) -> int:
    """Microseconds, for utimes and futimesat; futimesat without a path is the descriptor's own file."""
    times = None
    if times_at:
        s1, u1, s2, u2 = struct.unpack("@4q", call.read(times_at, 32))
        if not (0 <= u1 < _MICROSECONDS and 0 <= u2 < _MICROSECONDS):
            raise OSError(_EINVAL, "Invalid argument")
        times = struct.pack("@4q", s1, u1 * 1000, s2, u2 * 1000)
    if not path_at and start & 0xFFFFFFFF != paths.AT_FDCWD:
        return _set_open_times(supervisor, call, start, times)
    return _set_times(supervisor, call, paths.resolve(call, start, call.string(path_at)), times)


def _set_open_times(supervisor: "Supervisor", call: "Call", number: int, times: "bytes | None") -> int:
    fd = call.descriptor(number)
    try:
        _judge(supervisor, call, fd, "utimensat")
        call.outside(syscall, "utimensat", fd, None, times, 0)
    finally:
        os.close(fd)
    return 0


def _set_times(supervisor: "Supervisor", call: "Call", fd: int, times: "bytes | None") -> int:
    try:
        _judge(supervisor, call, fd, "utimensat")
        call.outside(syscall, "utimensat", fd, b"", times, _AT_EMPTY_PATH)  # since 5.8; links too
    finally:
        os.close(fd)
    return 0


# Extended attributes ------------------------------------------------------------------------------------


def _file(call: "Call", follow: "bool | None") -> int:
    """The file of an attribute call: by path, followed or not, or by descriptor (None)."""
    if follow is None:
        fd = call.descriptor(call.args[0])
        try:
            paths.refuse_path_only(fd)
        except OSError:
            os.close(fd)
            raise
        return fd
    return paths.resolve(call, paths.AT_FDCWD, call.string(call.args[0]), follow)


def _name(call: "Call") -> bytes:
    """The attribute's name, if it is one that a tree may set.

    Those of other name spaces are the security modules' or root's, and other systems' access lists (NFSv4, CIFS)
    are refused as not supported, so that `cp -a` goes on.
    """
    try:
        name = call.string(call.args[1], _XATTR_NAME_MAX + 1)
    except OSError as error:
        raise OSError(_ERANGE if error.errno == _ENAMETOOLONG else _EFAULT, "attribute's name") from None
    if not name:
        raise OSError(_ERANGE, "Numerical result out of range")
    if not name.startswith(_MAY_BE_SET) and name not in _ACLS:
        raise OSError(_EOPNOTSUPP, "Operation not supported")
    return name


def _set_attribute(supervisor: "Supervisor", call: "Call", follow: "bool | None") -> int:
    size, flags = call.args[3], call.args[4] & 0xFFFFFFFF
    if flags & ~_XATTR_FLAGS:
        raise OSError(_EINVAL, "Invalid argument")
    name = _name(call)
    if size > _XATTR_SIZE_MAX:
        raise OSError(_E2BIG, "Argument list too long")
    value = call.read(call.args[2], size) if size else b""
    fd = _file(call, follow)
    try:
        _refuse_link(call, fd, name)
        _judge(supervisor, call, fd, "setxattr")
        if name in _ACLS:
            value = _judge_acl(supervisor, call, fd, value)
        if follow is None:
            call.outside(syscall, "fsetxattr", fd, name, value, len(value), flags)
        else:
            call.outside(syscall, "setxattr", b"/proc/self/fd/%d" % fd, name, value, len(value), flags)
    finally:
        os.close(fd)
    return 0


def _remove_attribute(supervisor: "Supervisor", call: "Call", follow: "bool | None") -> int:
    name = _name(call)
    fd = _file(call, follow)
    try:
        _refuse_link(call, fd, name)
        _judge(supervisor, call, fd, "removexattr")
        if follow is None:
            call.outside(syscall, "fremovexattr", fd, name)
        else:
            call.outside(syscall, "removexattr", b"/proc/self/fd/%d" % fd, name)
    finally:
        os.close(fd)
    return 0


def _refuse_link(call: "Call", fd: int, name: bytes) -> None:
    """A link has no attributes that users may set; refused as the kernel does (xattr_permission)."""
    if paths.about(call, fd).st_mode & _FORMAT == _LINK:
        code = _EOPNOTSUPP if name in _ACLS else _EPERM
        raise OSError(code, os.strerror(code))


def _judge_acl(supervisor: "Supervisor", call: "Call", fd: int, value: bytes) -> bytes:
    """Take the write right of `other` out of an access list, or refuse it (posix_acl_xattr.h)."""
    if len(value) < 4 or (len(value) - 4) % 8:
        return value  # none: the kernel says what is wrong with it
    entries = bytearray(value)
    for at in range(4, len(value), 8):
        tag, rights, _ = struct.unpack_from("<HHI", value, at)
        if tag == _ACL_OTHER and rights & _ACL_WRITE:
            what = f"access list for others on {paths.real(fd)}"
            if supervisor.strips():
                struct.pack_into("<H", entries, at + 2, rights & ~_ACL_WRITE)
                supervisor.tell("world-writable", "world-writable-acl", "rewritten", what, "", call.pid, "low")
            else:
                supervisor.decide("world-writable", "world-writable-acl", what, _EPERM, call)
    return bytes(entries)
