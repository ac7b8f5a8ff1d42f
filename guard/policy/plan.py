"""From an effective policy and a host to a plan: everything the launcher needs, with nothing left to decide.

The file's form is read at every start: a line that names it, the length, and one dictionary as `marshal`
writes it, which the launcher reads with the standard library alone. This module loads nothing else until
something is compiled.
"""

from __future__ import annotations

import marshal
import os

from guard import __version__
from guard.errors import PlanError
from guard.kernel import unmarshal

TYPE_CHECKING = False  # `typing` costs more than all the rest here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from guard.policy.model import Effective
    from guard.policy.status import Host

    Plan = dict[str, object]

MAGIC = b"guard-plan 4\n"
"""The number goes up with every key that the launcher needs: an older plan is then no plan, and made anew."""
MOST = 16 << 20
"""Bytes that a plan may have; the largest seen has 20,000."""

# linux/landlock.h. The package `landlock` knows file rights only.
BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_UNIX, SCOPE_SIGNAL = 1, 2
LOG_NEW_EXEC_ON = 2
DNS = 53

# <asm-generic/resource.h>, the same on both machines.
RLIMITS = {
    "limits.cpu_seconds": 0,
    "limits.file_size": 1,
    "limits.core": 4,
    "limits.processes": 6,
    "limits.open_files": 7,
    "limits.memory": 9,
}


def compile(effective: Effective, host: Host, since: float | None = None) -> Plan:
    """Compile.

    Args:
        effective: the policy of one user and harness.
        host: what this host was found to enforce.
        since: when the policy's files began to be read (seconds since the epoch): one changed later never
            counts as fresh.

    Returns:
        The plan, as `loads` describes it. The same arguments give the same plan.

    Raises:
        PlanError: libseccomp is missing, or the machine is unknown.
    """
    from dataclasses import replace

    from guard.policy import filter as filters
    from guard.policy.status import NEWEST_ABI, asked, control_modes, statuses

    values = effective.values
    on = set(asked(effective))
    modes = control_modes(values)
    abi = min(host.abi, NEWEST_ABI)
    enforcing = effective.mode == "enforce"
    handled_net, ports = _ports(effective, on, abi)
    scoped = 0
    if "processes" in on:
        scoped |= SCOPE_SIGNAL
    if "unix-sockets" in on and effective.word("unix.abstract") == "deny":
        scoped |= SCOPE_ABSTRACT_UNIX
    handled_fs = rights(abi) if "files" in on else 0
    scoped = scoped if abi >= 6 else 0
    # With nothing handled there is no domain: what it would have judged is then refused whole.
    domain = bool(handled_fs or handled_net or scoped)
    judged = statuses(effective, host)
    bpf = bpf_alone = bpf_own_ipc = bpf_supervised = b""
    if enforcing:
        try:
            bpf = filters.build(values, domain, host.machine)
            bpf_alone = filters.build(values, False, host.machine)
            bpf_own_ipc = filters.own_ipc(values, host.machine)
        except OSError as error:  # libseccomp asks the kernel which actions it knows
            why = host.seccomp_reason or error.strerror
            raise PlanError(f"libseccomp cannot make the filter: {why}", "see `guard doctor`") from error
        asking = _asking(values, host.machine)
        bpf_supervised = asking + bpf if asking else b""
    return {
        "guard": __version__,
        "machine": host.machine,
        "abi": abi,
        "policy": effective.name,
        "digest": effective.digest,
        "mode": effective.mode,
        "harness": effective.harness,
        "layers": list(effective.layers),
        "exceptions": list(effective.exceptions),
        "assigned_by": effective.assigned_by,
        "expires": float(effective.expires or 0.0),
        "sources": stamp(effective.sources, since),
        "grants": grants(effective),
        "deny": list(effective.words("files.deny")),
        "protect": list(effective.words("files.protect")),
        "mask": effective.word("files.mask"),
        "fs": "files" in on,
        "handled_fs": handled_fs,
        "handled_net": handled_net,
        "scoped": scoped,
        "restrict_flags": LOG_NEW_EXEC_ON if abi >= 7 else 0,
        "ports": ports,
        "bpf": bpf,
        "bpf_alone": bpf_alone,
        "bpf_own_ipc": bpf_own_ipc,
        "bpf_supervised": bpf_supervised,
        "supervise": effective.word("supervisor.use"),
        "seccomp_flags": 4,  # SPEC_ALLOW: before 5.16 a filter switches speculation off for the whole tree
        "rlimits": [
            (number, limit)
            for key, number in RLIMITS.items()
            if "limits" in on and (limit := effective.number(key)) is not None
        ],
        "umask": 0o002 if "world-writable" in on else 0,
        "env_drop": list(effective.words("env.drop")),
        "env_keep": list(effective.words("env.keep")),
        "worktrees": effective.flag("project.worktrees"),
        "project_roots": list(effective.site.project_roots),
        "tmp": effective.site.tmp,
        "audit": effective.site.audit,
        "on_fault": {control: effective.word(f"on_fault.{control.replace('-', '_')}") for control in modes},
        "events": effective.word("on_fault.events"),
        "status": judged,
        "status_mask": statuses(effective, replace(host, mask=True), mask=True),
        "status_supervised": statuses(effective, host, supervisor=True),
        "status_supervised_mask": statuses(effective, replace(host, mask=True), mask=True, supervisor=True),
        "asked": [control for control in modes if control in on],
        "supervisor": _supervisor(effective, modes),
    }


