"""Perform one act and exit with what the kernel answered: 0, or the errno.

    act.py NAME ARGUMENT...

Run by a bare interpreter, once under guard and once without, so that a test can assert the exact refusal
and see that the same act succeeds otherwise. Standard library only: it is copied into throw-away projects.
An act raises OSError when refused; `Undone` when the call said it was done and nothing had changed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time

UNDONE, UNTRIED, CRASHED = 249, 250, 251
ACTS = {}
AT_FDCWD, AT_EMPTY_PATH, AT_SYMLINK_FOLLOW = -100, 0x1000, 0x400
PLAIN = os.O_CLOEXEC | os.O_NONBLOCK
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

# x86_64, aarch64; from 424 on the same everywhere.
NUMBERS = {
    "open": (2, None), "ioctl": (16, 29), "creat": (85, None), "chmod": (90, None), "fchmod": (91, 52),
    "umask": (95, 166), "ptrace": (101, 117), "personality": (135, 92), "mknod": (133, None),
    "modify_ldt": (154, None), "pivot_root": (155, 41), "chroot": (161, 51), "acct": (163, 89),
    "mount": (165, 40), "umount2": (166, 39), "swapon": (167, 224), "reboot": (169, 142),
    "sethostname": (170, 161), "init_module": (175, 105), "delete_module": (176, 106), "quotactl": (179, 60),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "kexec_load": (246, 104), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "ioprio_set": (251, 30), "openat": (257, 56), "mkdirat": (258, 34), "mknodat": (259, 33),
    "fchmodat": (268, 53), "unshare": (272, 97), "mkdir": (83, None), "vmsplice": (278, 75),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "perf_event_open": (298, 241),
    "fanotify_init": (300, 262), "prlimit64": (302, 261), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "clock_settime": (227, 112), "setns": (308, 268),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "finit_module": (313, 273), "renameat2": (316, 276), "seccomp": (317, 277), "kexec_file_load": (320, 294),
    "bpf": (321, 280), "execveat": (322, 281), "userfaultfd": (323, 282), "statx": (332, 291),
    "syslog": (103, 116), "rt_sigqueueinfo": (129, 138), "tgkill": (234, 131), "tkill": (200, 130),
    "sendmmsg": (307, 269), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "getpid": (39, 172), "link": (86, None), "linkat": (265, 37), "clone": (56, 220),
    "pidfd_send_signal": (424,) * 2, "io_uring_setup": (425,) * 2, "io_uring_enter": (426,) * 2,
    "io_uring_register": (427,) * 2, "open_tree": (428,) * 2, "move_mount": (429,) * 2, "fsopen": (430,) * 2,
    "fsmount": (432,) * 2, "pidfd_open": (434,) * 2, "clone3": (435,) * 2, "openat2": (437,) * 2,
    "pidfd_getfd": (438,) * 2, "process_madvise": (440,) * 2, "mount_setattr": (442,) * 2,
    "quotactl_fd": (443,) * 2, "fchmodat2": (452,) * 2, "setxattrat": (463,) * 2, "removexattrat": (466,) * 2,
    "open_tree_attr": (467,) * 2, "file_setattr": (469,) * 2, "newest": (511,) * 2,
}  # fmt: skip
COLUMN = {"x86_64": 0, "aarch64": 1}[os.uname().machine]


class Untried(Exception):
    """There is nothing here to try it with."""


class Undone(Exception):
    """The call succeeded and changed nothing."""


def act(function):
    ACTS[function.__name__] = function
    return function


def name(text):
    return ctypes.c_char_p(os.fsencode(text))


def call(which, *args):
    number = NUMBERS[which][COLUMN]
    if number is None:
        raise Untried
    return raw(number, *args)


def raw(number, *args):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def octal(text):
    return int(text, 8)


def one(path, flags, mode=0o600, **more):
    os.close(os.open(path, flags | PLAIN, mode, **more))


# Files -------------------------------------------------------------------------------------------------


@act
def read(path):
    with open(os.open(path, os.O_RDONLY | PLAIN), "rb") as file:
        if not file.read(1):
            raise Undone  # a masked file is there, and empty


@act
def listing(path):
    if not os.listdir(path):
        raise Undone  # a masked directory is there, and empty


@act
def exists(path):
    os.lstat(path)


@act
def write(path):
    fd = os.open(path, os.O_WRONLY | PLAIN)
    os.write(fd, b"changed")


@act
def append(path):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | PLAIN)
    os.write(fd, b"more")


@act
def open_both(path):
    one(path, os.O_RDWR)


@act
def open_path_only_then_proc(path):
    fd = os.open(path, os.O_PATH)
    one(f"/proc/self/fd/{fd}", os.O_RDWR)


@act
def create(path):
    one(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


@act
def truncating_open(path):
    one(path, os.O_RDONLY | os.O_TRUNC)
    changed(os.stat(path).st_size == 0)


@act
def truncate(path):
    os.truncate(path, 0)


@act
def temporary(directory):
    one(directory, os.O_RDWR | os.O_TMPFILE)


@act
def temporary_linked(directory, path):
    fd = os.open(directory, os.O_RDWR | os.O_TMPFILE, 0o600)
    call("linkat", AT_FDCWD, name(f"/proc/self/fd/{fd}"), AT_FDCWD, name(path), AT_SYMLINK_FOLLOW)


@act
def unlink(path):
    os.unlink(path)


@act
def rmdir(path):
    os.rmdir(path)


@act
def mkdir(path, mode="700"):
    os.mkdir(path, octal(mode))


@act
def mkfifo(path):
    os.mkfifo(path, 0o600)


@act
def mksock(path):
    os.mknod(path, stat.S_IFSOCK | 0o600)


@act
def symlink(target, path):
    os.symlink(target, path)


@act
def rename(source, target):
    os.rename(source, target)


@act
def exchange(one_path, other):
    call("renameat2", AT_FDCWD, name(one_path), AT_FDCWD, name(other), 2)


@act
def rename_noreplace(source, target):
    call("renameat2", AT_FDCWD, name(source), AT_FDCWD, name(target), 1)


@act
def link(source, target):
    os.link(source, target)


@act
def link_by_descriptor(source, target):
    fd = os.open(source, os.O_RDONLY)
    call("linkat", AT_FDCWD, name(f"/proc/self/fd/{fd}"), AT_FDCWD, name(target), AT_SYMLINK_FOLLOW)


@act
def link_by_empty_path(source, target):
    fd = os.open(source, os.O_RDONLY)
    try:
        call("linkat", fd, name(""), AT_FDCWD, name(target), AT_EMPTY_PATH)
    except FileNotFoundError as error:
        raise Untried from error  # before Linux 6.10 it needs a capability


@act
def execute(path):
    done = subprocess.run([path], check=False)
    changed(done.returncode == 0)


@act
def execute_by_descriptor(path):
    fd = os.open(path, os.O_PATH)
    execute_fd(fd)


def execute_fd(fd):
    child = os.fork()
    if child == 0:
        try:
            arguments = (ctypes.c_char_p * 2)(b"true", None)
            call("execveat", fd, name(""), arguments, None, AT_EMPTY_PATH)
        except OSError as error:
            os._exit(error.errno)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


@act
def load(path):
    """Run a program through the dynamic loader instead of executing it."""
    loader = next(p for p in ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1") if os.path.exists(p))
    done = subprocess.run([loader, path], check=False, stderr=subprocess.DEVNULL)
    if done.returncode:
        raise OSError(errno.EACCES, "the loader could not map it")


@act
def ioctl_device(path):
    fd = os.open(path, os.O_RDONLY | PLAIN)
    call("ioctl", fd, 0x5401, ctypes.create_string_buffer(64))  # TCGETS


@act
def read_at(fd, path):
    """Open relative to a descriptor that was there when the program started."""
    reader = os.open(path, os.O_RDONLY | PLAIN, dir_fd=int(fd))
    if not os.read(reader, 1):
        raise Undone


@act
def create_at(fd, path):
    one(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=int(fd))


@act
def create_from_any_descriptor(path):
    """Try to make a file from every directory that we were handed, up to the root and down again."""
    refused = FileNotFoundError(errno.ENOENT, "no directory")
    for fd in map(int, os.listdir("/proc/self/fd")):
        for up in range(1, 12):
            try:
                one("../" * up + path.lstrip("/"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=fd)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.EBADF, errno.ENOENT):
                    refused = error
                continue
            return
    raise refused


@act
def descriptors(expected):
    """Be handed no other descriptors than these."""
    own = sorted(int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}"))
    if any(str(fd) not in expected.split(",") and fd < 200 for fd in own):
        return
    raise OSError(errno.EBADF, "none")


@act
def reopen_standard(fd):
    one(f"/proc/self/fd/{fd}", os.O_RDWR)


@act
def change_directory_and_read(path, inner):
    os.chdir(path)
    read(inner)


@act
def map_shared(path):
    import mmap

    fd = os.open(path, os.O_RDWR)
    mmap.mmap(fd, 1, mmap.MAP_SHARED, mmap.PROT_WRITE).close()


@act
def race_link(directory, good, bad, seconds):
    """Swap a link between an allowed and a forbidden file while reading through it."""
    path, end = os.path.join(directory, f"raced-{os.getpid()}"), time.monotonic() + float(seconds)
    os.symlink(good, path)
    child = os.fork()
    if child == 0:
        spare = path + "~"
        while True:
            for target in (bad, good):
                os.symlink(target, spare)
                os.rename(spare, path)
    try:
        refused, times_refused = None, 0
        while time.monotonic() < end and times_refused < 300:
            try:
                with open(path, "rb") as file:
                    if file.read().startswith(b"secret"):
                        return
            except OSError as error:
                refused, times_refused = error, times_refused + 1
        raise refused or Undone
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@act
def handle(path):
    """Open by file handle (needs a capability without guard, too): how far the first half comes."""
    buffer = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    call("name_to_handle_at", AT_FDCWD, name(path), buffer, ctypes.byref(mount), 0)


# Modes and metadata ------------------------------------------------------------------------------------


def changed(truth):
    if not truth:
        raise Undone


def has(path, mode):
    changed(os.lstat(path).st_mode & octal(mode) & 0o7002 == octal(mode) & 0o7002)


def by_chmod(path, mode):
    call("chmod", name(path), mode)


def by_fchmod(path, mode):
    call("fchmod", os.open(path, os.O_RDONLY | PLAIN), mode)


def by_fchmodat(path, mode):
    call("fchmodat", AT_FDCWD, name(path), mode)


def by_fchmodat2(path, mode):
    call("fchmodat2", AT_FDCWD, name(path), mode, 0)


def by_fchmodat2_empty(path, mode):
    call("fchmodat2", os.open(path, os.O_PATH), name(""), mode, AT_EMPTY_PATH)


def by_proc(path, mode):
    call("fchmodat", AT_FDCWD, name(f"/proc/self/fd/{os.open(path, os.O_PATH)}"), mode)


def by_high_bits(path, mode):
    call("fchmodat", AT_FDCWD, name(path), mode | 1 << 40)


def by_libc(path, mode):
    if libc.chmod(name(path), mode):
        raise OSError(ctypes.get_errno(), "")


CHMODS = {f.__name__[3:]: f for f in (
    by_chmod, by_fchmod, by_fchmodat, by_fchmodat2, by_fchmodat2_empty, by_proc, by_high_bits, by_libc,
)}  # fmt: skip


@act
def chmod(how, path, mode):
    CHMODS[how](path, octal(mode))
    has(path, mode)


def made_open(path, mode):
    call("open", name(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)


def made_openat(path, mode):
    call("openat", AT_FDCWD, name(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)


def made_openat2(path, mode):
    how = struct.pack("QQQ", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, 0)
    call("openat2", AT_FDCWD, name(path), how, len(how))


def made_creat(path, mode):
    call("creat", name(path), mode)


def made_mknod(path, mode):
    call("mknod", name(path), stat.S_IFREG | mode, 0)


def made_mknodat(path, mode):
    call("mknodat", AT_FDCWD, name(path), stat.S_IFREG | mode, 0)


def made_mkfifo(path, mode):
    call("mknodat", AT_FDCWD, name(path), stat.S_IFIFO | mode, 0)


def made_mkdir(path, mode):
    call("mkdir", name(path), mode)


def made_mkdirat(path, mode):
    call("mkdirat", AT_FDCWD, name(path), mode)


def made_socket(path, mode):
    with socket.socket(socket.AF_UNIX) as new:
        new.bind(path)  # 0777 less the umask


def made_tmpfile(path, mode):
    fd = call("openat", AT_FDCWD, name(os.path.dirname(path)), os.O_WRONLY | os.O_TMPFILE, mode)
    call("linkat", AT_FDCWD, name(f"/proc/self/fd/{fd}"), AT_FDCWD, name(path), AT_SYMLINK_FOLLOW)


MAKES = {f.__name__[5:]: f for f in (
    made_open, made_openat, made_openat2, made_creat, made_mknod, made_mknodat, made_mkfifo, made_mkdir,
    made_mkdirat, made_socket, made_tmpfile,
)}  # fmt: skip


@act
def make(how, path, mode):
    """Make something under umask 0, by one call, and look at the mode that came out."""
    os.umask(0)
    call("umask", 1 << 40)
    MAKES[how](path, octal(mode))
    has(path, mode)


@act
def make_in_child_shell(path):
    subprocess.run(["/bin/sh", "-c", f"umask 000; : > '{path}'"], check=True)
    has(path, "666")


ACL = struct.pack("<IHHIHHIHHIHHI", 2, 1, 7, 0xFFFFFFFF, 4, 7, 0xFFFFFFFF, 16, 7, 0xFFFFFFFF, 32, 7, 0xFFFFFFFF)


@act
def acl(how, path, which="access"):
    """Give everybody every right by an access list: user, group, mask and others rwx."""
    key, size = name(f"system.posix_acl_{which}"), len(ACL)
    if how == "fsetxattr":
        call(how, os.open(path, os.O_RDONLY), key, ACL, size, 0)
    elif how == "setxattrat":
        how_ = ctypes.create_string_buffer(struct.pack("QII", ctypes.addressof(ctypes.c_char.from_buffer(bytearray(ACL))), size, 0))
        held = ctypes.create_string_buffer(ACL, size)
        how_ = struct.pack("QII", ctypes.addressof(held), size, 0)
        call(how, AT_FDCWD, name(path), 0, key, how_, len(how_))
    else:
        call(how, name(path), key, ACL, size, 0)
    if which == "access":
        has(path, "002")


@act
def user_xattr(path):
    os.setxattr(path, "user.mark", b"1")


@act
def flags(path, high="0", command="40086602"):
    """Set inode flags as they are, through a descriptor for reading."""
    fd = os.open(path, os.O_RDONLY)
    now = ctypes.c_long(0)
    try:
        call("ioctl", fd, 0x80086601, ctypes.byref(now))
    except OSError as error:
        raise Untried from error
    now.value |= 0x80  # FS_NOATIME_FL, harmless
    call("ioctl", fd, int(command, 16) | int(high) << 32, ctypes.byref(now))


@act
def file_setattr(path):
    call("file_setattr", AT_FDCWD, name(path), bytes(24), 24, 0)


@act
def times(path):
    os.utime(path, (1, 1))


@act
def give_to_group(path):
    os.chown(path, -1, os.getgid())


# Network -----------------------------------------------------------------------------------------------

FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}


@act
def bind(family, kind, address, port="0"):
    with socket.socket(FAMILIES[family], getattr(socket, f"SOCK_{kind.upper()}")) as new:
        new.bind((address, int(port)))


@act
def bind_unspecified():
    """AF_UNSPEC with address 0 is taken by an inet socket for every address."""
    with socket.socket() as new:
        address = struct.pack("=HHI8x", 0, 0, 0)
        if libc.bind(new.fileno(), address, len(address)):
            raise OSError(ctypes.get_errno(), "")


@act
def listen(family="inet"):
    with socket.socket(FAMILIES[family]) as new:
        new.listen(1)


@act
def connect(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as new:
        new.settimeout(5)
        new.connect((address, int(port)))


@act
def connect_nonblocking(address, port):
    with socket.socket() as new:
        new.setblocking(False)
        code = new.connect_ex((address, int(port)))
        if code != errno.EINPROGRESS:
            raise OSError(code, "")
        select.select([], [new], [], 5)
        code = new.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, "")


@act
def connect_after_unspecified(address, port):
    """Dissolve an association first, then connect."""
    with socket.socket() as new:
        nothing = struct.pack("=HHI8x", 0, 0, 0)
        libc.connect(new.fileno(), nothing, len(nothing))
        new.settimeout(5)
        new.connect((address, int(port)))


@act
def fast_open(how, port, high="0"):
    """Connect and send in one call; blocking, so that the answer is the kernel's."""
    flag, peer = 0x20000000, struct.pack("=HHI8x", 2, socket.htons(int(port)), socket.htonl(0x7F000001))
    with socket.socket() as new:
        if how == "option":
            new.setsockopt(socket.IPPROTO_TCP, 30, 1)  # TCP_FASTOPEN_CONNECT
            new.connect(("127.0.0.1", int(port)))
            new.send(b"x")
        elif how == "sendto":
            number = {"x86_64": 44, "aarch64": 206}[os.uname().machine]
            raw(number, new.fileno(), b"x", 1, flag | int(high) << 32, peer, len(peer))
        elif how == "sendmsg":
            new.sendmsg([b"x"], [], flag, ("127.0.0.1", int(port)))
        else:
            data, where = ctypes.create_string_buffer(b"x", 1), ctypes.create_string_buffer(peer, len(peer))
            vector = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(data), 1))
            head = struct.pack("QIxxxxQQQQIxxxxIxxxx", ctypes.addressof(where), len(peer),
                               ctypes.addressof(vector), 1, 0, 0, 0, 0)  # fmt: skip
            call("sendmmsg", new.fileno(), ctypes.create_string_buffer(head), 1, flag)


