"""The hot path is kept bare: what `guard run` has loaded when the command starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import LAUNCHER, Account

STANDARD_MOST = 12
OWN_MOST = 8

# Put in front of guard's own entry: at exec, say what is loaded instead.
PROBE = """
import sys, posix
def execve(*_):
    sys.stdout.write("\\n".join(sys.modules)); sys.stdout.flush(); posix._exit(0)
posix.execve = execve
"""


def _loaded_at_exec(account: Account, project: Path) -> set[str]:
    # Without a supervisor: with one, guard stays beside the command and loads what it decides by.
    alone = 'schema = 1\nname = "alone"\nextends = "login-node"\n[supervisor]\nuse = "never"\n'
    policy = account.write(project / "alone.toml", alone)
    entry = Path(LAUNCHER).read_text()
    first, rest = entry.split("\n", 1)
    program = account.write(project / "entry.py", PROBE + rest)
    interpreter = first.removeprefix("#!").split()[0]
    command = [interpreter, "-IS", str(program), "run", "--policy", str(policy), "--", "/bin/true"]
    assert account.command(command, cwd=project).returncode == 0  # makes the plan
    got = account.command(command, cwd=project)
    assert got.returncode == 0, got.stderr
    return set(got.stdout.split())


def _bare() -> set[str]:
    code = "import sys; print('\\n'.join(sys.modules))"
    got = subprocess.run(["/usr/bin/python3", "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    return set(got.stdout.split())


def test_a_start_from_a_warm_plan_loads_no_more_than_its_budget(account: Account, project: Path) -> None:
    more = _loaded_at_exec(account, project) - _bare()
    own = {name for name in more if name.partition(".")[0] == "guard"}
    others = more - own
    assert others <= set(sys.stdlib_module_names), "a third-party package is loaded before the agent"
    assert len(others) <= STANDARD_MOST, sorted(others)
    assert 0 < len(own) <= OWN_MOST, sorted(own)
