"""The filter's bytes say what the table says, on both machines, and the table says what was promised."""

import errno
import os
import re
import subprocess
import sys
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.errors import PlanError
from guard.kernel import seccomp
from guard.kernel.seccomp import describe, run
from guard.policy import filter as filters
from guard.policy.keys import CONTROLS, defaults
from guard.policy.model import ConnectRule
from guard.policy.refusals import RULES

MACHINES = ("x86_64", "aarch64", "i386")
"""i386 stands for 32-bit programs on x86_64, under `kernel.binary32 = allow`."""
HIGH = 0xDEADBEEF << 32
LACKS = {
    "x86_64": set(),
    "aarch64": {"open", "creat", "mknod", "mkdir", "chmod", "vfork"},
    "i386": {"semop", "semtimedop", "kexec_file_load", "bind", "listen", "connect", "accept4"},
}
"""Calls of promises.txt that a machine never had, or has for libseccomp inside socketcall only."""


def values(**changed):
    """A policy that asks for everything: connections to one port, all else by default."""
    return {
        **defaults(),
        "network.connect": (ConnectRule(((443, 443),)),),
        **{key.replace("__", "."): value for key, value in changed.items()},
    }


_built = {}


def built(landlock=True, machine="x86_64", **changed):
    key = (landlock, machine, tuple(sorted(changed.items())))
    if key not in _built:
        if machine == "i386":
            asked = values(**{**changed, "kernel__binary32": "allow"})
            _built[key] = filters.build(asked, landlock, "x86_64")
        else:
            _built[key] = filters.build(values(**changed), landlock, machine)
    return _built[key]


def answer(call, args=(), landlock=True, machine="x86_64", **changed):
    nr = filters.number(call, machine)
    assert nr is not None, f"{machine} has no {call}"
    return describe(run(built(landlock, machine, **changed), nr, seccomp.MACHINES[machine].audit, args))


def _promises():
    with open(os.path.join(os.path.dirname(__file__), "promises.txt"), encoding="ascii") as file:
        rows = [line.split() for line in file if line.strip() and not line.startswith("#")]
    for expected, calls, *columns in rows:
        for call in calls.split(","):
            for args in product(*(column.split("|") for column in columns)):
                yield call, args, expected


def _register(text):
    return HIGH | int(text[1:], 0) if text.startswith("^") else int(text, 0)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("call", "args", "expected"), list(_promises()))
def test_promise(call, args, expected, machine):
    if call in LACKS[machine]:
        assert filters.number(call, machine) is None
    else:
        assert answer(call, [_register(text) for text in args], machine=machine) == expected


ALONE = ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "process_madvise")


@pytest.mark.parametrize("call", ALONE)
def test_without_a_domain_the_ways_into_other_processes_are_refused_whole(call):
    assert answer(call, landlock=False) == "EPERM"
    assert answer(call, landlock=True, kernel__ptrace="deny") == "EPERM"


def test_without_a_domain_pages_of_other_processes_are_refused_and_ones_own_are_not():
    assert answer("move_pages", (1234,), landlock=False) == "EPERM"
    assert answer("move_pages", (0,), landlock=False) == "allow"
    assert answer("get_robust_list", (0,), landlock=False) == "allow"


OPENED = [
    ("kernel.keyctl", "keyctl", ()),
    ("kernel.sysv_ipc", "shmget", ()),
    ("kernel.userns", "unshare", (0x10000000,)),
    ("kernel.userns", "clone", (0x10000011,)),
    ("kernel.userns", "clone3", ()),
    ("kernel.userns", "setns", ()),
    ("kernel.mount", "mount", ()),
    ("kernel.mount", "open_tree_attr", ()),
    ("kernel.io_uring", "io_uring_setup", ()),
    ("kernel.perf", "perf_event_open", ()),
    ("kernel.bpf", "bpf", ()),
    ("kernel.userfaultfd", "userfaultfd", ()),
    ("kernel.personality", "personality", (0x40000,)),
    ("kernel.packet_sockets", "socket", (17, 3, 0)),
    ("kernel.packet_sockets", "socket", (16, 3, 16)),
    ("kernel.packet_sockets", "socket", (2, 3, 1)),
    ("kernel.xattr", "setxattr", ()),
    ("kernel.xattr", "setxattrat", ()),
    ("unix.datagram", "socket", (1, 2, 0)),
]


