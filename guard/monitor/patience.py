"""Asking what may never answer: the file systems and memory of others, with a deadline.

Whoever is watched can put a path on a file system that he serves himself, or his arguments on a page of it: a daemon
that reads them stands still for as long as he likes. So threads ask; one that is stuck is left behind, and only so many
are ever started.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

DEADLINE = 0.25
"""Seconds for one answer."""
MOST = 8
"""Threads that may be stuck; then nothing is asked any more, and every answer is the default."""

T = TypeVar("T")


class _Question(Generic[T]):
    def __init__(self, ask: Callable[[], T], default: T) -> None:
        self.ask = ask
        self.answer = default
        self.done = threading.Event()
        self.abandoned = False


class Patience:
    """Asks in a thread of its own.

    Args:
        deadline: seconds.
        most: threads that may be stuck.

    Attributes:
        left: answers that did not come in time.
    """

    def __init__(self, deadline: float = DEADLINE, most: int = MOST) -> None:
        self._deadline = deadline
        self._most = most
        self._questions: queue.SimpleQueue[_Question[object] | None] | None = None
        self._stuck = 0
        self._lock = threading.Lock()
        self.left = 0

    def ask(self, what: Callable[[], T], default: T) -> T:
        """Return what a function returns; the default where it does not in time, or raises OSError or ValueError."""
        if self._stuck >= self._most:
            self.left += 1
            return default
        if self._questions is None:
            self._questions = queue.SimpleQueue()
            threading.Thread(target=self._answer, args=(self._questions,), daemon=True, name="ask").start()
        question = _Question(what, default)
        self._questions.put(question)  # type: ignore[arg-type]
        if question.done.wait(self._deadline):
            return question.answer
        with self._lock:
            if question.done.is_set():
                return question.answer
            question.abandoned = True
            self._stuck += 1
        self.left += 1
        self._questions = None
        return default

    def close(self) -> None:
        """End the thread that waits for questions; one that is stuck ends with the process."""
        if self._questions is not None:
            self._questions.put(None)
            self._questions = None

    def _answer(self, questions: queue.SimpleQueue[_Question[object] | None]) -> None:
        while (question := questions.get()) is not None:
            with suppress(OSError, ValueError):
                question.answer = question.ask()
            with self._lock:
                if question.abandoned:
                    self._stuck -= 1  # it came back after all; another thread has its place by now
                    return
                question.done.set()
