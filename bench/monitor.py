"""What the monitor costs a process: without a tree on the node, with a tree at work elsewhere, and inside of a tree.

Every round runs each workload under each contender in turns. Printed are ratios of the least processor time (user and
system, of the workload's own processes) to the bare run of the same rounds: other load on the machine lengthens a run,
and seldom its processor time. Beside guard runs bpftrace with probes on the same calls, as root, where it is installed.
Before: start (from the command to READY=1), memory (alone, beside the events service, with a tree at work after its
rules were used), blind time after a harness's exec. Under six minutes: rounds end when --seconds are over.

    unshare -n bench/monitor.py [--backend tracepoint] [--rounds 5] [--seconds 240] [--json]        root

On another kernel, its LSM programs included: bench/monitor-vm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from guard.monitor import choose
from guard.monitor.facts import Coverage, Program
from guard.monitor.source import Settings
from tests.monitor.suite import stage

ROOT = Path(__file__).resolve().parent.parent
LOOP = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    long n = atol(argv[2]);
    char b[64] = "x";
    int p[2], f = open("/dev/zero", O_RDONLY), s;
    if (pipe(p)) return 1;
    for (long i = 0; i < n; i++) {
        if (!strcmp(argv[1], "exec")) {
            pid_t c = fork();
            if (!c) { execl("/bin/true", "true", (char *)0); _exit(127); }
            waitpid(c, &s, 0);
        } else if (!strcmp(argv[1], "read")) { if (read(f, b, 1) != 1) return 1; }
        else { if (write(p[1], b, 64) != 64 || read(p[0], b, 64) != 64) return 1; }
    }
    return 0;
}
"""
Wrap = Callable[[list[str]], list[str]]
"""A workload's command → what is run."""

PROBED = (
    "chmod", "fchmod", "fchmodat", "open", "openat", "openat2", "creat", "mkdir", "mkdirat", "mknod", "mknodat",
    "setxattr", "lsetxattr", "fsetxattr", "bind", "listen", "connect", "read", "pread64", "readv", "write",
    "pwrite64", "writev", "recvfrom", "recvmsg", "sendto", "sendmsg", "splice", "tee", "vmsplice", "sendfile64",
    "mmap",
)  # fmt: skip
"""System calls that both watch."""


def _words(process: Path) -> bytes:
    with contextlib.suppress(OSError):
        return (process / "cmdline").read_bytes()
    return b""


def workloads(place: Path, scale: float) -> dict[str, list[str]]:
    """Name → command; at a scale of 1 sized to tenths of a second."""
    loop = str(place / "loop")
    (place / "loop.c").write_text(LOOP)
    subprocess.run(["gcc", "-O2", "-o", loop, str(place / "loop.c")], check=True)
    source = place / "big.c"
    source.write_text("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
                      + "".join(f"int f{i}(int a){{return a*{i}+(a>>{i % 7});}}\n"
                                for i in range(round(3000 * scale))))  # fmt: skip
    return {
        "fork+exec": [loop, "exec", str(round(300 * scale))],
        "find": ["find", "/usr/share", "-xdev", "-newermt", "2099-01-01"],
        "tar": ["sh", "-c", "tar cf - /usr/lib/python3* 2>/dev/null | wc -c >/dev/null"],
        "compile": ["gcc", "-O1", "-c", "-o", str(place / "big.o"), str(source)],
        "reads of 1 byte": [loop, "read", str(round(300000 * scale))],
        "pipe of 64 bytes": [loop, "pipe", str(round(150000 * scale))],
    }


