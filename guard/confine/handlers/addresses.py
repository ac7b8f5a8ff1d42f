"""Internet socket addresses as the kernel reads them, and what kind of address one is. Pure."""

import _socket

TYPE_CHECKING = False

_V4, _V6 = _socket.AF_INET, _socket.AF_INET6
_MAPPED = bytes(10) + b"\xff\xff"


class Address:
    """An IPv4 or IPv6 address and port out of a `struct sockaddr`.

    Args:
        family: the socket's own (SO_DOMAIN), which decides, not the bytes' first word.
        raw: the bytes, as copied.

    Attributes:
        host: 4 or 16 bytes; a v4-mapped one stays 16. port: the number.

    Raises:
        ValueError: no internet address: too short, or another family.
    """

    __slots__ = ("_raw", "family", "host", "port")

    def __init__(self, family: int, raw: bytes) -> None:
        said = int.from_bytes(raw[:2], "little")
        # The kernel takes AF_UNSPEC with the wildcard for AF_INET on a v4 socket (inet_bind).
        if said == 0 and family == _V4 and raw[4:8] == bytes(4):
            said = _V4
        # A v6 socket takes v4 addresses in datagrams (udpv6_sendmsg).
        if said == _V4 and len(raw) >= 8:
            self.host = raw[4:8]
        elif said == _V6 and family == _V6 and len(raw) >= 24:
            self.host = raw[8:24]
        else:
            raise ValueError("not an internet address of this socket's family")
        self.family = said
        self.port = int.from_bytes(raw[2:4], "big")
        self._raw = raw

    def v4(self) -> "bytes | None":
        """The IPv4 address meant, also by ::ffff:a.b.c.d; None for a true IPv6 one."""
        if len(self.host) == 4:
            return self.host
        return self.host[12:] if self.host[:12] == _MAPPED else None

    def is_wildcard(self) -> bool:
        """Every address of the host."""
        return (self.v4() or self.host).strip(b"\0") == b""

    def is_loopback(self) -> bool:
        """127.0.0.0/8, ::1, and both as the other writes them; connecting to a wildcard means loopback too."""
        four = self.v4()
        if four is not None:
            return four[0] == 127
        return self.host == bytes(15) + b"\1"

    def is_link_local(self) -> bool:
        """169.254.0.0/16 and fe80::/10."""
        four = self.v4()
        if four is not None:
            return four[:2] == b"\xa9\xfe"
        return self.host[0] == 0xFE and self.host[1] & 0xC0 == 0x80

    def is_metadata(self) -> bool:
        """Where clouds keep a machine's credentials: 169.254.169.254 and .253, fd00:ec2::254, 168.63.129.16."""
        four = self.v4()
        if four is not None:
            return four in (b"\xa9\xfe\xa9\xfe", b"\xa9\xfe\xa9\xfd", b"\xa9\xfe\xaa\x02", b"\xa8\x3f\x81\x10")
        return self.host == bytes.fromhex("fd000ec2000000000000000000000254")

    def to_loopback(self) -> bytes:
        """The same sockaddr with the wildcard replaced by loopback."""
        if len(self.host) == 4:
            return _V4.to_bytes(2, "little") + self._raw[2:4] + b"\x7f\0\0\1" + self._raw[8:]
        host = _MAPPED + b"\x7f\0\0\1" if self.v4() is not None else bytes(15) + b"\1"
        return self._raw[:8] + host + self._raw[24:]

    def is_in(self, network: str) -> bool:
        """Whether it lies in a CIDR, or has one of the kinds that policies name."""
        named = {
            "any": lambda: True,
            "loopback": self.is_loopback,
            "link-local": self.is_link_local,
            "metadata": self.is_metadata,
        }.get(network)
        if named is not None:
            return bool(named())
        text, _, length = network.partition("/")
        family = _V6 if ":" in text else _V4
        base = _socket.inet_pton(family, text)
        mine = self.v4() if family == _V4 else self.host if len(self.host) == 16 and self.v4() is None else None
        if mine is None:
            return False
        bits = int(length) if length else len(base) * 8
        shift = len(base) * 8 - bits
        return int.from_bytes(mine, "big") >> shift == int.from_bytes(base, "big") >> shift

    def __str__(self) -> str:
        host = _socket.inet_ntop(_V4 if len(self.host) == 4 else _V6, self.host)
        return f"{host}:{self.port}" if len(self.host) == 4 else f"[{host}]:{self.port}"
