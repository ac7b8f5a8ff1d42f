"""bind, listen, connect and sendto by address: what port rules cannot tell apart.

The socket is taken from the caller (pidfd_getfd) and the call made on it here, with the bytes that were
judged: a thread that rewrites the address, or swaps the descriptor, changes nothing. A wildcard is rewritten
to loopback where the policy says so. What the tree itself listens on stays reachable to it, and only that: a
port is the tree's where every socket that would receive there is one the tree bound through here.

What a peer sees is the supervisor's process behind the call (SO_PEERCRED of unix sockets), with the caller's
user and groups.
"""

import _socket
import posix as os
import select
import time

from guard.confine.handlers import datagrams, messages, sockets
from guard.confine.handlers.addresses import Address
from guard.confine.handlers.base import PENDING, Call, Supervisor
from guard.confine.handlers.inner import Inner, within
from guard.confine.handlers.names import NameServers
from guard.confine.handlers.programs import is_program
from guard.confine.handlers.taken import INET, Own, Taken, make, sockaddr, start
from guard.confine.handlers.waiting import EALREADY, EINPROGRESS, Waiters
from guard.kernel import diag, syscall
from guard.kernel.notify import Gone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.confine.handlers.base import Handler

_EACCES, _EINVAL, _EADDRINUSE, _EAFNOSUPPORT = 13, 22, 98, 97
_IPPROTO_IPV6, _IPV6_V6ONLY = 41, 26
_SO_REUSEPORT = 15
_STREAM, _DGRAM = _socket.SOCK_STREAM, _socket.SOCK_DGRAM
_AF_UNSPEC = bytes(16)
_DNS = 53
_SHORTEST = {_socket.AF_INET: 16, _socket.AF_INET6: 24}  # sizeof(struct sockaddr_in); SIN6_LEN_RFC2133
_FEW = 4096  # sockets and destinations that are kept in mind
_FRESH = 0.2  # seconds for which a datagram's destination stays judged


def handlers(supervisor: "Supervisor") -> "dict[str, Handler]":
    """The calls of this file."""
    net = Network(supervisor)
    calls = {"bind": net.bind, "listen": net.listen, "connect": net.connect}
    calls |= {"sendto": net.datagrams.sendto, "socket": net.datagrams.socket}
    calls |= net.inner.handlers()
    return {**calls, "sendmsg": net.messages.sendmsg, "sendmmsg": net.messages.sendmmsg, "clone": net.messages.clone}


