"""`guard learn` proposes a policy under which the same session runs again, and lifts no protected place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT_HERE, Account

SESSION = (
    "set -e; git init -q . ; echo int main'(){{return 0;}}' > m.c; gcc -o m m.c; ./m; mkdir -p ~/.cache/tool/deep;"
    " echo 1 > ~/.cache/tool/deep/state; mv ~/.cache/tool/deep/state ~/.cache/tool/deep/state2; cat {data}/in > out;"
    " echo x > $TMPDIR/t; python3 -c 'import socket; s = socket.socket(); s.bind((\"127.0.0.1\", 0)); s.listen()'"
)


@pytest.mark.skipif(not ROOT_HERE, reason="needs root: a home that the user database names")
def test_the_proposed_policy_runs_the_same_session_without_a_denial(account: Account, project: Path) -> None:
    data = account.directory("data")
    account.write(data / "in", "data\n")
    session = ["sh", "-c", SESSION.format(data=data)]
    narrow = account.guard(session, cwd=project, policy="base")
    assert narrow.returncode != 0, "the session needs nothing: the test proves nothing"
    learned = account.cli("learn", "-o", str(project / "learned.toml"), "--", *session, cwd=project)
    assert learned.returncode == 0, learned.stderr
    text = (project / "learned.toml").read_text()
    assert "{home}/.cache/tool" in text
    assert 'path = "{home}"' not in text
    again = account.guard(session, cwd=project, policy=str(project / "learned.toml"))
    assert again.returncode == 0, again.stderr + text


def test_a_protected_place_is_never_proposed(account: Account, project: Path) -> None:
    account.write(account.home / ".ssh/id", "key", 0o600)
    session = ["sh", "-c", "cat ~/.ssh/id; echo x >> ~/.bashrc; cat ~/.aws/credentials; true"]
    before = (account.home / ".bashrc").read_bytes() if (account.home / ".bashrc").exists() else b""
    learned = account.cli("learn", "--", *session, cwd=project)
    assert learned.returncode == 0, learned.stderr
    assert not re.search(r"^\s*\{ path = .*(\.ssh|\.aws)", learned.stdout, re.M), learned.stdout
    after = (account.home / ".bashrc").read_bytes() if (account.home / ".bashrc").exists() else b""
    assert after == before


def test_the_session_keeps_its_exit_code(account: Account, project: Path) -> None:
    assert account.cli("learn", "--", "sh", "-c", "exit 7", cwd=project).returncode == 7


ODD = """
import os, socket
home = os.environ["HOME"]
def have(*parts):
    place = os.path.join(home, *parts)
    os.makedirs(place, exist_ok=True)
    open(os.path.join(place, b"f" if isinstance(place, bytes) else "f"), "w").close()
for name in ("odd{home}", "odd*", "odd\\n[modes]\\nsetuid = 'observe'\\n#", "odd\\x1b[2J", "odd\\u202e"):
    have(name)
home = os.fsencode(home)
have(b"odd\\xff")
home = os.fsdecode(home)
for name in (".ssh/x\\n[unix]\\nabstract = 'allow'\\n#", ".ssh/y"):
    try:
        open(os.path.join(home, name), "w")
    except OSError:
        pass
one = socket.socket(socket.AF_UNIX)
os.makedirs(home + "/odd-sockets", exist_ok=True)
one.bind(home + "/odd-sockets/s\\nallow = []\\n#")
one.listen()
socket.socket(socket.AF_UNIX).connect(home + "/odd-sockets/s\\nallow = []\\n#")
"""


def test_no_name_that_the_session_chose_gets_out_of_its_place_in_the_proposal(account: Account, project: Path) -> None:
    account.write(project / "odd.py", ODD)
    account.write(account.home / ".ssh/id", "key", 0o600)
    learned = account.cli("learn", "-o", str(project / "odd.toml"), "--", "python3", "odd.py", cwd=project)
    assert learned.returncode == 0, learned.stderr
    text = (project / "odd.toml").read_text()
    assert set(tomllib.loads(text)) <= {"schema", "name", "extends", "reason", "files", "network", "unix"}
    assert tomllib.loads(text).get("unix", {}).get("abstract") is None
    assert text.count("a policy cannot name it") == 6, text
    assert "denied by base, so not proposed: {home}/.ssh/y" in text, "nothing was denied: the test proves nothing"
    assert all(line.isprintable() for line in text.splitlines())
    assert account.cli("policy", "lint", str(project / "odd.toml")).returncode < 2
    assert account.guard(["true"], cwd=project, policy=str(project / "odd.toml")).returncode == 0