@pytest.mark.parametrize(("key", "call", "args"), OPENED)
def test_a_key_opens_what_it_names_and_nothing_else(key, call, args):
    assert answer(call, args) != "allow"
    assert answer(call, args, **{key: "allow"}) == "allow"
    assert answer("chmod", (0, 0o666), **{key: "allow"}) == "EPERM"


def test_protocols_past_the_port_rules_stay_refused_where_packet_sockets_are_allowed():
    for args in ((2, 1, 262), (2, 5, 132), (10, 2, 136)):
        assert answer("socket", args, kernel__packet_sockets="allow") == "EPROTONOSUPPORT"
    assert answer("socket", (43, 1, 0), kernel__packet_sockets="allow") == "EAFNOSUPPORT"  # SMC, TCP inside


def test_shared_memory_that_is_allowed_is_still_not_made_writable_by_others():
    assert answer("shmget", (1, 4096, 0o1666), kernel__sysv_ipc="allow") == "EPERM"
    assert answer("shmget", (1, 4096, 0o1660), kernel__sysv_ipc="allow") == "allow"
    assert answer("shmget", (1, 4096, 0o666), kernel__sysv_ipc="allow") == "allow"  # opens, makes nothing
    assert answer("msgget", (1, 0o1602), kernel__sysv_ipc="allow") == "EPERM"


def test_strip_answers_as_if_done_and_still_refuses_set_user_id():
    for call, args in (("chmod", (0, 0o666)), ("fchmodat2", (0, 0, 0o777))):
        assert answer(call, args, modes__world_writable="strip") == "nothing"
    assert answer("chmod", (0, 0o4777), modes__world_writable="strip") == "EPERM"
    assert answer("umask", (0,), modes__world_writable="strip") == "nothing"


SWITCHED = [
    ("world-writable", "chmod", (0, 0o666)),
    ("world-writable", "umask", (0,)),
    ("setuid", "chmod", (0, 0o4755)),
    ("setuid", "openat2", ()),
    ("unix-sockets", "socket", (1, 2, 0)),
    ("connect", "sendto", (3, 0, 0, 0x20000000)),
    ("processes", "prlimit64", (1, 0, 1)),
    ("kernel-surface", "bpf", ()),
]


@pytest.mark.parametrize("mode", ["observe", "off"])
@pytest.mark.parametrize(("control", "call", "args"), SWITCHED)
def test_a_control_that_is_not_enforced_leaves_its_rows_out(control, call, args, mode):
    switch = {f"controls.{control.replace('-', '_')}": mode}
    assert answer(call, args) != "allow"
    assert answer(call, args, **switch) == "allow"


def test_a_row_that_serves_several_controls_stays_while_one_is_enforced():
    assert answer("setxattr", controls__kernel_surface="off") == "EOPNOTSUPP"
    assert answer("io_uring_setup", controls__kernel_surface="off") == "ENOSYS"
    assert answer("socket", (2, 1, 262), controls__kernel_surface="off", controls__bind="off") == "EPROTONOSUPPORT"


@pytest.mark.parametrize("setting", ["observe", "off"])
def test_a_setting_that_only_observes_leaves_its_rows_out(setting):
    assert answer("chmod", (0, 0o666), modes__world_writable=setting) == "allow"
    assert answer("chmod", (0, 0o4755), modes__setuid=setting) == "allow"


def test_connections_without_bounds_need_no_refusal_of_fast_open():
    assert answer("sendto", (3, 0, 0, 0x20000000), network__connect=None) == "allow"


def test_with_every_control_off_everything_passes():
    off = {f"controls.{control.replace('-', '_')}": "off" for control in CONTROLS}
    program = built(**off)
    assert len(program) == 8
    assert run(program, 101, seccomp.AUDIT_ARCH_I386) == seccomp.RET_ALLOW


