"""Prove a control on this host: try the acts of `guard.confine.acts` under `guard run`, and judge.

Three witnesses for every control: the forbidden act without guard, which must work, or the refusal proves
nothing; the same act inside, which must be refused; an allowed act inside, which must work. What comes out
is compared with what the plan claims (`guard.policy.status`), and a difference is a fault to be told loudly.

Everything is laid out in a directory of its own and taken away again.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from guard.confine import acts
from guard.confine.acts.table import ACTS
from guard.errors import GuardError

_PATIENCE = 180  # seconds for one round of acts, each of which ends within 10


class NotStartedError(GuardError):
    """`guard run` did not start the program that tries; `what` is what it said."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What guard says of a control before it is tried: `statuses()` of guard.policy.status.

    Args:
        state: `enforced`, `partial`, `absent`, `observe` or `off`.
        missing: what a partial or absent control lacks.
    """

    state: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tried:
    """One act.

    Args:
        act: its name.
        allowed: a positive control.
        outcome: `refused`, `done`, or `untried` (it fails without guard too, or there is nothing to try).
        bare, inside: the results without and with guard (`done`, an errno's name, `killed`).
        excused: it was done, and the claim names the gap.
    """

    act: str
    allowed: bool
    outcome: str
    bare: str
    inside: str
    excused: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a control came to.

    Args:
        control: its name.
        claim: what was claimed.
        found: `enforced`, `partial`, `absent`, or `untried`.
        tried: every act.
        mismatch: how claim and finding differ, "" if they agree.
    """

    control: str
    claim: Claim
    found: str
    tried: tuple[Tried, ...]
    mismatch: str = ""

    @property
    def status(self) -> str:
        """What to tell people: the claim, unless trying showed less."""
        return self.found if self.mismatch and self.found != "untried" else self.claim.state

    def count(self, allowed: bool, outcome: str) -> int:
        """How many acts came to an outcome."""
        return sum(each.allowed == allowed and each.outcome == outcome for each in self.tried)


def judge(control: str, claim: Claim, bare: Mapping[str, int], inside: Mapping[str, int]) -> Verdict:
    """Compare what was found with what was claimed.

    Args:
        control: whose acts to look at.
        claim: of this control.
        bare: act → result without guard.
        inside: act → result with it.
    """
    tried = tuple(
        _tried(act, claim, bare[act.name], inside[act.name])
        for act in ACTS
        if act.control == control and act.name in inside
    )
    refused = [each for each in tried if not each.allowed and each.outcome == "refused"]
    done = [each for each in tried if not each.allowed and each.outcome == "done"]
    found = "untried" if not refused and not done else "absent" if not refused else "partial" if done else "enforced"
    return Verdict(control, claim, found, tried, _mismatch(claim, found, tried))


def _tried(act: acts.Act, claim: Claim, bare: int, inside: int) -> Tried:
    if acts.UNTRIED in (bare, inside) or (bare != 0 and (act.allowed or bare == inside)):
        outcome = "untried"
    else:
        outcome = "done" if inside == 0 else "refused"
    excused = bool(act.gap) and any(re.search(act.gap, text, re.IGNORECASE) for text in claim.missing)
    return Tried(act.name, act.allowed, outcome, acts.name_of(bare), acts.name_of(inside), excused)


def _mismatch(claim: Claim, found: str, tried: Sequence[Tried]) -> str:
    told = []
    fault = acts.name_of(acts.CRASHED)
    told.append(("the trial itself failed", [each.act for each in tried if fault in (each.bare, each.inside)]))
    if claim.state not in ("off", "observe"):
        wrong = [each for each in tried if not each.excused]
        broken = [each.act for each in wrong if each.allowed and each.outcome == "refused"]
        told.append(("allowed but refused", broken))
        done = [each.act for each in wrong if not each.allowed and each.outcome == "done"]
        refused = [each.act for each in tried if not each.allowed and each.outcome == "refused"]
        if claim.state == "absent":
            # Other controls' filters refuse some of it as well; that is no promise kept.
            told.append(("claimed absent, yet refused", refused if found == "enforced" else []))
        elif found == "absent" and (done or "untried" not in {each.outcome for each in tried}):
            # Inside another guard the rest is refused without ours: then only the named gaps were tried.
            every = [each.act for each in tried if not each.allowed and each.outcome == "done"]
            told.append((f"claimed {claim.state}, yet nothing is refused", every))
        else:
            told.append((f"claimed {claim.state}, yet not refused", done))
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in told if names)


# --- laying out and trying -----------------------------------------------------------------------------


