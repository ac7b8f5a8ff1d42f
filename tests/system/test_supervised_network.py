"""bind, listen, connect and sendto by address, through the supervisor; every refusal with its control."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EADDRINUSE, ECONNREFUSED, EINPROGRESS, EINTR, EPERM
from pathlib import Path
from typing import Any

import pytest

from guard.confine.handlers.names import servers
from tests.beds.ports import free_port, free_ports
from tests.conftest import LONG
from tests.system.stage import PYTHON, Stage, guarded

TRIES = 10_000 if LONG else 300

PRELUDE = """
import ctypes, errno, json, os, select, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
V4, V6, TCP, UDP = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM, socket.SOCK_DGRAM
def code(act, *args):
    try:
        act(*args)
    except OSError as error:
        return error.errno or -1
    return 0
def sockaddr(family, host, port, port_first=True):
    if family == V6:
        return struct.pack("=HHI16sI", V6, socket.htons(port), 0, socket.inet_pton(V6, host), 0)
    return struct.pack("=HH4s8x", family, socket.htons(port), socket.inet_pton(V4, host))
def raw(call, fd, address, length=None):
    if getattr(libc, call)(fd, address, len(address) if length is None else length) < 0:
        raise OSError(ctypes.get_errno(), call)
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.005)
def tell(name):
    open(name, "w").close()
"""


def _run(stage: Stage, code: str, args: tuple[str, ...], guarded: bool, **more: Any) -> Any:
    argv = [PYTHON, "-IS", "-c", PRELUDE + code, *args]
    policy = more.pop("policy", "login-node")
    if guarded:
        done = stage.account.guard(argv, "--no-project-policy", policy=policy, cwd=stage.project, **more)
    else:
        done = stage.account.command(argv, cwd=stage.project, **more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def inside(stage: Stage, code: str, *args: object, **more: Any) -> Any:
    """Run Python under guard; what it prints as JSON."""
    return _run(stage, code, tuple(map(str, args)), True, **more)


def outside(stage: Stage, code: str, *args: object, **more: Any) -> Any:
    """The same without guard."""
    return _run(stage, code, tuple(map(str, args)), False, **more)


def both(stage: Stage, code: str, *args: object, **more: Any) -> tuple[Any, Any]:
    """What the same program sees under guard, and without."""
    confined = inside(stage, code, *args, **more)
    more.pop("policy", None)
    return confined, outside(stage, code, *args, **more)


def network(**values: object) -> str:
    """The text of a policy that differs from login-node in these keys of [network]."""
    lines = "\n".join(f"{key} = {value}" for key, value in values.items())
    return f'schema = 1\nname = "net"\nextends = "login-node"\nreason = "a test"\n[network]\n{lines}\n'


@contextmanager
def listening(host: str, port: int = 0, kind: int = socket.SOCK_STREAM, *options: int) -> Iterator[socket.socket]:
    """A service of another's, outside the tree."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, kind) as server:
        for option in options:
            server.setsockopt(socket.SOL_SOCKET, option, 1)
        server.bind((host, port))
        if kind == socket.SOCK_STREAM:
            server.listen(16)
        yield server


# bind -----------------------------------------------------------------------------------------------------

SPELLINGS = """
found = {}
def case(name, family, kind, act):
    with socket.socket(family, kind) as new:
        try:
            act(new)
            found[name] = new.getsockname()[0]
        except OSError as error:
            found[name] = error.errno
def only(new):
    new.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    new.bind(("::", 0))
def shared(new):
    new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    new.bind(("0.0.0.0", 0))
def late(new):
    new.setsockopt(0, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
    new.bind(("0.0.0.0", 0))
    new.listen()
def high(new):
    libc.syscall.argtypes = [ctypes.c_long, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong]
    number = {"x86_64": 49, "aarch64": 200}[os.uname().machine]
    if libc.syscall(number, 7 << 32 | new.fileno(), sockaddr(V4, "0.0.0.0", 0), 7 << 32 | 16):
        raise OSError(ctypes.get_errno(), "bind")
def dissolved(new):
    new.bind(("127.0.0.1", 0))
    raw("connect", new.fileno(), bytes(16))
    new.listen()
for suffix, kind in (("", TCP), (", UDP", UDP)):
    case("0.0.0.0" + suffix, V4, kind, lambda new: new.bind(("0.0.0.0", 0)))
    case("::" + suffix, V6, kind, lambda new: new.bind(("::", 0)))
    case(":: alone" + suffix, V6, kind, only)
    case("mapped" + suffix, V6, kind, lambda new: new.bind(("::ffff:0.0.0.0", 0)))
    case("unspecified" + suffix, V4, kind, lambda new: raw("bind", new.fileno(), sockaddr(0, "0.0.0.0", 0)))
    case("shared" + suffix, V4, kind, shared)
    case("high bits" + suffix, V4, kind, high)
case("listen", V4, TCP, lambda new: new.listen())
case("listen, IPv6", V6, TCP, lambda new: new.listen())
case("late port", V4, TCP, late)
case("dissolved", V4, TCP, dissolved)
case("sendto", V4, UDP, lambda new: new.sendto(b"x", ("127.0.0.1", 9)))
case("sendto, mapped", V6, UDP, lambda new: new.sendto(b"x", ("::ffff:127.0.0.1", 9)))
case("sendto, IPv6", V6, UDP, lambda new: new.sendto(b"x", ("::1", 9)))
case("sendto, wildcard", V4, UDP, lambda new: new.sendto(b"x", ("0.0.0.0", 9)))
case("unspecified with an address", V4, TCP, lambda new: raw("bind", new.fileno(), sockaddr(0, "127.0.0.1", 0)))
case("wrong family", V4, TCP, lambda new: raw("bind", new.fileno(), sockaddr(V6, "::", 0)))
case("short", V4, TCP, lambda new: raw("bind", new.fileno(), sockaddr(V4, "0.0.0.0", 0), 15))
case("no address", V4, TCP, lambda new: raw("bind", new.fileno(), b"", 0))
case("long", V4, TCP, lambda new: raw("bind", new.fileno(), bytes(200), 200))
case("127.0.0.2", V4, TCP, lambda new: new.bind(("127.0.0.2", 0)))
case("multicast", V4, UDP, lambda new: new.bind(("224.0.0.251", 0)))
case("broadcast", V4, UDP, lambda new: new.bind(("255.255.255.255", 0)))
case("own", V4, TCP, lambda new: new.bind((sys.argv[1], 0)))
case("own, UDP", V4, UDP, lambda new: new.bind((sys.argv[1], 0)))
case("own, mapped", V6, TCP, lambda new: new.bind(("::ffff:" + sys.argv[1], 0)))
print(json.dumps(found))
"""

