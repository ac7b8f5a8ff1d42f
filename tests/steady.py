"""Run pytest; what failed beside other tests runs once more, alone, and has failed where it fails again.

The tests start thousands of real processes, three files at a time, and each wait has a limit: on a busy machine any of
them can be late. What passed only alone is named at the end, so that it is mended and not overlooked. Where more than
`MOST` failed it is not the machine's doing, and none gets a second run.

    python tests/steady.py [PYTEST'S ARGUMENTS]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST = 10
PYTEST = [sys.executable, "-m", "pytest", "-q"]
FAILED = Path(__file__).resolve().parent.parent / ".pytest_cache/v/cache/lastfailed"


def main(arguments: list[str]) -> int:
    """Run the tests that the arguments select; pytest's exit code."""
    code = subprocess.run([*PYTEST, "--cache-clear", *arguments], check=False).returncode
    if code != 1:
        return code
    failed = list(json.loads(FAILED.read_text())) if FAILED.exists() else []
    if not 0 < len(failed) <= MOST:
        return code
    print(f"\n{len(failed)} failed: once more, each alone", flush=True)
    again = [each for each in failed if subprocess.run([*PYTEST, each], check=False).returncode]
    for each in failed:
        print(f"{'FAILED twice' if each in again else 'UNSTEADY, passed alone'}: {each}", flush=True)
    return code if again else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
