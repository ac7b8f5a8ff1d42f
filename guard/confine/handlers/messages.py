"""sendmsg and sendmmsg: messages whose address, data and descriptors all stand behind pointers.

On a stream the address means nothing, and where it ends is a descriptor's business: the message is let go, if nobody
else can put another descriptor in this one's place meanwhile. That is so for a process of one thread, unless some
process of the tree has been made with a table of descriptors that it shares (clone with CLONE_FILES, without
CLONE_THREAD), which is asked about as well.

Of any other message everything is copied first: the header, the address, the data, the descriptors it carries. The
address is judged as that of a sendto, and the message sent from here, on a copy of the caller's socket. So neither a
thread that rewrites the header nor one that swaps the descriptor changes what was judged. Credentials that come with
it are then this process's, as SO_PEERCRED of a connection made here has them.
"""

import _ctypes
import _socket
import _struct as struct
import posix as os
import select

from guard.confine.handlers.base import CONTINUE, PENDING
from guard.confine.handlers.taken import INET, Taken, sockaddr
from guard.confine.handlers.waiting import EAGAIN
from guard.kernel import Char, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from guard.confine.handlers.base import Call, Supervisor
    from guard.confine.handlers.datagrams import Datagrams
    from guard.confine.handlers.sockets import UnixSockets
    from guard.confine.handlers.waiting import Waiters

_EPERM, _EINVAL, _EPIPE, _EMSGSIZE, _ENOBUFS = 1, 22, 32, 90, 105
# struct user_msghdr: name, its length, vectors, their number, control, its length, flags
_HEADER = struct.Struct("@QI4xQQQQI4x")
_VECTOR = struct.Struct("@QQ")
_CONTROL = struct.Struct("@Qii")  # struct cmsghdr: length with itself, level, type
_MMSG = 64  # sizeof(struct mmsghdr): a header, and at its end how much was sent
_MOST_VECTORS = 1024  # UIO_MAXIOV
_MOST_CONTROL = 1 << 16
_MOST_DATA, _MOST_AT_ONCE = 1 << 20, 1 << 18  # of a datagram; of a stream, which takes the rest at the next call
_MOST_WAITING = 1 << 25  # bytes of all messages that wait
_SCM_RIGHTS, _SCM_CREDENTIALS = 1, 2
_MSG_DONTWAIT, _MSG_NOSIGNAL, _MSG_ZEROCOPY, _MSG_FASTOPEN = 0x40, 0x4000, 0x4000000, 0x20000000
_SO_ZEROCOPY = 60
_SIGPIPE = 13
_STREAM_OF_INET = (_socket.SOCK_STREAM,)


def _at(content: bytearray) -> int:
    """The address of a buffer that is not empty; the buffer must outlive its use."""
    return _ctypes.addressof(Char.from_buffer(content))


def _parts(control: bytearray) -> "Iterator[tuple[int, int, int, int]]":
    """Of each control message where its data begins and ends, its level and type.

    Raises:
        OSError: EINVAL, as the kernel says to one whose length is none.
    """
    at = 0
    while at + _CONTROL.size <= len(control):
        length, level, kind = _CONTROL.unpack_from(control, at)
        if length < _CONTROL.size or at + length > len(control):
            raise OSError(_EINVAL, "Invalid argument")
        yield at + _CONTROL.size, at + length, level, kind
        at += (length + 7) & ~7


