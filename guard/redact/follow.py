"""`guard redact --follow DIR`: transcripts are scrubbed as agents write them, at the same length.

An agent appends to its transcript while it is scrubbed, so nothing is renamed and no byte moves: a secret
is overwritten under its own bytes once its line is complete. What was looked at is remembered by inode,
size and time.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from guard.errors import GuardError
from guard.redact.files import network, overwrite
from guard.redact.marking import Marks
from guard.redact.scan import Scanner

if TYPE_CHECKING:
    from guard.redact.report import Report

PAUSE: Final = 0.25
"""Seconds between two looks at a folder."""

OVERLAP: Final = 65536
"""How much of what was scanned before is scanned again, for what goes on over a line's end."""

_SUFFIXES: Final = (
    ".jsonl",
    ".json",
    ".log",
    ".txt",
    ".md",
    ".ndjson",
    ".cast",
    ".out",
    ".err",
    ".toml",
    ".yaml",
    ".yml",
)


class _Seen(NamedTuple):
    size: int
    changed: int
    done: int


def follow(
    folder: str, scanner: Scanner, marks: Marks, report: Report | None, carrier: str, once: bool = False
) -> None:
    """Scrub the files under a folder until interrupted.

    Args:
        folder: the transcripts' folder; links in it are not followed.
        scanner: finds the spans.
        marks: makes the markers.
        report: told of every sighting.
        carrier: how the files are read.
        once: end after one look.

    Raises:
        GuardError: not a folder, another user's, or on a network file system.
    """
    info = os.stat(folder)
    if not stat.S_ISDIR(info.st_mode):
        raise GuardError(f"{folder} is not a folder", "--follow takes the folder of an agent's transcripts")
    if info.st_uid != os.geteuid():
        raise GuardError(
            f"{folder} is another user's", "run it as the owner; root scrubs nobody's transcripts for them"
        )
    remote = network(folder)
    if remote and not once:
        sys.stderr.write(
            f"guard redact: {folder} is on a network file system; only files at rest for 5 s are scrubbed\n"
        )
    seen: dict[tuple[int, int], _Seen] = {}
    while True:
        for path, entry in _files(folder):
            if remote and not once and time.time() - entry.st_mtime < 5:
                continue
            key = (entry.st_dev, entry.st_ino)
            before = seen.get(key, _Seen(-1, 0, 0))
            if (entry.st_size, entry.st_mtime_ns) == (before.size, before.changed):
                continue
            begin = max(0, before.done - OVERLAP) if entry.st_size >= before.size else 0
            try:
                overwrite(
                    path,
                    scanner,
                    marks,
                    carrier,
                    report.observer(path) if report else None,
                    begin=begin,
                    whole_lines=not once,
                )
                now = os.stat(path, follow_symlinks=False)
            except FileNotFoundError:
                continue  # the agent took it away
            except (GuardError, OSError) as error:
                sys.stderr.write(f"guard redact: {path}: {error}\n")
                now = entry
            seen[key] = _Seen(entry.st_size, now.st_mtime_ns if now.st_size == entry.st_size else -1, entry.st_size)
        if once:
            return
        time.sleep(PAUSE)


def _files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    stack = [folder]
    while stack:
        try:
            entries = list(os.scandir(stack.pop()))
        except OSError:
            continue  # a folder that went away, or that its owner closed: there is nothing to scrub in it
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                stack.append(entry.path)
            elif entry.is_file(follow_symlinks=False) and entry.name.endswith(_SUFFIXES):
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if info.st_uid == os.geteuid() and info.st_size:
                    yield entry.path, info
