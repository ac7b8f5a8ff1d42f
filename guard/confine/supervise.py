"""Keeping a supervisor beside a tree: who is whose parent, and what happens when one of them ends.

Three processes come out of one start:

    W  guard itself, as the shell knows it: waits, passes signals on, and ends as the command does
    S  the supervisor, W's child: answers the tree's calls until no process of it is left, by threads
       of its own (guard.confine.turns), so that what holds up one caller holds up no other
    A  the command, S's child: confined, then executed

S is an ancestor of the whole tree (a subreaper), as Yama's ptrace_scope = 1 asks of who reads another's memory,
and outlives A for daemons that A leaves behind. When S is killed, the kernel answers ENOSYS to every call it
would have judged: nothing that was refused gets through. A dies with it (PR_SET_PDEATHSIG), and W ends what is
left and says so. When W is killed, S kills A, as a kill of the command itself would have.

S is in W's session and in a process group of its own: what is typed at the terminal does not reach it, and a
process group that A makes for itself is not an orphaned one (its parent is in the same session and another
group), so that the terminal can stop it. S holds none of the command's descriptors: a reader of the command's
output, or a writer to its input, sees the end when the command's own are closed.

S loads everything before A starts: a new installation under its feet changes nothing.
"""

import _signal  # type: ignore[import-not-found] # `signal` would load `enum`
import _socket
import gc
import posix as os
import select
import time

from guard import kernel
from guard.confine import turns
from guard.kernel import notify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from guard.confine.keep import Keeper

    class Supervisor(Protocol):
        """Who answers: `guard.confine.handlers.base`, or the watcher of `guard learn`."""

        keeper: "Keeper | None"
        ruleset: int

        def begin(self, command: int) -> None:
            """Take note that the tree is about to start."""
        def settle(self, beside: turns.Turns) -> None:
            """The session has started, and nothing waits: see to what takes longer."""
        def answer(self, call: notify.Call) -> None:
            """Answer one call; never raises."""
        def command_ended(self, status: int) -> None:
            """Take note of the command's end."""
        def end(self) -> None:
            """Take note that nobody is left."""


PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# Sent by the kernel these come from the terminal, and the command gets its own; by a process, they are for us.
_FROM_TERMINAL = (
    _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTSTP, _signal.SIGTTIN, _signal.SIGTTOU, _signal.SIGHUP,
    _signal.SIGWINCH,
)  # fmt: skip
_SI_USER, _SI_QUEUE, _SI_TKILL = 0, -1, -6
_SETTLING = 20  # milliseconds without anything to do, after which a start is over
_SETTLED = 0.1  # seconds in which S has long told a stop of the command's
_LOST = b"guard: the supervisor is gone: this session could start nothing more and was ended\n"


def run(
    confine: "Callable[[], int]", execute: "Callable[[], int]", supervisor: "Supervisor", inherited: "tuple[int, ...]"
) -> int:
    """Start the command under a supervisor, and end as it ends.

    Args:
        confine: enters the sandbox for good and returns the listener; called in A.
        execute: becomes the command; returns an exit code where it could not. Called in A.
        supervisor: answers the calls; used in S.
        inherited: descriptors that only the command is to keep, beside 0, 1 and 2.

    Returns:
        The command's exit code; where it died by a signal, this process does too.
    """
    return _end_as(stay(confine, execute, supervisor, inherited, ends=True))