class Network:
    """The tree's internet sockets, and the rules for them.

    Args:
        supervisor: its settings `bind`, `bind_allow` and `connect` are the rules.
    """

    def __init__(self, supervisor: "Supervisor") -> None:
        self._waiters = Waiters()
        self.inner = Inner()
        self._unix = sockets.UnixSockets(supervisor, self._waiters, self.inner)
        self.datagrams = datagrams.Datagrams(self, self._unix, self._waiters)
        self.messages = messages.Messages(supervisor, self.datagrams, self._unix, self._waiters)
        self._name_servers = NameServers()
        self._own = Own(diag.alive)  # listeners and UDP sockets that the tree bound
        self._dual: set[int] = set()  # ports whose :: became ::ffff:127.0.0.1
        self._fresh: dict[tuple[bytes, int], float] = {}
        self._unheard: dict[int, bytes] = {}  # bound for a caller that a signal took away

    # bind and listen --------------------------------------------------------------------------------

    def bind(self, supervisor: "Supervisor", call: "Call") -> int:
        """bind(socket, address, length)."""
        with Taken(call, call.args[0]) as socket:
            raw = sockaddr(call, call.args[1], call.args[2])
            if socket.family == _socket.AF_UNIX:
                return self._unix.bind(supervisor, call, socket, raw)
            if socket.family not in INET:
                call.check()
                return make("bind", socket.fd, raw)
            try:
                address = Address(socket.family, raw)
            except ValueError:
                raise _no_address(socket.family, raw) from None
            marks = socket.marks()
            if self._unheard.pop(marks[0], None) == raw:
                # Before Linux 5.19 a signal takes a caller away although its call is done; this is it again.
                return 0
            wanted = self._judge_bind(supervisor, call, address, socket, "bind")
            serves = socket.type == _DGRAM and not Address(socket.family, wanted).is_loopback()
            if serves and self.datagrams.bind_for_all(supervisor, call, socket, wanted):
                return 0
            around = self.inner.around(call)
            call.check()
            within(around, make, "bind", socket.fd, wanted)
            if wanted != address.raw():
                self._note_rewritten(socket, address)
            if socket.type == _DGRAM or socket.option(_socket.SOL_SOCKET, _SO_REUSEPORT):
                self._refuse_shared(socket)
            if socket.type == _DGRAM:
                self.remember(marks)
            try:
                call.check()
            except Gone:
                if len(self._unheard) < _FEW:
                    self._unheard[marks[0]] = raw
                raise
            return 0

    def listen(self, supervisor: "Supervisor", call: "Call") -> int:
        """listen(socket, backlog): one that was never bound would take a port on every address."""
        with Taken(call, call.args[0]) as socket:
            judged = b""
            if socket.family in INET and socket.type == _STREAM:
                judged = self._bind_first(supervisor, call, socket)
                self._refuse_shared(socket)
            call.check()
            syscall("listen", socket.fd, call.args[1] & 0x7FFFFFFF)
            if judged:
                if socket.name().host != judged:  # no way known; if there is one, it ends here
                    socket.end()
                    raise OSError(_EACCES, "Permission denied")
                self.remember(socket.marks())
        return 0

    def _note_rewritten(self, socket: "Taken", asked: "Address") -> None:
        bound = socket.name()
        if len(bound.host) == 16 and bound.v4() is not None and asked.v4() is None:
            self._dual.add(bound.port)
        if socket.type == _DGRAM and not asked.port:
            self.datagrams.may_move(socket.marks()[0])

    def _bind_first(self, supervisor: "Supervisor", call: "Call", socket: "Taken") -> bytes:
        """Make sure that a stream socket is bound where it may be; returns the address."""
        bound = socket.name()
        if bound.port == 0:
            raw = self._judge_bind(supervisor, call, bound, socket, "listen")
            if supervisor.mode("bind") == "enforce" and supervisor.setting("bind") != "any":
                around = self.inner.around(call)
                call.check()
                within(around, make, "bind", socket.fd, raw)
                self._note_rewritten(socket, bound)
        elif not bound.is_loopback():
            # Bound by one program's allowance, and listened on by another, maybe.
            self._judge_bind(supervisor, call, bound, None, "listen")
        return socket.name().host

    def _judge_bind(
        self, supervisor: "Supervisor", call: "Call", address: "Address", socket: "Taken | None", act: str
    ) -> bytes:
        """Return the sockaddr to bind to: the caller's own where it may have it.

        Args:
            socket: the socket; None where it is bound already and nothing can be rewritten.

        Raises:
            Denied: it may not.
        """
        raw, setting = address.raw(), supervisor.setting("bind")
        if supervisor.mode("bind") == "off" or setting == "any":
            return raw
        if setting == "loopback" and address.is_loopback():
            return raw
        allowed = self._allowed_by_exception(supervisor, call, address, socket)
        if allowed:
            return allowed
        what = f"{act} {address}"
        wildcard = setting == "loopback" and address.is_wildcard() and socket is not None
        if wildcard and socket is not None and supervisor.mode("bind") == "enforce":
            supervisor.tell("bind", "bind-wildcard", "rewritten", what, "", call.pid, "low")
            dual = len(address.host) == 16 and not socket.option(_IPPROTO_IPV6, _IPV6_V6ONLY)
            return address.to_loopback(dual)
        allow = "network.bind_allow with this address and program"
        supervisor.decide("bind", "bind-address", what, _EACCES, call, allow)
        return raw

    def _allowed_by_exception(
        self, supervisor: "Supervisor", call: "Call", address: "Address", socket: "Taken | None"
    ) -> bytes:
        """Return the sockaddr that `bind_allow` gives this caller, empty for none."""
        known: dict[str, bool] = {}
        for network, ports, program in supervisor.setting("bind_allow"):
            if not any(low <= address.port <= high for low, high in ports):
                continue
            raw = in_network(address, network, socket is not None)
            if not raw:
                continue
            if program and program not in known:
                known[program] = is_program(supervisor, call, program)
            if not program or known[program]:
                return raw
        return b""

    def _refuse_shared(self, socket: "Taken") -> None:
        """Refuse a port that a socket of another's receives on as well, whose share would come here.

        Asked when the port is taken already: SO_REUSEPORT and SO_REUSEADDR may be set until the very moment.
        A stream does not listen yet; a datagram socket is tied to a port where nobody sends from.

        Raises:
            OSError: EADDRINUSE.
        """
        bound = socket.name()
        if not bound.port:  # IP_BIND_ADDRESS_NO_PORT: one that is free, later
            return
        host = diag.plain(bound.host)
        others = (one for one in diag.bound(socket.type, bound.port) if one[1] not in self._own)
        mine = socket.marks()
        if not any(one[1] not in mine and one[0] in (host, bytes(len(host))) for one in others):
            return
        if socket.type == _DGRAM:
            self.datagrams.spoil(socket)
        raise OSError(_EADDRINUSE, "Address already in use")

    def name_servers(self, supervisor: "Supervisor") -> "frozenset[bytes]":
        """The servers that DNS may go to."""
        return self._name_servers.known(supervisor)

    def remember(self, marks: "tuple[int, int]") -> None:
        """Take a socket for the tree's own from now on."""
        self._own.add(marks)

    # connect ----------------------------------------------------------------------------------------

    def connect(self, supervisor: "Supervisor", call: "Call") -> int:
        """connect(socket, address, length)."""
        with Taken(call, call.args[0]) as socket:
            raw = sockaddr(call, call.args[1], call.args[2])
            if socket.family == _socket.AF_UNIX:
                return self._unix.connect(supervisor, call, socket, raw)
            if int.from_bytes(raw[:2], "little") == 0 or socket.family not in INET:
                self.datagrams.dissolve(call, socket)  # what AF_UNSPEC does
                return start(socket.fd, raw)
            try:
                address = Address(socket.family, raw)
            except ValueError:
                raise _no_address(socket.family, raw) from None
            if socket.type == _STREAM and address.family != socket.family:  # tcp_v6_connect
                raise _no_address(socket.family, raw)
            address = Address(socket.family, self._as_rewritten(socket, address))
            own = self.judge(supervisor, call, address, socket, "connect")
            if socket.type != _STREAM:
                return self.datagrams.connect(supervisor, call, socket, address)
            call.check()
            return self._connect(call, socket, address, own)

    def _connect(self, call: "Call", socket: "Taken", address: "Address", own: bool) -> int:
        """Connect a stream; whoever means to wait for that waits beside, not here.

        Args:
            own: whether it is for a listener of the tree's alone.
        """
        around = self.inner.around(call)

        def attempt(fd: int) -> int:
            try:
                return within(around, start, fd, address.raw())
            finally:
                if own and not self.is_own(address, _STREAM):
                    # Another's listener appeared between the judgement and the call.
                    make("connect", fd, _AF_UNSPEC)
                    raise OSError(_EACCES, "Permission denied")

        try:
            return attempt(socket.fd)
        except OSError as error:
            if error.errno not in (EINPROGRESS, EALREADY) or not socket.blocks():
                raise
        # On loopback the answer was there as soon as the call had returned.
        try:
            return attempt(socket.fd)
        except OSError as error:
            if error.errno not in (EINPROGRESS, EALREADY):
                raise
        limit, fd = socket.limit(), socket.keep()
        try:
            self._waiters.add(call, (fd,), select.POLLOUT, lambda: attempt(fd), limit, EINPROGRESS)
        except OSError:
            os.close(fd)
            raise
        return PENDING

    def _as_rewritten(self, socket: "Taken", address: "Address") -> bytes:
        """Return the sockaddr to connect to.

        A wildcard means loopback, and is made to say so. Who asks for ::1 and would have found a :: that became
        ::ffff:127.0.0.1 is led there.
        """
        if address.is_wildcard():
            address = Address(address.family, address.to_loopback())
        if address.port in self._dual and len(address.host) == 16 and address.v4() is None and address.is_loopback():
            found = diag.bound(socket.type, address.port)
            if not diag.receivers(found, address.destination()) and not socket.option(_IPPROTO_IPV6, _IPV6_V6ONLY):
                return address.to_host(b"\x7f\0\0\1")
        return address.raw()

    def judge(self, supervisor: "Supervisor", call: "Call", address: "Address", socket: "Taken", act: str) -> bool:
        """Judge a destination.

        Returns:
            Whether it may be reached only for what listens there, the tree itself.

        Raises:
            Denied: it may not be reached.
        """
        rules = supervisor.setting("connect")
        if supervisor.mode("connect") == "off" or rules is None:
            return False
        if address.port == _DNS and address.destination() in self.name_servers(supervisor):
            return False
        local = address.is_local()
        if act == "connect" and address.port == 0 and (socket.type == _DGRAM or local):
            # How getaddrinfo(3) asks for the route; no datagram can be sent to port 0, and no stream listens there.
            return False
        for ports, network, without in rules:
            if not any(low <= address.port <= high for low, high in ports):
                continue
            if address.arrives_in(network) and not any(map(address.arrives_in, without)):
                return False
        if local and self.is_own(address, socket.type, socket):
            return True
        if not local and self._listens_here(address, socket.type):
            return False
        allow = "network.connect with this port and address"
        supervisor.decide("connect", "connect-address", f"{act} {address}", _EACCES, call, allow)
        return False

    def _listens_here(self, address: "Address", kind: int) -> bool:
        """Whether the tree itself serves at another address of this host, by `bind_allow`."""
        host = address.destination()
        if not self._own or host not in diag.local_addresses():
            return False
        found = diag.receivers(diag.bound(kind, address.port), host) if address.port else []
        return bool(found) and all(one[1] in self._own for one in found)

    def is_own(self, address: "Address", kind: int, socket: "Taken | None" = None) -> bool:
        """Whether all that would receive at a loopback address is the tree's; nothing there harms nobody.

        Args:
            address: where to.
            kind: SOCK_STREAM or SOCK_DGRAM.
            socket: the one that sends; who is connected to it may have its answer.
        """
        host = address.destination()
        key, now = (host, address.port), time.monotonic()
        if kind == _DGRAM and self._fresh.get(key, 0) > now:
            return True
        found = diag.receivers(diag.bound(kind, address.port), host)
        others = [one for one in found if one[1] not in self._own]
        if others and kind == _DGRAM and socket is not None:
            mine = socket.name()
            others = [one for one in others if (one[2], one[3]) != (diag.plain(mine.host), mine.port) or not mine.port]
        elif kind == _DGRAM and found and not others:
            if len(self._fresh) > _FEW:
                self._fresh.clear()
            self._fresh[key] = now + _FRESH
        return not others


def _no_address(family: int, raw: bytes) -> OSError:
    """What the kernel says to bytes that are none of a socket's family."""
    if len(raw) < _SHORTEST[family]:
        return OSError(_EINVAL, "Invalid argument")
    return OSError(_EAFNOSUPPORT, "Address family not supported by protocol")


def in_network(address: "Address", network: str, free: bool) -> bytes:
    """Return the sockaddr under which an address lies in a network, empty for none.

    A wildcard is cut down to the host's own address there: srun and salloc listen on nothing else.

    Args:
        address: what is to be bound.
        network: as `bind_allow` has it.
        free: whether another address may be bound instead.
    """
    if network == "any" or (address.is_in(network) and not address.is_wildcard()):
        return address.raw()
    if not address.is_wildcard() or not free:
        return b""
    for host in diag.local_addresses():
        try:
            raw = address.to_host(host)
        except ValueError:
            continue
        if Address(address.family, raw).is_in(network):
            return raw
    return b""