@act
def open_socket(family, kind, protocol="0"):
    raw({"x86_64": 41, "aarch64": 198}[os.uname().machine], int(family), int(kind), int(protocol))


@act
def open_pair(kind):
    pair = ctypes.create_string_buffer(8)
    raw({"x86_64": 53, "aarch64": 199}[os.uname().machine], 1, int(kind), 0, pair)


@act
def udp(address, port):
    with socket.socket(type=socket.SOCK_DGRAM) as new:
        new.sendto(b"x", (address, int(port)))


@act
def unix(address, kind="stream"):
    with socket.socket(socket.AF_UNIX, getattr(socket, f"SOCK_{kind.upper()}")) as new:
        new.settimeout(5)
        if address.startswith("@"):
            new.connect("\0" + address[1:])
        else:
            os.chdir(os.path.dirname(address))
            new.connect(os.path.basename(address))


@act
def unix_datagram(address):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as new:
        new.sendto(b"x", "\0" + address[1:])


@act
def unix_serve(address):
    """Listen on an abstract name, connect to it from inside."""
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("\0" + address[1:])
        server.listen()
        client.connect("\0" + address[1:])


@act
def ulp():
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0)) if False else None
        client.setsockopt(socket.IPPROTO_TCP, 31, b"tls")


# Processes ---------------------------------------------------------------------------------------------


