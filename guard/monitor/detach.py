"""`guard monitor --detach`: take every program of the monitor off this kernel, with or without a running monitor."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from contextlib import suppress

from guard.errors import MonitorError
from guard.monitor import pins

SECONDS = 4.0
"""That a running monitor gets to end by itself; the promise is 5 for all."""
_PEERCRED = struct.Struct("=iII")


def detach(listens_at: str) -> tuple[int, int]:
    """Stop the monitor, and take away what is pinned.

    Args:
        listens_at: the unix socket at which a running monitor answers.

    Returns:
        pid of the monitor that was stopped, 0 for none; how many pinned links were taken away.

    Raises:
        MonitorError: a monitor runs and does not end.
    """
    pid = _running(listens_at)
    if pid:
        _stop(pid)
    count = sum(pins.held(generation) for generation in pins.generations())
    pins.keep_only("")
    left = [generation for generation in pins.generations() if pins.held(generation)]
    if left:
        raise MonitorError(f"{left[0]} cannot be removed", "run it as root, where bpffs is mounted writable")
    return pid, count


def _running(path: str) -> int:
    """The pid of the process that listens: the kernel's word, and not a file's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(path)
        except OSError:
            return 0
        raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
        return int(_PEERCRED.unpack(raw)[0])


def _stop(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, sign)
            if select.select([process], [], [], SECONDS if sign is signal.SIGTERM else 1.0)[0]:
                return
    finally:
        os.close(process)
    raise MonitorError(f"the monitor, process {pid}, does not end", "see what it waits for: /proc/PID/stack")
