"""The filter loaded: each act is refused under it and is not without it, in processes forked for that."""

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import signal
import socket
import stat
import struct
import sys

import pytest

from guard.kernel import landlock
from guard.policy import filter as filters
from guard.policy.keys import defaults
from guard.policy.model import ConnectRule

MACHINE = os.uname().machine
HIGH = 0xDEADBEEF << 32
AT_FDCWD = -100

libc = ctypes.CDLL(None, use_errno=True)
filters.library()  # before any Landlock domain: it reads files as it is imported
libc.syscall.restype = ctypes.c_long
libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)


def load(program):
    held = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, fprog, 0, 0) == 0


def call(name, *args):
    """Make a system call by number: the result, or the negative errno."""
    number = filters.number(name, MACHINE) if isinstance(name, str) else name
    ctypes.set_errno(0)
    registers = (ctypes.c_ulong(arg & (1 << 64) - 1) if isinstance(arg, int) else arg for arg in args)
    result = libc.syscall(ctypes.c_long(number), *registers)
    return -ctypes.get_errno() if result == -1 else result


def in_child(act, program=None):
    """What `act` returns in a child, under a filter or without; `-1000 - signal` if one ended it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if program is not None:
                load(program)
            os.write(writer, json.dumps(act()).encode())
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - the parent must hear of it
            os.write(writer, json.dumps(repr(error)).encode())
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return -1000 - os.WTERMSIG(status)
    return json.loads(said)


def program(landlock=True, **changed):
    values = {**defaults(), "network.connect": (ConnectRule(((443, 443),)),)}
    return filters.build({**values, **changed}, landlock, MACHINE)


@pytest.fixture(scope="module")
def deny():
    return program()


@pytest.fixture
def place(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "dir").mkdir()
    previous = os.umask(0o022)
    here = os.getcwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(here)
    os.umask(previous)


def mode_of(name):
    return stat.S_IMODE(os.stat(name).st_mode)


def opened(flags, mode, name=b"new"):
    return call("openat", AT_FDCWD, name, flags, mode)


def terminal_call(request):
    """An ioctl on a terminal of one's own."""
    os.setsid()
    _, secondary = os.openpty()
    fcntl.ioctl(secondary, 0x540E, 0)  # TIOCSCTTY
    letter = ctypes.create_string_buffer(b"x")
    ctypes.set_errno(0)
    result = libc.ioctl(secondary, request, ctypes.addressof(letter))
    return -ctypes.get_errno() if result == -1 else result


def flags_by_a_readable_descriptor():
    readable = os.open("file", os.O_RDONLY)
    value = ctypes.c_int(0x40)  # FS_NODUMP_FL
    ctypes.set_errno(0)
    result = libc.ioctl(readable, 0x40086602, ctypes.addressof(value))
    return -ctypes.get_errno() if result == -1 else result


def limit_of_another():
    other = os.fork()
    if other == 0:
        signal.pause()
    try:
        return call("prlimit64", other, 4, struct.pack("QQ", 0, 0), 0)
    finally:
        with contextlib.suppress(OSError):
            os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)


def tmpfile(mode):
    return opened(os.O_TMPFILE | os.O_RDWR, mode, b".")