REWRITTEN = {
    "0.0.0.0": "127.0.0.1", "::": "::ffff:127.0.0.1", ":: alone": "::1", "mapped": "::ffff:127.0.0.1",
    "unspecified": "127.0.0.1", "shared": "127.0.0.1", "high bits": "127.0.0.1",
}  # fmt: skip
FIRST = {
    "listen": "127.0.0.1", "listen, IPv6": "::ffff:127.0.0.1", "late port": "127.0.0.1", "sendto": "127.0.0.1",
    "sendto, mapped": "::ffff:127.0.0.1", "sendto, IPv6": "::1", "sendto, wildcard": "127.0.0.1",
}  # fmt: skip
WILD = ("0.0.0.0", "::", "::ffff:0.0.0.0")


@pytest.fixture(scope="module")
def spelled(ground: Stage, own_address: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Where every spelling of an address was bound: under guard, and without."""
    return both(ground, SPELLINGS, own_address)


@pytest.mark.parametrize("suffix", ["", ", UDP"])
@pytest.mark.parametrize("name", REWRITTEN)
def test_every_spelling_of_a_wildcard_becomes_loopback(spelled: Any, name: str, suffix: str) -> None:
    confined, bare = spelled
    assert confined[name + suffix] == REWRITTEN[name]
    assert bare[name + suffix] in WILD


@pytest.mark.parametrize("name", FIRST)
def test_what_would_take_a_port_on_every_address_takes_it_on_loopback(spelled: Any, name: str) -> None:
    confined, bare = spelled
    assert confined[name] == FIRST[name]
    assert bare[name] in WILD


def test_a_listener_that_was_dissolved_stays_on_loopback(spelled: Any) -> None:
    assert spelled[0]["dissolved"] == spelled[1]["dissolved"] == "127.0.0.1"


@pytest.mark.parametrize("name", ["own", "own, UDP", "own, mapped", "multicast", "broadcast"])
def test_another_address_than_loopback_is_refused(spelled: Any, name: str) -> None:
    confined, bare = spelled
    assert confined[name] == EACCES
    assert isinstance(bare[name], str)


@pytest.mark.parametrize(
    "name", ["unspecified with an address", "wrong family", "short", "no address", "long", "127.0.0.2"]
)
def test_what_the_kernel_answers_itself_is_answered_the_same(spelled: Any, name: str) -> None:
    confined, bare = spelled
    assert confined[name] == bare[name] or {confined[name], bare[name]} == {22, 97}  # EINVAL, EAFNOSUPPORT


SERVE = """
with socket.socket() as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("0.0.0.0", int(sys.argv[1])))
    server.listen()
    tell("serving")
    wait("done")
print(0)
"""


@contextmanager
def running(stage: Stage, code: str, *args: object, guarded: bool = True, policy: str = "login-node") -> Iterator[dict]:
    """A program that runs beside the test; its answer is in the dictionary at the end."""
    for name in ("serving", "go", "done"):
        (stage.project / name).unlink(missing_ok=True)
    answer: dict[str, Any] = {}

    def run() -> None:
        try:
            answer["said"] = _run(stage, code, tuple(map(str, args)), guarded, policy=policy)
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            answer["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield answer
    finally:
        stage.account.write(stage.project / "done")
        thread.join()
    if "error" in answer:
        raise answer["error"]


def seen(stage: Stage, name: str) -> None:
    """Wait until the program has told something."""
    until = time.monotonic() + 30
    while not (stage.project / name).exists():
        assert time.monotonic() < until, name
        time.sleep(0.005)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_server_on_a_wildcard_is_reached_by_loopback_alone(ground: Stage, own_address: str, guarded: bool) -> None:
    port = free_port()
    with running(ground, SERVE, port, guarded=guarded):
        seen(ground, "serving")
        socket.create_connection(("127.0.0.1", port), 5).close()
        try:
            socket.create_connection((own_address, port), 5).close()
            reached = 0
        except OSError as error:
            reached = error.errno or -1
    assert reached == (ECONNREFUSED if guarded else 0)


@pytest.mark.parametrize("loopback", ["127.0.0.1", "::1", "localhost"])
def test_the_tree_reaches_its_server_on_both_families_by_every_loopback(ground: Stage, loopback: str) -> None:
    code = """
server = socket.create_server(("::", 0), family=V6, dualstack_ipv6=True)
with socket.create_connection((sys.argv[1], server.getsockname()[1]), 5) as client:
    server.accept()[0].sendall(b"served")
    print(json.dumps(client.recv(6).decode()))
