"""Whose sockets are where (sock_diag(7), rtnetlink(7)): what only the kernel's own tables can say.

A port alone does not tell whose service answers: another may listen on the same port of another address, or
share it (SO_REUSEPORT). Sockets are known by their mark: the cookie that the kernel gives each and never gives
again (SO_COOKIE, 4.12), or, where it must be had from /proc, their inode as a negative number.
"""

import _socket
import posix as os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Receiver = tuple[bytes, int, bytes, int]

_NETLINK, _ROUTE, _SOCK_DIAG = 16, 0, 4
_SOCK_DIAG_BY_FAMILY, _RTM_GETADDR, _RTM_NEWADDR = 20, 22, 20
_NLMSG_ERROR, _NLMSG_DONE, _REQUEST, _REQUEST_DUMP = 2, 3, 0x1, 0x301
_SO_COOKIE, _ESTABLISHED = 57, 1
_LISTEN, _ANY_STATE = 1 << 10, 0xFFFFFFFF
_S_GE, _S_LE = 2, 3  # INET_DIAG_BC_*
_UNIX_SHOW_NAME_VFS, _UNIX_SHOW_PEER = 3, 4
_V6ONLY = 11  # INET_DIAG_SKV6ONLY
_ANY4, _ANY6 = bytes(4), bytes(16)
_HEAD = 16
_V4, _V6 = _socket.AF_INET, _socket.AF_INET6
MAPPED = bytes(10) + b"\xff\xff"


def bound(kind: int, port: int) -> "list[Receiver]":
    """The sockets of this network namespace that receive on a port.

    Args:
        kind: SOCK_STREAM for TCP listeners, SOCK_DGRAM for UDP sockets.
        port: theirs, not 0.

    Returns:
        (address, mark, peer's address, peer's port); an address is 4 bytes wherever IPv4 can say it. A socket
        for every address of both families comes twice, with the wildcard of each.
    """
    try:
        with _Netlink(_SOCK_DIAG) as netlink:
            return [found for family in (_V4, _V6) for found in _bound(netlink, family, kind, port)]
    except OSError:
        return bound_by_proc(kind, port)  # a kernel without these tables: slower, the same answer


def receivers(found: "list[Receiver]", host: bytes) -> "list[Receiver]":
    """Of the sockets on a port those that would receive at an address: the exact ones, else the wildcards."""
    exact = [one for one in found if one[0] == host]
    return exact or [one for one in found if one[0] == bytes(len(host))]


def alive() -> "set[int]":
    """The marks of all TCP listeners and UDP sockets of this network namespace."""
    kinds = (_socket.SOCK_STREAM, _socket.SOCK_DGRAM)
    try:
        with _Netlink(_SOCK_DIAG) as netlink:
            return {one[1] for kind in kinds for family in (_V4, _V6) for one in _bound(netlink, family, kind, 0)}
    except OSError:
        return {found[1] for kind in kinds for found in bound_by_proc(kind, 0)}


def _bound(netlink: "_socket.socket", family: int, kind: int, port: int) -> "Iterator[Receiver]":
    tcp = kind == _socket.SOCK_STREAM
    # Compared in the kernel: a program of two steps, `port >= P` and `port <= Q`.
    ends = ((_S_GE, 20, port), (_S_LE, 12, port or 65535))
    code = b"".join(
        bytes((step, 8)) + otherwise.to_bytes(2, sys.byteorder) + bytes(2) + end.to_bytes(2, sys.byteorder)
        for step, otherwise, end in ends
    )
    request = bytes((family, 6 if tcp else 17, 0, 0)) + (_LISTEN if tcp else _ANY_STATE).to_bytes(4, sys.byteorder)
    request += bytes(48) + (4 + len(code)).to_bytes(2, sys.byteorder) + b"\1\0" + code  # INET_DIAG_REQ_BYTECODE
    for _, body in _dump(netlink, _SOCK_DIAG_BY_FAMILY, request):
        # struct inet_diag_msg: family, state, timer, retrans, sport, dport, src[16], dst[16], interface, cookie[8]
        if body[0] == family and (not port or int.from_bytes(body[4:6], "big") == port):
            size = 4 if family == _V4 else 16
            mark = int.from_bytes(body[44:52], sys.byteorder)
            peer_port = int.from_bytes(body[6:8], "big")
            peer = plain(body[24 : 24 + size])
            host = plain(body[8 : 8 + size])
            yield host, mark, peer, peer_port
            if host == _ANY6 and (_V6ONLY, b"\1") not in _attributes(body, 72):
                yield _ANY4, mark, peer, peer_port