def _asking(values: Mapping[str, object], machine: str) -> bytes:
    """Return the head of a filter that asks a supervisor; empty where the policy needs or wants none."""
    from guard.kernel.numbers import numbers
    from guard.policy import supervised

    if not supervised.wanted(values):
        return b""
    allows = machine == "x86_64" and values["kernel.binary32"] == "allow"
    return supervised.head(supervised.calls(values), numbers(machine), machine, allows)


def rights(abi: int) -> int:
    """Return the file rights that a Landlock ABI handles (linux/landlock.h)."""
    if abi < 1:
        return 0
    from landlock import FSAccess

    bits = FSAccess.MAKE_SYM * 2 - 1  # the thirteen of ABI 1; FSAccess.all() asks the kernel, and misreads it
    for need, right in ((2, FSAccess.REFER), (3, FSAccess.TRUNCATE), (5, FSAccess.IOCTL_DEV)):
        if abi >= need:
            bits |= right
    return int(bits)


def grants(effective: Effective) -> list[tuple[str, int]]:
    """Return what a policy grants: (path pattern, Landlock rights)."""
    from landlock import FSAccess as A

    read = A.READ_FILE | A.READ_DIR | A.EXECUTE
    change = A.WRITE_FILE | A.TRUNCATE
    # Device nodes are never made. REFER belongs to every place that may be written: a move between two of
    # them needs it on both sides, or it is EXDEV.
    make = A.MAKE_DIR | A.MAKE_REG | A.MAKE_SOCK | A.MAKE_FIFO | A.MAKE_SYM | A.REFER
    make |= A.REMOVE_DIR | A.REMOVE_FILE
    device = A.READ_FILE | A.READ_DIR | change | A.IOCTL_DEV
    found: dict[str, int] = {}
    for key, bits in (("files.read", read), ("files.write", read | change | make), ("files.devices", device)):
        for path in effective.words(key):
            # Shared memory is made of files in there, and nothing in there is a program.
            more = make if key == "files.devices" and path.rstrip("/") == "/dev/shm" else 0  # noqa: S108
            found[path] = found.get(path, 0) | int(bits | more)
    return list(found.items())


