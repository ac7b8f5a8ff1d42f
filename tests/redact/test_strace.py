# ruff: noqa: E501 - tables of lines and long literals read better unbroken
"""strace: cut strings, one key over several calls, argument lists; the line keeps its shape."""

import random

import pytest

from guard.redact import samples
from guard.redact.scan import Scanner
from guard.redact.stream import Redactor, redact_bytes

CUTS = [1, 2, 3, 4, 5, 8, 12, 20, 30, 38]


def call(text, pid=9, name="write", fd=3):
    return f'{pid} 12:00:00.1 {name}({fd}, "{text}", {len(text)}) = {len(text)}\n'


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    "template",
    [
        "ghp_<crc62>",
        "sk-ant-api03-<u64:93>AA",
        "glpat-<u64:20>",
        "hf_<let:34>",
        "npm_<crc62>",
        "xoxb-<dig:12>-<dig:12>-<b62:24>",
    ],
)
def test_a_key_over_two_calls_is_gone(template, cut, redact, remains):
    key = samples.fill(template, random.Random(f"{template}{cut}"))[0]
    cut = min(cut, len(key) - 2)
    out = redact((call("x " + key[:cut]) + call("other", pid=8) + call(key[cut:] + "\\nrest")).encode())
    assert remains(out, key) is None
    assert b"other" in out
    assert b"\\nrest" in out


@pytest.mark.parametrize("cut", [6, 20])
def test_a_key_over_three_calls_and_a_resumed_read_is_gone(cut, redact, remains, key):
    lines = [
        f'[pid 9] read(3, "x {key[:cut]}", 9) = 9', "[pid 9] read(3,  <unfinished ...>", '[pid 8] read(3, "other words", 9) = 9',
        f'[pid 9] <... read resumed>"{key[cut:cut + 8]}", 9) = 9', f'[pid 9] read(3, "{key[cut + 8:]}\\nfoo", 9) = 9', "",
    ]  # fmt: skip
    out = redact("\n".join(lines).encode())
    assert remains(out, key) is None
    assert b'"other words"' in out
    assert b"\\nfoo" in out


def test_a_key_over_two_buffers_keeps_the_call(redact, key):
    out = redact(
        f'writev(3, [{{iov_base="a {key[:12]}", iov_len=14}}, {{iov_base="{key[12:]}\\n", iov_len=29}}], 2) = 43\n'.encode()
    )
    assert (
        out
        == b'writev(3, [{iov_base="a [REDACTED:github-token]", iov_len=14}, {iov_base="[REDACTED:github-token]\\n", iov_len=29}], 2) = 43\n'
    )


def test_calls_in_single_bytes_of_input_give_the_same(scanner, key):
    text = (call("x " + key[:9]) + call(key[9:] + "\\n")).encode()
    redactor = Redactor(scanner)
    assert b"".join([*(redactor.feed(text[i : i + 1]) for i in range(len(text))), redactor.finish()]) == redact_bytes(
        text, scanner
    )


@pytest.mark.parametrize("size", [8, 12, 25])
def test_a_string_that_strace_cut_is_gone_as_partial(size, scanner, key):
    text = f'write(3, "GET {key[: 4 + size]}"..., 500) = 500\n'.encode()
    (span,) = scanner.find(text)
    assert text[span.start : span.end] == key[: 4 + size].encode()
    assert (span.partial, span.incident) == (True, False)


def test_a_private_key_over_calls_is_gone(redact, remains, rng):
    text = samples.pem(rng).replace("\n", "\\n")
    out = redact("".join([call(text[:400]), call(text[400:900]), call(text[900:]), call("hello there")]).encode())
    assert remains(out, text[300:1100].replace("\\n", "")[:400][100:160]) is None
    assert out.count(b'", ') == 4
    assert b"hello there" in out


def test_option_and_value_as_two_arguments_are_seen(redact, word):
    line = f'execve("/usr/bin/mysql", ["mysql", "--password", "{word}", "db"], 0x7ffd /* 20 vars */) = 0\n'
    assert redact(line.encode()) == line.replace(word, "[REDACTED:password]").encode()


def test_an_octal_escape_before_a_key_is_not_its_letter(redact, key):
    assert redact(f'write(1, "\\0{key}\\0", 9) = 9\n'.encode()) == b'write(1, "\\0[REDACTED:github-token]\\0", 9) = 9\n'


def test_an_ordinary_trace_passes_unchanged(redact):
    text = (
        b'9 execve("/usr/bin/ls", ["ls", "-la"], 0x7ffd9 /* 35 vars */) = 0 <0.000230>\n'
        b'9 openat(AT_FDCWD, "/etc/passwd", O_RDONLY|O_CLOEXEC) = 3\n9 readlinkat(3, "", "x", 1) = -1 EINVAL (Invalid argument)\n'
        b'9 newfstatat(3, "", {st_mode=S_IFREG|0644, st_size=1437, ...}, AT_EMPTY_PATH) = 0\n9 read(3, "root:x:0:0:root:/root:/bin/bash\\n"..., 4096) = 1437\n'
        b'9 write(1, "task-force\\n", 11) = 11\n9 write(1, "the token is", 12) = 12\n9 write(1, " here\\n", 6) = 6\n'
    )
    assert redact(text) == text


def test_notes_do_not_outlive_their_reach(key):
    redactor = Redactor(Scanner())
    redactor.feed(call("x " + key[:12]).encode())
    for n in range(3000):
        redactor.feed(call(f"line {n} of another file", pid=8).encode())
    assert redactor.feed(call("plain words").encode()) == call("plain words").encode()
