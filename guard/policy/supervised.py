"""Which system calls a supervisor is asked about, and the head of the filter that asks it.

Put before the filter of `guard.policy.filter`: what is asked about never reaches the rows there, so that each
handler judges again all that those rows would have refused. Without a supervisor the same filter stands alone.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping

from guard.kernel import assembler as bpf
from guard.kernel import seccomp
from guard.policy.filter import condition
from guard.policy.refusals import Test, lacks, none_of, nonzero, one_of
from guard.policy.status import control_modes

__all__ = ["ASKED", "calls", "head", "wanted"]

CONNECT = ("connect", "unix-sockets")
BIND = ("bind", "connect", "unix-sockets")
MODES = ("world-writable", "setuid", "metadata")

ASKED: tuple[tuple[tuple[str, ...], str, tuple[Test, ...]], ...] = (
    # An address stands behind a pointer.
    (BIND, "bind", ()),
    # Datagrams of IPv4 (2) and IPv6 (10): one that sends takes a port of every address.
    (("bind",), "socket", (one_of(0, 2, mask=0xFFFFFFF7), one_of(1, 2, mask=0xF))),
    (("bind", "connect"), "listen", ()),  # connect: to know what the tree itself listens on
    (CONNECT, "connect", ()),
    (("bind", "connect", "unix-sockets"), "sendto", (nonzero(4),)),
    # A message's is behind two of them, and no register tells one without.
    (CONNECT, "sendmsg sendmmsg", ()),
    # CLONE_FILES without CLONE_THREAD: two processes with one table of descriptors. With a namespace besides
    # (CLONE_NEW…) the rows below refuse it.
    (CONNECT, "clone", (one_of(0, 0x400, mask=0x7E020000 | 0x10400),)),
    # A sandbox within the session, of which no call made in its programs' stead must lead out.
    (BIND, "landlock_restrict_self", ()),
    # A path stands behind a pointer, and strip needs the call done in another way.
    (MODES, "chmod fchmod fchmodat fchmodat2", ()),
    (("world-writable",), "umask", (lacks(0, 0o002),)),
    (("metadata",), "chown lchown fchown fchownat utime utimes futimesat utimensat", ()),
    (("metadata", "world-writable"), "setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr", ()),
    # Whose process or thread it is, the filter cannot know.
    (("processes",), "setpriority ioprio_set", ()),
    (("processes",), "sched_setaffinity sched_setscheduler sched_setparam sched_setattr", (none_of(0, 0),)),
    # What flows into an interpreter.
    (("pipe-to-shell",), "execve execveat", ()),
)
"""(controls that need it, calls, conditions on registers)."""

_BY_ADDRESS = {"sendmmsg": 345, "bind": 361, "connect": 362, "listen": 363, "sendto": 369, "sendmsg": 370}
"""i386's numbers of calls that only an address can decide; what goes by socketcall is refused anyway."""


def wanted(values: Mapping[str, object]) -> bool:
    """Return whether a policy has something that a supervisor decides, and wants one."""
    return values["supervisor.use"] != "never" and bool(calls(values))


def calls(values: Mapping[str, object]) -> dict[str, tuple[Test, ...]]:
    """Return the calls that a policy's supervisor is asked about, with the conditions under which."""
    modes = control_modes(values)
    on = {control for control, mode in modes.items() if mode == "enforce"}
    if modes["pipe-to-shell"] == "observe":
        on.add("pipe-to-shell")  # what is only observed is asked about and let go
    return {name: tests for controls, names, tests in ASKED if on & set(controls) for name in names.split()}


def head(
    asked: Mapping[str, tuple[Test, ...]], numbers: Mapping[str, int], machine: str, binary32: bool = False
) -> bytes:
    """Assemble the head; what it does not answer goes on into whatever is appended.

    Args:
        asked: as `calls` returns it.
        numbers: call to number on this machine; calls without one are left out.
        machine: x86_64 or aarch64.
        binary32: whether i386's calls are allowed besides. Handlers know nothing of them: what only an address can
            decide is refused.
    """
    code = bpf.Assembler()
    code.load(seccomp.DATA_ARCH)
    code.jump(bpf.EQUAL, seccomp.MACHINES[machine].audit, yes="ours")
    if binary32:
        code.jump(bpf.EQUAL, seccomp.AUDIT_ARCH_I386, no="neither")
        code.load(seccomp.DATA_NR)
        for name, number in _BY_ADDRESS.items():
            if name in asked:
                _call(code, number, asked[name], seccomp.refuse(errno.EACCES))
        code.mark("neither")
    code.go("out")
    code.mark("ours")
    code.load(seccomp.DATA_NR)
    for name, tests in asked.items():
        if name in numbers:
            _call(code, numbers[name], tests, seccomp.RET_USER_NOTIF)
    code.mark("out")
    return code.assemble()


def _call(code: bpf.Assembler, number: int, tests: tuple[Test, ...], action: int) -> None:
    following = code.label()
    code.jump(bpf.EQUAL, number, no=following)
    otherwise = code.label()
    for test in tests:
        condition(code, test, otherwise)
    code.answer(action)
    code.mark(otherwise)
    if tests:
        code.load(seccomp.DATA_NR)
    code.mark(following)
