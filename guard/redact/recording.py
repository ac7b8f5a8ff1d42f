"""The terminal recording of `guard run --recording FILE`: asciicast v2, redacted before it is written.

What a session prints is held back until its line ends (at most `cast.HELD` bytes), since a key may come in
single characters; then it is written with the times at which it came.
"""

from __future__ import annotations

import codecs
import json
import time
from collections.abc import Callable

from guard.redact.scan import Scanner
from guard.redact.stream import Mark, Redactor


class Recorder:
    """Writes a recording.

    Args:
        write: takes the file's bytes.
        width: the terminal's columns.
        height: its lines.
        mark: makes the markers; None gives markers without fingerprints.
        clock: seconds, monotonic; for tests.
        started: the wall clock at the beginning, in seconds.
        more: further fields of the head (command, env), redacted already.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        width: int,
        height: int,
        mark: Mark | None = None,
        clock: Callable[[], float] = time.monotonic,
        started: float | None = None,
        more: dict[str, object] | None = None,
    ) -> None:
        self._write = write
        self._clock = clock
        self._begin = clock()
        self._redactor = Redactor(Scanner(), mark, "pty")
        # A character may be split over two reads; what is no UTF-8 is shown as U+FFFD, as players do.
        self._decoders = {kind: codecs.getincrementaldecoder("utf-8")("replace") for kind in "io"}
        head = {
            "version": 2,
            "width": width,
            "height": height,
            "timestamp": int(time.time() if started is None else started),
            **(more or {}),
        }
        self._emit(json.dumps(head))

    def output(self, data: bytes) -> None:
        """Record what the terminal showed."""
        self._event("o", data)

    def input(self, data: bytes) -> None:
        """Record what was typed."""
        self._event("i", data)

    def resize(self, width: int, height: int) -> None:
        """Record that the terminal has another size, in columns and lines."""
        self._emit(json.dumps([round(self._clock() - self._begin, 6), "r", f"{width}x{height}"]))

    def close(self) -> None:
        """Write what was held back."""
        rest = self._redactor.finish()
        if rest:
            self._write(rest)

    def _event(self, kind: str, data: bytes) -> None:
        text = self._decoders[kind].decode(data)
        if text:
            self._emit(json.dumps([round(self._clock() - self._begin, 6), kind, text]))

    def _emit(self, line: str) -> None:
        out = self._redactor.feed(line.encode() + b"\n")
        if out:
            self._write(out)