def stay(
    confine: "Callable[[], int]",
    execute: "Callable[[], int]",
    supervisor: "Supervisor",
    inherited: "tuple[int, ...]" = (),
    ends: bool = False,
) -> int:
    """As `run`, but return the command's wait status whatever it ended by.

    Args:
        confine, execute, supervisor, inherited: as of `run`.
        ends: this process does nothing more afterwards, and needs no input and output.
    """
    # Ignored, it would take the ends of children away. Not set later: that discards one which has come already.
    ignored = _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL) is _signal.SIG_IGN
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1)
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
    child = os.fork()
    if child == 0:
        code = 125
        try:
            ours.close()
            code = _supervise(confine, _Start(execute, mask, ignored), supervisor, inherited, theirs)
        except OSError as error:
            text = f"its supervisor could not begin: {error.strerror} (is a limit on processes reached?)"
            os.write(2, f"guard: not started: {text}\n".encode())
        finally:
            os._exit(code)
    theirs.close()
    if ends:
        _let_go(inherited, 2)  # stderr is for the one thing we may have to say
    try:
        return _wait(child, ours)
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def _let_go(inherited: "tuple[int, ...]", standard: int) -> None:
    """Close what is the command's alone: its own descriptors, and the first of the standard ones."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in range(standard):
        os.dup2(null, fd)
    for fd in (null, *inherited):
        os.close(fd)


# W ------------------------------------------------------------------------------------------------------


def _wait(supervisor: int, channel: "_socket.socket") -> int:
    """Wait for the command's end; returns its wait status.

    S sends SIGCHLD when it has said something, so that one call waits for everything.
    """
    channel.setblocking(False)
    command, handle = 0, -1
    held: list[int] = []
    resume_at = 0.0  # when to pass on a SIGCONT, should the command still be stopped then
    watched = _signal.valid_signals()
    while True:
        if resume_at:
            told = _signal.sigtimedwait(watched, max(0.0, resume_at - time.monotonic()))
            if told is None:
                resume_at = 0.0
                if _is_stopped(command):
                    _pass_on(handle, _signal.SIGCONT)
                continue
        else:
            told = _signal.sigwaitinfo(watched)
        number = told.si_signo
        if number == _signal.SIGCHLD:
            gone = _ended(supervisor)
            for word, value, fd in _news(channel):
                if word == b"ended":
                    return value
                if word == b"stopped":
                    resume_at = 0.0
                else:
                    command, handle = value, fd
            if gone is not None:
                return gone if not command and os.WIFEXITED(gone) else _end_all()
        elif told.si_pid == supervisor:
            resume_at = 0.0  # SIGCONT: the command goes on
        elif number == _signal.SIGCONT:
            # One for the whole group (`fg`) has reached the command too, and it may have stopped again since, of
            # which we shall be told. One for us alone leaves it stopped, and nothing is told.
            if command and _is_stopped(command):
                resume_at = time.monotonic() + _SETTLED
        elif number not in _FROM_TERMINAL or told.si_code in (_SI_USER, _SI_QUEUE, _SI_TKILL):
            held.append(number)
        if command:
            for number in held:
                _pass_on(handle, number)
            held.clear()


def _news(channel: "_socket.socket") -> "list[tuple[bytes, int, int]]":
    """What S has said: (word, number, descriptor or -1)."""
    found: list[tuple[bytes, int, int]] = []
    while True:
        try:
            text, ancillary, _, _ = channel.recvmsg(64, _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC)
        except OSError:  # EAGAIN: that was all
            return found
        if not text:
            return found
        word, _, value = text.partition(b" ")
        fd = int.from_bytes(ancillary[0][2][:4], "little") if ancillary else -1
        found.append((word, int(value), fd))


def _pass_on(handle: int, number: int) -> None:
    """Send the command a signal that came for us."""
    try:
        _signal.pidfd_send_signal(handle, number)
    except OSError:
        return  # it has just ended, and we shall be told


def _is_stopped(pid: int) -> bool:
    try:
        return kernel.process_fields(pid)[0] == b"T"
    except OSError:
        return False


def _ended(supervisor: int) -> "int | None":
    """The supervisor's wait status, once there is one."""
    try:
        pid, status = os.waitpid(supervisor, os.WNOHANG)
    except ChildProcessError:
        return 125 << 8
    return status if pid else None


def _end_all() -> int:
    """The supervisor is gone: say so, and end what it leaves to us."""
    try:
        os.write(2, _LOST)
    finally:  # whether or not anybody reads it
        end_children()
    return 125 << 8


def _kill_children() -> None:
    for name in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{name}/children") as children:
            for pid in children.read().split():
                try:
                    os.kill(int(pid), _signal.SIGKILL)
                except OSError:
                    continue


