"""Keeping a supervisor beside a tree: who is whose parent, and what happens when one of them ends.

Three processes come out of one start:

    W  guard itself, as the shell knows it: waits, passes signals on, stops, goes on and ends as the command does
    S  the supervisor, W's child: answers the tree's calls until no process of it is left
    A  the command, S's child: confined, then executed

S is an ancestor of the whole tree (a subreaper), as Yama's ptrace_scope = 1 asks of who reads another's memory,
and outlives A for daemons that A leaves behind. When S is killed, the kernel answers ENOSYS to every call it
would have judged: nothing that was refused gets through, and W ends what is left. When W is killed, S kills A,
as a kill of the command itself would have.

S loads everything before A starts: a new installation under its feet changes nothing.
"""

import _signal  # type: ignore[import-not-found] # `signal` would load `enum`
import _socket
import posix as os
import select

from guard import kernel
from guard.kernel import notify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Supervisor(Protocol):
        """Who answers: `guard.confine.handlers.base`, or the watcher of `guard learn`."""

        def begin(self, command: int) -> None: ...
        def answer(self, call: notify.Call) -> None: ...
        def command_ended(self, status: int) -> None: ...
        def end(self) -> None: ...

PR_SET_CHILD_SUBREAPER = 36
_FROM_TERMINAL = (_signal.SIGINT, _signal.SIGQUIT, _signal.SIGTSTP, _signal.SIGTTIN, _signal.SIGTTOU)
_PASSED_ON = (
    _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2,
    _signal.SIGWINCH, _signal.SIGCONT, _signal.SIGTSTP, _signal.SIGALRM, _signal.SIGPIPE,
)  # fmt: skip
_SI_USER, _SI_QUEUE, _SI_TKILL = 0, -1, -6
_CHANGED = 1 + _signal.SIGRTMIN  # S to W: there is something in the pipe
_LOST = b"guard: the supervisor is gone: this session could start nothing more and was ended\n"


def run(confine: "Callable[[], int]", execute: "Callable[[], int]", supervisor: "Supervisor") -> int:
    """Start the command under a supervisor, and end as it ends.

    Args:
        confine: enters the sandbox for good and returns the listener; called in A.
        execute: becomes the command; returns an exit code where it could not. Called in A.
        supervisor: answers the calls; used in S.

    Returns:
        The command's exit code; where it died by a signal, this process does too.
    """
    return _end_as(stay(confine, execute, supervisor))


def stay(confine: "Callable[[], int]", execute: "Callable[[], int]", supervisor: "Supervisor") -> int:
    """As `run`, but return the command's wait status whatever it ended by."""
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, {*_PASSED_ON, _signal.SIGCHLD, _CHANGED, *_FROM_TERMINAL})
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1)
    news, tell = os.pipe2(os.O_CLOEXEC)
    alive, ours = os.pipe2(os.O_CLOEXEC)  # closed by our death, whatever its cause
    child = os.fork()
    if child == 0:
        os.close(news)
        os.close(ours)
        code = 125
        try:
            code = _supervise(confine, execute, supervisor, mask, tell, alive)
        finally:
            os._exit(code)
    os.close(tell)
    os.close(alive)
    return _wait(child, news)


# W ------------------------------------------------------------------------------------------------------


def _wait(supervisor: int, news: int) -> int:
    """Wait for the command's end; returns its wait status."""
    os.set_blocking(news, False)
    command = 0
    watched = {*_PASSED_ON, _signal.SIGCHLD, _CHANGED, *_FROM_TERMINAL}
    while True:
        told = _signal.sigwaitinfo(watched)
        for line in _lines(news):
            word, _, value = line.partition(b" ")
            if word == b"started":
                command = int(value)
            elif word == b"ended":
                return int(value)
            elif word == b"stopped":
                # Stop as the command did, so that the shell sees a stopped job; SIGCONT reaches both.
                os.kill(os.getpid(), _signal.SIGSTOP)
        if told.si_signo == _signal.SIGCHLD:
            ended = _supervisor_ended(supervisor, command)
            if ended is not None:
                return ended
        elif told.si_signo in _PASSED_ON and command and _meant_for_us_alone(told):
            _kill(command, told.si_signo)


def _lines(news: int) -> "list[bytes]":
    try:
        return os.read(news, 4096).split(b"\n")[:-1]
    except BlockingIOError:
        return []


def _meant_for_us_alone(told: "_signal.struct_siginfo") -> bool:
    """Whether a process sent the signal; the terminal's own goes to the command as well."""
    if told.si_signo in _FROM_TERMINAL:
        return told.si_code in (_SI_USER, _SI_QUEUE, _SI_TKILL)
    return True


