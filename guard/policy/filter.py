"""From a policy's values to the bytes of its seccomp filter.

libseccomp makes the larger part: it knows the numbers of the old calls on each architecture and arranges
them well. Before it stands a head of our own for what it cannot say (2.5, and `pyseccomp` 0.1.2 over it):
calls newer than its table, allow-lists (`socket`: no argument may be tested twice in a rule), rows of one
call with different answers (an unconditional one wipes the others there, silently), and the refusal of
calls nobody knows yet. `tests/policy/test_filter.py` compares the bytes with the table, call by call.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from itertools import product
from types import ModuleType

from guard.errors import PlanError
from guard.kernel import assembler as bpf
from guard.kernel import seccomp
from guard.policy.refusals import FOREIGN, RULES, UNKNOWN, Rule, Test
from guard.policy.status import control_modes

__all__ = ["active", "build", "condition", "library", "number", "own_ipc", "verdict"]

LIBRARY_MISSING = "library missing: libseccomp (Debian: libseccomp2, RHEL: libseccomp)"


def active(values: Mapping[str, object], landlock: bool) -> tuple[Rule, ...]:
    """Return the rows that a policy puts into its filter, in order; `FOREIGN` and `UNKNOWN` stand first.

    Args:
        values: of an effective policy.
        landlock: whether the tree will be in a Landlock domain.
    """
    modes = control_modes(values)
    return tuple(rule for rule in (FOREIGN, UNKNOWN, *RULES) if _stands(rule, values, modes, landlock))


def _stands(rule: Rule, values: Mapping[str, object], modes: Mapping[str, str], landlock: bool) -> bool:
    if all(modes[control] != "enforce" for control in rule.controls):
        return False
    if not rule.key or values[rule.key] in rule.words:
        return True
    return rule.domain and not landlock


def verdict(rules: Sequence[Rule], call: str, args: Sequence[int] = ()) -> Rule | None:
    """Return the row that refuses a call, None if it passes; the table's own word, without a filter.

    Args:
        rules: as `active` returns them.
        call: its name.
        args: up to six registers.
    """
    for rule in rules:
        if call in rule.calls and all(test.holds(tuple(args)) for test in rule.tests):
            return rule
    return None


def library() -> ModuleType:
    """Import `pyseccomp`.

    Raises:
        PlanError: libseccomp or its binding is missing.
    """
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        # RuntimeError: the binding does not find the library; AttributeError: one too old for the binding.
        raise PlanError(f"{LIBRARY_MISSING}: {error}", "install it, or use a plan compiled before") from error
    module: ModuleType = pyseccomp
    return module


def own_ipc(values: Mapping[str, object], machine: str) -> bytes:
    """Return the head of a filter in an IPC namespace of the session's own: what is refused elsewhere passes there.

    Args:
        values: of an effective policy; b"" unless `kernel.sysv_ipc` is `private`.
        machine: x86_64 or aarch64.
    """
    if values["kernel.sysv_ipc"] != "private":
        return b""
    names = next(rule.calls for rule in RULES if rule.key == "kernel.sysv_ipc")
    found = sorted({value for name in names if (value := number(name, machine)) is not None})
    code = bpf.Assembler()
    code.load(seccomp.DATA_ARCH)
    code.jump(bpf.EQUAL, seccomp.MACHINES[machine].audit, no="judged")
    code.load(seccomp.DATA_NR)
    for value in found:
        code.jump(bpf.EQUAL, value, yes="passes")
    code.go("judged")
    code.mark("passes")
    code.answer(seccomp.RET_ALLOW)
    code.mark("judged")
    return code.assemble()


_TOKENS = {"x86_64": "X86_64", "aarch64": "AARCH64", "i386": "X86"}


def number(call: str, machine: str) -> int | None:
    """Return a call's number, None where the machine has no such call.

    Raises:
        PlanError: libseccomp is missing.
    """
    if call in seccomp.COMMON:
        return seccomp.COMMON[call]
    if machine == "i386" and call in seccomp.I386_DIRECT:
        return seccomp.I386_DIRECT[call]
    library_ = library()
    found: int = library_.resolve_syscall(getattr(library_.Arch, _TOKENS[machine]), call)
    return found if found >= 0 else None  # negative: known, but elsewhere


def build(values: Mapping[str, object], landlock: bool, machine: str) -> bytes:
    """Compile the filter.

    Args:
        values: of an effective policy.
        landlock: whether the tree will be in a Landlock domain; without one, what the domain would have
            judged by process is refused whole.
        machine: x86_64 or aarch64, this one or another.

    Returns:
        `struct sock_filter` entries. The same values give the same bytes with the same libseccomp.

    Raises:
        PlanError: no libseccomp or one too old, or a machine without a table.
        OSError: libseccomp cannot: it asks this kernel which answers a filter may give.
    """
    if machine not in ("x86_64", "aarch64"):
        raise PlanError(f"no filter can be made for {machine}", "guard knows x86_64 and aarch64")
    rules = active(values, landlock)
    if not rules:
        empty = bpf.Assembler()
        empty.answer(seccomp.RET_ALLOW)
        return empty.assemble()
    program = _program(rules, machine)
    if FOREIGN not in rules and machine == "x86_64":
        program = _either(program, "i386", _program(rules, "i386"))
    if len(program) // 8 > seccomp.MAX_INSTRUCTIONS:
        raise PlanError(f"the filter has {len(program) // 8} instructions", "this is a defect of guard")
    return program


def _either(program: bytes, machine: str, other: bytes) -> bytes:
    """Return a program that gives calls of one machine to `other`, and all others to `program`."""
    code = bpf.Assembler()
    code.load(seccomp.DATA_ARCH)
    code.jump(bpf.EQUAL, seccomp.MACHINES[machine].audit, no="first")
    code.go("second")
    code.mark("first")
    code.place(program)
    code.mark("second")
    return code.assemble() + other


def _program(rules: Sequence[Rule], machine: str) -> bytes:
    by_call: dict[str, list[Rule]] = {}
    for rule in rules:
        for call in rule.calls:
            by_call.setdefault(call, []).append(rule)
    ours: dict[int, list[Rule]] = {}
    theirs: dict[str, list[Rule]] = {}
    for call, rows in by_call.items():
        # libseccomp's i386 adds socketcall and ipc by itself, with conditions on the wrong arguments.
        if call in seccomp.COMMON or machine == "i386" or not _can_say(rows):
            nr = number(call, machine)
            if nr is not None:
                ours[nr] = rows
        else:
            theirs[call] = rows
    return _head(ours, machine, UNKNOWN in rules) + _tail(theirs, machine)


def _can_say(rows: Sequence[Rule]) -> bool:
    """Whether libseccomp says the same of one call as these rows."""
    if len({row.action for row in rows}) > 1:
        return False
    if any(not row.tests for row in rows):
        return len(rows) == 1
    return all(
        not test.unless and len({test.arg for test in row.tests}) == len(row.tests)
        for row in rows
        for test in row.tests
    )


# The head -------------------------------------------------------------------------------------------------


def _head(rows: Mapping[int, Sequence[Rule]], machine: str, unknown: bool) -> bytes:
    about = seccomp.MACHINES[machine]
    code = bpf.Assembler()
    code.load(seccomp.DATA_ARCH)
    code.jump(bpf.EQUAL, about.audit, yes="native")
    code.answer(FOREIGN.action)
    code.mark("native")
    code.load(seccomp.DATA_NR)
    if about.x32:
        code.jump(bpf.NOT_LESS, seccomp.X32_BIT, no="ours")
        code.jump(bpf.EQUAL, seccomp.SKIPPED, yes="passed")
        code.answer(FOREIGN.action)
        code.mark("passed")
        code.go("tail")
        code.mark("ours")
    else:
        code.jump(bpf.EQUAL, seccomp.SKIPPED, no="ours")
        code.go("tail")
        code.mark("ours")
    code.jump(bpf.NOT_LESS, seccomp.FIRST_COMMON, no="old")
    if unknown:
        code.jump(bpf.GREATER, seccomp.NEWEST, no="known")
        code.answer(UNKNOWN.action)
        code.mark("known")
    for nr in sorted(nr for nr in rows if nr >= seccomp.FIRST_COMMON):
        _call(code, nr, rows[nr])
    code.go("tail")
    code.mark("old")
    for nr in sorted(nr for nr in rows if nr < seccomp.FIRST_COMMON):
        _call(code, nr, rows[nr])
    code.mark("tail")
    return code.assemble()


def _call(code: bpf.Assembler, nr: int, rows: Sequence[Rule]) -> None:
    following = code.label()
    code.jump(bpf.EQUAL, nr, no=following)
    for rule in rows:
        otherwise = code.label()
        for test in rule.tests:
            condition(code, test, otherwise)
        code.answer(rule.action)
        code.mark(otherwise)
    if all(rule.tests for rule in rows):  # the accumulator holds an argument by now: nothing else may be asked
        code.go("tail")
    code.mark(following)


def condition(code: bpf.Assembler, test: Test, otherwise: str) -> None:
    """Go on where a condition holds, and to a label where it does not; the accumulator holds an argument then."""
    low = seccomp.DATA_ARGS + 8 * test.arg
    holds = code.label()
    if test.mask >> 32:  # `nonzero`, the only one
        code.load(low)
        code.jump(bpf.EQUAL, 0, no=holds)
        code.load(low + 4)
        code.jump(bpf.EQUAL, 0, yes=otherwise)
        code.mark(holds)
        return
    code.load(low)
    code.mask(test.mask)
    if test.unless:
        for value in test.values:
            code.jump(bpf.EQUAL, value, yes=otherwise)
        return
    for value in test.values[:-1]:
        code.jump(bpf.EQUAL, value, yes=holds)
    code.jump(bpf.EQUAL, test.values[-1], no=otherwise)
    code.mark(holds)


# libseccomp's part ---------------------------------------------------------------------------------------


def _tail(rows: Mapping[str, Sequence[Rule]], machine: str) -> bytes:
    pyseccomp = library()
    arch = getattr(pyseccomp.Arch, _TOKENS[machine])
    held = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    held.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.KILL_PROCESS)
    if arch != pyseccomp.system_arch():
        held.add_arch(arch)
        held.remove_arch(pyseccomp.system_arch())
    try:
        # A tree of comparisons instead of a list: kernels before 5.11 run the filter on every call.
        held.set_attr(pyseccomp.Attr.CTL_OPTIMIZE, 2)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.EINVAL, errno.EOPNOTSUPP):  # libseccomp before 2.5
            raise
    for call, rules in sorted(rows.items()):
        # The number of this machine, or libseccomp's stand-in for a call of another one; it translates both.
        native = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, call)
        if native == -1:  # the one answer for "no such name"; the binding does not raise
            raise PlanError(f"this libseccomp does not know {call}", "guard needs version 2.5 or newer")
        for rule in rules:
            for values in product(*(test.values for test in rule.tests)):
                comparisons = [
                    pyseccomp.Arg(test.arg, pyseccomp.MASKED_EQ, test.mask, value)
                    for test, value in zip(rule.tests, values, strict=True)
                ]
                held.add_rule(rule.action, native, *comparisons)
    # Not a temporary file: /tmp may be full, and a plan is needed all the same.
    with os.fdopen(os.memfd_create("guard-filter"), "rb") as file:
        held.export_bpf(file)
        file.seek(0)
        return file.read()
