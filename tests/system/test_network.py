"""Network: ports are held by number, other protocols are closed; what is open without a supervisor is told."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from errno import EACCES, EAFNOSUPPORT, ECONNREFUSED, ENOPROTOOPT, EPERM, EPROTONOSUPPORT

import pytest

from tests.system.conftest import LISTENER
from tests.system.stage import PYTHON, Stage

pytestmark = pytest.mark.nested

ONE_PORT = """
schema = 1
name = "one-port"
extends = "login-node"
[network]
connect = [{port}]
"""
EVERYTHING = """
schema = 1
name = "open-network"
extends = "base"
reason = "a control"
[files]
read = ["{home}"]
write = ["{project}"]
[network]
bind = "any"
connect = "any"
"""


@pytest.fixture
def alone(stage: Stage) -> str:
    """A policy without a supervisor beside the tree; with one, see test_supervised_network.py."""
    return stage.alone


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "127.0.0.2"])
def test_no_tcp_port_can_be_bound(stage: Stage, alone: str, address: str) -> None:
    """What cannot be told from a wildcard without a supervisor falls to the stricter side."""
    stage.refused(EACCES, "bind", "inet", "stream", address, policy=alone)


@pytest.mark.parametrize("address", ["::", "::1", "::ffff:127.0.0.1", "::ffff:0.0.0.0"])
def test_no_tcp_port_can_be_bound_over_ipv6(stage: Stage, alone: str, address: str) -> None:
    stage.refused(EACCES, "bind", "inet6", "stream", address, policy=alone)


def test_an_address_without_a_family_is_a_wildcard_too(stage: Stage, alone: str) -> None:
    stage.refused(EACCES, "bind_unspecified", policy=alone)


def test_a_policy_that_allows_it_lets_bind(stage: Stage) -> None:
    stage.works("bind", "inet", "stream", "0.0.0.0", policy=stage.policy(EVERYTHING))


@pytest.mark.parametrize("how", ["connect", "connect_nonblocking", "connect_after_unspecified"])
def test_a_port_that_is_not_granted_cannot_be_connected_to(stage: Stage, listener: int, how: str) -> None:
    stage.refused(EACCES, how, "127.0.0.1", "{port}")


@pytest.mark.parametrize("address", ["::1", "::ffff:127.0.0.1"])
def test_nor_over_ipv6(stage: Stage, listener: int, address: str) -> None:
    stage.refused(EACCES, "connect", address, "{port}")


@pytest.mark.parametrize(("how", "high"), [("sendto", "0"), ("sendto", "1"), ("sendmsg", "0"), ("sendmmsg", "0")])
def test_nor_by_sending_at_once(stage: Stage, listener: int, how: str, high: str) -> None:
    code = stage.bare("fast_open", how, "{port}", high)
    if code == errno.EOPNOTSUPP:
        pytest.skip("TCP fast open is off here")
    stage.refused(EPERM, "fast_open", how, "{port}", high)


def test_nor_by_the_option_that_defers_the_connection(stage: Stage, listener: int) -> None:
    stage.refused(EACCES, "fast_open", "option", "{port}")


def test_a_granted_port_can_be_connected_to(stage: Stage, listener: int) -> None:
    policy = stage.policy(ONE_PORT.replace("{port}", str(listener)))
    stage.works("connect", "127.0.0.1", "{port}", policy=policy)
    stage.works("connect", "::1", "{port}", policy=policy)


def test_a_granted_port_that_nobody_serves_says_so(stage: Stage) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    policy = stage.policy(ONE_PORT.replace("{port}", str(port)))
    assert stage.confined("connect", "127.0.0.1", str(port), policy=policy) == ECONNREFUSED


SOCKETS = [
    ("MPTCP", "2 1 262", EPROTONOSUPPORT),
    ("MPTCP over IPv6", "10 1 262", EPROTONOSUPPORT),
    ("SCTP, stream", "2 1 132", EPROTONOSUPPORT),
    ("SCTP, packets", "2 5 132", EPROTONOSUPPORT),
    ("SMC over TCP", "2 1 256", EPROTONOSUPPORT),
    ("UDP-Lite", "2 2 136", EPROTONOSUPPORT),
    ("DCCP", "2 6 33", EPROTONOSUPPORT),
    ("raw IPv4", "2 3 1", EPROTONOSUPPORT),
    ("raw IPv4, any", "2 3 255", EPROTONOSUPPORT),
    ("raw IPv6", "10 3 58", EPROTONOSUPPORT),
    ("raw, close on exec", "2 524291 1", EPROTONOSUPPORT),
    ("packet", "17 3 768", EAFNOSUPPORT),
    ("packet, cooked", "17 2 768", EAFNOSUPPORT),
    ("vsock", "40 1 0", EAFNOSUPPORT),
    ("vsock datagram", "40 2 0", EAFNOSUPPORT),
    ("kernel crypto", "38 5 0", EAFNOSUPPORT),
    ("SMC", "43 1 0", EAFNOSUPPORT),
    ("RDS", "21 5 0", EAFNOSUPPORT),
    ("TIPC", "30 5 0", EAFNOSUPPORT),
    ("CAN", "29 3 1", EAFNOSUPPORT),
    ("Bluetooth", "31 3 1", EAFNOSUPPORT),
    ("PF_KEY", "15 3 2", EAFNOSUPPORT),
    ("XDP", "44 3 0", EAFNOSUPPORT),
    ("QIPCRTR", "42 2 0", EAFNOSUPPORT),
    ("NFC", "39 5 1", EAFNOSUPPORT),
    ("KCM", "41 5 0", EAFNOSUPPORT),
    ("netlink generic", "16 3 16", EPROTONOSUPPORT),
    ("netlink netfilter", "16 3 12", EPROTONOSUPPORT),
    ("netlink audit", "16 3 9", EPROTONOSUPPORT),
    ("netlink xfrm", "16 3 6", EPROTONOSUPPORT),
    ("netlink of processes", "16 2 2", EPROTONOSUPPORT),
    ("netlink connector", "16 3 11", EPROTONOSUPPORT),
    ("netlink uevents", "16 2 15", EPROTONOSUPPORT),
    ("netlink diagnosis", "16 3 4", EPROTONOSUPPORT),
    ("IPv4, high bits set", "4294967298 1 262", EPROTONOSUPPORT),
    ("unix datagram", "1 2 0", EACCES),
    ("unix raw, a datagram by another name", "1 3 0", EACCES),
    ("unix datagram, close on exec", "1 524290 0", EACCES),
    ("unix datagram, nonblocking", "1 2050 0", EACCES),
    ("unix datagram, high bits set", "4294967297 4294967298 0", EACCES),
]


@pytest.mark.parametrize(("name", "line", "answer"), SOCKETS, ids=[row[0] for row in SOCKETS])
def test_other_kinds_of_sockets_cannot_be_made(stage: Stage, name: str, line: str, answer: int) -> None:
    """The control: the kernel makes it, or refuses for its own reason (not built, not root)."""
    words = ("open_socket", *line.split())
    control = stage.bare(*words)
    assert stage.confined(*words) == answer
    if control == answer:
        pytest.skip("this kernel has none, and says the same")
    assert control in (0, EPERM, EACCES, EAFNOSUPPORT, EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT, errno.ENODEV)


@pytest.mark.parametrize("line", ["2 1 0", "2 1 6", "2 2 0", "2 2 17", "10 1 0", "10 2 0", "1 1 0", "1 5 0", "16 3 0", "16 2 0"])
def test_the_usual_sockets_can_be_made(stage: Stage, line: str) -> None:
    stage.works("open_socket", *line.split())


def test_protocol_modules_cannot_be_loaded_by_a_socket_option(stage: Stage) -> None:
    assert stage.confined("ulp") == ENOPROTOOPT
    assert stage.bare("ulp") in (0, errno.ENOTCONN, errno.ENOENT)


# Unix sockets ---------------------------------------------------------------------------------------------


@pytest.fixture
def paths(stage: Stage) -> Iterator[str]:
    """A server of the user's at a path outside."""
    code = LISTENER.replace('print(', 'path = socket.socket(socket.AF_UNIX); path.bind("served"); path.listen(8); print(', 1)
    with stage.beside([PYTHON, "-c", code]):
        yield f"{stage.elsewhere}/served"