def end_children() -> None:
    """Kill every child that was left to us, and theirs as they are left to us in turn."""
    while True:
        _kill_children()
        try:
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def _end_as(status: int) -> int:
    """End by the command's signal, without a core of our own, or give its exit code."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (_signal.SIGKILL, _signal.SIGSTOP):
        _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number


# S ------------------------------------------------------------------------------------------------------


def _supervise(
    confine: "Callable[[], int]",
    start: "_Start",
    supervisor: "Supervisor",
    inherited: "tuple[int, ...]",
    waiter: "_socket.socket",
) -> int:
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1)
    left, right = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    command = os.fork()
    if command == 0:
        waiter.close()
        left.close()
        return _become(confine, start, right)
    right.close()
    os.setpgid(0, 0)
    os.chdir("/")  # or no file system that the command left could be unmounted
    _let_go(inherited, 2)
    # stderr is ours until the command starts: who is to become it dies with us, and may say nothing.
    return serve(supervisor, command, left, waiter, lambda: os.dup2(0, 2))


def serve(
    supervisor: "Supervisor", command: int, left: "_socket.socket", waiter: "_socket.socket",
    ready: "Callable[[], object]",
) -> int:  # fmt: skip
    """Be S: take the listener from A, let it start, and answer until nobody is left; returns an exit code.

    Args:
        supervisor: answers.
        command: A, our child.
        left: the channel to A. waiter: the channel to W, our parent.
        ready: is told before the command starts, when nothing can fail any more.
    """
    # In the mask's user namespace we may read even who made himself undumpable (ssh-agent): so his calls are judged
    # like all others, and not refused unseen.
    kernel.drop_capabilities(kernel.permitted() & 1 << kernel.CAP_SYS_PTRACE)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # nobody reads what we copied, not even in a core
    taken = _take(command, left)
    if not taken:  # A could not be confined and said why
        _, status = os.waitpid(command, 0)
        return os.waitstatus_to_exitcode(status) & 0xFF
    listener = taken[0]
    if len(taken) > 1:  # guard-exec's A makes its rules while we start
        supervisor.ruleset = taken[1]
    service = _Service(supervisor, listener, command, waiter)
    ready()
    supervisor.begin(command)
    left.send(b"g")
    left.close()
    service.run()
    return 0


def _take(command: int, channel: "_socket.socket") -> "list[int]":
    """Take from A the listener, and its ruleset, whose numbers it says; nothing where A ended instead."""
    numbers = channel.recv(32).split()
    handle = os.pidfd_open(command)
    try:
        return [kernel.syscall("pidfd_getfd", handle, int(number), 0) for number in numbers]
    finally:
        os.close(handle)


class _Service:
    """S at work: answers until no process uses the filter any more, looking after children between.

    Args:
        supervisor: answers.
        listener: where the calls come from.
        command: A.
        channel: to W; its end is W's.
    """

    def __init__(self, supervisor: "Supervisor", listener: int, command: int, channel: "_socket.socket") -> None:
        self._supervisor = supervisor
        self._command = command
        self._ended = False
        self._stopped = False
        self._channel = channel
        self._wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._turns = turns.Turns(listener, supervisor, woken)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        self._waiter = os.pidfd_open(os.getppid())
        handle = os.pidfd_open(command)
        self._say(b"started %d" % command, handle)
        os.close(handle)

    def run(self) -> None:
        """Serve: the tree's calls by threads of their own, its ends and our parent's here.

        This thread touches no file system that the tree can name, and so is never held up.
        """
        gc.freeze()  # what stands now is shared with W
        gc.enable()  # for months, perhaps
        # Whatever else is sent to us stays pending: a session's end must not end us before the tree.
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {_signal.SIGCHLD})
        poll = select.poll()
        waiter, answering = self._channel.fileno(), self._turns
        for fd in (self._wake, waiter):
            poll.register(fd, select.POLLIN)
        self._reap()
        settled = False
        while not answering.over:
            found = poll.poll(answering.pause() if settled else _SETTLING)
            if not found and not settled:
                settled = True
                self._supervisor.settle(answering)
            for fd, _ in found:
                if fd == self._wake:
                    os.read(self._wake, 4096)
                    self._reap()
                    if answering.ending:
                        _kill_children()  # also those that were left to us by the ones before
                elif fd == waiter:
                    poll.unregister(waiter)
                    if not self._ended:
                        os.kill(self._command, _signal.SIGKILL)
            answering.look()
        if answering.fault:
            raise answering.fault
        while not self._ended:  # the command may be a moment from its end
            self._reap(0)
        self._supervisor.end()

    def _reap(self, how: int = os.WNOHANG) -> None:
        """Take the ends of children. The command's is told to W, which stops and goes on with it.

        Stopping W is ours alone, one after the other: if W did it by itself, a continuation could be lost between.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, how | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                self._ended = True
                return
            if pid == 0:
                return
            if pid != self._command:
                continue
            if os.WIFSTOPPED(status):
                self._stopped = True
                self._say(b"stopped %d" % os.WSTOPSIG(status))  # first: what comes after it is for this stop
                self._signal(_signal.SIGSTOP)
                continue
            ended = not os.WIFCONTINUED(status)
            if ended:
                self._ended = True
                self._supervisor.command_ended(status)
                self._say(b"ended %d" % status)
            if self._stopped:
                self._stopped = False
                self._signal(_signal.SIGCONT)
            if ended:
                how = os.WNOHANG

    def _say(self, line: bytes, fd: int = -1) -> None:
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fd.to_bytes(4, "little"))] if fd >= 0 else []
        try:
            self._channel.sendmsg([line], rights)
        except OSError:
            return  # W is gone: the channel's end says so too
        self._signal(_signal.SIGCHLD)

    def _signal(self, number: int) -> None:
        try:
            _signal.pidfd_send_signal(self._waiter, number)
        except OSError:
            return  # as above


# A ------------------------------------------------------------------------------------------------------


class _Start:
    """How the command is started: `execute` under the signals that guard was started with.

    Args:
        execute: becomes the command.
        mask: the signals blocked.
        ignored: whether SIGCHLD is ignored.
    """

    def __init__(self, execute: "Callable[[], int]", mask: "set[int]", ignored: bool) -> None:
        self._execute = execute
        self._mask = mask
        self._ignored = ignored

    def __call__(self) -> int:
        if self._ignored:
            _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
        if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # one that has come is the command's, not Python's
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._mask)
        return self._execute()


def _become(confine: "Callable[[], int]", start: "_Start", channel: "_socket.socket") -> int:
    try:
        listener = confine()
    except OSError as error:
        os.write(2, f"guard: not started: {error.filename}: {error.strerror}\n".encode())
        return 125
    channel.send(b"%d" % listener)  # S takes it: sendmsg, which could hand it over, would wait for S's own answer
    kernel.prctl(PR_SET_PDEATHSIG, _signal.SIGKILL)
    if not channel.recv(1):  # execve itself may be one that S must answer; S could not begin, and said so
        return 125
    os.close(listener)  # a copy kept here would make a call hang for ever once S is gone
    channel.close()
    return start()
