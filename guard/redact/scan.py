# ruff: noqa: E501 - a row, or an expression, a line: broken up they cannot be compared with their neighbours
"""Bytes to spans: hits of the prefilter, confirmed by the rules' tables, through shadows where a key is hidden.

`Scanner.find` is a pure function of the bytes: the same text gives the same spans on every engine.
"""

from __future__ import annotations

import binascii
import re
import time
from collections.abc import Callable, Sequence
from typing import Final

from guard.redact import shadow, words
from guard.redact.engine import NUMBER_BITS, SMALL, Engine, Pattern, PlainEngine, best_engine
from guard.redact.lazy import Lazy
from guard.redact.rules import commands, tails
from guard.redact.rules.formats import FORMATS, Format
from guard.redact.rules.table import CONTEXTS, Confirm
from guard.redact.spans import MARKER, MARKER_START, Span, merge
from guard.redact.text import Text, begins_token

DEPTH: Final = 3
"""How many layers of encoding are undone."""

BUDGET: Final = 0.45
"""Seconds of processor time a MiB that one block may take; after that every line with a hit left is withheld whole."""

_NUMBER: Final = (1 << NUMBER_BITS) - 1

Handler = Callable[[Text, int, int], "list[Span]"]

_TRUNCATED = Lazy(rb"\\{0,3}[\"']?(?:\.\.\.|\xe2\x80\xa6)")
_ODD_FOLLOW: Final = frozenset((b"%", b"\\", b'"', b"'", b".", b"\xe2"))
"""What may stand behind a key that goes on in an encoding, or that a tracer cut; most keys end before something else."""
_TOKEN_TAIL = Lazy(rb"[A-Za-z0-9_\-+/.=~%]{8,4096}")


_CONTINUES = Lazy(rb"%[2-7][0-9a-fA-F]|\\u00[2-7]|\\x[2-7]")


_ENCODED_RUN = Lazy(rb"[A-Za-z0-9_\-+/=.~$]{4,}%(?:2[bBfF4]|3[aAdD]|7[eE])")


class _FormatRule:
    """The confirmer of one row of `FORMATS`; its expressions are compiled on first use."""

    def __init__(self, row: Format) -> None:
        self.row = row
        self._regex: re.Pattern[bytes] | None = None
        self._strict: re.Pattern[bytes] | None = None
        self.decode: Handler | None = None

    def confirm(self, text: Text, anchor: int, start_length: int, depth: int) -> list[Span]:
        row = self.row
        data = text.data
        start = anchor
        if row.grow is not None:
            start = _grow(data, anchor, row.grow)
        if not begins_token(data, start, b"_-+" if start_length < 4 else b""):
            return []
        if self._regex is None:
            self._regex = re.compile(rb"(?:" + rb"|".join(row.starts) + rb")(?P<body>" + row.body + rb")")
            self._strict = re.compile(row.strict, re.DOTALL)
        found = self._regex.match(data, anchor)
        if found is None:
            if self.decode is not None and depth < DEPTH and _ENCODED_RUN.match(data, anchor, anchor + 4096):
                return self.decode(text, anchor + start_length, depth)
            return []
        end = found.end()
        body = found.group("body")
        token = data[start:end]
        value = token
        follow = data[end : end + 1]
        if follow in _ODD_FOLLOW and depth < DEPTH and self.decode is not None and _CONTINUES.match(data, end, end + 6):
            further = self.decode(text, end, depth)
            if further:
                return further
        if row.before:
            start += len(row.before)
            value = data[start:end]
        cut = follow in _ODD_FOLLOW and _TRUNCATED.match(data, end, end + 8) is not None
        if MARKER_START in token or not self._passes(body, value, cut):
            return []
        if row.web:
            start, value = _whole_address(data, start, end)
        good = (
            self._strict is not None
            and self._strict.fullmatch(token) is not None
            and (row.check is None or row.check(token))
        )
        incident = good and not cut and len(body) >= 1 and (row.gate == "jwt" or _dense(value))
        short = len(body) < row.least
        return [Span(start, end, row.kind, incident and not short, cut or short, True, value.replace(b"\\/", b"/"))]

    def _passes(self, body: bytes, value: bytes, cut: bool) -> bool:
        row = self.row
        if words.is_example(body if len(body) > 6 else value):
            return False
        if cut:
            return True
        if row.gate == "random":
            return len(body) >= row.least and words.drawn(body if len(body) >= 16 else value, min(row.least, 16))
        if row.gate == "jwt":
            return row.check is not None and (row.check(value) or words.looks_random(value, 24))
        if row.gate in ("none", "plain"):
            return True
        if len(body) >= row.least:
            return not words.is_name(body)
        # A known start and too few characters behind it: cut off, or a name. Only what looks random goes.
        return len(body) >= 10 and words.looks_random(body, 10)


