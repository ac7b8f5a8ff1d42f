"""Secrets in the arguments of programs: redacted before anything is stored, and each one told as an exposure.

The redactor runs in this process, so that arguments leave it only redacted. Where it fails, they are dropped and
counted: never stored as they are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from guard.redact import Redacted, bless
from guard.redact.carriers.argv import QUOTED
from guard.redact.marking import Identity, Marks
from guard.redact.rules.advice import advice_for
from guard.redact.scan import Scanner
from guard.redact.spans import Span
from guard.redact.stream import Sighting, redact_bytes

_CLEAN_MOST: Final = 4096
"""Argument lists that are remembered to hold nothing, by a hash that says nothing of them."""
_PIECE: Final = 4
"""Bytes of a key that either argument holds, at least: less is no key's half but a word beside one."""
_JOINABLE: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+/=.")


@dataclass(frozen=True)
class Exposure:
    """One secret in one argument list.

    Args:
        kind, incident: as the redactor's report has them.
        confidence: high, medium or low.
        identity: fingerprint and key, None where the secret could be guessed.
        argument: index of the argument in which it begins; `offset` in bytes of that argument.
        length: in bytes.
        split: it stands in more than one argument.
        partial: it is cut.
    """

    kind: str
    incident: bool
    confidence: str
    identity: Identity | None
    argument: int
    offset: int
    length: int
    split: bool = False
    partial: bool = False

    @property
    def advice(self) -> str:
        """What to do about it."""
        return advice_for(self.kind)


@dataclass(frozen=True)
class Redaction:
    """An argument list that may be stored, and what was found in it."""

    argv: tuple[Redacted, ...]
    exposures: tuple[Exposure, ...] = ()


