"""What flows where in a tree: which pipes carry a download, which are read as a program, which files were fetched.

Keys and numbers only; nothing here asks the kernel. What is known stays known until its pipe is gone: a shell that
was refused tries the next directory of PATH, or another shell, and gets the same answer.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Set
    from typing import Any

_MOST_FILES = 8192
FILE = "file:"
"""Begins the key of a file that a program writes what it reads to: an end of the graph, never gone through."""


class Flow:
    """A graph of pipes. A way from a source to a sink is refused at whatever program would complete it.

    A pipeline's programs start in any order. Both ends and the filters between are therefore kept, and each of the
    three ways to add something says whether a way is complete now.
    """

    def __init__(self) -> None:
        self._edges: dict[str, set[str]] = {}  # pipe → the pipes its readers write
        self._tainted: set[str] = set()  # closed under the edges
        self._sinks: set[str] = set()
        self._reached: list[str] = []

    def __len__(self) -> int:
        return len(self._edges) + len(self._tainted) + len(self._sinks)

    @property
    def has_sinks(self) -> bool:
        """Whether any program is read from a pipe."""
        return bool(self._sinks)

    def is_tainted(self, pipe: str) -> bool:
        """Whether a pipe carries a download."""
        return pipe in self._tainted

    def add_source(self, pipe: str) -> bool:
        """A fetcher writes this pipe; returns whether an interpreter takes its program from there."""
        return self._spread(pipe)

    def add_sink(self, pipe: str) -> bool:
        """An interpreter takes its program from this pipe; returns whether it carries a download."""
        self._sinks.add(pipe)
        return pipe in self._tainted

    def add_filter(self, reads: str, writes: str) -> bool:
        """A program reads one and writes the other; returns whether a download reaches an interpreter through it."""
        if reads == writes:
            return False
        self._edges.setdefault(reads, set()).add(writes)
        return reads in self._tainted and self._spread(writes)

    def _spread(self, pipe: str) -> bool:
        """Mark what can be reached; returns whether a sink is among it."""
        seen: set[str] = set()
        todo = [pipe]
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo.extend(self._edges.get(at, ()))
        self._reached += [end for end in seen - self._tainted if end.startswith(FILE)]
        self._tainted |= seen
        return not seen.isdisjoint(self._sinks)

    def take_files(self) -> "list[str]":
        """The paths of the files that a download has reached since this was asked last."""
        reached, self._reached = self._reached, []
        return [key[len(FILE) :] for key in reached]

    def forget(self, alive: "Set[str]") -> None:
        """Drop the pipes that no process holds any more.

        What a dead pipe connected stays connected: its reader may have handed on what it read.
        """
        self._tainted = {pipe for pipe in self._tainted if pipe in alive}
        self._sinks &= alive
        through = {pipe: onward for pipe, onward in self._edges.items() if pipe not in alive}
        kept: dict[str, set[str]] = {}
        for pipe, onward in self._edges.items():
            if pipe in alive:
                reached = {end for end in _behind(onward, through) if end in alive or end.startswith(FILE)}
                if reached:
                    kept[pipe] = reached
        self._edges = kept

    def drop(self, pipe: str) -> None:
        """Forget one pipe: a named one that nobody held is empty, and whoever opens it starts anew."""
        self._tainted.discard(pipe)
        self._sinks.discard(pipe)
        self._edges.pop(pipe, None)


def _behind(pipes: "Iterable[str]", through: "dict[str, set[str]]") -> "set[str]":
    seen: set[str] = set()
    todo = list(pipes)
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            todo.extend(through.get(at, ()))
    return seen


class Downloads:
    """The files that fetchers wrote, by name and by inode.

    An inode's number is used again when its file is gone: the time of its making tells. What is older than the
    download that was to replace it (which may have failed) is no download either.
    """

    def __init__(self) -> None:
        self._names: dict[str, float] = {}
        self._inodes: dict[tuple[int, int], tuple[float, float]] = {}
        self._last_names: set[str] = set()

    def __len__(self) -> int:
        return len(self._names) + len(self._inodes)

    def add_name(self, path: str, now: float) -> None:
        """A fetcher was told to write this real path; the file may not be there yet."""
        _put(self._names, path, now)
        self._last_names.add(path.rpartition("/")[2])
        if len(self._last_names) > 2 * _MOST_FILES:
            self._last_names = {name.rpartition("/")[2] for name in self._names}

    def add_inode(self, device: int, inode: int, born: float, now: float) -> None:
        """A fetcher writes this file, made at `born` (0 where the file system does not tell)."""
        _put(self._inodes, (device, inode), (now, born))

    def below(self, directory: str) -> "list[str]":
        """The names of downloads beneath a real path, relative to it; not more than a few."""
        top = directory.rstrip("/") + "/"
        return [name[len(top) :] for name in self._names if name.startswith(top)][:_MOST_BELOW]

    def may_be(self, name: str, device: int, inode: int) -> bool:
        """Whether it is worth while to look closer: the last part of a name, or an inode, is known."""
        return name in self._last_names or (device, inode) in self._inodes

    def has(self, path: str, device: int, inode: int, changed: float, born: "Callable[[], float]") -> bool:
        """Whether a file is one that a fetcher wrote.

        Args:
            path: its real path.
            device, inode: its identity.
            changed: its change time (any write or rename moves it), seconds since 1970.
            born: says when it was made; 0 where the file system does not tell.
        """
        told = self._names.get(path)
        if told is not None and changed >= told - _SLACK:
            return True
        marked = self._inodes.get((device, inode))
        if marked is None or changed < marked[0] - _SLACK:
            return False
        return not marked[1] or born() in (0, marked[1])


_MOST_BELOW = 64
_SLACK = 2.0  # seconds: kernel times tick coarsely, and a file server has its own clock


def _put(known: "dict[Any, Any]", key: object, value: object) -> None:
    known.pop(key, None)
    known[key] = value
    if len(known) > _MOST_FILES:
        del known[next(iter(known))]
