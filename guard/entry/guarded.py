"""Whether we are in a guarded tree already, asked of the kernel: no variable says it, since anybody may set one."""

from __future__ import annotations

import os


def guarded() -> bool:
    """Say whether guard's controls are in force on this process.

    New rights are given up, a filter stands, and a set-user-id bit is refused on a file that exists in memory alone:
    guard's filter refuses that in every policy that ships, and no container's default does.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            lines = dict(line.split(":\t", 1) for line in status.read().splitlines() if ":\t" in line)
    except OSError:
        return False
    if lines.get("NoNewPrivs") != "1" or lines.get("Seccomp") != "2":
        return False
    try:
        handle = os.memfd_create("guard-asks", os.MFD_CLOEXEC)
    except OSError:
        return False
    try:
        os.fchmod(handle, 0o4700)
    except PermissionError:
        return True
    except OSError:
        return False
    else:
        return False
    finally:
        os.close(handle)
