"""`guard doctor`: each control's status on this host, found out by trying, and what to do about it.

Nothing is believed: the acts of `guard.confine.acts` are tried under a real `guard run` in a throw-away
project, and compared with what the plan's statuses claim. A difference is a fault of guard and ends with 1.
"""

from __future__ import annotations

import os
import pwd
import re
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

import typer

from guard import confine
from guard.cli import Places
from guard.cli.doctor_ways import UNKNOWN, Ways, look
from guard.confine import acts, places, prove
from guard.confine.launch import can_listen
from guard.confine.prove import Claim, Verdict
from guard.errors import EXIT_FOUND, GuardError, UsageError
from guard.kernel.mounts import file_system
from guard.kernel.probe import Kernel, probe
from guard.policy import supervised
from guard.policy.assign import Config, Request, resolve
from guard.policy.host import discover
from guard.policy.keys import CONTROLS
from guard.policy.model import Effective
from guard.policy.status import statuses
from guard.redact.health import NOTHING, Health
from guard.redact.health import examine as redactor_health

ON_A_FILE_SYSTEM = ("files", "metadata", "world-writable", "setuid")
"""Controls whose acts depend on the file system: what `--path` proves."""

# A policy for `--path`: the one in force may let the home be read, and the place may lie in it.
_FOR_A_PATH = """\
schema = 1
name = "doctor-path"
extends = "base"
reason = "guard doctor --path tries the file controls in a throw-away directory"
[files]
write = ["{project}"]
protect = ["{project}/.git/hooks"]
"""
_LIMITS = {
    "core": resource.RLIMIT_CORE,
    "processes": resource.RLIMIT_NPROC,
    "open_files": resource.RLIMIT_NOFILE,
    "memory": resource.RLIMIT_AS,
    "file_size": resource.RLIMIT_FSIZE,
    "cpu_seconds": resource.RLIMIT_CPU,
}


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the command tells.

    Args:
        kernel: what was probed.
        effective: the policy tried.
        verdicts: one a control, in order.
        path: of `--path`, "" for none.
        file_system: of that path.
        refused: what `guard run` said when it did not start under the policy as it is.
        redactor: the site's key and the redactor's service, as they are here.
        ways: how agents are started here, and which run without guard.
    """

    kernel: Kernel
    effective: Effective
    verdicts: tuple[Verdict, ...]
    path: str = ""
    file_system: str = ""
    refused: str = ""
    redactor: Health = NOTHING
    ways: Ways = UNKNOWN

    @property
    def exit_code(self) -> int:
        """0: all is as documented; 1: something is absent, or not as claimed."""
        bad = any(each.mismatch or each.status == "absent" for each in self.verdicts)
        return EXIT_FOUND if bad or self.refused else 0


def examine(path: str, policy: str, environment: Mapping[str, str], where: Places) -> Report:
    """Probe the kernel, try every control and judge.

    Args:
        path: a directory on the file system to prove the file controls on, "" for all controls.
        policy: NAME or PATH, "" for the one that this user is assigned.
        environment: of the command, for the home.
        where: state and configuration lie.

    Raises:
        GuardError: the policy does not load, the path cannot be used, or nothing could be tried.
    """
    if path and not os.path.isdir(path):
        raise UsageError(f"--path {path}: it is not a directory", "name one that you may write")
    kernel = probe()
    with ExitStack() as stack:
        if path:
            policy = _written(stack, _FOR_A_PATH)
        effective = _effective(policy, environment, where)
        host = discover(kernel)
        mask = host.mask and effective.word("files.mask") != "never"
        beside = bool(host.abi) and supervised.wanted(effective.values) and can_listen()
        controls = ON_A_FILE_SYSTEM if path else CONTROLS
        claims = {
            control: Claim(state, tuple(missing))
            for control, (state, missing) in statuses(effective, host, mask, beside).items()
            if control in controls
        }
        bare, inside, refused = _try(stack, effective, policy, path, tuple(controls), environment, where)
    verdicts = tuple(prove.judge(control, claims[control], bare, inside) for control in controls)
    redactor = redactor_health(where.config)
    ways = look(environment, where)
    return Report(kernel, effective, verdicts, path, _file_system(path) if path else "", refused, redactor, ways)


def _effective(policy: str, environment: Mapping[str, str], where: Places) -> Effective:
    uid = os.geteuid()
    home = _home(environment)
    request = Request(
        user=_user(uid),
        uid=uid,
        groups=_groups(),
        host=os.uname().nodename,
        policy=os.path.abspath(policy) if "/" in policy else policy or None,
        use_project_layer=False,
        now=time.time(),
    )
    config = Config(where.config, user_config_dir=f"{home}/.config/guard" if home else None)
    return resolve(request, config)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # an account without a name, as in many containers
        return ""


def _groups() -> tuple[str, ...]:
    import grp

    names = []
    for gid in sorted({os.getegid(), *os.getgroups()}):
        try:
            names.append(grp.getgrgid(gid).gr_name)
        except KeyError:  # a group without a name can be assigned nothing
            continue
    return tuple(names)


def _home(environment: Mapping[str, str]) -> str:
    block = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    return confine.homes(block, os.geteuid())[0]


def _written(stack: ExitStack, text: str) -> str:
    """Write a policy where `guard run` reads it by PATH, until the end of the examination."""
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="guard-doctor-"))
    path = os.path.join(directory, "policy.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def _file_system(path: str) -> str:
    try:
        return file_system(path) or "unknown"
    except OSError:  # no /proc: the type is a courtesy to the reader
        return "unknown"


# --- trying --------------------------------------------------------------------------------------------


def _try(
    stack: ExitStack,
    effective: Effective,
    policy: str,
    path: str,
    controls: Sequence[str],
    environment: Mapping[str, str],
    where: Places,
) -> tuple[dict[str, int], dict[str, int], str]:
    """Try without guard and with it; if it does not start, once more without the controls that are absent."""
    variables = _variables(environment)
    project_base, outside_base, readable = _bases(effective, path, variables)

    def round_of(prefix: Sequence[str]) -> dict[str, int]:
        with prove.laid_out(project_base, outside_base, controls) as stage, ExitStack() as sockets:
            _complete(stage, effective, variables, sockets)
            if prefix:
                prefix = [*prefix, "--project", str(stage["project"]), "--"]
            return prove.attempt(stage, prefix)

    try:
        bare = round_of(())
    except OSError as error:
        raise GuardError(
            f"{error.filename or path}: {error.strerror}", "name a directory that you may write"
        ) from error
    guard = [*_start(), "run", "--session", "doctor", "--no-project-policy", "--config", where.config]
    if where.state:
        guard += ["--state", where.state]
    named = ["--policy", policy] if policy else []
    refused = ""
    try:
        inside = round_of([*guard, *named])
    except prove.NotStartedError as error:
        refused = error.what
        relaxed = _written(stack, _relaxed(effective))
        try:
            inside = round_of([*guard, "--policy", relaxed])
        except prove.NotStartedError:
            # Nothing starts at all (a library is missing, say): what was claimed stays untried.
            inside = dict.fromkeys(bare, acts.UNTRIED)
    dropped = {act.name for act in acts_unpromised(effective)}
    if readable:
        dropped |= {"read a file outside", "list a directory outside", "execute a file outside",
                    "read through a symbolic link"}  # fmt: skip
    return bare, {name: code for name, code in inside.items() if name not in dropped}, refused


def acts_unpromised(effective: Effective) -> list[acts.Act]:
    """Return the acts that the policy does not promise to refuse (`kernel.keyctl = "allow"`)."""
    from guard.confine.acts.table import ACTS

    found = []
    for act in ACTS:
        key, _, word = act.unless.partition("=")
        if key and effective.word(key) == word:
            found.append(act)
    return found


def _start() -> list[str]:
    """Build the command line that starts guard again as it was started."""
    program = getattr(sys.modules["__main__"], "__file__", "") or ""
    if program and os.path.basename(program) != "__main__.py":
        return [sys.executable, "-I", "-S", os.path.abspath(program)]
    return [sys.executable, "-m", "guard"]


def _relaxed(effective: Effective) -> str:
    """Write the same policy with every fault a warning, so that the controls that do work can be tried."""
    return re.sub(r'(?m)^(\[on_fault\]\n)((?:[\w]+ = "\w+"\n)*)', _warn, effective.text)


def _warn(match: re.Match[str]) -> str:
    return match[1] + re.sub(r'"\w+"', '"warn"', match[2])


def _variables(environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    uid = os.geteuid()
    return places.session_variables(_home(environment), (), "", _user(uid), uid)


def _bases(effective: Effective, path: str, variables: dict[str, tuple[str, ...]]) -> tuple[str, str, bool]:
    """Choose where the project and the place outside are laid out, and whether the latter may be read."""
    granted = [
        os.path.realpath(place)
        for key in ("files.read", "files.write")
        for pattern in effective.words(key)
        for place in places.expand(pattern, variables)
    ]
    roots = [
        os.path.realpath(place)
        for root in effective.site.project_roots
        for place in places.expand(root, variables)
    ]
    candidates = [path] if path else [tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"]  # noqa: S108 - tried
    usable = [os.path.realpath(each) for each in candidates if os.access(each, os.W_OK | os.X_OK)]
    if not usable:
        raise GuardError(f"{candidates[0]}: no right to write there", "name a directory that you may write")
    hidden = [each for each in usable if not any(places.is_below(each, top) for top in granted)]
    outside = (hidden or usable)[0]
    projects = (
        [each for each in roots if os.access(each, os.W_OK | os.X_OK)] if roots and not path else [outside]
    )
    if not projects:
        raise GuardError(f"none of the site's project_roots can be written: {', '.join(roots)}", "make one")
    return projects[0], outside, not hidden


def _complete(
    stage: acts.Stage, effective: Effective, variables: dict[str, tuple[str, ...]], sockets: ExitStack
) -> None:
    """Add to the stage what only the policy knows."""
    rules = effective.connect()
    ranges = [pair for rule in rules or () for pair in rule.ports]
    if rules is not None:
        for _ in range(64):  # a free port that the policy does not grant; 64 tries find one or there is none
            listener = sockets.enter_context(socket.socket())
            try:
                listener.bind(("127.0.0.1", 0))
            except OSError:  # a network namespace without loopback: the acts stay untried
                break
            listener.listen(8)
            port = listener.getsockname()[1]
            if not any(low <= port <= high for low, high in ranges):
                stage["port_denied"] = port
                break
        stage["port_granted"] = ranges[0][0] if ranges else 0
    stage["limits"] = [
        [number, value]
        for name, number in _LIMITS.items()
        if (value := effective.number(f"limits.{name}")) is not None
    ]
    if "{project}/.git/hooks" in effective.words("files.protect"):
        stage["protected"] = os.path.join(str(stage["project"]), ".git/hooks")
    denied = (
        place for pattern in effective.words("files.deny") for place in places.expand(pattern, variables)
    )
    stage["denied"] = next((os.path.realpath(each) for each in denied if _has_content(each)), "")


def _has_content(place: str) -> bool:
    """Whether there is something to be seen in a place, without looking at what it is."""
    try:
        if os.path.isdir(place):
            return bool(os.listdir(place))
        return os.path.isfile(place) and os.path.getsize(place) > 0 and os.access(place, os.R_OK)
    except OSError:  # not ours to read: nothing that guard could be the one to refuse
        return False


# --- the command ---------------------------------------------------------------------------------------


app = typer.Typer()


@app.command()
def doctor(
    context: typer.Context,
    path: Annotated[
        str, typer.Option(metavar="DIR", help="Prove the file controls on this directory's file system.")
    ] = "",
    policy: Annotated[
        str, typer.Option(metavar="NAME|PATH", help="Instead of the one you are assigned.")
    ] = "",
    monitor: Annotated[bool, typer.Option("--monitor", help="What the monitor can see and refuse here; root.")] = False,
    btf: Annotated[
        str, typer.Option(metavar="FILE", help="What the monitor would load on the kernel that has these types.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON with stable keys, for programs.")] = False,
) -> int:
    """Tell each control's status on this host, found out by trying, and what to do about it.

    Exits with 0 when every control asked is enforced, or partial as documented; 1 when one is absent or is
    not what guard claims; 3 when it could not be tried.
    """
    from guard.cli import doctor_monitor, doctor_table

    if (monitor or btf) and (path or policy or (monitor and btf)):
        raise UsageError("doctor: --monitor, --btf and the controls are three questions", "ask one at a time")
    if monitor or btf:
        text, code = doctor_monitor.elsewhere(btf, as_json) if btf else doctor_monitor.here(as_json)
        sys.stdout.write(text)
        return code
    report = examine(path, policy, os.environ, context.obj)
    sys.stdout.write(doctor_table.as_json(report) if as_json else doctor_table.as_text(report))
    return report.exit_code