def _ports(effective: Effective, on: set[str], abi: int) -> tuple[int, list[tuple[int, int]]]:
    """Return (handled bits, port rules); what a rule by port would open too wide stays closed or is told."""
    from guard.policy.status import bind_ports, connect_ports

    if abi < 4:
        return 0, []
    handled = 0
    opened: list[tuple[int, int]] = []
    if "bind" in on:
        handled |= BIND_TCP
        opened += [(port, BIND_TCP) for _, ports in bind_ports(effective) for port in ports]
    if "connect" in on:
        handled |= CONNECT_TCP
        opened.append((DNS, CONNECT_TCP))
        opened += [(port, CONNECT_TCP) for _, ports in connect_ports(effective) for port in ports]
    found: dict[int, int] = {}
    for port, bits in opened:
        found[port] = found.get(port, 0) | bits
    return handled, sorted(found.items())


def _supervisor(effective: Effective, modes: dict[str, str]) -> dict[str, object]:
    """Return what only an address or a path decides: for the supervisor, the launcher does not look."""
    rules = effective.connect()
    return {
        "modes": dict(modes),
        "unix_allow": list(effective.words("unix.allow")),
        "clone_unseen": effective.word("kernel.userns") == "allow",  # clone3 then passes, its flags behind a pointer
        "unix_abstract": effective.word("unix.abstract"),
        "bind": effective.word("network.bind"),
        "bind_allow": [
            (entry.addr, [list(span) for span in entry.ports], entry.exec) for entry in effective.bind_allow()
        ],
        "connect": None
        if rules is None
        else [([list(span) for span in rule.ports], rule.to, list(rule.except_)) for rule in rules],
        "world_writable": effective.word("modes.world_writable"),
        "setuid": effective.word("modes.setuid"),
        "pipe_to_shell": effective.word("pipe_to_shell.action"),
        "hand_off": {
            key.partition(".")[2]: str(value) for key, value in effective.values.items() if key.startswith("hand_off.")
        },
    }


def stamp(sources: Iterable[str], since: float | None = None) -> list[tuple[str, int, int, int]]:
    """Return what tells that a file is still the one that was read: (path, mtime in ns, size, inode).

    A file that is absent is (path, 0, 0, 0): that it appears is a change too. One that changed while it
    may have been read (at or after `since`) gets -1, which no file ever has.
    """
    found = []
    for path in sources:
        try:
            about = os.stat(path)
        except OSError:  # absent, or not for us to see: both were read as nothing
            found.append((path, 0, 0, 0))
            continue
        changed = since is not None and about.st_mtime >= since
        found.append((path, -1 if changed else about.st_mtime_ns, about.st_size, about.st_ino))
    return found


def dumps(plan: Plan) -> bytes:
    """Return a plan's file.

    Version 2 of marshal: later ones write back references where the interpreter happens to share an
    object, so that equal plans would give different bytes.
    """
    body = marshal.dumps(plan, 2)
    return MAGIC + len(body).to_bytes(8, "little") + body


_WORDS = {
    "supervise": ("never", "auto", "always"),
    "mode": ("enforce", "observe", "off"),
    "mask": ("auto", "always", "never"),
    "audit": ("allow", "forbid"),
    "events": ("warn", "refuse"),
}
_TEXTS = ("guard", "machine", "policy", "digest", "harness", "assigned_by", "tmp")
_LISTS = ("layers", "exceptions", "deny", "protect", "env_drop", "env_keep", "project_roots", "asked")
_NUMBERS = ("abi", "handled_fs", "handled_net", "scoped", "restrict_flags", "seccomp_flags", "umask")
_FLAGS = ("fs", "worktrees")
_ADDED = {"plan_digest", "request"}
"""What whoever keeps a plan may note in it beside what was compiled (guard.policy.prepare)."""
_STATES = ("enforced", "partial", "absent", "observe", "off")