class Arguments:
    """Redacts argument lists.

    Args:
        marks: makes the fingerprints.

    Attributes:
        dropped: lists that could not be redacted, and of which nothing was kept.
    """

    def __init__(self, marks: Marks | None = None) -> None:
        self._marks = marks or Marks()
        self._scanner = Scanner()
        self._scanner.engine(1 << 20)  # the fast one, also for short texts: an exec storm is many of them
        self._clean: dict[int, None] = {}
        self.dropped = 0

    def redact(self, argv: Sequence[str]) -> Redaction:
        """Redact an argument list and tell what stood in it; on any failure nothing of it is kept, and it counts."""
        seen = hash(tuple(argv))
        if seen in self._clean:
            return Redaction(tuple(map(bless, argv)))
        try:
            found = self._redact(tuple(argv))
        except Exception:  # noqa: BLE001 - whatever it is, raw arguments must not pass
            self.dropped += 1
            return Redaction(())
        if not found.exposures and found.argv == tuple(argv):
            self._clean[seen] = None
            if len(self._clean) > _CLEAN_MOST:  # the oldest goes: what is asked often comes back at once
                del self._clean[next(iter(self._clean))]
        return found

    def text(self, text: str) -> Redacted:
        """Redact one text (a path, a name); withheld where that fails."""
        if hash((text,)) in self._clean:
            return bless(text)
        redaction = self.redact((text,))
        return redaction.argv[0] if redaction.argv else bless("[WITHHELD]")

    def _redact(self, argv: tuple[str, ...]) -> Redaction:
        raw = [word.encode("utf-8", "surrogateescape") for word in argv]
        exposures: dict[tuple[int, int], Exposure] = {}
        alone = [self._alone(number, word, exposures) for number, word in enumerate(raw)]
        out = self._listed(argv, raw, alone, exposures)
        out = self._joined(raw, out, exposures)
        return Redaction(
            tuple(bless(word.decode("utf-8", "surrogateescape")) for word in out), tuple(exposures.values())
        )

    def _alone(self, number: int, word: bytes, exposures: dict[tuple[int, int], Exposure]) -> bytes:
        """Read one argument by itself: a script, a header, a URL."""
        if len(word) < 6:
            return word

        def observe(sighting: Sighting) -> None:
            span = sighting.span
            exposures[number, sighting.offset] = self._exposure(span, number, sighting.offset, sighting.length)

        return redact_bytes(word, self._scanner, self._marks.mark, "auto", observe)

    def _listed(
        self, argv: tuple[str, ...], raw: list[bytes], alone: list[bytes], exposures: dict[tuple[int, int], Exposure]
    ) -> list[bytes]:
        """Read the list as a list, for a value whose name is the argument before it: `--token`, `X`."""
        quoted = [word.decode("utf-8", "surrogateescape").translate(QUOTED).encode("utf-8", "surrogateescape")
                  for word in alone]  # fmt: skip
        starts, at = [], 2
        for word in quoted:
            starts.append(at)
            at += len(word) + 4  # `", "` stands between
        listed = b'["' + b'", "'.join(quoted) + b'"]'
        out = list(alone)
        touched: dict[int, list[Span]] = {}
        for span in self._scanner.find(listed):
            for number in range(bisect_right(starts, span.start) - 1, len(starts)):
                if number >= 0 and span.start < starts[number] + len(quoted[number]) and span.end > starts[number]:
                    touched.setdefault(number, []).append(span)
                if number >= 0 and span.end <= starts[number]:
                    break
        for number, spans in touched.items():
            out[number] = self._replaced(number, starts[number], quoted[number], alone[number], spans)
            if alone[number] == raw[number]:
                for span in spans:
                    begin = max(0, span.start - starts[number])
                    if span.start >= starts[number]:
                        exposures.setdefault(
                            (number, begin), self._exposure(span, number, begin, span.end - span.start)
                        )
        return out

    def _replaced(self, number: int, start: int, quoted: bytes, word: bytes, spans: list[Span]) -> bytes:
        """Replace spans of the list in one argument; where it was quoted, or a border is in a span, all of it goes."""
        whole = quoted == word and all(span.start >= start and span.end <= start + len(word) for span in spans)
        if not whole:
            return self._marks.mark(spans[0])
        for span in reversed(spans):
            word = word[: span.start - start] + self._marks.mark(span) + word[span.end - start :]
        return word

    def _joined(self, raw: list[bytes], out: list[bytes], exposures: dict[tuple[int, int], Exposure]) -> list[bytes]:
        """Read two arguments as one, for a key that was cut in two: only a key with a format of its own counts."""
        for number in range(len(raw) - 1):
            left, right = raw[number], raw[number + 1]
            if not left or not right or left[-1] not in _JOINABLE or right[0] not in _JOINABLE:
                continue
            if len(left) + len(right) < 16:
                continue
            border = len(left)
            tail = max(0, border - 512)
            for span in self._scanner.find(left[tail:] + right[:512]):
                start, end = span.start + tail, span.end + tail
                if not span.named or start > border - _PIECE or end < border + _PIECE:
                    continue
                taken = end - border
                whole = any(own.named and own.start < taken for own in self._scanner.find(right[:512]))
                if whole or right[taken : taken + 1] == b"=":
                    continue  # a key of its own, or a word of its own
                for half in [key for key in exposures if (number, start) <= key < (number + 1, taken)]:
                    del exposures[half]  # what was taken for a whole key is half of this one
                exposures[number, start] = self._exposure(span, number, start, end - start, split=True)
                mark = self._marks.mark(span)
                out[number] = left[:start] + mark if raw[number][:start] == out[number][:start] else mark
                out[number + 1] = mark + right[taken:] if out[number + 1] == right else mark
        return out

    def _exposure(self, span: Span, number: int, offset: int, length: int, *, split: bool = False) -> Exposure:
        return Exposure(
            span.kind,
            span.incident,
            span.confidence,
            self._marks.identity(span),
            number,
            offset,
            length,
            split,
            span.partial,
        )
