"""What an act is: a harmless forbidden thing, or an allowed one beside it, one row each.

The modules of this package are both a table for the one who judges (`guard.confine.prove`) and the program
that is tried: they are copied into a throw-away project and run there by a bare interpreter, once confined
and once not. So they import the standard library and one another, relatively, and nothing else of guard,
whose files need not be readable inside. Each act runs in a child of its own, changes only what was laid
out for it, and asks the kernel for nothing that would do harm if granted: signal 0, limits that are
already so, arguments that make no sense.

An act that fails the same way without guard proves nothing, and is counted as not tried.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import NamedTuple

Stage = dict[str, object]
"""What was laid out: `project`, `outside` (directories), `victim` (pid), ports, socket names, limits."""

UNTRIED, CRASHED, KILLED = 250, 251, 252
"""Results beside 0 (done) and an errno: nothing to try with, a fault of the act, ended by a signal."""


class Act(NamedTuple):
    """One row.

    Args:
        name: said to people.
        control: whose promise it tries.
        allowed: whether it must work (a positive control) or be refused.
        run: does it; OSError when refused.
        gap: a regular expression; only a status that names such a gap excuses that it was not refused.
        unless: `key=word` of a policy that does not promise this.
    """

    name: str
    control: str
    allowed: bool
    run: Callable[[Stage], object]
    gap: str = ""
    unless: str = ""


def forbid(control: str, name: str, run: Callable[[Stage], object], gap: str = "", unless: str = "") -> Act:
    """Make a row of an act that must be refused."""
    return Act(name, control, False, run, gap, unless)


def allow(control: str, name: str, run: Callable[[Stage], object], gap: str = "") -> Act:
    """Make a row of a positive control."""
    return Act(name, control, True, run, gap)


class Untried(Exception):  # noqa: N818 - an outcome
    """There is nothing here to try it with."""


_COLUMN = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine)
_NUMBERS = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "prlimit64": (302, 261),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "personality": (135, 92),
    "unshare": (272, 97),
    "mount": (165, 40),
    "shmget": (29, 194),
    "shmctl": (31, 195),
    "ioctl": (16, 29),
    # From 424 on the same everywhere.
    "io_uring_setup": (425, 425),
    "clone3": (435, 435),
    "pidfd_getfd": (438, 438),
    "fchmodat2": (452, 452),
}


def call(name: str, *args: int | bytes | None) -> int:
    """Make a system call of the table above; `Untried` on another architecture."""
    if _COLUMN is None:
        raise Untried
    return raw(_NUMBERS[name][_COLUMN], *args)


def raw(number: int, *args: int | bytes | None) -> int:
    """Make a system call by number: a result that is not negative, or OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result = int(
        libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    )
    if result < 0:
        raise OSError(ctypes.get_errno(), name_of(ctypes.get_errno()))
    return result


def name_of(code: int) -> str:
    """Name the result of an act: an errno's name, or what else happened."""
    special = {0: "done", UNTRIED: "not tried", CRASHED: "fault of the test", KILLED: "killed"}
    return special.get(code) or (
        "EOPNOTSUPP" if code == errno.EOPNOTSUPP else errno.errorcode.get(code, str(code))
    )


def text(stage: Stage, key: str) -> str:
    """Return a path or name that was laid out, or raise `Untried`."""
    value = stage.get(key)
    if not value:
        raise Untried
    return str(value)


def number(stage: Stage, key: str) -> int:
    """Return a pid or port that was laid out, or raise `Untried`."""
    value = stage.get(key)
    if not isinstance(value, int) or not value:
        raise Untried
    return value


def at(place: str, name: str) -> Callable[[Stage], str]:
    """Return what finds a path in a place once that is laid out."""
    return lambda stage: os.path.join(text(stage, place), name)
