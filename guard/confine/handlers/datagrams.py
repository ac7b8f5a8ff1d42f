"""UDP: without a socket that the whole network can reach.

A UDP socket that sends before it is bound takes a port on every address, and a program may be let to be heard
there. So every UDP socket is made here, with a filter of its own that lets in what comes from this
host, and what comes from where `network.connect` lets the tree send; it is locked, and nothing takes it off.
What sends by sendto(2) is besides bound to loopback first, or connected to where it sends: then that peer alone
can answer. Programs that bind to the wildcard and send to a name server (musl's resolver) find their socket
replaced by one that is connected there.
"""

import _socket
import posix as os
import select
import time

from guard.confine.handlers.addresses import Address, parsed
from guard.confine.handlers.base import CONTINUE, PENDING
from guard.confine.handlers.taken import INET, SO_PROTOCOL, Taken, make, sockaddr, start
from guard.confine.handlers.waiting import EAGAIN
from guard.kernel import diag, socket_filter, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from guard.confine.handlers.base import Call, Supervisor
    from guard.confine.handlers.network import Network
    from guard.confine.handlers.sockets import UnixSockets
    from guard.confine.handlers.waiting import Waiters

_EPERM, _EINVAL, _EMSGSIZE, _EPROTONOSUPPORT, _EAFNOSUPPORT, _ENOBUFS = 1, 22, 90, 93, 97, 105
_UDP = (0, _socket.IPPROTO_UDP)
_PING = (_socket.IPPROTO_ICMP, _socket.IPPROTO_ICMPV6)
_DNS = 53
_MOST_DATA = 1 << 20
_MSG_DONTWAIT, _MSG_NOSIGNAL, _MSG_ZEROCOPY, _MSG_FASTOPEN = 0x40, 0x4000, 0x4000000, 0x20000000
_SO_ZEROCOPY = 60
_AF_UNSPEC = bytes(16)
_MOST_MOVABLE = 4096
_PATIENCE = 1.0  # seconds that a peer has for its answer before another is asked

_SOL, _IP, _IPV6 = _socket.SOL_SOCKET, 0, 41
_OPTIONS = (
    (_SOL, 6), (_SOL, 12), (_SOL, 29),  # SO_BROADCAST, SO_PRIORITY, SO_TIMESTAMP
    (_IP, 1), (_IP, 2), (_IP, 8), (_IP, 10), (_IP, 11), (_IP, 12), (_IP, 13),  # TOS … RECVTOS
    (_IPV6, 23), (_IPV6, 25), (_IPV6, 26), (_IPV6, 49), (_IPV6, 51), (_IPV6, 66), (_IPV6, 67),
)  # fmt: skip
"""What a socket that takes another's place has of it: each option an int (linux/in.h, linux/in6.h)."""
_BUFFERS = ((_SOL, 7), (_SOL, 8))  # SO_SNDBUF, SO_RCVBUF: given back doubled
_TIMES = ((_SOL, 20), (_SOL, 21))  # SO_RCVTIMEO, SO_SNDTIMEO: struct timeval


