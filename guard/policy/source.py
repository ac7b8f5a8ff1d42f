"""Reading a configuration file: never blocking, never endless, and with carets when it is wrong."""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from guard.errors import PolicyError, StateError
from guard.policy.positions import Positions, Where, locate

LIMIT = 1 << 20
"""Largest configuration file, in bytes; one of the project is held to `PROJECT_LIMIT`."""

PROJECT_LIMIT = 64 << 10

_WIDTH = 76  # of the source line shown above a caret

# tomllib keeps every prefix of a dotted key, so that one key of 30,000 parts would take gigabytes. No
# key of ours has more than three; a text that only looks like such a key can be written otherwise.
_DEEP_KEY = re.compile(r"""(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){24}""")

Reader = Callable[[str, int, bool], bytes]
"""(path, limit in bytes, whether a symbolic link is followed) → content; raises OSError or PolicyError."""


def printable(text: str) -> str:
    """Return text safe to show on a terminal: files are written by agents too."""
    return "".join(char if char.isprintable() else "?" for char in text)


def read_file(path: str, limit: int, follow: bool) -> bytes:
    """Read a regular file without ever waiting for a FIFO or a device.

    Args:
        path: the file.
        limit: most bytes to accept.
        follow: False refuses a symbolic link in the last component.

    Raises:
        PolicyError: not a regular file, a link that is not followed, or too large.
        OSError: the kernel's own refusal.
    """
    shown = printable(path)
    # O_NONBLOCK: opening a FIFO for reading returns at once. A device would be opened, and opening
    # some has effects, so the kind is looked at before; the descriptor is looked at again after.
    if follow and not stat.S_ISREG(os.stat(path).st_mode):
        raise PolicyError(f"{shown}: is {_kind(os.stat(path).st_mode)}, not a regular file")
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    if not follow:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            raise PolicyError(f"{shown}: is {_kind(status.st_mode)}, not a regular file")
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if not follow and error.errno == errno.ELOOP:
            raise PolicyError(f"{shown}: is a symbolic link, not a regular file") from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PolicyError(f"{shown}: is {_kind(status.st_mode)}, not a regular file")
        content = bytearray()
        while len(content) <= limit:
            piece = os.read(descriptor, limit + 1 - len(content))
            if not piece:
                return bytes(content)
            content += piece
    finally:
        os.close(descriptor)
    raise PolicyError(f"{shown}: is larger than {limit // 1024} KiB, the most that is read")


