"""How each feed is doing: a small file a feed, written by the feed's process, read by `guard feed list` and metrics."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, fields


@dataclass
class Status:
    """What is known of one feed.

    Args:
        name: the feed's.
        state: `idle`, `delivering`, `waiting` (for the next try) or `stopped`.
        pid: the process, 0 for none.
        delivered, refused, filtered, retries: counts since the feed exists.
        restarts: how often the watchdog or a crash had it started again.
        behind: events that wait, as of `written`.
        last_delivery: seconds since the epoch, 0 for never.
        problem: the last failure, "" when the last try was good.
        problem_at: seconds since the epoch.
        written: seconds since the epoch.
    """

    name: str
    state: str = "stopped"
    pid: int = 0
    delivered: int = 0
    refused: int = 0
    filtered: int = 0
    retries: int = 0
    restarts: int = 0
    behind: int = 0
    last_delivery: float = 0.0
    problem: str = ""
    problem_at: float = 0.0
    written: float = 0.0


def folder(spool: str) -> str:
    """Return the directory of the feeds' status files and locks, beside the spool."""
    return f"{spool.rstrip('/')}.feeds"


def write(place: str, status: Status) -> None:
    """Replace a feed's file; it is a convenience, so a full disk is no reason to stop delivering."""
    path = os.path.join(place, f"{status.name}.json")
    try:
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(asdict(status), file)
        os.replace(f"{path}.new", path)
    except OSError:
        return


def remove(place: str, name: str) -> None:
    """Remove the files of a feed that is no more."""
    for ending in ("json", "lock"):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(place, f"{name}.{ending}"))


def read(place: str, name: str) -> Status:
    """Return a feed's status; a fresh one where there is none or it cannot be read."""
    known = {each.name for each in fields(Status)}
    try:
        with open(os.path.join(place, f"{name}.json"), encoding="utf-8") as file:
            found = json.load(file)
        return Status(**{key: value for key, value in found.items() if key in known} | {"name": name})
    except (OSError, ValueError, TypeError, AttributeError):
        return Status(name)


def read_all(place: str) -> list[Status]:
    """Return every feed's status, by name."""
    try:
        names = sorted(entry.removesuffix(".json") for entry in os.listdir(place) if entry.endswith(".json"))
    except OSError:
        return []
    return [read(place, name) for name in names]
