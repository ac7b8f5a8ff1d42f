"""Directories whose default access list lets others write: what a session makes there loses that right at once.

Where a directory has a default list, the kernel makes files by it and by the mode that was asked for, and leaves the
umask out (acl(5), "Object creation and default ACLs"): with 0666, as nearly all programs ask, they would be writable
by everybody. A list is set rarely, and judging every creation would cost each session dearly. So these directories
are looked for when a session has begun: the writable places, what lies directly in them, and what lies below one that
has such a list. The ones found are watched (inotify), and the right of others to write is taken from what appears.
For a moment it is there. Who made a file is not known: what somebody outside makes there meanwhile loses it as well.

What lies deeper than that and got its list from a person is not found (docs/threat-model.md).
"""

import posix as os
import struct

from guard.kernel import open_beneath, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_IN_CREATE, _IN_Q_OVERFLOW, _IN_IGNORED, _IN_ONLYDIR = 0x100, 0x4000, 0x8000, 0x1000000
_EVENT = struct.Struct("@iIII")  # struct inotify_event: watch, mask, cookie, length of the name
_DEFAULT, _OTHER, _WRITE = "system.posix_acl_default", 0x20, 2  # posix_acl_xattr.h
_FORMAT, _DIRECTORY, _LINK = 0o170000, 0o040000, 0o120000
_MOST_LISTED, _MOST_WATCHED = 256, 128
_NOFOLLOW = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Inherited:
    """Looks for such directories, and after what appears in them.

    Args:
        places: that the session may write.
        since: when it began, seconds since 1970: what changed before is not its own.
        takes: whether the right is taken, or only told of.
        tell: is told of each: (path, what it is).
    """

    def __init__(
        self, places: "tuple[str, ...]", since: float, takes: bool, tell: "Callable[[str, str], None]"
    ) -> None:
        self._places, self._since, self._takes, self._tell = places, since, takes, tell
        self._inotify = -1
        self._watched: dict[int, int] = {}  # watch to directory
        self._known: set[tuple[int, int]] = set()

    def serve(self) -> None:
        """Find them, and keep at it; returns where there is none."""
        for place in self._places:
            try:
                fd = open_beneath(place)
            except OSError:
                continue  # it is not there, or a link by now
            try:
                self._look_below(fd)
            finally:
                os.close(fd)
        while self._watched:
            self._take(os.read(self._inotify, 65536))

    def _look_below(self, top: int) -> None:
        """Watch a directory, if it has such a list, and those directly in it that do."""
        if self._watch(top, False):
            return
        for name in _names(top, _MOST_LISTED):
            fd = _opened(name, top)
            if fd >= 0:
                self._watch(fd, False)
                os.close(fd)

    def _watch(self, directory: int, fresh: bool) -> bool:
        """Watch a directory and what lies below, where it has such a list; whether it does.

        Args:
            directory: a descriptor of it.
            fresh: it was made just now, and everything in it.
        """
        if not lets_others_write(directory):
            return False
        about = os.fstat(directory)
        if (about.st_dev, about.st_ino) in self._known or len(self._watched) >= _MOST_WATCHED:
            return True
        self._known.add((about.st_dev, about.st_ino))
        if self._inotify < 0:
            self._inotify = syscall("inotify_init1", os.O_CLOEXEC)
        place = b"/proc/self/fd/%d" % directory
        watch = syscall("inotify_add_watch", self._inotify, place, _IN_CREATE | _IN_ONLYDIR)
        kept = self._watched[watch] = os.dup(directory)
        self._look_at_all(kept, fresh)
        return True

    def _look_at_all(self, directory: int, fresh: bool) -> None:
        for name in _names(directory):
            self._look_at(name, directory, fresh)

    def _take(self, events: bytes) -> None:
        at = 0
        while at < len(events):
            watch, mask, _, length = _EVENT.unpack_from(events, at)
            at += _EVENT.size + length
            if mask & _IN_Q_OVERFLOW:  # more came than is kept: all are looked at
                for directory in list(self._watched.values()):
                    self._look_at_all(directory, False)
            elif mask & _IN_IGNORED:  # the directory is gone
                directory = self._watched.pop(watch, -1)
                if directory >= 0:
                    about = os.fstat(directory)
                    self._known.discard((about.st_dev, about.st_ino))
                    os.close(directory)
            elif watch in self._watched and length:
                name = events[at - length : at].rstrip(b"\0")
                self._look_at(name.decode("utf-8", "surrogateescape"), self._watched[watch], True)

    def _look_at(self, name: str, directory: int, fresh: bool) -> None:
        """Take the right of others to write from what was made since the session began."""
        try:
            fd = os.open(name, _NOFOLLOW, dir_fd=directory)
        except OSError:
            return  # it has gone again
        try:
            about = os.fstat(fd)
            kind = about.st_mode & _FORMAT
            if kind == _LINK:
                return
            ours = about.st_uid == os.geteuid() and (fresh or about.st_ctime >= self._since)
            if about.st_mode & _WRITE and ours:
                if self._takes:
                    os.chmod(f"/proc/self/fd/{fd}", about.st_mode & 0o7777 & ~_WRITE)
                self._tell(os.readlink(f"/proc/self/fd/{fd}"), "directory" if kind == _DIRECTORY else "file")
            if kind == _DIRECTORY:
                self._watch(fd, fresh)
        except OSError as error:
            self._tell(name, error.strerror or "")
        finally:
            os.close(fd)


def lets_others_write(directory: int) -> bool:
    """Whether what is made in a directory may be written by everybody, whatever the umask."""
    try:
        found = os.getxattr(f"/proc/self/fd/{directory}", _DEFAULT)
    except OSError:
        return False  # it has none, or its file system knows none
    entries = (struct.unpack_from("<HH", found, at) for at in range(4, len(found) - 7, 8))
    return any(tag == _OTHER and rights & _WRITE for tag, rights in entries)


def _names(directory: int, most: int = -1) -> "Iterator[str]":
    """The first names in a directory, or all, "." and ".." left out."""
    try:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return
    try:
        with os.scandir(fd) as found:
            for count, entry in enumerate(found):
                if count == most:
                    return
                yield entry.name
    except OSError:
        return
    finally:
        os.close(fd)


def _opened(name: str, directory: int) -> int:
    """A directory in a directory, -1 where it is none."""
    try:
        return os.open(name, _NOFOLLOW | os.O_DIRECTORY, dir_fd=directory)
    except OSError:
        return -1


__all__ = ["Inherited", "lets_others_write"]
