"""Terminal recordings: a key that the terminal wrapped at its width.

A line that ends at the right margin inside a token behind a known start leaves a note; the next line's
first token is the rest. Notes look forward only, so chunks change nothing and no line waits for the next.
"""

from __future__ import annotations

from typing import Final

from guard.redact import shadow, words
from guard.redact.carriers import strace
from guard.redact.lazy import Lazy
from guard.redact.rules import tails
from guard.redact.scan import Scanner
from guard.redact.spans import Span

_LINE_TAIL = Lazy(tails.CONTROL + rb"*\r{1,2}\n\Z")
_HEAD = Lazy(tails.CONTROL + rb"{0,4}([A-Za-z0-9_\-+/=.~%]{1,400})")
_LEAST_WIDTH: Final = 40
_USUAL_WIDTH: Final = 79
_LINE_END = Lazy(tails.CONTROL + rb"*\r{1,2}\n")
_MOST_LINES: Final = 8
"""A key goes on over at most so many lines of the terminal."""


class Wraps:
    """Finds keys of a known format that go on behind a line end at the terminal's width; one a stream.

    Args:
        scanner: judges both parts together.
    """

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._note: tuple[str, bytes] | None = None

    def spans(self, data: bytes, since: int, ends: list[int]) -> list[Span]:
        """Return the two parts of wrapped keys, behind `since`.

        Args:
            data: context and complete lines.
            since: where the new text begins.
            ends: where the prefilter saw a key's start that runs up to a line's end, in order.
        """
        if self._note is None and not ends:
            return []
        found: list[Span] = []
        if self._note is not None and len(data) > since:
            found += self._rest(data, since, self._note)
            self._note = None
        for end in sorted(set(ends)):
            note = self._fragment(data, end, found)
            if note is None:
                continue
            if end < len(data):
                found += self._rest(data, end, note)
            else:
                self._note = note
        return found

    def _fragment(self, data: bytes, end: int, found: list[Span]) -> tuple[str, bytes] | None:
        start = data.rfind(b"\n", 0, end - 1) + 1
        start = max(start, end - 2048)
        ending = _LINE_TAIL.search(data, max(start, end - 64), end)
        if ending is None:
            return None
        tail = strace.TAIL.search(data, start, ending.start())
        width = len(shadow.ANSI.sub(b"", data[start : ending.start()]))
        if tail is None or width < _LEAST_WIDTH:
            return None
        body = tail.group()[len(tail.group(1)) :]
        whole = any(s.named and s.incident and not s.partial for s in self._scanner.find(tail.group()))
        # Many formats have no longest key: at a usual width even a whole one may go on.
        if whole and len(body) < 60 and width < _USUAL_WIDTH:
            return None
        start_of_key = tail.group(1)
        if len(body) < 2 and len(start_of_key) > 5:
            return tails.KINDS[start_of_key], tail.group()  # cut right behind the start: nothing to hide yet
        if len(body) < 2 or (words.is_name(body) and len(start_of_key) < 6):
            return None
        if len(start_of_key) < 4 and not words.drawn(body, 4):
            return None
        kind = tails.KINDS[start_of_key]
        found.append(Span(tail.start(), ending.start(), kind, False, True, True, tail.group()))
        return kind, tail.group()

    def _rest(self, data: bytes, start: int, note: tuple[str, bytes]) -> list[Span]:
        head = _HEAD.match(data, start)
        if head is None:
            return []
        kind, text = note
        rest = head.group(1)
        if not any(s.named and s.end > len(text) for s in self._scanner.find(text + rest)) and not words.drawn(rest, 6):
            return []
        found = [Span(head.start(1), head.end(1), kind, False, True, True, rest)]
        # Over more than two lines: as long as the token fills each.
        for _ in range(_MOST_LINES):
            ending = _LINE_END.match(data, head.end(1), head.end(1) + 64)
            if ending is None or len(rest) < _LEAST_WIDTH:
                break
            head = _HEAD.match(data, ending.end())
            if head is None or not words.drawn(head.group(1), 6):
                break
            rest = head.group(1)
            found.append(Span(head.start(1), head.end(1), kind, False, True, True, rest))
        return found
