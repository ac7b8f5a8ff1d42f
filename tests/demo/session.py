"""The demo itself, run as an ordinary user whose home is thrown away: work, dangers, the table.

demo.py starts it with HOME, GUARD (the program), GUARD_STATE_DIR and GUARD_CONFIG_DIR.
"""

import fcntl
import json
import os
import pty
import shutil
import subprocess
import sys
import termios
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import stage
from dangers import ACTS, Act

HOME = Path(os.environ["HOME"])
STATE = Path(os.environ["GUARD_STATE_DIR"])
GUARD = [os.environ["GUARD"], "run", "--policy"]
PYTHON = "/usr/bin/python3"
FLOOR = Path("/etc/guard/site.toml")
CONTROLS = (
    "files", "metadata", "world-writable", "setuid", "bind", "connect", "unix-sockets", "pipe-to-shell",
    "processes", "kernel-surface", "limits",
)  # fmt: skip


def colour(text: str, number: int) -> str:
    """Paint a text, on a terminal."""
    return f"\033[{number}m{text}\033[0m" if sys.stdout.isatty() else text


GREEN, RED, GREY = 32, 31, 90


# --- work --------------------------------------------------------------------------------------------------


def work() -> list[str]:
    """Do a session's ordinary work under guard; returns what went wrong."""
    stage.lay_out(HOME, clone=False)
    before = stage.snapshot(HOME)
    program = HOME / "work/work.py"
    shutil.copy(stage.HERE / "work.py", program)
    print("An ordinary session under `guard run --policy login-node`\n")
    wrong, skipped = [], []
    command = [*GUARD, "login-node", "--", PYTHON, "-B", str(program)]
    with subprocess.Popen(
        command, cwd=HOME / "work", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout
        for line in run.stdout:
            step = json.loads(line)
            how = colour(f"{step['how']:<8}", {"done": GREEN, "failed": RED}.get(step["how"], GREY))
            print(f"  {step['name']:<52} {how} {step['seconds']:6.1f} s", flush=True)
            if step["how"] == "failed":
                wrong.append(f"{step['name']} failed under guard:\n{step['text']}")
            elif step["how"] == "skipped":
                skipped.append(step["text"])
    if run.returncode:
        wrong.append(f"the session ended with {run.returncode}")
    if skipped:
        print(f"\n  skipped: {'; '.join(skipped)}")
    return wrong + changes(before)


def changes(before: dict[str, str]) -> list[str]:
    """What is different in the home, outside the project."""
    after = stage.snapshot(HOME)
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return [f"changed outside the project: {', '.join(names)}"] if names else []


# --- dangers -----------------------------------------------------------------------------------------------


def attempt(prefix: list[str], control: str = "") -> tuple[dict[str, str], bool, list[str]]:
    """Try the acts in a fresh home; returns result by act, whether there was a mask, and what changed outside."""
    stage.lay_out(HOME, clone=True)
    project = HOME / stage.PROJECT
    shutil.copy(stage.HERE / "dangers.py", project / "dangers.py")
    before = stage.snapshot(HOME)
    with stage.outside(HOME) as place, (HOME / ".ssh/id_ed25519").open() as key:
        left_open = fcntl.fcntl(key, fcntl.F_DUPFD, 100)
        master, terminal = pty.openpty()
        told = json.dumps({**place, "descriptor": left_open, "control": control})
        done = subprocess.run(
            [*prefix, PYTHON, "-B", "dangers.py", told], cwd=project, stdin=terminal, capture_output=True,
            text=True, check=False, pass_fds=[left_open], start_new_session=True, timeout=120,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        for descriptor in (left_open, master, terminal):
            os.close(descriptor)
    if done.returncode or not done.stdout:
        raise SystemExit(f"demo: {' '.join(prefix) or 'python3'} ended with {done.returncode}:\n{done.stderr}")
    found = json.loads(done.stdout)
    return found["acts"], found["masked"], changes(before)


def alone(control: str) -> list[str]:
    """`guard run` under login-node with every control off but one: what it stops, it stops by itself."""
    path = STATE / f"{control}-alone.toml"
    off = "".join(f'{name.replace("-", "_")} = "off"\n' for name in CONTROLS if name != control)
    path.write_text(
        f'schema = 1\nname = "{control}-alone"\nextends = "login-node"\n'
        f'reason = "to see what one control stops by itself"\n[controls]\n{off}',
        encoding="utf-8",
    )
    return [*GUARD, str(path), "--"]


def row(act: Act, bare: str, inside: str, by_itself: str, mask: bool) -> tuple[str, str]:
    """One line of the table, and what is wrong with it."""
    wrong, by, error, how = "", act.control, inside, colour("stopped", GREEN)
    if bare != "done":
        # Nothing is proved where the kernel refuses it anyway; what breaks by itself is a fault of the demo.
        how, by, error = colour("-      ", GREY), "this machine", bare
        wrong = f"{act.name}: {bare}" if bare.startswith("broken") else ""
        bare = "no"
    elif act.mask and not mask and inside == "done":
        how, by, error = colour("open   ", GREY), "needs a mask", ""
    elif inside == "done" or inside.startswith("broken"):
        how, error = colour("DONE   ", RED), ""
        wrong = f"{act.name}: it should be stopped under guard: {inside}"
    elif by_itself == "done":
        wrong = f"{act.name}: {act.control} is said to stop it, but alone does not"
    return f"{act.name:<35} {bare:<4} {how} {by:<14} {error}".rstrip(), wrong


def dangers() -> tuple[list[str], str]:
    """Try everything dangerous, without guard and with it; returns what is wrong, and the sum of it."""
    bare, _, _ = attempt([])
    inside, mask, wrong = attempt([*GUARD, "login-node", "--"])
    wrong = [f"under guard: {text}" for text in wrong]
    by_itself: dict[str, str] = {}
    if not FLOOR.exists():  # a site's floor lets nobody take a control away
        for control in dict.fromkeys(act.control for act in ACTS):
            by_itself.update(attempt(alone(control), control)[0])
    print("\nWhat it must not do, in the same home, bare (without guard) and under guard\n")
    print(f"{'act':<35} {'bare':<4} {'guard':<7} {'stopped by':<14} error")
    print("-" * 78)
    for act in ACTS:
        line, fault = row(act, bare[act.name], inside[act.name], by_itself.get(act.name, ""), mask)
        print(line)
        if fault:
            wrong.append(fault)
    tried = [act for act in ACTS if bare[act.name] == "done"]
    stopped = [act for act in tried if inside[act.name] != "done"]
    if len(stopped) < 20:
        wrong.append(f"only {len(stopped)} acts could be shown to be stopped; at least 20 are promised")
    open_here = [act for act in tried if act.mask and inside[act.name] == "done"]
    if open_here and not mask:
        print("\nopen: only a mount namespace stops it; there is none here (see `guard doctor`)")
    return wrong, f"{len(tried)} dangerous acts done without guard, {len(stopped)} of them stopped under guard."


def main() -> int:
    """Work, then dangers; 0 if all is as promised."""
    since = time.monotonic()
    wrong = work()
    done = "All work done under guard" if not wrong else "Work FAILED under guard"
    more, summed = dangers()
    wrong += more
    print(f"\n{summed}\n{done}. {time.monotonic() - since:.0f} s.")
    for text in wrong:
        print(colour(f"NOT AS PROMISED: {text}", RED))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
