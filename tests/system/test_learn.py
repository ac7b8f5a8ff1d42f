"""`guard learn` proposes a policy under which the same session runs again, and lifts no protected place."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import Account

SESSION = (
    "set -e; git init -q . ; echo int main'(){{return 0;}}' > m.c; gcc -o m m.c; ./m; mkdir -p ~/.cache/tool/deep;"
    " echo 1 > ~/.cache/tool/deep/state; mv ~/.cache/tool/deep/state ~/.cache/tool/deep/state2; cat {data}/in > out;"
    " echo x > $TMPDIR/t; python3 -c 'import socket; s = socket.socket(); s.bind((\"127.0.0.1\", 0)); s.listen()'"
)


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
