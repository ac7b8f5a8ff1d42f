"""Adoption: an exposure that a user's own key marked gets the site's fingerprint, once there is a service.

`guard redact --record` without a service files what it saw under the user's own key. When the events service takes
that file over, in a child that has become the user, each such row's place is read again with that user's rights and
no other's, the secret found there is checked against the row's own fingerprint, and the redactor's service is asked
for the site's. The row then carries that one and the local one as `former`, which joins the two. What is no longer
there, or was never what the row says, keeps its `local-` key, by which everybody sees that it is unmatched.
"""

from __future__ import annotations

import json
import os
import stat
import time
from typing import Final

from guard.errors import GuardError
from guard.redact import fingerprint
from guard.redact.client import Client
from guard.redact.scan import Scanner
from guard.redact.spans import Span
from guard.redact.text import WINDOW

SECONDS: Final = 4.0
"""How long one call may take; what is left then stays unmatched."""
_LONGEST: Final = 65536


def adopt(lines: bytes, state: str, client: Client | None = None, seconds: float = SECONDS) -> bytes:
    """Give the rows of an exposures file the site's fingerprints, where their secrets still stand.

    To be called as the user whose file it is: places are read and the service is asked with this process's rights.

    Args:
        lines: whole lines of JSON, as `guard redact --record` files them; what is none stays as it is.
        state: the directory that holds the file, and the key that marked its rows.
        client: the redactor's service; None for the usual one.
        seconds: time for all of it.
    """
    if b'"local-' not in lines:
        return lines
    adopter = _Adopter(client or Client(), state, time.monotonic() + seconds)
    return b"".join(adopter.line(line) for line in lines.splitlines(keepends=True))


class _Adopter:
    def __init__(self, client: Client, state: str, end: float) -> None:
        self._client = client
        self._end = end
        self._scanner = Scanner()
        try:
            self._keys = fingerprint.load(fingerprint.user_path(state), "local")
        except (OSError, GuardError):
            self._keys = []
        self._usable = bool(self._keys) and client.available()

    def line(self, line: bytes) -> bytes:
        """Return a line, adopted where it can be."""
        if b'"local-' not in line:
            return line
        try:
            row = json.loads(line)
        except ValueError:
            return line
        if not isinstance(row, dict) or not str(row.get("key_id", "")).startswith("local-"):
            return line
        site = self._site(row) if self._usable and time.monotonic() < self._end else None
        if site is None:
            return line
        local = {"key_id": row["key_id"], "fingerprint": row["fingerprint"]}
        row["key_id"], row["fingerprint"], former = site
        row["former"] = [*({"key_id": key, "fingerprint": value} for key, value in former), local]
        return json.dumps(row).encode() + (b"\n" if line.endswith(b"\n") else b"")

    def _site(self, row: dict[str, object]) -> tuple[str, str, tuple[tuple[str, str], ...]] | None:
        span = self._again(row)
        if span is None:
            return None
        try:
            return self._client.fingerprint(span.kind, span.value)
        except (OSError, GuardError):
            return None

    def _again(self, row: dict[str, object]) -> Span | None:
        """Return the secret that a row speaks of, if it still stands where the row says."""
        path, offset, length = row.get("file"), row.get("offset"), row.get("length")
        if not isinstance(path, str) or not path.startswith("/"):
            return None
        if not isinstance(offset, int) or not isinstance(length, int) or offset < 0 or not 0 < length <= _LONGEST:
            return None
        low = max(0, offset - WINDOW)
        data = _read(path, low, offset - low + length + 256)
        for span in self._scanner.find(data):
            if span.start <= offset - low < span.end and fingerprint.fingerprinted(span):
                of_row = [k for k in self._keys if k.key_id == row["key_id"] and k.of(span.value) == row["fingerprint"]]
                return span if of_row else None
        return None


def _read(path: str, offset: int, length: int) -> bytes:
    """Read a part of a regular file, following no link at its end and waiting for nobody; nothing where it is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(handle, length, offset) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(handle)
