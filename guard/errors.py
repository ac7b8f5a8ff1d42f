"""Every error guard raises on purpose, its exit code, and the sentence that says what to do.

Exit codes follow the command-line contract (docs/commands.md): `run` and `shell` end with 125 when
guard itself could not start the command, 126 when it is not executable, 127 when it is missing;
every other command ends with 1 (found something), 2 (usage) or 3 (could not do it).
"""

EXIT_FOUND = 1
EXIT_USAGE = 2
EXIT_CANNOT = 3
EXIT_REFUSED = 125
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


class GuardError(Exception):
    """An error meant for a person: what failed, and what to do next.

    Args:
        what: one sentence, no trailing full stop needed, that names the place (file, control, path).
        remedy: what the reader does next; printed after the sentence.
    """

    exit_code = EXIT_CANNOT

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


class UsageError(GuardError):
    """The command line is wrong."""

    exit_code = EXIT_USAGE


class PolicyError(GuardError):
    """A policy, assignment or exception file cannot be used. `what` starts with `file:line:column:`."""


class PlanError(GuardError):
    """A compiled plan is damaged, stale or not to be trusted."""


class ControlError(GuardError):
    """A control that must hold cannot be applied on this host: the command is not started.

    Args:
        what, remedy: as for `GuardError`.
        control: the control's name, empty where none is at fault.
    """

    exit_code = EXIT_REFUSED

    def __init__(self, what: str, remedy: str = "", control: str = "") -> None:
        super().__init__(what, remedy)
        self.control = control


class StateError(GuardError):
    """The state or configuration directory cannot be used or must not be trusted."""


class MonitorError(GuardError):
    """The monitor cannot be loaded, attached or detached."""


class EventError(GuardError):
    """Something is no event, or was not redacted and so cannot become one."""


class SpoolError(GuardError):
    """The node's spool of events cannot be opened, read or written."""
