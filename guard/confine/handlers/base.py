"""What handlers share: the supervisor of one tree, and the ways a call can end."""

import posix as os
import time

from guard.confine.handlers import advice
from guard.kernel.numbers import numbers
from guard.kernel import MACHINE, NUMBERS
from guard.kernel.notify import Call, Gone, Unreadable

NUMBERS.update(numbers(MACHINE))  # handlers make the calls that they are asked about

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Handler = Callable[["Supervisor", Call], int]

CONTINUE, PENDING = -1, -2


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


_WINDOW = 600  # seconds in which the same finding is counted, not repeated
_MOST_TOLD = 4096


class _Told:
    """A finding that was recorded, and how often it came again since."""

    __slots__ = ("finding", "held_back", "when")

    def __init__(self, when: float, finding: "tuple[str, str, str, str, str, str, int]") -> None:
        self.when, self.finding, self.held_back = when, finding, 0


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
        settings: "dict[str, Any]",
        writable: "tuple[str, ...]",
        ruleset: int,
        record: "Callable[..., None]",
    ) -> None:
        self.settings = settings
        self.writable = writable
        self.ruleset = ruleset
        self.command = 0
        self._record = record
        self._told: dict[tuple[str, str], _Told] = {}
        self._handlers: dict[int, Handler] = {}

    def use(self, handlers: "dict[str, Handler]") -> None:
        """Add handlers, by the names of their calls."""
        known = numbers(MACHINE)
        for name, handler in handlers.items():
            if name in known:
                self._handlers[known[name]] = handler

    def setting(self, key: str) -> "Any":
        """One of the plan's settings for the supervisor."""
        return self.settings[key]

    def mode(self, control: str) -> str:
        """A control's mode: enforce, observe or off."""
        return str(self.settings["modes"].get(control, "off"))

    def decide(self, control: str, rule: str, what: str, code: int, call: "Call", allow: str = "") -> None:
        """Refuse an act, or only record it where the control observes.

        Raises:
            Denied: the control is enforced.
        """
        mode = self.mode(control)
        if mode == "enforce":
            raise Denied(code, control, rule, what, allow)
        if mode == "observe":
            self.tell(control, rule, "would_deny", what, allow, call.pid, "low")

    def check_metadata(self, call: "Call", fd: int, act: str) -> None:
        """Refuse a change of what lies outside the places that the tree may write.

        Args:
            call: who asks.
            fd: the file, opened.
            act: the call's name.

        Raises:
            Denied: it lies outside. Files without a place (pipes, memfds) are the tree's own.
        """
        real = os.readlink(f"/proc/self/fd/{fd}")
        if real.startswith("/") and not real.startswith("/memfd:") and not self.may_write(real):
            self.decide("metadata", "metadata-outside", f"{act} {real}", 1, call, "a project or write grant there")

    def begin(self, command: int) -> None:
        """The tree is about to start."""
        self.command = command

    def command_ended(self, status: int) -> None:
        """The command has ended; what it left may still call."""

    def end(self) -> None:
        """No process of the tree is left: say what was held back."""
        for told in self._told.values():
            if told.held_back:
                self._record(*told.finding, told.held_back)
        self._told.clear()

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
        told = self._told.get((rule, what))
        if told is not None and now - told.when < _WINDOW:
            told.held_back += 1
            return
        if len(self._told) >= _MOST_TOLD:
            self.end()
        finding = (control, rule, verdict, severity, what, advice.allow(rule, what, allow), pid)
        self._told[rule, what] = _Told(now, finding)
        self._record(*finding, 1 + (told.held_back if told else 0))

    def may_write(self, real: str) -> bool:
        """Whether a real path lies where the tree may write."""
        return any(real == top or real.startswith(top + "/") for top in self.writable)


__all__ = ["CONTINUE", "PENDING", "Call", "Denied", "Handler", "Supervisor"]
