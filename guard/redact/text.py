"""The text under the confirmers: bytes, the line around a place, and what was already looked for in vain."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable

from guard.redact.lazy import Lazy
from guard.redact.spans import Span

WINDOW = 1024
"""How far before its own line a confirmer may look, in bytes; the stream keeps as much."""


DEPTH = 3
"""How many layers of encoding are undone."""


class Text:
    """One text while it is scanned.

    `vain` remembers per rule up to where a search found nothing, so that no stretch is searched twice.
    """

    __slots__ = ("_known_ends", "_known_starts", "_line", "data", "vain")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.vain: dict[str, tuple[int, int]] = {}
        self._line = (0, -1)
        self._known_starts: list[int] = []
        self._known_ends: list[int] = []

    def note(self, spans: list[Span]) -> None:
        """Remember spans, in the order of their starts, that need no second finding."""
        self._known_starts = [span.start for span in spans]
        self._known_ends = [span.end for span in spans]

    @property
    def has_known(self) -> bool:
        """Whether any span was remembered."""
        return bool(self._known_starts)

    def known(self, start: int, end: int) -> bool:
        """Say whether a remembered span holds all bytes from `start` to `end`."""
        at = bisect_right(self._known_starts, start) - 1
        return at >= 0 and self._known_ends[at] >= end

    def follows(self, pos: int) -> bool:
        """Say whether the whole word at `pos`, bare or in quotes, is a remembered span."""
        data = self.data
        quote = data[pos : pos + 1]
        pos += quote in (b"'", b'"')
        at = bisect_left(self._known_starts, pos)
        if at == len(self._known_starts) or self._known_starts[at] != pos:
            return False
        end = self._known_ends[at]
        behind = data[end : end + 1]
        return behind == quote if quote in (b"'", b'"') else behind in (b"", b" ", b"\n", b"\t", b"\r")

    def line(self, pos: int) -> tuple[int, int]:
        """Return start and end (the newline, or the end of the text) of the line that holds `pos`."""
        start, end = self._line
        if start <= pos <= end:
            return self._line
        start = self.data.rfind(b"\n", 0, pos) + 1
        end = self.data.find(b"\n", pos)
        self._line = (start, len(self.data) if end < 0 else end)
        return self._line

    def command_end(self, pos: int) -> int:
        r"""Return the end of the shell command that holds `pos`, over backslash and newline."""
        end = self.line(pos)[1]
        while end < len(self.data) and end - pos < 2048:
            if self.data[max(0, end - 2) : end].removesuffix(b"\r")[-1:] != b"\\":
                break
            following = self.data.find(b"\n", end + 1)
            end = len(self.data) if following < 0 else following
        return end


Handler = Callable[[Text, int, int], "list[Span]"]
"""What confirms a hit: the text, the hit's end, and how many encodings were undone already."""

_ESCAPE_BEFORE = Lazy(
    rb"(?:\\[nrtbfvae0]|\\[0-7]{2,3}|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|%(?:25){0,3}[0-9a-fA-F]{2}|"
    rb"(?:\x1b|\\x1b|\\033|\\e|\\u001[bB]|\\33)\[[0-9;?]{0,16}[A-Za-z])\Z"
)


def begins_token(data: bytes, pos: int, before: bytes) -> bool:
    r"""Say whether a token can begin at `pos`: no letter or digit stands before it, unless it ends an escape.

    `\n`, `\0`, `\x1b`, `%20` and `ESC[31m` end in a letter or digit that is not part of the word.

    Args:
        data: the text.
        pos: where the token would begin.
        before: further bytes that must not stand before it.
    """
    if pos == 0:
        return True
    byte = data[pos - 1]
    if not (48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122 or byte in before):
        return True
    if byte in b"-+" and (pos == 1 or not data[pos - 2 : pos - 1].isalnum()):
        return True  # a diff's mark, or an option's dash; within a word it joins
    return _ESCAPE_BEFORE.search(data, max(0, pos - 24), pos) is not None
