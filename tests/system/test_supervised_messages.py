"""sendmsg and sendmmsg: judged by where they go, and otherwise as without guard."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES

import pytest

from tests.beds.ports import free_port
from tests.system.stage import Stage
from tests.system.test_supervised_network import TRIES, both, inside, outside

MANY = 100_000  # tries without guard, each of them of a microsecond or two

LIKE = r"""
import array, select
SOL, RIGHTS, CREDENTIALS = socket.SOL_SOCKET, socket.SCM_RIGHTS, 2
found = {}
def case(function):
    try:
        found[function.__name__] = function()
    except OSError as error:
        found[function.__name__] = f"errno {error.errno}"
def pair(kind=TCP):
    return socket.socketpair(socket.AF_UNIX, kind)
def rights(*fds):
    return [(SOL, RIGHTS, array.array("i", fds))]
@case
def several_parts():
    ours, theirs = pair()
    return [ours.sendmsg([b"ab", b"", b"cd"]), theirs.recv(9).decode()]
@case
def descriptors():
    ours, theirs = pair()
    reader, writer = os.pipe()
    ours.sendmsg([b"x"], rights(writer, reader))
    _, control, flags, _ = theirs.recvmsg(9, socket.CMSG_SPACE(8))
    got = array.array("i")
    got.frombytes(control[0][2])
    return [flags, [os.fstat(a).st_ino == os.fstat(b).st_ino for a, b in zip(got, (writer, reader))]]
@case
def a_descriptor_that_is_none():
    return pair()[0].sendmsg([b"x"], rights(999))
@case
def the_user_in_credentials():
    ours, theirs = pair()
    theirs.setsockopt(SOL, socket.SO_PASSCRED, 1)
    ours.sendmsg([b"x"], [(SOL, CREDENTIALS, struct.pack("iii", os.getpid(), os.getuid(), os.getgid()))])
    return list(struct.unpack("iii", theirs.recvmsg(9, 64)[1][0][2])[1:])
@case
def another_users_credentials():
    other = struct.pack("iii", os.getpid(), os.getuid() + 1, os.getgid())
    return code(pair()[0].sendmsg, [b"x"], [(SOL, CREDENTIALS, other)]) in (1, 22)  # EINVAL: he has no name in the mask
@case
def five_megabytes_at_once():
    ours, theirs = pair()
    data, got = os.urandom(5_000_000), bytearray()
    def read():
        while len(got) < len(data):
            got.extend(theirs.recv(65536))
    reading = threading.Thread(target=read)
    reading.start()
    sent = 0
    while sent < len(data):
        sent += ours.sendmsg([data[sent:sent + 300_000], data[sent + 300_000:]])
    reading.join()
    return bytes(got) == data
@case
def a_full_queue_without_waiting():
    ours, theirs = pair()
    ours.setblocking(False)
    while True:
        ours.sendmsg([bytes(100_000)])
@case
def a_full_queue_for_a_while():
    ours, theirs = pair()
    ours.setsockopt(SOL, socket.SO_SNDTIMEO, struct.pack("ll", 0, 50_000))
    while True:
        if ours.sendmsg([bytes(50_000)]) < 50_000:
            return "a part"
@case
def a_full_queue_and_a_signal():
    ours, theirs = pair()
    signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        while True:
            ours.sendmsg([bytes(50_000)])
    except ZeroDivisionError:
        return "the handler ran"
@case
def nobody_reads():
    seen = []
    signal.signal(signal.SIGPIPE, lambda *_: seen.append(1))
    ours, theirs = pair()
    theirs.close()
    quiet = code(ours.sendmsg, [b"x"], [], socket.MSG_NOSIGNAL)
    after_quiet = len(seen)
    loud = code(ours.sendmsg, [b"x"])
    return [quiet, after_quiet, loud, len(seen)]
@case
def tcp():
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs = server.accept()[0]
        return [ours.sendmsg([b"abc"]), theirs.recv(9).decode()]
