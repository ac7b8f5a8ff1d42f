"""The mounts that this process sees, as /proc/self/mountinfo lists them (proc(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

TABLE: Final = "/proc/self/mountinfo"


class Mount(NamedTuple):
    """One mount: where it stands, the type and source of its file system, and that file system's own options."""

    point: str
    kind: str
    source: str
    options: str


def mounts(table: str = TABLE) -> Iterator[Mount]:
    """Yield the mounts; of two on one place the later covers the earlier.

    Args:
        table: where they are listed; for tests.

    Raises:
        OSError: there is no /proc.
    """
    with open(table, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            before, _, after = line.rstrip("\n").partition(" - ")
            # Blanks, newlines and backslashes in a name stand as three octal digits.
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split(" ")[4])
            yield Mount(point, *after.split(" ", 2))


def file_system(path: str) -> str:
    """Return the type of the file system that a path lies on, links followed; "" where no mount holds it.

    Raises:
        OSError: there is no /proc.
    """
    real, best, kind = os.path.realpath(path), "", ""
    for mount in mounts():
        below = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        if below and len(mount.point) >= len(best):
            best, kind = mount.point, mount.kind
    return kind
