"""Written starts taken apart and put together again, and guard-exec built apart from the launcher."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from guard.confine.written import MAGIC, sum_of
from tests.conftest import ROOT, Account

Step = tuple[bytes, list[bytes]]
HEAD = len(MAGIC) + 8


def steps_of(content: bytes) -> list[Step]:
    """The steps of a file, its end among them."""
    found: list[Step] = []
    at = HEAD
    while at < len(content):
        letter, count = content[at : at + 1], content[at + 1]
        at += 2
        fields = []
        for _ in range(count):
            length = int.from_bytes(content[at : at + 4], sys.byteorder)
            fields.append(content[at + 4 : at + 4 + length])
            at += 5 + length
        found.append((letter, fields))
    return found


def body_of(steps: list[Step]) -> bytes:
    """The steps as bytes, without the head."""
    out = b""
    for letter, fields in steps:
        out += letter + bytes([len(fields) % 256])
        out += b"".join(len(field).to_bytes(4, sys.byteorder) + field + b"\0" for field in fields)
    return out


def with_head(body: bytes) -> bytes:
    """A file whose sum is right."""
    return MAGIC + sum_of(body).to_bytes(8, sys.byteorder) + body


def build(name: str, *flags: str) -> Path:
    """Compile guard-exec with a launcher that does not exist: whatever it does, it does alone.

    Skips where there is no compiler.
    """
    if not shutil.which(os.environ.get("CC", "cc")):
        pytest.skip("no C compiler here")
    place = Path(tempfile.mkdtemp(prefix="guard-exec-", dir="/var/tmp"))
    place.chmod(0o755)
    command = [str(ROOT / "packaging/build-exec"), "/nonexistent/launcher", str(place / name), *flags]
    subprocess.run(command, check=True, capture_output=True)
    if (place / name).is_symlink():
        pytest.skip("the compiler here cannot make it: " + (place / f"{name}.log").read_text()[-500:])
    return place / name


def start_of(account: Account, project: Path, policy: str) -> Path:
    """The file of a start in a project, written by the launcher just now."""
    shelf = account.state / "starts"
    shutil.rmtree(shelf, ignore_errors=True)
    account.warm("--policy", policy, cwd=project)
    (path,) = shelf.iterdir()
    return path