@case
def udp_to_oneself():
    here = socket.socket(type=UDP)
    here.bind(("127.0.0.1", 0))
    with socket.socket(type=UDP) as new:
        first = new.sendmsg([b"ab", b"c"], [], 0, here.getsockname())
        new.connect(here.getsockname())
        return [first, here.recv(9).decode(), new.sendmsg([b"d"]), here.recv(9).decode()]
@case
def several_at_once():
    ours, theirs = pair(socket.SOCK_SEQPACKET)
    data = [ctypes.create_string_buffer(text, len(text)) for text in (b"one", b"three")]
    vectors = [ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(d), len(d))) for d in data]
    head = b"".join(struct.pack("QIxxxxQQQQIxxxxIxxxx", 0, 0, ctypes.addressof(v), 1, 0, 0, 0, 77) for v in vectors)
    held = ctypes.create_string_buffer(head, len(head))
    count = libc.sendmmsg(ours.fileno(), held, 2, 0)
    return [count, [struct.unpack_from("I", held, 64 * at + 56)[0] for at in (0, 1)], theirs.recv(9).decode(),
            theirs.recv(9).decode()]
@case
def no_socket():
    return libc.sendmsg(0, ctypes.create_string_buffer(56), 0), ctypes.get_errno()
@case
def no_header():
    return libc.sendmsg(pair()[0].detach(), ctypes.c_void_p(8), 0), ctypes.get_errno()
@case
def too_many_parts():
    held = struct.pack("QIxxxxQQQQIxxxx", 0, 0, 8, 1025, 0, 0, 0)
    return libc.sendmsg(pair()[0].detach(), held, 0), ctypes.get_errno()
@case
def connected_and_an_address():
    ours, theirs = pair()
    return ours.sendmsg([b"x"], [], 0, "somewhere")
@case
def not_connected():
    return socket.socket().sendmsg([b"x"], [], socket.MSG_NOSIGNAL)
print(json.dumps(found))
"""


def test_messages_are_as_without_guard(ground: Stage) -> None:
    confined, bare = both(ground, LIKE)
    assert confined == bare
    assert len(bare) == 18


@contextmanager
def service() -> Iterator[tuple[int, list[bytes]]]:
    """A UDP service outside, which answers the first, and what it has heard."""
    heard: list[bytes] = []
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def listen() -> None:
            data, peer = server.recvfrom(99)
            while data != b"end":
                if not heard:
                    server.sendto(b"heard", peer)
                heard.append(data)
                data, peer = server.recvfrom(99)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        yield port, heard
        with socket.socket(type=socket.SOCK_DGRAM) as last:
            while thread.is_alive():  # amid a flood there may be no room for it
                last.sendto(b"end", ("127.0.0.1", port))
                thread.join(0.1)


SENDS = """
with socket.socket(V6 if ":" in sys.argv[1] else V4, UDP) as new:
    print(json.dumps(code(new.sendmsg, [b"x"], [], 0, (sys.argv[1], int(sys.argv[2])))))
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0"])
def test_a_message_does_not_reach_another_service_of_the_users(ground: Stage, host: str) -> None:
    with service() as (port, heard):
        assert inside(ground, SENDS, host, port) == EACCES
        assert heard == []
        assert outside(ground, SENDS, host, port) == 0
    assert heard == [b"x"]


def test_a_message_does_not_reach_a_port_that_is_not_granted_elsewhere(ground: Stage) -> None:
    code = 'with socket.socket(type=UDP) as new: print(code(new.sendmsg, [b"x"], [], 0, ("203.0.113.9", 5000)))'
    assert inside(ground, code) == EACCES
    granted = code.replace("5000", "443")
    assert inside(ground, granted) != EACCES