def _grow(data: bytes, anchor: int, grow: tuple[bytes, int]) -> int:
    most = grow[1]
    back = re.compile(grow[0]).match
    start = anchor
    while start > 0 and anchor - start < most and back(data, start - 1):
        start -= 1
    return start


_SCHEME = Lazy(rb"https?:\\?/\\?/(?:[A-Za-z0-9.\-]{0,80})\Z")


def _whole_address(data: bytes, start: int, end: int) -> tuple[int, bytes]:
    """Let a webhook's span begin at `https://`: the whole address is the secret."""
    found = _SCHEME.search(data, max(0, start - 100), start)
    if found is not None:
        start = found.start()
    return start, data[start:end]


def _dense(value: bytes) -> bool:
    return len(value) < 20 or len(set(value[:32])) >= 14 or len(set(value)) >= 14 or words.entropy(value) >= 2.8


# --- decoding handlers ----------------------------------------------------------------------------------------------

_PREFIXES: Final = (
    *sorted({re.sub(rb"\\(.)", rb"\1", s) for row in FORMATS for s in row.starts if b"[" not in s and len(s) > 2}),
    b"-----BEGIN ", b"eyJhbGciOi", b"eyJ0eXAiOi", b"eyJraWQiOi", b"https://hooks.slack.com", b"https://discord",
)  # fmt: skip
"""Starts whose base64, hex and percent forms are looked for; short ones only where the encoding keeps them telling."""


def _base64_needles() -> dict[bytes, int]:
    """Return the base64 text of every start at the three alignments, whole characters only, with its alignment."""
    needles: dict[bytes, int] = {}
    for prefix in _PREFIXES:
        for shift in range(3):
            text = binascii.b2a_base64(b"\0" * shift + prefix, newline=False)
            first = (shift * 8 + 5) // 6
            last = (shift + len(prefix)) * 8 // 6
            needle = text[first:last]
            # Fewer than four characters would stop the matcher at ordinary words.
            if len(needle) >= 4:
                needles.setdefault(needle, first)
    return needles


_B64_RUN = Lazy(rb"[A-Za-z0-9+/_\-]{12,65536}={0,2}")
_HEX_RUN = Lazy(rb"(?:[0-9a-fA-F]{2}){8,32768}")


