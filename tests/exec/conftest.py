"""What the tests of guard-exec share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exec import written


@pytest.fixture(scope="module")
def exec_alone() -> Iterator[Path]:
    """guard-exec with nothing behind it: what it does not do ends in 125."""
    path = written.build("guard")
    yield path
    shutil.rmtree(path.parent)
