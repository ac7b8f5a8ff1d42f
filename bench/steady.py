"""What a confined program pays while it runs: system calls, process starts, a compile; bare, guard and bwrap.

`guard` is without a supervisor, `supervised` with one.

Every round runs each contender once, in turns, as an ordinary user in a project of its own under the policy
login-node. Printed are medians over the rounds. Environment: GUARD_BENCH_ROUNDS (default 9).
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
from pathlib import Path

import stage

from tests.conftest import GUARD, Account

ROUNDS = int(os.environ.get("GUARD_BENCH_ROUNDS", "9"))

# One loop a system call; prints nanoseconds a turn.
LOOPS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
int main(int argc, char **argv)
{
    long n = atol(argv[2]);
    struct stat st;
    char *child[] = {"/bin/true", NULL};
    double began = now();
    for (long i = 0; i < n; i++) {
        if (!strcmp(argv[1], "getpid")) syscall(SYS_getpid);
        else if (!strcmp(argv[1], "open+close")) {
            int f = open("/usr/bin/env", O_RDONLY);
            if (f < 0) return 1;
            close(f);
        }
        else if (!strcmp(argv[1], "stat")) { if (stat("/usr/bin/env", &st)) return 1; }
        else {
            int s;
            pid_t p = fork();
            if (!p) { execv(child[0], child); _exit(127); }
            waitpid(p, &s, 0);
            if (s) return 1;
        }
    }
    printf("%.1f\n", (now() - began) / n);
    return argc < 3;
}
"""
CALLS = {"getpid": ("ns", 1_000_000, 1), "open+close": ("ns", 100_000, 1), "stat": ("ns", 200_000, 1),
         "fork+exec": ("us", 300, 1000)}  # fmt: skip


# Around a shell command: prints the seconds it took.
CLOCK = "s=$EPOCHREALTIME; %s; e=$EPOCHREALTIME; echo $((${e/./} - ${s/./})) | sed 's/......$/.&/; s/^[.]/0./'"


def wrappers(project: Path, alone: str) -> dict[str, list[str]]:
    """The contenders: what is put in front of a command."""
    found = {
        "bare": [],
        "guard": [GUARD, "run", "--policy", alone, "--"],
        "supervised": [GUARD, "run", "--policy", "login-node", "--"],
    }
    if shutil.which("bwrap"):
        found["bwrap"] = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(project),
                          str(project), "--tmpfs", "/tmp", "--"]  # fmt: skip
    return found


def prepare(account: Account, project: Path) -> None:
    """Put the loop program and the sources of the compile into the project."""
    account.write(project / "loops.c", LOOPS)
    subprocess.run(["gcc", "-O2", "-o", str(project / "loops"), str(project / "loops.c")], check=True)
    for number in range(15):
        body = "\n".join(f"int f{number}_{line}(int a) {{ return a * {line} + {number}; }}" for line in range(300))
        account.write(project / f"unit{number}.c", f"#include <stdio.h>\n#include <stdlib.h>\n{body}\n")


def workloads(project: Path) -> dict[str, tuple[str, list[str], float]]:
    """Name to (unit, command, divisor); a command that prints a number gives its own time."""
    loops = {
        name: (unit, [str(project / "loops"), name, str(count)], divisor)
        for name, (unit, count, divisor) in CALLS.items()
    }
    compile_all = "for f in unit*.c; do gcc -O1 -c $f -o ${f%.c}.o; done"
    return {
        **loops,
        "find /usr": ("s", ["bash", "-c", f"{CLOCK % 'find /usr > /dev/null 2>&1'}"], 1),
        "15 x gcc": ("s", ["bash", "-c", f"{CLOCK % compile_all}"], 1),
    }


def once(command: list[str], environment: dict[str, str], divisor: float) -> float:
    """Run one workload; returns the figure it prints. The start of the wrapper is no part of it (bench/start.py)."""
    got = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(got.stdout) / divisor


def main() -> None:
    """Measure and print; the last line is JSON."""
    with stage.user() as (account, project):
        prepare(account, project)
        contenders, tasks = wrappers(project, account.alone), workloads(project)

        def work() -> dict[str, dict[str, float]]:
            taken: dict[str, dict[str, list[float]]] = {task: {name: [] for name in contenders} for task in tasks}
            for turn in range(ROUNDS + 1):
                for task, (_, command, divisor) in tasks.items():
                    for name, wrapper in contenders.items():
                        figure = once([*wrapper, *command], account.environment(), divisor)
                        if turn:  # the first round fills the caches
                            taken[task][name].append(figure)
            return {
                task: {name: statistics.median(values) for name, values in row.items()} for task, row in taken.items()
            }

        medians = stage.as_user(account, work, project)
    assert isinstance(medians, dict)
    names = list(next(iter(medians.values())))
    rows = [("median", *names, "guard/bare")]
    for task, row in medians.items():
        unit = tasks[task][0]
        rows.append((f"{task}, {unit}", *(f"{row[name]:.4g}" for name in names), f"{row['guard'] / row['bare']:.3f}"))
    print(stage.table(rows))
    print(json.dumps(medians))


if __name__ == "__main__":
    main()
