"""Starting a command with a supervisor beside it: loaded only where the policy asks for one."""

import _socket
import _thread
import gc
import posix as os
import sys

from guard.confine import covers, default_signals, handlers, supervise
from guard.kernel import drop_capabilities, notify, reason, syscall, unmarshal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from guard.confine import places, state
    from guard.confine.launch import Launch
    from guard.kernel import landlock

_PR_SET_NAME = 15
_FORMAT, _REGULAR = 0o170000, 0o100000
_MOST_UNTOLD = 64


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
    from guard.confine import state  # noqa: F401 - all that is loaded later where it lies in memory: what records
    from guard.confine.handlers import advice  # noqa: F401
    from guard.confine.launch import lower_limits

    plan = launch.plan
    inherited = _inherited(launch)
    recorder = Recorder(launch, launch.options.state)
    supervisor = handlers.Supervisor(
        _settings(launch), held.writable(), ruleset.duplicate(), recorder.record, held.denies
    )
    handlers.equip(supervisor)
    supervisor.keep(held.absent, held.links, held.steady())
    if launch.options.tell:
        recorder.tell_to(os.dup(2))  # the supervisor gives its own stderr away

    def enter() -> int:
        lower_limits(plan["rlimits"])  # the tree's, not the supervisor's
        default_signals()
        ruleset.restrict(plan["restrict_flags"])
        drop_capabilities()
        return notify.load_listener(launch.own_ipc + plan["bpf_supervised"], plan["seccomp_flags"])

    return supervise.run(enter, lambda: launch.execute(program, environment), supervisor, inherited)


def _settings(launch: "Launch") -> "dict[str, object]":
    """The plan's settings for a supervisor, variables filled in."""
    from guard.confine import places

    variables = launch.variables()
    settings = dict(launch.plan["supervisor"])
    settings["unix_allow"] = [path for pattern in settings["unix_allow"] for path in places.expand(pattern, variables)]
    return settings


def told(launch: "Launch", held: "places.Places") -> "dict[str, object]":
    """What a supervisor must know that guard-exec starts: `main` reads it, and only plain values are in it."""
    tmp = launch.tmp.path if launch.tmp else ""
    settings = _settings(launch)
    unix_allow = settings["unix_allow"]
    if tmp and isinstance(unix_allow, list) and any(tmp in path for path in unix_allow):
        raise ValueError("a socket in the session's own directory")
    return {
        "settings": settings,
        "writable": tuple(path for path in held.writable() if path != tmp),
        "trees": held.trees(),
        "absent": held.absent,
        "links": held.links,
        "steady": tuple(path for path in held.steady() if path != tmp),
        "state": launch.options.state,
        "harness": launch.harness,
        "user": launch.user,
        "job": launch.environment.get(b"SLURM_JOB_ID", b""),
        "plan": {key: launch.plan[key] for key in ("policy", "digest")},
        "tell": launch.options.tell,
    }


