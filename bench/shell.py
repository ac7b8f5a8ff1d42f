"""What the history hook adds to a prompt, in each shell: from the Enter key to the next prompt, with and without it.

Three shells of a kind run side by side at terminals: bare, with the hook and the resident service, and with the hook
where no service is. In turns each gets a line without a secret and one with a secret; printed are medians of the whole
round trip and of what the hook adds, and the least of each, which a loud machine disturbs less; beside them what a bare
`grep` and a bare Python (the client's own start) take. Environment: GUARD_BENCH_ROUNDS (default 40).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from guard.redact import samples
from tests.conftest import _Accounts
from tests.history.conftest import Service
from tests.history.shells import SHELLS, Shell, prepare

ROUNDS = int(os.environ.get("GUARD_BENCH_ROUNDS", "40"))


def measure(shell: Shell, line: str) -> float:
    """Milliseconds from Enter to the next prompt."""
    shell.type(line)
    time.sleep(0.02)  # the shell has read the line, and drawn it
    began = time.perf_counter()
    shell.type("\r")
    shell.prompt()
    return (time.perf_counter() - began) * 1000


def start(argv: list[str]) -> float:
    """Milliseconds that a process takes from start to end."""
    began = time.perf_counter()
    subprocess.run(argv, check=False, stdin=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


def main() -> None:
    rng = random.Random()
    accounts = _Accounts()
    account = accounts.new()
    service = Service(account)
    service.start()
    rows = {}
    try:
        for name, kind in SHELLS.items():
            if not shutil.which(name):
                continue
            found: dict[tuple[str, str], list[float]] = defaultdict(list)
            ways = {
                "bare": Shell(account, kind, prepare(account, kind, hooked=False)),
                "service": Shell(account, kind, prepare(account, kind)),
                "alone": Shell(account, kind, prepare(account, kind), {"GUARD_STATE_DIR": "/nonexistent"}),
            }
            for number in range(ROUNDS):
                key = samples.fill("ghp_<crc62>", rng)[0]
                for way, shell in ways.items():
                    plain = f"true -n src/main.c 'two words' {number}"
                    for what, line in (("plain", plain), ("secret", f"true {key}")):
                        found[way, what].append(measure(shell, line))
            for shell in ways.values():
                shell.__exit__()
            for how, of in (("median", statistics.median), ("least", min)):
                row = {f"{way} {what}": of(times) for (way, what), times in found.items()}
                bare = row["bare plain"]
                rows[f"{name} {how}"] = row
                print(
                    f"{name:5} {how:6} bare {bare:5.1f} ms, adds without a hit {row['service plain'] - bare:5.1f}, "
                    f"with one {row['service secret'] - bare:5.1f}, without a service {row['alone secret'] - bare:6.1f}"
                )
        for peer, argv in (("grep", ["grep", "-q", "x"]), ("python", ["/usr/bin/python3", "-IS", "-c", "pass"])):
            times = [start(argv) for _ in range(ROUNDS)]
            rows[peer] = {"median": statistics.median(times), "least": min(times)}
            print(f"{peer:12} start median {statistics.median(times):5.1f} ms, least {min(times):5.1f}")
    finally:
        service.stop()
        accounts.remove()
    if out := os.environ.get("GUARD_BENCH_JSON"):
        Path(out).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
