"""The root of the cgroup2 tree, where bind hooks are attached: in unified, hybrid and v1-only hosts."""

from __future__ import annotations

import os

from guard.errors import MonitorError
from guard.kernel import syscall

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
    try:
        context = syscall("fsopen", b"cgroup2", _CLOEXEC)
        try:
            syscall("fsconfig", context, _CMD_CREATE, None, None, 0)
            return syscall("fsmount", context, _CLOEXEC, 0)
        finally:
            os.close(context)
    except OSError as error:
        raise MonitorError(f"no cgroup2: {error.strerror}", "binds are then seen by listen() alone") from None
