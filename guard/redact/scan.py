"""Bytes to spans: hits of the prefilter, confirmed by the rules' tables, through shadows where a key is hidden.

`Scanner.find` is a pure function of the bytes: the same text gives the same spans on every engine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from guard.errors import StateError
from guard.redact import pack, shadow
from guard.redact.decoding import LONG, decoding_rows, long_words
from guard.redact.engine import NUMBER_BITS, SMALL, Engine, Pattern, PlainEngine, best_engine
from guard.redact.keys import FormatRule, literals, width
from guard.redact.rules import commands, statements, tails
from guard.redact.rules.formats import FORMATS
from guard.redact.rules.judge import is_documented
from guard.redact.rules.table import CONTEXTS, Confirm
from guard.redact.spans import MARKER, MARKER_START, Span, merge
from guard.redact.text import DEPTH, Handler, Text

BUDGET: Final = 0.45
"""Seconds of processor time a MiB that one block may take; after that every line with a hit left is withheld whole."""

SLOWER: Final = 4
"""So many times as long the plain engine may take: an encoding's text is searched within the budget."""

_NUMBER: Final = (1 << NUMBER_BITS) - 1


class Scanner:
    """Finds the secrets of a text.

    Args:
        engine: the prefilter for large texts; None takes hyperscan when it loads. Small texts never wait for it.
    """

    def __init__(self, engine: Engine | None = None) -> None:
        self._handlers: list[Handler] = []
        patterns: list[Pattern] = []
        self._formats = sum(len(row.starts) for row in FORMATS)
        self.pack_error = ""
        """Why the site's rule pack is not in force; "" when it is, or when there is none."""
        try:
            more = pack.rows(pack.load())
        except StateError as error:
            more, self.pack_error = [], str(error)
        for pattern, handler in _rows(self, more):
            patterns.append(pattern)
            self._handlers.append(handler)
        self.patterns: Sequence[Pattern] = tuple(patterns)
        self._dumps = len(patterns) - len(tails.DUMPS)
        self._events = self._dumps - len(tails.EVENTS)
        self._tails = self._events - len(tails.STRACE)
        self._fast: Engine | None = engine
        self._plain = PlainEngine(self.patterns)
        self._deadline = 0.0
        self.long_word: Handler
        self.calls: list[int] = []
        self.events = False
        self.dumps = False

    def engine(self, size: int) -> Engine:
        """Return the engine for a text of `size` bytes; the first large one loads hyperscan."""
        if self._fast is None:
            if size < SMALL:
                return self._plain
            self._fast = best_engine(self.patterns)
        return self._fast

    def find(self, data: bytes, since: int = 0, depth: int = 0) -> list[Span]:
        """Return the spans of the secrets in `data`, merged and in order.

        Args:
            data: any bytes.
            since: hits that end at or before this offset are context only.
            depth: how many encodings were already undone.
        """
        hits = self.engine(len(data)).scan(data)
        spans: list[Span] = []
        if depth == 0:
            self.calls, self.events, self.dumps = [], False, False
        text = Text(data)
        if hits:
            spans = self._confirm(text, hits, since, depth)
        encoded, joined = long_words(data)
        for start in encoded if depth < DEPTH else ():
            if start + LONG > since and not (text.has_known and text.known(start, start + 20)):
                spans += self.long_word(text, start, depth)
        for start in joined:
            if start + LONG > since and not (text.has_known and text.known(start, start + LONG)):
                spans += statements.prefixed(text, start)
        if depth < DEPTH and (b"\x1b" in data or b"\x08" in data):
            spans += self._terminal(data, since, depth)
        if not spans:
            return spans
        spans = [
            span._replace(incident=False) if span.incident and is_documented(span.value) else span
            for span in merge(spans)
        ]
        return _spare_markers(data, spans) if MARKER_START in data else spans

    def _confirm(self, text: Text, hits: list[int], since: int, depth: int) -> list[Span]:
        spans: list[Span] = []
        if depth == 0:
            # The processor's time, not the clock's: a busy machine must not change what is redacted.
            budget = BUDGET * (SLOWER if self.engine(len(text.data)) is self._plain else 1)
            self._deadline = time.thread_time() + budget * (0.15 + len(text.data) / (1 << 20))
        # First the keys with a format of their own: what a name points at is often one, and then needs no judging.
        own = [hit for hit in hits if hit & _NUMBER < self._formats]
        others = [hit for hit in hits if self._formats <= hit & _NUMBER < self._tails]
        if depth == 0 and len(own) + len(others) < len(hits):
            self.calls = [hit >> NUMBER_BITS for hit in hits if self._tails <= hit & _NUMBER < self._events]
            self.events = any(self._events <= hit & _NUMBER < self._dumps for hit in hits)
            self.dumps = any(hit & _NUMBER >= self._dumps for hit in hits)
        self._run(text, own, since, depth, spans)
        text.note(spans)
        self._run(text, others, since, depth, spans)
        return spans

    def _run(self, text: Text, hits: list[int], since: int, depth: int, spans: list[Span]) -> None:
        """Let the handlers confirm hits, in order; what stands in a span already confirmed is passed over."""
        handlers = self._handlers
        known = text.has_known
        begin = covered = -1
        for count, hit in enumerate(hits):
            end = hit >> NUMBER_BITS
            if end <= since or begin < end <= covered or (known and (text.known(end - 1, end) or text.follows(end))):
                continue
            if count & 0xF == 0xF and time.thread_time() > self._deadline:
                spans += self._withhold(text, hits, count)
                return
            for span in handlers[hit & _NUMBER](text, end, depth):
                spans.append(span)
                # What stands inside a long value goes with it; looking again at each place would be quadratic.
                if span.end > covered and (span.named or span.end - span.start > 300):
                    begin, covered = span.start, span.end

    def _withhold(self, text: Text, hits: list[int], first: int) -> list[Span]:
        """Fail closed: give up the lines of the hits that time did not suffice for."""
        spans: list[Span] = []
        last = -1
        for index in range(first, len(hits)):
            end = hits[index] >> NUMBER_BITS
            if end <= last:
                continue
            low, high = text.line(max(0, end - 1))
            last = high
            if high > low:
                spans.append(Span(low, high, "unscanned", False, True, True, b""))
        return spans

    def _terminal(self, data: bytes, since: int, depth: int) -> list[Span]:
        spans: list[Span] = []
        for low, high in shadow.controlled_lines(data):
            if high > since:
                seen = shadow.without_controls(data, low, high)
                found = self.find(seen, 0, depth + 1) if len(seen) < high - low else []
                if found:
                    spans += _map(shadow.ansi(data, low, high), found, since)
        return spans

    def through(self, seen: shadow.Shadow, depth: int) -> list[Span]:
        """Find in a shadow and map back to the text it was made of."""
        return _map(seen, self.find(seen.data, 0, depth + 1), -1)


