"""A process whose calls a test answers: the one that asks, and the test in the supervisor's place."""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from guard.kernel import MACHINE, PR_SET_NO_NEW_PRIVS, notify, prctl
from guard.kernel.numbers import numbers
from guard.policy.supervised import head

ALLOW = struct.pack("@HBBI", 6, 0, 0, 0x7FFF0000)


@contextmanager
def asking(act: Callable[[], object], calls: Sequence[str]) -> Iterator[tuple[int, int]]:
    """A child that performs `act` with some calls notified; gives (listener, its pid)."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            ours.close()
            prctl(PR_SET_NO_NEW_PRIVS, 1)
            listener = notify.load_listener(head(dict.fromkeys(calls, ()), numbers(MACHINE), MACHINE) + ALLOW, 0)
            theirs.sendmsg([b"l"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))])
            os.close(listener)
            theirs.recv(1)
            act()
        finally:
            os._exit(0)
    theirs.close()
    _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4))
    (listener,) = struct.unpack("i", ancillary[0][2][:4])
    ours.send(b"g")
    try:
        yield listener, child
    finally:
        os.close(listener)
        ours.close()
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def calls_of(listener: int, seconds: float = 20) -> Iterator[notify.Call]:
    """Each call as it comes, until nobody can make one any more."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        events = poll.poll(seconds * 1000)
        assert events, "nobody asked"
        if not events[0][1] & select.POLLIN:
            if events[0][1] & select.POLLHUP:
                return
            continue  # POLLERR: a signal came as the kernel waited for the listener's lock
        call = notify.receive(listener)
        if call is not None:
            yield call
