"""`guard run --recording FILE`: stays in front of a session, passes its terminal through and keeps what it showed.

The recorder is no part of the session: it starts guard once more, without the option, behind a terminal or pipes of
its own, hands every byte on first and records it then, redacted (guard.redact.recording). What is typed is handed on
and never kept: passwords are typed.

Where standard input and output are terminals the session gets a terminal of its own, and a process between that leads
it: then ^C, ^Z and `fg` reach the command as without a recorder (a group whose parent is of another session cannot be
stopped from the keyboard, setpgid(2)). Elsewhere each output keeps its nature: a terminal's stays a terminal, any
other goes through a pipe byte by byte.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import stat
import sys
import termios
import tty
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from guard.confine import default_signals, wait
from guard.redact import redact_argv
from guard.redact.marking import Marks
from guard.redact.recording import Recorder

if TYPE_CHECKING:
    from guard.confine.launch import Launch

_READ: Final = 65536
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_FROM_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class _Channel(NamedTuple):
    """One way out of the session.

    `source` is read and handed on to `out`; `inner` is its other side, which stands in the session for `targets`.
    """

    source: int
    inner: int
    targets: tuple[int, ...]
    out: int
    terminal: bool


def run(launch: Launch, start: list[str], argv: list[str], takes_value: tuple[str, ...]) -> int:
    """Run guard again behind a terminal of its own and record what it shows.

    Args:
        launch: the start, its options read.
        start: the command line that starts guard itself.
        argv: the arguments after `run`.
        takes_value: the options of `run` that are followed by a value.

    Returns:
        The session's exit code; where it died by a signal, this process does too.

    Raises:
        OSError: the file cannot be written; nothing was started.
    """
    options = launch.options
    os.environ["GUARD_CONFIG_DIR"] = options.config
    if options.state_named:
        os.environ["GUARD_STATE_DIR"] = options.state
    session = _Session(_File(options.recording), options.command)
    command = [*start, "run", *without(argv, takes_value)]
    return wait.end_as(session.run(command, launch.environment))


def without(argv: list[str], takes_value: tuple[str, ...]) -> list[str]:
    """Return the arguments after `run` without `--recording FILE`.

    Args:
        argv: the arguments; the command's own are left alone.
        takes_value: the options that are followed by a value.
    """
    out: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("--", "-") or not word.startswith("-"):
            return [*out, word, *rest]
        name, joined, _value = word.partition("=")
        words = [word] if joined or name not in takes_value or not rest else [word, rest.pop(0)]
        if name != "--recording":
            out += words
    return out


class _File:
    """The recording's file: its owner's alone, written through; what cannot be written is said once."""

    def __init__(self, path: str) -> None:
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        self._handle = os.open(path, flags, 0o600)
        if stat.S_ISREG(os.fstat(self._handle).st_mode):
            os.ftruncate(self._handle, 0)
        self.fault = ""

    def write(self, data: bytes) -> None:
        try:
            while data and not self.fault:
                data = data[os.write(self._handle, data) :]
        except OSError as error:
            self.fault = f"guard: the recording {self._path} is incomplete: {error.strerror}\r\n"


class _Session:
    """One recorded session.

    Args:
        file: where the recording goes.
        command: what is run, for the recording's head.
    """

    def __init__(self, file: _File, command: list[str]) -> None:
        self._file = file
        # In the background the terminal is the shell's: its modes and what is typed are not ours to take.
        self._full = os.isatty(0) and os.isatty(1) and _in_front()
        self._front = self._full
        self._hung_up = False
        self._saved = termios.tcgetattr(0) if self._full else None
        width, height = _size()
        marks = Marks()
        head: dict[str, object] = {
            "command": " ".join(redact_argv(command)),
            "env": {"TERM": os.environ.get("TERM", "")},
        }
        self._recorder = Recorder(file.write, width, height, marks.mark, more=head)
        self._channels = self._open_full() if self._full else self._open_parts()
        self._child = 0

    def _open_full(self) -> list[_Channel]:
        master, slave = os.openpty()
        termios.tcsetattr(slave, termios.TCSANOW, self._saved or termios.tcgetattr(slave))
        _copy_size(master)
        outputs = (0, 1, 2) if os.isatty(2) else (0, 1)
        channels = [_Channel(master, slave, outputs, 1, True)]
        return channels if 2 in outputs else [*channels, _open_pipe((2,))]

    def _open_parts(self) -> list[_Channel]:
        if _same(1, 2):
            return [_open_output((1, 2))]
        return [_open_output((1,)), _open_output((2,))]

    def run(self, command: list[str], environment: dict[bytes, bytes]) -> int:
        """Start, relay until the end, and return the exit code or minus the signal's number."""
        ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        former = signal.pthread_sigmask(
            signal.SIG_BLOCK, (*_PASSED_ON, *_FROM_TERMINAL, signal.SIGCHLD, signal.SIGWINCH)
        )
        sys.stderr.flush()
        self._child = os.fork()
        if self._child == 0:
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, former)
                self._become(command, environment)
            finally:
                os._exit(126)
        for channel in self._channels:
            os.close(channel.inner)
        for number in _FROM_TERMINAL:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGWINCH, lambda *_: self._resize())
        signal.signal(signal.SIGCONT, lambda *_: self._raw())
        for number in _PASSED_ON:
            signal.signal(number, lambda which, _frame: self._pass_on(which))
        signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        try:
            self._raw()
            status = self._relay(ours)
        finally:
            self._restore()
        if self._channels and os.fork() == 0:
            # Something of the session still holds an output: the command's end is told, its words are not lost.
            with suppress(OSError):
                self._linger()
            os._exit(0)
        if not self._channels:
            self._recorder.close()
        if self._file.fault:
            sys.stderr.write(self._file.fault)
        return status

    # The session's side ------------------------------------------------------------------------------

    def _become(self, command: list[str], environment: dict[bytes, bytes]) -> NoReturn:
        for channel in self._channels:
            os.close(channel.source)
        if self._full:
            os.setsid()
            fcntl.ioctl(self._channels[0].inner, termios.TIOCSCTTY, 0)
        for channel in self._channels:
            for target in channel.targets:
                os.dup2(channel.inner, target)
            if channel.inner > 2:
                os.close(channel.inner)
        if not self._full:
            default_signals()
            os.execve(command[0], command, environment)  # noqa: S606 - a shell is what is not wanted
        status = _lead(command, environment)
        wait.end_as(status)
        os._exit(status if status >= 0 else 128 - status)

    # The recorder's side -----------------------------------------------------------------------------

    def _relay(self, wake: int) -> int:
        """Hand bytes on in both directions until the session's leader ends; return its status."""
        status: int | None = None
        typing = self._full
        while True:
            if self._hung_up and self._full and self._channels and self._channels[0].terminal:
                self._close(self._channels[0])  # the kernel tells the session's leader and its foreground
                typing = False
            typing = typing and bool(self._channels)
            sources = [channel.source for channel in self._channels]
            wanted = [*sources, wake, *([0] if typing and self._front and status is None else [])]
            # Once the session has ended, only what is there already is read.
            ready = select.select(wanted, [], [], None if status is None else 0)[0]
            if wake in ready:
                with suppress(BlockingIOError):
                    os.read(wake, 512)
            if 0 in ready:
                typing = self._type()
            moved = False
            for channel in [c for c in self._channels if c.source in ready]:
                moved |= self._show(channel)
            if status is None:
                status = self._look()
            elif not moved:
                return status

    def _type(self) -> bool:
        """Hand typed bytes on; false at the terminal's end."""
        try:
            data = os.read(0, _READ)
        except OSError:
            data = b""
        if not data:
            return False
        _write_all(self._channels[0].source, data)
        return True

    def _show(self, channel: _Channel) -> bool:
        """Hand on what the session wrote, then record it; false when nothing came."""
        try:
            data = os.read(channel.source, _READ)
        except OSError as error:
            if error.errno != errno.EIO:  # what a terminal's other side says when nobody has it open any more
                raise
            data = b""
        if not data:
            self._close(channel)
            return False
        try:
            _write_all(channel.out, data)
        except OSError:
            # Whoever read it went away; the session has to learn it the same way.
            self._close(channel)
            return True
        # Players move the cursor as terminals do: a line's end is both.
        shown = data if self._full and channel.terminal else data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        self._recorder.output(shown)
        return True

    def _close(self, channel: _Channel) -> None:
        os.close(channel.source)
        self._channels.remove(channel)

    def _look(self) -> int | None:
        """Ask for the leader's state; stop and go on as it does; its status once it has ended."""
        pid, status = os.waitpid(self._child, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            self._restore()
            wait.stop_by(signal.SIGTSTP if self._full else os.WSTOPSIG(status))
            self._raw()
            self._resize()
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGCONT)
            return None
        return os.waitstatus_to_exitcode(status)

    def _linger(self) -> None:
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        while self._channels:
            ready = select.select([channel.source for channel in self._channels], [], [])[0]
            for channel in [c for c in self._channels if c.source in ready]:
                self._show(channel)
        self._recorder.close()

    def _pass_on(self, number: int) -> None:
        self._hung_up |= number == signal.SIGHUP
        with suppress(ProcessLookupError):
            os.kill(self._child, number)

    def _resize(self) -> None:
        if self._full and self._channels and self._channels[0].terminal:
            _copy_size(self._channels[0].source)
            self._recorder.resize(*_size())

    def _raw(self) -> None:
        """Hand every key on as it is typed; not in the background, where the terminal is another's."""
        self._front = self._full and _in_front()
        if self._front:
            with suppress(termios.error):
                tty.setraw(0, termios.TCSANOW)

    def _restore(self) -> None:
        if self._saved is not None and self._front:
            with suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._saved)


