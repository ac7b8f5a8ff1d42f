"""Protected names that do not exist: what appears under one is moved aside at once.

Neither a mount nor a Landlock rule can protect a name that is not there, and every call that makes files would be
too much to ask about. So the supervisor watches the directory (inotify), and renames what appears to
NAME.guard-refused-XXXXXXXX beside it: nothing is lost, and nothing is found under the protected name. Who made it
is not known; what somebody outside makes there while a session runs is moved aside as well, and an event says so.

Whoever goes on making it is ended with the whole session: a name that comes back often enough would be found.
"""

import posix as os

from guard.kernel import dirname, open_beneath, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from guard.confine import turns

_IN_MOVED_TO, _IN_CREATE, _IN_ONLYDIR = 0x80, 0x100, 0x1000000
PATIENCE = 8  # times that one name may come back


class Keeper:
    """Watches for protected names that were absent at the start.

    Args:
        absent: their paths, real but for the last component.
        tell: is told of each that came: (path, where it is now).

    Raises:
        OSError: they cannot be watched (the user's watches are used up).
    """

    def __init__(self, absent: "list[str]", tell: "Callable[[str, str], None]") -> None:
        self._tell = tell
        self._fd = syscall("inotify_init1", os.O_CLOEXEC | os.O_NONBLOCK)
        self._came: dict[str, int] = {}
        self._names: dict[str, tuple[int, list[str]]] = {}
        for path in absent:
            self._add(dirname(path), path.rpartition("/")[2])

    def _add(self, above: str, name: str) -> None:
        if above not in self._names:
            try:
                fd = open_beneath(above)  # what a tree could make a link of is not watched in its place
            except OSError:
                return
            wanted = _IN_MOVED_TO | _IN_CREATE | _IN_ONLYDIR
            syscall("inotify_add_watch", self._fd, b"/proc/self/fd/%d" % fd, wanted)
            self._names[above] = (fd, [])
        fd, names = self._names[above]
        if not _is_there(name, fd):  # else it was made meanwhile, by somebody outside
            names.append(name)

    def fileno(self) -> int:
        """What becomes readable when something may have come."""
        return self._fd

    def look(self, turn: "turns.Turn") -> bool:
        """Move aside what has come; returns whether that has been enough, and the session should end.

        Args:
            turn: sees to callers, should the file system hold this up.
        """
        try:
            os.read(self._fd, 65536)  # which one it was is no matter: all are looked at
        except BlockingIOError:
            return False
        came: list[tuple[str, str]] = []
        enough: bool = turn.anyway(self._move_aside, came)
        for path, aside in came:
            self._tell(path, aside)
        return enough

    def _move_aside(self, came: "list[tuple[str, str]]") -> bool:
        enough = False
        for above, (fd, names) in self._names.items():
            for name in names:
                while not enough and _is_there(name, fd):
                    path = f"{above}/{name}"
                    aside = f"{name}.guard-refused-{os.urandom(4).hex()}"
                    try:
                        _move(name, aside, fd)
                    except FileNotFoundError:
                        continue
                    except OSError as error:
                        # It stays (no room, a read-only file system), but not with who may have made it at work.
                        came.append((path, error.strerror or ""))
                        enough = True
                        break
                    self._came[path] = self._came.get(path, 0) + 1
                    came.append((path, aside))
                    enough = self._came[path] >= PATIENCE
        return enough


def _move(name: str, aside: str, fd: int) -> None:
    """Rename within a directory, also one whose right to write its owner has just taken away."""
    try:
        os.rename(name, aside, src_dir_fd=fd, dst_dir_fd=fd)
    except PermissionError:
        mode = os.fstat(fd).st_mode & 0o7777
        os.chmod(f"/proc/self/fd/{fd}", mode | 0o300)
        try:
            os.rename(name, aside, src_dir_fd=fd, dst_dir_fd=fd)
        finally:
            os.chmod(f"/proc/self/fd/{fd}", mode)


def _is_there(name: str, fd: int) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    return True


__all__ = ["PATIENCE", "Keeper"]
