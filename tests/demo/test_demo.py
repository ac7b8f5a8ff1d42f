"""The demo is what it says: it ends well here, and it does not end well where guard does nothing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.demo.dangers import ACTS

pytestmark = pytest.mark.timeout(300)


def test_the_demo_shows_work_done_and_dangers_stopped_within_five_minutes():
    done = subprocess.run([sys.executable, str(ROOT / "tests/demo/demo.py")], capture_output=True, text=True,
                          check=False, timeout=280)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) < 80
    assert "\033" not in done.stdout
    stopped = [act.name for act in ACTS if any(line.startswith(act.name) and " stopped " in line for line in lines)]
    assert len(stopped) >= 20


def test_each_act_names_its_control_and_fits_its_column():
    assert len({act.name for act in ACTS}) == len(ACTS) >= 20
    assert max(len(act.name) for act in ACTS) <= 35


@pytest.fixture
def nothing(account):
    """A program that takes guard's arguments and runs the command as it is."""
    script = '#!/bin/bash\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n'
    return account.write(account.home / "nothing", script, 0o755)


def test_the_demo_fails_where_guard_does_nothing(account, nothing):
    place = account.directory("demo", Path("/var/tmp"))
    try:
        shutil.copytree(ROOT / "tests/demo", place / "demo", ignore=shutil.ignore_patterns("__pycache__"))
        home, state = account.directory("home", place), account.directory("state", place)
        env = {"HOME": str(home), "GUARD": str(nothing), "GUARD_STATE_DIR": str(state)}
        program = ["/usr/bin/python3", "-I", "-B", str(place / "demo/session.py")]
        done = account.command(program, cwd=home, env=env, timeout=200)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "only 0 acts could be shown to be stopped" in done.stdout
    finally:
        shutil.rmtree(place, ignore_errors=True)
