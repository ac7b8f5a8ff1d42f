"""The backend that this machine's kernel may not have: an act of every class on Debian's own kernel, in qemu, enforced.

`make test-vm` runs the whole suite on every kernel and backend; this is one boot, so that no commit goes without.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from pathlib import Path

import pytest

VM = Path(__file__).resolve().parents[1] / "vm"
SECONDS = int(os.environ.get("GUARD_TEST_VM_SECONDS", "400"))
"""For one boot with all it does, and for what is fetched once."""
STUCK = 90
"""Percent of idle time, when a job has run out of time, from which it waited for what never came."""
ACTS = (
    "chmod-777", "fchmodat2", "umask-openat2", "umask-unix-socket", "acl-other", "ring-open", "int80-chmod",
    "bind-any", "bind-mapped-any", "listen-unbound", "pipe-sh", "pipe-python", "process-substitution", "file-executed",
    "file-mmap", "dot-file", "splice", "socketpair", "shell-copied", "renamed-later", "read-then-sourced", "eval",
    "bash-c", "hold-seize", "hand-sbatch", "secret-option",
    "quiet-chmod-sticky-directory", "quiet-loopback-mapped", "quiet-json-tool", "quiet-trusted-fetcher", "quiet-ordinary",
)  # fmt: skip
pytestmark = [pytest.mark.root, pytest.mark.timeout(3 * SECONDS)]


@pytest.fixture(scope="module")
def environment(kernel_side: None) -> dict[str, str]:
    if platform.machine() != "x86_64":
        pytest.skip("the test machine is of x86-64")
    environment = {**os.environ, "SERIES": "6.12", "ONLY": ",".join(ACTS), "TIMEOUT": str(SECONDS)}
    try:
        made = subprocess.run([VM / "prepare.sh"], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"qemu, a kernel and a root disk were not fetched in {SECONDS} s")
    if made.returncode:
        pytest.skip(f"no qemu, kernel or root disk to be had: {made.stderr.strip()[-200:]}")
    return environment


def test_on_a_kernel_with_lsm_programs_acts_are_told_and_what_is_denied_is_not_done(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [VM / "suite.sh", "6.12/lsm/enforce"], env=environment, capture_output=True, text=True, timeout=2 * SECONDS, check=False
    )
    if "GUEST kernel" not in done.stdout:
        pytest.skip(f"emulated here, the kernel did not come up, twice: {done.stdout[-200:]}")
    # What came up has no excuse but slowness: it tells its end itself, in time, or it hangs.
    assert "GUEST-EXIT" in done.stdout, f"the machine came up, and then said nothing more: {done.stdout[-400:]}"
    late = re.search(r"GUEST-LATE idle (\d+)%", done.stdout)
    if late and '{"sums"' not in done.stdout:
        assert int(late[1]) < STUCK, f"it waits for what does not come: {done.stdout[-4000:]}"
        pytest.skip(f"emulated here, it did not come to its end in {SECONDS} s, and was not idle")
    sums = next(json.loads(line)["sums"] for line in done.stdout.splitlines() if line.startswith('{"sums"'))
    assert sums["wrong"] == [], done.stdout
    assert (sums["backend"], sums["enforce"]) == ("lsm", True)
    assert sums["hostile"] + sums["benign"] + len(sums["skipped"]) == len(ACTS)
    assert done.returncode == 0, f"guard monitor --check: {done.stdout}"
