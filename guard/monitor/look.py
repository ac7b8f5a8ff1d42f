"""Looks at files that others own, with a deadline: the file system under a path may never answer.

A daemon of root that calls stat on an agent's path stands still on the agent's FUSE mount. So a thread looks, and
nobody waits longer than the deadline; while one is stuck, the next is not looked at.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from dataclasses import dataclass

DEADLINE = 0.05
"""Seconds for one look."""
_RETRY = 0.005


@dataclass
class _Question:
    path: bytes
    wanted: int
    done: threading.Event
    mode: int = -1


class Looker:
    """One thread that calls lstat."""

    def __init__(self) -> None:
        self._questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy: _Question | None = None

    def mode(self, path: bytes, wanted: int = 0) -> int:
        """st_mode of a path, links not followed.

        Args:
            path: absolute.
            wanted: bits that are to appear: what was only asked for may be made a moment later.

        Returns:
            the mode, -1: not there, not known, or no answer in time.
        """
        if self._busy is not None and not self._busy.done.is_set():
            return -1
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="look")
            self._thread.start()
        question = _Question(path, wanted, threading.Event())
        self._busy = question
        self._questions.put(question)
        question.done.wait(DEADLINE)
        return question.mode

    def close(self) -> None:
        """End the thread, unless it is stuck: then it ends with the process."""
        self._questions.put(None)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            end = time.monotonic() + DEADLINE
            while True:
                try:
                    question.mode = os.lstat(question.path).st_mode
                except (OSError, ValueError):
                    question.mode = -1
                if not question.wanted or (question.mode >= 0 and question.mode & question.wanted):
                    break
                if time.monotonic() > end:
                    break
                time.sleep(_RETRY)
            question.done.set()
