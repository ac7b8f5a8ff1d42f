"""The places of this host that keep events, as places that keep records of people."""

from __future__ import annotations

import os
from collections.abc import Iterator

from guard.events import client
from guard.events.spool import Reader, rows_of
from guard.incidents.privacy import Keeper, StoreKeeper, about
from guard.redact.fingerprint import state_dir


class SpoolKeeper:
    """A spool: rows lose their personal part, and the chain still verifies.

    Args:
        path: the spool's directory.
    """

    def __init__(self, path: str) -> None:
        self.what = f"the spool {path}"
        self._path = path

    def records(self, user: str, uid: int, before: int) -> Iterator[bytes]:
        """Yield the events of an account."""
        with Reader(self._path) as reader:
            yield from (row.line for row in rows_of(reader, quiet=True) if about(row.line, user, uid, before))

    def erase(self, user: str, uid: int, before: int) -> int:
        """Erase their personal part, by the service where it runs, else by our own hand."""
        with Reader(self._path) as reader:
            wanted = [r.position for r in rows_of(reader, quiet=True) if about(r.line, user, uid, before)]
        if wanted:
            client.erase(self._path, wanted, uid)
        return len(wanted)


def of_events(state: str) -> list[Keeper]:
    """Return the spools of a state directory that are there, and the site's store.

    Args:
        state: the directory, "" for the usual one.
    """
    base = state or state_dir()
    paths = (os.path.join(base, name) for name in ("spool", "site"))
    found: list[Keeper] = [SpoolKeeper(path) for path in paths if os.path.exists(os.path.join(path, "spool.db"))]
    store = os.path.join(base, "site.db")
    return [*found, StoreKeeper(store)] if os.path.exists(store) else found
