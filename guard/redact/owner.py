"""Root touches a user's file only in a child that has become that user."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING

from guard.errors import GuardError

if TYPE_CHECKING:
    from guard.redact.report import Report


def as_owner(uid: int, gid: int, work: Callable[[Report | None], int], report: Report | None) -> int:
    """Run `work` in a child with the owner's ids and no further groups, and hand back its report.

    Raises:
        GuardError: the child could not do it; the message is its own.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            inner = report.collector() if report is not None else None
            try:
                answer: object = (work(inner), inner.collected if inner is not None else [], "")
            except (GuardError, OSError) as error:
                answer = (0, [], str(error))
            with os.fdopen(writer, "wb") as file:
                file.write(json.dumps(answer).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    _pid, status = os.waitpid(child, 0)
    if status != 0 or not data:
        raise GuardError(f"the child that became uid {uid} died", "look for the reason in the system's log")
    count, rows, problem = json.loads(data)
    if problem:
        raise GuardError(problem)
    if report is not None:
        report.take(rows)
    return int(count)


def other_owner(path: str) -> tuple[int, int] | None:
    """Return (uid, gid) of the user whose regular file root is asked to look through; None where root reads it itself.

    Raises:
        GuardError: a file of a user's that is none to read: a pipe would wait for ever.
    """
    if path == "-" or os.geteuid() != 0:
        return None
    info = os.stat(path)
    if info.st_uid == 0 and os.lstat(path).st_uid == 0:
        return None
    if not stat.S_ISREG(info.st_mode):
        raise GuardError(f"{path} is a user's, and no regular file", "name regular files")
    owner = info if info.st_uid else os.lstat(path)  # a user's link is followed with the user's rights
    return owner.st_uid, owner.st_gid
