"""Staying beside a session as its parent: exit codes, signals and job control as without guard."""

import errno
import os
import signal
import sys
from typing import NoReturn

# Sent to guard alone they are meant for the command.
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
# The terminal sends these to the whole group; what the command does with them is what counts.
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


def run(program: str, command: "list[str]", environment: "dict[bytes, bytes]") -> int:
    """Start a command as a child and wait for its end, stopping and going on as it does.

    Args:
        program: the file to execute.
        command: its arguments, from argv[0] on.
        environment: its environment.

    Returns:
        The exit code, or minus the number of the signal it died by; 126 where it cannot be executed.
    """
    sys.stderr.flush()
    # Until somebody is there to pass a signal on to, it waits.
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        _become(program, command, environment)
    for number in _FROM_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    for number in _PASSED_ON:
        signal.signal(number, lambda which, _frame: os.kill(child, which))
    signal.pthread_sigmask(signal.SIG_SETMASK, former)
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            stop_by(os.WSTOPSIG(status))
            os.kill(child, signal.SIGCONT)
            continue
        return os.waitstatus_to_exitcode(status)


def _become(program: str, command: "list[str]", environment: "dict[bytes, bytes]") -> NoReturn:
    fault: OSError | None = None
    # The second is a script without an interpreter line, as execvp(3) starts it.
    for file, words in ((program, command), ("/bin/sh", ["/bin/sh", program, *command[1:]])):
        try:
            os.execve(file, words, environment)  # noqa: S606 - a shell is what is not wanted
        except OSError as error:
            fault = fault or error
            if error.errno != errno.ENOEXEC:
                break
    os.write(2, f"guard: {command[0]}: {fault.strerror if fault else ''}\n".encode("utf-8", "surrogateescape"))
    os._exit(126)


def stop_by(number: int) -> None:
    """Stop as the command did, so that the shell sees a stopped job; returns when it is continued."""
    if number == signal.SIGSTOP:
        os.kill(os.getpid(), number)
        return
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.signal(number, signal.SIG_IGN)


def end_as(code: int) -> int:
    """End as the command ended: by its signal (without a core of our own), else with its exit code."""
    if code >= 0:
        return code
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code