"""
    assert inside(ground, code, loopback) == outside(ground, code, loopback) == "served"


def test_a_port_of_anothers_cannot_be_shared(ground: Stage) -> None:
    code = """
with socket.socket(type=int(sys.argv[2])) as new:
    new.setsockopt(socket.SOL_SOCKET, int(sys.argv[3]), 1)
    print(code(new.bind, ("127.0.0.1", int(sys.argv[1]))))
"""
    for kind, option in ((1, socket.SO_REUSEPORT), (2, socket.SO_REUSEPORT), (2, socket.SO_REUSEADDR)):
        with socket.socket(type=kind) as held:
            os.seteuid(ground.account.uid) if os.geteuid() == 0 else None
            try:
                held = socket.socket(type=kind)  # SO_REUSEPORT is for one user's sockets
            finally:
                os.seteuid(os.getuid())
            with held:
                held.setsockopt(socket.SOL_SOCKET, option, 1)
                held.bind(("127.0.0.1", 0))
                if kind == 1:
                    held.listen()
                words = (held.getsockname()[1], kind, option)
                assert both(ground, code, *words) == (EADDRINUSE, 0), words


# bind_allow -----------------------------------------------------------------------------------------------

BIND = """
import mmap
how = sys.argv[3] if len(sys.argv) > 3 else ""
if how == "anonymous":
    page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_EXEC)
if how == "patched":
    with open("/proc/self/maps") as maps:
        at = next(int(line.split("-")[0], 16) for line in maps if "r-xp" in line and "libc" in line)
    libc.mprotect(ctypes.c_void_p(at), 4096, 7)
    ctypes.memmove(at, ctypes.string_at(at, 1), 1)
    libc.mprotect(ctypes.c_void_p(at), 4096, 5)
with socket.socket() as new:
    new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    answer = code(new.bind, (sys.argv[1], int(sys.argv[2])))
    new.listen()
    print(json.dumps([answer, new.getsockname()[0]]))
"""


@pytest.fixture(scope="module")
def allowance(ground: Stage, own_address: str) -> tuple[str, int, str]:
    """An address and a port that Python alone may bind: (address, port, policy)."""
    port = free_port()
    program = os.path.realpath(PYTHON)
    entry = f'[{{ addr = "{own_address}/32", ports = ["{port}-{port}"], exec = "{program}", reason = "a test" }}]'
    return own_address, port, ground.policy(network(bind_allow=entry))


def test_a_program_that_the_policy_names_binds_there(ground: Stage, allowance: Any) -> None:
    host, port, policy = allowance
    assert inside(ground, BIND, host, port, policy=policy) == [0, host]


def test_its_wildcard_becomes_the_address_that_it_may_bind(ground: Stage, allowance: Any) -> None:
    """srun and salloc listen on nothing else."""
    host, port, policy = allowance
    assert inside(ground, BIND, "0.0.0.0", port, policy=policy) == [0, host]


def test_another_port_is_not_its(ground: Stage, allowance: Any) -> None:
    host, port, policy = allowance
    another = next(each for each in free_ports(2) if each != port)
    assert inside(ground, BIND, host, another, policy=policy) == [EACCES, "127.0.0.1"]
    assert outside(ground, BIND, host, another) == [0, host]


@pytest.mark.parametrize("how", ["anonymous", "patched"])
def test_code_of_anothers_in_the_program_has_no_allowance(ground: Stage, allowance: Any, how: str) -> None:
    host, port, policy = allowance
    assert inside(ground, BIND, host, port, how, policy=policy) == [EACCES, "127.0.0.1"]
    assert outside(ground, BIND, host, port, how) == [0, host]


def test_a_library_of_the_trees_making_takes_the_allowance_away(ground: Stage, allowance: Any) -> None:
    host, port, policy = allowance
    source = next(path for path in Path("/usr/lib").glob("*/libz.so.1*") if path.is_file())
    library = ground.account.write(ground.project / "preloaded.so", source.read_bytes(), 0o755)
    env = {"LD_PRELOAD": str(library)}
    assert inside(ground, BIND, host, port, policy=policy, env=env) == [EACCES, "127.0.0.1"]
    assert inside(ground, BIND, host, port, policy=policy, env={"LD_PRELOAD": str(source)}) == [0, host]


def test_a_copy_of_the_program_has_no_allowance(ground: Stage, allowance: Any) -> None:
    host, port, policy = allowance
    copy = ground.account.write(ground.project / "python3", Path(os.path.realpath(PYTHON)).read_bytes(), 0o755)
    argv = [str(copy), "-IS", "-c", PRELUDE + BIND, host, str(port)]
    done = ground.account.guard(argv, "--no-project-policy", policy=policy, cwd=ground.project)
    assert json.loads(done.stdout) == [EACCES, "127.0.0.1"], done.stderr


def test_what_one_program_bound_another_does_not_listen_on(ground: Stage, allowance: Any) -> None:
    host, port, policy = allowance
    code = """
with socket.socket() as new:
    new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    new.bind((sys.argv[1], int(sys.argv[2])))
    os.set_inheritable(new.fileno(), True)
    perl = "open(S, '+<&=', $ARGV[0]); print listen(S, 8) ? 0 : $! + 0"
    sys.stdout.flush()
    os.execv("/usr/bin/perl", ["perl", "-e", perl, str(new.fileno())])
"""
    if not Path("/usr/bin/perl").exists():
        pytest.skip("needs perl")
    assert inside(ground, code, host, port, policy=policy) == EACCES
    assert outside(ground, code, host, port) == 0


# connect --------------------------------------------------------------------------------------------------

CONNECT = """
family = V6 if ":" in sys.argv[1] else V4
with socket.socket(family) as new:
    new.settimeout(5)
    print(code(new.connect, (sys.argv[1], int(sys.argv[2]))))