def bound_by_proc(kind: int, port: int) -> "list[Receiver]":
    """As `bound`, out of /proc/net: every mark is an inode, negative. A port of 0 is every port.

    A table comes in pages, and a socket that ends between two of them can hide another one: it is read twice.
    """
    found = []
    for name in 2 * (("tcp", "tcp6") if kind == _socket.SOCK_STREAM else ("udp", "udp6")):
        try:
            with open("/proc/net/" + name, "rb") as file:
                lines = file.read().split(b"\n")[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) > 9 and (kind != _socket.SOCK_STREAM or words[3] == b"0A"):
                (here, at), (peer, to) = _proc_address(words[1]), _proc_address(words[2])
                if not port or at == port:
                    found.append((here, -int(words[9]), peer, to))
                    if here == _ANY6:  # of one family or both: this table does not say
                        found.append((_ANY4, -int(words[9]), peer, to))
    return found


def _proc_address(text: bytes) -> "tuple[bytes, int]":
    """`0100007F:1F90`: 32-bit words in the machine's order, then the port."""
    host, _, port = text.partition(b":")
    raw = bytes.fromhex(host.decode())
    words = (raw[at : at + 4] for at in range(0, len(raw), 4))
    return plain(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)), int(port, 16)


def marks(socket: "_socket.socket") -> "tuple[int, int]":
    """What tells a socket from every other: as `bound` and `unix_sockets` name it, whichever way they know it."""
    cookie = socket.getsockopt(_socket.SOL_SOCKET, _SO_COOKIE, 8)
    return int.from_bytes(cookie, sys.byteorder), -os.fstat(socket.fileno()).st_ino


def plain(host: bytes) -> bytes:
    """An address in its one spelling: v4-mapped as IPv4, all others as they are."""
    return host[12:] if len(host) == 16 and host[:12] == MAPPED else host


def unix_sockets() -> "list[tuple[int, bytes, int, int]]":
    """The unix sockets of this network namespace that may be connected or sent to by a name.

    Not the ones that accept(2) made: they carry the listener's name, and nobody reaches them by it.

    Returns:
        (socket's mark, name as in sun_path, file's inode, file's device); the file's as the kernel keeps
        them, 32 bits each, and 0 for abstract names.

    Raises:
        OSError: the kernel has no such table (CONFIG_UNIX_DIAG).
    """
    request = bytes((_socket.AF_UNIX, 0, 0, 0)) + _ANY_STATE.to_bytes(4, sys.byteorder) + bytes(4)
    request += _UNIX_SHOW_NAME_VFS.to_bytes(4, sys.byteorder) + bytes(8)
    with _Netlink(_SOCK_DIAG) as netlink:
        bodies = [body for _, body in _dump(netlink, _SOCK_DIAG_BY_FAMILY, request)]
    found = []
    for body in bodies:
        # struct unix_diag_msg: family, type, state, pad, inode, cookie
        if body[1] != _socket.SOCK_DGRAM and body[2] == _ESTABLISHED:
            continue
        name, inode, device = b"", 0, 0
        for kind, value in _attributes(body, 16):
            if kind == 0:  # UNIX_DIAG_NAME
                name = value
            elif kind == 1:  # UNIX_DIAG_VFS
                inode = int.from_bytes(value[:4], sys.byteorder)
                device = int.from_bytes(value[4:8], sys.byteorder)
        if name:
            found.append((int.from_bytes(body[8:16], sys.byteorder), name, inode, device))
    return found


