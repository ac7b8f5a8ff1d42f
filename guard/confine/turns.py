"""Who judges a tree's calls: one thread at a time, and another as soon as a file system holds that one up.

A supervisor makes the calls that it is asked about, so a dead file server or FUSE daemon that the tree touches holds
the supervisor up as it would have held up the caller, and no signal but the last one ends that. Only this one caller
shall wait. What may hang is made through `Turn.outside`; whoever stays there longer than `PATIENCE` loses the turn, a
new thread takes the next call, and the one held up waits for the turn again when its file system answers. Everything
else is done in turn, so handlers need no locks.

The threads share umask, working directory and root, and change none of them.
"""

import _signal  # type: ignore[import-not-found] # as in guard.confine.supervise
import _thread
import posix as os
import select
import time

from guard.kernel import notify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from guard.confine.supervise import Supervisor

PATIENCE = 0.05  # seconds; a call that no file system holds up is answered in well under one millisecond
MOST_HELD = 32  # callers that may wait for file systems at once
_MOST_THREADS = 2 * MOST_HELD  # with those whose own memory is what a file system does not give


class Crowded(Exception):  # noqa: N818 - a state of the supervisor, not an error of its own
    """So many callers wait for file systems already that no other may."""


class Turn:
    """The turn as one thread has it.

    Args:
        turns: whose.
    """

    __slots__ = ("_away", "_marks", "_nested", "_turns")

    def __init__(self, turns: "Turns") -> None:
        self._turns = turns
        # What it holds while it is outside. Whoever takes that out, it or `Turns.look`, has the turn: one pop wins.
        self._away: list[int] = []
        self._marks = 0
        self._nested = False

    def outside(self, make: "Callable[..., Any]", *args: object) -> "Any":  # noqa: ANN401 - what `make` returns
        """Make a call that a file system may hold up; what others do meanwhile is done when this returns.

        Args:
            make: touches nothing that handlers share.
            args: its arguments.

        Raises:
            Crowded: too many are held up already.
        """
        if self._turns.crowded and not self._nested:
            raise Crowded
        return self.anyway(make, *args)

    def anyway(self, make: "Callable[..., Any]", *args: object) -> "Any":  # noqa: ANN401 - as above
        """As `outside`, however many are held up: for what hardly ever is, and must be done for every caller."""
        if self._nested:
            return make(*args)
        self._nested = True
        self._marks += 1
        self._away.append(self._marks)
        self._turns.watch()
        try:
            return make(*args)
        finally:
            self._nested = False
            try:
                self._away.pop()
            except IndexError:  # the turn is another's
                self._turns.regain(self)

    def mark(self) -> int:
        """Which call it is outside for, 0 for none."""
        try:
            return self._away[0]
        except IndexError:
            return 0

    def lose(self) -> bool:
        """Take the turn away; False where it has just come back."""
        try:
            self._away.pop()
        except IndexError:
            return False
        return True