def main(in_memory: bool = False) -> None:
    """Be the supervisor of a command that guard-exec starts (guard/exec/wait.c, `keep`); does not return.

    Args:
        in_memory: whether all code is in memory already, as packaging/bundle arranges it.
    """
    gc.disable()  # `supervise` turns it on again
    syscall("prctl", _PR_SET_NAME, b"guard\0", 0, 0, 0)  # as a supervisor that the launcher starts is called
    code = 125
    try:
        code = _main(sys.argv[1:], in_memory)
    except OSError as error:
        os.write(2, f"guard: not started: the supervisor: {reason(error)}\n".encode())
    except Exception as error:  # noqa: BLE001 - the command sees its channel end, and is not started
        os.write(2, f"guard: not started: the supervisor: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


class _Session:
    """A session that guard-exec has started, for events.

    Args:
        know: what `told` said.
        words: session id, the private directory and the program's name; argc: how many words its command has.
    """

    def __init__(self, know: "dict[str, Any]", words: "list[str]", root: int, argc: int) -> None:
        self.id, self.tmp, exe = words
        self.uid, self.root = os.geteuid(), root
        self.command = [exe, *[""] * (argc - 1)]
        self.cwd = "/"  # withheld in events, whatever it is
        self.user, self.harness, self.plan, self.job = know["user"], know["harness"], know["plan"], know["job"]
        self._state = know["state"]
        self._spool: state.Spool | None = None
        self.fault = ""

    @property
    def spool(self) -> "state.Spool | None":
        """Where events are written; opened for the first of them."""
        if self._spool is None:
            from guard.confine import state

            try:
                self._spool = state.Spool(self._state, f"run:{self.id}")
                self._spool.seq = 1  # the start itself
            except OSError as error:
                self.fault = str(error)
        return self._spool


def _main(words: "list[str]", in_memory: bool) -> int:
    start, offset, length, waiter, channel, stderr, command, root, argc = map(int, words[:9])
    # guard-exec has found the file to be root's or ours, and whole.
    know: dict[str, Any] = unmarshal(os.pread(start, length, offset))  # type: ignore[assignment]
    os.close(start)
    session = _Session(know, words[9:], root, argc)
    recorder = Recorder(session, know["state"])
    trees = know["trees"]
    supervisor = handlers.Supervisor(
        know["settings"], (*know["writable"], session.tmp), -1, recorder.record,
        lambda real: any(covers(tree, real) for tree in trees),
    )  # fmt: skip
    handlers.equip(supervisor, in_memory)
    supervisor.keep(know["absent"], know["links"], know["steady"])
    for fd in (waiter, channel, stderr):
        os.set_inheritable(fd, False)
    if know["tell"]:
        recorder.tell_to(stderr)

    def ready() -> None:
        if not know["tell"]:
            os.close(stderr)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, 2)
        os.close(null)

    to_command, to_waiter = (_socket.socket(fileno=fd) for fd in (channel, waiter))
    return supervise.serve(supervisor, command, to_command, to_waiter, ready)


class Recorder:
    """Puts what the supervisor saw on record, and says it where the session asked to be told.

    Args:
        session: the start, which has the spool.
        where: the state directory, in which losses are counted.
    """

    def __init__(self, session: "Launch | _Session", where: str) -> None:
        self._session, self._where = session, where
        self._stderr, self._is_file = -1, False
        self._untold: list[tuple[str | int, ...]] = []

    def tell_to(self, stderr: int) -> None:
        """Say findings there as well."""
        self._stderr, self._is_file = stderr, os.fstat(stderr).st_mode & _FORMAT == _REGULAR

    def record(
        self, control: str, rule: str, verdict: str, severity: str, what: str, allow: str, pid: int, count: int
    ) -> None:
        """Write an event about a finding; called in the supervisor."""
        from guard.confine import state
        from guard.confine.handlers import advice
        from guard.redact import withhold

        why = advice.why(rule)
        # Tells one object from another within this session and no more: hash() has a secret of this process's own.
        key = f"{hash(what) & 0xFFFF_FFFF_FFFF_FFFF:016x}"
        detail: dict[str, object] = {"object": withhold(what), "object_key": key, "pid": pid, "count": count}
        for name, text in (("explain", why), ("allow", allow)):
            detail[name] = withhold(text) if "/" in text else text
        if self._stderr >= 0:
            self._tell(f"{verdict}: {what}", why, allow, count)
        message = f"{control}: {rule} {verdict}"
        if not state.record(self._session, rule, severity, verdict, message, detail, control):
            state.count_lost(self._where)  # the next start that can be recorded tells of it


    def _tell(self, *finding: "str | int") -> None:
        """Say a finding; where that is written to a file, by a thread, since a file system may hold it up."""
        from guard.confine.handlers import advice

        if not self._is_file:
            advice.tell(self._stderr, *finding)  # type: ignore[arg-type]
            return
        self._untold.append(finding)
        if len(self._untold) == 1:
            _thread.start_new_thread(self._tell_all, ())
        elif len(self._untold) > _MOST_UNTOLD:
            self._untold.pop()

    def _tell_all(self) -> None:
        from guard.confine.handlers import advice

        while self._untold:
            advice.tell(self._stderr, *self._untold[0])  # type: ignore[arg-type]
            del self._untold[0]  # not before: the next one is this thread's too


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
