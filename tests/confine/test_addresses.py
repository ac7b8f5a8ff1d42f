"""What kind of address the bytes of a sockaddr are, row by row."""

from __future__ import annotations

import ipaddress
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.confine.handlers.addresses import METADATA, Address, within
from guard.confine.handlers.names import servers

V4, V6 = socket.AF_INET, socket.AF_INET6


def raw(host: str, port: int = 80, family: int | None = None) -> bytes:
    if ":" in host:
        return struct.pack("=HH4s16s4s", V6 if family is None else family, socket.htons(port), b"flow",
                           socket.inet_pton(V6, host), b"zone")  # fmt: skip
    said = V4 if family is None else family
    return struct.pack("=HH4s8s", said, socket.htons(port), socket.inet_pton(V4, host), b"12345678")


def address(host: str, port: int = 80) -> Address:
    return Address(V6 if ":" in host else V4, raw(host, port))


# host, kinds, where a connection arrives, what replaces it on a v6-only socket, and on one that serves both
KINDS = [
    ("0.0.0.0", "wildcard", "127.0.0.1", "127.0.0.1"),
    ("::", "wildcard", "::1", "::1"),
    ("::ffff:0.0.0.0", "wildcard", "127.0.0.1", "::ffff:127.0.0.1"),
    ("127.0.0.1", "loopback", "127.0.0.1", None),
    ("127.0.0.2", "loopback", "127.0.0.2", None),
    ("127.255.255.255", "loopback", "127.255.255.255", None),
    ("::1", "loopback", "::1", None),
    ("::ffff:127.0.0.1", "loopback", "127.0.0.1", None),
    ("::ffff:127.9.9.9", "loopback", "127.9.9.9", None),
    ("126.255.255.255", "", "126.255.255.255", None),
    ("128.0.0.0", "", "128.0.0.0", None),
    ("0.0.0.1", "", "0.0.0.1", None),
    ("::2", "", "::2", None),
    ("::127.0.0.1", "", "::127.0.0.1", None),  # IPv4-compatible (RFC 4291, 2.5.5.1): no loopback
    ("64:ff9b::127.0.0.1", "", "64:ff9b::127.0.0.1", None),
    ("10.0.0.1", "", "10.0.0.1", None),
    ("::ffff:10.0.0.1", "", "10.0.0.1", None),
    ("169.254.1.1", "link-local", "169.254.1.1", None),
    ("::ffff:169.254.1.1", "link-local", "169.254.1.1", None),
    ("fe80::1", "link-local", "fe80::1", None),
    ("febf::1", "link-local", "febf::1", None),
    ("fec0::1", "", "fec0::1", None),
    ("169.254.169.254", "link-local metadata", "169.254.169.254", None),
    ("::ffff:169.254.169.254", "link-local metadata", "169.254.169.254", None),
    ("168.63.129.16", "metadata", "168.63.129.16", None),
    ("100.100.100.200", "metadata", "100.100.100.200", None),
    ("fd00:ec2::254", "metadata", "fd00:ec2::254", None),
    ("fd20:ce::254", "metadata", "fd20:ce::254", None),
    ("224.0.0.1", "", "224.0.0.1", None),
    ("255.255.255.255", "", "255.255.255.255", None),
    ("ff02::1", "", "ff02::1", None),
]


@pytest.mark.parametrize(("host", "kinds", "arrives", "_"), KINDS, ids=[row[0] for row in KINDS])
def test_kind(host: str, kinds: str, arrives: str, _: str | None) -> None:
    it = address(host)
    found = {
        "wildcard": it.is_wildcard(), "loopback": it.is_loopback(), "link-local": it.is_link_local(),
        "metadata": it.is_metadata(),
    }  # fmt: skip
    assert {kind for kind, holds in found.items() if holds} == set(kinds.split())
    assert it.destination() == socket.inet_pton(V6 if ":" in arrives else V4, arrives)
    for kind in ("loopback", "link-local", "metadata"):
        assert it.is_in(kind) == found[kind]


@pytest.mark.parametrize(("host", "loopback"), [(row[0], row[3]) for row in KINDS if row[3]])
def test_a_wildcard_is_rewritten_within_its_family_and_nothing_else_changes(host: str, loopback: str) -> None:
    changed = address(host, 8080).to_loopback()
    assert changed == raw(loopback, 8080)
    again = Address(V6 if ":" in host else V4, changed)
    assert again.is_loopback()
    assert again.port == 8080


def test_on_a_socket_for_both_families_the_loopback_is_the_one_both_reach() -> None:
    assert address("::", 8080).to_loopback(dual=True) == raw("::ffff:127.0.0.1", 8080)
    assert address("0.0.0.0", 8080).to_loopback(dual=True) == raw("127.0.0.1", 8080)


