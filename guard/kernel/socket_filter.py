"""Classic BPF on a socket's receiving side (socket(7), SO_ATTACH_FILTER): whom a UDP socket hears.

Attached and locked (SO_LOCK_FILTER) before a program gets the socket, it stays whatever the program does.
"""

import _socket
import _struct as struct

from guard.kernel import filter_program

_SO_ATTACH_FILTER, _SO_LOCK_FILTER = 26, 44
_WORD, _HALF, _BYTE, _AND, _RETURN = 0x20, 0x28, 0x30, 0x54, 0x06
_EQUAL, _NOT_LESS, _GREATER = 0x15, 0x35, 0x25
_NETWORK = 0xFFF00000  # SKF_NET_OFF: the IP header; offset 0 is UDP's
_INTERFACE = 0xFFFFF008  # SKF_AD_OFF + SKF_AD_IFINDEX
_LOOPBACK = 1  # in every network namespace
_INSTRUCTION = struct.Struct("=HBBI")
_MOST = 1000  # instructions; the kernel charges them to the socket (net.core.optmem_max)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    Peer = tuple[int, int, bytes, int]


def hears(peers: "Iterable[Peer]") -> bytes:
    """Assemble the filter of a UDP socket that hears this host, and a list of peers.

    Args:
        peers: (first port, last port, network, prefix length): from there; a network of 4 or 16 bytes, or
            none for every one.

    Returns:
        `struct sock_filter` entries; empty where there are more peers than a filter holds.
    """
    code = [(_WORD, 0, 0, _INTERFACE), (_EQUAL, 0, 1, _LOOPBACK), (_RETURN, 0, 0, 0xFFFFFFFF)]
    for low, high, network, length in peers:
        tests = [(_NOT_LESS, low), (_GREATER, high)]
        rows: list[tuple[int, int]] = [(_HALF, 0), *tests]
        if network:
            rows += [(_BYTE, _NETWORK), (_AND, 0xF0), (_EQUAL, 0x40 if len(network) == 4 else 0x60)]
            first = 12 if len(network) == 4 else 8  # the source
            for at in range(0, len(network), 4):
                bits = min(max(length - 8 * at, 0), 32)
                mask = 0xFFFFFFFF << (32 - bits) & 0xFFFFFFFF
                if mask:
                    value = int.from_bytes(network[at : at + 4], "big") & mask
                    rows += [(_WORD, _NETWORK + first + at), (_AND, mask), (_EQUAL, value)]
        for index, (operation, value) in enumerate(rows):
            past = len(rows) - index  # over the rest and the answer
            yes = past if operation == _GREATER else 0
            no = past if operation in (_EQUAL, _NOT_LESS) else 0
            code.append((operation, yes, no, value))
        code.append((_RETURN, 0, 0, 0xFFFFFFFF))
    code.append((_RETURN, 0, 0, 0))
    if len(code) > _MOST:
        return b""
    return b"".join(_INSTRUCTION.pack(*line) for line in code)


def lock(socket: "_socket.socket", program: bytes) -> None:
    """Attach a filter to a socket for good.

    Raises:
        OSError: the kernel refuses it; the socket is then as it was.
    """
    fprog, _held = filter_program(program)
    socket.setsockopt(_socket.SOL_SOCKET, _SO_ATTACH_FILTER, fprog)
    socket.setsockopt(_socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)
