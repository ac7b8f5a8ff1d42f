"""Internet socket addresses as the kernel reads them, and what kind of address one is. Pure."""

import _socket

_V4, _V6 = _socket.AF_INET, _socket.AF_INET6
_MAPPED = bytes(10) + b"\xff\xff"
_LOOPBACK4, _LOOPBACK6 = b"\x7f\0\0\1", bytes(15) + b"\1"


def _metadata(*texts: str) -> "frozenset[bytes]":
    return frozenset(_socket.inet_pton(_V6 if ":" in text else _V4, text) for text in texts)


METADATA = _metadata(
    "169.254.169.254", "169.254.169.253", "fd00:ec2::254", "fd00:ec2::253",  # EC2, GCE, Azure, OpenStack, …; DNS of EC2
    "169.254.170.2", "169.254.170.23", "fd00:ec2::23",  # credentials of ECS tasks, of EKS pods
    "fd20:ce::254",  # GCE by IPv6
    "168.63.129.16",  # Azure's wire server
    "100.100.100.200",  # Alibaba
    "192.0.0.192",  # Oracle, first generation
    "169.254.42.42", "fd00:42::42",  # Scaleway
)  # fmt: skip
"""Where clouds keep a machine's credentials."""


class Address:
    """An IPv4 or IPv6 address and port out of a `struct sockaddr`.

    Args:
        family: the socket's own (SO_DOMAIN), which decides, not the bytes' first word.
        raw: the bytes, as copied.
        datagram: whether a datagram is sent there: then AF_UNSPEC is taken for AF_INET whatever the address
            (udp_sendmsg), while bind takes it so with the wildcard alone (__inet_bind).

    Attributes:
        host: 4 or 16 bytes; a v4-mapped one stays 16. port: the number.

    Raises:
        ValueError: no internet address: too short, or another family.
    """

    __slots__ = ("_raw", "family", "host", "port")

    def __init__(self, family: int, raw: bytes, datagram: bool = False) -> None:
        said = int.from_bytes(raw[:2], "little")
        if said == 0 and family == _V4 and (datagram or raw[4:8] == bytes(4)):
            said = _V4
        # A v6 socket takes v4 addresses in datagrams (udpv6_sendmsg) and in connect of UDP.
        if said == _V4 and len(raw) >= 16:
            self.host = raw[4:8]
        elif said == _V6 and family == _V6 and len(raw) >= 24:
            self.host = raw[8:24]
        else:
            raise ValueError("not an internet address of this socket's family")
        self.family = said
        self.port = int.from_bytes(raw[2:4], "big")
        self._raw = raw

    def raw(self) -> bytes:
        """The sockaddr, with the family that the kernel reads in it."""
        return self.family.to_bytes(2, "little") + self._raw[2:]

    def v4(self) -> "bytes | None":
        """The IPv4 address meant, also by ::ffff:a.b.c.d; None for a true IPv6 one."""
        if len(self.host) == 4:
            return self.host
        return self.host[12:] if self.host[:12] == _MAPPED else None

    def is_wildcard(self) -> bool:
        """Every address of the host; to connect there is to connect to loopback."""
        return (self.v4() or self.host).strip(b"\0") == b""

    def is_loopback(self) -> bool:
        """127.0.0.0/8, ::1, and the former as IPv6 writes it."""
        four = self.v4()
        if four is not None:
            return four[0] == 127
        return self.host == _LOOPBACK6

    def is_local(self) -> bool:
        """Whether a connection to it stays on loopback: to connect to the wildcard is to connect there."""
        return self.is_loopback() or self.is_wildcard()

    def is_link_local(self) -> bool:
        """169.254.0.0/16 and fe80::/10."""
        four = self.v4()
        if four is not None:
            return four[:2] == b"\xa9\xfe"
        return self.host[0] == 0xFE and self.host[1] & 0xC0 == 0x80

    def is_metadata(self) -> bool:
        """Where clouds keep a machine's credentials (`METADATA`)."""
        return (self.v4() or self.host) in METADATA

    def destination(self) -> bytes:
        """Where a connection to it arrives: 4 or 16 bytes, in one spelling (tcp_v4_connect, tcp_v6_connect)."""
        four = self.v4()
        if self.is_wildcard():
            return _LOOPBACK6 if four is None else _LOOPBACK4
        return self.host if four is None else four

    def to_loopback(self, dual: bool = False) -> bytes:
        """The same sockaddr with loopback for a wildcard.

        Args:
            dual: the socket serves IPv4 as well (IPV6_V6ONLY is off). Then :: becomes ::ffff:127.0.0.1: of the
                two loopbacks one such socket can have, the one that `127.0.0.1` and `localhost` reach.
        """
        if len(self.host) == 4:
            return self._with(_LOOPBACK4)
        return self._with(_MAPPED + _LOOPBACK4 if dual or self.v4() is not None else _LOOPBACK6)

    def to_host(self, host: bytes) -> bytes:
        """The same sockaddr with another address: 4 or 16 bytes, v4-mapped where the family asks for it.

        Raises:
            ValueError: a true IPv6 address for an IPv4 sockaddr.
        """
        if len(self.host) == 16 and len(host) == 4:
            host = _MAPPED + host
        if len(host) != len(self.host):
            raise ValueError("another family's address")
        return self._with(host)

    def _with(self, host: bytes) -> bytes:
        if len(host) == 4:
            return _V4.to_bytes(2, "little") + self._raw[2:4] + host + self._raw[8:]
        return self._raw[:8] + host + self._raw[24:]

    def is_in(self, network: str) -> bool:
        """Whether it lies in a CIDR, or has one of the kinds that policies name."""
        if network == "any":
            return True
        if network == "loopback":
            return self.is_loopback()
        if network == "link-local":
            return self.is_link_local()
        if network == "metadata":
            return self.is_metadata()
        return within(self.v4() or self.host, network)

    def arrives_in(self, network: str) -> bool:
        """As `is_in`, of where a connection to it arrives: at loopback for the wildcard."""
        return self.is_in(network) or (network == "loopback" and self.is_local())

    def __str__(self) -> str:
        host = _socket.inet_ntop(_V4 if len(self.host) == 4 else _V6, self.host)
        return f"{host}:{self.port}" if len(self.host) == 4 else f"[{host}]:{self.port}"


def packed(host: bytes, port: int) -> bytes:
    """The sockaddr of an address of 4 or 16 bytes and a port."""
    if len(host) == 4:
        return _V4.to_bytes(2, "little") + port.to_bytes(2, "big") + host + bytes(8)
    return _V6.to_bytes(2, "little") + port.to_bytes(2, "big") + bytes(4) + host + bytes(4)


def parsed(network: str) -> "tuple[bytes, int]":
    """A CIDR, or an address for the network of it alone, as (4 or 16 bytes, prefix length)."""
    text, _, length = network.partition("/")
    base = _socket.inet_pton(_V6 if ":" in text else _V4, text)
    return base, int(length) if length else len(base) * 8


def within(host: bytes, network: str) -> bool:
    """Whether an address (4 or 16 bytes, v4-mapped as 4) lies in a CIDR."""
    base, length = parsed(network)
    if len(base) != len(host):
        return False
    shift = len(base) * 8 - length
    return int.from_bytes(host, "big") >> shift == int.from_bytes(base, "big") >> shift
