"""The CO-RE objects: where they are, and which of their programs are needed when."""

from __future__ import annotations

import os
import platform

from guard.errors import MonitorError

DIRECTORY = os.path.join(os.path.dirname(__file__), "objects")

OBJECTS = {"lsm": "lsm.bpf.o", "fmod": "fmod.bpf.o", "tracepoint": "tracepoint.bpf.o"}
"""Backend → object, one set a machine architecture."""

ALWAYS = ("tp_btf/sched_process_fork", "tp_btf/sched_process_exec", "tp_btf/sched_process_exit")
"""Ancestry: attached as long as the source is open, and needed by every backend."""

BIND = ("cgroup/bind4", "cgroup/bind6")

LISTING = "iter/task"


def path(backend: str, machine: str = "") -> str:
    """Where a backend's object is.

    Raises:
        MonitorError: it was not built for this machine.
    """
    found = os.path.join(DIRECTORY, machine or platform.machine(), OBJECTS[backend])
    if not os.path.exists(found):
        raise MonitorError(f"{found} is not there", "it is built by `make setup` where clang is installed")
    return found


FALLBACKS = {
    "inode_setxattr": "inode_set_acl",
    "io_uring_submit_sqe": "io_uring_submit_req",
}
"""Target → the better one: not loaded where the kernel has that. (Before 6.2, before 6.3.)"""

RULE_OF = {
    **dict.fromkeys(
        ("path_chmod", "path_mkdir", "path_mknod", "file_open", "inode_set_acl", "inode_setxattr"), "world-writable"
    ),
    "socket_listen": "listen",
    **dict.fromkeys(
        ("file_permission", "bprm_check_security", "bprm_check", "mmap_file", "socket_recvmsg", "socket_sendmsg",
         "__x64_sys_splice", "__x64_sys_tee", "__x64_sys_sendfile64", "__x64_sys_vmsplice", "__arm64_sys_splice",
         "__arm64_sys_tee", "__arm64_sys_sendfile64", "__arm64_sys_vmsplice"),
        "code-from-outside",
    ),
}  # fmt: skip
"""Hook → the rule that it enforces: attached from the start where that rule is enforced."""


def target(section: str) -> str:
    """What a section attaches to, without its kind: `lsm/path_chmod` and `fmod_ret/security_path_chmod` are one."""
    return section.partition("/")[2].removeprefix("security_")


def superseded(section: str, there: set[str]) -> str:
    """Why a program is not needed; "": it is.

    Args:
        there: sections that this kernel can have.
    """
    better = FALLBACKS.get(target(section), "")
    return f"{better} serves" if better and better in {target(other) for other in there} else ""


def served(section: str, there: set[str]) -> str:
    """The fallback that stands in for a program that a kernel lacks; "": none is there."""
    stands_in = next((old for old, better in FALLBACKS.items() if better == target(section)), "")
    return stands_in if stands_in in {target(other) for other in there} else ""
