"""Three hundred supervised sessions of fifty users at once: how long each starts, and what it keeps in memory.

Needs root, to make users. Each session is under login-node, in a project of its user's, and stays. They arrive as on a
login node, ten a second, whatever those before are doing; and then all in one instant, which no machine of two cores
can serve quickly, beside bwrap in the same way. Time is from the start of guard to the first word of the command.
Memory is the proportional set size (smaps_rollup) of all of guard's processes of a session, with all of them there.
Then one user does all the storm that one can (a process for each CPU that is refused and rewritten without end) while
another's sessions start: nothing of his is to grow slower than by his share of the CPU. What one user could use up for
another is tried in tests/system/test_shared.py.

Environment: GUARD_BENCH_USERS (50), GUARD_BENCH_SESSIONS (6, for each), GUARD_BENCH_RATE (10 a second).
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import stage

from tests.conftest import GUARD, Account, _Accounts

USERS = int(os.environ.get("GUARD_BENCH_USERS", "50"))
SESSIONS = int(os.environ.get("GUARD_BENCH_SESSIONS", "6"))
RATE = float(os.environ.get("GUARD_BENCH_RATE", "10"))
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


class Sessions:
    """Sessions that were started and are still there.

    Args:
        head: what is put in front of the command.
    """

    def __init__(self, head: list[str]) -> None:
        self._head = head
        self.running: list[subprocess.Popen[bytes]] = []
        self.taken: list[float] = []  # milliseconds to the first word
        self._waiting = selectors.DefaultSelector()

    def start(self, account: Account, project: Path) -> None:
        """Start one; it is not waited for."""
        began = time.perf_counter()
        process = subprocess.Popen(  # type: ignore[call-overload]
            [*self._head, *WORD], cwd=project, env=account.environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, **account.identity(),
        )  # fmt: skip
        self.running.append(process)
        self._waiting.register(process.stdout, selectors.EVENT_READ, began)

    def hear(self, until: float) -> None:
        """Hear first words until a moment of `time.perf_counter`, or all of them."""
        while self._waiting.get_map():
            left = until - time.perf_counter()
            if left <= 0:
                return
            for key, _ in self._waiting.select(min(left, 60)):
                self.taken.append(1000 * (time.perf_counter() - key.data))
                if os.read(key.fd, 64) != b"ready\n":
                    raise SystemExit("scale: a session did not start")
                self._waiting.unregister(key.fileobj)
        time.sleep(max(0, until - time.perf_counter()) if until != float("inf") else 0)

    def end(self) -> None:
        """End them by their first processes."""
        for process in self.running:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self.running:
            process.wait()
            if process.stdout:
                process.stdout.close()
        self.running.clear()


def arrive(sessions: Sessions, who: list[tuple[Account, Path]], rate: float) -> None:
    """Start a session for each, so many a second, and hear them all.

    Args:
        sessions: in which they are.
        who: account and project of each.
        rate: a second; infinite: all in one instant.
    """
    began = time.perf_counter()
    for number, (account, project) in enumerate(who):
        sessions.hear(began + number / rate if rate != float("inf") else 0.0)
        sessions.start(account, project)
    sessions.hear(float("inf"))


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
    found: dict[str, dict[str, float]] = {}
    guard = [GUARD, "run", "--policy", "login-node", "--"]
    contenders = {"guard": guard}
    if shutil.which("bwrap"):
        contenders["bwrap"] = ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--unshare-pid", "--"]
    try:
        accounts = [made.new() for _ in range(USERS)]
        places = [(account, account.directory("project")) for account in accounts]
        rows = [("sessions that stay", "start p50 ms", "p99 ms", "worst ms", "PSS MB, worst")]
        for how, rate in ((f"{RATE:g} a second", RATE), ("in one instant", float("inf"))):
            for name, head in contenders.items():
                for _ in range(2):  # plans and written starts are made
                    with started(head, places) as warm:
                        warm.hear(float("inf"))
                sessions = Sessions(head)
                try:
                    arrive(sessions, places * SESSIONS, rate)
                    worst = max(memory(process.pid) for process in sessions.running)
                finally:
                    sessions.end()
                taken = sessions.taken
                figures = (statistics.median(taken), percentile(taken, 0.99), max(taken))
                rows.append((f"{len(taken)} x {name}, {how}", *(f"{figure:.1f}" for figure in figures), f"{worst:.2f}"))
                found[f"{name}, {how}"] = dict(zip(("p50", "p99", "worst", "pss"), (*figures, worst), strict=True))
        found["beside a storm"] = beside = beside_a_storm(places[0], places[1], guard)
    finally:
        made.remove()
    print(stage.table(rows))
    print("one user's starts, ms: {quiet:.1f} in quiet, {storm:.1f} beside another's storm".format(**beside))
    print(json.dumps(found))
    mine = next(iter(found.values()))
    print(f"p99 {mine['p99']:.0f} ms, aim {AIM_MS:.0f}: {'held' if mine['p99'] < AIM_MS else 'NOT HELD'}")
    print(f"PSS {mine['pss']:.1f} MB, aim {AIM_MB:.0f}: {'held' if mine['pss'] <= AIM_MB else 'NOT HELD'}")
    return 0


@contextmanager
def started(head: list[str], who: list[tuple[Account, Path]]) -> Iterator[Sessions]:
    """One session for each, ended afterwards; started one after the other."""
    sessions = Sessions(head)
    try:
        for account, project in who:
            sessions.start(account, project)
            sessions.hear(float("inf"))
        yield sessions
    finally:
        sessions.end()


def beside_a_storm(stormy: tuple[Account, Path], other: tuple[Account, Path], head: list[str]) -> dict[str, float]:
    """Median start of one user's session in quiet, and while another's sessions do nothing but ask."""

    def median() -> float:
        taken = []
        for _ in range(15):
            with started(head, [other]) as sessions:
                taken += sessions.taken
        return statistics.median(taken)

    quiet = median()
    account, project = stormy
    account.write(project / "f")
    storms = [
        subprocess.Popen(  # type: ignore[call-overload]
            [*head, "/usr/bin/python3", "-c", STORM], cwd=project, env=account.environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **account.identity(),
        )
        for _ in range(os.cpu_count() or 1)
    ]  # fmt: skip
    try:
        return {"quiet": quiet, "storm": median()}
    finally:
        for process in storms:
            process.terminate()
        for process in storms:
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
