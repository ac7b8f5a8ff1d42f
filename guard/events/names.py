"""Names of users and groups, each asked for once in a while and never waited for long: a directory can hang."""

from __future__ import annotations

import grp
import os
import pwd
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

KEPT_S: Final = 300.0
WAIT_S: Final = 0.5
"""Seconds that an event waits for a name; then it goes without one."""


class Names:
    """Looks names up in a thread of its own.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[int, tuple[float, str, frozenset[str]]] = {}
        self._asked: queue.SimpleQueue[tuple[int, threading.Event]] = queue.SimpleQueue()
        self._pending: dict[int, threading.Event] = {}
        threading.Thread(target=self._look_up, name="names", daemon=True).start()

    def user(self, uid: int) -> str:
        """The name of a user; empty where there is none, or none was had in time."""
        return self._find(uid)[0]

    def groups(self, uid: int) -> frozenset[str]:
        """The names of a user's groups."""
        return self._find(uid)[1]

    def _find(self, uid: int) -> tuple[str, frozenset[str]]:
        if uid < 0:
            return "", frozenset()
        known = self._known.get(uid)
        if known is not None and self._clock() < known[0]:
            return known[1], known[2]
        done = self._pending.get(uid)
        if done is None:
            done = self._pending[uid] = threading.Event()
            self._asked.put((uid, done))
            done.wait(WAIT_S)
        if done.is_set():
            self._pending.pop(uid, None)
        known = self._known.get(uid, known)
        return (known[1], known[2]) if known else ("", frozenset())

    def _look_up(self) -> None:
        while True:
            uid, done = self._asked.get()
            name, groups = "", frozenset[str]()
            try:
                entry = pwd.getpwuid(uid)
                name = entry.pw_name
                groups = frozenset(map(_group, os.getgrouplist(name, entry.pw_gid)))
            except (KeyError, OverflowError, OSError):
                pass  # a number without a name is an answer too
            if len(self._known) > 20_000:
                self._known.clear()
            self._known[uid] = (self._clock() + KEPT_S, name, groups)
            done.set()


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