"""


@pytest.mark.parametrize("spelling", ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1", "::ffff:0.0.0.0", "::", "::1"])
def test_a_service_of_the_users_on_loopback_is_closed(ground: Stage, spelling: str) -> None:
    with listening("::1" if spelling in ("::1", "::") else "127.0.0.1") as server:
        assert both(ground, CONNECT, spelling, server.getsockname()[1]) == (EACCES, 0)


def test_one_on_every_address_is_closed_too(ground: Stage) -> None:
    with listening("0.0.0.0") as server:
        assert both(ground, CONNECT, "127.0.0.1", server.getsockname()[1]) == (EACCES, 0)


@pytest.mark.parametrize("port", [80, 443])
@pytest.mark.parametrize(
    "address", ["169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254", "168.63.129.16", "fe80::1"]
)
def test_addresses_set_apart_are_closed_on_open_ports(ground: Stage, address: str, port: int) -> None:
    assert inside(ground, CONNECT, address, port) == EACCES
    assert outside(ground, CONNECT.replace("settimeout(5)", "settimeout(0.05)"), address, port) != EACCES


def test_the_tree_reaches_what_it_listens_on(ground: Stage) -> None:
    code = """
server = socket.create_server(("127.0.0.1", 0))
child = os.fork()
if child == 0:
    os._exit(code(socket.create_connection, server.getsockname(), 5))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert both(ground, code) == (0, 0)


@pytest.mark.parametrize("host", ["127.0.0.2", "::1", "::ffff:127.0.0.2"])
def test_a_listener_of_its_own_opens_no_others_on_the_same_port(ground: Stage, host: str) -> None:
    """A port alone does not say whose it is."""
    code = """
family = V6 if ":" in sys.argv[2] else V4
with socket.socket(family) as own:
    own.bind((sys.argv[2], int(sys.argv[1])))
    own.listen()
    print(code(socket.create_connection, ("127.0.0.1", int(sys.argv[1])), 5))
"""
    with listening("127.0.0.1") as server:
        assert both(ground, code, server.getsockname()[1], host) == (EACCES, 0)


def test_a_port_is_the_trees_only_while_it_listens(ground: Stage) -> None:
    code = """
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    first = code(socket.create_connection, ("127.0.0.1", int(sys.argv[1])), 5)
tell("serving")
wait("go")
print(json.dumps([first, code(socket.create_connection, ("127.0.0.1", int(sys.argv[1])), 5)]))
"""
    for is_guarded, expected in ((True, [0, EACCES]), (False, [0, 0])):
        port = free_port()
        with running(ground, code, port, guarded=is_guarded) as answer:
            seen(ground, "serving")
            with listening("127.0.0.1", port, socket.SOCK_STREAM, socket.SO_REUSEADDR):
                ground.account.write(ground.project / "go")
                until = time.monotonic() + 20
                while "said" not in answer and "error" not in answer and time.monotonic() < until:
                    time.sleep(0.01)
        assert answer["said"] == expected


def test_a_port_that_nobody_serves_says_so(ground: Stage) -> None:
    """Who waits for a server of its own to come up sees what it expects."""
    assert both(ground, CONNECT, "127.0.0.1", free_port()) == (ECONNREFUSED, ECONNREFUSED)


SEQUENCE = """
server = socket.create_server(("127.0.0.1", 0), backlog=8)
gone = socket.create_server(("127.0.0.1", 0))
name, nobody = server.getsockname(), gone.getsockname()
gone.close()
found = []
with socket.socket() as new:
    found += [code(new.connect, name), code(new.connect, name), code(new.connect, nobody)]  # 0, EISCONN, EISCONN
with socket.socket() as new:
    found += [code(new.connect, nobody), code(new.connect, name), new.getpeername() == name]
def settled(new):
    select.select([], [new], [], 30)
with socket.socket() as new:
    new.setblocking(False)
    found += [code(new.connect, name)]
    settled(new)
    found += [new.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), code(new.connect, name), code(new.connect, name)]
with socket.socket() as new:
    new.setblocking(False)
    found += [code(new.connect, nobody)]
    settled(new)
    found += [new.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)]
with socket.socket() as new:
    found += [code(new.connect, name), code(raw, "connect", new.fileno(), bytes(16)), code(new.connect, name)]
with socket.socket(type=UDP) as new:
    found += [code(new.connect, name), code(new.connect, name), code(raw, "connect", new.fileno(), bytes(16))]
with socket.socket() as new:
    new.listen()
    found += [code(new.connect, name)]
with socket.socket() as new:
    found += [code(raw, "connect", new.fileno(), sockaddr(V4, "127.0.0.1", name[1]), n) for n in (0, 1, 2, 15)]
    found += [code(raw, "connect", new.fileno(), sockaddr(V6, "::1", name[1]))]
    found += [code(raw, "connect", 999, sockaddr(V4, "127.0.0.1", name[1])), code(raw, "connect", 0, bytes(16))]
with socket.socket() as new:
    new.setblocking(False)
    found += [os.get_blocking(new.fileno())]
    code(new.connect, name)
    found += [os.get_blocking(new.fileno())]
with socket.socket() as new:
    new.connect(name)
    found += [os.get_blocking(new.fileno())]
print(json.dumps(found))
"""


def test_connect_answers_as_it_does_without_guard(ground: Stage) -> None:
    confined, bare = both(ground, SEQUENCE)
    assert confined == bare
    assert 106 in bare  # EISCONN


FULL = """
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen(0)
name = server.getsockname()
held = []
for _ in range(2):  # as many as the queue takes; the next handshake is not answered, for two minutes
    one = socket.socket()
    one.setblocking(False)
    code(one.connect, name)
    held.append(one)
    select.select([], [one], [], 1)
"""


