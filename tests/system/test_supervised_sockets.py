"""Unix sockets by path and by abstract name, through the supervisor; every refusal with its control."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EADDRINUSE, ECONNREFUSED, EPERM
from pathlib import Path

import pytest

from tests.system.stage import Stage
from tests.system.test_supervised_network import TRIES, both, inside, outside, running, seen

ECHO = """
def serve(name, kind=TCP, backlog=8):
    server = socket.socket(socket.AF_UNIX, kind)
    server.bind(name)
    server.listen(backlog)
    return server
def reach(name, kind=TCP):
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.settimeout(5)
        return code(client.connect, name)
"""


@contextmanager
def served(stage: Stage, name: Path | str, kind: int = socket.SOCK_STREAM) -> Iterator[socket.socket]:
    """A service of the user's outside the tree, at a path or an abstract name."""
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(str(name))
        if isinstance(name, Path) and os.geteuid() == 0:
            os.chown(name, stage.account.uid, stage.account.gid)
        if kind != socket.SOCK_DGRAM:
            server.listen(8)
        yield server
    if isinstance(name, Path):
        name.unlink(missing_ok=True)


def policy(**values: str) -> str:
    lines = "\n".join(f"{key} = {value}" for key, value in values.items())
    return f'schema = 1\nname = "unix"\nextends = "login-node"\nreason = "a test"\n[unix]\n{lines}\n'


# By path --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["home", "elsewhere", "project"])
def test_a_service_of_the_users_is_closed_wherever_it_lies(ground: Stage, place: str) -> None:
    """Also in the project: a build daemon that was started outside would act outside."""
    path = getattr(ground, place) / "service"
    code = ECHO + "print(reach(sys.argv[1]))"
    with served(ground, path):
        assert both(ground, code, path) == (EACCES, 0)


def test_an_allowed_one_is_open_and_its_neighbour_is_not(ground: Stage) -> None:
    code = ECHO + "print(json.dumps([reach(name) for name in sys.argv[1:]]))"
    allow = ground.policy(policy(allow=f'["{ground.home}/allowed", "{ground.home}/several"]'))
    (ground.home / "several").mkdir(exist_ok=True)
    names = [ground.home / "allowed", ground.home / "several/one", ground.home / "allowed-not"]
    with served(ground, names[0]), served(ground, names[1]), served(ground, names[2]):
        assert inside(ground, code, *names, policy=allow) == [0, 0, EACCES]
        assert outside(ground, code, *names) == [0, 0, 0]


def test_a_name_service_answers_by_its_socket(ground: Stage) -> None:
    """As nscd: a request of a fixed form by a stream, an answer, the end."""
    path = ground.home / "nscd"
    code = """
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
    client.connect(sys.argv[1])
    client.setblocking(True)
    client.send(struct.pack("iii", 2, 0, 5) + b"root\\0", socket.MSG_NOSIGNAL)
    print(json.dumps(client.recv(99).decode()))
"""

    def answer(server: socket.socket) -> None:
        for _ in range(2):
            peer, _ = server.accept()
            with peer:
                request = peer.recv(99)
                peer.sendall(b"answer to " + request[12:-1])

    with served(ground, path) as server:
        thread = threading.Thread(target=answer, args=(server,), daemon=True)
        thread.start()
        allow = ground.policy(policy(allow=f'["{path}"]'))
        assert inside(ground, code, path, policy=allow) == "answer to root"
        assert outside(ground, code, path) == "answer to root"
        thread.join(5)