def is_at(about: "os.stat_result", inode: int, device: int) -> bool:
    """Whether the file that `unix_sockets` tells of a socket is this one.

    Anonymous devices (major 0: btrfs, overlay) may have another number for us than in the kernel: there the inode
    has to do.
    """
    major = about.st_dev >> 8 & 0xFFF
    number = major << 20 | about.st_dev & 0xFF | about.st_dev >> 12 & 0xFFF00
    return inode == about.st_ino & 0xFFFFFFFF and (not major or device == number)


def unix_peer(inode: int) -> int:
    """The inode of the unix socket that one is connected to; 0 where there is none, or the kernel does not say."""
    request = bytes((_socket.AF_UNIX, 0, 0, 0)) + _ANY_STATE.to_bytes(4, sys.byteorder)
    request += inode.to_bytes(4, sys.byteorder) + _UNIX_SHOW_PEER.to_bytes(4, sys.byteorder) + b"\xff" * 8  # any cookie
    try:
        with _Netlink(_SOCK_DIAG) as netlink:
            _, body = next(_messages(netlink, _SOCK_DIAG_BY_FAMILY, request, _REQUEST), (0, b""))
    except OSError:
        return 0
    return int.from_bytes(dict(_attributes(body, 16)).get(2, b""), sys.byteorder)  # UNIX_DIAG_PEER


def local_addresses() -> "list[bytes]":
    """The host's own addresses, 4 or 16 bytes each; empty where the kernel does not say."""
    found = []
    try:
        with _Netlink(_ROUTE) as netlink:
            for kind, body in _dump(netlink, _RTM_GETADDR, bytes(8)):
                if kind == _RTM_NEWADDR:
                    about = dict(_attributes(body, 8))
                    found.append(about.get(2) or about.get(1) or b"")  # IFA_LOCAL, else IFA_ADDRESS
    except OSError:
        return []
    return [host for host in found if host]


def _dump(netlink: "_socket.socket", kind: int, request: bytes) -> "Iterator[tuple[int, bytes]]":
    """Ask for a whole table; yields (type, body) of each of its messages."""
    return _messages(netlink, kind, request, _REQUEST_DUMP)


def _messages(netlink: "_socket.socket", kind: int, request: bytes, flags: int) -> "Iterator[tuple[int, bytes]]":
    length = (_HEAD + len(request)).to_bytes(4, sys.byteorder)
    head = length + kind.to_bytes(2, sys.byteorder) + flags.to_bytes(2, sys.byteorder) + bytes(8)
    netlink.send(head + request)
    while True:
        answer = netlink.recv(1 << 16)
        at = 0
        while at + _HEAD <= len(answer):
            size = int.from_bytes(answer[at : at + 4], sys.byteorder)
            what = int.from_bytes(answer[at + 4 : at + 6], sys.byteorder)
            body = answer[at + _HEAD : at + size]
            if what == _NLMSG_DONE:
                return
            if what == _NLMSG_ERROR or size < _HEAD:
                code = -int.from_bytes(body[:4], sys.byteorder, signed=True) or 22
                raise OSError(code, "netlink refused")
            yield what, body
            at += (size + 3) & ~3


class _Netlink:
    """A netlink socket for one question: none is held, none is shared with a thread or a child."""

    def __init__(self, protocol: int) -> None:
        self._socket = _socket.socket(_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, protocol)
        self._socket.settimeout(2)

    def __enter__(self) -> "_socket.socket":
        return self._socket

    def __exit__(self, *exception: object) -> None:
        self._socket.close()


def _attributes(body: bytes, at: int) -> "Iterator[tuple[int, bytes]]":
    while at + 4 <= len(body):
        size = int.from_bytes(body[at : at + 2], sys.byteorder)
        if size < 4:
            return
        yield int.from_bytes(body[at + 2 : at + 4], sys.byteorder), body[at + 4 : at + size]
        at += (size + 3) & ~3
