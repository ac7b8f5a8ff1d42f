"""login-node with a mask demanded: for tests of what only a mount namespace can hold."""

from __future__ import annotations

import pytest

from tests.conftest import Account

POLICY = """\
schema = 1
name = "masked"
extends = "login-node"
reason = "where a user has several groups, `auto` goes without"
[files]
mask = "always"
"""


def masked(account: Account) -> str:
    """The path of that policy; skips the test where no mask can be had."""
    path = str(account.write(account.home / "masked.toml", POLICY))
    tried = account.guard(["true"], policy=path)
    if tried.returncode:
        pytest.skip(f"no mask here: {tried.stderr.strip()[-200:]}")
    return path