FLIPPED = """
import mmap
page = mmap.mmap(-1, 4096)
own = socket.socket(type=UDP)
own.bind(("127.0.0.1", 0))
right, wrong = struct.pack("!H", own.getsockname()[1]), struct.pack("!H", int(sys.argv[2]))
page[:16] = sockaddr(V4, "127.0.0.1", own.getsockname()[1])
at = ctypes.addressof(ctypes.c_char.from_buffer(page))
page[64:80] = struct.pack("QQ", at + 256, 1)
page[128:184] = struct.pack("QIxxxxQQQQIxxxx", at, 16, at + 64, 1, 0, 0, 0)
child = os.fork()
if child == 0:
    page[200] = 1
    while True:
        page[2:4] = wrong
        page[2:4] = right
while not page[200]:
    time.sleep(0.001)
new, sent, tries, until = socket.socket(type=UDP), 0, int(sys.argv[1]), time.monotonic() + 60
while tries > 0 or (not sent and time.monotonic() < until):
    tries -= 1
    sent += libc.sendmsg(new.fileno(), ctypes.c_void_p(at + 128), socket.MSG_DONTWAIT) == 1
os.kill(child, 9)
print(json.dumps(sent))
"""


def test_an_address_rewritten_behind_a_header_wins_nothing(ground: Stage) -> None:
    with service() as (port, heard):
        sent = inside(ground, FLIPPED, TRIES, port, timeout=600)
        assert heard == []
        assert sent > 0
        assert outside(ground, FLIPPED, MANY, port, timeout=600) > 0
    assert heard != []


SWAPPED = """
tries, stop = int(sys.argv[1]), False
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
ours.setblocking(False)
wanted = socket.socket(type=UDP)
target = os.dup(ours.fileno())
peer = ctypes.create_string_buffer(sockaddr(V4, "127.0.0.1", int(sys.argv[2])), 16)
data = ctypes.create_string_buffer(b"x", 1)
vector = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(data), 1))
head = ctypes.create_string_buffer(struct.pack("QIxxxxQQQQIxxxx", ctypes.addressof(peer), 16, ctypes.addressof(vector), 1, 0, 0, 0))
def swap():
    while not stop:
        os.dup2(wanted.fileno(), target)
        os.dup2(ours.fileno(), target)
if sys.argv[3] == "thread":
    threading.Thread(target=swap, daemon=True).start()
else:  # CLONE_FILES | SIGCHLD: a process of its own, with our table of descriptors
    child = libc.syscall(56 if os.uname().machine == "x86_64" else 220, 0x400 | 17, 0, 0, 0, 0)
    if child == 0:
        swap()
sys.setswitchinterval(1e-5)
until = time.monotonic() + 60
while tries > 0 or (sys.argv[4] == "bare" and not select.select([wanted], [], [], 0)[0] and time.monotonic() < until):
    tries -= 1
    libc.sendmsg(target, head, socket.MSG_DONTWAIT)
stop = True
if sys.argv[3] != "thread":
    os.kill(child, 9)
print(0)
"""


@pytest.mark.parametrize("who", ["thread", "process"])
def test_a_socket_swapped_under_a_message_wins_nothing(ground: Stage, who: str) -> None:
    """A message on a unix socket needs no judging; the same number is a datagram socket a moment later."""
    with service() as (port, heard):
        inside(ground, SWAPPED, TRIES, port, who, "confined", timeout=600)
        assert heard == []
        outside(ground, SWAPPED, MANY, port, who, "bare", timeout=600)
    assert heard != []


def test_the_resolver_s_pair_of_questions_goes_out_in_one_call(ground: Stage) -> None:
    """glibc asks for both kinds of address by one sendmmsg on a connected socket; here to a server of its own."""
    code = r"""
port = int(sys.argv[1])
server = socket.socket(type=UDP)
server.bind(("127.0.0.1", port))
new = socket.socket(type=UDP)
new.connect(("127.0.0.1", port))
data = [ctypes.create_string_buffer(text, 1) for text in (b"a", b"b")]
vectors = [ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(d), 1)) for d in data]
head = b"".join(struct.pack("QIxxxxQQQQIxxxxIxxxx", 0, 0, ctypes.addressof(v), 1, 0, 0, 0, 0) for v in vectors)
count = libc.sendmmsg(new.fileno(), ctypes.create_string_buffer(head, len(head)), 2, socket.MSG_NOSIGNAL)
print(json.dumps([count, server.recv(9).decode(), server.recv(9).decode()]))
"""
    assert both(ground, code, free_port(socket.SOCK_DGRAM)) == ([2, "a", "b"], [2, "a", "b"])