def test_a_connect_that_waits_keeps_nobody_else_waiting(ground: Stage) -> None:
    code = FULL + """
slow = [socket.socket() for _ in range(20)]
threads = [threading.Thread(target=code, args=(one.connect, name), daemon=True) for one in slow]
for thread in threads:
    thread.start()
time.sleep(0.1)
other = socket.create_server(("127.0.0.1", 0))
start = time.monotonic()
with socket.socket() as new:
    new.connect(other.getsockname())
took = time.monotonic() - start
print(json.dumps([sum(thread.is_alive() for thread in threads) > 10, took < 20]), flush=True)
os._exit(0)
"""
    assert both(ground, code) == ([True, True], [True, True])


SIGNALLED = FULL + """
heard, hears = os.pipe()
os.set_blocking(hears, False)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, sys.argv[1] == "interrupt")
signal.set_wakeup_fd(hears)  # written by the handler itself, whatever Python does
def drain():  # nobody else makes room in the queue: the call cannot be done before the handler has run
    os.read(heard, 1)
    if sys.argv[1] == "restart":
        while True:
            server.accept()
threading.Thread(target=drain, daemon=True).start()
new = socket.socket()
# Again and again where it must interrupt: the first may come before the call.
signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2 if sys.argv[1] == "interrupt" else 0)
print(code(raw, "connect", new.fileno(), sockaddr(V4, *name)), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(("how", "answer"), [("interrupt", EINTR), ("restart", 0)])
def test_a_handler_runs_while_a_connect_waits(ground: Stage, how: str, answer: int) -> None:
    """And SA_RESTART decides, as without guard, whether the call fails or goes on."""
    assert both(ground, SIGNALLED, how) == (answer, answer)


def test_a_connect_that_waits_ends_with_its_program(ground: Stage) -> None:
    code = FULL + """
child = os.fork()
if child == 0:
    if int(sys.argv[1]) != signal.SIGKILL:
        signal.signal(int(sys.argv[1]), signal.SIG_DFL)  # what a shell starts in the background ignores SIGQUIT
    socket.socket().connect(name)
time.sleep(0.2)
start = time.monotonic()
os.kill(child, int(sys.argv[1]))
status = os.waitpid(child, 0)[1]
print(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - start < 20]))
"""
    for number in (9, 15, 3):
        assert both(ground, code, number) == ([-number, True], [-number, True])


def test_a_program_that_waits_in_connect_can_be_stopped_and_goes_on(ground: Stage) -> None:
    code = FULL + """
child = os.fork()
if child == 0:
    os._exit(code(socket.socket().connect, name))
os.setpgid(child, child)  # its parent is in another group of the session: an orphaned group takes no SIGTSTP (setpgid(2))
time.sleep(0.2)
os.kill(child, signal.SIGTSTP)
stopped = os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
os.kill(child, signal.SIGCONT)
def drain():  # how many of those before it the kernel still knows is its own affair
    while True:
        server.accept()
threading.Thread(target=drain, daemon=True).start()
print(json.dumps([stopped, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]), flush=True)
os._exit(0)
"""
    assert both(ground, code) == ([True, 0], [True, 0])


def test_a_time_limit_of_the_programs_own_holds(ground: Stage) -> None:
    code = FULL + """
new = socket.socket()
new.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 300000))
start = time.monotonic()
answer = code(raw, "connect", new.fileno(), sockaddr(V4, *name))
print(json.dumps([answer, 0.25 < time.monotonic() - start < 20]))
"""
    assert both(ground, code) == ([EINPROGRESS, True], [EINPROGRESS, True])


# sendto and names -----------------------------------------------------------------------------------------


def test_a_datagram_to_a_service_of_the_users_is_refused(ground: Stage) -> None:
    code = """
with socket.socket(type=UDP) as new:
    first = code(new.sendto, b"x", ("127.0.0.1", int(sys.argv[1])))
with socket.socket(type=UDP) as new:
    second = code(new.connect, ("127.0.0.1", int(sys.argv[1])))
with socket.socket(type=UDP) as new:
    number = new.fileno()
    third = libc.sendto(number, b"x", 1, 0, sockaddr(0, "127.0.0.1", int(sys.argv[1])), 16)
print(json.dumps([first, second, third]))
"""
    with listening("127.0.0.1", 0, socket.SOCK_DGRAM) as server:
        assert both(ground, code, server.getsockname()[1]) == ([EACCES, EACCES, -1], [0, 0, 1])


def test_datagrams_within_the_tree_pass_both_ways(ground: Stage) -> None:
    code = """
with socket.socket(type=UDP) as server, socket.socket(type=UDP) as client:
    server.bind(("0.0.0.0", 0))
    server.settimeout(5), client.settimeout(5)
    client.sendto(b"asked", ("127.0.0.1", server.getsockname()[1]))
    said, peer = server.recvfrom(9)
    server.sendto(said + b"!", peer)
    print(json.dumps(client.recv(9).decode()))
"""
    assert both(ground, code) == ("asked!", "asked!")


ANSWERED = """
with socket.socket(type=UDP) as client:
    client.settimeout(20)
    if sys.argv[3] == "bound":
        client.bind(("0.0.0.0", 0))  # musl's resolver
    client.sendto(b"asked", (sys.argv[1], int(sys.argv[2])))
    heard = [client.recvfrom(99)]
    while heard[-1][0] == b"uncalled":
        heard.append(client.recvfrom(99))
    print(json.dumps([heard[-1][0].decode(), heard[-1][1][0], len(heard) > 1]))
