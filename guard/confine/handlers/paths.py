"""Resolving a path as the caller would: from its root and working directory, `/proc/self` meaning the caller.

The kernel resolves for us one component at a time, so that what a link means is decided here. A link into
a process's own view (`/proc/PID/root`, `/proc/PID/fd/N`) is followed for processes of the tree alone:
Landlock would not let the caller follow another's, and the supervisor must not do it in its stead.
"""

import _ctypes
import fcntl
import posix as os
import sys

from guard.kernel import NUMBERS, O_PATH, Char, libc_syscall, process_fields
from guard.kernel.notify import Call, Gone, Unreadable

AT_FDCWD = 0xFFFFFF9C
_MOST_LINKS = 40  # as the kernel: ELOOP after that
_PROC_ROOT_INODE = 1
_NOFOLLOW = O_PATH | os.O_NOFOLLOW
_EPERM, _ENOENT, _EBADF, _EAGAIN, _EACCES, _ENOTDIR, _ENOSYS, _ELOOP = 1, 2, 9, 11, 13, 20, 38, 40
_FORMAT, _DIRECTORY, _LINK = 0o170000, 0o040000, 0o120000

# openat2: the flags, no mode, RESOLVE_NO_MAGICLINKS.
_OPENAT2 = NUMBERS["openat2"]
_FOLLOWING, _NOT_FOLLOWING = (
    b"".join(word.to_bytes(8, sys.byteorder) for word in (flags, 0, 2)) for flags in (O_PATH, _NOFOLLOW)
)
_UNDECIDED = (_ELOOP, _ENOENT, _EAGAIN, _ENOSYS, _EPERM)
"""Errors that may come of /proc/self being ours, of a link into a process, or of openat2 itself."""

_FSTATFS = NUMBERS.get("fstatfs", -1)
_STATFS, _PROC_MAGIC = 120, 0x9FA0  # sizeof struct statfs on 64 bits; linux/magic.h


class _Statfs(_ctypes.Array):  # type: ignore[type-arg]
    _type_ = Char
    _length_ = _STATFS


def in_tree(pid: int, above: int) -> bool:
    """Whether a process descends from another (and is not it), by asking for parents.

    Args:
        pid: a process or thread.
        above: the supervisor; it is the reaper of the whole tree, so no descendant ever leaves it.
    """
    start = pid
    for _ in range(3):  # a parent may end while we ask, and its children are ours then
        for _ in range(4096):
            if pid == above:
                return pid != start
            if pid <= 1:
                return False
            try:
                pid = int(process_fields(pid)[1])
            except OSError:
                break
        if pid == start:
            return False
        pid = start
    return False


def directory(call: "Call", number: int) -> int:
    """Open what a relative path starts from: the caller's working directory or one of its descriptors."""
    if number & 0xFFFFFFFF == AT_FDCWD:
        found: int = call.outside(_of_caller, call, "cwd")
        return found
    return call.descriptor(number)


def _of_caller(call: "Call", name: str) -> int:
    try:
        fd = os.open(f"/proc/{call.pid}/{name}", O_PATH)
    except PermissionError:
        call.check()
        raise Unreadable from None
    except OSError:
        raise Gone from None
    try:
        call.check()
    except Gone:
        os.close(fd)
        raise
    return fd


def resolve(call: "Call", start: int, path: bytes, follow: bool = True) -> int:
    """Open a path for the caller, O_PATH; ours to close.

    Args:
        call: whose path it is.
        start: as the call's own argument: a descriptor number or AT_FDCWD.
        path: not empty.
        follow: whether a link in the last component is followed.

    Raises:
        OSError: as the kernel would answer.
    """
    if not path:
        raise OSError(_ENOENT, "No such file or directory")
    found: int = call.outside(_resolve, call, start, path, follow)
    return found


def _resolve(call: "Call", start: int, path: bytes, follow: bool) -> int:
    absolute = path.startswith(b"/")
    at = -1 if absolute else directory(call, start)
    try:
        if _shares_our_root(call):
            # The kernel may walk it all in one call, where no link means the supervisor instead of the caller.
            fd: int = libc_syscall(_OPENAT2, at, path, _FOLLOWING if follow else _NOT_FOLLOWING, len(_FOLLOWING))
            if fd >= 0:
                if not _is_proc(fd):
                    return fd
                os.close(fd)
            else:
                code = _ctypes.get_errno()
                if code not in _UNDECIDED:
                    raise OSError(code, os.strerror(code))
        root = _of_caller(call, "root")
        try:
            return _walk(call, root, os.dup(root if absolute else at), path, follow)
        finally:
            os.close(root)
    finally:
        if not absolute:
            os.close(at)