WAYS = (
    "link", "link in between", "relative", "/proc/self/cwd", "/proc/self/fd", "/proc/self/root", "dots", "late link",
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_no_way_around_leads_to_a_service_of_the_users(ground: Stage, way: str) -> None:
    code = ECHO + """
way, target = sys.argv[1:3]
above, base = os.path.split(target)
for name in ("link", "between", "late", "later", "own"):
    if os.path.lexists(name):
        os.unlink(name)
os.symlink(target, "link"), os.symlink(above, "between")
name = {
    "link": "link", "link in between": "between/" + base, "relative": os.path.relpath(target),
    "/proc/self/cwd": "/proc/self/cwd/link", "/proc/self/root": "/proc/self/root" + target,
    "/proc/self/fd": "/proc/self/fd/%d/%s" % (os.open(above, os.O_PATH), base), "dots": target.replace("/", "//./"),
    "late link": "late",
}[way]
if way != "late link":
    print(reach(name))
else:  # a link that changes while it is judged
    own = serve("own", backlog=1000)
    own.setblocking(False)
    os.symlink("own", "late")
    child = os.fork()
    if child == 0:
        while True:
            for goal in (target, "own"):
                os.symlink(goal, "later")
                os.rename("later", "late")
    won, tries, until = False, 0, time.monotonic() + 2
    while not won and (tries < int(sys.argv[3]) or time.monotonic() < until):
        tries += 1
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            if code(client.connect, "late") == 0:
                won = won or client.getpeername() != "own"
    os.kill(child, 9)
    os.waitpid(child, 0)
    print(0 if won else errno.EACCES)
"""
    with served(ground, ground.home / "s"):
        assert both(ground, code, way, ground.home / "s", TRIES, timeout=600) == (EACCES, 0)


OWN = ECHO + """
way = sys.argv[1]
if os.path.exists("own"):
    os.unlink("own")
names = {
    "relative": ("own", "own"), "absolute": (os.path.abspath("own"),) * 2,
    "/proc/self/cwd": ("/proc/self/cwd/own",) * 2, "dev/fd": ("/dev/fd/%d/own" % os.open(".", os.O_PATH),) * 2,
    "link": ("own", "link"), "thread": ("/proc/thread-self/cwd/own",) * 2,
}
bound, reached = names[way]
if way == "link" and not os.path.lexists("link"):
    os.symlink("own", "link")
server = serve(bound)
os.makedirs("below", exist_ok=True)
answer = [reach(reached), os.path.exists("own")]
if way in ("relative", "absolute"):
    answer.append(server.getsockname() == bound)
os.unlink("own")
if os.path.lexists("link"):
    os.unlink("link")
print(json.dumps(answer))
"""


@pytest.mark.parametrize("way", ["relative", "absolute", "/proc/self/cwd", "dev/fd", "link", "thread"])
def test_ones_own_sockets_work_by_every_spelling_of_their_path(ground: Stage, way: str) -> None:
    confined, bare = both(ground, OWN, way)
    assert confined == bare
    assert all(value in (0, True) for value in confined)


def test_a_socket_is_made_from_the_callers_directory_and_under_its_umask(ground: Stage) -> None:
    code = ECHO + """
os.makedirs("inner", exist_ok=True)
os.chdir("inner")
found = []
for mask in (0o077, 0o022, 0o002):
    os.umask(mask)
    serve("made")
    found.append(os.stat("made").st_mode & 0o777)
    os.unlink("made")
print(json.dumps(found))
"""
    assert both(ground, code) == ([0o700, 0o755, 0o775], [0o700, 0o755, 0o775])


def test_a_socket_is_never_writable_by_everybody(ground: Stage) -> None:
    code = ECHO + 'os.umask(0)\nserve("open")\nprint(os.stat("open").st_mode & 0o002)\nos.unlink("open")\n'
    assert both(ground, code) == (0, 0o002)


@pytest.mark.parametrize("place", ["home", "elsewhere"])
def test_no_socket_is_made_outside_the_writable_places(ground: Stage, place: str) -> None:
    path = getattr(ground, place) / "made"
    code = ECHO + """
answer = code(serve, sys.argv[1])
if not answer:
    os.unlink(sys.argv[1])
print(answer)
"""
    assert both(ground, code, path) == (EACCES, 0)
    assert not path.exists()


def test_no_socket_is_made_outside_through_a_descriptor_of_the_supervisors(ground: Stage) -> None:
    """/proc/self in a path is the caller, not whoever makes the file."""
    code = ECHO + """
found = sorted({code(serve, "/proc/self/fd/%d/made" % fd) for fd in range(3, 60)})
print(json.dumps([number for number in found if number not in (errno.ENOENT, errno.ENOTDIR)]))
"""
    assert inside(ground, code) == []


def test_binding_twice_and_over_a_file_answers_as_without_guard(ground: Stage) -> None:
    code = ECHO + """
server = serve("twice")
found = [code(server.bind, "other"), code(serve, "twice"), code(serve, "missing/name"), code(serve, "x" * 200)]
with socket.socket(socket.AF_UNIX) as new:
    found += [code(raw, "bind", new.fileno(), b"\\1\\0" + b"y" * 108, 110), os.path.exists("y" * 108)]
with socket.socket(socket.AF_UNIX) as new:
    found += [code(new.connect, "missing"), code(new.connect, "file"), code(new.connect, "."), code(new.connect, "")]
for name in ("twice", "y" * 108):
    os.unlink(name)
print(json.dumps(found))
"""
    confined, bare = both(ground, code)
    assert confined == bare
    assert EADDRINUSE in bare


def test_a_file_that_nobody_listens_on_any_more_says_so(ground: Stage) -> None:
    """As servers look for their own traces after a crash."""
    code = ECHO + 'serve("stale").close()\nprint(reach("stale"))\nos.unlink("stale")\n'
    assert both(ground, code) == (ECONNREFUSED, ECONNREFUSED)


def test_a_file_that_another_took_over_is_closed(ground: Stage) -> None:
    """The same name, and as it happens often the same inode: the socket counts."""
    code = ECHO + """
first = serve("taken")
before = reach("taken")
first.close()
os.unlink("taken")
tell("serving")
wait("go")
print(json.dumps([before, reach("taken")]))
"""
    for guarded, expected in ((True, [0, EACCES]), (False, [0, 0])):
        with running(ground, code, guarded=guarded) as answer:
            seen(ground, "serving")
            with served(ground, ground.project / "taken"):
                ground.account.write(ground.project / "go")
                _finish(answer)
        assert answer["said"] == expected


def _finish(answer: dict[str, object]) -> None:
    until = time.monotonic() + 20
    while not answer and time.monotonic() < until:
        time.sleep(0.01)


def test_a_server_with_clients_takes_more_of_them(ground: Stage) -> None:
    code = ECHO + """
found, held = [], []
for name in ("busy", "\\0guard-test-clients-%d" % os.getpid()):
    server = serve(name)
    for _ in range(3):
        client = socket.socket(socket.AF_UNIX)
        found.append(code(client.connect, name))
        held += [client, server.accept()[0]]
os.unlink("busy")
print(json.dumps(found))
"""
    assert both(ground, code) == ([0] * 6, [0] * 6)


def test_another_program_of_the_tree_reaches_its_sockets(ground: Stage) -> None:
    code = ECHO + """
server = serve("shared", socket.SOCK_SEQPACKET)
child = os.fork()
if child == 0:
    os.rename("shared", "moved")
    os._exit(reach("moved", socket.SOCK_SEQPACKET))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.unlink("moved")
"""
    assert both(ground, code) == (0, 0)


# Abstract names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_an_abstract_name_of_anothers_is_closed(ground: Stage, kind: int) -> None:
    name = f"\0guard-test-{os.getpid()}-{kind}"
    code = ECHO + 'print(reach("\\0" + sys.argv[1], int(sys.argv[2])))'
    with served(ground, name, kind):
        assert both(ground, code, name[1:], int(kind)) == (EPERM, 0)


def test_an_abstract_name_is_the_trees_only_while_it_holds_it(ground: Stage) -> None:
    name = f"guard-test-{os.getpid()}-later"
    code = ECHO + """
name = "\\0" + sys.argv[1]
first = serve(name)
before = reach(name)
first.close()
tell("serving")
wait("go")
print(json.dumps([before, reach(name)]))
"""
    for guarded, expected in ((True, [0, EPERM]), (False, [0, 0])):
        with running(ground, code, name, guarded=guarded) as answer:
            seen(ground, "serving")
            with served(ground, "\0" + name):
                ground.account.write(ground.project / "go")
                _finish(answer)
        assert answer["said"] == expected


def test_a_name_of_the_kernels_choice_works(ground: Stage) -> None:
    code = ECHO + """
server = serve("")
name = server.getsockname()
print(json.dumps([len(name), name[0], reach(name)]))
"""
    assert both(ground, code) == ([6, 0, 0], [6, 0, 0])


# Datagrams, where the policy has them ------------------------------------------------------------------------


def test_datagrams_reach_the_tree_and_nobody_else(ground: Stage) -> None:
    allow = ground.policy(policy(datagram='"allow"'))
    code = """
def send(name):
    with socket.socket(socket.AF_UNIX, UDP) as client:
        return code(client.sendto, b"x", name)
def tie(name):
    with socket.socket(socket.AF_UNIX, UDP) as client:
        return code(client.connect, name)
path, abstract = sys.argv[1], "\\0" + sys.argv[2]
own = socket.socket(socket.AF_UNIX, UDP)
own.bind("datagram")
found = [send("datagram"), own.recv(9).decode(), tie("datagram"), send(path), send(abstract), tie(path), tie(abstract)]
os.unlink("datagram")
print(json.dumps(found))
"""
    name = f"guard-test-{os.getpid()}-datagram"
    with served(ground, ground.home / "d", socket.SOCK_DGRAM), served(ground, "\0" + name, socket.SOCK_DGRAM):
        path = ground.home / "d"
        assert inside(ground, code, path, name, policy=allow) == [0, "x", 0, EACCES, EPERM, EACCES, EPERM]
        assert outside(ground, code, path, name) == [0, "x", 0, 0, 0, 0, 0]


def test_a_full_queue_of_datagrams_is_waited_for(ground: Stage) -> None:
    allow = ground.policy(policy(datagram='"allow"'))
    code = """
own = socket.socket(socket.AF_UNIX, UDP)
own.bind("queue")
client = socket.socket(socket.AF_UNIX, UDP)
client.setblocking(False)
count = 0
while not (refused := code(client.sendto, b"%d" % count, "queue")):
    count += 1
client.setblocking(True)
sent = []
def send():
    for number in range(count, count + 20):
        client.sendto(b"%d" % number, "queue")
        sent.append(number)
thread = threading.Thread(target=send)
thread.start()
time.sleep(0.3)
waited = not sent
got = [int(own.recv(9)) for _ in range(count + 20)]
thread.join()
os.unlink("queue")
print(json.dumps([waited, refused, got == list(range(count + 20))]))
"""
    assert inside(ground, code, policy=allow) == outside(ground, code) == [True, 11, True]


# Waiting --------------------------------------------------------------------------------------------------


def test_a_full_listener_is_waited_for_and_keeps_nobody_else_waiting(ground: Stage) -> None:
    code = ECHO + """
server, other = serve("busy", backlog=0), serve("free")
held = [socket.socket(socket.AF_UNIX) for _ in range(3)]
for one in held:
    one.setblocking(False)
full = [code(one.connect, "busy") for one in held]
slow = socket.socket(socket.AF_UNIX)
answer = []
thread = threading.Thread(target=lambda: answer.append(code(slow.connect, "busy")))
thread.start()
time.sleep(0.2)
waits, free = not answer, reach("free")
server.settimeout(0.05)
while not answer:
    code(server.accept)
thread.join()
limited = socket.socket(socket.AF_UNIX)
for _ in range(3):
    one = socket.socket(socket.AF_UNIX)
    one.setblocking(False)
    code(one.connect, "busy")
    held.append(one)
limited.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 200000))
late = code(raw, "connect", limited.fileno(), b"\\1\\0busy\\0")
os.unlink("busy"), os.unlink("free")
print(json.dumps([full[-1], waits, free, answer, late]))
"""
    assert both(ground, code) == ([11, True, 0, [0], 11], [11, True, 0, [0], 11])


def test_a_listener_sees_the_callers_user_and_group(ground: Stage) -> None:
    code = ECHO + """
server = serve("peer")
with socket.socket(socket.AF_UNIX) as client:
    client.connect("peer")
    accepted, _ = server.accept()
    pid, uid, gid = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
os.unlink("peer")
print(json.dumps([uid == os.getuid(), gid == os.getgid(), pid > 0]))
"""
    assert both(ground, code) == ([True] * 3, [True] * 3)


def test_pairs_descriptors_and_credentials_pass_between_processes(ground: Stage) -> None:
    code = """
left, right = socket.socketpair()
right.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
with open("file") as file:
    left.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", file.fileno()))])
_, ancillary, _, _ = right.recvmsg(1, 256)
kinds = {kind: data for _, kind, data in ancillary}
pid, uid, gid = struct.unpack("3i", kinds[2])
print(json.dumps([pid == os.getpid(), uid == os.getuid(), 1 in kinds]))
"""
    assert both(ground, code) == ([True] * 3, [True] * 3)


def test_managers_and_queues_of_multiprocessing_work(ground: Stage) -> None:
    code = """
sys.path += [os.path.dirname(os.__file__), os.path.dirname(os.__file__) + "/lib-dynload"]
import multiprocessing
with multiprocessing.Manager() as manager:
    values = manager.list([1, 2])
    values.append(3)
    print(json.dumps(list(values)))
"""
    assert both(ground, code) == ([1, 2, 3], [1, 2, 3])


def test_tmux_works_with_a_server_of_its_own(ground: Stage) -> None:
    if not Path("/usr/bin/tmux").exists():
        pytest.skip("needs tmux")
    text = 'schema = 1\nname = "t"\nextends = "login-node"\noverlays = ["terminals"]\nreason = "a test"\n'
    script = (
        'tmux -f /dev/null new-session -d -s one "sleep 60" && tmux list-sessions -F "#S"; '
        "code=$?; tmux kill-server; exit $code"
    )
    argv, chosen = ["sh", "-c", script], ground.policy(text)
    done = ground.account.guard(argv, "--no-project-policy", policy=chosen, cwd=ground.project)
    assert (done.returncode, done.stdout) == (0, "one\n"), done.stderr


def test_the_users_own_tmux_is_closed(ground: Stage) -> None:
    if not Path("/usr/bin/tmux").exists():
        pytest.skip("needs tmux")
    path = ground.home / "tmux"
    code = ECHO + "print(reach(sys.argv[1]))"
    try:
        started = ground.account.command(["tmux", "-S", str(path), "-f", "/dev/null", "new-session", "-d", "sleep 60"])
        if started.returncode:
            pytest.skip(f"tmux does not start here: {started.stderr}")
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert both(ground, code, path) == (EACCES, 0)
    finally:
        ground.account.command(["tmux", "-S", str(path), "kill-server"])
