"""Protected names that do not exist: what appears under one is moved aside at once.

Neither a mount nor a Landlock rule can protect a name that is not there, and every call that makes files would be
too much to ask about. So the supervisor watches the directories that lead to it (inotify), and renames what appears to
NAME.guard-refused-XXXXXXXX beside it: nothing is lost, and nothing is found under the protected name. Who made it
is not known; what somebody outside makes there while a session runs is moved aside as well, and an event says so.

The way to it is looked at anew each time, from a directory that the session cannot replace: another directory in the
place of one on the way is watched like the first, and a link there is moved aside itself, since it would make the
protected name mean another place.

A link that leads to what is protected, and can be replaced where a mount cannot hold it (`.git`, `.git/hooks`), is kept
likewise: it may go, but nothing else may have its name.

Whoever goes on making it is ended with the whole session: a name that comes back often enough would be found.
"""

import posix as os
import struct

from guard.kernel import dirname, open_beneath, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from guard.confine import turns

_IN_MOVED_TO, _IN_CREATE, _IN_IGNORED, _IN_ONLYDIR = 0x80, 0x100, 0x8000, 0x1000000
_EVENT = struct.Struct("@iIII")  # struct inotify_event: watch, mask, cookie, length of the name
_NOFOLLOW = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FORMAT, _DIRECTORY, _LINK = 0o170000, 0o040000, 0o120000
PATIENCE = 8  # times that one name may come back


