"""What a shim starts is known to the monitor as an agent under guard; what goes by its absolute path as one without."""

from __future__ import annotations

import json
import shutil
import subprocess
import time

import pytest

from tests.conftest import GUARD, Account
from tests.entry.test_shims import Stage
from tests.monitor.running import running

pytestmark = [pytest.mark.root]


def test_ps_tells_a_shimmed_agent_from_a_bare_one(account: Account) -> None:
    if not shutil.which("clang"):
        pytest.skip("not installed: clang")
    stage = Stage(account)
    stage.install()
    stage.account.write(stage.bin / "claude", "#!/bin/bash\necho in\nread x\n", 0o755)
    with running() as monitor:
        def start(program: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [program], cwd=stage.project, env=stage.account.environment(stage.env()), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                **stage.account.identity(),  # type: ignore[call-overload]
            )

        wrapped, bare = start(str(stage.shims / "claude")), start(str(stage.bin / "claude"))
        try:
            for process in (wrapped, bare):
                assert process.stdout is not None
                assert process.stdout.readline() == b"in\n"
            end = time.monotonic() + 20
            while True:
                done = subprocess.run([GUARD, "--state", str(monitor.state), "ps", "--json"], capture_output=True, text=True, check=True)
                rows = [r for r in json.loads(done.stdout)["trees"] if r["harness"] == "claude" and r.get("user") == account.name]
                if len(rows) >= 2:
                    break
                assert time.monotonic() < end, done.stdout
                time.sleep(0.2)
        finally:
            for process in (wrapped, bare):
                process.communicate(b"\n", timeout=20)
    assert sorted(row["guarded"] for row in rows) == [False, True]