"""


@pytest.mark.parametrize("how", ["bound", "unbound"])
@pytest.mark.parametrize("guarded", [True, False])
def test_only_who_was_asked_can_answer(ground: Stage, own_address: str, how: str, guarded: bool) -> None:
    """A UDP socket that sends has no port that the network reaches; the answer comes all the same."""
    with listening(own_address, 0, socket.SOCK_DGRAM) as server, socket.socket(type=socket.SOCK_DGRAM) as stranger:
        port = server.getsockname()[1]

        def answer() -> None:
            said, peer = server.recvfrom(99)
            stranger.sendto(b"uncalled", peer)
            server.sendto(said + b" and answered", peer)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        policy = ground.policy(network(connect=f'[{{ ports = [{port}], to = "{own_address}/32" }}]'))
        run = inside if guarded else outside
        said, peer, uncalled = run(ground, ANSWERED, own_address, port, how, **({"policy": policy} if guarded else {}))
        thread.join(5)
    assert (said, peer) == ("asked and answered", own_address)
    assert uncalled is not guarded


@pytest.fixture(scope="module")
def neighbour() -> Iterator[tuple[str, str, list[str]]]:
    """Another host, in a network namespace: (our address towards it, its address, what runs a command there)."""
    name, ours, its = f"gt{os.getpid() % 100000}", "198.18.7.1", "198.18.7.2"
    for words in (
        f"netns add {name}", f"link add {name}a type veth peer name {name}b netns {name}",
        f"addr add {ours}/30 dev {name}a", f"link set {name}a up", f"-n {name} addr add {its}/30 dev {name}b",
        f"-n {name} link set {name}b up", f"-n {name} link set lo up",
    ):  # fmt: skip
        done = subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=False)
        if done.returncode:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            pytest.skip(f"no network namespace here: {done.stderr}")
    yield ours, its, ["ip", "netns", "exec", name]
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


HEARS = """
host, port, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
new = socket.socket(V6 if how == "v6" else V4, UDP)
if how == "bound":
    new.bind((host, port))
else:  # no filter of system calls sees where it goes
    new.sendmsg([b"x"], [], 0, ("::1" if how == "v6" else "127.0.0.1", 9))
found = [code(new.setsockopt, socket.SOL_SOCKET, 27, 0), code(new.setsockopt, socket.SOL_SOCKET, 44, 0)]
with open("port", "w") as file:
    file.write(str(new.getsockname()[1]))
tell("serving")
wait("go")
new.setblocking(False)
heard = set()
while True:
    try:
        heard.add(new.recv(99).decode())
    except BlockingIOError:
        break
print(json.dumps([sorted(heard), found]))
"""
SENDS = """
import socket, sys
for port in (5000, 443, 53):
    with socket.socket(type=socket.SOCK_DGRAM) as new:
        new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        new.bind((sys.argv[1], port))
        for target in sys.argv[3:]:
            new.sendto(b"from %d" % port, (sys.argv[2], int(target)))
"""


def heard(stage: Stage, neighbour: Any, how: str, port: int = 0, **more: Any) -> list[Any]:
    """What a UDP socket of the tree's hears of another host that sends from ports 5000, 443 and 53."""
    ours, its, there = neighbour
    with running(stage, HEARS, ours, port, how, **more) as answer, socket.socket(type=socket.SOCK_DGRAM) as witness:
        seen(stage, "serving")
        bound = (stage.project / "port").read_text()
        witness.bind((ours, 0))
        witness.settimeout(30)
        subprocess.run([*there, PYTHON, "-c", SENDS, its, ours, bound, str(witness.getsockname()[1])], check=True)
        for _ in range(3):  # what was sent before each of these has come, too
            witness.recv(99)
        with socket.socket(type=socket.SOCK_DGRAM) as near:
            near.sendto(b"from here", ("127.0.0.1" if how != "bound" else ours, int(bound)))
        stage.account.write(stage.project / "go")
    found: list[Any] = answer["said"]
    return found


@pytest.mark.root
@pytest.mark.parametrize("how", ["v4", "v6"])
def test_a_socket_that_was_never_bound_hears_only_this_host(ground: Stage, neighbour: Any, how: str) -> None:
    """A message takes a port on every address; under guard one on loopback, and the filter stays on the socket."""
    everybody = ["from 443", "from 5000", "from 53", "from here"]
    here = ["from here"] if how == "v4" else []  # which is sent to 127.0.0.1, and this one is on ::1
    assert heard(ground, neighbour, how) == [here, [EPERM, EPERM]]
    assert heard(ground, neighbour, how, guarded=False)[0] == everybody


@pytest.mark.root
def test_a_udp_port_that_the_policy_opens_hears_everybody(ground: Stage, neighbour: Any) -> None:
    port = free_port(socket.SOCK_DGRAM)
    entry = f'[{{ addr = "{neighbour[0]}/32", ports = [{port}], reason = "a test" }}]'
    found = heard(ground, neighbour, "bound", port, policy=ground.policy(network(bind_allow=entry)))
    assert found[0] == ["from 443", "from 5000", "from 53", "from here"]


def test_getaddrinfo_and_localhost_work(ground: Stage) -> None:
    code = """
print(json.dumps(sorted({one[4][0] for one in socket.getaddrinfo("localhost", 80, type=TCP)})))
"""
    confined, bare = both(ground, code)
    assert confined == bare


