"""Root's switch: one node-local file, and shims and login shells start the plain program at once.

The file's presence is the switch; what stands in it says why and until when. It is read with the standard library's
barest means, since it must work where nothing else does.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

NAME = "off"
LIMIT = 4096


class Off(NamedTuple):
    """That guard is off on this node.

    Args:
        reason: root's words; "" where the file gives none.
        until: seconds since 1970, or 0 for no end.
    """

    reason: str
    until: float


def read(config: str, now: float | None = None, owner: int = 0) -> Off | None:
    """Return the switch's state: None where guard is on.

    A file that cannot be read or makes no sense switches off all the same: root made it, and nobody shall be locked
    out by a slip of the pen. One that another user could have written is none.

    Args:
        config: the configuration directory.
        now: seconds since 1970.
        owner: whose file counts besides root's.
    """
    path = os.path.join(config, NAME)
    try:
        info = os.lstat(path)
    except OSError:
        return None
    if info.st_uid not in (0, owner) or info.st_mode & 0o022 or not os.path.isfile(path):
        return None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            text = os.read(handle, LIMIT).decode("utf-8", "replace")
        finally:
            os.close(handle)
    except OSError:
        text = ""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    values = {name.strip(): value.strip().strip('"') for name, value in values.items()}
    until = moment(values.get("until", "")) or 0.0
    if until and (time.time() if now is None else now) >= until:
        return None
    return Off(values.get("reason", ""), until)


def moment(text: str, now: float | None = None) -> float | None:
    """Return a point in time in seconds since 1970; None where the text is none.

    Args:
        text: `2026-11-30`, `2026-11-30T18:00` (UTC), or a span from now: `30m`, `8h`, `2d`.
        now: seconds since 1970.
    """
    from calendar import timegm  # dear, and most logins meet no switch

    spans = {"m": 60, "h": 3600, "d": 86400}
    if text[-1:] in spans and text[:-1].isdigit():
        return (time.time() if now is None else now) + int(text[:-1]) * spans[text[-1]]
    for form in ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%d"):
        try:
            return float(timegm(time.strptime(text, form)))
        except ValueError:
            continue
    return None


def text(reason: str, until: float) -> str:
    """Return what the file holds."""
    lines = [f'reason = "{" ".join(reason.split())}"']
    if until:
        lines.append(f"until = {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(until))}")
    return "\n".join(lines) + "\n"
