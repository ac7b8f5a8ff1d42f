"""Calls that take their time: a connect to a host that does not answer, a datagram to a full queue.

The supervisor never waits itself. What would block is started without blocking and looked after by one
thread, for any number of calls. A caller that is being answered does not get its signals (the filter asks for
WAIT_KILLABLE_RECV, so that no half-done call is repeated), and here that would last for minutes: a caller for
whom a signal waits is sent out of the call as the kernel itself would send it, with ERESTARTSYS. Then its
handler runs, and the kernel decides by SA_RESTART whether the call fails with EINTR or is made again.
"""

import _thread
import posix as os
import select
import sys
import time

from guard.kernel import process_fields, syscall
from guard.kernel.notify import Call, Gone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

EINTR, EAGAIN, EALREADY, EINPROGRESS, ERESTARTSYS = 4, 11, 114, 115, 512
_STILL = (EAGAIN, EALREADY, EINPROGRESS)
_TICK, _RETRY = 0.02, 0.005  # seconds between looks at signals, and at queues that poll(2) does not watch
_EACH = 0.0005  # what a look at one caller may cost at most, as a share of the tick
_MOST = 4096
_RLIMIT_NOFILE = 7


class _Waiting:
    __slots__ = ("attempt", "call", "deadline", "events", "fds", "late", "restarts", "so_far")

    def __init__(
        self,
        call: "Call",
        fds: "tuple[int, ...]",
        events: int,
        attempt: "Callable[[], int]",
        deadline: float,
        late: int,
        so_far: "Callable[[], int]",
    ) -> None:
        self.so_far = so_far
        self.call, self.fds, self.events, self.attempt = call, fds, events, attempt
        self.deadline, self.late = deadline, late
        self.restarts = deadline == 0  # with a time limit of its own the kernel answers EINTR (sock_intr_errno)


