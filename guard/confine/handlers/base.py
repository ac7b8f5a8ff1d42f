"""What handlers share: the supervisor of one tree, and the ways a call can end."""

import posix as os
import time

from guard.confine.turns import Crowded
from guard.kernel import MACHINE, NUMBERS
from guard.kernel.notify import Call, Gone, Unreadable
from guard.kernel.numbers import numbers

NUMBERS.update(numbers(MACHINE))  # handlers make the calls that they are asked about

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from guard.confine.keep import Keeper
    from guard.confine.turns import Turns

    Handler = Callable[["Supervisor", Call], int]

CONTINUE, PENDING = -1, -2


class Denied(OSError):  # noqa: N818 - a verdict, said as one
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
_MOST_OF_A_RULE = 64
_LONGEST = 512
_EAGAIN, _EACCES = 11, 13


class _Told:
    """A finding that was recorded, and how often it came again since."""

    __slots__ = ("finding", "held_back")

    def __init__(self, finding: "tuple[str, str, str, str, str, str, int]") -> None:
        self.finding, self.held_back = finding, 0


class Supervisor:
    """Judges the calls of one tree.

    Args:
        settings: the plan's `supervisor`, variables expanded.
        writable: real paths at and below which the tree may write, as Landlock has them.
        ruleset: a descriptor of the tree's Landlock ruleset for helpers to enter, -1 for none.
        record: writes an event: (control, rule, verdict, severity, what, allow, pid, count).
        denies: whether a real path is denied, or protected, within a place that may be written.
    """

    def __init__(
        self,
        settings: "dict[str, Any]",
        writable: "tuple[str, ...]",
        ruleset: int,
        record: "Callable[..., None]",
        denies: "Callable[[str], bool]" = lambda real: False,
    ) -> None:
        self.settings = settings
        self.keeper: Keeper | None = None
        self.fault = ""  # why a finding could not be recorded
        self.writable = writable
        self._denies = denies
        self.ruleset = ruleset
        self.command = 0
        self._record = record
        self._told: dict[tuple[str, str], _Told] = {}
        self._objects: dict[str, int] = {}  # rule to how many objects of its were told apart
        self._since = time.monotonic()
        self._began = 0.0
        self._handlers: dict[int, Handler] = {}
        self._later: Callable[[Supervisor], None] | None = None

    def use(self, handlers: "dict[str, Handler]") -> None:
        """Add handlers, by the names of their calls."""
        known = numbers(MACHINE)
        for name, handler in handlers.items():
            if name in known:
                self._handlers[known[name]] = handler

    def use_later(self, equip: "Callable[[Supervisor], None]") -> None:
        """Set what adds the handlers that are still missing; those that are there stay."""
        self._later = equip

    def _handler(self, number: int) -> "Handler":
        if number not in self._handlers and self._later:
            equip, self._later = self._later, None
            before = dict(self._handlers)
            equip(self)
            self._handlers.update(before)
        return self._handlers[number]

    def setting(self, key: str) -> "Any":  # noqa: ANN401 - what the plan carries
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

    def strips(self) -> bool:
        """Whether the right of others to write is taken out of what is asked for, instead of a refusal."""
        return self.settings["world_writable"] == "strip" and self.mode("world-writable") == "enforce"

    def check_metadata(self, call: "Call", real: str, act: str) -> None:
        """Refuse a change of what lies outside the places that the tree may write.

        Args:
            call: who asks.
            real: what /proc says of the opened file.
            act: the call's name.

        Raises:
            Denied: it lies outside. Files without a place (pipes, memfds) are the tree's own.
        """
        if real.startswith("/") and not real.startswith("/memfd:") and not self.may_write(real):
            self.decide("metadata", "metadata-outside", f"{act} {real}", 1, call, "a project or write grant there")

    def keep(self, absent: "list[str]", links: "list[str]", steady: "tuple[str, ...]") -> None:
        """Watch over protected names that do not exist, and links to what is protected.

        Args:
            absent, links: their paths.
            steady: directories above them that the tree cannot put others in the place of.
        """
        if (absent or links) and self.mode("files") == "enforce":
            from guard.confine.keep import Keeper

            try:
                self.keeper = Keeper(absent, links, steady, self._came)
            except OSError as error:  # the user's watches are used up (fs.inotify.max_user_instances): told, not fatal
                what = f"watch {', '.join((*absent, *links))}: {error.strerror}"
                self.tell("files", "protected-unwatched", "observed", what, "", self.command)

    def _came(self, path: str, aside: str) -> None:
        self.tell("files", "protected-made", "denied", f"make {path}", f"it is {aside} now", self.command)

    def begin(self, command: int) -> None:
        """The tree is about to start."""
        self.command = command
        self._began = time.time() - 0.02  # file systems' clocks tick coarsely

    def settle(self, beside: "Turns") -> None:
        """The session has started: look for directories that make files writable by others by themselves."""
        mode = self.mode("world-writable")
        if mode == "off":
            return
        from guard.confine.inherited import Inherited

        takes = mode == "enforce" and self.settings["world_writable"] != "observe"
        verdict, rule = "rewritten" if takes else "would_deny", "world-writable-inherited"

        def tell(path: str, what: str) -> None:
            found = ("world-writable", rule, verdict, f"{what} {path}", "", self.command, "low")
            beside.in_turn(lambda: self.tell(*found))

        beside.beside(Inherited(self.writable, self._began, takes, tell).serve)

    def command_ended(self, status: int) -> None:
        """The command has ended; what it left may still call."""

    def end(self) -> None:
        """No process of the tree is left: say what was held back."""
        for told in self._told.values():
            if told.held_back:
                self._record(*told.finding, told.held_back)
        self._told.clear()
        self._objects.clear()

    def answer(self, call: "Call") -> None:
        """Answer one call; never fails, never lets through what went wrong, and leaves nobody waiting."""
        code, result = _EACCES, 0
        try:
            result = self._handler(call.number)(self, call)
            if result == PENDING:
                return
            code = 0
        except Gone:
            if not call.waits():
                return
            # It waits, and yet /proc does not have it: what cannot be read is refused, never left waiting.
            self.tell("session", "caller-unreadable", "denied", f"{call.number} of a process that /proc hides", "")
        except Unreadable:
            self._tell_of(call, "session", "caller-unreadable", f"{call.number} of a process that is not dumpable", "")
        except Crowded:
            code = _EAGAIN
            self._tell_of(call, "session", "callers-held-up", "wait for a file system that does not answer", "")
        except Denied as denied:
            code = denied.errno or _EACCES
            self._tell_of(call, denied.control, denied.rule, denied.what, denied.allow)
        except OSError as error:
            code = error.errno or _EACCES
        except Exception as error:  # noqa: BLE001 - a defect of ours must refuse, whatever it is
            self._tell_of(call, "session", "supervisor-error", f"{type(error).__name__}: {error}", "")
        if code == 0 and result == CONTINUE:
            call.let_go()
        else:
            call.answer(result, code)

    def _tell_of(self, call: "Call", control: str, rule: str, what: str, allow: str) -> None:
        try:
            self.tell(control, rule, "denied", what, allow, call.pid)
        except Exception as error:  # noqa: BLE001 - the caller waits for its answer, record or no record
            self.fault = f"{type(error).__name__}: {error}"

    def tell(
        self, control: str, rule: str, verdict: str, what: str, allow: str = "", pid: int = 0, severity: str = "medium"
    ) -> None:
        """Record a finding; the same rule and object within ten minutes are counted, not repeated.

        Of one rule no more than `_MOST_OF_A_RULE` objects are told apart in that time: an archive of a million
        0777 files, or a loop that wants to fill the disk, is one more finding and its count.
        """
        now = time.monotonic()
        what = what if len(what) <= _LONGEST else what[: _LONGEST - 1] + "…"
        if now - self._since >= _WINDOW:
            self.end()
            self._since = now
        told = self._told.get((rule, what))
        if told is None:
            self._objects[rule] = count = self._objects.get(rule, 0) + 1
            if count > _MOST_OF_A_RULE:
                what = "and others"
                told = self._told.get((rule, what))
        if told is not None:
            told.held_back += 1
            return
        from guard.confine.handlers import advice

        finding = (control, rule, verdict, severity, what, advice.allow(rule, what, allow), pid)
        self._told[rule, what] = _Told(finding)
        self._record(*finding, 1)

    def may_write(self, real: str) -> bool:
        """Whether a real path lies where the tree may write, and is not denied there."""
        return any(real == top or real.startswith(top + "/") for top in self.writable) and not self._denies(real)


__all__ = ["CONTINUE", "PENDING", "Call", "Denied", "Handler", "Supervisor"]
