"""strace: one key over several `write` or `read` calls of a descriptor.

A string that ends inside a token behind a known start, or inside a secret's value, leaves a note for its process and
descriptor; the first token of the next call there is the rest. Notes look forward only, so chunks change nothing.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from guard.redact import shadow, words
from guard.redact.lazy import Lazy
from guard.redact.rules import blocks, tails
from guard.redact.scan import Scanner
from guard.redact.spans import Span

_CALL = Lazy(
    rb"^(?:\[pid +(\d+)\] |(\d+) +)?(?:\d[\d:.]* +)?(?:\(\+ *[\d.]+\) )?"
    rb"(?:(" + tails.CALLS + rb")\((\d+)(?:<[^>\n]{0,200}>)?, \"|<\.\.\. (" + tails.CALLS + rb") resumed>(?:, )?\")",
    re.MULTILINE,
)
_STRING_END = Lazy(rb'(?:[^"\\\n]|\\.)*"')
_HEAD = Lazy(rb"[A-Za-z0-9_\-+/=.~%:]{1,4096}")
_VALUE_HEAD = Lazy(rb"[^\s\"'\\&;|<>]{1,256}")
_VECTOR = Lazy(rb'"(?:\.\.\.)?, iov_len=\d+\}, \{iov_base="')
_NEAR: Final = 8192
"""A note of a mere beginning, which most often is none, is forgotten sooner."""

_REACH: Final = 65536
"""A note is forgotten after so many bytes."""


TAIL = Lazy(rb"(?<![A-Za-z0-9])(" + tails.ANY + rb")" + tails.TOKEN + rb"{0,400}\Z")
_CUT = Lazy(rb"(?<![A-Za-z0-9])(?:" + tails.CUTS + rb")\Z")
_WORD = Lazy(rb"[A-Za-z0-9_\-+/=.~%:\\]*")
_NAMES: Final = (b"passw", b"passphrase", b"secret", b"token", b"key", b"bearer", b"basic")
_NAME_TAIL = Lazy(rb"(?i)" + tails.NAME + rb"([^\s\"'\\]{0,200})\Z")


_FIRST: Final[dict[bytes, tuple[bytes, ...]]] = {
    pair: tuple(sorted({s[:1] for s in tails.KINDS if s[1:3] == pair}))
    for pair in {s[1:3] for s in tails.KINDS if len(s) > 2}
}


class _Note(NamedTuple):
    """What a call left open: the kind of key, the characters so far, and the offset at which the note is forgotten."""

    kind: str
    text: bytes
    whole: bool
    expires: int


def jumbled(body: bytes) -> bool:
    """Say whether a few characters mix cases or hold digits, as no word does."""
    return (body != body.lower() and body != body.upper()) or words.digits_in(body) > 1


class Calls:
    """Follows descriptors over calls; one a stream.

    Args:
        scanner: judges a fragment together with what came before it.
    """

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._notes: dict[tuple[bytes, bytes, bytes], _Note] = {}
        self._offset = 0

    def spans(self, data: bytes, since: int, ends: list[int]) -> list[Span]:
        """Return fragments at a call's end and what continues them, behind `since`.

        Args:
            data: context and complete lines.
            since: where the new text begins.
            ends: where the prefilter saw what may go on in another call, in order.
        """
        found: list[Span] = []
        found += self._vectors(data, ends)
        if not ends and not self._notes:
            self._offset += len(data) - since
            return found
        pos = since
        index = 0
        while True:
            if not self._notes:
                while index < len(ends) and ends[index] <= pos:
                    index += 1
                if index == len(ends):
                    break
                pos = max(pos, data.rfind(b"\n", 0, ends[index]) + 1)
                call = _CALL.match(data, pos)
                if call is None:
                    pos = ends[index]
                    continue
            else:
                call = _CALL.search(data, pos)
                if call is None:
                    break
            place = self._offset + call.start() - since
            for key in [key for key, note in self._notes.items() if note.expires < place]:
                del self._notes[key]
            found += self._call(data, call, place)
            pos = max(call.end(), pos + 1)
        self._offset += len(data) - since
        return found

    def _call(self, data: bytes, call: re.Match[bytes], place: int) -> list[Span]:
        pid = call.group(1) or call.group(2) or b""
        name = call.group(3) or call.group(5)
        way = b"r" if name[:1] == b"r" or name[:3] == b"pre" else b"w"
        start = call.end()
        closing = _STRING_END.match(data, start, min(len(data), start + 1048576))
        if closing is None:
            return []
        end = closing.end() - 1
        if call.group(4) is not None:
            key = (pid, call.group(4), way)
        else:
            key = next((k for k in self._notes if k[0] == pid and k[2] == way), (pid, b"", way))
        spans: list[Span] = []
        note = self._notes.pop(key, None)
        if note is not None:
            rest, open_end = self._continue(data, start, end, note)
            if rest is not None:
                spans.append(rest)
            if open_end:
                text = note.text + data[start:end]
                self._notes[key] = note._replace(text=text[-4096:], expires=place + _REACH)
                return spans
            if rest is not None:
                start = rest.end
        elif (head := _HEAD.match(data, start, end)) is not None and head.end() - start >= 12:
            # All but a start's first character may stand here; that one ended the call before.
            for first in _FIRST.get(data[start : start + 2], ()):
                if any(s.named and s.start == 0 for s in self._scanner.find(first + head.group())):
                    spans.append(Span(start, head.end(), "secret-key", False, True, True, head.group()))
                    break
        opened = self._open(data, start, end, place)
        if opened is not None:
            fragment, note = opened
            if fragment is not None:
                spans.append(fragment)
            self._notes[key] = note
        return spans

    def _continue(self, data: bytes, start: int, end: int, note: _Note) -> tuple[Span | None, bool]:
        """Return the rest of a noted secret at a string's start, and whether the string's end leaves it open again."""
        if note.kind == "private-key":
            stop = blocks.body_end(data, start, end)
            if stop <= start:
                return None, False
            return Span(
                start, stop, note.kind, False, True, True, data[start:stop]
            ), stop >= end and b"-----END" not in data[start:stop]
        shape = _VALUE_HEAD if note.kind == "password" else _HEAD
        head = shape.match(data, start, end)
        if head is None:
            return None, False
        stop = head.end()
        rest = data[start:stop]
        if note.whole and not words.drawn(rest, 8):
            return None, False
        if note.kind == "":
            # Only the start itself was cut: the two parts together must be a key.
            together = note.text + rest
            if not any(s.named and s.start < len(note.text) for s in self._scanner.find(together)):
                return None, stop == end and len(together) < 64
            return Span(start, stop, "secret-key", False, True, True, together), stop == end
        if note.kind != "password" and not re.search(rb"[A-Za-z0-9]", rest):
            return None, False
        return Span(start, stop, note.kind, False, True, True, rest), stop == end

    def _open(self, data: bytes, start: int, end: int, place: int) -> tuple[Span | None, _Note] | None:
        """Return what a string leaves open at its end: the fragment to be redacted now, and the note."""
        low = max(start, end - 600)
        headers = list(blocks.BEGIN.finditer(data, start, end))
        header = headers[-1] if headers else None
        if header is not None and header.group()[:5] != b"PuTTY" and data.find(b"-----END", header.end(), end) < 0:
            return Span(header.start(), end, "private-key", False, True, True, data[header.start() : end]), _Note(
                "private-key", b"", False, place + _REACH
            )
        # Only the last word can hold a start: searching further back for two hundred of them costs more than the scan.
        word = end - len(_WORD.match(data[low:end][::-1]).group())  # type: ignore[union-attr]
        tail = TAIL.search(data, word, end)
        if tail is not None:
            text = tail.group()
            row_start = tail.group(1)
            body = text[len(row_start) :]
            whole = any(s.named and s.incident and not s.partial for s in self._scanner.find(text))
            kind = tails.KINDS.get(row_start, "secret-key")
            # A long start is evidence enough; behind a short one a word may be just a word.
            telling = len(row_start) > 5 or not words.is_name(body)
            if len(row_start) < 5:
                telling = telling and (jumbled(body) or words.drawn(body, 4))
            if not body or (telling and len(body) >= (1 if len(row_start) > 3 else 4)):
                note = _Note(kind, text, whole, place + _REACH)
                fragment = Span(tail.start(), end, kind, False, True, True, text)
                return (fragment if len(text) > 4 and not whole else None), note
            return None, _Note("", text, False, place + _NEAR)
        near = data[max(start, end - 260) : end].lower()
        named = _NAME_TAIL.search(data, low, end) if any(part in near for part in _NAMES) else None
        if (
            named is not None
            and named.group(1)
            and not words.is_reference(named.group(1))
            and not words.is_expression(named.group(1))
        ):
            value = named.group(1)
            if not words.is_placeholder(value) or len(value) < 3:
                return (
                    Span(named.start(1), end, "password", False, True, False, value) if len(value) > 2 else None,
                    _Note("password", value, len(value) >= 20, place + _REACH),
                )
        cut = _CUT.search(data, word, end)
        if cut is not None:
            return None, _Note("", cut.group(), False, place + _NEAR)
        return None

    def _vectors(self, data: bytes, ends: list[int]) -> list[Span]:
        """Return the parts of keys that lie over two buffers of one `writev`, on the lines of `ends`."""
        out: list[Span] = []
        stop = -1
        for end in ends:
            if end <= stop or (data[end - 3 : end] != b"iov" and data.find(b"iov_base", end - 40, end) < 0):
                continue
            begin = data.rfind(b"\n", 0, end) + 1
            stop = data.find(b"\n", end)
            stop = len(data) if stop < 0 else stop
            joined = shadow.make(data, begin, stop, _VECTOR, lambda _match: b"")
            for span in self._scanner.find(joined.data, 0, 1):
                low, high = joined.raw(span.start, span.end)
                parts = shadow.pieces(data, low, high, _VECTOR) if span.named else []
                if len(parts) > 1:
                    part = span._replace(partial=True, incident=False)
                    out += [part._replace(start=start, end=end) for start, end in parts]
        return out