class Datagrams:
    """The tree's datagrams with an address.

    Args:
        net: judges destinations.
        unix: judges unix sockets.
        waiters: wait for queues.
    """

    def __init__(self, net: "Network", unix: "UnixSockets", waiters: "Waiters") -> None:
        self._net, self._unix, self._waiters = net, unix, waiters
        self._movable: dict[int, float] = {}  # cookies of sockets that asked for any port of every address, and when
        self._spoilt: set[int] = set()
        self._heard: tuple[frozenset[bytes], bytes] = (frozenset(), b"")
        self._asked: dict[int, float] = {}  # connected here and not by their programs, and when

    def socket(self, supervisor: "Supervisor", call: "Call") -> int:
        """socket(family, type, protocol) for datagrams of IPv4 or IPv6; asked about nothing else.

        The three are numbers: where there is nothing to add, the kernel may go by them.
        """
        family, kind, protocol = (argument & 0xFFFFFFFF for argument in call.args[:3])
        if protocol in _PING:
            return CONTINUE
        if protocol not in _UDP:
            raise OSError(_EPROTONOSUPPORT, "Protocol not supported")  # as `guard.policy.refusals`
        program = self._program(supervisor)
        if not program or not _same_network(call.pid):
            return CONTINUE
        with _Fresh(family, kind, protocol, program) as fresh:
            try:
                call.install(fresh.fileno(), kind & os.O_CLOEXEC)
            except OSError as error:
                if error.errno != _EINVAL:
                    raise
                return CONTINUE  # before Linux 5.14
        return PENDING  # answered by that

    def _program(self, supervisor: "Supervisor") -> bytes:
        """The filter of UDP sockets; empty where the policy leaves nothing to filter."""
        rules = supervisor.setting("connect")
        held = supervisor.mode("bind") == "enforce" and supervisor.setting("bind") != "any"
        if not held or rules is None or supervisor.mode("connect") != "enforce":
            return b""
        servers = self._net.name_servers(supervisor)
        if self._heard[0] != servers or not self._heard[1]:
            peers = [(_DNS, _DNS, host, 8 * len(host)) for host in servers]
            for ports, network, _ in rules:
                if network != "loopback":
                    where, length = (b"", 0) if network == "any" else parsed(network)
                    peers += [(low, high, where, length) for low, high in ports]
            self._heard = (servers, socket_filter.hears(peers))
        return self._heard[1]

    def bind_for_all(self, supervisor: "Supervisor", call: "Call", socket: "Taken", raw: bytes) -> bool:
        """Bind where `bind_allow` lets a program serve others: by a socket that hears them."""
        if not self._program(supervisor):
            return False
        moved = _moved(call, call.args[0], socket, lambda fresh: make("bind", fresh, raw), b"")
        if moved is None:
            return False
        self._net.remember(diag.marks(moved))
        moved.close()
        return True

    def may_move(self, cookie: int) -> None:
        """Remember a socket that was bound to loopback where its program left everything open."""
        _remember(self._movable, cookie)

    def spoil(self, socket: "Taken") -> None:
        """Tie a socket for good to a peer that sends nothing (port 9, RFC 863)."""
        self._spoilt.add(socket.marks()[0])
        bound = socket.name()
        start(socket.fd, bound.raw()[:2] + b"\0\x09" + bound.raw()[4:])

    def connect(self, supervisor: "Supervisor", call: "Call", socket: "Taken", address: "Address") -> int:
        """Connect a datagram socket to where it may send; that never waits."""
        marks = socket.marks()
        if not address.is_loopback() and address.port and marks[0] in self._movable:
            moved = self._move(supervisor, call, socket, address.raw())
            if moved is not None:
                self._net.remember(diag.marks(moved))
                moved.close()
                return 0
        self.dissolve(call, socket)
        result = start(socket.fd, address.raw())
        self._net.remember(marks)
        return result

    def dissolve(self, call: "Call", socket: "Taken") -> None:
        """Make sure that a socket may have another peer."""
        if socket.marks()[0] in self._spoilt:
            raise OSError(_EINVAL, "Invalid argument")
        call.check()

    def sendto(self, supervisor: "Supervisor", call: "Call") -> int:
        """sendto(socket, data, length, flags, address, length) with an address: done here as a whole."""
        flags, length = call.args[3] & 0xFFFFFFFF, call.args[2]
        if flags & _MSG_FASTOPEN:
            raise OSError(_EPERM, "Operation not permitted")  # connects past connect(2)
        target = -1
        moved: _socket.socket | None = None
        with Taken(call, call.args[0]) as socket:
            raw = sockaddr(call, call.args[4], call.args[5])
            if flags & _MSG_ZEROCOPY and socket.option(_SOL, _SO_ZEROCOPY):
                raise OSError(_ENOBUFS, "No buffer space available")  # its pages are not ours to lend: copy instead
            if length > _MOST_DATA:
                if socket.type != _socket.SOCK_STREAM:
                    raise OSError(_EMSGSIZE, "Message too long")
                length = _MOST_DATA
            try:
                if socket.family == _socket.AF_UNIX and socket.type == _socket.SOCK_DGRAM:
                    raw, target = self._unix.send_to(supervisor, call, raw)
                elif socket.family in INET and socket.type != _socket.SOCK_STREAM:
                    raw, moved = self.prepare(supervisor, call, socket, raw)
                data = call.read(call.args[1], length) if length else b""
                call.check()
                fd = socket.fd if moved is None else moved.fileno()
                return self._send(call, socket, data, flags & ~_MSG_ZEROCOPY, raw, fd, target)
            finally:
                if moved is not None:
                    moved.close()
                if target >= 0:
                    os.close(target)

    def _send(self, call: "Call", socket: "Taken", data: bytes, flags: int, raw: bytes, fd: int, target: int) -> int:
        wait = socket.blocks() and not flags & _MSG_DONTWAIT
        flags |= _MSG_DONTWAIT | _MSG_NOSIGNAL
        try:
            return int(call.outside(syscall, "sendto", fd, data, len(data), flags, raw or None, len(raw)))
        except OSError as error:
            if error.errno != EAGAIN or not wait:
                raise
        # poll(2) tells of room in one's own buffer, not in a unix receiver's queue.
        events = 0 if socket.family == _socket.AF_UNIX else select.POLLOUT
        limit, kept = socket.limit(), [os.dup(one) for one in (fd, target) if one >= 0]
        name = b"\1\0/proc/self/fd/%d\0" % kept[1] if len(kept) > 1 else raw
        try:
            self._waiters.add(
                call, tuple(kept), events,
                lambda: syscall("sendto", kept[0], data, len(data), flags, name or None, len(name)), limit,
            )  # fmt: skip
        except OSError:
            for one in kept:
                os.close(one)
            raise
        return PENDING

    def prepare(
        self, supervisor: "Supervisor", call: "Call", socket: "Taken", raw: bytes
    ) -> "tuple[bytes, _socket.socket | None]":
        """Judge where a datagram goes and see to it that nobody else can answer.

        Returns:
            The sockaddr, and the one to send through in the socket's place, or None.
        """
        if len(raw) >= 2 and raw[:2] == bytes(2) and socket.family == _socket.AF_INET6:
            # No address at all (udpv6_sendmsg): to the peer it is connected to. And none must go on: the socket may
            # become IPv4's meanwhile (IPV6_ADDRFORM), which reads one there (udp_sendmsg).
            return b"", None
        try:
            address = Address(socket.family, raw, datagram=True)
        except ValueError:
            if socket.family == _socket.AF_INET and len(raw) >= 16:  # sizeof(struct sockaddr_in)
                raise OSError(_EAFNOSUPPORT, "Address family not supported by protocol") from None
            raise OSError(_EINVAL, "Invalid argument") from None
        if not address.port and socket.option(_SOL, SO_PROTOCOL) in _UDP:
            raise OSError(_EINVAL, "Invalid argument")  # udp_sendmsg
        self._net.judge(supervisor, call, address, socket, "sendto")
        raw = address.raw()
        if supervisor.mode("bind") != "enforce" or supervisor.setting("bind") == "any":
            return raw, None
        bound, marks = socket.name(), socket.marks()
        if address.is_local():
            if bound.port == 0:
                call.check()
                # IPv4's loopback for what is IPv4 in truth, also when a v6 socket sends it.
                make("bind", socket.fd, bound.to_loopback(dual=address.v4() is not None))
                self._net.remember(marks)
            return raw, None
        if bound.port == 0 or time.monotonic() - self._asked.get(marks[0], time.monotonic()) > _PATIENCE:
            self._ask(call, socket, marks, raw)
        elif marks[0] in self._movable and bound.is_loopback():
            moved = self._move(supervisor, call, socket, raw)
            if moved is not None:
                fresh = diag.marks(moved)
                _remember(self._asked, fresh[0])
                self._net.remember(fresh)
                return raw, moved
        return raw, None

    def _move(self, supervisor: "Supervisor", call: "Call", socket: "Taken", raw: bytes) -> "_socket.socket | None":
        """Put a connected socket in the place of one that is bound to loopback."""
        program = self._program(supervisor)
        return _moved(call, call.args[0], socket, lambda fresh: make("connect", fresh, raw), program)

    def _ask(self, call: "Call", socket: "Taken", marks: "tuple[int, int]", raw: bytes) -> None:
        """Connect a socket to where it sends, so that nobody else can answer."""
        self.dissolve(call, socket)
        if socket.peer() is not None:
            make("connect", socket.fd, _AF_UNSPEC)
        start(socket.fd, raw)
        self._net.remember(marks)
        _remember(self._asked, marks[0])


