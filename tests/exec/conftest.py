"""What the tests of guard-exec share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Account, users
from tests.exec import written


@pytest.fixture
def same_users(account: Account) -> Iterator[None]:
    """Nobody makes or removes a user meanwhile: then every start is the launcher's once more (confine/written.py, `Writer`)."""
    with users(change=False):
        yield


@pytest.fixture(scope="module")
def exec_alone() -> Iterator[Path]:
    """guard-exec with nothing behind it: what it does not do ends in 125."""
    path = written.build("guard")
    yield path
    shutil.rmtree(path.parent)
