"""The suite of the kernel's side, through `guard monitor` in a fresh process: what agents do is told, at its severity,
and ordinary work is not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import GUARD
from tests.monitor.suite.table import CASES

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def told(kernel_side):
    """Every case, run once under one monitor."""
    stage = ["unshare", "-n", sys.executable, "-m", "tests.monitor.suite.stage", "--guard", GUARD, "--verbose"]
    done = subprocess.run(stage, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert rows, done.stderr
    return {row["name"]: row for row in rows if "name" in row}


@pytest.mark.parametrize("name", [case.name for case in CASES if case.rule])
def test_an_act_is_told(told, name):
    if told[name]["skipped"]:
        pytest.skip("this kernel has no such call")
    assert told[name]["right"], told[name]["why"]


@pytest.mark.parametrize("name", [case.name for case in CASES if not case.rule])
def test_ordinary_work_is_not(told, name):
    if told[name]["skipped"]:
        pytest.skip("this kernel has no such call")
    assert told[name]["right"], told[name]["why"]


def test_the_suite_is_as_large_as_it_says():
    assert len(CASES) >= 150
    assert sum(not case.rule for case in CASES) >= 50