# What no row names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("landlock", [True, False])
def test_every_call_without_a_row_passes(machine, landlock):
    refused = {filters.number(call, machine) for rule in RULES for call in rule.calls}
    program, audit = built(landlock, machine), seccomp.MACHINES[machine].audit
    passed = [nr for nr in range(seccomp.NEWEST + 1) if nr not in refused]
    assert len(passed) > 250
    for args in ((), ((1 << 64) - 1,) * 6):
        assert {run(program, nr, audit, args) for nr in passed} == {seccomp.RET_ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_that_nobody_knows_yet_answer_as_on_an_older_kernel(machine):
    program, audit = built(machine=machine), seccomp.MACHINES[machine].audit
    for nr in (seccomp.NEWEST + 1, 500, 512, 547, 1000, 0x3FFFFFFF):
        assert describe(run(program, nr, audit)) == "ENOSYS"


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_that_a_tracer_has_taken_away_passes(machine):
    assert run(built(machine=machine), -1, seccomp.MACHINES[machine].audit) == seccomp.RET_ALLOW


def test_other_entries_into_the_kernel_kill():
    for machine in ("x86_64", "aarch64"):
        for entry in seccomp.MACHINES[machine].entries:
            for nr in (1, 5, 15, 463, 5000):
                assert describe(run(built(machine=machine), nr, entry)) == "kill"
    for nr in (1, 39, 512, 547, 463, 0x3FFFFFFE):  # x32
        assert describe(run(built(), seccomp.X32_BIT | nr, seccomp.AUDIT_ARCH_X86_64)) == "kill"


def test_where_32_bit_programs_are_allowed_the_other_entries_stay_closed():
    program = built(kernel__binary32="allow")
    assert describe(run(program, 90, seccomp.AUDIT_ARCH_X86_64, (0, 0o666))) == "EPERM"
    assert describe(run(program, 90, seccomp.AUDIT_ARCH_AARCH64)) == "kill"
    assert describe(run(built(machine="aarch64", kernel__binary32="allow"), 1, seccomp.AUDIT_ARCH_ARM)) == "kill"
    assert describe(run(program, seccomp.X32_BIT | 90, seccomp.AUDIT_ARCH_X86_64, (0, 0o666))) == "kill"


# The bytes against the table ------------------------------------------------------------------------------

_CALLS = sorted({call for rule in RULES for call in rule.calls if filters.number(call, "x86_64") is not None})
_INTERESTING = sorted(
    {value for rule in RULES for test in rule.tests for value in (*test.values, test.mask)}
    | {0, 1, 2, 3, 16, 17, 0o100, 0o4000, 0o2000, 0o20000000, 0o777, 0xFFFFFFFF}
)
_registers = st.builds(
    lambda base, flip, high: (base ^ flip) | high << 32,
    st.one_of(st.sampled_from(_INTERESTING), st.integers(0, 0xFFFFFFFF)),
    st.one_of(st.just(0), st.integers(0, 31).map(lambda bit: 1 << bit)),
    st.one_of(st.just(0), st.just(1), st.just(0xFFFFFFFF)),
)
_KEYS = sorted({rule.key for rule in RULES if rule.key.startswith("kernel.")} | {"unix.datagram"})


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("landlock", [True, False])
def test_the_bytes_agree_with_the_table_on_every_row_and_its_neighbours(machine, landlock):
    """Each row's own values, each with one bit turned, alone and in company of garbage in the high words."""
    program, audit = built(landlock, machine), seccomp.MACHINES[machine].audit
    rules = filters.active(values(), landlock)
    asked = 0
    for rule in RULES:
        tried = [[0] * 6]
        for test in rule.tests:
            near = [value ^ flip for value in test.values for flip in (0, 1, 2, test.mask & -test.mask, 1 << 31)]
            tried += [
                [*args[: test.arg], value & 0xFFFFFFFF, *args[test.arg + 1 :]] for args in tried for value in near
            ]
        for call in rule.calls:
            nr = filters.number(call, machine)
            if nr is None:
                continue
            for args in tried:
                for high in (0, HIGH):
                    registers = [value | high for value in args]
                    row = filters.verdict(rules, call, registers)
                    expected = row.action if row else seccomp.RET_ALLOW
                    assert run(program, nr, audit, registers) == expected, (call, list(map(hex, registers)))
                    asked += 1
    assert asked > 3000


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_bytes_agree_with_the_table_whatever_is_called(data):
    program = built()
    rules = filters.active(values(), True)
    for call in data.draw(st.lists(st.sampled_from(_CALLS), min_size=5, max_size=5)):
        args = data.draw(st.tuples(*[_registers] * 6))
        row = filters.verdict(rules, call, args)
        expected = row.action if row else seccomp.RET_ALLOW
        assert run(program, filters.number(call, "x86_64"), seccomp.AUDIT_ARCH_X86_64, args) == expected


_switches = st.sampled_from(("off", "observe", "enforce"))


@settings(max_examples=12, deadline=None)
@given(
    opened=st.sets(st.sampled_from(_KEYS)),
    controls=st.fixed_dictionaries(dict.fromkeys(CONTROLS, _switches)),
    world=st.sampled_from(("off", "strip", "deny")),
    landlock=st.booleans(),
    machine=st.sampled_from(MACHINES),
    args=st.lists(st.tuples(*[_registers] * 6), min_size=4, max_size=4),
)
def test_the_bytes_agree_with_the_table_under_every_policy(opened, controls, world, landlock, machine, args):
    asked = values(modes__world_writable=world, **dict.fromkeys(opened, "allow"))
    asked |= {f"controls.{control.replace('-', '_')}": mode for control, mode in controls.items()}
    if machine == "i386":
        asked["kernel.binary32"] = "allow"
    program = filters.build(asked, landlock, "x86_64" if machine == "i386" else machine)
    rules = filters.active(asked, landlock)
    for call in _CALLS:
        nr = filters.number(call, machine)
        if nr is None:
            continue
        for registers in ((), *args):
            row = filters.verdict(rules, call, registers)
            expected = row.action if row else seccomp.RET_ALLOW
            assert run(program, nr, seccomp.MACHINES[machine].audit, registers) == expected, (call, registers)


# Building ---------------------------------------------------------------------------------------------------


def test_the_same_policy_gives_the_same_bytes_in_another_process():
    source = (
        "import sys; from guard.policy import filter as f; from guard.policy.keys import defaults\n"
        "sys.stdout.buffer.write(f.build(defaults(), True, 'x86_64'))"
    )
    once = subprocess.run([sys.executable, "-c", source], capture_output=True, check=True, env={"PYTHONHASHSEED": "7"})
    assert once.stdout == filters.build(defaults(), True, "x86_64")


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("landlock", [True, False])
def test_a_filter_is_small_enough_to_stay_quick(machine, landlock):
    """4,096 is the kernel's limit; all filters of a process together may have 32,768."""
    assert len(built(landlock, machine)) // 8 < (1200 if machine == "i386" else 600)


def test_a_machine_without_a_table_is_refused_by_name():
    with pytest.raises(PlanError, match="ppc64le"):
        filters.build(values(), True, "ppc64le")


@pytest.mark.parametrize(
    "spoil",
    [
        "import ctypes.util; ctypes.util.find_library = {'c': 'libc.so.6'}.get",
        "sys.modules['pyseccomp'] = None",
        "import ctypes.util; ctypes.util.find_library = {'c': 'libc.so.6', 'seccomp': 'libnothere.so'}.get",
    ],
    ids=["no library", "no binding", "library that does not load"],
)
def test_a_missing_library_is_named_with_its_packages(spoil):
    source = f"import sys\n{spoil}\n" + (
        "from guard.errors import PlanError; from guard.policy import filter as f\n"
        "from guard.policy.keys import defaults\n"
        "try: f.build(defaults(), True, 'x86_64')\n"
        "except PlanError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", source], capture_output=True, check=True, text=True)
    assert "library missing: libseccomp (Debian: libseccomp2, RHEL: libseccomp)" in said.stdout


