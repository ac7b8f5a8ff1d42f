"""Removing what dead sessions left in their temporary directories, beside the session that starts."""

import os
import shutil


def remove_dead(shelf: str, names: "list[str]", locks: "set[int]") -> None:
    """Remove the directories of sessions of which nothing is left.

    Runs in a process of its own, which lets go of everything it inherited: a pipe held open here
    would keep its reader waiting.

    Args:
        shelf: the directory of the user's sessions.
        names: those whose lock was free; it is held for us now.
        locks: the locks' descriptors.
    """
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    for text in os.listdir("/proc/self/fd"):
        if int(text) > 2 and int(text) not in locks:
            try:
                os.close(int(text))
            except OSError:
                continue
    alive = named_in_environments(shelf)
    for name in names:
        if name not in alive:
            shutil.rmtree(f"{shelf}/{name}", ignore_errors=True)


def named_in_environments(shelf: str) -> "set[str]":
    """The sessions whose directory some process of ours names: it may have closed the lock it inherited."""
    mark = os.fsencode(shelf) + b"/"
    found = set()
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                with open(f"/proc/{pid}/environ", "rb") as block:
                    content = block.read()
            except OSError:
                continue
            for piece in content.split(mark)[1:]:
                found.add(os.fsdecode(piece.partition(b"/")[0].partition(b"\0")[0]))
    return found
