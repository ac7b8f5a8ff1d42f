"""What the supervisor decides, one file a decision, and the table that leads from a system call to it.

A handler gets a `Call` and the `Supervisor`. It copies what the call points to, judges the copy, and then

    returns a number              the call's result: what was asked for has been done by the handler itself
    returns `CONTINUE`            the kernel makes the call: only where registers alone decided
    returns `PENDING`             a thread of the handler's answers later
    raises `Denied`               the call fails with its errno, and an event says why
    raises any other OSError      the call fails with that errno, as the kernel would have failed it

Whatever else goes wrong in a handler is a refusal (EACCES), never a pass.
"""

import os
import sys
import time

from guard.kernel import MACHINE, notify
from guard.kernel.notify import Call, Gone, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Handler = Callable[["Supervisor", Call], int]

CONTINUE, PENDING = -1, -2

# <asm/unistd.h>; what is above 424 is the same everywhere.
NUMBERS: "dict[str, dict[str, int]]" = {
    "x86_64": {
        "sendto": 44, "connect": 42, "sendmsg": 46, "bind": 49, "listen": 50, "execve": 59, "chmod": 90, "fchmod": 91,
        "chown": 92, "fchown": 93, "lchown": 94, "umask": 95, "utime": 132, "setxattr": 188, "lsetxattr": 189,
        "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "utimes": 235, "fchownat": 260,
        "futimesat": 261, "fchmodat": 268, "utimensat": 280, "sendmmsg": 307, "execveat": 322, "setpriority": 141,
        "sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setparam": 142, "sched_setattr": 314,
        "ioprio_set": 251,
    },
    "aarch64": {
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
        "ioprio_set": 30, "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "utimensat": 88,
        "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122, "setpriority": 140, "umask": 166,
        "bind": 200, "listen": 201, "connect": 203, "sendto": 206, "sendmsg": 211, "execve": 221, "sendmmsg": 269,
        "sched_setattr": 274, "execveat": 281,
    },
}  # fmt: skip
_COMMON = {"fchmodat2": 452, "setxattrat": 463, "removexattrat": 466}


class Denied(OSError):
    """A call that the policy refuses.

    Args:
        code: the errno the caller sees.
        control, rule: as in an event.
        what: the act and its object, for `explain`; redacted before it is stored.
        allow: what would allow it, in one short sentence.
        verdict: `denied`, or `would_deny` where the control only observes.
    """

    def __init__(self, code: int, control: str, rule: str, what: str, allow: str = "") -> None:
        super().__init__(code, os.strerror(code))
        self.control, self.rule, self.what, self.allow = control, rule, what, allow


class Supervisor:
    """Judges the calls of one tree.

    Args:
        settings: the plan's `supervisor`, variables expanded.
        writable: real paths at and below which the tree may write, as Landlock has them.
        ruleset: a descriptor of the tree's Landlock ruleset for helpers to enter, -1 for none.
        record: writes an event: (control, rule, verdict, severity, what, allow, pid, count).
    """

    def __init__(
        self,
        settings: "dict[str, object]",
        writable: "tuple[str, ...]",
        ruleset: int,
        record: "Callable[..., None]",
    ) -> None:
        self.settings = settings
        self.writable = writable
        self.ruleset = ruleset
        self.command = 0
        self._record = record
        self._told: dict[tuple[str, str], list[float]] = {}
        self._handlers: dict[int, Handler] = {}
        numbers = {**_COMMON, **NUMBERS.get(MACHINE, {})}
        for name, handler in _table(self).items():
            if name in numbers:
                self._handlers[numbers[name]] = handler

    def begin(self, command: int) -> None:
        """The tree is about to start."""
        self.command = command

    def command_ended(self, status: int) -> None:
        """The command has ended; what it left may still call."""

    def end(self) -> None:
        """No process of the tree is left: say what was held back."""
        for (rule, what), (_, count, control, verdict, severity, allow, pid) in self._told.items():  # type: ignore[misc]
            if count:
                self._record(control, rule, verdict, severity, what, allow, pid, count)

    def answer(self, call: "Call") -> None:
        """Answer one call; never fails, and never lets through what went wrong."""
        try:
            result = self._handlers[call.number](self, call)
        except Gone:
            return
        except Unreadable:
            self._refuse(call, 13)
        except Denied as denied:
            self.tell(denied.control, denied.rule, "denied", denied.what, denied.allow, call.pid)
            self._refuse(call, denied.errno or 13)
        except OSError as error:
            self._refuse(call, error.errno or 13)
        except Exception as error:  # noqa: BLE001 - a defect of ours must refuse, whatever it is
            self.tell("session", "supervisor-error", "denied", f"{type(error).__name__}: {error}", "", call.pid)
            self._refuse(call, 13)
        else:
            if result == PENDING:
                return
            try:
                if result == CONTINUE:
                    call.let_go()
                else:
                    call.answer(result)
            finally:
                call.close()

    def _refuse(self, call: "Call", code: int) -> None:
        try:
            call.answer(0, code)
        finally:
            call.close()

    def tell(
        self, control: str, rule: str, verdict: str, what: str, allow: str = "", pid: int = 0, severity: str = "medium"
    ) -> None:
        """Record a finding; the same rule and object within ten minutes are counted, not repeated."""
        now = time.monotonic()
        key = (rule, what)
        known = self._told.get(key)
        if known is not None and now - known[0] < 600:
            known[1] += 1
            return
        if len(self._told) > 4096:
            self._told.clear()
        count = 1 + (int(known[1]) if known else 0)
        self._told[key] = [now, 0, control, verdict, severity, allow, pid]  # type: ignore[list-item]
        self._record(control, rule, verdict, severity, what, allow, pid, count)

    def may_write(self, real: str) -> bool:
        """Whether a real path lies where the tree may write."""
        return any(real == top or real.startswith(top + "/") for top in self.writable)


def _table(supervisor: "Supervisor") -> "dict[str, Handler]":
    """The handlers that the policy's settings call for."""
    from guard.confine.handlers import execution, metadata, modes, network, sockets

    found: dict[str, Handler] = {}
    for module in (modes, metadata, network, sockets, execution):
        found.update(module.handlers(supervisor))
    return found


def complain(text: str) -> None:
    """Say something to a developer, only where GUARD_DEBUG asks for it."""
    if "GUARD_DEBUG" in os.environ:
        sys.stderr.write(f"guard: {text}\n")


__all__ = ["CONTINUE", "PENDING", "Call", "Denied", "Supervisor", "notify"]
