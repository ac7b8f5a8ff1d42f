"""The root of the cgroup2 tree, where bind hooks are attached: in unified, hybrid and v1-only hosts."""

from __future__ import annotations

import ctypes
import os

from guard.errors import MonitorError

_FSOPEN = 430
_FSCONFIG = 431
_FSMOUNT = 432
_CMD_CREATE = 6
_CLOEXEC = 1
_MOUNTS = "/proc/self/mounts"


def root() -> int:
    """Open the root of cgroup2.

    Returns:
        a descriptor; the caller closes it.

    Raises:
        MonitorError: the kernel has none.
    """
    with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            _, at, kind, *_ = line.split()
            if kind == "cgroup2":
                try:
                    return os.open(at, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                except OSError:
                    continue
    # A v1-only host has not mounted it. A mount that stands nowhere is enough, and leaves nothing behind.
    # The three calls have these numbers on every architecture (asm-generic/unistd.h).
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    context = syscall(_FSOPEN, b"cgroup2", _CLOEXEC)
    if context >= 0:
        try:
            if syscall(_FSCONFIG, context, _CMD_CREATE, None, None, 0) == 0:
                mounted = syscall(_FSMOUNT, context, _CLOEXEC, 0)
                if mounted >= 0:
                    return int(mounted)
        finally:
            os.close(context)
    raise MonitorError(f"no cgroup2: {os.strerror(ctypes.get_errno())}", "binds are then seen by listen() alone")