PERM, NOSYS = -errno.EPERM, -errno.ENOSYS
ACTS = {
    "chmod of others' write": (lambda: call("fchmodat", AT_FDCWD, b"file", 0o666), PERM),
    "chmod with a dirty high word": (lambda: call("fchmodat", AT_FDCWD, b"file", HIGH | 0o666), PERM),
    "fchmod of others' write": (lambda: call("fchmod", os.open("file", os.O_RDONLY), 0o602), PERM),
    "fchmodat2 of others' write": (lambda: call("fchmodat2", AT_FDCWD, b"file", 0o646, 0), PERM),
    "chmod of a sticky directory for all": (lambda: call("fchmodat", AT_FDCWD, b"dir", 0o1777), PERM),
    "chmod of set-user-id": (lambda: call("fchmodat", AT_FDCWD, b"file", 0o4755), PERM),
    "fchmodat2 of set-user-id": (lambda: call("fchmodat2", AT_FDCWD, b"file", 0o4700, 0), PERM),
    "a new set-user-id file": (lambda: opened(os.O_CREAT | os.O_WRONLY, 0o4755), PERM),
    "a new set-group-id file": (lambda: opened(os.O_CREAT | os.O_WRONLY, 0o2755), PERM),
    "a nameless set-user-id file": (lambda: tmpfile(0o4755), PERM),
    "a nameless set-group-id file": (lambda: tmpfile(0o2755), PERM),
    "mknod of a set-user-id file": (lambda: call("mknodat", AT_FDCWD, b"new", 0o104755, 0), PERM),
    "openat2": (lambda: call("openat2", AT_FDCWD, b"file", struct.pack("QQQ", 0, 0, 0), 24), NOSYS),
    "setxattr": (lambda: call("setxattr", b"file", b"user.x", b"1", 1, 0), -errno.EOPNOTSUPP),
    "setxattrat": (
        lambda: call("setxattrat", AT_FDCWD, b"file", 0, b"user.x", bytes(16), 16),
        -errno.EOPNOTSUPP,
    ),
    "inode flags": (flags_by_a_readable_descriptor, PERM),
    "limits of another process": (limit_of_another, PERM),
    "priority of all the user's processes": (lambda: call("setpriority", 2, os.getuid(), 1), PERM),
    "MPTCP": (lambda: call("socket", 2, 1, 262), -errno.EPROTONOSUPPORT),
    "MPTCP with a dirty high word": (
        lambda: call("socket", HIGH | 2, HIGH | 1, HIGH | 262),
        -errno.EPROTONOSUPPORT,
    ),
    "UDP-Lite": (lambda: call("socket", 2, 2, 136), -errno.EPROTONOSUPPORT),
    "netlink of other kinds": (lambda: call("socket", 16, 3, 16), -errno.EPROTONOSUPPORT),
    "kernel crypto sockets": (lambda: call("socket", 38, 5, 0), -errno.EAFNOSUPPORT),
    "unix datagrams": (lambda: call("socket", 1, 2, 0), -errno.EACCES),
    "unix datagrams as SOCK_RAW": (lambda: call("socket", 1, 3, 0), -errno.EACCES),
    "unix datagrams as a pair": (lambda: call("socketpair", 1, 2, 0, bytes(8)), -errno.EACCES),
    "a user namespace": (lambda: call("unshare", 0x10000000), PERM),
    "a user namespace by clone": (
        lambda: reaped(call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)),
        PERM,
    ),
    "clone3": (lambda: call("clone3", 0, 0), NOSYS),
    "io_uring": (lambda: call("io_uring_setup", 1, bytes(120)), NOSYS),
    "bpf": (lambda: call("bpf", 99, 0, 0), PERM),
    "perf": (lambda: call("perf_event_open", 0, 0, 0, 0, 0), PERM),
    "key rings": (lambda: call("keyctl", 0, -3, 0), PERM),
    "address randomisation off": (lambda: call("personality", 0x40000), PERM),
    "System V shared memory": (lambda: call("shmget", 0, 4096, 0o600), NOSYS),
    "POSIX queues": (lambda: call("mq_open", b"guard-test", 0o100 | 2, 0o600, 0), NOSYS),
    "typing into a terminal": (lambda: terminal_call(0x5412), PERM),
    "typing into a terminal, high word set": (lambda: terminal_call(HIGH | 0x5412), PERM),
    "protocol modules by TCP_ULP": (
        lambda: call("setsockopt", call("socket", 2, 1, 0), 6, 31, b"tls", 4),
        -errno.ENOPROTOOPT,
    ),
    "handles": (lambda: call("name_to_handle_at", AT_FDCWD, b"file", bytes(8), bytes(8), 0), PERM),
    "a call of the future": (lambda: call(600), NOSYS),
}
# Kernels that lack the thing refuse it in the same words: the filter's part cannot be told from theirs.
SAME = {"a call of the future", "bpf", "kernel crypto sockets"}


def reaped(result):
    if result == 0:
        os._exit(0)
    if result > 0:
        os.waitpid(result, 0)
    return result


@pytest.mark.parametrize("what", ACTS)
def test_refused_with_the_filter_and_not_without(what, place, deny):
    act, expected = ACTS[what]
    without = in_child(act)
    for name in ("new",):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    assert in_child(act, deny) == expected
    assert what in SAME or without != expected


@pytest.mark.parametrize(
    ("what", "act"),
    [
        ("set-group-id directory", lambda: call("fchmodat", AT_FDCWD, b"dir", 0o2770)),
        ("mkdir of one", lambda: call("mkdirat", AT_FDCWD, b"new", 0o2770)),
        ("an ordinary mode", lambda: call("fchmodat2", AT_FDCWD, b"file", 0o755, 0)),
        ("a nameless file", lambda: min(tmpfile(0o600), 0)),
        ("asking for the personality", lambda: call("personality", 0xFFFFFFFF) * 0),
        ("one's own limits", lambda: call("prlimit64", 0, 4, struct.pack("QQ", 0, 0), 0)),
        ("a stream pair", lambda: call("socketpair", 1, 1, 0, bytes(8))),
        ("a filter inside", lambda: load(struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000)) or 0),
        (
            "a Landlock layer inside",
            lambda: min(call("landlock_create_ruleset", struct.pack("Q", 1), 8, 0), 0),
        ),
    ],
)
def test_passes_under_the_filter(what, act, place, deny):
    assert in_child(act, deny) == 0


