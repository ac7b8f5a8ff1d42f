"""Acts that only the suite of ways out needs, beside those of tests/system/act.py; the same rules hold."""

import ctypes
import errno
import os
import select
import socket
import struct
import subprocess
import time

from act import Undone, act, call, changed, keep, name, raw

LOOPBACK = ("127.", "::1", "::ffff:127.")


def run(*words, **more):
    """Run a program; it says by its exit code whether it was done."""
    more.setdefault("stdin", subprocess.DEVNULL)
    done = subprocess.run(words, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)
    if done.returncode:
        raise OSError(errno.EPERM, f"it ended with {done.returncode}")


# Files ---------------------------------------------------------------------------------------------------


@act
def write_through_link(path, target):
    os.symlink(target, path)
    with open(path, "ab") as file:
        file.write(b"x")


@act
def write_through_directory_link(path, directory):
    os.symlink(directory, path)
    with open(path + "/made", "wb") as file:
        file.write(b"x")


@act
def read_through_link(path, target):
    os.symlink(target, path)
    with open(path, "rb") as file:
        changed(file.read(1))


@act
def link_and_read(source, target):
    """A hard link in the project to a file outside, then read by its new name."""
    os.link(source, target)
    with open(target, "rb") as file:
        changed(file.read(1))


@act
def move_and_read(source, target):
    os.rename(source, target)
    with open(target, "rb") as file:
        changed(file.read(1))


@act
def put(path, text="x"):
    """Make a file and the directories above it, as an installer does."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(fd, text.encode())


@act
def put_for_good(path):
    """The same under a name that is not there; what is taken away again at once has not been put there."""
    put(path)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        if not os.path.exists(path):
            raise Undone
        time.sleep(0.01)


@act
def replace(path, text):
    """As editors and git: a new file beside it, renamed over it."""
    beside = path + ".lock"
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(beside, path)


@act
def watch(path):
    """inotify: learn of each use of a place that cannot be read."""
    fd = raw({"x86_64": 294, "aarch64": 26}[os.uname().machine], 0)
    number = {"x86_64": 254, "aarch64": 27}[os.uname().machine]
    raw(number, fd, name(path), 0x20)
    if not os.path.exists(path + "/key") and os.path.isdir(path):
        raise Undone  # an empty cover was watched


@act
def replace_repository(git, hook):
    """mv .git away, copy it back, and put a hook into the copy."""
    os.rename(git, git + "-away")
    subprocess.run(["cp", "-r", git + "-away", git], check=True)
    with open(f"{git}/{hook}", "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n")


@act
def git_setting(project, key, value):
    done = subprocess.run(["git", "-C", project, "config", key, value], check=False, capture_output=True)
    if done.returncode:
        raise OSError(errno.EROFS, done.stderr)


# Modes ---------------------------------------------------------------------------------------------------


@act
def inherited_list(directory):
    """A default access list that gives others every right, and a file below it."""
    entries = struct.pack("<IHHIHHIHHIHHI", 2, 1, 7, 0xFFFFFFFF, 4, 7, 0xFFFFFFFF, 16, 7, 0xFFFFFFFF, 32, 7, 0xFFFFFFFF)
    call("setxattr", name(directory), name("system.posix_acl_default"), entries, len(entries), 0)
    os.close(os.open(directory + "/below", os.O_WRONLY | os.O_CREAT, 0o666))
    changed(os.stat(directory + "/below").st_mode & 0o002)


@act
def unpack(directory):
    """tar -p of a tree that is 0777."""
    run("sh", "-c", 'cd "$1" && mkdir t && chmod 777 t && tar cf t.tar --mode=0777 t && rm -r t && tar xpf t.tar', "-",
        directory)  # fmt: skip
    changed(os.stat(directory + "/t").st_mode & 0o002)


@act
def made_with_id(path):
    """The set-user-id bit at creation, which no umask takes away."""
    call("openat", -100, name(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o4755)
    changed(os.stat(path).st_mode & 0o4000)


# Network -------------------------------------------------------------------------------------------------


def outside(new):
    host = new.getsockname()[0]
    if host.startswith(LOOPBACK):
        raise Undone  # it was made loopback


@act
def bind_wide(family, kind, host):
    with socket.socket(getattr(socket, f"AF_{family}"), getattr(socket, f"SOCK_{kind}")) as new:
        new.bind((host, 0))
        if kind == "STREAM":
            new.listen(1)
        outside(new)


@act
def bind_without_family():
    """AF_UNSPEC with address 0, which an inet socket takes for every address."""
    libc = ctypes.CDLL(None, use_errno=True)
    with socket.socket() as new:
        address = struct.pack("=HHI8x", 0, 0, 0)
        if libc.bind(new.fileno(), address, len(address)):
            raise OSError(ctypes.get_errno(), "")
        new.listen(1)
        outside(new)


@act
def listen_wide(family):
    """listen without bind takes every address."""
    with socket.socket(getattr(socket, f"AF_{family}")) as new:
        new.listen(1)
        outside(new)


@act
def listen_after_failed_connect(family):
    with socket.socket(getattr(socket, f"AF_{family}")) as new:
        new.connect_ex(("127.0.0.1" if family == "INET" else "::1", 1))
        new.listen(1)
        outside(new)


@act
def datagram(host, port, answer):
    """Send to a service of the user's; it writes down what it hears."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as new:
        new.sendto(answer.encode(), (host, int(port)))
    heard(answer)