class _Message:
    """One message, copied whole.

    Attributes:
        raw: its address, b"" for none. data: what it says. sent: how much of that is on its way.
    """

    __slots__ = ("control", "data", "fds", "raw", "sent", "whole")

    def __init__(self, call: "Call", header: bytes, stream: bool, unix: bool) -> None:
        name, length, vectors, count, control, size, _ = _HEADER.unpack(header)
        if count > _MOST_VECTORS:
            raise OSError(_EMSGSIZE, "Message too long")
        if size > _MOST_CONTROL:
            raise OSError(_ENOBUFS, "No buffer space available")
        self.fds: list[int] = []
        self.sent = 0
        self.raw = sockaddr(call, name, length) if name and length else b""
        self.data = bytearray()
        self.whole = True
        table = call.read(vectors, count * _VECTOR.size) if count else b""
        for at, wanted in _VECTOR.iter_unpack(table):
            room = (_MOST_AT_ONCE if stream else _MOST_DATA) - len(self.data)
            if wanted > room:
                if not stream:
                    raise OSError(_EMSGSIZE, "Message too long")
                wanted, self.whole = room, False
            if wanted:
                self.data += call.read(at, wanted)
            if not self.whole:
                break
        self.control = bytearray(call.read(control, size)) if control and size else bytearray()
        if unix:
            self._take(call)

    def _take(self, call: "Call") -> None:
        """Take the descriptors that it carries, and put ours in their place."""
        try:
            for first, past, level, kind in _parts(self.control):
                if level == _socket.SOL_SOCKET and kind == _SCM_RIGHTS:
                    for place in range(first, past - 3, 4):
                        fd = call.descriptor(int.from_bytes(self.control[place : place + 4], "little"))
                        self.fds.append(fd)
                        self.control[place : place + 4] = fd.to_bytes(4, "little")
                elif level == _socket.SOL_SOCKET and kind == _SCM_CREDENTIALS and past - first >= 4:
                    self.control[first : first + 4] = os.getpid().to_bytes(4, "little")
        except BaseException:
            self.close()
            raise

    def send(self, fd: int, flags: int, name: bytes) -> int:
        """Send what is left of it, without waiting; descriptors go with the first part."""
        held = bytearray(name), self.data, bytearray(b"" if self.sent else self.control)
        vector = bytearray(_VECTOR.pack(_at(self.data) + self.sent if self.data else 0, len(self.data) - self.sent))
        where, _, control = (_at(one) if one else 0 for one in held)
        header = _HEADER.pack(where, len(held[0]), _at(vector), 1, control, len(held[2]), 0)
        self.sent += syscall("sendmsg", fd, header, flags | _MSG_DONTWAIT | _MSG_NOSIGNAL)
        return self.sent

    def close(self) -> None:
        """Let the descriptors go."""
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


