"""What socket calls answer where nothing is refused: errno for errno as without guard."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.system.stage import PYTHON, Stage

# A connected end is asked before IPv6's own check of a family that IPv4 would have taken.
_OTHERWISE = {"listen 10 1 and connect"}


def test_what_is_not_refused_answers_as_without_guard(stage: Stage) -> None:
    shutil.copy(Path(__file__).with_name("names.py"), stage.project)
    words = [PYTHON, "-IS", str(stage.project / "names.py")]
    bare = stage.account.command([*words, "bare"], cwd=stage.project)
    within = stage.account.guard([*words, "within"], cwd=stage.project, timeout=120)
    assert bare.returncode == within.returncode == 0, (bare.stderr, within.stderr)
    expected, found = json.loads(bare.stdout), json.loads(within.stdout)
    assert len(expected) > 600
    differ = {name: (answer, found[name]) for name, answer in expected.items() if found[name] != answer}
    assert set(differ) <= _OTHERWISE, differ
