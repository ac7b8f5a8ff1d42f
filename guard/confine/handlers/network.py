"""bind, listen, connect and sendto by address: what port rules cannot tell apart.

The socket is taken from the caller (pidfd_getfd) and the call made on it here, with the bytes that were
judged: a thread that rewrites the address, or swaps the descriptor, changes nothing. A wildcard is rewritten
to loopback where the policy says so. What the tree itself listens on stays reachable to it.
"""

import _socket
import _thread
import fcntl
import posix as os

from guard.confine.handlers import sockets
from guard.confine.handlers.addresses import Address
from guard.confine.handlers.base import PENDING, Call, Supervisor
from guard.kernel import syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.confine.handlers.base import Handler

_EACCES, _EINVAL, _EDESTADDRREQ, _EISCONN, _EALREADY, _EINPROGRESS = 13, 22, 89, 106, 114, 115
_MOST_ADDRESS = 128  # sizeof(struct sockaddr_storage)
_MOST_DATAGRAM = 1 << 20
_SO_TYPE, _SO_DOMAIN, _SO_PROTOCOL = 3, 39, 38
_MSG_FASTOPEN = 0x20000000
_MOST_THREADS = 64
DNS = 53


def handlers(supervisor: "Supervisor") -> "dict[str, Handler]":
    """The calls of this file."""
    net = Network(supervisor)
    return {"bind": net.bind, "listen": net.listen, "connect": net.connect, "sendto": net.sendto}


