"""Ports and addresses: reading them, and what two rules have in common.

`any` is both of the whole address families, `loopback` is 127.0.0.0/8 and ::1 (RFC 1122, RFC 4291);
everything else is one CIDR, so that common ground is always a list of networks.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from guard.policy.model import BindAllow, ConnectRule

Ports = tuple[tuple[int, int], ...]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LAST_PORT = 65535
_MAPPED_BITS = 96
EVERY_PORT: Ports = ((1, LAST_PORT),)
EXCEPTIONS = ("loopback", "link-local", "metadata")
"""Names that `except` knows beside CIDRs; what they mean is the supervisor's table."""

NAMED: dict[str, tuple[str, ...]] = {
    "any": ("0.0.0.0/0", "::/0"),
    "loopback": ("127.0.0.0/8", "::1/128"),
}


def port_range(text: str) -> tuple[int, int]:
    """Read `80` or `60001-63000`.

    Raises:
        ValueError: the sentence that says what is wrong.
    """
    low, dash, high = text.partition("-")
    ends = [low.strip(), high.strip()] if dash else [low.strip()]
    if not all(end.isascii() and end.isdigit() and len(end) <= len("65535") for end in ends):
        raise ValueError('is no port; write a number, or a range such as "60001-63000"')
    numbers = [int(end) for end in ends]
    for number in numbers:
        check_port(number)
    if numbers[0] > numbers[-1]:
        raise ValueError("is a range that ends before it begins")
    return numbers[0], numbers[-1]


def check_port(number: int) -> None:
    """Check a TCP port.

    Raises:
        ValueError: the sentence that says what is wrong.
    """
    if not 1 <= number <= LAST_PORT:
        raise ValueError(f"ports go from 1 to {LAST_PORT}")


def union_ports(ranges: Iterable[tuple[int, int]]) -> Ports:
    """Sort ranges and join those that touch."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def common_ports(one: Ports, other: Ports) -> Ports:
    """Return the ports that are in both."""
    both = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return union_ports((low, high) for low, high in both if low <= high)


def address(text: str, names: Iterable[str]) -> str:
    """Check a name, an address or a CIDR and return its one spelling.

    Args:
        text: as written.
        names: the words that may stand here.

    Raises:
        ValueError: the sentence that says what is wrong.
    """
    listed = tuple(names)
    if text in listed:
        return text
    if "%" in text:
        raise ValueError(f"{text!r} names a zone of one host; write it without")
    try:
        return _plain(ipaddress.ip_network(text))
    except ValueError as error:
        if "has host bits set" in str(error):
            net = _plain(ipaddress.ip_network(text, strict=False))
            raise ValueError(f"{text} has bits beyond its prefix; write {net}") from error
        words = ", ".join(listed)
        raise ValueError(f"{text!r} is no address; write one of {words}, or a CIDR such as 10.0.0.0/8") from error


def _plain(net: Network) -> str:
    """Write a network, one of v4-mapped addresses (RFC 4291, 2.5.5.2) as the IPv4 network that it is."""
    if isinstance(net, ipaddress.IPv6Network) and net.prefixlen >= _MAPPED_BITS:
        mapped = net.network_address.ipv4_mapped
        if mapped is not None:
            return f"{mapped}/{net.prefixlen - _MAPPED_BITS}"
    return str(net)


def networks(name: str) -> tuple[Network, ...]:
    """Return what `any`, `loopback` or a CIDR stands for."""
    return tuple(ipaddress.ip_network(net) for net in NAMED.get(name, (name,)))


def common_addresses(one: str, other: str) -> tuple[str, ...]:
    """Return the names and CIDRs whose addresses are in both, wide to narrow as written."""
    both = [
        str(a if _within(a, b) else b) for a in networks(one) for b in networks(other) if _within(a, b) or _within(b, a)
    ]
    for name, nets in NAMED.items():
        if sorted(both) == sorted(nets):
            return (name,)
    return tuple(both)


def contains(name: str, part: str) -> bool:
    """Whether every address of `part` is one of `name`."""
    return all(any(_within(net, outer) for outer in networks(name)) for net in networks(part))


def _within(net: Network, outer: Network) -> bool:
    if isinstance(net, ipaddress.IPv4Network):
        return isinstance(outer, ipaddress.IPv4Network) and net.subnet_of(outer)
    return isinstance(outer, ipaddress.IPv6Network) and net.subnet_of(outer)


def common_connect(one: ConnectRule, other: ConnectRule) -> tuple[ConnectRule, ...]:
    """Return what two rules both allow."""
    ports = common_ports(one.ports, other.ports)
    if not ports:
        return ()
    except_ = tuple(sorted({*one.except_, *other.except_}))
    return tuple(ConnectRule(ports, to, except_) for to in common_addresses(one.to, other.to))


def connect_within(upper: ConnectRule, lower: ConnectRule) -> bool:
    """Whether `lower` allows nothing that `upper` does not."""
    return (
        common_ports(upper.ports, lower.ports) == lower.ports
        and contains(upper.to, lower.to)
        and set(upper.except_) <= set(lower.except_)
    )


def common_bind(one: BindAllow, other: BindAllow) -> tuple[BindAllow, ...]:
    """Return what two entries both allow, with the reason of the second."""
    ports = common_ports(one.ports, other.ports)
    if not ports or (one.exec and other.exec and one.exec != other.exec):
        return ()
    exec_ = one.exec or other.exec
    reason = other.reason or one.reason
    return tuple(BindAllow(addr, ports, exec_, reason) for addr in common_addresses(one.addr, other.addr))


def bind_within(upper: BindAllow, lower: BindAllow) -> bool:
    """Whether `lower` allows nothing that `upper` does not."""
    return (
        common_ports(upper.ports, lower.ports) == lower.ports
        and contains(upper.addr, lower.addr)
        and upper.exec in ("", lower.exec)
    )
