"""What `guard incidents ingest` reads: files of lines, compressed or not, a live pipe, a spool."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

import zstandard

from guard.errors import StateError
from guard.events.reader import DATABASE, Reader, rows_of
from guard.events.wire import LINE_MOST
from guard.policy.source import printable

_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_SKIPPABLE: Final = b"\x2a\x4d\x18"  # the three bytes after the first of a skippable frame (RFC 8878 3.1.2)
_PIECE: Final = 1 << 16

Lines = Iterator[list[tuple[int, bytes]]]
"""Batches of (line number, line); an empty one when nothing has come for a while."""


def batches(path: str, size: int = 1000, quiet: float = 0.5) -> Lines:
    """Read lines in batches.

    Args:
        path: a file, - for standard input, or the directory of a spool (or its database).
        size: lines in a batch.
        quiet: of a pipe, seconds without more after which a batch is given as it is.

    Raises:
        StateError: it cannot be read.
    """
    try:
        if path == "-":
            yield from _piped(sys.stdin.fileno(), size, quiet)
        elif os.path.isdir(path) or os.path.basename(path) == DATABASE:
            yield from _spool(path if os.path.isdir(path) else os.path.dirname(path), size)
        else:
            with open(path, "rb") as file:
                yield from _whole(_plain(file), size)
    except (OSError, zstandard.ZstdError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StateError(f"{printable(path)}: {reason}", "name a file that you can read") from error


def _spool(path: str, size: int) -> Lines:
    if not os.path.exists(os.path.join(path, DATABASE)):
        raise StateError(f"{printable(path)} is no spool", f"one has a {DATABASE} in it")
    with Reader(path) as reader:
        part: list[tuple[int, bytes]] = []
        for row in rows_of(reader):
            part.append((row.position, row.line))
            if len(part) >= size:
                yield part
                part = []
        if part:
            yield part


def _plain(file: BinaryIO) -> Callable[[], bytes]:
    head = file.read(4)
    file.seek(0)
    if head == _ZSTD or head[1:] == _SKIPPABLE:
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return lambda: stream.read(_PIECE)
    return lambda: file.read(_PIECE)


def _whole(read: Callable[[], bytes], size: int) -> Lines:
    cutter = _Cutter()
    part: list[tuple[int, bytes]] = []
    while data := read():
        part += cutter.cut(data)
        if len(part) >= size:
            yield part
            part = []
    part += cutter.end()
    if part:
        yield part


def _piped(file: int, size: int, quiet: float) -> Lines:
    cutter = _Cutter()
    part: list[tuple[int, bytes]] = []
    while True:
        ready = select.select([file], [], [], quiet)[0]
        if not ready:
            yield part
            part = []
            continue
        data = os.read(file, _PIECE)
        if not data:
            break
        part += cutter.cut(data)
        if len(part) >= size:
            yield part
            part = []
    part += cutter.end()
    if part:
        yield part


class _Cutter:
    """Cuts bytes into numbered lines; one that is far too long is kept short, so that memory stays bounded."""

    def __init__(self) -> None:
        self._number = 0
        self._rest = b""

    def cut(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Give the lines that end in these bytes; blank ones are counted and left out."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole, self._rest = self._rest + line, b""
            self._number += 1
            if text := whole.strip():
                yield self._number, text
        # Twice the longest event, for what syslog puts around it: the rest of such a line is only counted.
        self._rest = (self._rest + rest)[: 2 * LINE_MOST]

    def end(self) -> list[tuple[int, bytes]]:
        """Give the last line, where it has no end."""
        text = self._rest.strip()
        return [(self._number + 1, text)] if text else []
