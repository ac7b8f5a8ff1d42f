"""What the monitor costs, and a site's cap on it."""

from __future__ import annotations

import resource

from guard.monitor.findings import Scalar
from guard.monitor.source import Source
from guard.monitor.telling import Told, say

EVERY = 10.0
"""Seconds between two looks."""
_STRIKES, _REST = 3, 600.0


class Cap:
    """Takes the costly programs off for ten minutes where three looks in a row found more than a site allows.

    Attributes:
        share: what was spent between the last two looks, as a share of one processor.
    """

    def __init__(self) -> None:
        self.share = 0.0
        self._since = 0.0
        self._strikes = 0
        self._before = (0.0, 0)

    @property
    def resting(self) -> bool:
        """Whether the costly programs are off."""
        return bool(self._since)

    def judge(self, source: Source, most: float, now: float, seconds: float) -> Told | None:
        """Look; gives what is to be told.

        Args:
            source: it is measured, and told to follow or not.
            most: share of one processor, 0: no cap.
            now: seconds, monotonic. seconds: since the last look.
        """
        usage = resource.getrusage(resource.RUSAGE_SELF)
        spent = (usage.ru_utime + usage.ru_stime, sum(source.stats().run_ns.values()))
        before, self._before = self._before, spent
        self.share = ((spent[0] - before[0]) + (spent[1] - before[1]) / 1e9) / seconds if before[0] else 0.0
        if not most:
            return None
        if self._since:
            if now - self._since >= _REST:
                self._since = 0.0
                source.follow(True)
            return None
        self._strikes = self._strikes + 1 if self.share > most else 0
        if self._strikes < _STRIKES:
            return None
        self._strikes = 0
        self._since = now
        missing = source.follow(False)
        detail: dict[str, Scalar] = {"cost": round(self.share, 4), "max_cost": most}
        if not missing:
            return say("coverage", "above the site's cap on cost, and nothing can be taken off", detail)
        detail |= {"seconds": _REST, "missing": missing}
        return say("coverage-lost", "the site's cap on cost detached the system calls' programs", detail)
