"""A stream through the redactor: bounded memory, the same output for every chunking, complete lines at once.

The text is scanned in blocks of whole lines. What may reach over a line's end is kept together: a shell
line continued by a backslash, a private key's block while it is open. Behind it stays `WINDOW` bytes of raw
text as context, so that a confirmer sees the same surroundings wherever a block began. A line without an
end is cut at a separator.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from guard.redact.carriers import cast, dump, pty, wrapped
from guard.redact.carriers.mixed import Mixed
from guard.redact.rules import blocks, commands
from guard.redact.scan import Scanner
from guard.redact.spans import Span, marker
from guard.redact.text import WINDOW

READ: Final = 1 << 19
"""Bytes asked of the source at once."""

LINE: Final = 1 << 20
"""A text line without an end is cut behind this many bytes, at a separator."""

JSON_LINE: Final = 4 << 20
"""A JSON line is kept whole up to this many bytes; a longer one is treated as text."""

Mark = Callable[[Span], bytes]


class Sighting(NamedTuple):
    """A span with its place in the stream: byte offset, line (from 1), and length in raw bytes."""

    span: Span
    offset: int
    line: int
    length: int
    text: bytes
    """The line around the sighting, for a second opinion; never stored."""
    before: bytes = b""
    """The line before that one, where it is short: shells write the time there; never stored."""


Observer = Callable[[Sighting], None]


class Redactor:
    """Redacts one stream.

    Args:
        scanner: finds the spans.
        mark: returns what stands in place of a span.
        carrier: how the text is read: auto, text, jsonl, strace, pty, history.
        observe: told of every sighting, in order; None when nobody asks.
    """

    def __init__(
        self,
        scanner: Scanner,
        mark: Mark | None = None,
        carrier: str = "auto",
        observe: Observer | None = None,
    ) -> None:
        self._mark = mark or (lambda span: marker(span.kind, None))
        self._carrier = Mixed(scanner, carrier)
        self._observe = observe
        self._pending = bytearray()
        self._context = b""
        self._searched = 0
        self._offset = 0
        self._line = 1

    def feed(self, data: bytes) -> bytes:
        """Take bytes of any size and return what can be given out: every complete line."""
        self._pending += data
        out = []
        while (end := self._complete()) > 0:
            out.append(self._take(end))
        return b"".join(out)

    def finish(self) -> bytes:
        """Return the rest, a last line without an end included."""
        out = [self._take(end) for end in iter(self._complete, 0)]
        while self._pending:
            limit = self._limit()
            if len(self._pending) > limit:
                out.append(self._take(_cut(self._pending, limit)))
            else:
                out.append(self._take(len(self._pending)))
        return b"".join(out)

    def _limit(self) -> int:
        head = bytes(self._pending[:64]).lstrip()
        return JSON_LINE if self._carrier.lines_may_be_json and head[:1] in (b"{", b"[") else LINE

    def _complete(self) -> int:
        """Return how many pending bytes are complete lines that nothing behind them can change."""
        pending = self._pending
        end = pending.rfind(b"\n", self._searched) + 1
        if end == 0:
            self._searched = len(pending)
            limit = self._limit()
            if len(pending) > limit + WINDOW:
                return self._reset(_cut(pending, limit))
            return 0
        if end > READ:
            # A block is bounded; blocks end at lines, so where one ends changes nothing.
            end = pending.rfind(b"\n", 0, READ) + 1
            if end == 0:
                limit = self._limit()
                first = pending.find(b"\n") + 1
                end = first if first <= limit else _cut(pending, limit)
                return self._reset(end)
        first = pending.find(b"\n") + 1
        limit = self._limit()
        if first > limit:
            return self._reset(_cut(pending, limit))
        end = self._held(end)
        if end == 0:
            self._searched = len(pending)
        else:
            self._reset(end)
        return end

    def _reset(self, end: int) -> int:
        self._searched = 0
        return end

    def _held(self, end: int) -> int:
        """Move a block's end before what may go on behind it: a continued line, an open key block."""
        end = self._joined(end)
        before = self._before_open_keys(end) if end else 0
        return self._joined(before) if 0 < before < end else before  # what goes on into the key block's first line

    def _joined(self, end: int) -> int:
        """Move a block's end before lines that go on behind it."""
        pending = self._pending
        whole = end = self._before_continued(end)
        # A line of a terminal that is full up to the margin, within a word.
        full = end
        while end > 1 and pending[end - 2] == 0x0D and self._carrier.lines_may_wrap:
            before = pending.rfind(b"\n", 0, end - 1) + 1
            if full - before > pty.HELD or not pty.goes_on(bytes(pending[before:end])):
                break
            end = before
        # An asciicast's events: a word goes on in the next one until a line of the terminal ends.
        mark = end
        while end > 0 and mark - end < cast.HELD:
            before = pending.rfind(b"\n", 0, end - 1) + 1
            if pending[before : before + 1] != b"[" or not cast.goes_on(bytes(pending[before:end])):
                break
            end = before
        if mark - end >= cast.HELD:
            end = mark
        # A dump's page: a key lies over its lines.
        end = dump.held(pending, end)
        end = wrapped.held(pending, end)
        end = commands.held(pending, end)
        # Again: a line that is kept may be one that another goes on into.
        return end if end == whole else self._before_continued(end)

    def _before_continued(self, end: int) -> int:
        r"""Move a block's end before lines that end in a backslash."""
        pending = self._pending
        while end > 1 and _continued(pending, end):
            before = pending.rfind(b"\n", 0, end - 1) + 1
            if end - before > 65536 or len(pending) - before > 131072:
                break
            end = before
        return end

    def _before_open_keys(self, end: int) -> int:
        pending = self._pending
        low = max(0, end - blocks.BLOCK - 128)
        for word in (b"PRIVATE KEY", b"PuTTY-User-Key-File", b"LS0tLS1CRUdJTi"):
            at = pending.rfind(word, low, end)
            if at < 0:
                continue
            low_at = max(pending.rfind(b"\n", 0, at) + 1, at - 64)
            opened = blocks.open_block(bytes(pending[low_at : at + blocks.BLOCK + 128]), end - low_at)
            if opened is not None and len(pending) - low_at - opened < blocks.BLOCK:
                end = min(end, pending.rfind(b"\n", 0, low_at + opened) + 1)
        return end

    def _take(self, end: int) -> bytes:
        with memoryview(self._pending) as view:
            block = bytes(view[:end])
        del self._pending[:end]
        data = self._context + block if self._context else block
        since = len(self._context)
        spans = self._carrier.spans(data, since)
        self._context = data[-WINDOW:]
        out = apply(data, since, spans, self._mark) if spans else block
        if self._observe is not None:
            for span in spans:
                start = max(span.start, since)
                line = self._line + data.count(b"\n", since, start)
                low = data.rfind(b"\n", 0, start) + 1
                high = data.find(b"\n", span.end)
                text = data[max(low, start - 2048) : min(len(data) if high < 0 else high, span.end + 2048)]
                above = data[max(data.rfind(b"\n", 0, low - 1) + 1, low - 64) : max(0, low - 1)] if low else b""
                self._observe(Sighting(span, self._offset + start - since, line, span.end - start, text, above))
            self._line += block.count(b"\n")
        self._offset += len(block)
        return out


