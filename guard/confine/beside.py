"""Starting a command with a supervisor beside it: loaded only where the policy asks for one."""

import posix as os

from guard.confine import default_signals, handlers, places, supervise
from guard.confine.handlers import advice
from guard.confine.launch import lower_limits
from guard.kernel import drop_capabilities, landlock, notify
from guard.redact import withhold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.confine.launch import Launch


def run(
    launch: "Launch",
    program: str,
    environment: "dict[bytes, bytes]",
    ruleset: "landlock.Ruleset",
    held: "places.Places",
) -> int:
    """Start the command with a supervisor beside it, and end as it ends.

    Args:
        launch: the start, everything decided.
        program: the file to execute.
        environment: the command's.
        ruleset: the tree's Landlock rules, not yet entered.
        held: its places.

    Returns:
        The command's exit code; where it died by a signal, this process does too.
    """
    plan = launch.plan
    variables = launch.variables()
    settings = dict(plan["supervisor"])
    settings["unix_allow"] = [
        path for pattern in settings["unix_allow"] for path in places.expand(pattern, variables)
    ]
    inherited = _inherited(launch)
    recorder = Recorder(launch)
    supervisor = handlers.Supervisor(
        settings, held.writable(), ruleset.duplicate(), recorder.record, held.denies
    )
    handlers.equip(supervisor)
    if launch.options.tell:
        recorder.stderr = os.dup(2)  # the supervisor gives its own stderr away

    def enter() -> int:
        lower_limits(plan["rlimits"])  # the tree's, not the supervisor's
        default_signals()
        ruleset.restrict(plan["restrict_flags"])
        drop_capabilities()
        return notify.load_listener(launch.own_ipc + plan["bpf_supervised"], plan["seccomp_flags"])

    return supervise.run(enter, lambda: launch.execute(program, environment), supervisor, inherited)


class Recorder:
    """Puts what the supervisor saw on record, and says it where the session asked to be told.

    Args:
        launch: the start, which has the spool.

    Attributes:
        stderr: where findings are said, -1 for nowhere.
    """

    def __init__(self, launch: "Launch") -> None:
        self._launch = launch
        self.stderr = -1

    def record(
        self, control: str, rule: str, verdict: str, severity: str, what: str, allow: str, pid: int, count: int
    ) -> None:
        """Write an event about a finding; called in the supervisor."""
        why = advice.why(rule)
        detail: dict[str, object] = {"object": withhold(what), "pid": pid, "count": count}
        for name, text in (("explain", why), ("allow", allow)):
            detail[name] = withhold(text) if "/" in text else text
        if self.stderr >= 0:
            advice.tell(self.stderr, f"{verdict}: {what}", why, allow, count)
        self._launch.record(rule, severity, verdict, f"{control}: {rule} {verdict}", detail, control)


def _inherited(launch: "Launch") -> "tuple[int, ...]":
    """Every open descriptor above 2 but those that outlive the start."""
    ours = {keeper.fileno() for keeper in (launch.spool, launch.tmp) if keeper}
    listed = {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2} - ours
    return tuple(fd for fd in listed if _is_open(fd))  # the list's own is among them, and its number free again


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def can_listen() -> bool:
    """Find out whether a listener can be had: below another supervisor it is EBUSY."""
    child = os.fork()
    if child == 0:
        try:
            # One instruction: allow everything.
            notify.load_listener(b"\x06\0\0\0\0\0\xff\x7f", 0)
            os._exit(0)
        finally:
            os._exit(1)
    return bool(os.waitpid(child, 0)[1] == 0)
