"""Histories that are there: scrubbed when asked, and behind a shell that writes old lines back."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from guard.history.scrub import begin_of
from guard.redact import samples
from tests.conftest import Account
from tests.history.shells import SHELLS, Shell, prepare


@pytest.fixture
def key() -> str:
    return samples.fill("ghp_<crc62>", random.Random())[0]


def test_asked_for_it_takes_the_secrets_and_nothing_else(account: Account, key: str) -> None:
    home = account.directory("scrub")
    texts = {
        ".bash_history": f"ls\nrec {key}\nmysql -pAb1Cd2Ef3 db\nls\n",
        ".zsh_history": f": 1700000000:0;rec {key}\n: 1700000001:0;ls\n",
        ".local/share/fish/fish_history": f"- cmd: rec {key}\n  when: 1700000000\n",
        ".history": f"#+1700000000\nrec {key}\n",
        ".python_history": f"x = '{key}'\n",
    }
    for name, text in texts.items():
        account.write(home / name, text, 0o600)
    done = account.cli("history", "scrub", env={"HOME": str(home)})
    assert done.returncode == 0, done.stderr
    for name, text in texts.items():
        now = (home / name).read_text()
        assert key[4:12] not in now
        assert "Ab1Cd2Ef3" not in now
        assert len(now) == len(text)
        assert now.replace("_", "").count("REDACTED") == 1
        assert "*" not in now
        assert "[" not in now
    again = {name: (home / name).read_text() for name in texts}
    account.cli("history", "scrub", env={"HOME": str(home)})
    assert {name: (home / name).read_text() for name in texts} == again


@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_what_an_open_shell_writes_back_is_scrubbed_behind_it(name: str, account: Account, key: str) -> None:
    import shutil

    if not shutil.which(name):
        pytest.skip(f"no {name} here")
    kind = SHELLS[name]
    home = prepare(account, kind)
    history = account.write(home / kind.stored, f"rec old {key}\n", 0o600)
    with Shell(account, kind, home) as shell:
        shell.run("rec new")
        assert account.cli("history", "scrub", env={"HOME": str(home)}).returncode == 0
        assert key not in history.read_text()
        shell.run(kind.write)
        assert key in history.read_text(), "the shell held it, and wrote it back"
        shell.end()
    end = time.monotonic() + 20
    while key[4:12] in history.read_text():
        assert time.monotonic() < end, history.read_text()
        time.sleep(0.05)
    assert "rec new" in history.read_text()


def test_nobody_asked_and_old_lines_stay(account: Account, key: str) -> None:
    kind = SHELLS["bash"]
    home = prepare(account, kind)
    history = account.write(home / kind.stored, f"rec old {key}\n", 0o600)
    with Shell(account, kind, home) as shell:
        shell.run(f"rec {key}")
        shell.end()
    assert f"rec old {key}\n" in history.read_text()
    assert history.read_text().count(key) == 1


@pytest.mark.parametrize(
    ("text", "size", "start", "asked", "begin"),
    [
        ("a\nb\nc\n", 4, 1700000000, False, 4),
        ("a\n", 4, 1700000000, False, None),
        ("a\nb\n", 0, 1700000000, True, 0),
        (": 1700000000:0;a\n: 1700000009:0;b\n", 0, 1700000005, False, 17),
        ("#1700000000\na\n", 0, 1700000005, False, None),
        ("- cmd: a\n  when: 1700000000\n- cmd: b\n  when: 1700000009\n", 0, 1700000005, False, 28),
    ],
)  # fmt: skip
def test_where_a_session_begins(text: str, size: int, start: int, asked: bool, begin: int | None, tmp_path: Path) -> None:
    (tmp_path / "h").write_text(text)
    assert begin_of(str(tmp_path / "h"), size, start, asked) == begin