def _shares_our_root(call: "Call") -> bool:
    """Whether `/` is for the caller what it is for us; below Landlock nobody can mount something else on it."""
    try:
        theirs = os.stat(f"/proc/{call.pid}/root")
    except PermissionError:
        call.check()
        raise Unreadable from None
    except OSError:
        raise Gone from None
    ours = os.stat("/")
    return theirs.st_ino == ours.st_ino and theirs.st_dev == ours.st_dev


def _walk(call: "Call", root: int, at: int, path: bytes, follow: bool) -> int:
    """Follow `path` from the directory `at`, which is used up, one component at a time."""
    parts = path.split(b"/")
    parts.reverse()
    links = 0
    directory_wanted = path.endswith(b"/")
    try:
        while parts:
            part = parts.pop()
            if not part or (part == b".." and _same(at, root)):
                continue
            last = not any(parts)
            kept = last and not follow and not directory_wanted  # should it be a link, it is what was asked for
            if not kept:
                part = _own_name(call, at, part)
            below = os.open(part, _NOFOLLOW, dir_fd=at)
            about = os.fstat(below)
            if kept or about.st_mode & _FORMAT != _LINK:
                os.close(at)
                at = below
                continue
            try:
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(_ELOOP, "Too many levels of symbolic links")
                target = _magic_target(at, part)
                if target is None:
                    if last:
                        _judge_link(at, about.st_uid)
                    text = os.readlink(b"", dir_fd=below)
            finally:
                os.close(below)
            if target is not None:
                if not in_tree(target, os.getpid()):
                    raise OSError(_EACCES, "Permission denied")  # noqa: TRY301 - what is open is closed below
                through = os.open(part, O_PATH, dir_fd=at)
                os.close(at)
                at = through
                continue
            if text.startswith(b"/"):
                os.close(at)
                at = -1  # should dup fail, there is nothing to close
                at = os.dup(root)
            directory_wanted = directory_wanted or (last and text.endswith(b"/"))
            parts.extend(reversed(text.split(b"/")))
        if directory_wanted and os.fstat(at).st_mode & _FORMAT != _DIRECTORY:
            raise OSError(_ENOTDIR, "Not a directory")  # noqa: TRY301 - as above
    except BaseException:
        if at >= 0:
            os.close(at)
        raise
    return at


def _judge_link(at: int, owner: int) -> None:
    """fs.protected_symlinks: in a directory like /tmp, another user's link is not followed."""
    about = os.fstat(at)
    if about.st_mode & 0o1002 != 0o1002 or owner in (about.st_uid, os.geteuid()):
        return
    try:
        with open("/proc/sys/fs/protected_symlinks", "rb") as file:
            on = file.read(1) != b"0"
    except OSError:
        on = True
    if on:
        raise OSError(_EACCES, "Permission denied")


def _same(one: int, other: int) -> bool:
    a, b = os.fstat(one), os.fstat(other)
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)


def _is_proc(fd: int) -> bool:
    about = bytearray(_STATFS)
    if libc_syscall(_FSTATFS, fd, _Statfs.from_buffer(about)) < 0:
        return True  # what cannot be asked is walked by hand
    return int.from_bytes(about[:8], sys.byteorder) == _PROC_MAGIC


def _own_name(call: "Call", at: int, part: bytes) -> bytes:
    """In the root of /proc, `self` and `thread-self` are the caller, not the supervisor."""
    if part not in (b"self", b"thread-self") or not _is_proc(at) or os.fstat(at).st_ino != _PROC_ROOT_INODE:
        return part
    group = call.status("Tgid")
    return b"%d" % group if part == b"self" else b"%d/task/%d" % (group, call.pid)


def _magic_target(at: int, part: bytes) -> "int | None":
    """The process whose view a link in /proc leads into; None for an ordinary link."""
    if not _is_proc(at):
        return None
    place = os.readlink(f"/proc/self/fd/{at}").split("/")
    if len(place) < 3 or place[1] != "proc" or not place[2].isdigit():
        return None
    if place[-1] in ("fd", "map_files", "ns") or part in (b"root", b"cwd", b"exe"):
        return int(place[2])
    return None


def refuse_path_only(fd: int) -> None:
    """Raise EBADF for a descriptor that only names a file (O_PATH), as calls by descriptor do."""
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH:
        raise OSError(_EBADF, "Bad file descriptor")


def about(call: "Call", fd: int) -> "os.stat_result":
    """What the file system says of an open file: after a while it asks its server again."""
    found: os.stat_result = call.outside(os.fstat, fd)
    return found


def real(fd: int) -> str:
    """The path of what a descriptor refers to, as the supervisor's own /proc tells it."""
    return os.readlink(f"/proc/self/fd/{fd}")
