"""The carrier of ordinary lines: text, JSON Lines, strace and terminals, told apart line by line.

Deciding by line and not by file makes mixed logs safe (a JSON line among others) and chunking irrelevant.
"""

from __future__ import annotations

from guard.redact.carriers import cast, dump, jsonl, pty, strace
from guard.redact.scan import Scanner
from guard.redact.spans import Span, merge


class Mixed:
    """Any text.

    Args:
        scanner: finds the spans.
        name: `auto` looks at every line; a format's name switches the others off.
    """

    def __init__(self, scanner: Scanner, name: str) -> None:
        self._scanner = scanner
        self.lines_may_be_json = name in ("auto", "jsonl", "pty")
        self._calls = strace.Calls(scanner) if name in ("auto", "strace") else None
        self.lines_may_wrap = name in ("auto", "pty")
        self._wraps = pty.Wraps(scanner) if name in ("auto", "pty") else None

    def spans(self, data: bytes, since: int) -> list[Span]:
        """Return the spans in `data` behind offset `since`; what stands before is context.

        Args:
            data: context and complete lines.
            since: where the new text begins.
        """
        spans = self._scanner.find(data, since)
        # Taken now: the carriers ask the scanner about fragments, which begins these lists anew.
        calls = [end for end in self._scanner.calls if end > since]
        events, dumps = self._scanner.events, self._scanner.dumps
        if self._calls is not None:
            more = self._calls.spans(data, since, calls)
            if more:
                spans = merge(spans + more)
        if self._wraps is not None:
            more = self._wraps.spans(data, since)
            if more:
                spans = merge(spans + more)
        if self._wraps is not None and events:
            more = cast.first_marked(cast.spans(self._scanner, data, since))
            if more:
                spans = merge(spans + more)
        if dumps:
            more = dump.spans(self._scanner, data, since)
            if more:
                spans = merge(spans + more)
        if spans and self.lines_may_be_json:
            spans = self._fit_json(data, spans)
        return spans

    def _fit_json(self, data: bytes, spans: list[Span]) -> list[Span]:
        out: list[Span] = []
        index = 0
        while index < len(spans):
            low = data.rfind(b"\n", 0, spans[index].start) + 1
            high = data.find(b"\n", spans[index].start)
            high = len(data) if high < 0 else high
            stop = index
            while stop < len(spans) and spans[stop].start < high:
                stop += 1
            group = spans[index:stop]
            line = data[low:high] if data[low : low + 1] in b"{[ \t" else b""
            if (
                line
                and group[-1].end <= high
                and jsonl.looks_json(line)
                and (len(line) > 1 << 20 or jsonl.is_json(line))
            ):
                out += jsonl.fit(data, low, high, group)
            else:
                out += group
            index = stop
        return out