def _lead(command: list[str], environment: dict[bytes, bytes]) -> int:
    """Lead a terminal's session: start the command in a group of its own, stop when it stops; return its status."""
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(0, os.getpid())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            default_signals()
            os.execve(command[0], command, environment)  # noqa: S606 - a shell is what is not wanted
        finally:
            os._exit(126)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (1, 2):
        os.dup2(null, fd)  # a leader that held the outputs would keep them open behind the command's end

    def pass_on(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _FROM_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        os.kill(os.getpid(), signal.SIGSTOP)  # the recorder sees it, stops as well, and wakes us
        with suppress(OSError):
            os.tcsetpgrp(0, child)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGCONT)


def _open_output(targets: tuple[int, ...]) -> _Channel:
    """Return a way for one output, of the same nature as it."""
    if not os.isatty(targets[0]):
        return _open_pipe(targets)
    master, slave = os.openpty()
    modes = termios.tcgetattr(slave)
    modes[1] &= ~termios.OPOST  # the terminal behind it does that
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    _copy_size(master)
    return _Channel(master, slave, targets, targets[0], True)


def _open_pipe(targets: tuple[int, ...]) -> _Channel:
    source, inner = os.pipe()
    os.set_inheritable(source, False)
    return _Channel(source, inner, targets, targets[0], False)


def _in_front() -> bool:
    """Whether we are the foreground of our terminal."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _same(one: int, other: int) -> bool:
    """Whether two outputs are one file: their order is then worth keeping."""
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino, first.st_rdev) == (second.st_dev, second.st_ino, second.st_rdev)


def _size() -> tuple[int, int]:
    """Return the columns and lines of the terminal, 80 by 24 where there is none."""
    for fd in (1, 0, 2):
        with suppress(OSError):
            size = os.get_terminal_size(fd)
            if size.columns and size.lines:
                return size.columns, size.lines
    return 80, 24


def _copy_size(master: int) -> None:
    for fd in (1, 0, 2):
        with suppress(OSError):
            fcntl.ioctl(master, termios.TIOCSWINSZ, fcntl.ioctl(fd, termios.TIOCGWINSZ, b"\0" * 8))
            return


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            select.select([], [fd], [])
