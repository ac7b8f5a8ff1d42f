"""Whether a supervisor grows in a long session: memory, descriptors and threads, looked at as time goes by.

A supervised session under login-node whose two workers bind, connect, send, chmod, set a umask and execute in bursts of
a few thousand notified calls a second, with pauses of four times as long between, so that others have the machine too.
Prints a line for each look and how far the mean of the last quarter is above that of the first; ends with 1 where the
supervisor's own memory (Private_Dirty) has grown by more than 512 KB, or it has more than two descriptors or threads
more.

    bench/storm.py [--minutes N]        default 1; a look each minute, and at least twelve in all
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import stage

from tests.conftest import GUARD

ALLOWED = {"dirty_kb": 512, "descriptors": 2, "threads": 2}
STORM = r"""
import os, socket, sys, threading, time
end, counts = time.monotonic() + float(sys.argv[1]), [0, 0]

def once(name):
    for host in ("0.0.0.0", "127.0.0.1", "192.0.2.77"):
        with socket.socket() as new:
            try: new.bind((host, 0))
            except OSError: pass
    for kind, port in ((socket.SOCK_DGRAM, 443), (socket.SOCK_STREAM, 1)):
        with socket.socket(type=kind) as new:
            try: new.connect(("127.0.0.1", port))
            except OSError: pass
    with socket.socket(type=socket.SOCK_DGRAM) as new:
        try: new.sendmsg([b"x"], [], 0, ("127.0.0.1", 443))
        except OSError: pass
    os.chmod(name, 0o666)
    try: os.chmod("/etc", 0o755)
    except OSError: pass
    os.umask(0)
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    return 10

def work(number):
    name = f"f{number}"
    open(name, "w").close()
    while time.monotonic() < end:
        began = time.monotonic()
        while time.monotonic() < began + 0.2:
            counts[number] += once(name)
        time.sleep(0.8)

workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
print("ready", flush=True)
for worker in workers: worker.start()
for worker in workers: worker.join()
print(sum(counts), flush=True)
sys.stdin.read()
"""


def look(pid: int) -> dict[str, int]:
    """What a supervisor holds: memory of its own in KB, descriptors, threads."""
    dirty = Path(f"/proc/{pid}/smaps_rollup").read_text().partition("\nPrivate_Dirty:")[2].split()[0]
    return {
        "dirty_kb": int(dirty),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
    }


def growth(looks: list[dict[str, int]]) -> dict[str, float]:
    """The mean of the last quarter less that of the first."""
    quarter = max(1, len(looks) // 4)
    return {
        name: statistics.mean(one[name] for one in looks[-quarter:])
        - statistics.mean(one[name] for one in looks[:quarter])
        for name in ALLOWED
    }


def storm(minutes: float) -> tuple[int, list[dict[str, int]]]:
    """Let a session storm; how many notified calls it made, and what its supervisor held at each look."""
    looks: list[dict[str, int]] = []
    pause = min(60.0, minutes * 60 / 12)
    with stage.user() as (account, project):
        process = subprocess.Popen(  # type: ignore[call-overload]
            [GUARD, "run", "--policy", "login-node", "--", "/usr/bin/python3", "-c", STORM, str(minutes * 60)],
            cwd=project, env=account.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            **account.identity(),
        )  # fmt: skip
        if process.stdout.readline() != "ready\n":
            raise SystemExit("storm: the session did not start")
        (supervisor,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        began = time.monotonic()
        print("  minute  Private_Dirty KB  descriptors  threads", flush=True)
        for number in range(1, round(minutes * 60 / pause)):
            time.sleep(max(0.0, began + number * pause - time.monotonic()))
            looks.append(look(int(supervisor)))
            minute, (dirty, descriptors, threads) = number * pause / 60, looks[-1].values()
            print(f"{minute:8.2f}{dirty:18}{descriptors:13}{threads:9}", flush=True)
        count = process.stdout.readline()
        process.communicate("")
        if process.returncode or not count:
            raise SystemExit(f"storm: the session ended with {process.returncode}")
    return int(count), looks


def main() -> int:
    """Storm, print; the last line is JSON."""
    parser = argparse.ArgumentParser(description="Whether a supervisor grows in a long session.")
    parser.add_argument("--minutes", type=float, default=1.0, metavar="N")
    minutes = parser.parse_args().minutes
    count, looks = storm(minutes)
    grown = growth(looks)
    has_grown = any(grown[name] > allowed for name, allowed in ALLOWED.items())
    changes = ", ".join(f"{name} {by:+.1f}" for name, by in grown.items())
    verdict = "GROWN" if has_grown else "held"
    print(f"{count} calls in {minutes:g} minutes; the last quarter less the first: {changes}: {verdict}")
    print(json.dumps({"minutes": minutes, "calls": count, "growth": grown, "first": looks[0], "last": looks[-1]}))
    return has_grown


if __name__ == "__main__":
    sys.exit(main())
