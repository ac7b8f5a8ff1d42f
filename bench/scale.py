"""Three hundred supervised sessions of fifty users at once: how long each starts, and what it keeps in memory.

Needs root, to make users. Sessions are started one after the other, and all stay; each under login-node in a project
of its own. Time is from the start of guard to the first word of the command. Memory is the proportional set size
(smaps_rollup) of all of guard's processes of a session. Then one user does all the storm that one can (a process for
each CPU that is refused and rewritten without end) while another's sessions start: nothing of his is to grow slower
than by his share of the CPU. Beside: bwrap, which stays beside its command as well, started in the same way.

Environment: GUARD_BENCH_USERS (50), GUARD_BENCH_SESSIONS (6, for each).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import stage

from tests.conftest import GUARD, Account, _Accounts

USERS = int(os.environ.get("GUARD_BENCH_USERS", "50"))
SESSIONS = int(os.environ.get("GUARD_BENCH_SESSIONS", "6"))
AIM_MS, AIM_MB = 150.0, 10.0
WORD = ["sh", "-c", "echo ready; exec sleep 3600"]
STORM = """
import os, socket
while True:
    with socket.socket() as new:
        try: new.bind(("0.0.0.0", 0))
        except OSError: pass
    os.chmod("f", 0o666)
"""


def start(account: Account, project: Path, head: list[str]) -> tuple[subprocess.Popen[bytes], float]:
    """Start a session; the process, and milliseconds to its first word."""
    began = time.perf_counter()
    process = subprocess.Popen(  # type: ignore[call-overload]
        [*head, *WORD], cwd=project, env=account.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, start_new_session=True, **account.identity(),
    )  # fmt: skip
    if process.stdout.readline() != b"ready\n":
        raise SystemExit(f"scale: a session of {account.name} did not start")
    return process, 1000 * (time.perf_counter() - began)


def memory(pid: int) -> float:
    """PSS in MB of guard's own processes of a session: all but the command, which is `sleep` by now."""
    total, left = 0, [pid]
    while left:
        one = left.pop()
        with suppress(OSError, IndexError):
            left += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
            if Path(f"/proc/{one}/comm").read_text().strip() != "sleep":
                total += int(Path(f"/proc/{one}/smaps_rollup").read_text().partition("\nPss:")[2].split()[0])
    return total / 1024


def percentile(values: list[float], share: float) -> float:
    """The value that this share of all does not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def main() -> int:
    """Measure and print; the last line is JSON."""
    if os.geteuid() != 0:
        print("scale: needs root, to make users", file=sys.stderr)
        return 2
    made = _Accounts()
    running: list[subprocess.Popen[bytes]] = []
    found: dict[str, object] = {}
    try:
        accounts = [made.new() for _ in range(USERS)]
        projects = [account.directory("project") for account in accounts]
        head = [GUARD, "run", "--policy", "login-node", "--"]
        compiled = GUARD if GUARD.endswith("-exec") else GUARD + "-exec"
        contenders = {"guard": head}
        if os.path.exists(compiled):
            contenders["guard-exec"] = [compiled, *head[1:]]
        if shutil.which("bwrap"):
            contenders["bwrap"] = ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--unshare-pid", "--"]
        rows = [("sessions at once", "start p50 ms", "p99 ms", "worst ms", "PSS MB, worst")]
        for name, command in contenders.items():
            for account, project in zip(accounts, projects, strict=True):  # plans and written starts are made
                warm, _ = start(account, project, command)
                end([warm])
            taken = []
            sessions = []
            for _ in range(SESSIONS):
                for account, project in zip(accounts, projects, strict=True):
                    process, milliseconds = start(account, project, command)
                    sessions.append(process)
                    taken.append(milliseconds)
            running += sessions
            worst = max(memory(process.pid) for process in sessions)
            found[name] = {"sessions": len(sessions), "p50": statistics.median(taken), "p99": percentile(taken, 0.99),
                           "worst": max(taken), "pss": worst}  # fmt: skip
            figures = (statistics.median(taken), percentile(taken, 0.99), max(taken))
            rows.append((f"{len(sessions)} x {name}", *(f"{figure:.1f}" for figure in figures), f"{worst:.2f}"))
            end(sessions)
        beside = beside_a_storm(accounts[0], accounts[1], projects, head)
        found["beside a storm"] = beside
        print(stage.table(rows))
        print("one user's starts, ms: {quiet:.1f} in quiet, {storm:.1f} beside another's storm".format(**beside))
        print(json.dumps(found))
        mine = found["guard"]
        assert isinstance(mine, dict)
        print(f"p99 {mine['p99']:.0f} ms, aim {AIM_MS:.0f}: {'held' if mine['p99'] < AIM_MS else 'NOT HELD'}")
        print(f"PSS {mine['pss']:.1f} MB, aim {AIM_MB:.0f}: {'held' if mine['pss'] <= AIM_MB else 'NOT HELD'}")
    finally:
        end(running)
        made.remove()
    return 0


def beside_a_storm(stormy: Account, other: Account, projects: list[Path], head: list[str]) -> dict[str, float]:
    """Median start of one user's session in quiet, and while another's sessions do nothing but ask."""

    def median() -> float:
        taken = []
        for _ in range(15):
            process, milliseconds = start(other, projects[1], head)
            end([process])
            taken.append(milliseconds)
        return statistics.median(taken)

    quiet = median()
    stormy.write(projects[0] / "f")
    storms = [
        subprocess.Popen(  # type: ignore[call-overload]
            [*head, "/usr/bin/python3", "-c", STORM], cwd=projects[0], env=stormy.environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **stormy.identity(),
        )
        for _ in range(os.cpu_count() or 1)
    ]  # fmt: skip
    try:
        return {"quiet": quiet, "storm": median()}
    finally:
        end(storms)


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End sessions by their first process."""
    for process in processes:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    for process in processes:
        process.wait()
        if process.stdout:
            process.stdout.close()


if __name__ == "__main__":
    sys.exit(main())