class Scanner:
    """Finds the secrets of a text.

    Args:
        engine: the prefilter for large texts; None takes hyperscan when it loads. Small texts never wait for it.
    """

    def __init__(self, engine: Engine | None = None) -> None:
        self._handlers: list[Handler] = []
        patterns: list[Pattern] = []
        self._formats = sum(len(row.starts) for row in FORMATS)
        for pattern, handler in _rows(self):
            patterns.append(pattern)
            self._handlers.append(handler)
        self.patterns: Sequence[Pattern] = tuple(patterns)
        self._events = len(patterns) - len(tails.EVENTS)
        self._wraps = self._events - len(tails.TERMINAL)
        self._tails = self._wraps - len(tails.STRACE)
        self._given = engine
        self._fast: Engine | None = engine
        self._plain = PlainEngine(self.patterns)
        self._deadline = 0.0
        self.withheld = 0
        self.calls: list[int] = []
        self.wraps: list[int] = []
        self.events = False

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
            self.calls, self.wraps, self.events = [], [], False
        if hits:
            text = Text(data)
            spans = self._confirm(text, hits, since, depth)
        if depth < DEPTH and (b"\x1b" in data or b"\x08" in data):
            spans += self._terminal(data, since, depth)
        if not spans:
            return spans
        spans = merge(spans)
        return _spare_markers(data, spans) if MARKER_START in data else spans

    def _confirm(self, text: Text, hits: list[int], since: int, depth: int) -> list[Span]:
        spans: list[Span] = []
        if depth == 0:
            # The processor's time, not the clock's: a busy machine must not change what is redacted.
            self._deadline = time.thread_time() + BUDGET * (0.15 + len(text.data) / (1 << 20))
        # First the keys with a format of their own: what a name points at is often one, and then needs no judging.
        own = [hit for hit in hits if hit & _NUMBER < self._formats]
        others = [hit for hit in hits if self._formats <= hit & _NUMBER < self._tails]
        if depth == 0 and len(own) + len(others) < len(hits):
            self.calls = [hit >> NUMBER_BITS for hit in hits if self._tails <= hit & _NUMBER < self._wraps]
            self.wraps = [hit >> NUMBER_BITS for hit in hits if self._wraps <= hit & _NUMBER < self._events]
            self.events = any(hit & _NUMBER >= self._events for hit in hits)
        self._run(text, own, since, depth, spans)
        text.note(spans)
        self._run(text, others, since, depth, spans)
        return spans

    def _run(self, text: Text, hits: list[int], since: int, depth: int, spans: list[Span]) -> None:
        """Let the handlers confirm hits, in order; what stands in a span already confirmed is passed over."""
        handlers = self._handlers
        known = text.has_known
        covered = -1
        for count, hit in enumerate(hits):
            end = hit >> NUMBER_BITS
            if end <= since or end <= covered or (known and (text.known(end - 1, end) or text.follows(end))):
                continue
            if count & 0xF == 0xF and time.thread_time() > self._deadline:
                spans += self._withhold(text, hits, count)
                return
            for span in handlers[hit & _NUMBER](text, end, depth):
                spans.append(span)
                # What stands inside a long value goes with it; looking again at each place would be quadratic.
                if span.end > covered and (span.named or span.end - span.start > 300):
                    covered = span.end

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
            self.withheld += 1
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


def _rows(scanner: Scanner) -> list[tuple[Pattern, Handler]]:
    rows: list[tuple[Pattern, Handler]] = []
    decoding, decode = _decoding_rows(scanner)
    for row in FORMATS:
        rule = _FormatRule(row)
        rule.decode = decode
        for start in row.starts:
            width = _width(start)
            regex = start + row.cls + b"{%d}" % row.need

            def confirm(
                text: Text,
                end: int,
                depth: int,
                rule: _FormatRule = rule,
                width: int = width,
                need: int = row.need,
            ) -> list[Span]:
                return rule.confirm(text, end - width - need, width, depth)

            rows.append((Pattern(regex, _literals(start), True, False), confirm))
    for context in CONTEXTS:

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
    rows += decoding
    rows += [(pattern, _nothing) for pattern in (*tails.STRACE, *tails.TERMINAL, *tails.EVENTS)]
    return rows


_ATOM = Lazy(rb"(?:\[(?:\\.|[^\]\\])*\]|\\.|[^\[\]{}\\])(?:\{(\d+)\})?")


def _nothing(text: Text, end: int, depth: int) -> list[Span]:
    return []


def _width(pattern: bytes) -> int:
    """Return how many bytes a start matches: literals and classes with a fixed repetition only."""
    return sum(int(atom.group(1) or 1) for atom in _ATOM.finditer(pattern))


def _literals(start: bytes) -> tuple[bytes, ...]:
    plain = re.sub(rb"\\(.)", rb"\1", start)
    if re.escape(plain) == start or b"[" not in start:
        return (plain.lower(),)
    pieces = [p for p in re.split(rb"\[[^\]]*\](?:\{\d+\})?", start) if p]
    best = max((re.sub(rb"\\(.)", rb"\1", p) for p in pieces), key=len, default=b"")
    return (best.lower(),) if best else ()


_REGION_END = Lazy(rb"[ \t\r\n\"'<>`\0]")


def _token_region(data: bytes, end: int, most: int) -> tuple[int, int]:
    """Return the unbroken stretch (no blank, no quote) around an offset."""
    back = _REGION_END.search(data[max(0, end - most) : end][::-1])
    low = end - back.start() if back else max(0, end - most)
    stop = _REGION_END.search(data, end, end + most)
    return low, stop.start() if stop else min(len(data), end + most)


