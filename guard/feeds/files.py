"""Writing for the destinations that are files."""

from __future__ import annotations

import os


def write_all(file: int, data: bytes) -> None:
    """Write all of it; a full disk or a closed pipe raises OSError with a part written."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
