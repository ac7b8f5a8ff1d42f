"""One harmless example a rule, done by a child that waits to be labelled: `guard monitor --check`.

All of it happens in a temporary directory and in a network namespace of the child's own, where a server can be
reached by nobody and a range of loopback plays the outside.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from guard.kernel import CLONE_NEWNET, syscall
from guard.monitor.facts import Bind, CodeFromOutside, Exec, IoUring, Listen, Mode, RawSyscall

OUTSIDE = "127.83.71.0/24"
"""Loopback addresses that count as outside during the check (RFC 1122: all of 127/8 is the host's own)."""
_SERVER = "127.83.71.1"
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_IO_URING_SETUP = 425
_CODE_SAYS = 7
_LAST_PORT = 65535
_TRIES = 20
_FCHMOD_32 = 94

FACT_OF: Mapping[str, type] = {
    "ancestry": Exec,
    "world-writable": Mode,
    "bind": Bind,
    "listen": Listen,
    "code-from-outside": CodeFromOutside,
    "raw-syscall": RawSyscall,
    "io-uring": IoUring,
}
"""Rule → the fact that its deed must bring."""


@dataclass(frozen=True)
class Stage:
    """Where deeds are done.

    Args:
        directory: root's alone.
        host: descriptor of the host's network namespace.
        hold: seconds that an example lasts, for a backend that looks now and then.
    """

    directory: str
    host: int
    hold: float


def _ancestry(stage: Stage) -> bool:
    child = os.posix_spawn("/bin/sleep", ["sleep", str(stage.hold)], {})
    return os.waitpid(child, 0)[1] == 0


def _world_writable(stage: Stage) -> bool:
    path = os.path.join(stage.directory, "example")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    try:
        os.chmod(path, 0o666)  # noqa: S103 - what is tried; its directory is root's alone
    except PermissionError:
        return False
    os.chmod(path, 0o600)
    return True


def _bind(stage: Stage) -> bool:
    """In the host's namespace, for elsewhere it would be left alone; without listen() nobody can reach it."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        libc.setns(stage.host, CLONE_NEWNET)
        for port in range(_LAST_PORT, _LAST_PORT - _TRIES, -1):
            with socket.socket() as server:
                try:
                    server.bind(("0.0.0.0", port))  # noqa: S104 - what is tried
                except PermissionError:
                    return False
                except OSError:
                    continue  # in use
                return bool(server.getsockname()[0] == "0.0.0.0")  # noqa: S104
        return False
    finally:
        libc.setns(own, CLONE_NEWNET)
        os.close(own)


def _listen(stage: Stage) -> bool:
    with socket.socket() as server:
        try:
            server.listen(1)
        except PermissionError:
            return False
        time.sleep(stage.hold)
    return True


def _code(_: Stage) -> bool:
    with socket.socket() as server:
        server.bind((_SERVER, 0))
        server.listen(1)
        with socket.create_connection(server.getsockname()) as client:
            peer, _address = server.accept()
            with peer:
                peer.sendall(b"exit %d\n" % _CODE_SAYS)
            code = client.recv(64)
    shell = subprocess.Popen(["/bin/sh", "-s"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with shell, suppress(PermissionError, BrokenPipeError):  # refused: the exit status says it
        shell.communicate(code)
    return shell.returncode == _CODE_SAYS


def _raw(stage: Stage) -> bool:
    """fchmod(2) by int 0x80, which every backend has something on the way of."""
    if platform.machine() != "x86_64":
        return False
    file = os.open(os.path.join(stage.directory, "raw"), os.O_CREAT | os.O_RDWR, 0o600)
    # push rbx; mov eax, 94; mov ebx, file; mov ecx, 0600; int 0x80; pop rbx; ret
    code = b"\x53\xb8%b\xbb%b\xb9%b\xcd\x80\x5b\xc3" % tuple(
        number.to_bytes(4, "little") for number in (_FCHMOD_32, file, 0o600)
    )
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    try:
        return bool(call() == 0)
    finally:
        os.close(file)


def _ring(_: Stage) -> bool:
    room = ctypes.create_string_buffer(256)
    fd = ctypes.CDLL(None, use_errno=True).syscall(_IO_URING_SETUP, 1, room)
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)


DEEDS: Mapping[str, Callable[[Stage], bool]] = {
    "ancestry": _ancestry,
    "world-writable": _world_writable,
    "bind": _bind,
    "listen": _listen,
    "code-from-outside": _code,
    "raw-syscall": _raw,
    "io-uring": _ring,
}
"""Rule → does it, and says whether it was done."""


def _own_network() -> None:
    syscall("unshare", CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def main() -> None:
    """Be the child: wait for a line, do a deed, answer `RULE done|refused`, until standard input ends.

    Arguments: a directory, and the seconds that an example lasts.
    """
    stage = Stage(sys.argv[1], os.open("/proc/self/ns/net", os.O_RDONLY), float(sys.argv[2]))
    _own_network()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        rule = line.strip()
        sys.stdout.write(f"{rule} {'done' if DEEDS[rule](stage) else 'refused'}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
