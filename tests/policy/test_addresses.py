"""Ports and addresses: what two rules have in common, against plain membership."""

import ipaddress
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.policy.addresses import (
    address,
    bind_within,
    common_addresses,
    common_bind,
    common_connect,
    common_ports,
    connect_within,
    contains,
    port_range,
    union_ports,
)
from guard.policy.model import BindAllow, ConnectRule

_NETS = st.one_of(
    st.sampled_from(["any", "loopback"]),
    st.tuples(st.sampled_from(["127.0.0.1", "10.1.2.3", "::1", "fe80::1"]), st.integers(0, 128)).map(
        lambda pair: str(
            ipaddress.ip_network(f"{pair[0]}/{min(pair[1], 32) if '.' in pair[0] else pair[1]}", strict=False)
        )
    ),
)
_HOSTS = st.sampled_from(
    ["127.0.0.1", "127.255.0.1", "10.1.2.3", "10.0.0.0", "::1", "::2", "fe80::1", "fe80::2", "8.8.8.8"]
)
_RANGES = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 5)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=4
).map(union_ports)


def member(host, name):
    nets = {"any": ("0.0.0.0/0", "::/0"), "loopback": ("127.0.0.0/8", "::1/128")}.get(name, (name,))
    return any(ipaddress.ip_address(host) in ipaddress.ip_network(net) for net in nets)


def ports(ranges):
    return {port for low, high in ranges for port in range(low, high + 1)}


@given(_NETS, _NETS, _HOSTS)
def test_common_addresses_are_those_of_both(one, other, host):
    got = any(member(host, name) for name in common_addresses(one, other))
    assert got is (member(host, one) and member(host, other))


@given(_NETS, _NETS, _HOSTS)
def test_what_contains_another_holds_each_of_its_addresses(one, other, host):
    if contains(one, other) and member(host, other):
        assert member(host, one)
    assert contains("any", one)
    assert contains(one, one)


@given(_RANGES, _RANGES)
def test_common_ports_are_those_of_both(one, other):
    got = common_ports(one, other)
    assert ports(got) == ports(one) & ports(other)
    assert got == union_ports(got)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(30, 40)), max_size=4))
def test_ranges_are_sorted_and_do_not_touch(ranges):
    got = union_ports(ranges)
    assert ports(got) == ports(ranges)
    assert all(first[1] + 1 < second[0] for first, second in itertools.pairwise(got))


@given(_RANGES, _RANGES, _NETS, _NETS)
def test_what_two_rules_have_in_common_lies_within_both(one_ports, other_ports, one, other):
    for rule in common_connect(ConnectRule(one_ports, one, ("metadata",)), ConnectRule(other_ports, other)):
        assert connect_within(ConnectRule(one_ports, one, ("metadata",)), rule)
        assert connect_within(ConnectRule(other_ports, other), rule)
    for entry in common_bind(BindAllow(one, one_ports, "/a"), BindAllow(other, other_ports)):
        assert bind_within(BindAllow(one, one_ports, "/a"), entry)
        assert bind_within(BindAllow(other, other_ports), entry)


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("10.0.0.1", "10.0.0.1/32"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("::1", "::1/128"),
        ("2001:DB8::/32", "2001:db8::/32"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::ffff:127.0.0.1", "127.0.0.1/32"),
        ("::/0", "::/0"),
    ],
)
def test_an_address_has_one_spelling(text, spelling):
    assert address(text, ()) == spelling


@pytest.mark.parametrize("text", ["", "1-", "-1", "1--2", "0x10", "1.5", "٣", "1 2", "65536", "0", "5-4", "1-99999999"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        port_range(text)
