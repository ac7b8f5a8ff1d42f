"""Inside other sandboxes every control holds as it does outside: the tests marked `nested` run there again.

The whole run is started inside, so that the acts without guard (the controls) are those of the same place.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, Account

OUTER = {
    "bwrap": ["bwrap", "--unshare-all", "--die-with-parent", "--dev-bind", "/", "/", "--proc", "/proc"],
    "userns": ["unshare", "-Ur", "--kill-child"],
}
_LEAST = 300  # tests that must have passed inside: a run that collects nothing proves nothing


@pytest.fixture(scope="module")
def runs(account: Account) -> Iterator[dict[str, tuple[subprocess.Popen[bytes], Path]]]:
    """Both runs, beside one another, from a copy of the tests that every user can read."""
    base = Path(tempfile.mkdtemp(prefix="guard-nested-", dir="/var/tmp"))
    base.chmod(0o755)
    shutil.copytree(ROOT / "tests", base / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", base)
    (base / ".venv").symlink_to((ROOT / ".venv").resolve())
    command = [str(base / ".venv/bin/python"), "-m", "pytest", "-q", "-m", "nested", "-p", "no:cacheprovider", "tests/system"]
    started = {}
    for name, outer in OUTER.items():
        if shutil.which(outer[0]) and account.command([*outer, "true"]).returncode == 0:
            log = base / f"{name}.log"
            process = subprocess.Popen(
                [*outer, *command], cwd=base, stdin=subprocess.DEVNULL, stdout=log.open("wb"), stderr=subprocess.STDOUT,
                env=account.environment({"PYTHONDONTWRITEBYTECODE": "1"}), start_new_session=True, umask=0o022,
                **account.identity(),
            )  # type: ignore[call-overload]  # fmt: skip
            started[name] = (process, log)
    yield started
    for process, _ in started.values():
        process.kill()
        process.wait()
    shutil.rmtree(base, ignore_errors=True)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", OUTER)
def test_every_control_holds_inside_another_sandbox(
    runs: dict[str, tuple[subprocess.Popen[bytes], Path]], name: str
) -> None:
    if name not in runs:
        pytest.skip(f"no {OUTER[name][0]} here, or it is not allowed")
    process, log = runs[name]
    code = process.wait(1100)
    said = log.read_text(errors="replace")
    assert code == 0, said[-6000:]
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None
    assert int(passed[1]) >= _LEAST, said[-2000:]

