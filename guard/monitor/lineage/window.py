"""A count over the last seconds, in a few numbers whatever is counted."""

from __future__ import annotations

_PARTS = 6


class Window:
    """Counts what happened in the last seconds, to a sixth of them."""

    __slots__ = ("_at", "_parts", "total")

    def __init__(self) -> None:
        self._parts = [0] * _PARTS
        self._at = 0
        self.total = 0

    def add(self, now: float, seconds: int, count: int = 1) -> int:
        """Count, and return how many there were in the last `seconds`.

        Args:
            now: seconds, monotonic.
            seconds: the window; the same each time.
            count: how many happened.
        """
        at = int(now * _PARTS / seconds)
        if at > self._at:
            for step in range(self._at + 1, min(at, self._at + _PARTS) + 1):
                self.total -= self._parts[step % _PARTS]
                self._parts[step % _PARTS] = 0
            self._at = at
        self._parts[at % _PARTS] += count
        self.total += count
        return self.total
