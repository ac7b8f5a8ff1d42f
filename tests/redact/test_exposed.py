"""What is recorded of an exposure beside its place: found, not guessed."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from guard.redact import samples
from guard.redact.exposed import of_arguments
from guard.redact.rules.formats import FORMATS
from tests.conftest import GUARD, Account


def key(seed: int = 1) -> str:
    return samples.fill(next(f for f in FORMATS if f.kind == "github-token").samples[0], random.Random(seed))[0]


def record(account: Account, *paths: Path) -> list[dict[str, object]]:
    """What `guard redact --record` files of some files."""
    state = account.directory("state")
    state.chmod(0o700)
    done = account.command(
        [GUARD, "redact", "--check", "--record", "--no-service", "--state", str(state), *map(str, paths)]
    )
    assert done.returncode == 1, done.stderr
    return [json.loads(line) for line in (state / "exposures.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("mode", "above", "audience"),
    [(0o600, 0o755, "owner"), (0o644, 0o755, "node"), (0o644, 0o700, "owner"), (0o640, 0o755, "owner"), (0o604, 0o711, "node")],
)  # fmt: skip
def test_who_could_read_it_is_found_by_the_modes(account: Account, mode: int, above: int, audience: str) -> None:
    folder = account.directory("f", parent=Path("/var/tmp"))
    place = account.write(folder / "x.env", f"T={key()}\n", mode)
    folder.chmod(above)
    try:
        assert record(account, place)[0]["audience"] == audience
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


@pytest.mark.root
def test_a_group_of_several_is_an_audience(accounts: object) -> None:
    account = accounts.new(["guardtestgroup"])  # type: ignore[attr-defined]
    accounts.new(["guardtestgroup"])  # type: ignore[attr-defined]
    folder = account.directory("f", parent=Path("/var/tmp"))
    place = account.write(folder / "x.env", f"T={key()}\n", 0o640)
    import grp

    os.chown(place, account.uid, grp.getgrnam("guardtestgroup").gr_gid)
    try:
        assert record(account, place)[0]["audience"] == "group"
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_a_transcript_of_a_hosted_model_was_sent_off_site(account: Account) -> None:
    line = json.dumps({"timestamp": "2026-02-03T04:05:06.789Z", "message": f"export T={key()}"})
    place = account.write(account.directory("h") / ".claude/projects/x.jsonl", line + "\n", 0o600)
    (row,) = record(account, place)
    assert (row["audience"], row["happened"]) == ("off-site", "2026-02-03T04:05:06.789Z")


def test_what_the_upstream_branch_holds_was_pushed(account: Account) -> None:
    base = account.directory("git")
    script = f"""set -e
git init -q --bare up.git; git init -q w; cd w; git config user.email a@x; git config user.name a
echo 'T={key()}' > .env; echo 'T={key(2)}' > new.env; git add .env; git commit -qm x
git remote add origin ../up.git; git push -qu origin HEAD:main 2>/dev/null; git branch -q --set-upstream-to=origin/main
"""
    done = account.command(["sh", "-c", script], cwd=base, env={"HOME": str(base)})
    assert done.returncode == 0, done.stderr
    rows = record(account, base / "w/.env", base / "w/new.env")
    assert rows[0]["audience"] == "pushed"
    assert rows[1]["audience"] != "pushed"


@pytest.mark.parametrize(
    ("name", "text", "happened"),
    [(".bash_history", "#1700000000\nexport T={}\n", 1700000000.0), (".zsh_history", ": 1700000001:0;export T={}\n", 1700000001.0)],
)  # fmt: skip
def test_a_history_with_times_says_when_the_line_was_typed(
    account: Account, name: str, text: str, happened: float
) -> None:
    place = account.write(account.directory("h") / name, text.format(key()), 0o600)
    assert record(account, place)[0]["happened"] == happened


def test_a_line_is_known_again_when_the_lines_before_it_are_cut_off(account: Account) -> None:
    folder = account.directory("h")
    place = account.write(folder / ".bash_history", f"ls\nls\ncurl -H 'Authorization: Bearer {key()}' h\n", 0o600)
    (before,) = record(account, place)
    account.write(
        place, f"curl -H 'Authorization: Bearer {key()}' h\nmake\ncurl -H 'Authorization: Bearer {key()}' h\n", 0o600
    )
    after = record(account, place)
    assert after[0]["context"] == before["context"]
    assert after[1]["context"] != before["context"]
    assert after[0]["line"] != before["line"]


def test_nothing_recorded_holds_the_secret(account: Account) -> None:
    place = account.write(account.directory("h") / "x", f"a {key()} b\n", 0o600)
    assert key()[4:12] not in json.dumps(record(account, place))


@pytest.mark.parametrize(
    ("options", "audience"),
    [("rw", "node"), ("rw,hidepid=2", "owner"), ("rw,hidepid=invisible", "owner"), ("rw,hidepid=off", "node"), ("rw,hidepid=0", "node")],
)  # fmt: skip
def test_arguments_are_everybodys_unless_proc_hides_them(tmp_path: Path, options: str, audience: str) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"20 1 0:20 / / rw - ext4 /dev/x rw\n21 20 0:21 / /proc rw,nosuid - proc proc {options}\n")
    assert of_arguments(str(table)) == audience
    assert of_arguments("/nonexistent") == "unknown"
