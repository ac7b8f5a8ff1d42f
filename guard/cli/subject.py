"""Whom a command speaks of: this user, or any other by name, with groups, home and files."""

from __future__ import annotations

import grp
import os
import pwd
import select
import signal
from dataclasses import dataclass

from guard.errors import PolicyError, UsageError
from guard.policy.source import Reader, printable, read_file

_WAIT = 10.0
"""Seconds that another user's file may take: a home may lie on a server that does not answer."""


@dataclass(frozen=True)
class Person:
    """An account of this host.

    Args:
        name: "" for an id without a name.
        uid, gid: its ids.
        gids: every group it is in.
        home: its home, "" for none.
    """

    name: str
    uid: int
    gid: int
    gids: tuple[int, ...]
    home: str

    @property
    def groups(self) -> tuple[str, ...]:
        """Return the names of its groups; a group without a name matches no rule."""
        names = []
        for gid in sorted({self.gid, *self.gids}):
            try:
                names.append(grp.getgrgid(gid).gr_name)
            except KeyError:
                continue
        return tuple(names)

    @property
    def is_me(self) -> bool:
        """Whether it is the account that runs this process."""
        return self.uid == os.geteuid()


def find_person(name: str) -> Person:
    """Look an account up; "" is the one that runs this process.

    Raises:
        UsageError: there is no such account.
    """
    if not name:
        uid, gid, gids = os.geteuid(), os.getegid(), tuple(os.getgroups())
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            return Person("", uid, gid, gids, os.environ.get("HOME", ""))
        return Person(entry.pw_name, uid, gid, gids, entry.pw_dir)
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise UsageError(f"there is no user {printable(name)!r} on this host", "`getent passwd` lists them") from None
    gids = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Person(entry.pw_name, entry.pw_uid, entry.pw_gid, gids, entry.pw_dir)


def reader_for(person: Person, skipped: list[str]) -> Reader:
    """Return how a person's own files are read: root becomes that person first, in a child.

    Args:
        person: whose files.
        skipped: files of another user that are not ours to read are added, and count as absent.
    """
    if person.is_me:
        return read_file

    def read(path: str, limit: int, follow: bool) -> bytes:
        try:
            if os.geteuid() == 0:
                return _read_as(person, path, limit, follow)
            return read_file(path, limit, follow)
        except PermissionError as error:
            skipped.append(path)
            raise FileNotFoundError(error.errno, error.strerror, path) from error

    return read


def _read_as(person: Person, path: str, limit: int, follow: bool) -> bytes:
    """Read a file in a child that has become the person, so that root follows nobody's links."""
    out, into = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.close(out)
            os.setgroups(person.gids)
            os.setresgid(person.gid, person.gid, person.gid)
            os.setresuid(person.uid, person.uid, person.uid)
            try:
                answer = b"+" + read_file(path, limit, follow)
            except PolicyError as error:
                answer = b"!" + error.what.encode("utf-8", "replace")
            except OSError as error:
                answer = b"%d" % (error.errno or 5)
            with open(into, "wb") as stream:
                stream.write(answer)
        finally:
            os._exit(0)  # nothing of the parent's may be flushed or undone here
    os.close(into)
    content = bytearray()
    try:
        while select.select([out], [], [], _WAIT)[0]:
            piece = os.read(out, 1 << 16)
            if not piece:
                break
            content += piece
        else:
            os.kill(child, signal.SIGKILL)
            raise PolicyError(f"{printable(path)}: cannot be read within {_WAIT:.0f} s")
    finally:
        os.close(out)
        os.waitpid(child, 0)
    if content[:1] == b"+":
        return bytes(content[1:])
    if content[:1] == b"!":
        raise PolicyError(content[1:].decode("utf-8", "replace"))
    number = int(content or b"5")
    raise OSError(number, os.strerror(number), path)