def test_a_umask_of_zero_changes_nothing_so_new_files_stay_closed(place, deny):
    def act():
        os.umask(0o022)
        told = os.umask(0)
        os.close(os.open("made", os.O_CREAT, 0o666))
        os.mkdir("made-dir", 0o777)
        os.mkfifo("made-fifo", 0o666)
        return told, mode_of("made"), mode_of("made-dir"), mode_of("made-fifo"), os.umask(0o022)

    assert in_child(act, deny) == [0, 0o644, 0o755, 0o644, 0o022]
    for name in ("made", "made-fifo"):
        os.unlink(name)
    os.rmdir("made-dir")
    assert in_child(act)[1:4] == [0o666, 0o777, 0o666]


def test_strip_lets_an_installer_go_on_and_leaves_the_file_as_it_was(place):
    def act():
        mask = os.umask(0)  # how pip, npm and others ask for the umask
        os.umask(mask)
        os.chmod("file", 0o666 & ~mask)
        return mode_of("file")

    assert in_child(act, program(**{"modes.world_writable": "strip"})) == 0o644
    assert "EPERM" in in_child(act, program()) or "not permitted" in in_child(act, program())


_held = []


def entry_of_i386():
    """A function that makes a 32-bit call: number, two arguments."""
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # push rbx; mov eax, edi; mov ebx, esi; mov ecx, edx; int 0x80; pop rbx; ret
    code.write(bytes.fromhex("53 89f8 89f3 89d1 cd80 5b c3"))
    _held.append(code)  # the function lives as long as the memory
    start = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_uint, ctypes.c_int)(start)


@pytest.mark.skipif(MACHINE != "x86_64", reason="other entries exist on x86-64 only")
def test_the_32_bit_entry_kills(deny):
    def act():
        return [entry_of_i386()(20, 0, 0), os.getpid()]  # getpid of i386

    without = in_child(act)
    if isinstance(without, int) or without[0] != without[1]:
        pytest.skip("this kernel has no 32-bit entry")
    assert in_child(act, deny) == -1000 - signal.SIGSYS


@pytest.mark.skipif(MACHINE != "x86_64", reason="other entries exist on x86-64 only")
@pytest.mark.parametrize("number", [39, 90, 268, 520])
def test_x32_calls_kill(number, deny):
    assert in_child(lambda: call(0x40000000 | number, 0, 0), deny) == -1000 - signal.SIGSYS


def test_fast_open_cannot_connect_and_connect_still_can(deny):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def fast_open():
            with socket.socket() as client:
                client.sendto(b"x", 0x20000000, ("127.0.0.1", port))
                return "connected"

        def connect():
            with socket.create_connection(("127.0.0.1", port)):
                return "connected"

        assert in_child(fast_open) == "connected"
        assert "Errno 1" in in_child(fast_open, deny) or "PermissionError" in in_child(fast_open, deny)
        assert in_child(connect, deny) == "connected"


def test_other_processes_memory_is_refused_without_a_domain():
    def act():
        target = ctypes.create_string_buffer(8)
        local = struct.pack("PQ", ctypes.addressof(target), 8)
        return call("process_vm_readv", os.getppid(), local, 1, local, 1, 0)

    assert in_child(act, program(landlock=False)) == PERM
    assert in_child(act) != PERM


def test_threads_start_although_clone3_is_refused(deny):
    def act():
        import threading

        done = []
        thread = threading.Thread(target=done.append, args=(1,))
        thread.start()
        thread.join()
        return done

    assert in_child(act, deny) == [1]


def test_programs_start_under_the_filter(deny):
    def act():
        import subprocess

        return subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True).stdout

    assert in_child(act, deny) == "42\n"


