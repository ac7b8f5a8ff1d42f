"""guard-exec in a container without Python: the rules hold, and without them nothing starts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Account
from tests.exec import written

pytestmark = pytest.mark.usefixtures("same_users")


@pytest.fixture(scope="module")
def alone() -> Iterator[Path]:
    """guard-exec with nothing behind it."""
    path = written.build("guard-exec")
    yield path
    shutil.rmtree(path.parent)


def _inside(account: Account, alone: Path, project: Path, *words: str) -> tuple[int, str]:
    """Run in a file system of its own, with the project as /project and the home as /root."""
    if not shutil.which("bwrap"):
        pytest.skip("no bwrap here")
    shelf = project / "shelf"
    command = ["bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib",
               "/lib", "--symlink", "usr/lib64", "/lib64", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp",
               "--bind", str(project / "project"), "/project", "--bind", str(project / "home"), "/root",
               "--ro-bind", str(alone), "/guard-exec", "--ro-bind", str(shelf), "/shelf", "--chdir", "/project", "--",
               *words]  # fmt: skip
    done = account.command(command, cwd=project)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def start(account: Account, project: Path) -> Path:
    """A start for a container, and what is laid out for one."""
    for name in ("project/file", "home/.ssh/id", "home/.config/gh/hosts.yml", "home/notes", "shelf/x"):
        account.write(project / name, f"content of {name}\n")
    path = project / "shelf/start"
    done = account.cli("policy", "compile", account.alone, "--container", "/project", "-o", str(path), cwd=project)
    assert done.returncode == 0, done.stderr
    assert "pipe-to-shell: absent" in done.stderr
    return path


ACTS = {
    "read the project": ("cat /project/file", True),
    "write in the project": ("echo x > /project/new", True),
    "use a pipe and a shell": ("echo x | grep -q x", True),
    "write in a temporary directory": ("echo x > $(mktemp)", True),
    "write beside it": ("echo x > /tmp/new", False),
    "read what the home holds": ("cat /root/notes", True),
    "read a key": ("cat /root/.ssh/id", False),
    "read a token below a directory that may be read": ("cat /root/.config/gh/hosts.yml", False),
    "write in the home": ("echo x > /root/new", False),
    "write beside everything": ("echo x > /new", False),
    "let others write": ("rm -f new; touch new; chmod 666 new; test $(stat -c %a new) = 666", False),
}


@pytest.mark.parametrize("what", ACTS)
def test_the_policy_holds_in_a_container(account: Account, project: Path, alone: Path, start: Path, what: str) -> None:
    script, allowed = ACTS[what]
    assert _inside(account, alone, project, "sh", "-c", script)[0] == 0  # without guard everything goes
    code, said = _inside(account, alone, project, "/guard-exec", "--start", "/shelf/start", "--", "sh", "-c", script)
    assert (code == 0) is allowed, said


def test_a_bad_file_starts_nothing_in_a_container(account: Account, project: Path, alone: Path, start: Path) -> None:
    words = ["/guard-exec", "--start", "/shelf/start", "--", "touch", "/project/started"]
    whole = start.read_bytes()
    own = written.steps_of(whole)
    for content in (b"", whole[:-1], whole[:50] + b"x" + whole[51:],
                    written.with_head(written.body_of([step for step in own if step[0] != b"P"])),
                    written.with_head(written.body_of([step for step in own if step[0] != b"b"])),
                    written.with_head(written.body_of([step for step in own if step[0] != b"c"]))):  # fmt: skip
        start.write_bytes(content)
        code, said = _inside(account, alone, project, *words)
        assert code == 125, said
    start.write_bytes(whole)
    start.chmod(0o666)
    assert _inside(account, alone, project, *words)[0] == 125
    assert not (project / "project/started").exists()
    start.chmod(0o644)
    assert _inside(account, alone, project, *words)[0] == 0


def test_a_start_for_a_container_is_none_for_a_host(account: Account, project: Path, alone: Path, start: Path) -> None:
    kept = written.start_of(account, project, account.alone)
    kept.write_bytes(start.read_bytes())
    command = [str(alone), "run", "--policy", account.alone, "--", "touch", "started"]
    assert account.command(command, cwd=project).returncode == 125
    assert not (project / "started").exists()
    own = written.start_of(account, project, account.alone)
    assert account.command([str(alone), "--start", str(own), "--", "touch", "started"], cwd=project).returncode == 125
    assert not (project / "started").exists()