def _decoding_rows(scanner: Scanner) -> tuple[list[tuple[Pattern, Handler]], Handler]:
    """Return the patterns behind which one layer of an encoding is undone, and what undoes it."""
    needles = _base64_needles()

    def base64_hit(text: Text, end: int, depth: int) -> list[Span]:
        if depth >= DEPTH:
            return []
        data = text.data
        for size in range(min(32, end), 3, -1):
            first = needles.get(data[end - size : end])
            if first is not None:
                low = end - size - first
                if low < 0 or (size == 4 and first == 0 and not begins_token(data, low, b"+/_-")):
                    continue
                # back by whole groups, for what stands before the start (user:TOKEN)
                while low >= 4 and end - low < 120 and _B64_GROUP.match(data, low - 4, low):
                    low -= 4
                name = f"base64-{low & 3}"
                past = text.vain.get(name, (0, -1))
                if past[0] <= low and end <= past[1]:
                    continue
                run = _B64_RUN.match(data, low, min(len(data), low + 65536))
                if run is None:
                    continue
                text.vain[name] = (low, run.end())
                seen = shadow.base64_run(data, low, run.end())
                if seen is None:
                    continue
                found = scanner.through(seen, depth)
                out = [s for s in found if s.named or s.incident]
                if out:
                    return [s._replace(end=min(len(data), s.end + _padding(data, s.end))) for s in out]
        return []

    def hex_hit(text: Text, end: int, depth: int) -> list[Span]:
        if depth >= DEPTH:
            return []
        data = text.data
        low = end - 24
        for start in range(max(0, low), end):
            if data[start : start + 6].lower() in _HEX_HEADS:
                while start >= 2 and end - start < 600 and _HEX_PAIR.match(data, start - 2, start):
                    start -= 2
                name = f"hex-{start & 1}"
                past = text.vain.get(name, (0, -1))
                if past[0] <= start and end <= past[1]:
                    continue
                run = _HEX_RUN.match(data, start, start + 65536)
                if run is None:
                    continue
                text.vain[name] = (start, run.end())
                found = [s for s in scanner.through(shadow.hexadecimal(data, start, run.end()), depth) if s.named]
                if found:
                    return found
        return []

    def escaped_hit(text: Text, end: int, depth: int) -> list[Span]:
        if depth >= DEPTH:
            return []
        low, high = _token_region(text.data, end, 4096)
        last = text.vain.get("escaped", (0, -1))
        if low >= last[0] and end <= last[1]:
            return []
        # a quoted value may hold blanks: the name before it is part of what is read
        low = max(text.line(end)[0], low - 48, last[1] - 512)
        text.vain["escaped"] = (low, high)
        return _named_or_hidden(text.data, scanner.through(shadow.escapes(text.data, low, high), depth))

    def marked_hit(text: Text, end: int, depth: int) -> list[Span]:
        """Read a stretch of a line in which `=` and `-` themselves were written as escapes."""
        if depth >= DEPTH:
            return []
        last = text.vain.get("marked", (0, -1))
        if end <= last[1] - 600:
            return []
        begin, stop = text.line(end)
        low, high = max(begin, end - 160), min(stop, end + 4000)
        text.vain["marked"] = (low, high)
        return scanner.through(shadow.escapes(text.data, low, high), depth)

    def audited_hit(text: Text, end: int, depth: int) -> list[Span]:
        """Read what auditd wrote in hexadecimal since it holds a blank or a quote (auditd(8), `proctitle=`, `cmd=`)."""
        if depth >= DEPTH:
            return []
        run = _HEX_RUN.match(text.data, end - 24, min(len(text.data), end + 65536))
        if run is None:
            return []
        seen = shadow.hexadecimal(text.data, run.start(), run.end())
        return scanner.through(seen, depth)

    def percent_hit(text: Text, end: int, depth: int) -> list[Span]:
        if depth >= DEPTH:
            return []
        low, high = _token_region(text.data, end, 4096)
        last = text.vain.get("percent", (0, -1))
        if low >= last[0] and end <= last[1]:
            return []
        low = max(low, last[1] - 512)
        text.vain["percent"] = (low, high)
        return scanner.through(shadow.percent(text.data, low, high), depth)

    def libedit_hit(text: Text, end: int, depth: int) -> list[Span]:
        low, high = text.line(end)
        last = text.vain.get("libedit", (0, -1))
        if depth >= DEPTH or (low >= last[0] and end <= last[1]):
            return []
        low = max(low, end - 4096, last[1] - 512)
        high = min(high, end + 8192)
        text.vain["libedit"] = (low, high)
        return scanner.through(shadow.escapes(text.data, low, high), depth)

    def utf16_hit(text: Text, end: int, depth: int) -> list[Span]:
        last = text.vain.get("utf16", (0, -1))
        if depth >= DEPTH or end <= last[1]:
            return []
        data = text.data
        start = end - 16
        little = data[start + 1] == 0
        while (
            start >= 2
            and end - start < 512
            and (
                data[start - 1] == 0 and 0 < data[start - 2] < 128
                if little
                else data[start - 2] == 0 and 0 < data[start - 1] < 128
            )
        ):
            start -= 2
        if start and (data[start - 1] == 0) == little:
            return []  # the other byte order: here every second byte only looks like a pair
        run = (_LITTLE if little else _BIG).match(data, start, min(len(data), start + 131072))
        if run is None:
            return []
        text.vain["utf16"] = (start, run.end() - 2)
        return scanner.through(shadow.utf16(data, start, run.end(), little), depth)

    def truncated_hit(text: Text, end: int, depth: int) -> list[Span]:
        return _truncated(text.data, end)

    b64_literals = sorted(needles)
    rows: list[tuple[Pattern, Handler]] = []
    rows.append(
        (
            Pattern(
                b"|".join(re.escape(n) for n in b64_literals),
                tuple(n.lower() for n in b64_literals),
                False,
                False,
            ),
            base64_hit,
        )
    )
    heads = sorted({p[:8] for p in _PREFIXES if len(p) >= 3 and p[:1] != b"$"})
    rows.append(
        (
            Pattern(
                b"|".join(h.hex().encode() for h in heads),
                tuple(h.hex().encode() for h in heads),
                False,
                True,
            ),
            hex_hit,
        )
    )
    rows.append(
        (
            Pattern(
                rb"(?:\\x[0-9a-f]{2}){8}|(?:\\[0-7]{3}){8}|(?:\\u00[2-7][0-9a-f]){4}|(?:\\u001b|\\x1b|\\033|\\e)\[[0-9;?]{0,16}m[a-z0-9_\-+/]",
                (b"\\x", b"\\0", b"\\1", b"\\u00", b"\\e["),
                False,
                True,
            ),
            escaped_hit,
        )
    )
    rows.append(
        (
            Pattern(
                rb"[a-z0-9](?:\\u00(?:2[defb]|5f|3[ad]|[346][0-9a-f]|[57][0-9a])|\\x(?:2[def]|5f|3[ad])|\\055|\\137)[a-z0-9\\]",
                (b"\\u00", b"\\x", b"\\055", b"\\137"),
                False,
                True,
            ),
            escaped_hit,
        )
    )
    rows.append((Pattern(rb"[a-z\"' :?+]\\u00(?:2d|3d)", (b"\\u002d", b"\\u003d"), False, True), marked_hit))
    audited = rb"(?:cmd|proctitle| a[0-9])=[0-9a-f]{24}"
    rows.append((Pattern(audited, (b"cmd=", b"proctitle=", b" a"), False, True), audited_hit))
    forms = [
        rb"[0-9]{8}%3aAA",
        *sorted({form for prefix in _PREFIXES if prefix != b"-----BEGIN " for form in _percent_forms(prefix)}),
    ]
    # A body of base64 has its `+` and `/` encoded, perhaps before the matcher has seen enough of it.
    dense = sorted({start for row in FORMATS if b"/" in row.cls and b"[" not in row.starts[0] for start in row.starts})
    forms.append(rb"00[A-Za-z0-9]{13}%21")
    forms.append(rb"(?:" + b"|".join(dense) + rb")[A-Za-z0-9]{0,24}%(?:2[bf]|3d)")
    rows.append(
        (
            Pattern(
                rb"(?:%[0-9a-f]{2}){8}|"
                + b"|".join(forms)
                + rb"|%3a%2f%2f|(?:passw|passwd|pwd|secret|token|api_?key|access_?key)[a-z0-9_.\-]{0,24}%3d|bearer%20|%25(?:2d|5f|2e)",
                (b"%",),
                False,
                True,
            ),
            percent_hit,
        )
    )
    rows.append((Pattern(rb"\\040(?:by|-|\||ident|password|'|\\\")", (b"\\040",), False, True), libedit_hit))
    rows.append((Pattern(rb"(?:[\x20-\x7e]\x00){8}", (b"\0",), True, False), utf16_hit))
    rows.append((Pattern(rb"(?:\x00[\x20-\x7e]){8}", (b"\0",), True, False), utf16_hit))
    rows.append(
        (
            Pattern(
                rb"[a-z0-9_\-+/=%~.$]{8}\\{0,3}[\"'](?:\.\.\.|\xe2\x80\xa6)",
                (b'"...', b"'...", b"\xe2\x80\xa6"),
                False,
                True,
            ),
            truncated_hit,
        )
    )

    def continued(text: Text, end: int, depth: int) -> list[Span]:
        stop = _REGION_END.search(text.data, end, end + 8192)
        if text.data.find(b"%", end, stop.start() if stop else end + 8192) >= 0:
            low, high = _token_region(text.data, end, 8192)
            return scanner.through(shadow.percent(text.data, low, high), depth)
        low, high = _token_region(text.data, end, 8192)
        return scanner.through(shadow.escapes(text.data, low, high), depth)

    return rows, continued


