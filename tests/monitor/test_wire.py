"""Records of the rings become facts, and nothing that stood in the ring before comes with them."""

import struct

import pytest

from guard.monitor import wire
from guard.monitor.facts import Bind, CodeBy, Exec, Fork, Mode, ModeBy, Program, Verdict

STALE = b"password=of-an-older-event"


def head(kind: str, *, pid=42, root=7, verdict=0, harness=0, start=5):
    return struct.pack(
        "=QQQIIIIIIII16s", 1000, start, 3, wire.KINDS.index(kind), pid, 41, 1000, root, verdict, harness, 0, b"sh\0" + STALE
    )  # fmt: skip


def exec_record(argv: bytes, *, unseen=0, name=b"bash", path=b"/bin/bash"):
    fixed = struct.pack(
        "=QIIIIIIII32s256s", unseen, Program.SHELL.value, 2, 1, 0, 42, 0, len(argv), 0,
        name + b"\0" + STALE[: 31 - len(name)], path + b"\0" + STALE,
    )  # fmt: skip
    return head("Exec") + fixed + argv + STALE


@pytest.fixture
def decoder():
    return wire.Decoder(lambda pid: 99)


def test_a_word_ends_where_the_kernel_said_and_older_bytes_stay_out(decoder):
    fact = decoder.fact(exec_record(b"bash\0-c\0echo hi\0"))
    assert isinstance(fact, Exec)
    assert (fact.argv, fact.path, fact.name, fact.who.comm) == (
        (b"bash", b"-c", b"echo hi"),
        b"/bin/bash",
        b"bash",
        b"sh",
    )
    assert fact.program is Program.SHELL
    assert fact.code_by is CodeBy.ARGUMENT
    assert STALE not in repr(fact).encode()


def test_empty_words_are_words(decoder):
    assert decoder.fact(exec_record(b"a\0\0b\0\0")).argv == (b"a", b"", b"b", b"")


def test_what_was_not_seen_of_argv_is_counted_and_the_cut_word_kept(decoder):
    fact = decoder.fact(exec_record(b"a\0bc", unseen=17))
    assert (fact.argv, fact.unseen) == ((b"a", b"bc"), 17)


def test_a_start_that_the_record_lacks_is_looked_up(decoder):
    record = head("Fork", start=0) + struct.pack("=QII", 8, 43, 0)
    fact = decoder.fact(record)
    assert isinstance(fact, Fork)
    assert fact.who.start == 99


@pytest.mark.parametrize(
    ("given", "walk", "cut", "path"),
    [
        (b"/etc/x", b"", False, b"/etc/x"),
        (b"x", b"work\0home\0", False, b"/home/work/x"),
        (b"/etc/x", b"jail\0srv\0", False, b"/srv/jail/etc/x"),
        (b"", b"x\0work\0home\0", False, b"/home/work/x"),
        (b"x", b"", False, b"/x"),
        (b"", b"x\0work\0", True, b".../work/x"),
    ],
)
def test_a_path_is_put_together_from_the_inside_out(given, walk, cut, path):
    assert wire.path(given, walk, cut) == path


def test_a_mode_carries_its_type_and_how_it_came(decoder):
    body = struct.pack("=IIIIIIII256s512s", 0o777, 0o040000, 0xFFFFFFFF, 4, 0, 0, 6, 0, b"d", b"work\0\0")
    fact = decoder.fact(head("Mode", verdict=1) + body)
    assert isinstance(fact, Mode)
    assert (fact.mode, fact.before, fact.by, fact.verdict) == (0o040777, -1, ModeBy.MKDIR, Verdict.DENIED)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (bytes(10) + b"\xff\xff\x7f\0\0\x01", "127.0.0.1"),
        (bytes(16), "::"),
        (bytes(10) + b"\xff\xff" + bytes(4), "0.0.0.0"),
        (bytes(15) + b"\x01", "::1"),
    ],
)
def test_a_mapped_address_is_the_address_that_it_maps(decoder, raw, text):
    fact = decoder.fact(head("Bind") + struct.pack("=IIIIII16s", 10, 1, 6, 80, 0, 0, raw))
    assert isinstance(fact, Bind)
    assert fact.address == text


@pytest.mark.parametrize("record", [b"", b"x" * 20, head("Exec"), head("Mode") + b"short", struct.pack("=QQQI", 1, 1, 1, 77) + bytes(60)])  # fmt: skip
def test_a_record_that_is_none_is_an_error_and_no_crash(decoder, record):
    with pytest.raises((ValueError, struct.error, IndexError, KeyError)):
        decoder.fact(record)
