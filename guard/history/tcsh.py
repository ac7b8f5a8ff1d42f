"""`guard history tcsh`: tcsh's history in memory, without the secrets of its newest lines.

tcsh can only read a whole history in (`history -L`), so it gives all of it (`history -hT`) and gets all of it back.
Lines that are read inside a loop enter it unseen; they are looked at when the loop is done. What is no loop is mostly
answered without an interpreter (guard/exec/history.c).
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from contextlib import suppress
from typing import NamedTuple

from guard.history.line import MARK, clean

LOOP = re.compile(rb"\s*(?:foreach|while|switch)\b|\s*if\b.*\bthen\s*$")
LIMIT = 4 << 20
INSIDE = 4


class Record(NamedTuple):
    """One line of the history: `stamp` is `#+` and seconds since 1970, with its newline."""

    stamp: bytes
    line: bytes


def records(text: bytes) -> list[Record]:
    """Read what `history -hT` prints."""
    parts = re.split(rb"(?m)^(#\+[0-9]+\n)", text)
    return [Record(stamp, line) for stamp, line in zip(parts[1::2], parts[2::2], strict=True)]


def main(arguments: list[str]) -> int:
    """Filter standard input.

    Prints `0 PATH` where the newest lines had secrets: the whole history is there without them, to be read in and
    taken away by the shell; `1` where they had none.

    Args:
        arguments: `before` or `prompt`; 1 when a loop was begun before; the history file, or nothing.

    Returns:
        0; 4 when nothing could be done.
    """
    when, loop, file = (*arguments, "", "", "")[:3]
    text = b""
    while part := os.read(0, 1 << 16):
        text += part
        if len(text) > LIMIT:
            return INSIDE
    entries = records(text)
    if not entries:
        return INSIDE
    first = len(entries) - 1
    if when == "prompt" and loop == "1":
        first = max((at for at, entry in enumerate(entries) if LOOP.match(entry.line)), default=first)
        while first > 0 and _within(entries, first):
            first -= 1
    changed = False
    for at in range(first, len(entries)):
        line = entries[at].line
        new = clean(line.removesuffix(b"\n"))
        new = MARK + b"\n" if new is None else new.rstrip(b"\n") + b"\n"
        changed = changed or new != line
        entries[at] = Record(entries[at].stamp, new)
    if file:
        with suppress(OSError):  # a full disk, a closed home: memory is cleaned all the same
            _append(file, b"".join(b"".join(entry) for entry in entries[first:]))
    if not changed:
        sys.stdout.write("1\n")
        return 0
    handle, path = tempfile.mkstemp(prefix="guard-history.", dir="/tmp")
    with open(handle, "wb") as out:
        # `history -L` takes a line that begins with # for a comment, and would drop it.
        out.writelines(e.stamp + (b"\\" if e.line.startswith(b"#") else b"") + e.line for e in entries)
    sys.stdout.write(f"0 {path}\n")
    return 0


def _append(file: str, data: bytes) -> None:
    """Append to the history file, unless it ends in this already: an empty line at the prompt brings nothing new."""
    handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        there = os.lseek(handle, 0, os.SEEK_END)
        if os.pread(handle, len(data), max(0, there - len(data))) != data:
            os.write(handle, data)
    finally:
        os.close(handle)


def _within(entries: list[Record], at: int) -> bool:
    """Say whether a loop that begins at `at` stands inside another: more begin than end before it."""
    depth = 0
    for entry in reversed(entries[max(0, at - 200) : at]):
        if re.match(rb"\s*(?:end|endif|endsw)\b", entry.line):
            depth += 1
        elif LOOP.match(entry.line):
            if depth == 0:
                return True
            depth -= 1
    return False