def to(target):
    """A process outside (a pid), or a child of one's own (`own`)."""
    if target != "own":
        return int(target)
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        for fd in range(3):
            os.dup2(os.open("/dev/null", os.O_RDWR), fd)  # an orphan's pipe would keep its reader waiting
        os.write(done, b"x")
        while True:
            signal.pause()
    os.read(ready, 1)
    return child


def pidfd(pid):
    return call("pidfd_open", pid, 0)


SIGNALS = {
    "kill": lambda pid: os.kill(pid, 0),
    "kill_term": lambda pid: os.kill(pid, signal.SIGTERM),
    "killpg": lambda pid: os.killpg(os.getpgid(pid), 0),
    "tkill": lambda pid: call("tkill", pid, 0),
    "tgkill": lambda pid: call("tgkill", pid, pid, 0),
    "queue": lambda pid: call("rt_sigqueueinfo", pid, 15, struct.pack("=iii", 15, 0, -1) + bytes(116)),
    "pidfd": lambda pid: call("pidfd_send_signal", pidfd(pid), 0, None, 0),
}


@act
def send(how, target):
    SIGNALS[how](to(target))


@act
def kill_all(witness):
    """kill(-1) must not reach a process outside; the witness tells."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        try:
            os.kill(-1, signal.SIGTERM)
        finally:
            os._exit(0)
    os.wait()
    time.sleep(0)
    for _ in range(100):
        with open(f"/proc/{witness}/stat", encoding="ascii") as file:
            if file.read().rpartition(")")[2].split()[0] in "ZX":
                return
        select.select([], [], [], 0.01)
    raise OSError(errno.EPERM, "it lives")


@act
def owner_signal(target, how):
    """Have the kernel send SIGKILL when a socket becomes readable, to a process that one names."""
    ours, theirs = socket.socketpair()
    if how == "fcntl":
        fcntl.fcntl(ours, fcntl.F_SETOWN, int(target))
    else:
        fcntl.ioctl(ours, 0x8901, struct.pack("i", int(target)))  # FIOSETOWN
    fcntl.fcntl(ours, 10, signal.SIGKILL)  # F_SETSIG
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    theirs.send(b"x")
    for _ in range(50):
        with open(f"/proc/{target}/stat", encoding="ascii") as file:
            if file.read().rpartition(")")[2].split()[0] in "ZX":
                return
        select.select([], [], [], 0.01)
    raise OSError(errno.EPERM, "it lives")


@act
def attach(target):
    pid = to(target)
    call("ptrace", 16, pid, 0, 0)
    os.waitpid(pid, 0x40000000)  # __WALL
    call("ptrace", 17, pid, 0, 0)


@act
def seize(target):
    call("ptrace", 0x4206, to(target), 0, 0)


def vector(size=8):
    held = ctypes.create_string_buffer(size)
    keep.append(held)
    return ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(held), size))


keep = []


def mapped(pid):
    """An address that is mapped in a child made by fork: the same as here."""
    held = ctypes.create_string_buffer(b"12345678", 8)
    keep.append(held)
    return ctypes.addressof(held)


@act
def vm_read(target):
    remote = mapped(0)
    pid = to(target)
    where = ctypes.create_string_buffer(struct.pack("QQ", remote, 8))
    try:
        call("process_vm_readv", pid, vector(), 1, where, 1, 0)
    except OSError as error:
        if error.errno != errno.EFAULT:  # past the check; our address is not theirs
            raise


@act
def vm_write(target):
    remote = mapped(0)
    pid = to(target)
    where = ctypes.create_string_buffer(struct.pack("QQ", remote, 8))
    try:
        call("process_vm_writev", pid, vector(), 1, where, 1, 0)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise


@act
def take_descriptor(target):
    call("pidfd_getfd", pidfd(to(target)), 0, 0)


@act
def compare(target):
    call("kcmp", os.getpid(), to(target), 0, 0, 0)


@act
def advise(target):
    pid = to(target)
    call("process_madvise", pidfd(pid), vector(), 1, 20, 0)


@act
def pages(target):
    call("move_pages", to(target), 0, None, None, None, 0)


@act
def proc(target, entry):
    """Read from /proc/PID/ENTRY as far as its kind allows."""
    path = f"/proc/{to(target)}/{entry}"
    if entry in ("cwd", "root", "exe", "fd/1", "ns/mnt"):
        os.readlink(path)
        return
    if entry in ("fd", "fdinfo", "map_files", "task"):
        changed(os.listdir(path))
        return
    fd = os.open(path, os.O_RDONLY)
    if entry != "mem":
        changed(os.read(fd, 1))


@act
def through_proc(target, entry, path):
    read(f"/proc/{to(target)}/{entry}/{path}")


@act
def write_proc(target, entry, text):
    with open(f"/proc/{to(target)}/{entry}", "w", encoding="ascii") as file:
        file.write(text)


@act
def limit(target, which="0"):
    """RLIMIT_CPU of another: at 1 second it is a kill past every signal rule."""
    call("prlimit64", to(target), int(which), struct.pack("QQ", 1, 1), None)


@act
def own_limit():
    call("prlimit64", 0, 7, struct.pack("QQ", 64, 64), None)


@act
def read_limit(target):
    call("prlimit64", to(target), 0, None, ctypes.create_string_buffer(16))


@act
def priority_of_user():
    os.setpriority(os.PRIO_USER, os.getuid(), 19)


@act
def io_priority_of_user():
    call("ioprio_set", 3, os.getuid(), 3 << 13)


@act
def priority(target):
    os.setpriority(os.PRIO_PROCESS, int(target), 19)


@act
def affinity(target):
    os.sched_setaffinity(int(target), os.sched_getaffinity(int(target)))


@act
def traced_chmod(path):
    """As a tracer, turn a child's getpid into chmod 666 after the filter may have seen it."""
    if COLUMN:
        raise Untried
    child = os.fork()
    if child == 0:
        call("ptrace", 0, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        call("getpid")
        os._exit(0)
    os.waitpid(child, 0)
    target = ctypes.create_string_buffer(os.fsencode(path))
    registers = (ctypes.c_ulong * 27)()
    done = False
    for _ in range(20000):
        call("ptrace", 24, child, 0, 0)  # PTRACE_SYSCALL
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status):
            break
        call("ptrace", 12, child, 0, ctypes.byref(registers))
        if registers[15] == 39 and ctypes.c_long(registers[10]).value == -errno.ENOSYS and not done:
            done = True
            keep.append(target)
            # The child is a fork: what was mapped before is there, so write the path into its stack.
            where = registers[19] - 4096
            data = os.fsencode(path) + b"\0" * 8
            for at in range(0, len(data), 8):
                word = int.from_bytes(data[at : at + 8].ljust(8, b"\0"), "little")
                call("ptrace", 4, child, ctypes.c_ulong(where + at), ctypes.c_ulong(word))
            registers[15], registers[14], registers[13] = 90, where, 0o666
            call("ptrace", 13, child, 0, ctypes.byref(registers))
    changed(done)
    has(path, "666")