def _percent_forms(prefix: bytes) -> list[bytes]:
    """Return how a start looks percent-encoded: reserved characters only, or the first of `-_.` too."""
    forms = []
    reserved = re.sub(rb"[^A-Za-z0-9_.\-]", lambda match: b"%%%02x" % match.group()[0], prefix)
    if reserved != prefix:
        forms.append(re.escape(reserved))
    position = re.search(rb"[_.\-]", prefix)
    if position is not None:
        forms.append(re.escape(prefix[: position.start()]) + b"%%%02x" % position.group()[0])
    return forms


_HEX_PAIR = Lazy(rb"[0-9a-fA-F]{2}")
_LITTLE = Lazy(rb"(?:[\x01-\x7f]\x00){8,}")
_BIG = Lazy(rb"(?:\x00[\x01-\x7f]){8,}")
_B64_GROUP = Lazy(rb"[A-Za-z0-9+/_\-]{4}")
_HEX_HEADS = {p[:3].hex().encode() for p in _PREFIXES if len(p) >= 3 and p[:1] != b"$"}


def _padding(data: bytes, end: int) -> int:
    size = 0
    while size < 2 and data[end + size : end + size + 1] == b"=":
        size += 1
    return size


def _named_or_hidden(data: bytes, spans: list[Span]) -> list[Span]:
    return spans