def _supervisor_ended(supervisor: int, command: int) -> "int | None":
    """After SIGCHLD: the status to end with if the supervisor is gone and has not told one."""
    try:
        pid, status = os.waitpid(supervisor, os.WNOHANG)
    except ChildProcessError:
        pid, status = supervisor, 125 << 8
    if pid == 0:
        return None
    if os.WIFEXITED(status):
        return status  # before the command started: the code of a refused start
    os.write(2, _LOST)
    if command:
        _kill(command, _signal.SIGTERM)
    end_children()
    return 125 << 8


def end_children() -> None:
    """Kill every child that was left to us, and theirs as they are left to us in turn."""
    while True:
        try:
            for name in os.listdir("/proc/self/task"):
                with open(f"/proc/self/task/{name}/children") as children:
                    for pid in children.read().split():
                        _kill(int(pid), _signal.SIGKILL)
            os.waitpid(-1, 0)
        except (ChildProcessError, OSError):
            return


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
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
    execute: "Callable[[], int]",
    supervisor: "Supervisor",
    mask: "set[int]",
    tell: int,
    alive: int,
) -> int:
    waiter = os.getppid()
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1)
    left, right = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    command = os.fork()
    if command == 0:
        os.close(tell)
        os.close(alive)
        left.close()
        return _become(confine, execute, mask, right)
    right.close()
    os.setsid()  # nothing that is typed at the terminal concerns us
    for fd in range(3):  # a reader of the command's output must not wait for us; loss is said by W
        os.dup2(_null(), fd)
    kernel.drop_capabilities()
    listener = _receive_listener(left)
    if listener < 0:  # A could not be confined and said why
        _, status = os.waitpid(command, 0)
        return os.waitstatus_to_exitcode(status) & 0xFF
    service = _Service(supervisor, listener, command, tell, waiter)
    supervisor.begin(command)
    left.send(b"g")
    left.close()
    service.run(alive)
    return 0


def _null() -> int:
    return os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)


def _receive_listener(channel: "_socket.socket") -> int:
    data, ancillary, _, _ = channel.recvmsg(1, _socket.CMSG_SPACE(4))
    if not data or not ancillary:
        return -1
    return int.from_bytes(ancillary[0][2][:4], "little")


class _Service:
    """S at work: answers until no process uses the filter any more, looking after children between.

    Args:
        supervisor: answers.
        listener: where the calls come from.
        command: A.
        tell, waiter: the pipe to W, and W.
    """

    def __init__(self, supervisor: "Supervisor", listener: int, command: int, tell: int, waiter: int) -> None:
        self._supervisor = supervisor
        self._listener = listener
        self._command = command
        self._ended = False
        self._pipe = tell
        self._waiter = waiter
        self._say(b"started %d\n" % command)

    def run(self, alive: int) -> None:
        """Serve.

        Args:
            alive: a pipe that W's death closes.
        """
        wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in (*_FROM_TERMINAL, _signal.SIGHUP, _signal.SIGTERM, _signal.SIGPIPE):
            _signal.signal(number, _signal.SIG_IGN)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, set())
        poll = select.poll()
        for fd in (self._listener, wake, alive):
            poll.register(fd, select.POLLIN)
        self._reap()
        while True:
            for fd, event in poll.poll():
                if fd == wake:
                    os.read(wake, 4096)
                    self._reap()
                elif fd == alive:
                    poll.unregister(alive)
                    if not self._ended:
                        _kill(self._command, _signal.SIGKILL)
                elif event & select.POLLIN:
                    call = notify.receive(self._listener)
                    if call is not None:
                        self._supervisor.answer(call)
                else:  # POLLHUP: nobody uses the filter any more; the command may be a moment from its end
                    while not self._ended:
                        self._reap(0)
                    self._supervisor.end()
                    return

    def _reap(self, how: int = os.WNOHANG) -> None:
        """Take the ends of children; the command's, and its stops, are told to W."""
        while True:
            try:
                pid, status = os.waitpid(-1, how | os.WUNTRACED)
            except ChildProcessError:
                self._ended = True
                return
            if pid == 0:
                return
            if pid != self._command:
                continue
            if os.WIFSTOPPED(status):
                self._say(b"stopped %d\n" % os.WSTOPSIG(status))
            else:
                self._ended = True
                self._supervisor.command_ended(status)
                self._say(b"ended %d\n" % status)

    def _say(self, line: bytes) -> None:
        try:
            os.write(self._pipe, line)
            os.kill(self._waiter, _CHANGED)
        except OSError:
            return  # W is gone: `alive` says so too


# A ------------------------------------------------------------------------------------------------------


def _become(
    confine: "Callable[[], int]", execute: "Callable[[], int]", mask: "set[int]", channel: "_socket.socket"
) -> int:
    listener = confine()
    channel.sendmsg([b"l"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, listener.to_bytes(4, "little"))])
    os.close(listener)  # a copy kept here would make a call hang for ever once S is gone
    if not channel.recv(1):  # execve itself may be one that S must answer
        return 125
    channel.close()
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    return execute()
