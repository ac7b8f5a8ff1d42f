"""seccomp (seccomp(2)): what a filter sees of a system call, how it answers, and what one says to a call.

The filters themselves are made by `guard.policy.filter`. Here are the numbers it needs and libseccomp
may not have, and an interpreter of classic BPF, so that `guard explain` and the tests can ask a filter
without loading it: a loaded filter can be asked by making the call only.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# linux/seccomp.h; the lower 16 bits of an answer are its data (an errno).
RET_KILL_PROCESS = 0x80000000
RET_KILL_THREAD = 0x00000000
RET_TRAP = 0x00030000
RET_ERRNO = 0x00050000
RET_USER_NOTIF = 0x7FC00000
RET_TRACE = 0x7FF00000
RET_LOG = 0x7FFC0000
RET_ALLOW = 0x7FFF0000
FILTER_FLAG_SPEC_ALLOW = 4

# struct seccomp_data: nr, arch, instruction pointer, six arguments. Both machines are little-endian, so the
# low word of an argument stands first.
DATA_NR, DATA_ARCH, DATA_ARGS = 0, 4, 16
DATA_SIZE = 64

X32_BIT = 0x40000000
SKIPPED = 0xFFFFFFFF
"""The call number -1: a tracer has taken the call away, nothing will be done, every filter lets it pass."""

MAX_INSTRUCTIONS = 4096
"""BPF_MAXINSNS (linux/bpf_common.h)."""


@dataclass(frozen=True, slots=True)
class Machine:
    """An architecture as filters see it.

    Args:
        name: as `uname -m` gives it.
        audit: AUDIT_ARCH_* of linux/audit.h.
        x32: whether a second table of calls hides behind `X32_BIT` of the number.
        entries: AUDIT_ARCH_* by which the same kernel may be entered too, with other numbers.
    """

    name: str
    audit: int
    x32: bool = False
    entries: tuple[int, ...] = ()


AUDIT_ARCH_I386, AUDIT_ARCH_X86_64 = 0x40000003, 0xC000003E
AUDIT_ARCH_ARM, AUDIT_ARCH_AARCH64 = 0x40000028, 0xC00000B7

MACHINES: Mapping[str, Machine] = {
    "x86_64": Machine("x86_64", AUDIT_ARCH_X86_64, x32=True, entries=(AUDIT_ARCH_I386,)),
    "aarch64": Machine("aarch64", AUDIT_ARCH_AARCH64, entries=(AUDIT_ARCH_ARM,)),
    "i386": Machine("i386", AUDIT_ARCH_I386),
}
"""The machines filters are made for; i386 only as the second entry of an x86_64 kernel."""

I386_DIRECT: Mapping[str, int] = {
    "sendmmsg": 345,
    "socket": 359,
    "socketpair": 360,
    "setsockopt": 366,
    "sendto": 369,
    "sendmsg": 370,
    "semget": 393,
    "semctl": 394,
    "shmget": 395,
    "shmctl": 396,
    "shmat": 397,
    "msgget": 399,
    "msgsnd": 400,
    "msgrcv": 401,
    "msgctl": 402,
}
"""Calls that i386 has twice: by these numbers, and inside socketcall and ipc, where libseccomp looks."""

FIRST_COMMON = 424
"""From here on every architecture gives a call the same number (Linux 5.1)."""

_SINCE_5_1 = """
pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen
fsconfig fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise
epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset landlock_add_rule
landlock_restrict_self memfd_secret process_mrelease futex_waitv set_mempolicy_home_node cachestat
fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount lsm_get_self_attr
lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat removexattrat
open_tree_attr file_getattr file_setattr listns
"""
COMMON: Mapping[str, int] = {name: nr for nr, name in enumerate(_SINCE_5_1.split(), FIRST_COMMON)}
"""Calls from `FIRST_COMMON` on, up to Linux 6.19. libseccomp 2.5 (Debian 12, RHEL 9) lacks the later ones."""

NEWEST = max(COMMON.values())
"""A higher number is a call nobody here has judged."""


def refuse(code: int) -> int:
    """Return the answer that fails a call with an errno; with 0 it returns 0 and has done nothing."""
    return RET_ERRNO | code


def describe(action: int) -> str:
    """Name an answer as people do: `EPERM`, `allow`, `kill`, `nothing` (returns 0, nothing done)."""
    kind, data = action & 0xFFFF0000, action & 0xFFFF
    if kind == RET_ERRNO:
        if data == errno.EOPNOTSUPP:  # ENOTSUP is the same number, and not what the man pages say
            return "EOPNOTSUPP"
        return errno.errorcode.get(data, str(data)) if data else "nothing"
    names = {
        RET_ALLOW: "allow",
        RET_KILL_PROCESS: "kill",
        RET_KILL_THREAD: "kill thread",
        RET_TRAP: "trap",
        RET_USER_NOTIF: "notify",
        RET_TRACE: "trace",
        RET_LOG: "log",
    }
    return names.get(kind, hex(action))


# linux/bpf_common.h: class, size, mode, operation and source are packed into one code.
_LD_W_ABS, _LD_IMM, _LD_MEM, _LDX_IMM, _LDX_MEM = 0x20, 0x00, 0x60, 0x01, 0x61
_ST, _STX, _RET_K, _RET_A, _TAX, _TXA = 0x02, 0x03, 0x06, 0x16, 0x07, 0x87
_JA, _JEQ, _JGT, _JGE, _JSET = 0x05, 0x15, 0x25, 0x35, 0x45
_ALU = {
    0x04: lambda a, k: a + k,
    0x14: lambda a, k: a - k,
    0x44: lambda a, k: a | k,
    0x54: lambda a, k: a & k,
    0x64: lambda a, k: a << k,
    0x74: lambda a, k: a >> k,
    0xA4: lambda a, k: a ^ k,
}


def instructions(program: bytes) -> list[tuple[int, int, int, int]]:
    """Split a program into (code, jump if true, jump if false, constant).

    Raises:
        ValueError: the bytes are no program the kernel would take.
    """
    if not program or len(program) % 8:
        raise ValueError(f"{len(program)} bytes are no whole number of BPF instructions")
    if len(program) // 8 > MAX_INSTRUCTIONS:
        raise ValueError(f"{len(program) // 8} instructions, the kernel takes {MAX_INSTRUCTIONS}")
    return list(struct.iter_unpack("<HBBI", program))


def run(program: bytes, nr: int, arch: int, args: Sequence[int] = ()) -> int:
    """Ask a filter about one call, as the kernel would.

    Args:
        program: `struct sock_filter` entries.
        nr: the call's number; -1 is `SKIPPED`.
        arch: AUDIT_ARCH_* of the entry it comes by.
        args: up to six registers, 64 bits each; missing ones are 0.

    Returns:
        The answer, RET_* with its data.

    Raises:
        ValueError: the program is malformed: the kernel's checker would refuse it (net/core/filter.c).
    """
    registers = [value & (1 << 64) - 1 for value in args] + [0] * (6 - len(args))
    data = struct.pack("<IIQ6Q", nr & 0xFFFFFFFF, arch, 0, *registers)
    code = instructions(program)
    a = x = 0
    memory = [0] * 16
    at = 0
    while at < len(code):
        op, yes, no, k = code[at]
        at += 1
        if op == _LD_W_ABS:
            if k % 4 or k + 4 > DATA_SIZE:
                raise ValueError(f"instruction {at - 1} loads from {k}")
            a = int.from_bytes(data[k : k + 4], "little")
        elif op in (_RET_K, _RET_A):
            return k if op == _RET_K else a
        elif op == _JA:
            at += k
        elif op in (_JEQ, _JGT, _JGE, _JSET):
            holds = {_JEQ: a == k, _JGT: a > k, _JGE: a >= k, _JSET: bool(a & k)}[op]
            at += yes if holds else no
        elif op in _ALU:
            a = _ALU[op](a, k) & 0xFFFFFFFF
        elif op == _LD_IMM:
            a = k
        elif op == _LDX_IMM:
            x = k
        elif op == _LD_MEM:
            a = memory[k]
        elif op == _LDX_MEM:
            x = memory[k]
        elif op == _ST:
            memory[k] = a
        elif op == _STX:
            memory[k] = x
        elif op == _TAX:
            x = a
        elif op == _TXA:
            a = x
        else:
            raise ValueError(f"instruction {at - 1} has the unknown code {op:#x}")
    raise ValueError("the program runs past its end")