class Waiters:
    """The calls of one tree that wait; its thread starts with the first."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._new: list[_Waiting] = []
        self._count, self._most = 0, 64
        self._wake, self._woken = -1, -1

    def add(
        self,
        call: "Call",
        fds: "tuple[int, ...]",
        events: int,
        attempt: "Callable[[], int]",
        limit: float = 0,
        late: int = EAGAIN,
        so_far: "Callable[[], int]" = lambda: 0,
    ) -> None:
        """Answer a call as soon as an attempt at it ends.

        Args:
            call: who waits; closed here.
            fds: the socket, and whatever else the attempt needs; closed here.
            events: what to poll it for; 0 where poll(2) does not tell and trying again must.
            attempt: does it without blocking; an EAGAIN, EALREADY or EINPROGRESS means: not yet.
            limit: seconds that the caller itself gave it (SO_SNDTIMEO), 0 for none. late: the errno after that.
            so_far: what to answer instead of an error where a part is done already, 0 while none is.

        Raises:
            OSError: EAGAIN, where too many wait; nothing is closed then.
        """
        self._start()
        with self._lock:
            if self._count >= self._most:
                raise OSError(EAGAIN, "Resource temporarily unavailable")
            self._count += 1
            deadline = time.monotonic() + limit if limit else 0
            self._new.append(_Waiting(call, fds, events, attempt, deadline, late, so_far))
        try:
            os.write(self._woken, b"w")
        except BlockingIOError:
            return  # it has been woken often enough

    def _start(self) -> None:
        if self._woken >= 0:
            return
        # This thread and the one that answers take turns often: neither is to wait long for the other.
        sys.setswitchinterval(0.0005)
        # A descriptor or two each; one in two at most is for those that wait.
        self._most = min(_MOST, _more_descriptors() // 4)
        self._wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _thread.start_new_thread(self._serve, ())
        except RuntimeError:  # the user has as many processes as may be
            os.close(self._wake)
            os.close(woken)
            raise OSError(EAGAIN, "Resource temporarily unavailable") from None
        self._woken = woken

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        waiting: list[_Waiting] = []
        looked = 0.0
        while True:
            ready = dict(poll.poll(self._pause(waiting)))
            if ready.pop(self._wake, 0):
                os.read(self._wake, 4096)
            with self._lock:
                new, self._new = self._new, []
            for one in new:
                if one.events:
                    poll.register(one.fds[0], one.events)
                ready[one.fds[0]] = 1
            waiting += new
            now = time.monotonic()
            look = now - looked >= max(_TICK, _EACH * len(waiting))
            looked = now if look else looked
            left = []
            for one in waiting:
                watched = one.events and one.fds[0] in ready
                if self._ended(one, bool(watched) or not one.events, look, now):
                    if one.events:
                        poll.unregister(one.fds[0])
                    self._release(one)
                    continue
                if watched and one not in new:
                    # Ready, and yet it would wait: polled again it would say the same at once, for ever.
                    poll.unregister(one.fds[0])
                    one.events = 0
                left.append(one)
            waiting = left

    def _pause(self, waiting: "list[_Waiting]") -> "int | None":
        if not waiting:
            return None
        seconds = _TICK if all(one.events for one in waiting) else _RETRY
        return int(1000 * max(seconds, _EACH * len(waiting)))

    def _ended(self, one: "_Waiting", ready: bool, look: bool, now: float) -> bool:
        """Attempt it, or see whether its caller can wait no longer; whether it has been answered."""
        late = one.deadline and now >= one.deadline
        if not (ready or look or late):
            return False
        try:
            one.call.check()
            code = 0
            if ready:
                try:
                    result = one.attempt()
                except OSError as error:
                    code = error.errno or 13
                else:
                    one.call.answer(result)
                    return True
            if code in (0, *_STILL):
                code = one.late if late else 0
            if not code and look:
                code = interrupted(one.call.pid)
                code = EINTR if code and not one.restarts else code
            if code and one.so_far():
                one.call.answer(one.so_far())
            elif code:
                one.call.answer(0, code)
        except Gone:
            return True
        except Exception:  # noqa: BLE001 - a defect of ours ends the call, not the thread
            one.call.answer(0, 13)
            return True
        return code != 0

    def _release(self, one: "_Waiting") -> None:
        for fd in one.fds:
            os.close(fd)
        with self._lock:
            self._count -= 1


def _more_descriptors() -> int:
    """Have as many descriptors as this user may; returns how many."""
    with open("/proc/self/limits", "rb") as file:
        words = file.read().partition(b"\nMax open files")[2].split(None, 2)
    soft, hard = (1 << 20 if word == b"unlimited" else int(word) for word in words[:2])
    try:
        syscall("prlimit64", 0, _RLIMIT_NOFILE, hard.to_bytes(8, sys.byteorder) * 2, None)
    except OSError:
        return soft
    return hard


def interrupted(pid: int) -> int:
    """What a caller must be answered because a signal waits for it; 0 for none.

    ERESTARTSYS must meet the flag that a signal has set on this thread (TIF_SIGPENDING), or it would reach the
    program. A thread that is being answered does not clear it. It is set for a signal sent to the thread, and
    for one sent to the process where this is its main thread: the kernel wakes that one first
    (complete_signal). Of another thread it is not known, and where the main thread leaves the signal to
    others, this one is told EINTR.

    Raises:
        Gone: the caller has ended.
    """
    masks = _masks(pid)
    heard = ~(masks[b"SigBlk"] | masks[b"SigIgn"])
    group = masks[b"Tgid"]
    if masks[b"SigPnd"] & heard or (masks[b"ShdPnd"] & heard and group == pid):
        return ERESTARTSYS
    if masks[b"Threads"] == 1:
        return 0
    if masks[b"ShdPnd"] & heard & _masks(group)[b"SigBlk"]:
        return EINTR
    return ERESTARTSYS if _stops(pid, group) else 0  # a stop sets the flag on every thread


def _masks(pid: int) -> "dict[bytes, int]":
    """The signals of a thread, its process and its process's threads, from /proc/PID/status."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            text = file.read()
    except OSError:
        raise Gone from None
    found = {}
    for name in (b"Tgid", b"Threads", b"SigPnd", b"ShdPnd", b"SigBlk", b"SigIgn"):
        at = text.index(b"\n" + name + b":\t") + len(name) + 3
        found[name] = int(text[at : text.index(b"\n", at)], 16 if name.startswith((b"Sig", b"Shd")) else 10)
    return found


def _stops(pid: int, group: int) -> bool:
    """Whether the process has been stopped, but for this thread: another one shows it."""
    try:
        threads = (int(name) for name in os.listdir(f"/proc/{pid}/task"))
        other = group if group != pid else next(thread for thread in threads if thread != pid)
        return process_fields(other)[0] == b"T"
    except (OSError, ValueError, StopIteration):
        return False
