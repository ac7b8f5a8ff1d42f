"""Acts on what a file is allowed to others: modes, ACLs, flags, times."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from . import Stage, allow, at, call, forbid


def _setflags(high: int) -> None:
    reader, _ = os.pipe()  # ENOTTY from a pipe: a filter answers before the pipe does
    call("ioctl", reader, high | 0x40086602, b"\0" * 8)


def _mode(place: str, mode: int) -> Callable[[Stage], None]:
    return lambda stage: _check(at(place, "plain")(stage), mode, os.chmod)


def _check(path: str, mode: int, change: Callable[[str, int], object]) -> None:
    """Change a mode; a success that left the mode as it was is a refusal too, as far as the promise goes."""
    change(path, mode)
    if stat.S_IMODE(os.stat(path).st_mode) != mode:
        raise OSError(errno.EPERM, "said to be done, but not done")


def _created(stage: Stage, make: Callable[[str], object], bit: int) -> None:
    """Make a file; made without the bit is refused too, as far as the promise goes."""
    os.umask(0)
    path = at("project", f"made-{os.getpid()}")(stage)
    make(path)
    if not os.stat(path).st_mode & bit:
        raise OSError(errno.EPERM, "made without the bit")


def _make_file(mode: int) -> Callable[[str], None]:
    return lambda path: _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)


def _fchmod(path: str, mode: int) -> None:
    os.fchmod(os.open(path, os.O_RDONLY), mode)


def _fchmodat2(path: str, mode: int) -> None:
    call("fchmodat2", -100, os.fsencode(path), mode, 0)


METADATA = [
    forbid(
        "metadata",
        "give an ACL to a file in the project",
        lambda s: os.setxattr(at("project", "plain")(s), "system.posix_acl_access", b"\2\0\0\0 senseless"),
        unless="kernel.xattr=allow",
    ),
    forbid("metadata", "set inode flags", lambda _: _setflags(0)),
    forbid("metadata", "set inode flags, high bits set", lambda _: _setflags(1 << 40)),
    forbid(
        "metadata", "change the mode of a file outside", _mode("outside", 0o640), gap="chmod|mode|outside"
    ),
    forbid(
        "metadata",
        "change the times of a file outside",
        lambda s: os.utime(at("outside", "plain")(s)),
        gap="time|outside",
    ),
    forbid(
        "metadata",
        "change the group of a file outside",
        lambda s: os.chown(at("outside", "plain")(s), -1, os.getgid()),
        gap="chown|owner|outside",
    ),
    allow("metadata", "change a mode in the project", _mode("project", 0o750)),
    allow("metadata", "change times in the project", lambda s: os.utime(at("project", "plain")(s))),
]

WORLD = [
    forbid("world-writable", "chmod 666", _mode("project", 0o666)),
    forbid("world-writable", "fchmod 666", lambda s: _check(at("project", "plain")(s), 0o666, _fchmod)),
    forbid("world-writable", "fchmodat2 666", lambda s: _check(at("project", "plain")(s), 0o666, _fchmodat2)),
    forbid("world-writable", "make a file 666, umask 0", lambda s: _created(s, _make_file(0o666), 0o002)),
    forbid(
        "world-writable",
        "make a directory 777, umask 0",
        lambda s: _created(s, lambda path: os.mkdir(path, 0o777), 0o002),
    ),
    allow("world-writable", "chmod 664", _mode("project", 0o664)),
]


def _shared_directory(stage: Stage) -> None:
    os.chmod(at("project", "one")(stage), 0o2770)  # noqa: S103 - how groups share a directory


SETUID = [
    forbid("setuid", "chmod 4755", _mode("project", 0o4755)),
    forbid("setuid", "chmod 2755 on a file", _mode("project", 0o2755), gap="setgid|set-group-id|group"),
    forbid("setuid", "make a file 4755", lambda s: _created(s, _make_file(0o4755), stat.S_ISUID)),
    forbid(
        "setuid",
        "mknod 4755",
        lambda s: _created(s, lambda path: os.mknod(path, stat.S_IFREG | 0o4755), stat.S_ISUID),
    ),
    allow("setuid", "chmod 2770 on a directory", _shared_directory),
]


def _open(path: str, flags: int, mode: int) -> None:
    os.close(os.open(path, flags | os.O_CLOEXEC, mode))
