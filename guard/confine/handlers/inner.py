"""Sandboxes that programs of the tree enter by themselves (Landlock): no call of the supervisor's leads out of one.

The kernel asks Landlock's rules of the task that makes a call, and what is judged here is made by the supervisor, which
is in no sandbox. So whoever enters one is noted. Its ruleset is kept, and its process gets a mark: a limit that every
child inherits, that the filter lets nobody change, and that is none (RLIMIT_RTTIME of some hundred thousand years).
What is then made for a marked process is made by a thread that has entered the same rulesets.

A mark is a process's, with all its threads. That somebody who enters a sandbox exchanges the ruleset in that very
moment, or adds rules to it afterwards, harms nobody but himself.
"""

import _thread
import posix as os
import sys

from guard.confine.handlers.base import CONTINUE, Call, Supervisor
from guard.kernel import MACHINE, libc_syscall, syscall
from guard.kernel.notify import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from guard.confine.handlers.base import Handler

    Chain = tuple["_Ruleset | None", ...]

_EBADF, _EAGAIN, _EACCES = 9, 11, 13
_RLIMIT_RTTIME = 15
_FIRST = 1 << 62  # microseconds; each sandbox has one less, since nobody may raise a limit
_MOST = 256  # sandboxes in mind before those that nobody is in are forgotten
_KCMP = {"x86_64": 312, "aarch64": 272}.get(MACHINE, -1)
_KIND = "landlock-ruleset"


class _Ruleset:
    """A ruleset's descriptor, closed with the last sandbox made of it."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class Inner:
    """The sandboxes within one tree."""

    def __init__(self) -> None:
        self._chains: dict[int, Chain] = {}  # a mark, and the rulesets from the outermost on; None for one unknown
        self._next = _FIRST
        self._most = _MOST

    def handlers(self) -> "dict[str, Handler]":
        """The calls of this file."""
        return {"landlock_restrict_self": self.entered}

    def entered(self, supervisor: "Supervisor", call: "Call") -> int:
        """landlock_restrict_self(ruleset, flags): whoever asks will be in it, and the kernel makes the call."""
        before = self.around(call)
        ruleset: _Ruleset | None = None
        try:
            ruleset = _Ruleset(call.descriptor(call.args[0]))
        except Unreadable:
            pass  # of one that cannot be read nothing is made either, until it executes another
        except OSError as error:
            if error.errno == _EBADF:
                return CONTINUE  # flags alone, or a mistake: the kernel's to say
            raise  # whoever cannot be noted does not enter
        if ruleset is not None:
            if _KIND not in os.readlink(f"/proc/self/fd/{ruleset.fd}"):
                return CONTINUE
            if any(one is not None and _is_same(one.fd, ruleset.fd) for one in before):
                return CONTINUE  # its other threads, one after another
        if len(self._chains) >= self._most:
            alive = _marks() | _marks()  # twice, for what was forked from one that had been looked at
            self._chains = {mark: chain for mark, chain in self._chains.items() if mark in alive}
            self._most = max(_MOST, 2 * len(self._chains))
        self._next -= 1
        process = call.status("Tgid")
        syscall("prlimit64", process, _RLIMIT_RTTIME, self._next.to_bytes(8, sys.byteorder) * 2, None)
        self._chains[self._next] = (*before, ruleset)
        return CONTINUE

    def around(self, call: "Call") -> "Chain":
        """The sandboxes that a caller is in; `within` makes calls from there.

        Raises:
            OSError: that cannot be found out now, and nothing may be made.
        """
        if not self._chains:
            return ()
        try:
            mark = _mark(call.pid)
        finally:
            call.check()
        if not _FIRST - (1 << 40) < mark < _FIRST:
            return ()
        return self._chains.get(mark, (None,))


def within(chain: "Chain", make: "Callable[..., int]", *args: object) -> int:
    """Make a call from within sandboxes; it must not wait.

    Raises:
        OSError: the call's, or EACCES where a sandbox is not known.
    """
    if not chain:
        return make(*args)
    done, results, errors = _thread.allocate_lock(), [], []

    def serve() -> None:
        try:
            for one in chain:
                if one is None:
                    raise OSError(_EACCES, "Permission denied")  # noqa: TRY301 - it is answered below
                syscall("landlock_restrict_self", one.fd, 0)
            results.append(make(*args))
        except BaseException as error:  # noqa: BLE001 - the caller's to see
            errors.append(error)
        finally:
            done.release()

    done.acquire()
    try:
        _thread.start_new_thread(serve, ())
    except RuntimeError:  # the user has as many processes as may be
        raise OSError(_EAGAIN, "Resource temporarily unavailable") from None
    done.acquire()
    if errors:
        raise errors[0]
    return results[0]


def _mark(pid: int) -> int:
    """A process's mark, -1 for none."""
    with open(f"/proc/{pid}/limits", "rb") as file:
        word = file.read().partition(b"\nMax realtime timeout")[2].split(None, 1)[0]
    return int(word) if word.isdigit() else -1


def _marks() -> "set[int]":
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found.add(_mark(int(name)))
            except (OSError, IndexError):
                continue  # gone; and a mark that is missed here is one unknown, of which nothing is made
    return found


def _is_same(one: int, other: int) -> bool:
    """Whether two descriptors of ours are of one open file (KCMP_FILE)."""
    own = os.getpid()
    return bool(libc_syscall(_KCMP, own, own, 0, one, other) == 0)


__all__ = ["Inner", "within"]
