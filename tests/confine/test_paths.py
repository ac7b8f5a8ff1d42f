"""A path means to the supervisor what it means to the caller: compared with what the caller itself finds."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guard.confine.handlers import paths
from guard.kernel import notify
from tests.confine.caller import asking, calls_of

FOLLOW, NOFOLLOW = True, False


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory with one of everything."""
    root = tmp_path / "top"
    (root / "inner/below").mkdir(parents=True)
    for name in ("file", "inner/file", "inner/below/file"):
        (root / name).write_text(name)
    for name, target in (
        ("link", "inner/file"), ("directory-link", "inner"), ("slash-link", "inner/"),
        ("absolute", str(root / "inner")), ("up", "../top/inner"), ("round", "round"), ("dangling", "nothing"),
        ("self", "/proc/self/cwd/file"),
        ("stdin", "/dev/stdin"), ("inner/above", "../file"), ("rooted", "/inner/file"),
    ):  # fmt: skip
        (root / name).symlink_to(target)
    for number in range(42):
        (root / f"chain{number}").symlink_to(f"chain{number + 1}" if number < 41 else "file")
    yield root
    shutil.rmtree(root)


PATHS = [
    "file", "./file", "inner/file", "inner/../file", "inner//below///file", "link", "directory-link/file",
    "slash-link/file", "absolute/file", "up/below/file", "round", "dangling", "nothing", "nothing/file",
    "file/", "file/.",
    "file/..", "file/file", "inner/", "inner/.", "inner/..", ".", "..", "link/", "directory-link",
    "directory-link/", "slash-link",
    "inner/above", "chain41", "chain3", "chain2", "chain1", "chain0", "self", "stdin", "x" * 255, "x" * 256, "/", "//",
    "/proc/self/cwd/file", "/proc/thread-self/cwd/file", "/proc/self/fd/0", "/dev/fd/0", "/dev/stdin",
    "/proc/self/root", "/proc/self/task", "/proc/self/status", "/proc/thread-self", "/proc/self",
    "/proc/self/exe", "/proc/self/fd/77",
    "/proc/self/cwd/../top/link", "/proc/self/nothing", "/etc/../etc/passwd", "/nothing", "inner/../../top/file",
]  # fmt: skip


def _found(path: str, follow: bool) -> object:
    """What the caller finds itself; the last component as lstat or as a followed path."""
    try:
        about = os.stat(path) if follow else os.lstat(path)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return about.st_dev, about.st_ino, about.st_mode


def _resolved(call: notify.Call, follow: bool) -> object:
    try:
        fd = paths.resolve(call, paths.AT_FDCWD, call.string(call.args[0]), follow)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    about = os.fstat(fd)
    os.close(fd)
    return about.st_dev, about.st_ino, about.st_mode


def _compare(before: Callable[[], object], every: list[str], in_thread: bool = False) -> None:
    """Ask for each path twice; `before` puts the caller where it asks from."""
    ours, theirs = socket.socketpair()

    def act() -> None:
        before()

        def ask() -> None:
            for path in every:
                for follow in (FOLLOW, NOFOLLOW):
                    theirs.send(repr(_found(path, follow)).encode())
                    try:
                        os.chmod(path, 0o600)
                    except OSError:
                        continue

        if in_thread:
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
        else:
            ask()

    different = {}
    with asking(act, ["chmod", "fchmodat"]) as (listener, _):
        calls = calls_of(listener)
        for path in every:
            for follow in (FOLLOW, NOFOLLOW):
                call = next(calls)
                expected, got = ours.recv(4096).decode(), repr(_at(call, follow))
                call.answer(0)
                if expected != got:
                    different[path, follow] = (expected, got)
    assert not different


def _at(call: notify.Call, follow: bool) -> object:
    at = call.args[0] if call.number == 90 else call.args[1]
    call.args = (at, *call.args[1:])
    return _resolved(call, follow)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("in_thread", [False, True])
def test_every_path_leads_where_it_leads_the_caller(
    place: Path, in_thread: bool, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not at_once:
        monkeypatch.setattr(paths, "_OPENAT2", 1 << 20)  # before 5.6: every component by hand

    def before() -> None:
        os.chdir(place)
        os.dup2(os.open("inner/file", os.O_RDONLY), 0)

    _compare(before, PATHS, in_thread)


@pytest.mark.root
def test_in_a_root_of_its_own_the_caller_is_not_left(place: Path) -> None:
    def before() -> None:
        os.chroot(place)
        os.chdir("/inner")

    every = [
        "/file", "/inner/file", "file", "../file", "../../file", "../../../..", "/..", "/../file", "/rooted",
        "../rooted", "above", "/up/file", "/absolute/file", "/self", "/proc/self/cwd/file", "/round", "/link",
        "/directory-link/file",
    ]  # fmt: skip
    _compare(before, every)


@pytest.mark.root
def test_a_working_directory_outside_its_root_is_where_it_starts(place: Path) -> None:
    def before() -> None:
        os.chdir(place)
        os.chroot(place / "inner")

    _compare(before, ["file", "inner/file", "/file", "../top/file", "link", "rooted", "/below/file", "absolute/file"])


@pytest.mark.root
def test_links_of_others_in_a_shared_directory_are_not_followed(tmp_path: Path) -> None:
    if Path("/proc/sys/fs/protected_symlinks").read_text().strip() != "1":
        pytest.skip("fs.protected_symlinks is off")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (tmp_path / "file").write_text("")
    (shared / "trap").symlink_to("../file")
    os.chown(shared / "trap", 12345, 12345, follow_symlinks=False)
    os.chown(shared, 54321, 54321)
    shared.chmod(0o1777)
    _compare(lambda: os.chdir(tmp_path), ["shared/trap", "file"])


@pytest.mark.root
def test_what_belongs_to_a_process_outside_is_not_entered(place: Path) -> None:
    """Of a process that is not below the supervisor no link into its own view is followed."""
    path = "/proc/1/cwd"
    with asking(lambda: os.chmod(path, 0o600), ["chmod", "fchmodat"]) as (listener, _):
        call = next(calls_of(listener))
        assert _at(call, FOLLOW) == "EACCES"
        call.answer(0)


def test_a_descendant_is_told_from_any_other() -> None:
    with asking(lambda: os.chmod("/", 0), ["chmod", "fchmodat"]) as (listener, child):
        assert paths.in_tree(child, os.getpid())
        assert not paths.in_tree(os.getpid(), os.getpid())
        assert not paths.in_tree(os.getppid(), os.getpid())
        assert not paths.in_tree(1, os.getpid())
        assert not paths.in_tree(0, os.getpid())
        assert not paths.in_tree(4194303, os.getpid())
        next(calls_of(listener)).answer(0)
