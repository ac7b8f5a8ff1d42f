"""What is enforced on a host, control by control, and what is missing in plain words; a pure function.

A control is `enforced` when its whole promise holds, `partial` when something named is missing, `absent`
when nothing of it is there; `observe` and `off` are what the policy asked for. One layer never speaks for
another: what is missing without the mask is listed without the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guard.policy.model import BindAllow, ConnectRule, Effective

__all__ = [
    "NEWEST_ABI",
    "Host",
    "Status",
    "asked",
    "bind_ports",
    "connect_ports",
    "control_modes",
    "port_lists",
    "statuses",
]

Status = tuple[str, list[str]]
"""(`enforced`, `partial`, `absent`, `observe` or `off`; what is missing)."""

NEWEST_ABI = 7
"""The newest Landlock ABI whose rights are used here; a newer kernel is treated as this one."""

PORTS_MOST = 1024
"""Ports that a plan lists one by one; each costs the start 4 µs (Landlock has no ranges)."""


@dataclass(frozen=True, slots=True)
class Host:
    """What a host was found to enforce.

    Args:
        machine: as `uname -m` gives it.
        abi: Landlock's ABI, 0 for none.
        seccomp: whether a filter can be loaded.
        mask: whether a mount namespace can hide and protect places.
        landlock_reason: why there is no Landlock, "" when there is.
        seccomp_reason, mask_reason: the same of the others.
    """

    machine: str = "x86_64"
    abi: int = 0
    seccomp: bool = True
    mask: bool = False
    landlock_reason: str = ""
    seccomp_reason: str = ""
    mask_reason: str = ""


_STRENGTH = {"off": 0, "observe": 1, "enforce": 2}


def control_modes(values: Mapping[str, object]) -> dict[str, str]:
    """Return each control's mode: `enforce`, `observe` or `off`, the weaker of its switch and its settings.

    A control whose settings allow everything (`network.bind = "any"`) is off: there is nothing to enforce.
    """
    from guard.policy.keys import CONTROLS

    modes = {control: str(values[f"controls.{control.replace('-', '_')}"]) for control in CONTROLS}
    settings = {
        "world-writable": _setting(values["modes.world_writable"]),
        "setuid": _setting(values["modes.setuid"]),
        "pipe-to-shell": _setting(values["pipe_to_shell.action"]),
        "bind": "off" if values["network.bind"] == "any" else "enforce",
        "connect": "off" if values["network.connect"] is None else "enforce",
    }
    for control, setting in settings.items():
        modes[control] = min(modes[control], setting, key=_STRENGTH.__getitem__)
    return modes


def _setting(word: object) -> str:
    return str(word) if word in ("off", "observe") else "enforce"


def asked(effective: Effective) -> list[str]:
    """Return the controls that the plan must enforce, what `--require all` means."""
    if effective.mode != "enforce":
        return []
    return [control for control, mode in control_modes(effective.values).items() if mode == "enforce"]


def port_lists(ranges: Iterable[tuple[tuple[int, int], ...]]) -> list[list[int] | None]:
    """Spell out the ranges of several rules, None for each that no longer fits into `PORTS_MOST` ports."""
    room = PORTS_MOST
    found: list[list[int] | None] = []
    for spans in ranges:
        count = sum(high - low + 1 for low, high in spans)
        if count > room:
            found.append(None)
            continue
        room -= count
        found.append([port for low, high in spans for port in range(low, high + 1)])
    return found


def bind_ports(effective: Effective) -> list[tuple[BindAllow, list[int]]]:
    """Return each exception to `network.bind` with the ports that a rule by port may open for it.

    Such a rule knows neither addresses nor programs, so it speaks only where neither is asked for.
    """
    entries = effective.bind_allow()
    whole = [entry.addr == "any" and not entry.exec for entry in entries]
    lists = port_lists(entry.ports if exact else () for entry, exact in zip(entries, whole, strict=True))
    return [(entry, ports or []) for entry, ports in zip(entries, lists, strict=True)]


def connect_ports(effective: Effective) -> list[tuple[ConnectRule, list[int]]]:
    """Return each rule of `network.connect` with the ports that are opened for it."""
    rules = effective.connect() or ()
    lists = port_lists(rule.ports for rule in rules)
    return [(rule, ports or []) for rule, ports in zip(rules, lists, strict=True)]


def statuses(
    effective: Effective, host: Host, mask: bool = False, supervisor: bool = False
) -> dict[str, Status]:
    """Judge every control.

    Args:
        effective: the policy.
        host: where.
        mask: whether the launcher hides and protects places by a mount namespace.
        supervisor: whether one stands beside the tree (`guard.confine.supervise`).

    Returns:
        control → (state, what is missing), in the order of `CONTROLS`.
    """
    found: dict[str, Status] = {}
    modes = control_modes(effective.values)
    for control, mode in modes.items():
        if effective.mode != "enforce":
            mode = min(mode, effective.mode, key=_STRENGTH.__getitem__)
        if mode != "enforce":
            found[control] = (mode, [])
            continue
        judge = _SUPERVISED.get(control, _JUDGES[control]) if supervisor else _JUDGES[control]
        holds, missing = judge(_Case(effective, host, mask))
        state = "enforced" if not missing else "partial" if holds else "absent"
        found[control] = (state, missing)
    return found


@dataclass(frozen=True, slots=True)
class _Case:
    effective: Effective
    host: Host
    mask: bool

    def landlock(self, need: int) -> str:
        """Return why something of Landlock is missing, "" if it is there."""
        if self.host.abi >= need:
            return ""
        if not self.host.abi:
            return self.host.landlock_reason or "no Landlock on this kernel"
        return f"kernel too old: Landlock ABI {self.host.abi}, this needs {need}"

    def filter(self) -> list[str]:
        """Return what is missing when no filter can be loaded."""
        return [] if self.host.seccomp else [self.host.seccomp_reason or "no seccomp filters on this kernel"]

    def round(self) -> list[str]:
        """Return the ways round a filter that the policy leaves open."""
        if self.effective.word("kernel.io_uring") == "allow":
            return ["kernel.io_uring = allow: what goes through a ring is not judged"]
        return []

    def families(self) -> list[str]:
        """Return what a network can be reached by that has no TCP port."""
        missing = ["UDP: a kernel's port rules do not reach it (Landlock ABI 10)"]
        if self.effective.word("kernel.packet_sockets") == "allow":
            missing.append("kernel.packet_sockets = allow: families without TCP ports (vsock, RDS, TIPC)")
        return missing


_Judged = tuple[bool, list[str]]


def _files(case: _Case) -> _Judged:
    effective, missing = case.effective, []
    why = case.landlock(1)
    if why:
        missing.append(f"file rules: {why}")
        if case.mask:
            missing.append("the mask hides denied and protects protected places, and nothing else")
        return case.mask, missing
    for need, what in (
        (2, "moves and hard links between directories fail (EXDEV), also where they should not"),
        (3, "truncate(2) of files outside is not refused"),
        (5, "ioctls on devices are not limited"),
    ):
        if case.landlock(need):
            missing.append(f"{what}: {case.landlock(need)}")
    if not case.mask:
        cause = f": {case.host.mask_reason or 'no mask here'}" if not case.host.mask else ""
        if effective.words("files.protect"):
            missing.append(f"protected places inside a writable one can be written without the mask{cause}")
        if effective.words("files.deny"):
            missing.append(
                "a denied place cannot be read, but seen (stat); what is made later beside one is unreadable"
            )
    if not case.host.seccomp:
        missing.append(f"btrfs snapshots and file handles: {case.filter()[0]}")
    return True, missing


def _metadata(case: _Case) -> _Judged:
    missing = ["modes, owners and times of one's own files outside can be changed: needs the supervisor"]
    if case.mask:
        missing[0] += " (hidden and protected places cannot)"
    if case.effective.word("kernel.xattr") == "allow":
        missing.append("kernel.xattr = allow: extended attributes of files outside too")
    return case.host.seccomp, missing + case.filter() + case.round()


def _world_writable(case: _Case) -> _Judged:
    missing = case.filter() + case.round()
    if case.effective.word("kernel.xattr") == "allow":
        missing.append("kernel.xattr = allow: an access list can give others the right to write")
    return case.host.seccomp, missing


def _setuid(case: _Case) -> _Judged:
    missing = ["chmod of a file to set-group-id passes: the filter cannot tell it from a directory's"]
    return case.host.seccomp, missing + case.filter() + case.round()


def _bind(case: _Case) -> _Judged:
    effective, why, missing = case.effective, case.landlock(4), []
    if why:
        missing.append(f"TCP ports: {why}")
    elif effective.word("network.bind") == "loopback":
        missing.append("loopback cannot be told from other addresses: no TCP bind at all without the supervisor")
    for entry, ports in bind_ports(effective):
        if why or not ports:
            missing.append(f"bind_allow {entry}: stays closed without the supervisor")
    missing.append("listen without bind takes a free TCP port on every address")
    missing += case.families()
    return not why, missing + case.filter() + case.round()


def _connect(case: _Case) -> _Judged:
    effective, why, missing = case.effective, case.landlock(4), []
    if why:
        missing.append(f"TCP ports: {why}")
    for rule, ports in connect_ports(effective):
        if why:
            break
        if not ports:
            missing.append(f"{rule}: beyond {PORTS_MOST} ports, stays closed without the supervisor")
        elif rule.to != "any" or rule.except_:
            missing.append(f"{rule}: the ports are open to every address without the supervisor")
    if not why:
        missing.append("a server of the tree itself on another loopback port cannot be reached")
    missing += case.families()
    if any("infiniband" in path for path in effective.words("files.devices")):
        missing.append("InfiniBand verbs need no socket")
    return not why, missing + case.filter() + case.round()


def _unix_sockets(case: _Case) -> _Judged:
    effective = case.effective
    missing = ["sockets in readable and writable places can be connected to by path: needs the supervisor"]
    if effective.word("unix.abstract") == "deny" and case.landlock(6):
        missing.append(f"abstract sockets: {case.landlock(6)}")
    if effective.word("unix.datagram") == "deny":
        missing += case.filter()
    holds = (effective.word("unix.abstract") == "deny" and not case.landlock(6)) or (
        effective.word("unix.datagram") == "deny" and case.host.seccomp
    )
    return holds, missing + case.round()


def _pipe_to_shell(case: _Case) -> _Judged:
    return False, ["needs the supervisor"]


def _processes(case: _Case) -> _Judged:
    missing = []
    if case.landlock(6):
        missing.append(f"signals to processes outside: {case.landlock(6)}")
    missing.append("priority and CPU affinity of processes outside; their command lines can be read in /proc")
    if not case.host.abi and not case.mask:
        # Both make /proc/PID ask whether one may trace the process; nothing else does.
        missing.append(f"environment and memory of processes outside can be read in /proc: {case.landlock(1)}")
    if not case.host.abi and not case.host.seccomp:
        missing.append("memory and descriptors of processes outside")
    return bool(case.host.abi) or case.host.seccomp, missing + case.filter() + case.round()


def _kernel_surface(case: _Case) -> _Judged:
    return case.host.seccomp, case.filter() + case.round()


def _limits(case: _Case) -> _Judged:
    missing = []
    for name, how in (
        ("processes", "counted over all processes of the user on the host, not over the tree"),
        ("memory", "of each process, not of the tree"),
        ("cpu_seconds", "of each process, not of the tree"),
    ):
        if case.effective.number(f"limits.{name}") is not None:
            missing.append(f"limits.{name}: {how}")
    return True, missing


_JUDGES = {
    "files": _files,
    "metadata": _metadata,
    "world-writable": _world_writable,
    "setuid": _setuid,
    "bind": _bind,
    "connect": _connect,
    "unix-sockets": _unix_sockets,
    "pipe-to-shell": _pipe_to_shell,
    "processes": _processes,
    "kernel-surface": _kernel_surface,
    "limits": _limits,
}


# With a supervisor ----------------------------------------------------------------------------------------


def _supervised(*missing: str) -> Callable[[_Case], _Judged]:
    def judge(case: _Case) -> _Judged:
        unasked = ["kernel.binary32 = allow: 32-bit calls are judged as without the supervisor"]
        allows = case.effective.word("kernel.binary32") == "allow"
        return True, [*missing, *case.round(), *(unasked if allows else ())]

    return judge


def _supervised_bind(case: _Case) -> _Judged:
    missing = []
    if case.effective.connect() is None or case.effective.word("controls.connect") != "enforce":
        # Else the socket hears only whom the tree may send to (guard.confine.handlers.datagrams).
        missing.append("connect is open: a datagram sent by sendmsg(2) takes a UDP port that everybody reaches")
    return True, missing + case.round()


def _supervised_connect(case: _Case) -> _Judged:
    missing = []
    if any("infiniband" in path for path in case.effective.words("files.devices")):
        missing.append("InfiniBand verbs need no socket")
    return True, missing + case.round()


_SUPERVISED = {
    "metadata": _supervised(),
    "world-writable": _supervised(),
    "setuid": _supervised(),
    "bind": _supervised_bind,
    "connect": _supervised_connect,
    "unix-sockets": lambda case: (True, case.round()),  # of 32-bit calls nothing is left (supervised.head)
    "pipe-to-shell": _supervised("a renamed fetcher, and code that a running program fetches for itself, are not seen"),
    "processes": _supervised("command lines of processes outside can be read in /proc"),
}
