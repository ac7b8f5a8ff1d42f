"""The spool, written by the monitor where no events service runs, by the site's own measure of what is kept.

Loaded at the first such batch alone: the database's library would cost a resident monitor five megabytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from guard.events.entry import Entry
from guard.events.model import Event, Severity
from guard.events.privacy import EXEMPT, Minimiser, Privacy, node_key
from guard.events.settings import Settings, load
from guard.events.spool import Spool
from guard.monitor import memory


class Own:
    """The spool for one batch: it has one writer, and a service that starts must find it free.

    Args:
        directory: of the spool.
        settings: of events.toml.
        groups: names of the groups of a user, had within a deadline.

    Raises:
        SpoolError: another process writes it, or it cannot be opened.
    """

    def __init__(self, directory: str, settings: Settings, groups: Callable[[int], frozenset[str]]) -> None:
        self._privacy: Privacy = settings.privacy
        self._groups = groups
        self._spool = Spool(directory, limits=settings.limits, brief=True)
        self._minimiser = Minimiser(node_key(directory))

    def write(self, events: Sequence[Event]) -> None:
        """Store events durably."""
        self._spool.append([entry for event in events if (entry := self._kept(event)) is not None])

    def close(self) -> None:
        """Let go, of the database's store too."""
        self._spool.close()
        memory.give_back()

    def _kept(self, event: Event) -> Entry | None:
        """Leave out of an event what the site does not keep of a person; None where that is all of it."""
        uid = event.tree.uid
        exempt = uid >= 0 and self._privacy.exempts(
            uid, self._groups(uid) if self._privacy.exempt_groups else frozenset()
        )
        if exempt and event.severity < Severity.MEDIUM and event.control != "telemetry":
            return None
        whole = event.plain()
        keep = EXEMPT if exempt else self._privacy.measure(event.control, event.severity)
        self._minimiser.minimise(whole, keep, exempt)
        return Entry(whole)


def open_own(config: str, state: str, groups: Callable[[int], frozenset[str]]) -> Own:
    """Open the node's spool where events.toml says, or in the state directory.

    Args:
        config, state: the directories.
        groups: as `Own` takes it.
    """
    settings = load(config)
    return Own(settings.spool or os.path.join(state, "spool"), settings, groups)