@pytest.mark.parametrize(("suffix", "kind"), [("", "stream"), ("-packet", "seqpacket")])
def test_an_abstract_socket_outside_cannot_be_connected_to(
    stage: Stage, listener: int, suffix: str, kind: str
) -> None:
    stage.refused(EPERM, "unix", "{abstract}" + suffix, kind)


def test_no_datagram_can_be_sent_to_an_abstract_socket_outside(stage: Stage, listener: int) -> None:
    stage.refused(EACCES, "unix_datagram", "{abstract}-datagram")


def test_one_s_own_abstract_socket_works(stage: Stage) -> None:
    stage.works("unix_serve", f"@guard-test-own-{stage.account.uid}-{id(stage)}")


@pytest.mark.parametrize(("kind", "answer"), [("2", EACCES), ("3", EACCES), ("524290", EACCES)])
def test_no_end_of_a_datagram_pair_can_be_had(stage: Stage, kind: str, answer: int) -> None:
    """One end of a pair sends to any name."""
    stage.refused(answer, "open_pair", kind)


@pytest.mark.parametrize("kind", ["1", "5", "2049"])
def test_pairs_of_streams_and_packets_work(stage: Stage, kind: str) -> None:
    stage.works("open_pair", kind)


# What is open without a supervisor, kept here so that a change is noticed ----------------------------------


@pytest.mark.parametrize(
    ("words", "control"),
    [
        (("listen",), "bind"),
        (("listen", "inet6"), "bind"),
        (("bind", "inet", "dgram", "0.0.0.0"), "bind"),
        (("udp", "127.0.0.1", "9"), "connect"),
    ],
    ids=["listen without bind", "listen without bind, IPv6", "bind UDP", "send UDP"],
)
def test_what_is_open_is_told_by_the_status(
    stage: Stage, alone: str, words: tuple[str, ...], control: str
) -> None:
    stage.works(*words, policy=alone)
    done = stage.account.guard(["true"], "--require", control, "--no-project-policy", policy=alone, cwd=stage.project)
    assert done.returncode == 125
    assert {"listen": "listen without bind", "bind": "UDP", "udp": "UDP"}[words[0]] in done.stderr


def test_a_socket_by_path_is_open_and_the_status_says_so(stage: Stage, alone: str, paths: str) -> None:
    """Landlock has a rule for it from ABI 9 on; until then the supervisor."""
    code = stage.confined("unix", paths, policy=alone)
    done = stage.account.guard(
        ["true"], "--require", "unix-sockets", "--no-project-policy", policy=alone, cwd=stage.project
    )
    assert stage.bare("unix", paths) == 0
    assert code in (0, EACCES)
    assert done.returncode == 125
    assert "by path" in done.stderr