def _map(seen: shadow.Shadow, spans: list[Span], since: int) -> list[Span]:
    out = []
    for span in spans:
        low, high = seen.raw(span.start, span.end)
        if high > since and high > low:
            out.append(span._replace(start=low, end=high))
    return out


def _spare_markers(data: bytes, spans: list[Span]) -> list[Span]:
    """Drop spans that would eat a marker, or that a marker cut short: a second pass changes nothing."""
    markers = [match.span() for match in MARKER.finditer(data)]
    if not markers:
        return spans
    out = []
    index = 0
    for span in spans:
        while index < len(markers) and markers[index][1] < span.start:
            index += 1
        clash = (
            index < len(markers)
            and markers[index][0] <= span.end
            # A word that a marker cut short was judged with what stood there; only a whole key goes by itself.
            and (
                not (span.named and span.incident) or (markers[index][0] < span.end and markers[index][1] > span.start)
            )
        )
        if not clash or span.kind == "unscanned":
            out.append(span)
    return out


def _rows(scanner: Scanner, more: list[tuple[Pattern, Handler]]) -> list[tuple[Pattern, Handler]]:
    rows: list[tuple[Pattern, Handler]] = []
    decoding, decode, scanner.long_word = decoding_rows(scanner.through)
    for row in FORMATS:
        rule = FormatRule(row)
        rule.decode = decode
        for start in row.starts:
            size = width(start)
            regex = start + row.cls + b"{%d}" % row.need

            def confirm(
                text: Text,
                end: int,
                depth: int,
                rule: FormatRule = rule,
                size: int = size,
                need: int = row.need,
            ) -> list[Span]:
                return rule.confirm(text, end - size - need, size, depth)

            rows.append((Pattern(regex, literals(start), True, False), confirm))
    for context in CONTEXTS:
        if not context.pattern:
            continue

        def confirm_context(text: Text, end: int, depth: int, check: Confirm = context.confirm) -> list[Span]:
            return check(text, end)

        rows.append((Pattern(context.pattern, context.literals, False, True), confirm_context))
    for row_of_programs in commands.COMMANDS:
        confirmer = commands.Confirmer(row_of_programs)

        def confirm_program(text: Text, end: int, depth: int, check: commands.Confirmer = confirmer) -> list[Span]:
            return check(text, end)

        names = tuple(row_of_programs.programs)
        rows.append(
            (
                Pattern(commands.pattern(row_of_programs), names, False, True, row_of_programs.mark),
                confirm_program,
            )
        )

    # Last, where the scanner expects them: these ask no handler, their ends are the carriers' to judge.
    rows += more + decoding
    rows += [(pattern, _nothing) for pattern in (*tails.STRACE, *tails.EVENTS, *tails.DUMPS)]
    return rows


def _nothing(text: Text, end: int, depth: int) -> list[Span]:
    return []
