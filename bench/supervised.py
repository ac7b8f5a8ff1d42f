"""What a call costs that a supervisor is asked about.

Micro-seconds a call: bare, under a supervisor, and under bwrap, in turns; the least of the rounds, as machines are
shared. Where a UDP socket is made and connected, it is asked twice. Whether a storm of such calls lets a supervisor
grow: bench/storm.py.
"""

from __future__ import annotations

import json
import os
import shutil
import sys

import stage

from tests.conftest import GUARD

ROUNDS = int(os.environ.get("GUARD_BENCH_ROUNDS", "5"))
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
call = {"bind": bind, "UDP socket, connect": connect, "chmod": lambda: os.chmod("f", 0o644),
        "fork+exec": exec, "message": message, "datagram": datagram}[kind]
call()
began = time.perf_counter()
for _ in range(count):
    call()
print((time.perf_counter() - began) / count * 1e6)
"""
COUNTS = {"bind": 2000, "UDP socket, connect": 2000, "chmod": 3000, "fork+exec": 150, "message": 3000, "datagram": 2000}


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
        print(json.dumps(least))
    return 0


if __name__ == "__main__":
    sys.exit(main())