def spent(command: list[str]) -> float:
    """Processor seconds of a command and its descendants."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Contenders:
    """Who watches while a workload runs."""

    def __init__(self, guard: list[str], backend: str, place: Path) -> None:
        self._guard, self._backend, self.place = guard, backend, place
        self.agent = shutil.copy("/bin/bash", place / stage.AGENT)
        self._count = 0

    @contextlib.contextmanager
    def bare(self) -> Iterator[Wrap]:
        """Nobody."""
        yield lambda command: command

    @contextlib.contextmanager
    def _monitor(self) -> Iterator[None]:
        with stage.monitor(self._guard, self._folder(), self._backend, enforce=False):
            yield

    def _folder(self) -> Path:
        self._count += 1
        place = self.place / f"run{self._count}"
        place.mkdir()
        return place

    @contextlib.contextmanager
    def resident(self, served: bool) -> Iterator[Callable[[], float]]:
        """guard, beside the events service or not; gives what tells its resident MB after two seconds."""
        place = self._folder()
        (place / "state").mkdir(mode=0o700)
        where = ["--state", str(place / "state"), "--config", str(place / "etc")]
        serve = [*self._guard, *where, "serve", "events"]
        service = subprocess.Popen(serve, stderr=subprocess.DEVNULL) if served else None
        try:
            while served and not (place / "state/events.sock").exists():
                time.sleep(0.05)
            with stage.monitor(self._guard, place, self._backend, enforce=False):
                words = f"{place}/state\0".encode() + b"--config"
                pid = next(int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()
                           and words in (text := _words(each)) and b"\0monitor\0" in text)  # fmt: skip

                def now() -> float:
                    time.sleep(2)
                    status = Path(f"/proc/{pid}/status").read_text().splitlines()
                    return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024

                yield now
        finally:
            if service is not None:
                service.terminate()
                service.wait()

    @contextlib.contextmanager
    def no_tree(self) -> Iterator[Wrap]:
        """guard, and no agent."""
        with self._monitor():
            yield lambda command: command

    @contextlib.contextmanager
    def tree_elsewhere(self) -> Iterator[Wrap]:
        """guard, and an agent that is somebody else's."""
        busy = "while :; do /bin/ls / > /dev/null; sleep 0.2; done"
        with self._monitor(), subprocess.Popen([self.agent, "-c", busy], start_new_session=True) as tree:
            time.sleep(0.5)  # until the programs are attached: bench only
            try:
                yield lambda command: command
            finally:
                os.killpg(tree.pid, 9)

    @contextlib.contextmanager
    def in_tree(self) -> Iterator[Wrap]:
        """guard, and the workload is an agent's."""
        with self._monitor():
            yield lambda command: [self.agent, "-c", 'sleep 0.1; "$@"; :', "-", *command]

    @contextlib.contextmanager
    def bpftrace(self) -> Iterator[Wrap]:
        """The peer, with probes on the same calls."""
        calls = ",".join(f"tracepoint:syscalls:sys_exit_{call}" for call in self._known())
        script = ("tracepoint:sched:sched_process_fork /@tree[args->parent_pid]/ { @tree[args->child_pid] = 1; } "
                  "tracepoint:sched:sched_process_exec { @execs = count(); } "
                  "tracepoint:sched:sched_process_exit { delete(@tree[tid]); } "
                  f"{calls} /@tree[pid]/ {{ @calls[probe] = count(); }} BEGIN {{ printf(\"ready\\n\"); }}")  # fmt: skip
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(["bpftrace", "-e", script], text=True, **pipes) as tracer:
            for line in tracer.stdout or ():
                if "ready" in line:
                    break
            if tracer.poll() is not None:
                raise SystemExit("bpftrace: " + tracer.stderr.read()[:300])
            try:
                yield lambda command: command
            finally:
                tracer.send_signal(2)
                tracer.communicate()

    def _known(self) -> list[str]:
        return [call for call in PROBED if Path(f"/sys/kernel/tracing/events/syscalls/sys_exit_{call}").exists()]


def ratios(
    contenders: Contenders, rounds: int, seconds: float, wanted: list[str], scale: float
) -> tuple[dict[str, dict[str, float]], int]:
    """Contender → workload → ratio to bare; and how many rounds there was time for."""
    who = {
        "bare": contenders.bare, "(a) no tree": contenders.no_tree, "(b) tree elsewhere": contenders.tree_elsewhere,
        "in the tree": contenders.in_tree,
    }  # fmt: skip
    if shutil.which("bpftrace"):
        who["bpftrace"] = contenders.bpftrace
    loads = workloads(contenders.place, scale)
    least: dict[tuple[str, str], float] = {}
    begun, done = time.monotonic(), 0
    for number in range(rounds):
        if number and (time.monotonic() - begun) * (number + 1) / number > seconds:
            break
        done += 1
        names = list(who)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            with who[name]() as wrap:
                for load, command in loads.items():
                    if wanted and load not in wanted:
                        continue
                    for _ in range(2):
                        took = spent(wrap(command))
                        least[name, load] = min(took, least.get((name, load), took))
    table = {
        name: {load: least[name, load] / least["bare", load] for load in loads if (name, load) in least}
        for name in who if name != "bare"
    }  # fmt: skip
    return table, done


def start(guard: list[str], backend: str, place: Path, count: int = 7) -> list[float]:
    """Seconds from the command to READY=1, for so many starts."""
    out = []
    for number in range(count):
        state = place / f"start{number}"
        state.mkdir()
        begun = time.monotonic()
        with stage.monitor(guard, state, backend, enforce=False):
            out.append(time.monotonic() - begun)
    return out


