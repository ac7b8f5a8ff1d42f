"""`guard feed run --input FILE`: events from a file into the feeds' own spool, each once by its id."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from guard.errors import EventError, StateError
from guard.events.entry import Entry
from guard.events.spool import Spool
from guard.events.wire import LINE_MOST
from guard.policy.source import printable

_BATCH = 2000


@dataclass
class Taken:
    """What became of a file.

    Args:
        count: events new to the spool.
        known: events that it had.
        bad: lines that are no event.
        first_bad: what is wrong with the first of them, with file and line.
    """

    count: int = 0
    known: int = 0
    bad: int = 0
    first_bad: str = ""


def take(path: str, spool: str) -> Taken:
    """Read a file of events, one JSON object a line, into a spool.

    Args:
        path: the file, - for standard input.
        spool: the spool's directory, made where it is absent.

    Raises:
        StateError: the file cannot be read.
        SpoolError: the spool cannot be written, or has no room.
    """
    done = Taken()
    with Spool(spool) as store, opened(path) as file:
        batch: list[Entry] = []
        for number, line in lines(file):
            try:
                batch.append(Entry.of(line))
            except EventError as error:
                done.bad += 1
                done.first_bad = done.first_bad or f"{printable(path)}:{number}: {error.what}"
            if len(batch) >= _BATCH:
                _append(store, batch, done)
        _append(store, batch, done)
    return done


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open a file, or standard input for -, or say in one sentence why not.

    Raises:
        StateError: it cannot be opened or read.
    """
    try:
        if path == "-":
            yield sys.stdin.buffer
        else:
            with open(path, "rb") as file:
                yield file
    except OSError as error:
        if error.filename is None or os.fspath(error.filename) != path:
            raise
        raise StateError(f"{printable(path)}: {error.strerror}", "name a file that you can read") from error


def lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Give every line that is not blank with its number; one that is far too long is cut, not held in memory."""
    number = 0
    while line := file.readline(LINE_MOST + 2):
        number += 1
        if not line.endswith(b"\n") and len(line) > LINE_MOST:
            while (rest := file.readline(LINE_MOST)) and not rest.endswith(b"\n"):
                continue
        if text := line.strip():
            yield number, text


def _append(store: Spool, batch: list[Entry], done: Taken) -> None:
    if not batch:
        return
    accepted = store.append(batch)
    done.count += accepted.count
    done.known += accepted.duplicates
    batch.clear()
    if accepted.dropped:
        what = f"the spool has no room: {accepted.dropped} events were not taken"
        raise StateError(what, "deliver first, then give the file again")
