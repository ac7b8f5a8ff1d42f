"""Acts on files: reading, writing, making, renaming, inside of the project and outside."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from . import Act, Stage, allow, at, forbid, text


def _open(path: str, flags: int, mode: int = 0o600) -> None:
    os.close(os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode))


_NO_RULES = "^file rules:"  # how a status says that there is no Landlock, only the mask


def _files(place: str, allowed: bool) -> list[Act]:
    """Make the same acts twice: in the project they must work, outside they must not."""
    where = "in the project" if allowed else "outside"
    rows: list[tuple[str, Callable[[str], object], str]] = [
        ("read a file", lambda d: _open(f"{d}/file", os.O_RDONLY), ""),
        ("list a directory", os.listdir, ""),
        ("write a file", lambda d: _open(f"{d}/file", os.O_WRONLY), ""),
        ("truncate a file", lambda d: os.truncate(f"{d}/file", 0), "truncat"),
        ("make a file", lambda d: _open(f"{d}/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL), ""),
        ("make a directory", lambda d: os.mkdir(f"{d}/newdir", 0o700), ""),
        ("make a symbolic link", lambda d: os.symlink("file", f"{d}/newlink"), ""),
        ("make a fifo", lambda d: os.mkfifo(f"{d}/newfifo", 0o600), ""),
        ("remove a file", lambda d: os.unlink(f"{d}/spare"), ""),
        ("remove a directory", lambda d: os.rmdir(f"{d}/sparedir"), ""),
        ("rename a file", lambda d: os.rename(f"{d}/movable", f"{d}/moved"), ""),
        ("execute a file", lambda d: os.execv(f"{d}/tool", ["true"]), ""),  # noqa: S606 - a copy of true
    ]

    def row(name: str, act: Callable[[str], object], gap: str) -> Act:
        gap = "" if allowed else f"{gap}|{_NO_RULES}" if gap else _NO_RULES
        return Act(f"{name} {where}", "files", allowed, lambda stage: act(text(stage, place)), gap)

    return [row(*each) for each in rows]


def _rename(stage: Stage, source: Callable[[Stage], str], target: Callable[[Stage], str]) -> None:
    os.rename(source(stage), target(stage))


def _through_link(stage: Stage) -> None:
    _open(at("project", "link")(stage), os.O_RDONLY)


def _denied(stage: Stage) -> None:
    """See something of it; what is read is thrown away. A hidden place can be opened, and is empty."""
    path = text(stage, "denied")
    if os.path.isdir(path):
        seen = bool(os.listdir(path))
    else:
        with open(path, "rb") as file:
            seen = bool(file.read(1))
    if not seen:
        raise OSError(errno.ENOENT, "it is empty")


def _protected(stage: Stage) -> None:
    _open(os.path.join(text(stage, "protected"), "new"), os.O_WRONLY | os.O_CREAT)


FILES = [
    *_files("outside", allowed=False),
    *_files("project", allowed=True),
    forbid("files", "read through a symbolic link", _through_link, gap=_NO_RULES),
    forbid(
        "files",
        "hard-link a file into the project",
        lambda s: os.link(at("outside", "file")(s), at("project", "stolen")(s)),
        gap=_NO_RULES,
    ),
    forbid(
        "files",
        "rename a file out of the project",
        lambda s: _rename(s, at("project", "out"), at("outside", "out")),
        gap=_NO_RULES,
    ),
    forbid(
        "files",
        "rename a file into the project",
        lambda s: _rename(s, at("outside", "in"), at("project", "in")),
        gap=_NO_RULES,
    ),
    allow(
        "files",
        "rename across directories in the project",
        lambda s: _rename(s, at("project", "one/a"), at("project", "two/a")),
        gap="between directories",
    ),
    allow(
        "files",
        "hard-link across directories in the project",
        lambda s: os.link(at("project", "one/b")(s), at("project", "two/b")(s)),
        gap="between directories",
    ),
    forbid("files", "look into a denied place", _denied),
    forbid("files", "write into a protected place", _protected, gap="can be written without the mask"),
]