def loads(data: bytes) -> Plan:
    """Read a plan's file; who wrote it is the caller's to check first (`marshal` trusts its input).

    Returns:
        Exactly these keys: guard, machine, abi, policy, digest, mode, harness, layers, exceptions,
        assigned_by, expires (float, 0.0: never), sources [(path, mtime ns, size, inode)], grants [(path
        pattern, Landlock bits)], deny, protect, mask, fs, handled_fs, handled_net, scoped, restrict_flags,
        ports [(TCP port, bits)], bpf, bpf_alone and bpf_supervised (with a Landlock
        domain, without, with questions to a supervisor or empty), bpf_own_ipc (put before each of them in an IPC
        namespace of the session's own; empty where the policy has none), supervise (word), seccomp_flags,
        rlimits [(resource, value)], umask (bits always set), env_drop, env_keep, worktrees, project_roots,
        tmp, audit, on_fault {control: word}, events, status and its kin for mask and supervisor {control:
        (state, [missing])}, asked, supervisor {…}.

    Raises:
        PlanError: not a plan, or not a whole one.
    """
    if not data.startswith(MAGIC):
        raise _damaged("it does not begin as a plan")
    head = len(MAGIC) + 8
    if len(data) > MOST or len(data) != head + int.from_bytes(data[len(MAGIC) : head], "little"):
        raise _damaged("its length is wrong")
    try:
        plan = unmarshal(data[head:])  # root's or the user's own file, checked by the caller
    except ValueError as error:
        raise _damaged(str(error)) from error
    if not isinstance(plan, dict):
        raise _damaged("it is no dictionary")
    _check(plan)
    return plan


def _damaged(why: str) -> PlanError:
    return PlanError(f"the plan is damaged: {why}", "remove it, the next start compiles it again")


def _check(plan: Plan) -> None:
    known = {*_WORDS, *_TEXTS, *_LISTS, *_NUMBERS, *_FLAGS, *_SHAPES}
    if set(plan) - _ADDED != known:
        raise _damaged("keys " + ", ".join(sorted(map(str, (set(plan) - _ADDED) ^ known))) + " are missing or unknown")
    for key, words in _WORDS.items():
        if plan[key] not in words:
            raise _damaged(f"{key} is {plan[key]!r}")
    wrong = [key for key in _TEXTS if not isinstance(plan[key], str)]
    wrong += [key for key in _LISTS if not _list_of(plan[key], str)]
    wrong += [key for key in _NUMBERS if not _natural(plan[key])]
    wrong += [key for key in _FLAGS if not isinstance(plan[key], bool)]
    wrong += [key for key, shape in _SHAPES.items() if not shape(plan[key])]
    if wrong:
        raise _damaged(f"{wrong[0]} has the wrong form")


def _list_of(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(entry, kind) for entry in value)


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _rows(value: object, *kinds: type) -> bool:
    return isinstance(value, list) and all(isinstance(row, tuple) and tuple(map(type, row)) == kinds for row in value)


def _grant_rows(value: object) -> bool:
    return _rows(value, str, int) and isinstance(value, list) and all(0 < bits < 1 << 16 for _, bits in value)


def _port_rows(value: object) -> bool:
    return (
        _rows(value, int, int)
        and isinstance(value, list)
        and all(0 <= port < 1 << 16 and 0 < bits <= BIND_TCP | CONNECT_TCP for port, bits in value)
    )


def _limit_rows(value: object) -> bool:
    return _rows(value, int, int) and isinstance(value, list) and all(_natural(n) and _natural(v) for n, v in value)


def _program(value: object) -> bool:
    return isinstance(value, bytes) and len(value) % 8 == 0 and len(value) // 8 <= 4096


def _fault_words(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(key, str) and word in ("warn", "default", "refuse") for key, word in value.items()
    )


def _status_rows(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(key, str)
        and isinstance(row, tuple)
        and len(row) == 2
        and row[0] in _STATES
        and _list_of(row[1], str)
        for key, row in value.items()
    )


_SHAPES: dict[str, Callable[[object], bool]] = {
    "expires": lambda value: isinstance(value, float),
    "sources": lambda value: _rows(value, str, int, int, int),
    "grants": _grant_rows,
    "ports": _port_rows,
    "bpf": _program,
    "bpf_alone": _program,
    "bpf_own_ipc": _program,
    "bpf_supervised": _program,
    "rlimits": _limit_rows,
    "on_fault": _fault_words,
    "status": _status_rows,
    "status_mask": _status_rows,
    "status_supervised": _status_rows,
    "status_supervised_mask": _status_rows,
    "supervisor": lambda value: isinstance(value, dict),
}
