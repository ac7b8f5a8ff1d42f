"""`guard history fish`: put a line of ours into the history file of fish 3, which has no command for it.

The format and the locking are fish's own (src/history.cpp, 3.6): a record is `- cmd: ` with backslash and newline
escaped, then `  when: ` in seconds; whoever appends holds flock(2) on the file, and looks whether it is still the one
of that name, since fish rewrites it by rename.
"""

from __future__ import annotations

import fcntl
import os
import time

LIMIT = 1 << 20


def record(line: bytes, when: int) -> bytes:
    """Return a line as a record of fish's history.

    Args:
        line: the command.
        when: seconds since 1970.
    """
    return b"- cmd: %s\n  when: %d\n" % (line.replace(b"\\", b"\\\\").replace(b"\n", b"\\n"), when)


def path(session: str, environment: dict[str, str]) -> str:
    """Return the history file of a session (`fish_history`), as fish finds it."""
    data = environment.get("XDG_DATA_HOME") or os.path.join(environment.get("HOME", ""), ".local", "share")
    return os.path.join(data, "fish", f"{session}_history")


def main(arguments: list[str]) -> int:
    """Append standard input as one record; 3 where it cannot be done."""
    session = arguments[0] if arguments else "fish"
    if not session.replace("_", "").isalnum():
        return 3
    line = b""
    while part := os.read(0, 65536):
        line += part
        if len(line) > LIMIT:
            return 3
    name = path(session, dict(os.environ))
    for _attempt in range(16):
        handle = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _locked(handle):
                return 3
            there = os.stat(name)
            now = os.fstat(handle)
            if (there.st_dev, there.st_ino) == (now.st_dev, now.st_ino):
                os.write(handle, record(line, int(time.time())))
                return 0
        finally:
            os.close(handle)
    return 3


def _locked(handle: int) -> bool:
    """Lock as fish does, but never wait for long: a person waits for the command."""
    for _attempt in range(20):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:
            return True  # no locks on this file system: fish goes without, too
        else:
            return True
    return False
