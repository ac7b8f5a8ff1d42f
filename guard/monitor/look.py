"""Looks at files that others own, with a deadline: the file system under a path may never answer.

A daemon of root that calls stat on an agent's path stands still on the agent's FUSE mount. So a thread looks, and
nobody waits longer than the deadline; while one is stuck, the next is not looked at.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, replace

from guard.monitor.facts import Mode
from guard.monitor.patience import Patience

DEADLINE = 0.05
"""Seconds for one look."""
_RETRY = 0.005


@dataclass(frozen=True)
class Behind:
    """A file.

    Args:
        name: without directories.
        device: as the kernel numbers it.
        inode: its number.
        uid: its owner.
    """

    name: bytes
    device: int
    inode: int
    uid: int


class Looker:
    """One thread that looks."""

    def __init__(self) -> None:
        self._patience = Patience(DEADLINE, most=1)

    def mode(self, path: bytes, wanted: int = 0) -> int:
        """st_mode of a path, links not followed.

        Args:
            path: absolute.
            wanted: bits that are to appear: what was only asked for may be made a moment later.

        Returns:
            the mode, -1: not there, not known, or no answer in time.
        """
        return self._patience.ask(lambda: _mode(path, wanted), -1)

    def settle(self, fact: Mode, unsure: bool, keep: bool = False) -> Mode | None:
        """Add what only the file itself tells: whether it was made, and of what a sticky bit is.

        Args:
            fact: as the kernel told it.
            unsure: it says what was asked, and not what was done.
            keep: what is unsure and cannot be looked at is taken as done.

        Returns:
            the fact; None: it was not done.
        """
        if not unsure and (stat.S_IFMT(fact.mode) or not fact.mode & stat.S_ISVTX):
            return fact
        mode = self.mode(fact.path, stat.S_IWOTH if unsure and not keep else 0)
        if unsure:
            if mode < 0:
                return fact if keep else None
            return replace(fact, mode=mode) if mode & stat.S_IWOTH else None
        return replace(fact, mode=fact.mode | stat.S_IFMT(mode)) if mode >= 0 else fact

    def behind(self, pid: int, path: bytes) -> Behind | None:
        """The file that a path of a process leads to, links followed; None: not there, or no answer in time."""
        return self._patience.ask(lambda: _behind(pid, path), None)

    def close(self) -> None:
        """End the thread, unless it is stuck: then it ends with the process."""
        self._patience.close()


def _mode(path: bytes, wanted: int) -> int:
    end = time.monotonic() + DEADLINE
    while True:
        try:
            mode = os.lstat(path).st_mode
        except (OSError, ValueError):
            mode = -1
        if not wanted or (mode >= 0 and mode & wanted) or time.monotonic() > end:
            return mode
        time.sleep(_RETRY)


def _behind(pid: int, path: bytes) -> Behind | None:
    base = os.readlink(f"/proc/{pid}/cwd".encode())
    real = os.path.realpath(os.path.join(base, path))
    status = os.stat(real)
    return Behind(os.path.basename(real), kernel_device(status.st_dev), status.st_ino, status.st_uid)


def kernel_device(device: int) -> int:
    """A device as the kernel numbers it: major << 20 | minor."""
    return os.major(device) << 20 | os.minor(device)