_STARTS = sorted(
    sorted({s for row in FORMATS if row.kind not in ("jwt", "keytab") for s in row.starts}),
    key=len,
    reverse=True,
)
_ANY_START = Lazy(lambda: rb"(?:" + b"|".join(_STARTS) + rb"|eyJ)(?=[A-Za-z0-9_\-+/=%~.$]{8})")


def _truncated(data: bytes, end: int) -> list[Span]:
    """Confirm a key that strace cut: a known start and at least eight characters before `"...`."""
    stop = end - (3 if data[end - 1 : end] == b"." or data[end - 3 : end] == b"\xe2\x80\xa6" else 0)
    while stop > 0 and data[stop - 1] in b"\"'\\":
        stop -= 1
    low = max(0, stop - 2048)
    start = stop
    while start > low and (
        48 <= data[start - 1] <= 57
        or 65 <= data[start - 1] <= 90
        or 97 <= data[start - 1] <= 122
        or data[start - 1] in b"_-+/=%~.$:,"
    ):
        start -= 1
    for found in _ANY_START.finditer(data, start, stop):
        body = data[found.end() : stop]
        row = next((row for row in FORMATS if any(re.match(s, found.group()) for s in row.starts)), None)
        begin = _grow(data, found.start(), row.grow) if row is not None and row.grow is not None else found.start()
        if (
            not begins_token(data, begin, b"_")
            or words.is_example(body)
            or (words.is_name(body) and (row is None or row.gate != "plain"))
        ):
            continue
        if found.end() - found.start() < 4 and not words.looks_random(body, 8):
            continue
        return [
            Span(
                begin,
                stop,
                row.kind if row is not None else "secret-key",
                False,
                True,
                True,
                data[begin:stop],
            )
        ]
    return []