def _continued(pending: bytearray, end: int) -> bool:
    r"""Say whether the line that ends at `end` is continued: an odd number of backslashes ends it."""
    at = end - 2
    if at >= 0 and pending[at] == 0x0D:
        at -= 1
    count = 0
    while at >= 0 and pending[at] == 0x5C and count < 64:
        count += 1
        at -= 1
    return count % 2 == 1


def _cut(pending: bytearray, limit: int) -> int:
    """Return where to cut a line without end: behind the last separator in the first `limit` bytes."""
    window = bytes(pending[max(0, limit - 65536) : limit])
    for at in range(len(window) - 1, -1, -1):
        if window[at] in b" \t,;\0{}[]()<>|\r\n":
            return max(0, limit - 65536) + at + 1
    return limit


def apply(data: bytes, since: int, spans: list[Span], mark: Mark) -> bytes:
    """Return `data` from `since` on with every span replaced.

    A span over several lines leaves as many lines behind, each with its prefix: a diff's hunks and a log's
    records keep their count.
    """
    out: list[bytes] = []
    pos = since
    for span in spans:
        start = max(span.start, since)
        if span.end <= pos:
            continue
        start = max(start, pos)
        out.append(data[pos:start])
        raw = data[start : span.end]
        first = mark(span)
        out.append(first if b"\n" not in raw else _per_line(data, start, raw, span, first))
        pos = span.end
    out.append(data[pos:])
    return b"".join(out)


def _per_line(data: bytes, start: int, raw: bytes, span: Span, first: bytes) -> bytes:
    prefix = data[data.rfind(b"\n", 0, start) + 1 : start]
    lines = raw.split(b"\n")
    short = marker(span.kind, None)
    out = []
    for number, line in enumerate(lines):
        ending = b"\r" if line.endswith(b"\r") else b""
        if number == 0:
            out.append(first + ending)
            continue
        keep = b""
        if (
            prefix
            and len(line) >= len(prefix)
            and re.sub(rb"\d", b"0", line[: len(prefix)]) == re.sub(rb"\d", b"0", prefix)
        ):
            keep = line[: len(prefix)]
        elif not prefix or prefix.isspace():
            keep = line[: len(line) - len(line.lstrip(b" \t"))]
        out.append(
            keep + (short + ending if line[len(keep) :].strip() or number == len(lines) - 1 else line[len(keep) :])
        )
    return b"\n".join(out)


def redact_bytes(
    data: bytes,
    scanner: Scanner,
    mark: Mark | None = None,
    carrier: str = "auto",
    observe: Observer | None = None,
) -> bytes:
    """Redact a text that is at hand whole; arguments as `Redactor`."""
    redactor = Redactor(scanner, mark, carrier, observe)
    return redactor.feed(data) + redactor.finish()
