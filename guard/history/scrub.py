"""Histories that are there already: scrubbed when somebody asks, and behind the shell at a session's end.

Shells append to these files, so each secret is overwritten under its own bytes (guard.redact.files): nothing moves,
no line is lost, and what stands there afterwards is a word that no shell reads anything into.
"""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Sequence
from typing import Final

from guard.errors import GuardError
from guard.history.line import MARK
from guard.redact.files import HISTORIES, in_place, overwrite
from guard.redact.marking import Marks
from guard.redact.scan import Scanner
from guard.redact.spans import Span

OF_SHELL: Final = {
    "bash": (".bash_history",),
    "zsh": (".zsh_history", ".zhistory", ".histfile"),
    "fish": (".local/share/fish/fish_history",),
    "tcsh": (".history",),
}
_WAIT: Final = 20.0
"""Seconds a shell is given to end: it writes its history last."""

_STAMPS: Final = re.compile(rb"(?m)^(?:#\+?|: |  when: )([0-9]{9,11})")


class PlainMarks(Marks):
    """Marks without brackets, which a shell would read as a pattern when the line is called back."""

    def __init__(self) -> None:
        super().__init__(service=False)

    def prepare(self) -> None:
        """Nothing is needed: no fingerprint is shown."""

    def mark(self, span: Span) -> bytes:
        """Return what stands in place of a span."""
        return MARK


def files(home: str, shell: str = "") -> list[str]:
    """Return the histories below a home.

    Args:
        home: absolute.
        shell: only this one's; else every program's that is known.
    """
    names: Sequence[str]
    if shell:
        names = OF_SHELL[shell]
    else:
        fixed = [name for group in OF_SHELL.values() for name in group]
        names = [*fixed, *sorted(name for name in HISTORIES if name.startswith(".") and name not in fixed)]
    return [path for name in names if os.path.isfile(path := os.path.join(home, name))]


def scrub(path: str, scanner: Scanner) -> int:
    """Scrub one history where it lies and return how many secrets were overwritten.

    Args:
        path: the history.
        scanner: finds the spans; one for all histories, since making it takes 20 ms.

    Raises:
        GuardError: on a network file system while its shells live, or rewritten again and again under the scrub.
        OSError: it cannot be read or written.
    """
    return in_place(path, scanner, PlainMarks(), "history", None)


def stamp(folder: str) -> str:
    """Return the file that says when a whole scrub was last asked for."""
    return os.path.join(folder, "scrubbed")


def ask(folder: str) -> None:
    """Remember that a whole scrub was asked for: shells open now hold the old lines and write them back."""
    os.makedirs(folder, exist_ok=True)
    handle = os.open(stamp(folder), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.utime(handle)
    os.close(handle)


def begin_of(path: str, size: int, start: int, asked: bool) -> int | None:
    """Return where a session's own lines begin in its history, in bytes; None where that cannot be told.

    Args:
        path: the history.
        size: its size when the session began.
        start: when that was, in seconds since 1970.
        asked: whether a whole scrub was asked for since then.
    """
    if asked:
        return 0
    now = os.stat(path).st_size
    with open(path, "rb") as file:
        text = file.read(64 << 20)
    for found in _STAMPS.finditer(text):
        if int(found.group(1)) >= start:
            late = found.group().startswith(b"  when")  # fish dates a command behind it
            return text.rfind(b"\n- cmd:", 0, found.start()) + 1 if late else found.start()
    if _STAMPS.search(text):
        return None  # dated, and nothing of this session
    return min(size, now) if now >= size else None


def main(arguments: list[str]) -> int:
    """Run `guard history end PID START SIZE FILE FOLDER…`: wait for the shell's end, then scrub what it wrote.

    Detached from the terminal first: nobody waits for it.
    """
    if len(arguments) < 4 or not all(word.isdigit() for word in arguments[:3]):
        return 2
    shell, start, size = (int(word) for word in arguments[:3])
    path, folders = arguments[3], arguments[4:]
    if os.fork():
        return 0
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.chdir("/")
    _wait(shell)
    asked = any(_newer(stamp(folder), start) for folder in folders)
    try:
        begin = begin_of(path, size, start, asked)
        if begin is not None:
            overwrite(os.path.realpath(path), Scanner(), PlainMarks(), "history", None, begin)
    except (OSError, GuardError):
        return 3  # nobody is there to be told; what the hook kept out stays out
    return 0


def _newer(path: str, start: int) -> bool:
    try:
        return os.stat(path).st_mtime >= start
    except OSError:
        return False


def _wait(pid: int) -> None:
    """Wait until a process has ended, or for `_WAIT` seconds."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:
        time.sleep(1)  # no pidfd before Linux 5.3
        return
    try:
        select.select([handle], [], [], _WAIT)
    finally:
        os.close(handle)

