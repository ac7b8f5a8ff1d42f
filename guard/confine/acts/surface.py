"""Acts on parts of the kernel that no program here needs."""

from __future__ import annotations

import fcntl
import os
import socket

from . import Stage, Untried, allow, at, call, forbid, number, raw


def _ioctl_on_pipe(command: int) -> None:
    reader, _ = os.pipe()
    call("ioctl", reader, command, b"\0" * 8)


def _elf32(stage: Stage) -> None:
    """Run a program of 93 bytes that exits with 0 by int 0x80."""
    if os.uname().machine != "x86_64":
        raise Untried
    code = bytes.fromhex("b80100000031dbcd80")
    size, base = 84 + len(code), 0x08048000
    head = bytes.fromhex("7f454c46010101") + bytes(9)
    head += b"".join(n.to_bytes(w, "little") for n, w in ((2, 2), (3, 2), (1, 4), (base + 84, 4), (52, 4)))
    head += b"".join(
        n.to_bytes(w, "little") for n, w in ((0, 4), (0, 4), (52, 2), (32, 2), (1, 2), (0, 2), (0, 2), (0, 2))
    )
    head += b"".join(n.to_bytes(4, "little") for n in (1, 0, base, base, size, size, 5, 4096))
    path = at("project", f"elf32-{os.getpid()}")(stage)
    with open(path, "wb") as file:
        file.write(head + code)
    os.chmod(path, 0o700)
    os.execv(path, [path])  # noqa: S606 - written above


def _x32(_: Stage) -> None:
    if os.uname().machine != "x86_64":
        raise Untried
    raw(0x40000000 | 39)


SURFACE = [
    forbid(
        "kernel-surface",
        "make a user namespace",
        lambda _: call("unshare", 0x10000000),
        unless="kernel.userns=allow",
    ),
    forbid("kernel-surface", "clone3", lambda _: call("clone3", None, 0), unless="kernel.userns=allow"),
    forbid(
        "kernel-surface",
        "mount",
        lambda _: call("mount", None, None, None, 0, None),
        unless="kernel.mount=allow",
    ),
    forbid(
        "kernel-surface",
        "io_uring_setup",
        lambda _: call("io_uring_setup", 0, None),
        unless="kernel.io_uring=allow",
    ),
    forbid("kernel-surface", "bpf", lambda _: call("bpf", 999, None, 0), unless="kernel.bpf=allow"),
    forbid(
        "kernel-surface",
        "perf_event_open",
        lambda _: call("perf_event_open", None, 0, -1, -1, 0),
        unless="kernel.perf=allow",
    ),
    forbid(
        "kernel-surface",
        "userfaultfd",
        lambda _: call("userfaultfd", 0x40000001),
        unless="kernel.userfaultfd=allow",
    ),
    forbid(
        "kernel-surface", "keyctl", lambda _: call("keyctl", 999, 0, 0, 0, 0), unless="kernel.keyctl=allow"
    ),
    forbid(
        "kernel-surface",
        "open another's System V memory",
        lambda stage: call("shmget", number(stage, "segment"), 0, 0),
        unless="kernel.sysv_ipc=allow",
    ),
    forbid(
        "kernel-surface",
        "switch address randomisation off",
        lambda _: call("personality", 0x0040000),
        unless="kernel.personality=allow",
    ),
    forbid(
        "kernel-surface",
        "make an AF_ALG socket",
        lambda _: socket.socket(38, 5, 0).close(),
        unless="kernel.packet_sockets=allow",
    ),
    forbid(
        "kernel-surface",
        "make an AF_VSOCK socket",
        lambda _: socket.socket(40, 1, 0).close(),
        unless="kernel.packet_sockets=allow",
    ),
    forbid("kernel-surface", "type into a terminal (TIOCSTI)", lambda _: _ioctl_on_pipe(0x5412)),
    forbid("kernel-surface", "the same, high bits set", lambda _: _ioctl_on_pipe(1 << 40 | 0x5412)),
    forbid("kernel-surface", "a 32-bit program", _elf32, unless="kernel.binary32=allow"),
    forbid("kernel-surface", "an x32 call", _x32, unless="kernel.binary32=allow"),
    allow("kernel-surface", "ask for the personality", lambda _: call("personality", 0xFFFFFFFF)),
    allow(
        "kernel-surface",
        "ask a pipe how much is in it",
        lambda _: fcntl.ioctl(os.pipe()[0], 0x541B, b"\0" * 4),
    ),
]
