"""Try first, in a process that may hang: whatever waits for a file system, a name service or a daemon has one deadline.

A process that hangs in the kernel on a dead file system cannot be interrupted, and the one that becomes the shell must
never be it. So a child does everything that a start touches, and only when it says so in time is it done for real.

Waiting is what the deadline is about. Where the node is so busy that the child, or what it started, still runs, wants
to, or has got on in the last half of that time, it gets more of it, up to `PATIENCE` times as much.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress

PATIENCE = 5
LEAST_CALM = 0.5
"""Seconds without any progress, at least, after which something hangs; half of the deadline where that is more."""
_LOOK = 0.1
"""Seconds between two looks at what a child does."""


class Late(Exception):  # noqa: N818 - an outcome, and one that the caller names
    """The trial did not end in time, could not begin, or failed; the text says which."""


def attempt(work: Callable[[], object], seconds: float, patience: float = PATIENCE) -> None:
    """Do something in a child, and return when it has succeeded.

    Args:
        work: must leave no trace but caches.
        seconds: how long it may wait.
        patience: how many times as long it may compute.

    Raises:
        Late: in a few words, why not.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        child = os.fork()
    except OSError as error:
        os.close(reader)
        os.close(writer)
        raise Late(f"no process can be started: {error.strerror}") from None
    if child == 0:
        _be_child(work, writer)
    os.close(writer)
    began = time.monotonic()
    calm = max(LEAST_CALM, seconds / 2)
    seen: dict[int, list[bytes]] | None = None
    moved = began
    said = b""
    try:
        while True:
            wait = _LOOK if seen is not None else max(0.0, began + seconds - calm - time.monotonic())
            if select.select([reader], [], [], wait)[0]:
                part = os.read(reader, 4096)
                if not part:
                    break
                said += part
                continue
            now, found = time.monotonic(), _family(child)
            # Page faults and processor time: a disk that is only slow lets it get on.
            state = {pid: words[7:15] for pid, words in found.items()}
            if state != seen or any(words[0] == b"R" for words in found.values()):
                seen, moved = state, now
            if now > began + patience * seconds or (now > began + seconds and now - moved > calm):
                raise Late(f"no answer within {seconds:g} s: a file system, the name service or a daemon hangs")
    finally:
        os.close(reader)
        _end(child)
    if said != b"ok":
        raise Late(said.decode("utf-8", "replace") or "the trial died")


def _family(child: int) -> dict[int, list[bytes]]:
    """A child and what descends from it: pid → the words of its stat from its state on (proc_pid_stat(5))."""
    parents: dict[int, int] = {}
    stats: dict[int, list[bytes]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                words = file.read().rpartition(b") ")[2].split()
            parents[int(entry)] = child if int(words[2]) == child else int(words[1])
        except (OSError, ValueError, IndexError):
            continue  # it ended meanwhile
        stats[int(entry)] = words
    found = {}
    for pid, words in stats.items():
        above = pid
        while above > 1 and above != child:
            above = parents.get(above, 0)
        if above == child:
            found[pid] = words
    return found


def _be_child(work: Callable[[], object], writer: int) -> None:
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        try:
            work()
            said = b"ok"
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear it
            said = " ".join(str(error).split()).encode()[:1000] or type(error).__name__.encode()
        os.write(writer, said)
    finally:
        os._exit(0)


def _end(child: int) -> None:
    """Take the child away without waiting for one that hangs; init collects that one when we have become the shell."""
    try:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # and what it started
        os.kill(child, signal.SIGKILL)
        for _ in range(20):
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            time.sleep(0.005)
    except (ProcessLookupError, ChildProcessError):
        return
