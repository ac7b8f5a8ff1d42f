from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Account
from tests.system.stage import PYTHON, Stage, address_of_host

VICTIM = "import time, os; secret = 'in memory'; print('ready', flush=True); time.sleep(600)"
LISTENER = """
import socket, time
tcp = socket.socket(); tcp.bind(("127.0.0.1", 0)); tcp.listen(64)
six = socket.socket(socket.AF_INET6); six.bind(("::1", tcp.getsockname()[1])); six.listen(64)
name = "guard-test-%d" % tcp.getsockname()[1]
stream = socket.socket(socket.AF_UNIX); stream.bind("\\0" + name); stream.listen(64)
packet = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); packet.bind("\\0" + name + "-packet"); packet.listen(64)
datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); datagram.bind("\\0" + name + "-datagram")
print(tcp.getsockname()[1], flush=True)
time.sleep(600)
"""


@pytest.fixture
def stage(account: Account) -> Iterator[Stage]:
    """A project and what lies beside it, for one test."""
    made = Stage(account)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def ground(account: Account) -> Iterator[Stage]:
    """One stage for tests that leave nothing behind."""
    made = Stage(account)
    yield made
    made.remove()


@pytest.fixture(scope="session")
def own_address() -> str:
    """An IPv4 address of this host that is not loopback: what stands for the network here."""
    return address_of_host() or pytest.skip("this host has no address but loopback")


@pytest.fixture
def victim(stage: Stage) -> Iterator[int]:
    """A process of the same user outside the tree."""
    with stage.beside([PYTHON, "-c", VICTIM]) as process:
        stage.set(victim=process.pid)
        yield process.pid


@pytest.fixture
def listener(stage: Stage) -> Iterator[int]:
    """The user's services outside the tree: TCP on loopback, and abstract sockets."""
    with stage.beside([PYTHON, "-c", LISTENER]) as process:
        port = int(process.said)
        stage.set(port=port, abstract=f"@guard-test-{port}")
        yield port