class Keeper:
    """Watches for protected names that were absent at the start.

    Args:
        absent: their paths, real but for the last component.
        links: those of links that may be there, as they are now.
        tops: directories that the session cannot replace, real.
        tell: is told of each that came: (path, where it is now).

    Raises:
        OSError: they cannot be watched (the user's watches are used up).
    """

    def __init__(
        self, absent: "list[str]", links: "list[str]", tops: "tuple[str, ...]", tell: "Callable[[str, str], None]"
    ) -> None:
        self._tell = tell
        self._fd = syscall("inotify_init1", os.O_CLOEXEC | os.O_NONBLOCK)
        self._came: dict[str, int] = {}
        self._tops: dict[str, int] = {}
        self._watched: dict[str, tuple[int, int, int]] = {}  # directory to its watch, device and inode
        self._ways: list[tuple[str, str, list[str]]] = []  # protected path, its top, the names from there
        self._links = dict.fromkeys(links, "")  # path to where it leads, once that is known
        for path in (*absent, *links):
            top = max((top for top in tops if path.startswith(top + "/")), key=len, default=dirname(path))
            try:
                if top not in self._tops:
                    self._tops[top] = open_beneath(top)
            except OSError:
                continue  # what a tree could make a link of is not watched in its place
            way = (path, top, path[len(top) + 1 :].split("/"))
            if not self._follow(way, None):  # else it was made meanwhile, by somebody outside
                self._ways.append(way)

    def fileno(self) -> int:
        """What becomes readable when something may have come."""
        return self._fd

    def look(self, turn: "turns.Turn") -> bool:
        """Move aside what has come; returns whether that has been enough, and the session should end.

        Args:
            turn: sees to callers, should the file system hold this up.
        """
        try:
            events = os.read(self._fd, 65536)  # which name it was is no matter: all are looked at
        except BlockingIOError:
            return False
        self._forget(events)
        came: list[tuple[str, str]] = []
        enough: bool = turn.anyway(self._look_at_all, came)
        for path, aside in came:
            self._tell(path, aside)
        return enough

    def _forget(self, events: bytes) -> None:
        """Forget the watches of directories that are gone: another one may get such a number."""
        at = 0
        while at < len(events):
            watch, mask, _, length = _EVENT.unpack_from(events, at)
            at += _EVENT.size + length
            if mask & _IN_IGNORED:
                self._watched = {path: one for path, one in self._watched.items() if one[0] != watch}

    def _look_at_all(self, came: "list[tuple[str, str]]") -> bool:
        for way in self._ways:
            while self._follow(way, came):
                if self._came.get(way[0], 0) >= PATIENCE:
                    return True
        return False

    def _follow(self, way: "tuple[str, str, list[str]]", came: "list[tuple[str, str]] | None") -> bool:
        """Go to where a protected name would be, watching each directory on the way.

        Args:
            way: as in `_ways`.
            came: takes what is moved aside; None to leave it there.

        Returns:
            Whether something was there.
        """
        path, top, names = way
        at, place = os.dup(self._tops[top]), top
        try:
            self._watch(at, place)
            for name in names[:-1]:
                try:
                    below: int = _as_owner(at, _open, name, at)
                except FileNotFoundError:
                    return False
                kind = os.fstat(below).st_mode & _FORMAT
                if kind != _DIRECTORY:
                    os.close(below)
                    return kind == _LINK and self._take(path, place, name, at, came)
                os.close(at)
                at, place = below, f"{place}/{name}"
                self._watch(at, place)
            if not _is_there(names[-1], at) or self._is_kept(path, names[-1], at):
                return False
            return self._take(path, place, names[-1], at, came)
        except OSError:  # another user's directory, or no watch left: the first time that is the caller's to tell
            if came is None:
                raise
            return False
        finally:
            os.close(at)

    def _is_kept(self, path: str, name: str, fd: int) -> bool:
        """Whether it is the link that was there at the start."""
        if path not in self._links:
            return False
        try:
            target = _as_owner(fd, _readlink, name, fd)
        except OSError:
            return False  # another thing
        self._links[path] = self._links[path] or target
        return bool(target == self._links[path])

    def _watch(self, fd: int, place: str) -> None:
        about = os.fstat(fd)
        known = self._watched.get(place)
        if known and known[1:] == (about.st_dev, about.st_ino):
            return
        wanted = _IN_MOVED_TO | _IN_CREATE | _IN_ONLYDIR
        watch = _as_owner(fd, syscall, "inotify_add_watch", self._fd, b"/proc/self/fd/%d" % fd, wanted)
        self._watched[place] = (watch, about.st_dev, about.st_ino)

    def _take(self, path: str, place: str, name: str, fd: int, came: "list[tuple[str, str]] | None") -> bool:
        """Move a name aside; returns whether it was there."""
        if came is None:
            return True
        aside = f"{name}.guard-refused-{os.urandom(4).hex()}"
        try:
            _as_owner(fd, _move, name, aside, fd)
        except FileNotFoundError:
            return True  # it is another by now, or none
        except OSError as error:
            # It stays (no room, a read-only file system), but not with who may have made it at work.
            came.append((f"{place}/{name}", error.strerror or ""))
            self._came[path] = PATIENCE
            return True
        self._came[path] = self._came.get(path, 0) + 1
        came.append((f"{place}/{name}", aside))
        return True


def _as_owner(fd: int, act: "Callable[..., Any]", *args: object) -> "Any":  # noqa: ANN401 - what `act` returns
    """Do something in a directory, also in one whose owner's rights have been taken away."""
    try:
        return act(*args)
    except PermissionError:
        mode = os.fstat(fd).st_mode & 0o7777
        os.chmod(f"/proc/self/fd/{fd}", mode | 0o700)
        try:
            return act(*args)
        finally:
            os.chmod(f"/proc/self/fd/{fd}", mode)


def _move(name: str, aside: str, fd: int) -> None:
    os.rename(name, aside, src_dir_fd=fd, dst_dir_fd=fd)


def _stat(name: str, fd: int) -> "os.stat_result":
    return os.stat(name, dir_fd=fd, follow_symlinks=False)


def _readlink(name: str, fd: int) -> str:
    return os.readlink(name, dir_fd=fd)


def _open(name: str, fd: int) -> int:
    return os.open(name, _NOFOLLOW, dir_fd=fd)


def _is_there(name: str, fd: int) -> bool:
    try:
        _as_owner(fd, _stat, name, fd)
    except FileNotFoundError:
        return False
    return True


__all__ = ["PATIENCE", "Keeper"]
