"""The interpreter answers as the kernel does, and the tables say what the kernel's headers say."""

import ctypes
import os
import random
import re
import struct

import pytest

from guard.kernel import assembler as bpf
from guard.kernel import seccomp

X86_64 = seccomp.MACHINES["x86_64"].audit
GETPID = {"x86_64": 39, "aarch64": 172}[os.uname().machine]


def program(*lines):
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


ALLOW = (0x06, 0, 0, seccomp.RET_ALLOW)


@pytest.mark.parametrize(
    ("jump", "k", "value", "taken"),
    [
        (bpf.EQUAL, 5, 5, True), (bpf.EQUAL, 5, 6, False),
        (bpf.GREATER, 5, 6, True), (bpf.GREATER, 5, 5, False), (bpf.GREATER, 5, 0xFFFFFFFF, True),
        (bpf.NOT_LESS, 5, 5, True), (bpf.NOT_LESS, 5, 4, False),
        (bpf.ANY_BIT, 6, 4, True), (bpf.ANY_BIT, 6, 9, False),
    ],
)  # fmt: skip
def test_jumps_compare_unsigned_words(jump, k, value, taken):
    code = program((0x20, 0, 0, 16), (jump, 1, 0, k), ALLOW, (0x06, 0, 0, seccomp.refuse(1)))
    assert (seccomp.run(code, 0, X86_64, [value]) == seccomp.refuse(1)) is taken


def test_a_load_sees_number_architecture_and_both_halves_of_an_argument():
    for offset, value in ((0, 7), (4, X86_64), (16 + 8, 0x44332211), (16 + 12, 0x88776655)):
        code = program((0x20, 0, 0, offset), (0x16, 0, 0, 0))
        assert seccomp.run(code, 7, X86_64, [0, 0x8877665544332211]) == value


def test_the_interpreter_agrees_with_the_kernel_on_random_programs():
    random.seed(424)
    for _ in range(12):
        code = random_program()
        arguments = [random.choice((0, 1, 2, 3, 1 << 32, (1 << 64) - 1)) for _ in range(3)]
        expected = seccomp.run(code, GETPID, seccomp.MACHINES[os.uname().machine].audit, arguments)
        assert answer_of_the_kernel(code, arguments) == expected & 0xFFFF


def random_program():
    """Comparisons of arguments that all end in one of several errnos for getpid, and let the rest pass."""
    code = bpf.Assembler()
    code.load(seccomp.DATA_NR)
    code.jump(bpf.EQUAL, GETPID, yes="ours")
    code.answer(seccomp.RET_ALLOW)
    code.mark("ours")
    for _ in range(20):
        code.load(seccomp.DATA_ARGS + 4 * random.randrange(6))
        code.mask(random.choice((1, 2, 3, 0xFFFFFFFF)))
        code.jump(random.choice((bpf.EQUAL, bpf.GREATER, bpf.NOT_LESS, bpf.ANY_BIT)), random.randrange(4), no="end")
        if random.random() < 0.3:
            code.answer(seccomp.refuse(random.randrange(1, 100)))
    code.mark("end")
    code.answer(seccomp.refuse(random.randrange(100, 130)))
    return code.assemble()


def answer_of_the_kernel(code, arguments):
    """Load the filter in a child, call getpid with the arguments, return the errno it got."""
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        held = ctypes.create_string_buffer(code, len(code))
        fprog = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held))
        if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, fprog, 0, 0):
            os._exit(255)
        libc.syscall(GETPID, *(ctypes.c_ulong(value) for value in arguments))
        os._exit(ctypes.get_errno())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    "code",
    [
        b"",
        b"1234567",
        program((0x20, 0, 0, 4)),  # runs past the end
        program((0x20, 0, 0, 3), ALLOW),  # unaligned
        program((0x20, 0, 0, 64), ALLOW),  # past the data
        program((0xFF, 0, 0, 0), ALLOW),
        program(*[ALLOW] * 4097),
    ],
)
def test_what_the_kernel_would_not_take_is_refused(code):
    with pytest.raises(ValueError):  # noqa: PT011 - each case has its own sentence
        seccomp.run(code, 0, X86_64)


def test_the_assembler_refuses_what_cannot_be_encoded():
    far = bpf.Assembler()
    far.jump(bpf.EQUAL, 1, yes="end")
    for _ in range(256):
        far.load(0)
    far.mark("end")
    with pytest.raises(ValueError, match="far"):
        far.assemble()
    back = bpf.Assembler()
    back.mark("start")
    back.load(0)
    back.go("start")
    with pytest.raises(ValueError, match="ahead"):
        back.assemble()


def test_the_numbers_are_those_of_the_kernels_header():
    try:
        with open("/usr/include/asm-generic/unistd.h", encoding="ascii") as file:
            header = dict(re.findall(r"#define __NR_(\w+) (4[2-9]\d)\b", file.read()))
    except FileNotFoundError:
        pytest.skip("no kernel headers here")
    header.pop("syscalls", None)
    shared = {name: int(nr) for name, nr in header.items() if int(nr) >= seccomp.FIRST_COMMON}
    assert len(shared) > 20
    assert {name: seccomp.COMMON.get(name) for name in shared} == shared


def test_the_numbers_are_those_of_libseccomp_as_far_as_it_knows_them():
    import pyseccomp

    known = {
        name: nr for name in seccomp.COMMON if (nr := pyseccomp.resolve_syscall(pyseccomp.Arch.AARCH64, name)) >= 0
    }
    assert len(known) > 20
    assert known == {name: seccomp.COMMON[name] for name in known}


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (seccomp.refuse(1), "EPERM"), (seccomp.refuse(95), "EOPNOTSUPP"), (seccomp.refuse(0), "nothing"),
        (seccomp.RET_ALLOW, "allow"), (seccomp.RET_KILL_PROCESS, "kill"), (seccomp.refuse(4000), "4000"),
    ],
)  # fmt: skip
def test_answers_have_names(action, text):
    assert seccomp.describe(action) == text
