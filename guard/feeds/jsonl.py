"""JSON lines in a file (or on standard output): each batch is on the disk before it counts as delivered."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Sequence

from guard.feeds.config import Feed
from guard.feeds.files import write_all
from guard.feeds.sink import Context, FeedError, Item, Outcome, Sink, Undelivered

_TAIL = 1 << 20


class JsonLines(Sink):
    """Appends to a file that it has for itself, or writes through to a pipe or device."""

    def __init__(self, feed: Feed, context: Context) -> None:
        super().__init__(feed, context)
        self._path = feed.text("path")
        self._most = feed.number("rotate_bytes")
        self._file = -1
        self._regular = False

    def deliver(self, items: Sequence[Item]) -> Outcome:
        """Append the batch and sync it."""
        data = b"".join(item.body.replace(b"\n", b" ") + b"\n" for item in items)
        try:
            self._open()
            if self._regular:
                self._append(data)
            else:
                write_all(self._file, data)
        except OSError as error:
            self.drop()
            raise Undelivered(f"{self._path}: {error.strerror}") from error
        return Outcome([item.position for item in items])

    def drop(self) -> None:
        """Close the file."""
        if self._file > 2:
            os.close(self._file)
        self._file = -1

    def _append(self, data: bytes) -> None:
        before = os.fstat(self._file).st_size
        try:
            write_all(self._file, data)
            os.fsync(self._file)
        except OSError:
            # A full disk takes half a batch: it is sent again whole, so the half goes.
            os.ftruncate(self._file, before)
            raise
        if self._most and before + len(data) >= self._most:
            self._rotate()

    def _open(self) -> None:
        if self._path == "-":
            self._file = 1
            self._regular = stat.S_ISREG(os.fstat(1).st_mode)
            return
        if self._file >= 0:
            try:
                now, ours = os.stat(self._path), os.fstat(self._file)
            except FileNotFoundError:
                now, ours = None, None
            if now is not None and ours is not None and (now.st_dev, now.st_ino) == (ours.st_dev, ours.st_ino):
                return
            self.drop()  # logrotate has put it aside
        # A pipe nobody reads from refuses (ENXIO) rather than hold the feed up.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        try:
            mode = os.stat(self._path).st_mode
            if not stat.S_ISREG(mode):
                flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        except FileNotFoundError:
            pass
        self._file = os.open(self._path, flags, 0o640)
        os.set_blocking(self._file, True)
        self._regular = stat.S_ISREG(os.fstat(self._file).st_mode)
        if self._regular:
            self._claim()

    def _claim(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                self.drop()
                raise FeedError(
                    f"feed {self.feed.name}: another feed writes {self._path}", "give each feed a file of its own"
                ) from error
            raise
        # A line that a power cut tore was never acknowledged: it comes again, so the piece of it goes.
        size = os.fstat(self._file).st_size
        tail = os.pread(self._file, min(size, _TAIL), max(0, size - _TAIL))
        if tail and not tail.endswith(b"\n"):
            os.ftruncate(self._file, size - len(tail) + tail.rfind(b"\n") + 1)

    def _rotate(self) -> None:
        keep = self.feed.number("keep")
        for number in range(keep, 1, -1):
            older = f"{self._path}.{number - 1}"
            if os.path.exists(older):
                os.replace(older, f"{self._path}.{number}")
        os.replace(self._path, f"{self._path}.1")
        self.drop()