USES = (
    "touch f; chmod 777 f; cp /bin/ls ls; ./ls > /dev/null; echo true | sh; "
    "/usr/bin/python3 -c 'import socket as s; t=s.socket(); t.bind((\"0.0.0.0\", 0)); t.listen()'; "
    "/bin/true --token ghp_$(head -c 60 /dev/urandom | base64 -w0 | tr -dc A-Za-z0-9 | head -c 36); "
    "for i in $(seq 1000); do /bin/true $i; done"
)
"""What an agent does so that rules, redaction and exposures are used."""


def memory(contenders: Contenders) -> dict[str, float]:
    """Resident MB: after the start alone and beside the events service, and there with a tree at work."""
    out = {}
    for name, served in (("alone", False), ("beside the events service", True)):
        with contenders.resident(served) as now:
            out[name] = now()
            busy = subprocess.Popen([contenders.agent, "-c", "while :; do /bin/true; done"], start_new_session=True)
            subprocess.run([contenders.agent, "-c", USES], cwd=contenders.place, check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
            out[f"{name}, a tree at work"] = now()
            os.killpg(busy.pid, 9)
            busy.wait()
    return out


def blind(backend: str, place: Path, count: int = 20) -> list[float]:
    """Milliseconds from a harness's exec until everything is attached, for so many starts."""
    agent = place / "blind-agent"
    shutil.copy("/bin/sleep", agent)
    out = []
    for _ in range(count):
        source = choose.open_source(backend, Settings({agent.name: Program.HARNESS}))
        try:
            with subprocess.Popen([agent, "5"]) as harness:
                end = time.monotonic() + 5
                while time.monotonic() < end:
                    told = [fact for fact in source.poll(1) if isinstance(fact, Coverage)]
                    if told:
                        out.append(told[0].blind / 1e6)
                        break
                harness.kill()
        finally:
            source.close()
    return out


def resident(guard: list[str], backend: str, place: Path, contenders: Contenders) -> dict[str, dict[str, float]]:
    """Start, memory and blind time."""
    starts = start(guard, backend, place)
    held = memory(contenders)
    blinds = blind(backend, place)
    return {
        "start_s": {"least": round(min(starts), 3), "median": round(statistics.median(starts), 3)},
        "resident_mb": {name: round(value, 1) for name, value in held.items()},
        "blind_ms": {"median": round(statistics.median(blinds), 2), "most": round(max(blinds), 2)},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="tracepoint")
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("GUARD_BENCH_ROUNDS", "5")))
    parser.add_argument("--seconds", type=float, default=240.0, help="after which no further round begins")
    parser.add_argument("--only", default="", help="workloads, comma-separated")
    parser.add_argument("--guard", default=str(ROOT / ".venv/bin/guard"), help="the command")
    parser.add_argument("--scale", type=float, default=1.0, help="of the workloads")
    parser.add_argument("--ratios", action="store_true", help="these alone: neither start nor memory nor blind time")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="guard-bench-", dir="/var/tmp") as directory:
        place = Path(directory)
        guard = options.guard.split()
        contenders = Contenders(guard, options.backend, place)
        result = {} if options.ratios else resident(guard, options.backend, place, contenders)
        wanted = [word for word in options.only.split(",") if word]
        table, rounds = ratios(contenders, options.rounds, options.seconds, wanted, options.scale)
    result = {
        "backend": options.backend, "kernel": os.uname().release, "ratios": table, "rounds": rounds,
        "load": round(os.getloadavg()[1], 1), **result,
    }  # fmt: skip
    if options.json:
        print(json.dumps(result))
        return
    loads = list(next(iter(table.values())))
    print(f"{'':20}" + "".join(f"{load:>18}" for load in loads))
    for name, row in table.items():
        print(f"{name:20}" + "".join(f"{'x' + format(row[load], '.3f'):>18}" for load in loads))
    if "bpftrace" not in table:
        print("no bpftrace here to compare with: apt-get install bpftrace")
    print(f"{rounds} rounds, load {result['load']}, kernel {result['kernel']}, backend {options.backend}")
    if options.ratios:
        return
    print(f"start: least {result['start_s']['least']} s, median {result['start_s']['median']} s; "
          f"blind: median {result['blind_ms']['median']} ms, most {result['blind_ms']['most']} ms")
    print("resident: " + ", ".join(f"{name} {value} MB" for name, value in result["resident_mb"].items()))


if __name__ == "__main__":
    main()
