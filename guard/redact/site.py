"""What root keeps for the redactor in the site's configuration directory.

A module of its own, since `fingerprint` costs a cold call hmac and hashlib.
"""

from __future__ import annotations

import os
import stat

from guard.errors import StateError


def config_dir() -> str:
    """Return the site's configuration directory."""
    return os.environ.get("GUARD_CONFIG_DIR") or "/etc/guard"


def read(path: str, most: int) -> bytes | None:
    """Return the first `most` bytes of a file there; None where there is none, or where this process may not read it.

    Raises:
        StateError: somebody but root and whoever runs this could have written it.
        OSError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
            if info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o022 or not stat.S_ISREG(info.st_mode):
                raise StateError(f"{path} can be written by others", "chown root it and chmod go-w it")
            return file.read(most)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
