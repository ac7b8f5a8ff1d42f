"""Users' own spools: lines that `guard run` and `guard redact --record` left, read as the user who owns them.

Root opens nothing below a user's directory. A child becomes the user, opens the directory and its three files
without following a link, and sends through a pipe at most `MOST` bytes of what is new, in whole lines. How far a
file was read is kept in the spool with the events; a file is known by device, inode and its first line, so that
one that replaces another is read from its beginning. What the user does to the child or to the file changes only
what is claimed in his own name.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from zlib import crc32

FILES: Final = ("events.jsonl.1", "events.jsonl", "exposures.jsonl")
MOST: Final = 512 << 10
"""Bytes taken from one user in one go; the rest follows in the next."""
DEADLINE: Final = 10.0
"""Seconds after which a child that has not ended is killed."""
_NOBODY: Final = 65534
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_HEAD: Final = re.compile(rb"([a-z.1]+) (\d+) (\d+) (\d+) (\d+) (\d)")


@dataclass(frozen=True)
class Part:
    """New lines of one file.

    Args:
        name: the file's.
        key: device, inode and checksum of the first line.
        end: the offset up to which it is read now.
        lines: whole lines.
        more: whether there are more behind.
    """

    name: str
    key: str
    end: int
    lines: list[bytes]
    more: bool


def places(patterns: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """The users' state directories on this node: (uid, directory).

    Args:
        patterns: absolute, with `{uid}` in the last component.
    """
    for pattern in patterns:
        above, _, name = pattern.rpartition("/")
        form = re.compile(re.escape(name).replace(r"\{uid\}", r"(\d{1,10})"))
        try:
            entries = os.listdir(above or "/")
        except OSError:
            continue
        for each in entries:
            found = form.fullmatch(each)
            if found:
                yield int(found.group(1)), f"{above}/{each}"


class Reading:
    """A child that reads one user's files; after `finish` it is to be asked whether it `is_gone`.

    Args:
        uid: the user.
        directory: his state directory.
        known: key → offset of what was read before.
        clock: seconds, monotonic.

    Raises:
        OSError: no child can be had.
    """

    def __init__(
        self, uid: int, directory: str, known: Mapping[str, int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.uid = uid
        self.directory = directory
        self._content = bytearray()
        self._end = clock() + DEADLINE
        self._clock = clock
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            self._pid = os.fork()
        except OSError:
            os.close(read)
            os.close(write)
            raise
        if self._pid == 0:
            code = 1
            try:
                _become(uid, write)
                _send(directory, uid, known)
                code = 0
            finally:
                os._exit(code)
        os.close(write)
        os.set_blocking(read, False)
        self._pipe = read

    def fileno(self) -> int:
        """The pipe, readable when there is something."""
        return self._pipe

    def is_late(self) -> bool:
        """Whether it has had its time."""
        return self._clock() > self._end

    def advance(self) -> bool:
        """Take what has come; returns whether that was all."""
        while True:
            try:
                part = os.read(self._pipe, 1 << 20)
            except BlockingIOError:
                return self.is_late()
            if not part:
                return True
            self._content += part
            if len(self._content) > MOST + (1 << 20):
                return True  # no child of ours sends as much

    def finish(self) -> list[Part]:
        """End the child and return what it read; nothing where it did not end by itself."""
        os.close(self._pipe)
        with suppress(OSError):  # gone already, or we may not: then it ends by its own deadline
            os.kill(self._pid, signal.SIGKILL)
        return _parts(bytes(self._content))

    def is_gone(self) -> bool:
        """Whether the child is gone. One that hangs in a file system of the user's may stay a while: nobody waits."""
        if self._pid:
            try:
                if os.waitpid(self._pid, os.WNOHANG)[0] == 0:
                    return False
            except ChildProcessError:
                pass  # somebody else has waited for it
            self._pid = 0
        return True


def _become(uid: int, pipe: int) -> None:
    """Become the user, with nothing of the service's but the pipe."""
    os.dup2(pipe, 3)
    os.closerange(4, 65536)
    if os.geteuid() == 0 and uid != 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(uid, uid, uid)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(int(DEADLINE) + 1)


def _send(directory: str, uid: int, known: Mapping[str, int]) -> None:
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    about = os.fstat(folder)
    if about.st_uid != uid or about.st_mode & 0o022:
        return
    left = MOST
    for name in FILES:
        try:
            file = os.open(name, _OPEN, dir_fd=folder)
        except OSError:
            continue
        about = os.fstat(file)
        if stat.S_ISREG(about.st_mode) and about.st_uid == uid:
            left -= _send_file(directory, name, file, about, known, left)
        os.close(file)
        if left <= 0:
            return


def _send_file(
    directory: str, name: str, file: int, about: os.stat_result, known: Mapping[str, int], most: int
) -> int:
    first = os.pread(file, 65536, 0).partition(b"\n")
    if not first[1]:
        return 0  # not even one whole line
    check = crc32(first[0])
    start = known.get(f"{about.st_dev} {about.st_ino} {check}", 0)
    start = start if start <= about.st_size else 0
    content = os.pread(file, most, start)
    whole = content.rfind(b"\n") + 1
    if not whole and len(content) == most:
        whole = len(content)  # one line longer than all that is taken: passed over in parts
    if not whole:
        return 0
    more = start + whole < about.st_size and len(content) == most
    head = f"{name} {about.st_dev} {about.st_ino} {check} {start + whole} {int(more)}".encode()
    lines = content[:whole]
    if name.startswith("exposures"):
        from guard.redact.adopt import adopt

        lines = adopt(lines, directory)  # what the user's own key marked is looked at again, as the user
    data = b"%s\n%d\n%s" % (head, len(lines), lines)
    while data:
        data = data[os.write(3, data) :]
    return whole


def _parts(content: bytes) -> list[Part]:
    found = []
    while content:
        head, _, content = content.partition(b"\n")
        size, _, content = content.partition(b"\n")
        words = _HEAD.fullmatch(head)
        if words is None or not size.isdigit() or len(content) < int(size):
            break  # cut off in the middle: what is missing comes again
        data, content = content[: int(size)], content[int(size) :]
        name, device, inode, check, end, more = words.groups()
        found.append(
            Part(
                name.decode(), f"{int(device)} {int(inode)} {int(check)}", int(end),
                [line for line in data.replace(b"\0", b"").split(b"\n") if line], more == b"1",
            )
        )  # fmt: skip
    return found