def test_a_name_server_that_resolv_conf_does_not_name_is_closed(ground: Stage) -> None:
    code = """
found = []
for kind in (UDP, TCP):
    with socket.socket(type=kind) as new:
        new.settimeout(0.2)
        found.append(code(new.connect, (sys.argv[1], 53)) == errno.EACCES)
print(json.dumps(found))
"""
    named = servers(Path("/etc/resolv.conf").read_bytes())
    assert inside(ground, code, "203.0.113.53") == [True, True]
    assert outside(ground, code, "203.0.113.53") == [False, False]
    for host in named:
        if len(host) == 4:
            assert inside(ground, code, socket.inet_ntop(socket.AF_INET, host)) == [False, False]


# Races ----------------------------------------------------------------------------------------------------

REWRITE = """
import mmap
page = mmap.mmap(-1, 4096)
tries, wild, looped, other, until = int(sys.argv[1]), 0, 0, 0, time.monotonic() + 30
wildcard, loopback = socket.inet_aton(sys.argv[2]), socket.inet_aton("127.0.0.1")
page[:16] = sockaddr(V4, "127.0.0.1", 0)
child = os.fork()
if child == 0:  # another process: no lock of Python's slows it down
    page[100] = 1
    while True:
        page[4:8] = wildcard
        page[4:8] = loopback
while not page[100]:
    time.sleep(0.001)
at = ctypes.addressof(ctypes.c_char.from_buffer(page))
while tries > 0 or (time.monotonic() < until and not wild and not (looped and other)):
    tries -= 1
    with socket.socket() as new:
        if libc.bind(new.fileno(), ctypes.c_void_p(at), 16) == 0:
            host = new.getsockname()[0]
            wild += host == sys.argv[2]
            looped += host == "127.0.0.1"
        else:
            other += 1
os.kill(child, 9)
print(json.dumps([wild, looped, other]))
"""


def test_an_address_rewritten_while_it_is_judged_wins_nothing(ground: Stage, own_address: str) -> None:
    wild, looped, refused = inside(ground, REWRITE, TRIES, own_address, timeout=600)
    assert wild == 0
    assert looped > 0
    assert refused > 0
    assert outside(ground, REWRITE, 0, own_address, timeout=600)[0] > 0


SWAP = """
tries, wild, listened, until = int(sys.argv[1]), 0, 0, time.monotonic() + 30
def bound():
    new = socket.socket()
    new.bind(("127.0.0.1", 0))
    return new
harmless, free, kept = bound(), [socket.socket()], []
target, stop = os.dup(harmless.fileno()), False
def swap():
    while not stop:
        os.dup2(harmless.fileno(), target)
        os.dup2(free[0].fileno(), target)
threading.Thread(target=swap, daemon=True).start()
sys.setswitchinterval(1e-5)
while tries > 0 or (time.monotonic() < until and not (wild or (listened and sys.argv[2] == "confined"))):
    tries -= 1
    listened += libc.listen(target, 8) == 0
    if free[0].getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        wild += free[0].getsockname()[0] == "0.0.0.0"
        kept = [free[0], *kept[:7]]  # closed when the other thread has long forgotten it
        free[0] = socket.socket()
stop = True
print(json.dumps([wild, listened]))
"""


def test_a_descriptor_swapped_while_it_is_judged_wins_nothing(ground: Stage) -> None:
    wild, listened = inside(ground, SWAP, TRIES, "confined", timeout=600)
    assert (wild, listened > 0) == (0, True)
    assert outside(ground, SWAP, 0, "bare", timeout=600)[0] > 0


CONNECT_RACE = """
import mmap
page = mmap.mmap(-1, 4096)
tries, reached = int(sys.argv[1]), 0
own = socket.create_server(("127.0.0.1", 0), backlog=1024)
right, wrong = struct.pack("!H", own.getsockname()[1]), struct.pack("!H", int(sys.argv[2]))
page[:16] = sockaddr(V4, "127.0.0.1", 0)
until = time.monotonic() + 60
child = os.fork()
if child == 0:
    own.close()
    page[100] = 1
    while True:
        page[2:4] = right
        page[2:4] = wrong
while not page[100]:
    time.sleep(0.001)
at = ctypes.addressof(ctypes.c_char.from_buffer(page))
own.setblocking(False)
while tries > 0 or (sys.argv[3] == "bare" and not reached and time.monotonic() < until):
    tries -= 1
    with socket.socket() as new:
        new.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if libc.connect(new.fileno(), ctypes.c_void_p(at), 16) == 0:
            reached += new.getpeername()[1] == int(sys.argv[2])
    try:
        own.accept()[0].close()
    except OSError:
        pass
os.kill(child, 9)
print(json.dumps(reached))
"""


