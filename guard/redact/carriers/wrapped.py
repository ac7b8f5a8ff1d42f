"""Base64 over lines (`base64`, MIME): a run that begins with plain text is read as one, so its lines stay together."""

from __future__ import annotations

from typing import Final

from guard.redact.decoding import LINE_LEAST, TEXT_RUN
from guard.redact.lazy import Lazy

HELD: Final = 65536
"""At most so many bytes of a run wait for its end; as much is read together."""

_LONGEST: Final = 256
_FULL = Lazy(rb"[A-Za-z0-9+/]{%d,%d}\r?\n\Z" % (LINE_LEAST, _LONGEST))


def held(pending: bytearray, end: int) -> int:
    """Return where a run of base64 begins that the complete lines of `pending[:end]` end in; `end` if in none.

    Args:
        pending: what has not been given out.
        end: where a line of it ends.
    """
    begin = at = end
    while at > 0 and end - at < HELD:
        before = pending.rfind(b"\n", 0, at - 1) + 1
        line = bytes(pending[max(before, at - _LONGEST) : at])
        run = _FULL.search(line)
        if run is None:
            break
        if TEXT_RUN.match(line, run.start()) is not None:
            begin = before
        at = before
        if run.start() > 0 and line[:1] not in b" \t+>|-":
            break  # a run that begins within its line goes on from none
    return begin if end - begin < HELD else end
