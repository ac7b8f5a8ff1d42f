"""What tests of a real monitor need: root, the kernel's side built, tracefs."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

from guard.monitor import objects

TRACEFS = Path("/sys/kernel/tracing")


def why_not() -> str:
    """Why no monitor can be tried here; "": it can."""
    if os.geteuid() != 0:
        return "needs root"
    if not (Path(objects.DIRECTORY) / platform.machine() / objects.OBJECTS["tracepoint"]).exists():
        return "the monitor's programs were not built: no clang"
    if not (TRACEFS / "events").exists():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", str(TRACEFS)], check=False, stderr=subprocess.DEVNULL)
    return "" if (TRACEFS / "events").exists() else "tracefs cannot be mounted"


@pytest.fixture(scope="session")
def kernel_side():
    """Skips, with the reason, where the kernel's side cannot be tried."""
    if why := why_not():
        pytest.skip(why)
