"""What a site knows of single secrets: honeytokens, which always raise, and allowed ones, which for a time do not.

Both are root's files in the configuration directory and hold fingerprints under the site's key, never a value:

    honeytokens   <64 hex digits> [label]
    allowed       <64 hex digits> <YYYY-MM-DD> <reason>

What is allowed is redacted all the same; it is no incident until the day named. A honeytoken cannot be allowed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from guard.errors import StateError
from guard.redact import site

HONEYTOKENS: Final = "honeytokens"
ALLOWED: Final = "allowed"
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{64}")


class Lists(NamedTuple):
    """Fingerprint → label of the honeytokens; fingerprint → the end of its allowance, in seconds since 1970."""

    honeytokens: Mapping[str, str]
    allowed: Mapping[str, float]

    def judge(self, row: dict[str, object], now: float) -> None:
        """Mark an exposure's row: `honeytoken` makes it an incident whatever it looks like, `allowed` makes it none.

        Args:
            row: as `guard redact --report` writes it; changed in place.
            now: seconds since 1970.
        """
        former = row.get("former")
        rows = [row, *(former if isinstance(former, list) else ())]
        names = [str(each.get("fingerprint", "")) for each in rows if isinstance(each, dict)]
        if any(name in self.honeytokens for name in names):
            row.update(honeytoken=True, incident=True, confidence="high")
        elif any(self.allowed.get(name, 0.0) > now for name in names):
            row.update(allowed=True, incident=False, confidence="low")


def load(config: str = "") -> Lists:
    """Read a site's lists; empty ones where there are none, or where this process may not read them.

    Args:
        config: the configuration directory; the usual one if not given.

    Raises:
        StateError: somebody but root could have written one, or a line is wrong; it is told which.
    """
    folder = config or site.config_dir()
    honeytokens: dict[str, str] = {}
    for number, words in _lines(os.path.join(folder, HONEYTOKENS)):
        if not _FINGERPRINT.fullmatch(words[0]):
            raise StateError(_wrong(folder, HONEYTOKENS, number), "add lines with `guard key honeytoken`")
        honeytokens[words[0]] = " ".join(words[1:])
    allowed: dict[str, float] = {}
    for number, words in _lines(os.path.join(folder, ALLOWED)):
        try:
            end = time.mktime(time.strptime(words[1], "%Y-%m-%d")) + 86400 if len(words) > 2 else 0.0
        except ValueError:
            end = 0.0
        if not end or not _FINGERPRINT.fullmatch(words[0]):
            raise StateError(_wrong(folder, ALLOWED, number), "a line is: fingerprint, YYYY-MM-DD, reason")
        allowed[words[0]] = end
    return Lists(honeytokens, {name: end for name, end in allowed.items() if name not in honeytokens})


def add_honeytoken(fingerprint: str, label: str) -> str:
    """Put a fingerprint on the site's list and return the file's path."""
    path = os.path.join(site.config_dir(), HONEYTOKENS)
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"{fingerprint} {' '.join(label.split())}".rstrip() + "\n")
    return path


def _wrong(folder: str, name: str, number: int) -> str:
    return f"{os.path.join(folder, name)}, line {number}: this is no entry"


def _lines(path: str) -> list[tuple[int, list[str]]]:
    text = (site.read(path, 1 << 20) or b"").decode("utf-8", "replace")
    found = [(number, line.partition("#")[0].split()) for number, line in enumerate(text.splitlines(), 1)]
    return [(number, words) for number, words in found if words]
