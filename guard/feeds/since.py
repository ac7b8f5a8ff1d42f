"""`--since`: a moment as people write it."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from guard.errors import UsageError

_AGO = re.compile(r"(\d{1,9})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def moment(text: str, now: float) -> float:
    """Return seconds since 1970.

    Args:
        text: RFC 3339 (without an offset: UTC), a date, or how long ago: 90s, 15m, 2h, 7d, 1w.
        now: seconds since 1970.

    Raises:
        UsageError: it is none of these.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now - int(ago.group(1)) * _SECONDS[ago.group(2)]
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--since {text!r} is no time", "write 2h, 7d, 2026-01-31 or 2026-01-31T08:00:00Z") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
