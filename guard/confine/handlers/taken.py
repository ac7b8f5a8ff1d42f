"""The caller's socket, taken over for one call: what it is comes from the kernel, not from the caller."""

import _socket
import fcntl
import posix as os

from guard.confine.handlers.addresses import Address, packed
from guard.kernel import diag, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from guard.confine.handlers.base import Call

SO_TYPE, SO_DOMAIN, SO_PROTOCOL = 3, 39, 38
_SO_SNDTIMEO = 21
_MOST_ADDRESS = 128  # sizeof(struct sockaddr_storage)
INET = (_socket.AF_INET, _socket.AF_INET6)
_FEW = 4096  # marks remembered before those that are gone are sorted out


class Taken:
    """A copy of one of the caller's descriptors, closed at the end of the block.

    Attributes:
        fd: ours. family, type: SO_DOMAIN and SO_TYPE.

    Raises:
        OSError: it is no socket, or none at all.
    """

    def __init__(self, call: "Call", number: int) -> None:
        self.fd = call.descriptor(number)
        try:
            self._socket = _socket.socket(-1, 0, 0, self.fd)
        except OSError:
            os.close(self.fd)
            raise
        self.family = self._socket.getsockopt(_socket.SOL_SOCKET, SO_DOMAIN)
        self.type = self._socket.getsockopt(_socket.SOL_SOCKET, SO_TYPE)

    def option(self, level: int, name: int) -> int:
        """One of its options, 0 where it has no such."""
        try:
            return self._socket.getsockopt(level, name)
        except OSError:
            return 0

    def marks(self) -> "tuple[int, int]":
        """What tells it from every other socket (`guard.kernel.diag.marks`)."""
        return diag.marks(self._socket)

    def name(self) -> "Name":
        """Where an internet socket is bound; port 0 is nowhere."""
        return Name(self.family, self._socket.getsockname())

    def peer(self) -> "Name | None":
        """Where an internet socket is connected to."""
        try:
            return Name(self.family, self._socket.getpeername())
        except OSError:
            return None

    def end(self) -> None:
        """Receive and send no more; a listener listens no more."""
        self._socket.shutdown(_socket.SHUT_RDWR)

    def blocks(self) -> bool:
        """Whether its caller means to wait."""
        return not fcntl.fcntl(self.fd, fcntl.F_GETFL) & os.O_NONBLOCK

    def limit(self) -> float:
        """For how many seconds its caller means to wait (SO_SNDTIMEO), 0 for ever."""
        try:
            time = self._socket.getsockopt(_socket.SOL_SOCKET, _SO_SNDTIMEO, 16)
        except OSError:
            return 0
        return int.from_bytes(time[:8], "little") + int.from_bytes(time[8:16], "little") / 1e6

    def keep(self) -> int:
        """Leave the descriptor open past the block; whoever asks closes it."""
        fd, self.fd = self.fd, -1
        self._socket.detach()
        return fd

    def __enter__(self) -> "Taken":
        return self

    def __exit__(self, *exception: object) -> None:
        if self.fd >= 0:
            self._socket.close()


class Own:
    """The marks of sockets that are the tree's own. Where they grow many, those that are gone are sorted out.

    Args:
        alive: tells the marks of all sockets that are there now.
    """

    def __init__(self, alive: "Callable[[], set[int]]") -> None:
        self._alive = alive
        self._marks: dict[int, None] = {}
        self._most = _FEW

    def add(self, marks: "tuple[int, int]") -> None:
        """Take a socket for the tree's own from now on."""
        self._marks.update(dict.fromkeys(marks))
        if len(self._marks) > self._most:
            alive = self._alive()
            self._marks = {one: None for one in self._marks if one in alive or one in marks}
            self._most = max(_FEW, 2 * len(self._marks))

    def __contains__(self, mark: int) -> bool:
        return mark in self._marks

    def __len__(self) -> int:
        return len(self._marks)


class Name(Address):
    """An address as getsockname(2) gives it."""

    __slots__ = ()

    def __init__(self, family: int, name: "tuple[object, ...]") -> None:
        host = _socket.inet_pton(family, str(name[0]).partition("%")[0])
        super().__init__(family, packed(host, int(str(name[1]))))


def sockaddr(call: "Call", at: int, length: int) -> bytes:
    """Copy an address from the caller; its length is the kernel's int (move_addr_to_kernel)."""
    length &= 0xFFFFFFFF
    if length > _MOST_ADDRESS:
        raise OSError(22, "Invalid argument")
    return call.read(at, length) if length else b""


def make(name: str, fd: int, raw: bytes) -> int:
    """bind(2) or connect(2) on our copy."""
    return syscall(name, fd, raw, len(raw))


def start(fd: int, raw: bytes) -> int:
    """connect(2) without waiting, whatever the socket's own flag says.

    The flag belongs to the open file that the caller shares, so it is set for the moment of the call only.
    Nothing else goes on with an unconnected stream in that moment that could notice.

    Raises:
        OSError: EINPROGRESS (EAGAIN for unix sockets), where a caller that waits would wait now.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if flags & os.O_NONBLOCK:
        return make("connect", fd, raw)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    try:
        return make("connect", fd, raw)
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