class Turns:
    """The threads that answer one tree's calls.

    Args:
        listener: where the calls come from.
        supervisor: answers.
        woken: the pipe that wakes the thread which calls `look`, not blocking.
    """

    def __init__(self, listener: int, supervisor: "Supervisor", woken: int) -> None:
        self._listener, self._supervisor, self._woken = listener, supervisor, woken
        self._lock = _thread.allocate_lock()  # held by who has the turn
        self._holder: Turn | None = None
        self._leader: Turn | None = None  # whose thread takes the calls
        self._keeping: Turn | None = None  # who looks after protected names
        self._seen: tuple[Turn | None, int] = (None, 0)
        self._held: set[Turn] = set()
        self._look_at = 0.0
        self.watched = False
        self.crowded = False
        self.over = False  # nobody uses the filter any more, or we cannot go on
        self.fault: BaseException | None = None
        self.ending = False  # somebody goes on making a protected name: the session is to end
        if not self._lead():
            raise OSError(11, "Resource temporarily unavailable")

    # For the thread that watches --------------------------------------------------------------------------

    def pause(self) -> "int | None":
        """For how many milliseconds nothing needs a look; None for good."""
        return max(1, round(1000 * (self._look_at - time.monotonic()))) if self.watched else None

    def look(self) -> None:
        """Take the turn from a thread that has been held up since the last look."""
        now = time.monotonic()
        if not self.watched or now < self._look_at:
            return
        self._look_at = now + PATIENCE
        self.watched = False
        holder = self._holder
        mark = holder.mark() if holder else 0
        if not holder or not mark:
            self._seen = (None, 0)
            if self._holder is not None:  # who began between the two lines saw that he was watched
                self.watched = True
            return
        self.watched = True
        if self._seen != (holder, mark):
            self._seen = (holder, mark)
            return
        if len(self._held) >= _MOST_THREADS or (holder is self._leader and not self._lead()):
            return  # nobody can take its place now, and perhaps at the next look
        if not holder.lose():
            return
        self._held.add(holder)
        self.crowded = len(self._held) >= MOST_HELD
        self._holder = None
        self._lock.release()

    def _lead(self) -> bool:
        """Start a thread that takes the calls from now on; False where the user has as many as may be."""
        turn = Turn(self)
        before, self._leader = self._leader, turn
        try:
            _thread.start_new_thread(self._serve, (turn,))
        except RuntimeError:
            self._leader = before
            return False
        return True

    # For the threads that answer --------------------------------------------------------------------------

    def watch(self) -> None:
        """Have somebody look at how long this takes."""
        if not self.watched:
            self.watched = True
            self._wake()

    def regain(self, turn: "Turn") -> None:
        """Wait for the turn again."""
        self._lock.acquire()
        self._holder = turn
        self._held.discard(turn)
        self.crowded = len(self._held) >= MOST_HELD

    def beside(self, act: "Callable[[], None]") -> None:
        """Do something for the session on a thread of its own, which ends with it; its faults end nothing."""

        def run() -> None:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
            try:
                act()
            except OSError:
                return

        try:
            _thread.start_new_thread(run, ())
        except RuntimeError:
            return  # the user has as many processes as may be

    def in_turn(self, act: "Callable[[], None]") -> None:
        """Do something with what handlers share, from a thread of one's own."""
        self._take(Turn(self), act)

    def _wake(self) -> None:
        try:
            os.write(self._woken, b"w")
        except BlockingIOError:
            return  # it has been woken often enough

    def _serve(self, turn: "Turn") -> None:
        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())  # they are for who watches
            self._answer_while_leading(turn)
        except BaseException as error:  # noqa: BLE001 - said by the thread that watches, which ends the session
            self.fault, self.over = error, True
            self._wake()

    def _answer_while_leading(self, turn: "Turn") -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        kept = -1
        while self._leader is turn:
            keeper = self._supervisor.keeper
            if keeper and kept < 0 and not self._keeping:
                kept = keeper.fileno()
                poll.register(kept, select.POLLIN)
            found = dict(poll.poll(1000 if keeper and kept < 0 else None))
            if kept in found and keeper:  # what has appeared is looked at before anything is answered
                self._keeping = turn
                self._take(turn, lambda: self._keep(turn))
                self._keeping = None
                continue
            told = found.get(self._listener, 0)
            # POLLERR alone: the kernel was interrupted as it waited for the listener's lock (a stop, a freezer).
            if not told & (select.POLLIN | select.POLLHUP):
                continue
            if not told & select.POLLIN:  # nobody uses the filter any more
                self.over = True
                self._wake()
                return
            call = notify.receive(self._listener)
            if call is not None:
                call.turn = turn
                self._take(turn, lambda call=call: self._supervisor.answer(call))  # type: ignore[misc]

    def _take(self, turn: "Turn", act: "Callable[[], None]") -> None:
        """Do something in turn."""
        self._lock.acquire()
        self._holder = turn
        try:
            act()
        finally:
            self._holder = None
            self._lock.release()

    def _keep(self, turn: "Turn") -> None:
        keeper = self._supervisor.keeper
        if keeper and keeper.look(turn):
            self.ending = True
            self._wake()


__all__ = ["Crowded", "Turn", "Turns"]