# Terminals ---------------------------------------------------------------------------------------------


@act
def terminal(command, high="0"):
    """One ioctl on the terminal that is our standard input."""
    byte = ctypes.create_string_buffer(b"x\0\0\0\0\0\0\0", 8)
    call("ioctl", 0, int(command, 16) | int(high) << 32, byte)


@act
def raw_mode():
    import tty

    tty.setraw(0)


@act
def open_terminal():
    one("/dev/tty", os.O_RDWR)


# The kernel's surface ----------------------------------------------------------------------------------


@act
def ask(which, *args):
    """Make one call, every argument an integer or `null`; only its errno is of interest."""
    call(which, *(None if arg == "null" else int(arg, 0) for arg in args))


@act
def namespace(how, flag):
    """Make a namespace in a child, by unshare or by clone."""
    bits = int(flag, 16)
    if how == "unshare":
        call("unshare", bits)
        return
    pid = call("clone", bits | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@act
def enter_own_namespace():
    call("setns", os.open("/proc/self/ns/uts", os.O_RDONLY), 0)


@act
def mount_in_namespace(directory):
    """What an ordinary user does to cover a place: a namespace, then a mount."""
    os.unshare(0x10020000) if hasattr(os, "unshare") else call("unshare", 0x10020000)
    call("mount", name("none"), name(directory), name("tmpfs"), 0, None)


@act
def keyring():
    call("add_key", name("user"), name("guard-test"), b"x", 1, ctypes.c_long(-2))  # the process's own: made when first needed


@act
def personality(value):
    call("personality", int(value, 16))


@act
def binary32(directory):
    """Run a program of 93 bytes that makes one 32-bit call: exit(0) by int 0x80."""
    if COLUMN:
        raise Untried
    code = bytes.fromhex("b80100000031dbcd80")
    size, base = 84 + len(code), 0x08048000
    head = bytes.fromhex("7f454c46010101") + bytes(9)
    head += struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, base + 84, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    head += struct.pack("<IIIIIIII", 1, 0, base, base, size, size, 5, 4096)
    run_made(os.path.join(directory, "binary32"), head + code)


@act
def int80_chmod(directory, path):
    """From a 64-bit program: chmod 0666 by int 0x80, whose numbers a filter for 64-bit calls does not know."""
    if COLUMN:
        raise Untried
    import mmap

    page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40,
                     mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)  # fmt: skip
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    text = os.fsencode(path) + b"\0"
    # push rbx; mov ebx, path; mov ecx, 0666; mov eax, 15 (chmod); int 0x80; pop rbx; ret
    code = b"\x53\xbb" + struct.pack("<I", start + 64) + b"\xb9" + struct.pack("<I", 0o666)
    code += b"\xb8" + struct.pack("<I", 15) + b"\xcd\x80\x5b\xc3"
    page[: len(code)] = code
    page[64 : 64 + len(text)] = text
    result = ctypes.CFUNCTYPE(ctypes.c_int)(start)()
    if result < 0:
        raise OSError(-result, "")
    has(path, "666")


