"""Staying beside a session as its parent: exit codes, signals and job control as without guard."""

import os
import signal
import sys

# Sent to guard alone they are meant for the command; the terminal's own reach the whole group anyway.
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)


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
    child = os.fork()
    if child == 0:
        try:
            os.execve(program, command, environment)  # noqa: S606 - what guard is for
        except OSError as error:
            os.write(2, f"guard: {command[0]}: {error.strerror}\n".encode())
        os._exit(126)
    for number in _FROM_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    for number in _PASSED_ON:
        signal.signal(number, lambda which, _frame: os.kill(child, which))
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            # Stop as the command did, so that the shell sees a stopped job; go on together with it.
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
            continue
        if os.WIFSIGNALED(status):
            return -os.WTERMSIG(status)
        return os.WEXITSTATUS(status)


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