class Messages:
    """The tree's messages.

    Args:
        supervisor: its setting `clone_unseen` says whether processes may share descriptors unseen.
        datagrams: judges where a datagram goes.
        unix: judges unix sockets.
        waiters: wait for queues.
    """

    def __init__(
        self, supervisor: "Supervisor", datagrams: "Datagrams", unix: "UnixSockets", waiters: "Waiters"
    ) -> None:
        self._datagrams, self._unix, self._waiters = datagrams, unix, waiters
        self._waiting = 0
        # Whether two processes may have one table of descriptors.
        self._shared = bool(supervisor.setting("clone_unseen"))

    def sendmsg(self, supervisor: "Supervisor", call: "Call") -> int:
        """sendmsg(socket, message, flags)."""
        with Taken(call, call.args[0]) as socket:
            if self._may_go(call, socket, call.args[2]):
                return CONTINUE
            return self._one(supervisor, call, socket, call.args[1], call.args[2])

    def sendmmsg(self, supervisor: "Supervisor", call: "Call") -> int:
        """sendmmsg(socket, messages, count, flags): as many as go without waiting, at least one."""
        count = min(call.args[2] & 0xFFFFFFFF, _MOST_VECTORS)
        with Taken(call, call.args[0]) as socket:
            if self._may_go(call, socket, call.args[3]):
                return CONTINUE
            for done in range(count):
                at = call.args[1] + done * _MMSG
                try:
                    sent = self._one(supervisor, call, socket, at, call.args[3], at + _HEADER.size, done)
                except OSError:
                    if done:
                        return done  # what failed is said at the next call
                    raise
                if sent == PENDING:
                    return PENDING
                call.write(at + _HEADER.size, sent.to_bytes(4, "little"))
        return count

    def clone(self, supervisor: "Supervisor", call: "Call") -> int:
        """clone(flags, …) that shares the table of descriptors with another process, and not as a thread."""
        self._shared = True
        return CONTINUE

    def _may_go(self, call: "Call", socket: "Taken", flags: int) -> bool:
        """Whether a message is on a stream, and stays on it."""
        kinds = (_socket.SOCK_STREAM, _socket.SOCK_SEQPACKET) if socket.family == _socket.AF_UNIX else _STREAM_OF_INET
        return (
            socket.type in kinds and socket.family in (_socket.AF_UNIX, *INET) and not flags & _MSG_FASTOPEN
            and not self._shared and call.status("Threads") == 1
        )  # fmt: skip

    def _one(
        self, supervisor: "Supervisor", call: "Call", socket: "Taken", at: int, flags: int,
        told_at: int = 0, before: int = 0,
    ) -> int:  # fmt: skip
        """Send one message.

        Args:
            at: where its header is.
            told_at: of several: where to say how much was sent.
            before: of several: how many went before; then nothing waits.
        """
        flags &= 0xFFFFFFFF
        if flags & _MSG_FASTOPEN:
            raise OSError(_EPERM, "Operation not permitted")  # connects past connect(2)
        if flags & _MSG_ZEROCOPY and socket.option(_socket.SOL_SOCKET, _SO_ZEROCOPY):
            raise OSError(_ENOBUFS, "No buffer space available")  # its pages are not ours to lend: copy instead
        stream, unix = socket.type == _socket.SOCK_STREAM, socket.family == _socket.AF_UNIX
        message = _Message(call, call.read(at, _HEADER.size), stream, unix)
        raw, target = message.raw, -1
        moved: _socket.socket | None = None
        try:
            if raw and unix and socket.type == _socket.SOCK_DGRAM:
                raw, target = self._unix.send_to(supervisor, call, raw)
            elif raw and socket.family in INET and not stream:
                raw, moved = self._datagrams.prepare(supervisor, call, socket, raw)
            call.check()
            fd = socket.fd if moved is None else moved.fileno()
            wait = socket.blocks() and not flags & _MSG_DONTWAIT
            flags &= ~_MSG_ZEROCOPY
            try:
                sent: int = call.outside(message.send, fd, flags, raw)  # a unix socket's file is asked
                if sent == len(message.data) or not wait:
                    return sent
            except OSError as error:
                if error.errno == _EPIPE and stream and not flags & _MSG_NOSIGNAL:
                    os.kill(call.pid, _SIGPIPE)  # as the kernel does to who writes where nobody reads
                if error.errno != EAGAIN or not wait or before:
                    raise
            return self._wait(call, socket, message, flags, raw, (fd, target), told_at)
        finally:
            message.close()
            if moved is not None:
                moved.close()
            if target >= 0:
                os.close(target)

    def _wait(
        self, call: "Call", socket: "Taken", message: "_Message", flags: int, raw: bytes, ends: "tuple[int, int]",
        told_at: int,
    ) -> int:  # fmt: skip
        """Leave the rest to a thread: what it needs is kept, and closed with the call."""
        if self._waiting + len(message.data) > _MOST_WAITING:
            if message.sent:
                return message.sent
            raise OSError(_ENOBUFS, "No buffer space available")
        # poll(2) tells of room in one's own buffer, not in a unix receiver's queue.
        stream = socket.type == _socket.SOCK_STREAM
        events = select.POLLOUT if stream or socket.family != _socket.AF_UNIX else 0
        kept = tuple(os.dup(one) for one in (*ends, *message.fds) if one >= 0)
        if ends[1] >= 0:
            raw = b"\1\0/proc/self/fd/%d\0" % kept[1]
        carried = dict(zip(message.fds, kept[len(kept) - len(message.fds) :], strict=True))
        rest = _Rest(message, kept[0], flags, raw, carried, self._wait_for)

        def attempt() -> int:
            sent = rest.go_on()
            if told_at:
                call.write(told_at, sent.to_bytes(4, "little"))
            return 1 if told_at else sent

        def so_far() -> int:
            return min(1, rest.sent) if told_at else rest.sent

        try:
            self._waiters.add(call, kept, events, attempt, socket.limit(), so_far=so_far)
        except OSError:
            for one in kept:
                os.close(one)
            if rest.sent:
                return rest.sent
            raise
        return PENDING

    def _wait_for(self, more: int) -> None:
        self._waiting += more


class _Rest:
    """A message of which a part waits; its descriptors are other copies by then."""

    def __init__(
        self, message: "_Message", fd: int, flags: int, raw: bytes, carried: "dict[int, int]",
        count: "Callable[[int], None]",
    ) -> None:  # fmt: skip
        self._count = count
        count(len(message.data))
        self._data, self._control, self.sent = message.data, bytearray(message.control), message.sent
        self._fd, self._flags, self._raw = fd, flags, raw
        if carried and not self.sent:
            _renumber(self._control, carried)

    def __del__(self) -> None:
        self._count(-len(self._data))

    def go_on(self) -> int:
        """Send until all is sent.

        Raises:
            OSError: EAGAIN, when the queue is full again.
        """
        while True:
            part = _Message.__new__(_Message)
            part.data, part.sent, part.control, part.fds = self._data, self.sent, self._control, []
            self.sent = part.send(self._fd, self._flags, self._raw)
            if self.sent >= len(self._data):
                return self.sent


def _renumber(control: bytearray, carried: "dict[int, int]") -> None:
    for first, past, level, kind in _parts(control):
        if level == _socket.SOL_SOCKET and kind == _SCM_RIGHTS:
            for place in range(first, past - 3, 4):
                fd = carried[int.from_bytes(control[place : place + 4], "little")]
                control[place : place + 4] = fd.to_bytes(4, "little")


__all__ = ["Messages"]