def run_made(path, content):
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, 0o700)
    code = subprocess.run([path], check=False).returncode
    if code < 0:
        os.kill(os.getpid(), -code)
    changed(code == 0)


@act
def x32():
    """An x32 number: killed by the filter; a kernel without x32 says ENOSYS."""
    if COLUMN:
        raise Untried
    raw(0x40000000 | 39)


@act
def from_memory():
    """Execute a program that is in no directory."""
    fd = os.memfd_create("program", 0)
    with open("/bin/true", "rb") as file:
        os.write(fd, file.read())
    execute_fd(fd)


@act
def raise_privilege(program):
    """Run a set-user-id program and see whose rights it had."""
    done = subprocess.run([program, "-u"], check=True, capture_output=True, text=True)
    if int(done.stdout) == os.getuid():
        raise OSError(errno.EPERM, "our own")


# Between processes -------------------------------------------------------------------------------------


@act
def shared_memory(key):
    call("shmget", int(key), 4096, 0o1600)


@act
def semaphore(key):
    call("semget", int(key), 1, 0o1600)


@act
def messages(key):
    call("msgget", int(key), 0o1600)


@act
def posix_queue(queue):
    call("mq_open", name(queue), os.O_CREAT | os.O_RDWR, 0o600, None)


@act
def opened_shared_memory(key):
    call("shmget", int(key), 0, 0)


@act
def opened_semaphore(key):
    call("semget", int(key), 0, 0)


@act
def opened_messages(key):
    call("msgget", int(key), 0)


@act
def opened_posix_queue(queue):
    call("mq_open", name(queue), os.O_RDWR, 0, None)


@act
def remove_posix_queue(queue):
    call("mq_unlink", name(queue))


@act
def posix_semaphore():
    import multiprocessing

    lock = multiprocessing.Lock()
    with lock:
        pass


def main():
    function = ACTS[sys.argv[1]]
    try:
        function(*sys.argv[2:])
    except Undone:
        return UNDONE
    except Untried:
        return UNTRIED
    except OSError as error:
        return error.errno or CRASHED
    except Exception as error:
        print(f"{sys.argv[1:]}: {type(error).__name__}: {error}", file=sys.stderr)
        return CRASHED
    return 0


if __name__ == "__main__":
    result = main()
    sys.stdout.flush()
    os._exit(result)
