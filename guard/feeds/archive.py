"""An archive: zstd-compressed JSON lines, one file a day of the events' own time.

Every batch is a frame of its own (RFC 8878 3: frames may follow one another), so that a file is whole after each batch
and a torn last frame is cut off when the archive is opened again. `zstd -dc` and `guard redact` read it.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Sequence
from typing import Final

import zstandard

from guard.feeds.config import Feed
from guard.feeds.files import write_all
from guard.feeds.sink import Context, FeedError, Item, Outcome, Sink, Undelivered

_DAY = re.compile(r"\d{4}-\d\d-\d\d(?=T)")
_SKIPPABLE: Final = 0x184D2A50
_MARK: Final = b"guard1"


class Archive(Sink):
    """Appends frames to the day's file and syncs it."""

    def __init__(self, feed: Feed, context: Context) -> None:
        super().__init__(feed, context)
        self._folder = feed.text("path")
        self._files: dict[str, int] = {}

    def deliver(self, items: Sequence[Item]) -> Outcome:
        """Write the batch, a frame for each day in it."""
        days: dict[str, list[Item]] = {}
        for item in items:
            found = _DAY.match(item.word("time"))
            days.setdefault(found.group() if found else "undated", []).append(item)
        outcome = Outcome()
        for day, rows in days.items():
            try:
                self._append(day, b"".join(row.body + b"\n" for row in rows))
            except OSError as error:
                self.drop()
                raise Undelivered(f"{self._folder}: {error.strerror}", outcome) from error
            outcome.acked += [row.position for row in rows]
        return outcome

    def drop(self) -> None:
        """Close the files."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _append(self, day: str, data: bytes) -> None:
        file = self._open(day)
        before = os.fstat(file).st_size
        frame = zstandard.ZstdCompressor(level=self.feed.number("level"), write_checksum=True).compress(data)
        try:
            # The length in front, as a skippable frame, lets `_whole` find the last whole frame without reading all.
            write_all(file, struct.pack("<II", _SKIPPABLE, len(_MARK) + 4) + _MARK + struct.pack("<I", len(frame)))
            write_all(file, frame)
            os.fsync(file)
        except OSError:
            os.ftruncate(file, before)
            raise

    def _open(self, day: str) -> int:
        if day in self._files:
            return self._files[day]
        if len(self._files) > 8:
            self.drop()
        os.makedirs(self._folder, mode=0o750, exist_ok=True)
        path = os.path.join(self._folder, f"{day}.jsonl.zst")
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            raise FeedError(
                f"feed {self.feed.name}: another feed writes {path}", "give each feed a directory of its own"
            ) from error
        os.ftruncate(file, _whole(file))
        self._files[day] = file
        return file


def _whole(file: int) -> int:
    """Return where the last whole frame ends."""
    size, end = os.fstat(file).st_size, 0
    head = 8 + len(_MARK) + 4
    while end + head <= size:
        start = os.pread(file, head, end)
        magic, length = struct.unpack_from("<II", start)
        if magic != _SKIPPABLE or length != head - 8 or start[8 : 8 + len(_MARK)] != _MARK:
            return size  # not of our making: left as it is, frames are appended
        after = end + head + int(struct.unpack_from("<I", start, head - 4)[0])
        if after > size:
            return end
        end = after
    return end