class Network:
    """The tree's internet sockets, and the rules for them.

    Args:
        supervisor: its settings `bind`, `bind_allow`, `connect` and `name_servers` are the rules.
    """

    def __init__(self, supervisor: "Supervisor") -> None:
        self._unix = sockets.UnixSockets(supervisor)
        self._name_servers = _name_servers()
        self._ports: set[int] = set()  # that the tree bound on loopback
        self._pending: dict[int, list[Call]] = {}  # socket inode to callers that wait for its connection
        self._lock = _thread.allocate_lock()

    # bind and listen --------------------------------------------------------------------------------

    def bind(self, supervisor: "Supervisor", call: "Call") -> int:
        """bind(socket, address, length)."""
        raw = _address(call, call.args[1], call.args[2])
        fd = call.descriptor(call.args[0])
        with _Taken(fd) as socket:
            if socket.family == _socket.AF_UNIX:
                return self._unix.bind(supervisor, call, fd, raw)
            if socket.family not in (_socket.AF_INET, _socket.AF_INET6):
                return _make("bind", fd, raw)
            try:
                address = Address(socket.family, raw)
            except ValueError:
                raise OSError(_EINVAL, "Invalid argument") from None
            raw = self._judge_bind(supervisor, call, address, raw, "bind")
            call.check()
            result = _make("bind", fd, raw)
            self._remember(socket)
            return result

    def listen(self, supervisor: "Supervisor", call: "Call") -> int:
        """listen(socket, backlog): one that was never bound would take a port on every address."""
        fd = call.descriptor(call.args[0])
        with _Taken(fd) as socket:
            if socket.family in (_socket.AF_INET, _socket.AF_INET6):
                bound = socket.name()
                if bound.port == 0:
                    raw = self._judge_bind(supervisor, call, bound, bound.raw(), "listen")
                    call.check()
                    _make("bind", fd, raw)
                elif not bound.is_loopback():
                    # Bound before the supervisor was there, or by bind_allow: judged by the same rules.
                    self._judge_bind(supervisor, call, bound, b"", "listen")
            call.check()
            syscall("listen", fd, call.args[1] & 0x7FFFFFFF)
            self._remember(socket)
        return 0

    def _judge_bind(self, supervisor: "Supervisor", call: "Call", address: "Address", raw: bytes, act: str) -> bytes:
        """Return the address to bind to; the caller's own where it may have it.

        Raises:
            Denied: it may not.
        """
        setting = supervisor.setting("bind")
        if supervisor.mode("bind") == "off" or setting == "any":
            return raw
        if setting == "loopback" and address.is_loopback():
            return raw
        if self._allowed_by_exception(supervisor, call, address):
            return raw
        what = f"{act} {address}"
        if setting == "loopback" and address.is_wildcard() and raw and supervisor.mode("bind") == "enforce":
            supervisor.tell("bind", "bind-wildcard", "rewritten", what, "", call.pid, "low")
            return address.to_loopback()
        supervisor.decide(
            "bind", "bind-address", what, _EACCES, call, "network.bind_allow with this address and program"
        )
        return raw

    def _allowed_by_exception(self, supervisor: "Supervisor", call: "Call", address: "Address") -> bool:
        program = ""
        for network, ports, wanted in supervisor.setting("bind_allow"):
            if not any(low <= address.port <= high for low, high in ports):
                continue
            if not address.is_in(network) and not (network == "any" and address.is_wildcard()):
                continue
            if not wanted:
                return True
            program = program or _program(call)
            # A program that the tree could have written itself has nobody's allowance.
            if program == os_real(wanted) and not supervisor.may_write(program):
                return True
        return False

    def _remember(self, socket: "_Taken") -> None:
        if socket.type == _socket.SOCK_STREAM:
            self._ports.add(socket.name().port)

    # connect and sendto -----------------------------------------------------------------------------

    def connect(self, supervisor: "Supervisor", call: "Call") -> int:
        """connect(socket, address, length)."""
        raw = _address(call, call.args[1], call.args[2])
        fd = call.descriptor(call.args[0])
        keep = False
        try:
            socket = _Taken(fd)
            if socket.family == _socket.AF_UNIX:
                return self._unix.connect(supervisor, call, fd, raw)
            if socket.family not in (_socket.AF_INET, _socket.AF_INET6) or int.from_bytes(raw[:2], "little") == 0:
                call.check()
                return _make("connect", fd, raw)  # AF_UNSPEC dissolves an association
            try:
                address = Address(socket.family, raw)
            except ValueError:
                raise OSError(97, "Address family not supported by protocol") from None
            self._judge_connect(supervisor, call, address, socket.type, "connect")
            call.check()
            if socket.type != _socket.SOCK_STREAM or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK:
                return _make("connect", fd, raw)
            keep = True
            return self._connect_beside(call, fd, raw)
        finally:
            if not keep:
                os.close(fd)

    def _connect_beside(self, call: "Call", fd: int, raw: bytes) -> int:
        """Connect in a thread: a host that does not answer must not keep the rest of the tree waiting."""
        inode = os.fstat(fd).st_ino
        with self._lock:
            waiting = self._pending.get(inode)
            if waiting is not None:
                waiting.append(call)  # a signal took the caller out of the same call; it asks again
                os.close(fd)
                return PENDING
            if len(self._pending) >= _MOST_THREADS:
                os.close(fd)
                raise OSError(11, "Resource temporarily unavailable")
            self._pending[inode] = [call]
        _thread.start_new_thread(self._connect_thread, (inode, fd, raw))
        return PENDING

    def _connect_thread(self, inode: int, fd: int, raw: bytes) -> None:
        code = 0
        try:
            _make("connect", fd, raw)
        except OSError as error:
            code = error.errno or _EACCES
        finally:
            os.close(fd)
            with self._lock:
                waiting = self._pending.pop(inode, [])
            for call in waiting:
                try:
                    call.answer(0, code)
                finally:
                    call.close()

    def sendto(self, supervisor: "Supervisor", call: "Call") -> int:
        """sendto(socket, data, length, flags, address, length) with an address: done here as a whole."""
        flags, length = call.args[3] & 0xFFFFFFFF, call.args[2]
        if flags & _MSG_FASTOPEN:
            raise OSError(1, "Operation not permitted")  # connects past connect(2)
        raw = _address(call, call.args[4], call.args[5])
        fd = call.descriptor(call.args[0])
        target = -1
        with _Taken(fd) as socket:
            if socket.family == _socket.AF_UNIX and socket.type != _socket.SOCK_STREAM:
                raw, target = self._unix.send_to(supervisor, call, raw)
            elif socket.family in (_socket.AF_INET, _socket.AF_INET6) and socket.type != _socket.SOCK_STREAM:
                try:
                    address = Address(socket.family, raw)
                except ValueError:
                    raise OSError(_EINVAL, "Invalid argument") from None
                self._judge_connect(supervisor, call, address, socket.type, "sendto")
                if socket.name().port == 0 and address.is_loopback():
                    # Sent unbound, the socket would take a port on every address.
                    bound = socket.name()
                    if bound.is_wildcard():
                        _make("bind", fd, bound.to_loopback())
            if length > _MOST_DATAGRAM:
                raise OSError(90, "Message too long")
            data = call.read(call.args[1], length) if length else b""
            call.check()
            try:
                return syscall("sendto", fd, data, len(data), flags | _socket.MSG_NOSIGNAL, raw, len(raw))
            finally:
                if target >= 0:
                    os.close(target)

    def _judge_connect(self, supervisor: "Supervisor", call: "Call", address: "Address", kind: int, act: str) -> None:
        rules = supervisor.setting("connect")
        if supervisor.mode("connect") == "off" or rules is None:
            return
        if address.port == DNS and (address.v4() or address.host) in self._name_servers:
            return
        # Connecting to a wildcard address is connecting to loopback.
        local = address.is_loopback() or address.is_wildcard()
        if local and kind == _socket.SOCK_STREAM and address.port in self._ports:
            return
        if local and kind == _socket.SOCK_DGRAM and supervisor.setting("bind") != "deny":
            return
        for ports, network, without in rules:
            if not any(low <= address.port <= high for low, high in ports):
                continue
            if not (address.is_in(network) or (network == "loopback" and local)):
                continue
            if any(address.is_in(name) or (name == "loopback" and local) for name in without):
                continue
            return
        supervisor.decide(
            "connect",
            "connect-address",
            f"{act} {address}",
            _EACCES,
            call,
            "network.connect with this port and address",
        )