def test_a_destination_rewritten_while_it_is_judged_wins_nothing(ground: Stage) -> None:
    with listening("127.0.0.1") as server:
        stop = threading.Event()

        def drain() -> None:
            server.settimeout(0.05)
            while not stop.is_set():
                try:
                    server.accept()[0].close()
                except OSError:
                    continue

        thread = threading.Thread(target=drain, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        assert inside(ground, CONNECT_RACE, TRIES, port, "confined", timeout=600) == 0
        assert outside(ground, CONNECT_RACE, 0, port, "bare", timeout=600) > 0
        stop.set()
        thread.join()


FORM = """
port, tries, sent = int(sys.argv[1]), int(sys.argv[2]), 0
sink = socket.socket(V4, UDP)
sink.bind(("127.0.0.1", 0))
peer = ("::ffff:127.0.0.1", sink.getsockname()[1])
unspecified = sockaddr(0, "127.0.0.1", port)
turn, done, held = threading.Semaphore(0), threading.Semaphore(0), [None, 0]
def convert():
    while True:
        turn.acquire()
        until = time.perf_counter() + held[1]
        while time.perf_counter() < until:
            pass
        code(held[0].setsockopt, socket.IPPROTO_IPV6, 1, V4)  # IPV6_ADDRFORM
        done.release()
threading.Thread(target=convert, daemon=True).start()
for number in range(tries):
    with socket.socket(V6, UDP) as new:
        new.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        new.connect(peer)
        held[:] = new, number % 60 * 4e-6
        turn.release()
        sent += libc.sendto(new.fileno(), b"x", 1, 0, unspecified, 16) == 1
        done.acquire()
print(sent)
"""


def test_a_socket_that_becomes_ipv4_while_its_address_is_judged_sends_nothing_out(ground: Stage) -> None:
    """With AF_UNSPEC an IPv6 socket sends to its peer, and an IPv4 one to the address behind it."""
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")

    def heard() -> int:
        count = 0
        with suppress(BlockingIOError):
            while outsider.recv(100):
                count += 1
        return count

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outsider:
        outsider.bind(("127.0.0.1", 0))
        outsider.setblocking(False)
        port = outsider.getsockname()[1]
        assert inside(ground, FORM, port, TRIES, timeout=600) > 0
        assert heard() == 0
        tries = 0
        while not heard():  # the race can be won: a few of a hundred
            assert tries < 6000
            assert outside(ground, FORM, port, 100) > 0
            tries += 100


I386 = """
import mmap
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
page = libc.mmap(None, 8192, 7, 0x22 | 0x40, -1, 0)  # MAP_32BIT
# push rbx; mov eax, edi; mov ebx, esi; xchg edx, ecx; int 0x80; pop rbx; ret
ctypes.memmove(page, bytes.fromhex("5389f889f387cacd805bc3"), 11)
enter = ctypes.CFUNCTYPE(*[ctypes.c_int] * 5)(page)
def put(raw):
    ctypes.memmove(page + 4096, raw, len(raw))
    return page + 4096
stream, first, second = socket.socket(), socket.socket(type=UDP), socket.socket(type=UDP)
print(json.dumps([
    enter(20, 0, 0, 0) == os.getpid(),
    enter(363, stream.fileno(), 1, 0),
    enter(361, first.fileno(), put(sockaddr(V4, "0.0.0.0", 0)), 16),
    enter(362, second.fileno(), put(sockaddr(V4, "127.0.0.1", int(sys.argv[1]))), 16),
]))
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="i386's calls are x86's")
def test_of_32_bit_calls_nothing_is_left_that_an_address_decides(ground: Stage) -> None:
    """Where a policy lets them in: the supervisor knows nothing of their arguments."""
    policy = ground.policy('schema = 1\nname = "old"\nextends = "login-node"\n[kernel]\nbinary32 = "allow"\n')
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outsider:
        outsider.bind(("127.0.0.1", 0))
        port = outsider.getsockname()[1]
        try:
            assert outside(ground, I386, port) == [True, 0, 0, 0]
        except AssertionError:
            pytest.skip("no 32-bit calls here")
        assert inside(ground, I386, port, policy=policy) == [True, *[-EACCES] * 3]


# What people run ------------------------------------------------------------------------------------------


def test_a_node_server_without_an_address_serves_on_loopback(ground: Stage, own_address: str) -> None:
    node = next((path for path in ("/usr/bin/node", "/usr/local/bin/node") if Path(path).exists()), "")
    if not node:
        pytest.skip("needs node")
    code = """
const http = require("http"), address = process.argv[1];
const server = http.createServer((request, answer) => answer.end("served"));
const get = host => new Promise(done => http.get({host, port: server.address().port}, answer => {
  answer.on("data", data => done(String(data)));
}).on("error", error => done(error.code)));
server.listen(0, async () => {
  console.log(JSON.stringify([await get("127.0.0.1"), await get("localhost"), await get("::1"), await get(address)]));
  process.exit(0);
});
"""
    done = ground.account.guard([node, "-e", code, own_address], "--no-project-policy", cwd=ground.project)
    assert json.loads(done.stdout)[:3] == ["served"] * 3, done.stderr
    assert json.loads(done.stdout)[3] in ("EACCES", "ECONNREFUSED")
    bare = ground.account.command([node, "-e", code, own_address], cwd=ground.project)
    assert json.loads(bare.stdout) == ["served"] * 4


def test_asyncio_servers_and_clients_work(ground: Stage) -> None:
    code = """
sys.path += [os.path.dirname(os.__file__)]
import asyncio
async def main():
    async def serve(reader, writer):
        writer.write(await reader.read(5))
        writer.close()
    found = []
    for host in ("127.0.0.1", "0.0.0.0", None):
        server = await asyncio.start_server(serve, host, 0)
        port = next(one.getsockname()[1] for one in server.sockets if one.family == V4)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        found.append((await reader.read()).decode())
        writer.close()
        server.close()
    await asyncio.start_unix_server(serve, "asyncio.sock")
    reader, writer = await asyncio.open_unix_connection("asyncio.sock")
    writer.write(b"hello")
    found.append((await reader.read()).decode())
    os.unlink("asyncio.sock")
    print(json.dumps(found))
asyncio.run(main())
"""
    assert both(ground, code) == (["hello"] * 4, ["hello"] * 4)


def test_the_command_line_http_server_works_and_stays_on_loopback(ground: Stage, own_address: str) -> None:
    port = free_port()
    argv = [PYTHON, "-m", "http.server", "-b", "0.0.0.0", str(port)]
    process = subprocess.Popen(
        [*guarded(ground), *argv], cwd=ground.project, env=ground.account.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **ground.account.identity(),  # type: ignore[call-overload]
    )  # fmt: skip
    try:
        until = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 5).close()
                break
            except ConnectionRefusedError:
                assert time.monotonic() < until
                time.sleep(0.02)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((own_address, port), 5)
    finally:
        process.terminate()
        process.wait()
