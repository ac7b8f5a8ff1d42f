"""Resolving a path as the caller would: from its root and working directory, `/proc/self` meaning the caller.

The kernel resolves for us one component at a time, so that what a link means is decided here. A link into
a process's own view (`/proc/PID/root`, `/proc/PID/fd/N`) is followed for processes of the tree alone:
Landlock would not let the caller follow another's, and the supervisor must not do it in its stead.
"""

import posix as os

from guard.kernel import O_PATH
from guard.kernel.notify import Call, Gone

AT_FDCWD = 0xFFFFFF9C
_MOST_LINKS = 40  # as the kernel: ELOOP after that
_PROC_ROOT_INODE = 1
_NOFOLLOW = O_PATH | os.O_NOFOLLOW
_ELOOP, _ENOENT, _ENOTDIR, _EACCES, _ENAMETOOLONG = 40, 2, 20, 13, 36

_proc_device: "list[int]" = []


def in_tree(pid: int, above: int) -> bool:
    """Whether a process descends from another, by asking for parents.

    Args:
        pid: a process or thread.
        above: the supervisor; it is the reaper of the whole tree, so no descendant ever leaves it.
    """
    for _ in range(4096):
        if pid == above:
            return True
        if pid <= 1:
            return False
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                text = file.read()
        except OSError:
            return False
        # The name in parentheses may hold anything; the parent stands second after the last one.
        pid = int(text[text.rindex(b")") + 2 :].split()[1])
    return False


def directory(call: "Call", number: int) -> int:
    """Open what a relative path starts from: the caller's working directory or one of its descriptors."""
    if number & 0xFFFFFFFF == AT_FDCWD:
        return _of_caller(call, "cwd")
    return call.descriptor(number)


def _of_caller(call: "Call", name: str) -> int:
    try:
        fd = os.open(f"/proc/{call.pid}/{name}", O_PATH)
    except FileNotFoundError:
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
    root = _of_caller(call, "root")
    try:
        at = os.dup(root) if path.startswith(b"/") else directory(call, start)
        return _walk(call, root, at, path, follow)
    finally:
        os.close(root)


def _walk(call: "Call", root: int, at: int, path: bytes, follow: bool) -> int:
    """Follow `path` from the directory `at`, which is used up."""
    parts = path.split(b"/")
    parts.reverse()
    links = 0
    directory_wanted = path.endswith((b"/", b"/.", b"/.."))
    try:
        while parts:
            part = parts.pop()
            if part in (b"", b"."):
                continue
            if part == b".." and _same(at, root):
                continue
            last = not any(rest not in (b"", b".") for rest in parts)
            part = _own_name(call, at, part)
            below = os.open(part, _NOFOLLOW, dir_fd=at)
            if os.fstat(below).st_mode & 0o170000 != 0o120000 or (last and not follow and not directory_wanted):
                os.close(at)
                at = below
                continue
            links += 1
            if links > _MOST_LINKS:
                os.close(below)
                raise OSError(_ELOOP, "Too many levels of symbolic links")
            target = _magic_target(at, part)
            if target is not None:
                os.close(below)
                if not in_tree(target, os.getpid()):
                    raise OSError(_EACCES, "Permission denied")
                through = os.open(part, O_PATH, dir_fd=at)
                os.close(at)
                at = through
                continue
            try:
                text = os.readlink(b"", dir_fd=below)
            finally:
                os.close(below)
            if text.startswith(b"/"):
                os.close(at)
                at = os.dup(root)
            parts.extend(reversed(text.split(b"/")))
        if directory_wanted and os.fstat(at).st_mode & 0o170000 != 0o040000:
            raise OSError(_ENOTDIR, "Not a directory")
    except BaseException:
        os.close(at)
        raise
    return at


def _same(one: int, other: int) -> bool:
    a, b = os.fstat(one), os.fstat(other)
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)


def _is_proc(fd: int) -> bool:
    if not _proc_device:
        try:
            _proc_device.append(os.stat("/proc").st_dev)
        except OSError:
            _proc_device.append(-1)
    return os.fstat(fd).st_dev == _proc_device[0]


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


def real(fd: int) -> str:
    """The path of what a descriptor refers to, as the supervisor's own /proc tells it."""
    return os.readlink(f"/proc/self/fd/{fd}")
