"""What each backend sees of each rule, what it can do about it, and what it misses: for `doctor` and the docs."""

from __future__ import annotations

from collections.abc import Mapping

from guard.monitor.objects import RULE_OF, target
from guard.monitor.source import Can

EVERYWHERE = (
    "an interpreter under a name, inode and size that nobody knows",
    "what flows through shared memory or another process's memory",
    "what the harness itself fetches and writes",
)
"""What no backend sees of code from outside."""

_IN_PROCESS = "eval, source and code in argv are seen, by text and flow together, and not stopped"
_MOVED = "what splice, tee and vmsplice move between pipes is seen and not stopped"
_UNTIL_FOLLOWED = "seen from a few milliseconds after the first harness's start on"

_HOOKS: Mapping[str, Can] = {
    "ancestry": Can("all"),
    "world-writable": Can("all", ("deny",)),
    "bind": Can("all", ("deny", "rewrite")),
    "listen": Can("all", ("deny",)),
    "code-from-outside": Can("part", ("deny",), (*EVERYWHERE, _IN_PROCESS, _MOVED)),
    "raw-syscall": Can("part", (), ("an odd entry to a call that no hook sees",)),
    "io-uring": Can("all"),
}
_TABLE: Mapping[str, Mapping[str, Can]] = {
    "lsm": _HOOKS,
    "fmod": _HOOKS,
    "tracepoint": {
        "ancestry": Can("all"),
        "world-writable": Can(
            "part",
            (),
            (
                "ACLs set through io_uring are told as a request",
                "mkdir and mknod below a directory with an open default ACL, given by more than a name",
                _UNTIL_FOLLOWED,
            ),
        ),
        "bind": Can("all", ("deny", "rewrite")),
        "listen": Can("part", (), ("a listen through io_uring is told as a request", _UNTIL_FOLLOWED)),
        "code-from-outside": Can(
            "part", (), (*EVERYWHERE, "reads and writes through io_uring are told as a ring", _UNTIL_FOLLOWED)
        ),
        "raw-syscall": Can("all", (), (_UNTIL_FOLLOWED,)),
        "io-uring": Can("all", (), (_UNTIL_FOLLOWED,)),
    },
    "bcc": {
        "ancestry": Can("all"),
        "world-writable": Can(
            "part", (), ("ACLs, io_uring, int 0x80, sockets of AF_UNIX", "a sticky file is taken for a directory")
        ),
        "bind": Can("part", (), ("io_uring and int 0x80",)),
        "listen": Can("part", (), ("io_uring and int 0x80",)),
        "code-from-outside": Can("no"),
        "raw-syscall": Can("no"),
        "io-uring": Can("no"),
    },
    "poll": {
        "ancestry": Can("part", (), ("processes that live shorter than a round",)),
        "world-writable": Can("no"),
        "bind": Can("no", (), ("sockets are seen once they listen",)),
        "listen": Can("part", (), ("sockets that live shorter than a round",)),
        "code-from-outside": Can("no"),
        "raw-syscall": Can("no"),
        "io-uring": Can("no"),
    },
}


COSTS: Mapping[str, Mapping[str, str]] = {
    "tracepoint": {
        "fork and exec": "under 5 %",
        "find": "5 to 10 %",
        "tar": "5 to 10 %",
        "compile": "under 3 %",
        "reads of one byte": "70 %",
        "pipe of 64 bytes": "45 %",
    },
}
"""Processor time of others' work while an agent works on the node: bench/monitor.py, kernel 6.18, two processors."""


def of(backend: str, skipped: Mapping[str, str]) -> Mapping[str, Can]:
    """What a loaded backend can do, less what its skipped programs would have done.

    Args:
        skipped: section → why; fallbacks that are not needed count as there.
    """
    out = dict(_TABLE[backend])
    for section, why in skipped.items():
        if why.endswith(" serves"):
            continue
        rule = RULE_OF.get(target(section), "bind" if section.startswith("cgroup/bind") else "")
        if rule in out and not section.startswith(("fentry/", "fexit/")) and target(section) != "inode_set_acl":
            can = out[rule]
            out[rule] = Can("part" if can.see == "all" else can.see, () if rule == "bind" else can.act,
                            (*can.misses, f"{section}: {why}"))  # fmt: skip
    return out


def without_following(backend: str) -> tuple[str, ...]:
    """What is not seen while the programs that cost other processes are detached."""
    if backend == "tracepoint":
        return ("modes", "listens", "connects", "code from outside", "raw system calls", "io_uring")
    return ("modes", "listens", "connects", "code from outside", "io_uring")