def test_an_unspecified_family_is_ipv4_where_the_kernel_takes_it_so() -> None:
    wildcard = Address(V4, raw("0.0.0.0", 80, family=0))
    assert wildcard.is_wildcard()
    assert wildcard.raw() == raw("0.0.0.0", 80)
    assert wildcard.to_loopback() == raw("127.0.0.1", 80)
    sent = Address(V4, raw("10.0.0.1", 53, family=0), datagram=True)
    assert (sent.destination(), sent.raw()) == (bytes((10, 0, 0, 1)), raw("10.0.0.1", 53))


NONE = [
    (V4, raw("10.0.0.1", family=0)),  # bind: with the wildcard alone
    (V4, raw("::1")),
    (V4, raw("::1", family=0)[:4] + b"\1" + bytes(23)),
    (V6, raw("::", family=0)),
    (V4, b""), (V4, b"\2\0"), (V4, raw("0.0.0.0")[:7]), (V6, raw("::")[:23]), (V4, raw("0.0.0.0", family=1)),
    (V6, raw("::", family=16)),
]  # fmt: skip


@pytest.mark.parametrize(("family", "bytes_"), NONE)
def test_what_is_no_address_of_the_socket_is_none(family: int, bytes_: bytes) -> None:
    with pytest.raises(ValueError, match="not an internet address"):
        Address(family, bytes_)


def test_a_v6_socket_takes_an_ipv4_address_as_such() -> None:
    assert Address(V6, raw("127.0.0.1")).is_loopback()
    assert str(Address(V6, raw("10.1.2.3", 53))) == "10.1.2.3:53"
    assert str(address("fe80::1", 53)) == "[fe80::1]:53"


NETWORKS = [
    ("10.0.0.0/8", "10.255.0.1", True), ("10.0.0.0/8", "11.0.0.0", False), ("10.0.0.0/8", "::ffff:10.1.1.1", True),
    ("0.0.0.0/0", "1.2.3.4", True), ("0.0.0.0/0", "::1", False), ("::/0", "::1", True), ("::/0", "1.2.3.4", False),
    ("::/0", "::ffff:1.2.3.4", False), ("192.0.2.7/32", "192.0.2.7", True), ("192.0.2.7/32", "192.0.2.6", False),
    ("192.0.2.7", "192.0.2.7", True), ("fd00::/8", "fdff::1", True), ("fd00::/8", "fe00::1", False),
    ("any", "::", True),
]  # fmt: skip


@pytest.mark.parametrize(("network", "host", "inside"), NETWORKS)
def test_network(network: str, host: str, inside: bool) -> None:
    assert address(host).is_in(network) is inside


@given(st.ip_addresses(), st.ip_addresses(), st.integers(0, 128), st.integers(0, 65535))
def test_networks_are_as_the_standard_library_has_them(one, other, length: int, port: int) -> None:
    net = ipaddress.ip_network(f"{other}/{min(length, other.max_prefixlen)}", strict=False)
    mapped = getattr(one, "ipv4_mapped", None) or one
    assert address(str(one), port).is_in(str(net)) == (mapped.version == net.version and mapped in net)
    assert within(mapped.packed, str(net)) == (mapped.version == net.version and mapped in net)


@given(st.binary(max_size=40), st.sampled_from([V4, V6]))
def test_no_bytes_but_an_address_or_a_value_error(content: bytes, family: int) -> None:
    try:
        it = Address(family, content)
    except ValueError:
        return
    assert len(it.host) in (4, 16)
    assert it.is_wildcard() + it.is_loopback() + it.is_link_local() <= 1
    assert Address(family, it.to_loopback()).is_loopback()


def test_metadata_addresses_are_written_once_in_one_spelling() -> None:
    assert all(len(host) in (4, 16) and host[:12] != bytes(10) + b"\xff\xff" for host in METADATA)


RESOLV = [
    (b"nameserver 10.0.0.53\n", {"10.0.0.53"}),
    (b"# nameserver 10.9.9.9\nsearch a b\nnameserver\t10.0.0.53\r\nnameserver ::1 # note\n", {"10.0.0.53", "::1"}),
    (b"nameserver fe80::1%eth0\n", {"fe80::1"}),
    (b"nameserver 300.1.1.1\nnameserver\n", {"127.0.0.1", "::1"}),
    (b"", {"127.0.0.1", "::1"}),
]


@pytest.mark.parametrize(("text", "found"), RESOLV)
def test_name_servers_are_those_of_resolv_conf(text: bytes, found: set[str]) -> None:
    assert servers(text) == {socket.inet_pton(V6 if ":" in host else V4, host) for host in found}