@contextmanager
def laid_out(project_base: str, outside_base: str, controls: Sequence[str]) -> Iterator[acts.Stage]:
    """Lay out what the acts need, and take it away afterwards.

    Args:
        project_base: the directory below which the project is made.
        outside_base: the directory below which the place outside is made; not granted by the policy.
        controls: whose acts will be tried.

    Yields:
        The stage, without what only the policy knows (ports, limits, denied places).

    Raises:
        OSError: something cannot be made there.
    """
    with ExitStack() as stack:
        project, outside = (
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="guard-doctor-", dir=base, ignore_cleanup_errors=True)
            )
            for base in (project_base, outside_base)
        )
        for place in (project, outside):
            _fill(place)
        os.symlink(os.path.join(outside, "file"), os.path.join(project, "link"))
        os.makedirs(os.path.join(project, ".git", "hooks"))
        _copy_acts(os.path.join(project, ".acts"))
        # A socket's address holds 108 bytes: it is made and reached from within its directory.
        sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="guard-doctor-", ignore_cleanup_errors=True))
        by_path = stack.enter_context(socket.socket(socket.AF_UNIX))
        _bind_within(sockets, by_path)
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        name = f"guard-doctor-{os.getpid()}-{os.path.basename(sockets)}"
        abstract.bind(b"\0" + name.encode())
        for listener in (by_path, abstract):
            listener.listen(8)
        victim = stack.enter_context(_victim())
        segment = stack.enter_context(_segment())
        soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
        limit = b"".join((part % (1 << 64)).to_bytes(8, sys.byteorder) for part in (soft, hard))
        yield {
            "controls": list(controls),
            "project": project,
            "outside": outside,
            "sockets": sockets,
            "abstract": name,
            "victim": victim.pid,
            "segment": segment,
            "victim_limit": limit.hex(),
        }


def _fill(place: str) -> None:
    for name in ("file", "plain", "spare", "movable", "in", "out"):
        with open(os.path.join(place, name), "w", encoding="ascii") as file:
            file.write("laid out by guard doctor\n")
        os.chmod(file.name, 0o600)
    for name in ("one", "two", "sparedir"):
        os.mkdir(os.path.join(place, name))
    for name in ("a", "b"):
        shutil.copy(os.path.join(place, "file"), os.path.join(place, "one", name))
    tool = os.path.join(place, "tool")
    shutil.copy(shutil.which("true") or "/bin/true", tool)
    os.chmod(tool, 0o700)


def _copy_acts(target: str) -> None:
    """Copy the acts to where a confined interpreter may read them, as a directory that Python can run."""
    package = os.path.join(target, "acts")
    os.makedirs(package)
    source = os.path.dirname(acts.__file__)
    for name in os.listdir(source):
        if name.endswith(".py"):
            shutil.copyfile(os.path.join(source, name), os.path.join(package, name))
    with open(os.path.join(target, "__main__.py"), "w", encoding="ascii") as file:
        file.write("import sys\nfrom acts.table import main\nmain(sys.argv[1])\n")


def _bind_within(directory: str, listener: socket.socket) -> None:
    before = os.open(".", os.O_PATH | os.O_CLOEXEC)
    try:
        os.chdir(directory)
        listener.bind("socket")
    finally:
        os.fchdir(before)
        os.close(before)


@contextmanager
def _segment() -> Iterator[int]:
    """Make System V shared memory outside, and yield its key; 0 where there is none to be had."""
    key = int.from_bytes(os.urandom(3), "big") | 1 << 24
    try:
        number = acts.call("shmget", key, 4096, 0o3600)  # IPC_CREAT | IPC_EXCL
    except (OSError, acts.Untried):
        yield 0
        return
    try:
        yield key
    finally:
        acts.call("shmctl", number, 0, None)  # IPC_RMID


@contextmanager
def _victim() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process for the acts on other processes; it waits on a pipe and ends with it."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:  # noqa: S607
        try:
            yield process
        finally:
            process.kill()


def interpreter() -> str:
    """Return who runs the acts: not the virtual environment's link, which may lie out of reach."""
    return os.path.realpath(sys.executable)


def attempt(stage: acts.Stage, prefix: Sequence[str]) -> dict[str, int]:
    """Try every act of the stage's controls in a fresh process.

    Args:
        stage: what was laid out.
        prefix: the command line that the program is appended to; none: without guard.

    Returns:
        Act → result.

    Raises:
        NotStartedError: the program did not run.
    """
    program = os.path.join(str(stage["project"]), ".acts")
    command = [*prefix, interpreter(), "-I", "-S", "-B", program, json.dumps(stage)]
    try:
        done = subprocess.run(  # noqa: S603 - guard itself and the interpreter that runs it
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotStartedError(f"the acts could not be tried: {error}", "report this") from error
    if done.returncode != 0:
        raise NotStartedError(_why(done.stderr) or f"the acts ended with {done.returncode}")
    results = json.loads(done.stdout)
    return {str(name): int(code) for name, code in results.items()}


def _why(told: str) -> str:
    """Pick the sentence that says why nothing was started out of the warnings before it."""
    lines = told.strip().splitlines()
    for at, line in enumerate(lines):
        _, found, reason = line.partition("not started: ")
        if found:
            return "\n".join([reason, *lines[at + 1 :]])
    return told.strip()
