"""The real atuin, with the bash-preexec that it brings along, works beside the hook, whoever comes first."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import GUARD, Account
from tests.history.conftest import Service
from tests.history.shells import SHELLS, Shell, prepare, ran
from tests.history.test_shells import HERE, stored, token

ATUIN = Path(GUARD).parent / "atuin"
START = {"bash": 'eval "$(atuin init bash)"\n', "zsh": 'eval "$(atuin init zsh)"\n', "fish": "atuin init fish | source\n"}


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("name", [name for name in HERE if name in START])
def test_atuin_records_every_line_and_in_bash_without_secrets(
    name: str, where: str, account: Account, service: Service
) -> None:
    if not ATUIN.exists():
        pytest.skip("not installed: atuin")
    kind = SHELLS[name]
    home = prepare(account, kind, **{where: START[name]})
    (home / "bin/atuin").unlink(missing_ok=True)
    (home / "bin/atuin").symlink_to(ATUIN)
    account.write(home / ".config/atuin/config.toml", "update_check = false\nauto_sync = false\n")
    key = token(random.Random(f"{name} {where}"))
    with Shell(account, kind, home) as shell:
        shell.run("rec one")
        shell.run(f"rec --password={key[4:24]} tail")
        shell.run("false")
        shell.run("rec $status" if name == "fish" else "rec $?")
        shell.run("rec two")
        shell.run("command atuin history list --cmd-only > ~/recorded")
        shell.end()
    recorded = (home / "recorded").read_text()
    assert ran(home) == [["rec", "one"], ["rec", f"--password={key[4:24]}", "tail"], ["rec", "1"], ["rec", "two"]]
    assert "rec one" in recorded
    assert "rec two" in recorded
    assert key[4:24] not in stored(home, kind)
    if name == "bash":
        assert "rec --password=__REDACTED__ tail" in recorded
        assert key[4:24] not in recorded
