"""What a call costs that a supervisor is asked about, and whether a storm of them lets it grow.

Micro-seconds a call: bare, under guard without a supervisor where that does the same, with one, and under bwrap, in
turns; the least of the rounds, as machines are shared. Then a storm: for GUARD_BENCH_STORM seconds (default 30; once
7200) calls of every kind, looking at the supervisor's memory and descriptors after the first tenth and at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import stage

from tests.conftest import GUARD, Account

ROUNDS = int(os.environ.get("GUARD_BENCH_ROUNDS", "5"))
STORM = float(os.environ.get("GUARD_BENCH_STORM", "30"))
LOOPS = r"""
import os, socket, sys, time
kind, count = sys.argv[1], int(sys.argv[2])
open("f", "w").close()
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
here = socket.socket(type=socket.SOCK_DGRAM)
here.bind(("127.0.0.1", 0))
there, to = socket.socket(type=socket.SOCK_DGRAM), here.getsockname()
def bind():
    with socket.socket() as new:
        new.bind(("127.0.0.1", 0))
def connect():
    with socket.socket(type=socket.SOCK_DGRAM) as new:
        new.connect(to)
def exec():
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
def message():
    ours.sendmsg([b"x"])
    theirs.recv(9)
def datagram():
    there.sendmsg([b"x"], [], 0, to)
    here.recv(9)
call = {"bind": bind, "connect": connect, "chmod": lambda: os.chmod("f", 0o644), "exec": exec, "message": message,
        "datagram": datagram}[kind]
call()
began = time.perf_counter()
for _ in range(count):
    call()
print((time.perf_counter() - began) / count * 1e6)
"""
COUNTS = {"bind": 2000, "connect": 2000, "chmod": 3000, "exec": 150, "message": 3000, "datagram": 2000}
FLOOD = r"""
import os, socket, sys, time
print("ready", flush=True)
end = time.monotonic() + float(sys.argv[1])
open("f", "w").close()
count = 0
while time.monotonic() < end:
    for host in ("0.0.0.0", "127.0.0.1", "192.0.2.77"):
        with socket.socket() as new:
            try: new.bind((host, 0))
            except OSError: pass
    for port in (1, 443):
        with socket.socket(type=socket.SOCK_DGRAM) as new:
            try: new.sendmsg([b"x"], [], 0, ("127.0.0.1", port))
            except OSError: pass
    os.chmod("f", 0o666)
    try: os.chmod("/etc", 0o755)
    except OSError: pass
    os.umask(0)
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    count += 9
    if count % 9000 == 0: print(count, flush=True)
print("end", count, flush=True)
sys.stdin.read()
"""


def look(pid: int) -> tuple[int, int]:
    """A supervisor's PSS in KB, and how many descriptors it has."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.partition("\nPss:")[2].split()[0]), len(os.listdir(f"/proc/{pid}/fd"))


def storm(account: Account, project: Path) -> dict[str, object]:
    """Flood one supervisor."""
    process = subprocess.Popen(  # type: ignore[call-overload]
        [GUARD, "run", "--policy", "login-node", "--", "/usr/bin/python3", "-c", FLOOD, str(STORM)], cwd=project,
        env=account.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **account.identity(),
    )  # fmt: skip
    process.stdout.readline()
    supervisor = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    time.sleep(STORM / 10)
    before = look(supervisor)
    count = 0
    for line in process.stdout:
        if line.startswith("end"):
            count = int(line.split()[1])
            break
    after = look(supervisor)
    process.communicate("")
    return {"seconds": STORM, "calls": count, "pss_kb": [before[0], after[0]], "descriptors": [before[1], after[1]]}


def main() -> int:
    """Measure and print; the last line is JSON."""
    with stage.user() as (account, project):
        account.write(project / "loops.py", LOOPS)
        contenders = {"bare": [], "supervised": [GUARD, "run", "--policy", "login-node", "--"]}
        if shutil.which("bwrap"):
            contenders["bwrap"] = ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--"]
        least: dict[str, dict[str, float]] = {}
        for _ in range(ROUNDS):
            for kind, count in COUNTS.items():
                for name, head in contenders.items():
                    done = account.command([*head, "/usr/bin/python3", "loops.py", kind, str(count)], cwd=project)
                    if done.returncode:
                        raise SystemExit(f"supervised: {kind} under {name}: {done.stderr}")
                    row = least.setdefault(kind, {})
                    row[name] = min(row.get(name, 1e9), float(done.stdout))
        rows = [("us a call, least", *contenders, "asking")]
        for kind, row in least.items():
            rows.append((kind, *(f"{row[name]:.1f}" for name in contenders), f"{row['supervised'] - row['bare']:.1f}"))
        print(stage.table(rows))
        flood = storm(account, project)
        print("storm: {calls} calls in {seconds:.0f} s; PSS KB and descriptors {pss_kb}, {descriptors}".format(**flood))
        print(json.dumps({"us": least, "storm": flood}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
