"""How long a start takes: `WRAPPER -- true` for guard and its peers, in turns, in one run.

Every program is started by posix_spawn(3) and waited for, as an ordinary user in a project of its own whose home has
200 entries; guard runs the policy login-node from a warm plan cache, with its supervisor and without one (`[supervisor]
use = "never"`): as `guard run`, which is guard-exec where a start has been made before, and by the Python launcher
alone. Prints medians and minima in milliseconds, and of the two that are one process each the processor time, which
other work on the machine changes less. Environment: GUARD_BENCH_ROUNDS (default 100).
"""

from __future__ import annotations

import json
import os
import resource  # noqa: F401 - what os.wait4 needs must be there before another user is meant
import shutil
import statistics
import sys
import time

import stage

from tests.conftest import GUARD, LAUNCHER

ROUNDS = int(os.environ.get("GUARD_BENCH_ROUNDS", "100"))


def candidates(alone: str) -> dict[str, list[str]]:
    """The command lines compared; a peer that is not installed is left out and said."""
    found = {
        "bare exec": ["/bin/true"],
    }
    alone_, beside = (["run", "--policy", policy, "--", "/bin/true"] for policy in (alone, "login-node"))
    found |= {"guard run": [GUARD, *alone_], "guard run, supervised": [GUARD, *beside]}
    found |= {"guard, the launcher": [LAUNCHER, *alone_], "guard, the launcher, supervised": [LAUNCHER, *beside]}
    binds = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for name, command in {
        "bwrap": ["bwrap", *binds, "--", "/bin/true"],
        "bwrap --unshare-all": ["bwrap", "--unshare-all", *binds, "--", "/bin/true"],
        "firejail": ["firejail", "--quiet", "--noprofile", "--caps.drop=all", "--seccomp", "--", "/bin/true"],
        "python3 -I -S": ["/usr/bin/python3", "-I", "-S", "-c", "pass"],
    }.items():
        if shutil.which(command[0]):
            found[name] = [shutil.which(command[0]) or "", *command[1:]]
        else:
            print(f"left out: {name} is not installed", file=sys.stderr)
    program = stage.codex()
    if program:
        found["codex sandbox"] = [program, "sandbox", "--", "/bin/true"]
    return found


def measure(commands: dict[str, list[str]], environment: dict[str, str]) -> dict[str, list[list[float]]]:
    """Milliseconds of each start, and of the processor in it, the candidates taking turns."""
    null = os.open("/dev/null", os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
    times: dict[str, list[list[float]]] = {name: [] for name in commands}
    for turn in range(ROUNDS + 3):
        for name, command in commands.items():
            began = time.perf_counter()
            child = os.posix_spawn(command[0], command, environment, file_actions=actions)
            _, status, used = os.wait4(child, 0)
            took = (time.perf_counter() - began) * 1000
            if status:
                raise SystemExit(f"{name}: ended with {status}")
            if turn >= 3:
                times[name].append([took, (used.ru_utime + used.ru_stime) * 1000])
    return times


def main() -> None:
    """Measure and print; the last line is JSON."""
    with stage.user() as (account, project):
        commands = stage.working(account, candidates(account.alone), project, own="guard")
        environment = account.environment()
        measured = stage.as_user(account, lambda: measure(commands, environment), project)
    assert isinstance(measured, dict)
    times = {name: [start[0] for start in starts] for name, starts in measured.items()}
    used = {name: statistics.median(start[1] for start in starts) for name, starts in measured.items()}
    bare = statistics.median(times["bare exec"])
    rows = [("start of true, ms", "median", "min", "x bare")]
    for name, taken in sorted(times.items(), key=lambda item: statistics.median(item[1])):
        middle = statistics.median(taken)
        rows.append((name, f"{middle:.2f}", f"{min(taken):.2f}", f"{middle / bare:.1f}"))
    print(stage.table(rows))
    print(json.dumps({name: round(statistics.median(taken), 3) for name, taken in times.items()}))
    alike = [name for name in ("guard run", "bwrap") if name in used]
    print("processor time, ms:", ", ".join(f"{name} {used[name]:.2f}" for name in alike))
    aims = {"guard run": max(12.0, 20 * bare), "guard run, supervised": 16.0}
    if "bwrap" in times:
        aims["guard run"] = min(aims["guard run"], statistics.median(times["bwrap"]))
    if "codex sandbox" in times:  # it judges addresses, too
        aims["guard run, supervised"] = min(aims["guard run, supervised"], statistics.median(times["codex sandbox"]))
    for name, allowed in aims.items():
        taken = statistics.median(times[name])
        print(f"{name}: {taken:.2f} ms, aim {allowed:.2f} ms: {'held' if taken <= allowed else 'NOT HELD'}")


if __name__ == "__main__":
    main()
