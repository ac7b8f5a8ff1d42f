"""Which users' spools are to be read, when, and who waits for it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from guard.events.adopt import Part, Reading
from guard.events.connection import Connection

CHILDREN: Final = 4
"""Of them at once."""
AGAIN: Final = 0.2
"""Seconds between two readings of one user's spool, however often is asked: each costs a process."""

FILES_MOST: Final = 100
"""Files of one user's of which is remembered how far they were read. He can make a new one each time; one that is
forgotten is read again from its beginning, and its events are known by their ids."""

Place = tuple[int, str]


class Adoption:
    """The readings that run and that are wanted.

    Args:
        kept: "uid key" → offset read before, as it is kept with the events.
        clock: seconds, monotonic.
    """

    def __init__(self, kept: Mapping[str, bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._offsets: dict[int, OrderedDict[str, int]] = {}
        self._running: dict[Place, Reading] = {}
        self._wanted: OrderedDict[Place, None] = OrderedDict()
        self._waiting: dict[Place, list[Connection]] = {}
        self._not_before: dict[int, float] = {}
        self._leaving: list[Reading] = []
        self.forget(kept)

    @property
    def waits(self) -> bool:
        """Whether something is wanted that has not begun."""
        return bool(self._wanted)

    def forget(self, kept: Mapping[str, bytes]) -> None:
        """Go back to the offsets that are kept: what was read after them was not stored."""
        self._offsets = {}
        for name, value in kept.items():
            uid, _, key = name.partition(" ")
            self._note(int(uid), key, int(value))

    def _note(self, uid: int, key: str, offset: int) -> None:
        his = self._offsets.setdefault(uid, OrderedDict())
        his[key] = offset
        his.move_to_end(key)
        if len(his) > FILES_MOST:
            his.popitem(last=False)

    def want(self, places: Sequence[Place], connection: Connection | None) -> bool:
        """Ask for readings; returns whether there is anything to wait for.

        Args:
            places: (uid, directory).
            connection: who waits for all of them; None for nobody, who comes after all others.
        """
        for place in places:
            self._wanted.setdefault(place)
            if connection is not None:
                self._waiting.setdefault(place, []).append(connection)
                self._wanted.move_to_end(place, last=False)
        if connection is not None:
            connection.adopting += len(places)
        return bool(places)

    def start(self) -> list[Reading]:
        """Begin what is wanted and may begin; one at a time for each user."""
        now, begun = self._clock(), []
        self._leaving = [each for each in self._leaving if not each.is_gone()]
        busy = {uid for uid, _ in self._running} | {each.uid for each in self._leaving}
        for place in list(self._wanted):
            uid, directory = place
            if len(self._running) >= CHILDREN:
                break
            if uid in busy or self._not_before.get(uid, 0) > now:
                continue
            try:
                reading = Reading(uid, directory, self._offsets.get(uid, {}))
            except OSError:
                break  # no process to be had: with the next turn
            del self._wanted[place]
            busy.add(uid)
            self._running[place] = reading
            begun.append(reading)
        return begun

    def late(self) -> list[Reading]:
        """Readings that have had their time."""
        return [each for each in self._running.values() if each.is_late()]

    def done(self, reading: Reading, parts: Iterable[Part], pause: float) -> list[Connection]:
        """Take note of the end of a reading; returns who has nothing more to wait for.

        Args:
            reading: which.
            parts: what it read.
            pause: seconds for which this user has used up a ration.
        """
        place = reading.uid, reading.directory
        del self._running[place]
        if not reading.is_gone():
            self._leaving.append(reading)
        self._not_before[reading.uid] = self._clock() + max(AGAIN, pause)
        if len(self._not_before) > 10_000:
            self._not_before.clear()
        for part in parts:
            self._note(reading.uid, part.key, part.end)
            if part.more:
                self._wanted.setdefault(place)
        if place in self._wanted:
            return []  # who asked in the middle of it waits for the next
        ready = []
        for each in self._waiting.pop(place, []):
            each.adopting -= 1
            if not each.adopting:
                ready.append(each)
        return ready

    def drop(self, connection: Connection) -> None:
        """Forget who has gone."""
        if connection.adopting:
            for waiting in self._waiting.values():
                while connection in waiting:
                    waiting.remove(connection)

    def close(self) -> None:
        """End the children."""
        for reading in self._running.values():
            reading.finish()
        self._running.clear()
