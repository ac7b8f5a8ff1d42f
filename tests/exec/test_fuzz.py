"""guard-exec with damaged starts whose sum is right: whatever stands in them, memory stays whole and nothing is free."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LONG, Account
from tests.exec import written
from tests.exec.written import Step

pytestmark = pytest.mark.usefixtures("same_users")
ROUNDS = 4000 if LONG else 120
_ODD = [b"", b"0", b"-1", b"18446744073709551615", b"99999999999999999999", b"/", b"@", b"@/", b"{tmp}", b"{9}", b"{}",
        b"x" * 5000, b"%s%n", b"\xff\xfe", b"a\0b"]  # fmt: skip


@pytest.fixture(scope="module")
def watched() -> Iterator[Path]:
    """guard-exec with every access to memory watched."""
    path = written.build("guard", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    yield path
    shutil.rmtree(path.parent)


def _mutate(steps: list[Step], chance: random.Random) -> bytes:
    steps = [(letter, list(fields)) for letter, fields in steps]
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(steps))
        letter, fields = steps[at]
        kind = chance.randrange(6)
        if kind == 0:
            steps[at] = (bytes([chance.randrange(256)]), fields)
        elif kind == 1 and fields:
            fields[chance.randrange(len(fields))] = chance.choice(_ODD)
        elif kind == 2 and fields:
            which = chance.randrange(len(fields))
            content = bytearray(fields[which] or b"x")
            content[chance.randrange(len(content))] = chance.randrange(256)
            fields[which] = bytes(content)
        elif kind == 3:
            steps.insert(chance.randrange(len(steps)), (letter, fields))
        elif kind == 4:
            del steps[at]
        else:
            steps[at] = (letter, fields[: chance.randrange(len(fields) + 1)] if chance.randrange(2) else [*fields, b"more"])
    body = bytearray(written.body_of(steps))
    if not chance.randrange(4):
        body[chance.randrange(len(body))] = chance.randrange(256)
    if not chance.randrange(8):
        del body[chance.randrange(len(body)) :]
    return written.with_head(bytes(body))


@pytest.mark.parametrize("name", ["alone", "login-node"])
def test_no_written_start_harms_its_reader(account: Account, project: Path, watched: Path, name: str) -> None:
    policy = account.alone if name == "alone" else name
    start = written.start_of(account, project, policy)
    steps = written.steps_of(start.read_bytes())
    # Without questions more of the mutated is reached; without the supervisor's words nothing foreign is executed.
    steps = [(letter, fields) for letter, fields in steps if letter not in (b"q", b"S", b"z", b"e", b"f", b"x")]
    chance = random.Random(7)
    environment = {"ASAN_OPTIONS": "detect_leaks=0:exitcode=99", "UBSAN_OPTIONS": "print_stacktrace=1"}
    command = [str(watched), "run", "--policy", policy, "--", "/bin/true"]
    start.write_bytes(written.with_head(written.body_of(steps)))
    assert account.command(command, cwd=project, env=environment).returncode in (0, 126)
    codes = set()
    for _ in range(ROUNDS):
        content = _mutate(steps, chance)
        start.write_bytes(content)
        try:
            done = account.command(command, cwd=project, env=environment, input=b"", timeout=15)
        except subprocess.TimeoutExpired:
            continue  # a filter that forbids the end itself: the sanitizer's own exit goes round in it for ever
        said = str(done.stderr)  # any bytes may stand in it
        codes.add(done.returncode)
        harmed = "Sanitizer" in said or "runtime error" in said or done.returncode not in (0, 125, 126)
        assert not harmed, (done.returncode, said[-2000:], content)
    assert 125 in codes
