"""Hooks come and go, and leave the user's files as they were, byte for byte."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from guard.errors import GuardError
from guard.hooks import blocks
from tests.conftest import GUARD

FILES = (".bashrc", ".zshrc", ".tcshrc")


def guard(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [GUARD, "history", *words], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", "GUARD_STATE_DIR": str(home / "state"), "GUARD_CONFIG_DIR": str(home / "config")},
    )  # fmt: skip


def files(home: Path) -> dict[str, bytes]:
    return {str(p.relative_to(home)): p.read_bytes() for p in home.rglob("*") if p.is_file()}


@pytest.mark.parametrize("text", [b"", b"alias x=y\n", b"alias x=y", b"\r\n\xff\xfe odd\r", b"# >>> somebody else >>>\n# <<<\n"])
@pytest.mark.parametrize("twice", [False, True])
def test_what_was_there_is_there_again(text: bytes, twice: bool, tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes(text)
        (tmp_path / name).chmod(0o640)
    before = files(tmp_path)
    for _ in range(1 + twice):
        assert guard(tmp_path, "install").returncode == 0
    for name in FILES:
        assert (tmp_path / name).read_bytes().startswith(text)
        assert (tmp_path / name).read_bytes().count(b">>> guard history") == 1
    for _ in range(1 + twice):
        assert guard(tmp_path, "uninstall").returncode == 0
    assert files(tmp_path) == before
    assert all((tmp_path / name).stat().st_mode & 0o777 == 0o640 for name in FILES)


def test_files_that_were_not_there_go_again(tmp_path: Path) -> None:
    guard(tmp_path, "install")
    assert (tmp_path / ".bashrc").exists()
    guard(tmp_path, "uninstall")
    assert files(tmp_path) == {}


def test_what_the_user_added_behind_the_block_stays(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_bytes(b"first")
    guard(tmp_path, "install", "--shell", "bash")
    with (tmp_path / ".bashrc").open("ab") as file:
        file.write(b"last\n")
    guard(tmp_path, "uninstall", "--shell", "bash")
    assert (tmp_path / ".bashrc").read_bytes() == b"first\nlast\n"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "dots").mkdir()
    (tmp_path / "dots/bashrc").write_text("x\n")
    (tmp_path / ".bashrc").symlink_to("dots/bashrc")
    guard(tmp_path, "install", "--shell", "bash")
    assert os.readlink(tmp_path / ".bashrc") == "dots/bashrc"
    assert "guard history" in (tmp_path / "dots/bashrc").read_text()
    guard(tmp_path, "uninstall", "--shell", "bash")
    assert (tmp_path / "dots/bashrc").read_text() == "x\n"


def test_a_damaged_block_is_left_alone_and_said(tmp_path: Path) -> None:
    guard(tmp_path, "install", "--shell", "bash")
    path = tmp_path / ".bashrc"
    damaged = path.read_bytes().split(b"# <<<")[0]
    path.write_bytes(damaged)
    done = guard(tmp_path, "uninstall", "--shell", "bash")
    assert done.returncode == 3
    assert "has no end" in done.stderr
    assert path.read_bytes() == damaged


def test_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".bashrc")
    done = guard(tmp_path, "install", "--shell", "bash")
    assert done.returncode == 3
    assert "not a regular file" in done.stderr


def test_for_a_whole_node(tmp_path: Path) -> None:
    """Below a directory of our own, as an image is built; and whom the site leaves out is left out by the shell."""
    root = tmp_path / "image"
    for name in ("etc/bash.bashrc", "etc/zsh/zshrc", "etc/csh.cshrc"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("# the site's\n")
    before = files(root)
    done = guard(tmp_path, "install", "--system", "--root", str(root), "--except-user", "nobody")
    assert done.returncode == 0, done.stderr
    hook = next(p for p in root.rglob("history.bash"))
    assert "65534" in hook.read_text()
    assert "guard history" in (root / "etc/bash.bashrc").read_text()
    guard(tmp_path, "uninstall", "--system", "--root", str(root))
    assert {name: text for name, text in files(root).items() if name in before} == before


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
@pytest.mark.parametrize(("uids", "gids", "wanted"), [((), (), True), ((1,), (2,), True), ((-1,), (), False), ((), (-1,), False)])
def test_who_is_left_out(shell: str, uids: tuple[int, ...], gids: tuple[int, ...], wanted: bool) -> None:
    from guard.history.render import Exceptions, _wanted

    here = Exceptions([u if u >= 0 else os.getuid() for u in uids], [g if g >= 0 else os.getgid() for g in gids])
    condition = _wanted(shell, here)
    script = {
        "fish": f"if {condition}; echo yes; end",
        "tcsh": f"if (! {condition}) exit\necho yes",
    }.get(shell, f"if {condition}; then echo yes; fi")
    argv = [shell, "-f"] if shell == "tcsh" else [shell]
    try:
        done = subprocess.run(argv, input=script + "\n", capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"no {shell} here")
    assert done.stdout == ("yes\n" if wanted else ""), done.stderr


def test_a_block_says_what_it_changed(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    assert blocks.put(path, "x", "one")
    assert not blocks.put(path, "x", "one")
    assert blocks.put(path, "x", "two")
    assert blocks.has(path, "x")
    assert blocks.take(path, "x")
    assert not blocks.take(path, "x")
    assert not os.path.exists(path)
    os.mkdir(path)
    with pytest.raises((GuardError, OSError)):
        blocks.put(path, "x", "one")