class _Taken:
    """The caller's socket, ours until closed; what kind it is comes from the kernel, not from the caller."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        try:
            self._socket = _socket.socket(fileno=os.dup(fd))
            self.family = self._socket.getsockopt(_socket.SOL_SOCKET, _SO_DOMAIN)
            self.type = self._socket.getsockopt(_socket.SOL_SOCKET, _SO_TYPE)
        except OSError:
            os.close(fd)
            raise

    def name(self) -> "Bound":
        """Where it is bound."""
        return Bound(self.family, self._socket.getsockname())

    def __enter__(self) -> "_Taken":
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()
        os.close(self._fd)


class Bound(Address):
    """An address as getsockname(2) gives it."""

    __slots__ = ()

    def __init__(self, family: int, name: "tuple[object, ...]") -> None:
        host = _socket.inet_pton(family, str(name[0]).partition("%")[0])
        port = int(str(name[1])).to_bytes(2, "big")
        head = family.to_bytes(2, "little") + port
        super().__init__(
            family, head + host + bytes(8) if family == _socket.AF_INET else head + bytes(4) + host + bytes(4)
        )

    def raw(self) -> bytes:
        """The sockaddr."""
        return self._raw


def _address(call: "Call", at: int, length: int) -> bytes:
    length &= 0xFFFFFFFF
    if length > _MOST_ADDRESS or length < 2:
        raise OSError(_EINVAL, "Invalid argument")
    return call.read(at, length)


def _make(name: str, fd: int, raw: bytes) -> int:
    return syscall(name, fd, raw, len(raw))


def _program(call: "Call") -> str:
    try:
        return os.readlink(f"/proc/{call.pid}/exe")
    except OSError:
        return ""


def os_real(path: str) -> str:
    """The real path of a program that a policy names."""
    from guard.kernel import real_path

    return real_path(path)


def _name_servers() -> "set[bytes]":
    """The servers that resolv.conf(5) names, when the tree starts."""
    found = set()
    try:
        with open("/etc/resolv.conf", "rb") as file:
            lines = file.read(65536).split(b"\n")
    except OSError:
        lines = []
    for line in lines:
        words = line.split()
        if len(words) > 1 and words[0] == b"nameserver":
            text = words[1].decode("ascii", "replace").partition("%")[0]
            for family in (_socket.AF_INET, _socket.AF_INET6):
                try:
                    found.add(_socket.inet_pton(family, text))
                except OSError:
                    continue
    return found or {b"\x7f\0\0\1", bytes(15) + b"\1"}