def test_a_call_of_libseccomps_part_that_it_does_not_know_is_a_defect_and_said_so(monkeypatch):
    import pyseccomp

    resolve = pyseccomp.resolve_syscall
    monkeypatch.setattr(pyseccomp, "resolve_syscall", lambda arch, call: -1 if call == "bpf" else resolve(arch, call))
    with pytest.raises(PlanError, match="bpf"):
        filters.build(values(), True, "x86_64")


# The table --------------------------------------------------------------------------------------------------


def test_every_row_gives_a_reason_and_serves_a_control():
    for rule in RULES:
        assert rule.reason
        assert rule.calls
        assert set(rule.controls) <= set(CONTROLS)
        assert rule.key == "" or rule.key in defaults()
        assert rule.words


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("i386", "/usr/include/x86_64-linux-gnu/asm/unistd_32.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_the_numbers_are_those_of_the_kernels_headers(machine, header):
    try:
        with open(header, encoding="ascii") as file:
            text = file.read()
    except FileNotFoundError:
        pytest.skip(f"no {header} here")
    numbers = {name: int(nr) for name, nr in re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", text)}
    ours = {call: filters.number(call, machine) for rule in RULES for call in rule.calls}
    known = {call: nr for call, nr in ours.items() if call in numbers and nr is not None}
    assert len(known) > 90
    assert known == {call: numbers[call] for call in known}
    left_out = {call for call, nr in ours.items() if nr is None and call in numbers}
    assert all(call.endswith("64") for call in left_out) if machine == "aarch64" else not left_out


def test_every_name_in_the_table_is_a_call_of_some_machine():
    import pyseccomp

    for call in {call for rule in RULES for call in rule.calls}:
        native = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, call)
        assert call in seccomp.COMMON or native != -1, call


def test_no_condition_but_a_pointers_looks_at_the_high_word():
    for rule in RULES:
        for test in rule.tests:
            assert not test.mask >> 32 or (test.unless and test.values == (0,))


def test_the_ioctl_numbers_are_those_of_the_kernels_headers(tmp_path):
    names = {
        "asm/ioctls.h": "TIOCSTI TIOCLINUX TIOCSETD",
        "linux/fs.h": "FS_IOC_SETFLAGS FS_IOC32_SETFLAGS FS_IOC_FSSETXATTR FS_IOC_SETVERSION "
        "FS_IOC32_SETVERSION",
        "linux/fsverity.h": "FS_IOC_ENABLE_VERITY", "linux/fscrypt.h": "FS_IOC_SET_ENCRYPTION_POLICY",
        "linux/msdos_fs.h": "FAT_IOCTL_SET_ATTRIBUTES",
        "linux/btrfs.h": "BTRFS_IOC_SNAP_CREATE BTRFS_IOC_SNAP_CREATE_V2 BTRFS_IOC_SUBVOL_CREATE "
        "BTRFS_IOC_SUBVOL_CREATE_V2 BTRFS_IOC_SNAP_DESTROY BTRFS_IOC_SNAP_DESTROY_V2 "
        "BTRFS_IOC_SUBVOL_SETFLAGS BTRFS_IOC_SET_RECEIVED_SUBVOL",
    }  # fmt: skip
    source = "#include <stdio.h>\n#include <sys/ioctl.h>\n" + "".join(f"#include <{file}>\n" for file in names)
    wanted = " ".join(names.values()).split()
    source += "int main(void) {" + "".join(f'printf("{name} %u\\n", (unsigned) {name});' for name in wanted) + "}"
    (tmp_path / "numbers.c").write_text(source)
    try:
        subprocess.run(["cc", "-o", tmp_path / "numbers", tmp_path / "numbers.c"], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("no C compiler or no kernel headers here")
    said = subprocess.run([tmp_path / "numbers"], check=True, capture_output=True, text=True).stdout
    numbers = dict(re.findall(r"(\w+) (\d+)", said))
    assert set(numbers) == set(wanted)
    passed = [name for name, cmd in numbers.items() if answer("ioctl", (3, int(cmd))) != "EPERM"]
    assert passed == []


def test_errnos_are_spelled_as_the_man_pages_do():
    assert describe(seccomp.refuse(errno.EOPNOTSUPP)) == "EOPNOTSUPP"
    assert os.strerror(errno.EOPNOTSUPP)