def _remember(where: "dict[int, float]", cookie: int) -> None:
    if len(where) >= _MOST_MOVABLE:
        del where[next(iter(where))]
    where[cookie] = time.monotonic()


class _Fresh:
    """A new UDP socket that hears whom it may, closed at the end of the block."""

    def __init__(self, family: int, kind: int, protocol: int, program: bytes) -> None:
        self.socket = _socket.socket(family, kind, protocol)
        try:
            if program:
                socket_filter.lock(self.socket, program)
        except OSError:
            self.socket.close()
            raise

    def __enter__(self) -> "_socket.socket":
        return self.socket

    def __exit__(self, *exception: object) -> None:
        self.socket.close()


def _moved(
    call: "Call", number: int, socket: "Taken", place: "Callable[[int], int]", program: bytes
) -> "_socket.socket | None":
    """Put a new socket in the place of the caller's; ours to close.

    Args:
        place: binds or connects the new one.
        program: its filter, empty for none.

    Returns:
        None where that would not be the same to the program: its socket is watched by epoll(7), which does
        not follow, or belongs to another network.
    """
    number &= 0xFFFFFFFF
    if _watched(call.pid, number) or not _same_network(call.pid):
        return None
    try:
        with open(f"/proc/{call.pid}/fdinfo/{number}", "rb") as file:
            flags = int(file.read().partition(b"flags:\t")[2].split()[0], 8)
    except (OSError, IndexError):
        return None
    call.check()
    kind = _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC | flags & os.O_NONBLOCK
    fresh = _Fresh(socket.family, kind, socket.option(_SOL, SO_PROTOCOL), program).socket
    try:
        for level, name in _OPTIONS:
            _copy(fresh, level, name, socket.option(level, name))
        for level, name in _BUFFERS:
            _copy(fresh, level, name, socket.option(level, name) // 2)
        place(fresh.fileno())
        call.replace(number, fresh.fileno(), flags & os.O_CLOEXEC)
    except OSError:
        fresh.close()
        raise
    return fresh


def _copy(socket: "_socket.socket", level: int, name: int, value: int) -> None:
    try:
        if value != socket.getsockopt(level, name):
            socket.setsockopt(level, name, value)
    except OSError:
        return  # not of this family


def _watched(pid: int, number: int) -> bool:
    wanted = b"tfd:%9d " % number
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{name}") == "anon_inode:[eventpoll]":
                with open(f"/proc/{pid}/fdinfo/{name}", "rb") as file:
                    if wanted in file.read():
                        return True
    except OSError:
        return True
    return False


def _same_network(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
    except OSError:
        return False