@pytest.mark.skipif(MACHINE != "x86_64", reason="other entries exist on x86-64 only")
def test_where_32_bit_programs_are_allowed_their_calls_are_judged(place):
    low = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40)  # MAP_32BIT: i386 can point there
    low.write(b"file\0")
    path = ctypes.addressof(ctypes.c_char.from_buffer(low))

    def act():
        entry = entry_of_i386()
        return [entry(15, path, 0o666), entry(15, path, 0o640), mode_of("file"), entry(359, 2, 1)]

    without = in_child(act)
    if isinstance(without, int):
        pytest.skip("this kernel has no 32-bit entry")
    assert without[:3] == [0, 0, 0o640]
    allowed = program(**{"kernel.binary32": "allow"})
    assert in_child(act, allowed)[:3] == [PERM, 0, 0o640]
    assert in_child(lambda: call(0x40000000 | 39), allowed) == -1000 - signal.SIGSYS


# Beside Landlock: what it leaves open is why a row is there, what it holds is why one is not --------------------


def domain(fs=0, net=0, scoped=0, ports=()):
    """Enter a Landlock domain that handles these bits and allows connections to these ports."""
    ruleset = landlock.Ruleset(landlock.abi()[0], fs, net, scoped)
    for port in ports:
        ruleset.allow_port(port, landlock.CONNECT_TCP)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    ruleset.restrict()


needs_ports = pytest.mark.skipif(landlock.abi()[0] < 4, reason="Landlock without port rules")
needs_domain = pytest.mark.skipif(landlock.abi()[0] < 1, reason="no Landlock here")


@needs_ports
def test_fast_open_passes_landlocks_ports_and_the_option_for_it_does_not(deny):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

        def send():
            domain(net=landlock.CONNECT_TCP)
            with socket.socket() as client:
                return client.sendto(b"x", 0x20000000, address)

        def option():
            domain(net=landlock.CONNECT_TCP)
            with socket.socket() as client:
                client.setsockopt(6, 30, 1)  # TCP_FASTOPEN_CONNECT
                client.connect(address)
                return client.send(b"x")

        assert in_child(send) == 1
        assert "PermissionError" in in_child(send, deny)
        assert "PermissionError" in in_child(option, deny)


@needs_ports
def test_multipath_tcp_passes_landlocks_ports_and_not_the_filter(deny):
    def bind():
        domain(net=landlock.BIND_TCP)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as held:
            held.bind(("127.0.0.1", 0))
            return "bound"

    without = in_child(bind)
    if without != "bound":
        pytest.skip(f"no multipath TCP here, or Landlock knows it: {without}")
    assert "OSError(93" in in_child(bind, deny)


@needs_domain
def test_landlock_lets_queues_of_others_be_removed_and_the_filter_does_not(deny):
    name = f"guard-test-{os.getpid()}".encode()
    if call("mq_open", name, 0o100 | 2, 0o600, 0) < 0:
        pytest.skip("no POSIX queues here")

    def remove():
        domain(fs=landlock.handled_fs(landlock.abi()[0]))
        return call("mq_unlink", name)

    try:
        assert in_child(remove, deny) == NOSYS
        assert in_child(remove) == 0
    finally:
        call("mq_unlink", name)


@needs_domain
def test_beside_a_domain_ones_own_tree_may_be_read_and_others_may_not(deny):
    held = ctypes.create_string_buffer(b"secret")
    there = struct.pack("PQ", ctypes.addressof(held), 6)

    def read(pid):
        target = ctypes.create_string_buffer(6)
        return call("process_vm_readv", pid, struct.pack("PQ", ctypes.addressof(target), 6), 1, there, 1, 0)

    def act():
        domain(fs=landlock.MAKE_BLOCK)
        child = os.fork()
        if child == 0:
            signal.pause()
        try:
            return [read(child), read(outside)]
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    outside = os.fork()
    if outside == 0:
        signal.pause()
    try:
        assert in_child(act, deny) == [6, PERM]
        assert in_child(lambda: read(outside), deny) in (6, PERM)  # PERM: Yama lets parents only
        assert in_child(lambda: read(outside), program(landlock=False)) == PERM
    finally:
        os.kill(outside, signal.SIGKILL)
        os.waitpid(outside, 0)


def test_a_pair_of_unix_datagram_sockets_sends_to_any_name(place, deny):
    """Why `unix.datagram = deny` refuses pairs of that kind too."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind("daemon")

        def send():
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            with ours, theirs:
                return ours.sendto(b"job", "daemon")

        assert in_child(send) == 3
        assert daemon.recv(10) == b"job"
        assert "PermissionError" in in_child(send, deny)


@needs_domain
def test_a_filter_is_made_where_no_file_can_be_written():
    def build():
        domain(fs=landlock.handled_fs(landlock.abi()[0]))
        with contextlib.suppress(OSError):
            open("/tmp/guard-test-unwritable", "w").close()
            return "a file could be written"
        return len(program()) % 8

    assert in_child(build) == 0
