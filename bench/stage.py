"""What the benchmarks share: an ordinary user with a home of 200 entries, and a child that becomes it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.conftest import Account, _Accounts, _with_directories


@contextmanager
def user(entries: int = 200) -> Iterator[tuple[Account, Path]]:
    """An ordinary user and a project of its own; made as root, else the present user in a made-up home.

    Args:
        entries: files and directories lying directly in the home.
    """
    made = _Accounts() if os.geteuid() == 0 else None
    if made:
        account = made.new()
    else:
        home = Path("/var/tmp") / f"guard-bench-{os.getpid()}"
        home.mkdir()
        account = _with_directories(os.environ.get("USER", "user"), os.geteuid(), os.getegid(), home, ())
    for number in range(entries):
        account.write(account.home / f"entry{number:03d}" / "file", "x")
    project = account.directory("project")
    try:
        yield account, project
    finally:
        if made:
            made.remove()
        else:
            shutil.rmtree(account.home, ignore_errors=True)


def as_user(account: Account, work: Callable[[], object], cwd: Path) -> object:
    """Do something in a child that has become the user; its result comes back as JSON.

    Raises:
        SystemExit: it failed, and has said why.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            if os.geteuid() == 0:
                os.setgroups(list(account.groups))
                os.setgid(account.gid)
                os.setuid(account.uid)
            os.chdir(cwd)
            with os.fdopen(write, "w") as pipe:
                json.dump(work(), pipe)
        except SystemExit as error:
            print(error, file=sys.stderr)
            os._exit(1)
        except BaseException as error:  # noqa: BLE001 - the child ends here whatever it is
            print(f"bench: as {account.name}: {error!r}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(1)
    return json.loads(text)


def working(account: Account, commands: dict[str, list[str]], cwd: Path, own: str) -> dict[str, list[str]]:
    """Those command lines that end with 0 here; of the others it is said which are left out, and why.

    Args:
        account: who runs them.
        commands: name to command line.
        cwd: where.
        own: how the names of guard's own begin: of these none may fail.

    Raises:
        SystemExit: one of guard's own failed.
    """
    found = {}
    for name, command in commands.items():
        try:
            done = account.command(command, cwd=cwd)
            code, said = done.returncode, (done.stderr.strip().splitlines() or [""])[-1]
        except (OSError, subprocess.TimeoutExpired) as error:
            code, said = 1, str(error)
        if code == 0:
            found[name] = command
        elif name.startswith(own):
            raise SystemExit(f"bench: {name} ended with {code}: {said}")
        else:
            print(f"left out: {name}: {said}", file=sys.stderr)
    return found


def codex() -> str | None:
    """The native program of the npm package @openai/codex, installed where a peer is wanted; None without npm."""
    cache = "/var/tmp" if os.geteuid() == 0 else os.environ.get("XDG_CACHE_HOME", "/var/tmp")  # for other users, too
    where = Path(cache) / "guard-bench-codex"
    if not where.exists():
        where.mkdir(mode=0o755)
        command = ["npm", "install", "--silent", "--no-fund", "--prefix", str(where), "@openai/codex"]
        if not shutil.which("npm") or subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode:
            shutil.rmtree(where)
            return None
        subprocess.run(["chmod", "-R", "a+rX", str(where)], check=True)
    return next((str(path) for path in where.rglob("vendor/*/bin/codex") if path.is_file()), None)


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows of text, aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(_aligned(row, widths)) for row in rows)


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    return [
        cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