@act
def datagram_by_message(how, host, port, answer):
    """The same with the address in a message: sendmsg, or sendmmsg."""
    with socket.socket(type=socket.SOCK_DGRAM) as new:
        if how == "sendmsg":
            new.sendmsg([answer.encode()], [], 0, (host, int(port)))
        else:
            peer = struct.pack("=HH4s8x", 2, socket.htons(int(port)), socket.inet_aton(host))
            data = ctypes.create_string_buffer(answer.encode(), len(answer))
            where = ctypes.create_string_buffer(peer, len(peer))
            vector = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(data), len(answer)))
            keep.extend((data, where, vector))
            head = struct.pack("QIxxxxQQQQIxxxxIxxxx", ctypes.addressof(where), len(peer),
                               ctypes.addressof(vector), 1, 0, 0, 0, 0)  # fmt: skip
            call("sendmmsg", new.fileno(), ctypes.create_string_buffer(head), 1, 0)
    heard(answer)


def heard(answer):
    for _ in range(40):
        if os.path.exists(answer):
            return
        select.select([], [], [], 0.025)
    raise Undone


@act
def tcp(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as new:
        new.settimeout(5)
        new.connect((host, int(port)))


@act
def unix_by(way, target, link):
    """A unix socket by another name for it: its directory's descriptor, a link, /proc."""
    above, base = os.path.split(target)
    if way == "link":
        os.symlink(target, link)
        path = link
    elif way == "descriptor":
        path = f"/proc/self/fd/{os.open(above, os.O_PATH)}/{base}"
    else:
        path = "/proc/self/root" + target
    with socket.socket(socket.AF_UNIX) as new:
        new.settimeout(5)
        new.connect(path)


@act
def unix_message(target):
    """A datagram to a socket by path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as new:
        new.sendto(b"x", target)


@act
def unix_pair_message(target):
    """The same from one end of a pair, which may name any receiver."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.connect(target)
        ours.send(b"x")


# Programs that act for the user --------------------------------------------------------------------------


@act
def program(*words):
    """Ask a program to do something outside; it says by its exit code whether it was done."""
    run(*words)


@act
def program_then(path, *words):
    """Ask a program, and see what came of it outside."""
    run(*words)
    for _ in range(200):
        if os.path.exists(path):
            return
        select.select([], [], [], 0.025)
    raise Undone


@act
def fed(text, *words):
    """Ask a program by its standard input."""
    run(*words, stdin=None, input=text.encode())


# Downloads -----------------------------------------------------------------------------------------------


@act
def shell(marker, text):
    """A line of shell that must not come to leave its mark."""
    subprocess.run(["bash", "-c", text], check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, timeout=15)  # fmt: skip
    changed(os.path.exists(marker))