def _kind(mode: int) -> str:
    for test, name in (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if test(mode):
            return name
    return "a device"


@dataclass(frozen=True)
class Document:
    """A parsed TOML file that can point at its own places.

    Args:
        file: the path, for messages.
        data: what `tomllib` made of it.
        positions: where everything stands.
    """

    file: str
    data: Mapping[str, object]
    positions: Positions

    def error(self, where: Where, sentence: str, *, of_key: bool = False) -> PolicyError:
        """Return the error that names and shows a place."""
        return self.error_at(*self.positions.place(where, of_key=of_key), sentence)

    def error_at(self, line: int, column: int, sentence: str) -> PolicyError:
        """Return the error that names and shows a line and column."""
        return caret(self.file, self.positions.line(line), line, column, sentence)


def caret(file: str, source: str, line: int, column: int, sentence: str) -> PolicyError:
    """Return `file:line:column: sentence`, the source line, and a caret below the place."""
    start = max(0, min(column - 1, len(source)) - _WIDTH * 2 // 3)
    shown = source[start : start + _WIDTH]
    pad = "".join(
        "\t" if char == "\t" else "  " if unicodedata.east_asian_width(char) in "WF" else " "
        for char in source[start : column - 1]
    )
    shown = "".join(char if char == "\t" or char.isprintable() else "?" for char in shown)
    what = f"{printable(file)}:{line}:{column}: {printable(sentence)}"
    return PolicyError(f"{what}\n    {shown}\n    {pad}^" if shown.strip() else what)


def read_document(path: str, reader: Reader = read_file, *, project: bool = False) -> Document | None:
    """Read and parse a file; None when there is none.

    Args:
        path: the file.
        reader: how its bytes are had (as another user, for root).
        project: hold it to what a file written by an agent must satisfy.

    Raises:
        PolicyError: it is there and cannot be used.
    """
    try:
        content = reader(path, PROJECT_LIMIT if project else LIMIT, not project)
    except (FileNotFoundError, NotADirectoryError) as error:
        # A link to nothing is no absent file: what it led to (on a mount that is gone) counted for something.
        if os.path.islink(path):
            raise PolicyError(f"{printable(path)}: is a symbolic link to nothing") from error
        return None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise PolicyError(f"{printable(path)}: cannot be read: {reason}") from error
    return parse_document(path, content)


def parse_document(file: str, content: bytes) -> Document:
    """Parse a file's bytes.

    Raises:
        PolicyError: not UTF-8, not TOML, or nested too deeply.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        source = content.split(b"\n")[line - 1].decode("utf-8", "replace")
        raise caret(file, source, line, column, "this is not UTF-8, and TOML must be") from error
    text = text.replace("\r\n", "\n")
    if text.startswith("\ufeff"):
        raise caret(file, text.split("\n", 1)[0][1:], 1, 1, "starts with a byte order mark; save it without")
    deep = _DEEP_KEY.search(text)
    if deep is not None:
        lines = Positions(text)
        line, column = lines.line_column(deep.start())
        raise caret(file, lines.line(line), line, column, "has too many dots in one key")
    try:
        data = tomllib.loads(text)
    except RecursionError as error:
        raise PolicyError(f"{printable(file)}:1:1: is nested too deeply") from error
    except ValueError as error:  # TOMLDecodeError, and integers of thousands of digits
        raise _syntax(file, text, str(error)) from error
    try:
        positions = locate(text)
    except RecursionError:
        positions = Positions(text)
    return Document(file, data, positions)


def _syntax(file: str, text: str, message: str) -> PolicyError:
    match = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    lines = Positions(text)
    if match is None:
        # int() refuses numbers of more than 4300 digits (CVE-2020-10735), and tomllib lets that through.
        digits = re.search(r"[0-9_]{4000}", text)
        line, column = lines.line_column(digits.start() if digits else 0)
        what = "a number of thousands of digits" if digits else message
        return caret(file, lines.line(line), line, column, f"is not TOML: {what}")
    if match.group(1):
        line, column = int(match.group(1)), int(match.group(2))
    else:
        line, column = lines.line_column(len(text))
    sentence = message[: match.start()]
    return caret(file, lines.line(line), line, column, f"is not TOML: {sentence[:1].lower()}{sentence[1:]}")


def check_file(path: str) -> None:
    """Refuse a file of the configuration that everybody could have written; one that is not there is not judged.

    Raises:
        StateError: it is writable by everybody.
    """
    try:
        loose = os.stat(path).st_mode & 0o002
    except OSError:
        return  # whoever reads it says what is wrong
    if loose:
        raise StateError(f"{printable(path)}: is writable by everybody", f"chmod o-w {printable(path)}")


def check_private(directory: str) -> None:
    """Refuse a state or configuration directory that others could have filled.

    Args:
        directory: absolute; it need not exist, its existing parents are judged then.

    Raises:
        StateError: it or a parent is writable by others, or belongs to neither root nor its owner.
    """
    owner: int | None = None
    outside = _outside_owners()
    path = os.path.realpath(directory)
    while True:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            status = None
        except OSError as error:
            raise StateError(f"{printable(path)}: cannot be judged: {error.strerror}") from error
        if status is not None:
            if owner is None:
                owner = status.st_uid
                if owner not in (0, os.geteuid(), *outside) and os.geteuid() != 0:
                    raise StateError(f"{printable(path)}: belongs to another user", "use one of your own")
            if status.st_uid not in (0, owner, *outside):
                raise StateError(f"{printable(path)}: belongs to another user", "give it to root")
            loose = status.st_mode & 0o022
            if loose and not (status.st_mode & stat.S_ISVTX and stat.S_ISDIR(status.st_mode)):
                remedy = f"chmod go-w {printable(path)}"
                raise StateError(f"{printable(path)}: is writable by others than its owner", remedy)
        if path == "/":
            return
        path = os.path.dirname(path)


def _outside_owners() -> tuple[int, ...]:
    """Return the id that stands for root, and everybody else, outside of a user namespace that we are in."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as stream:
            if stream.read().split() == ["0", "0", "4294967295"]:
                return ()
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as stream:
            return (int(stream.read()),)
    except (OSError, ValueError):
        return ()  # without /proc nobody is trusted beyond root and the owner
