"""A stream: chunks, second passes, JSON, lines, bytes."""

import base64
import gzip
import json
import random
import textwrap

import pytest

from guard.redact import packing, samples
from guard.redact.rules.commands import COMMANDS
from guard.redact.rules.formats import FORMATS
from guard.redact.rules.table import CONTEXTS
from guard.redact.stream import LINE, Redactor, redact_bytes

SEEDS = range(40)


def mixture(seed, carriers):
    """Return a random text of many carriers, blocks and bytes."""
    rng = random.Random(seed)
    parts = []
    for _ in range(rng.randrange(1, 8)):
        draw = rng.random()
        if draw < 0.5:
            template = rng.choice([t for row in FORMATS for t in row.samples])
            parts.append(rng.choice(list(carriers.values()))(samples.fill(template, rng)[0]))
        elif draw < 0.85:
            text = samples.fill(rng.choice([t for row in (*CONTEXTS, *COMMANDS) for t in row.samples]), rng)[0]
            parts.append(
                rng.choice(
                    [
                        text + "\n",
                        json.dumps({"a": text, "n": [1, 2.5, {"k": text + " x"}]}) + "\n",
                        f"{text} \\\n --more {text}\n",
                    ]
                ).encode()
            )
        elif draw < 0.93:
            parts.append(
                (
                    samples.pem(rng, "OPENSSH PRIVATE KEY", rng.randrange(50, 900))
                    if draw < 0.9
                    else samples.putty(rng)
                ).encode()
            )
        else:
            parts.append(rng.randbytes(rng.randrange(1, 60)))
    text = b"".join(parts)
    return text.rstrip(b"\n") if rng.random() < 0.2 else text


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "carry",
    [
        lambda text: "\n".join(textwrap.wrap(base64.b64encode(f"the first line\n{text}\n".encode()).decode(), 64)),
        lambda text: base64.encodebytes(f"a line of words before it\n{text}\nand after\n".encode()).decode(),
        lambda text: f"tool \\\n  --token {text}",
        lambda text: f"tool --name a-word-that-fills-a-line-of-a-terminal --token \\\n  {text}",
        lambda text: f"token: >-\n  {text}",
    ],
    ids=["base64", "mime", "continued", "continued behind an option", "yaml"],
)
def test_a_secret_over_lines_that_come_one_by_one_is_gone(carry, newline, scanner, key):
    text = (carry(key) + "\nthe next line\n").replace("\n", newline).encode()
    whole = redact_bytes(text, scanner)
    assert key.encode() not in whole
    assert b"[REDACTED" in whole
    redactor = Redactor(scanner)
    out = b"".join(redactor.feed(line) for line in text.splitlines(keepends=True))
    assert out == whole, "the last line ends all of it"


@pytest.mark.parametrize("seed", SEEDS)
def test_chunks_change_nothing(seed, scanner, carriers):
    text = mixture(seed, carriers)
    whole = redact_bytes(text, scanner)
    for size in (1, 7, random.Random(seed).randrange(2, 400)):
        redactor = Redactor(scanner)
        assert (
            b"".join([*(redactor.feed(text[i : i + size]) for i in range(0, len(text), size)), redactor.finish()])
            == whole
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_second_pass_changes_nothing(seed, redact, carriers):
    once = redact(mixture(seed, carriers))
    assert redact(once) == once


@pytest.mark.parametrize("seed", SEEDS)
def test_json_stays_json_with_its_keys_and_numbers(seed, redact, carriers):
    def shape(value):
        if isinstance(value, dict):
            return {k: shape(v) for k, v in value.items()}
        if isinstance(value, list):
            return [shape(v) for v in value]
        return "" if isinstance(value, str) else value

    text = mixture(seed, carriers)
    before, after = text.split(b"\n"), redact(text).split(b"\n")
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        try:
            parsed = json.loads(old)
        except ValueError:
            continue
        assert shape(json.loads(new)) == shape(parsed)


def test_every_split_of_a_key_over_two_chunks_is_caught(scanner, key, remains):
    text = f"a {key} b\n".encode()
    for cut in range(len(text)):
        redactor = Redactor(scanner)
        assert remains(redactor.feed(text[:cut]) + redactor.feed(text[cut:]) + redactor.finish(), key) is None


def test_a_word_that_seems_to_go_on_into_a_key_block_is_read_with_it(scanner):
    rng = random.Random(1)
    text = f"{samples.fill('x: ya29.c.<u64:120>', rng)[0]}\r\n{samples.putty(rng)}".encode()
    redactor = Redactor(scanner)
    parts = [redactor.feed(text[at : at + 7]) for at in range(0, len(text), 7)]
    assert b"".join([*parts, redactor.finish()]) == redact_bytes(text, scanner)


@pytest.mark.parametrize("users", [1, 3, 100])
@pytest.mark.parametrize("lead", ["", "+", "\t"])
def test_a_list_of_users_is_read_whole_however_its_lines_arrive(users, lead, scanner):
    passwords = [f"{samples.fill('<b62:12>', random.Random(at))[0]}#9x" for at in range(users)]
    lines = [f"{lead}user{at}:{password}\n" for at, password in enumerate(passwords)]
    text = "".join(["sudo chpasswd <<-'EOF'\n", *lines, f"{lead}EOF\n", "ls there:it-goes-on\n"]).encode()
    whole = redact_bytes(text, scanner)
    assert not [password for password in passwords if password.encode() in whole]
    assert whole.endswith(b"EOF\nls there:it-goes-on\n")
    redactor = Redactor(scanner)
    assert b"".join([*map(redactor.feed, text.splitlines(True)), redactor.finish()]) == whole


def test_a_complete_line_comes_out_before_the_input_ends(scanner, key):
    redactor = Redactor(scanner)
    assert redactor.feed(f"one {key}\ntwo".encode()).endswith(b"]\n")


def test_the_last_line_without_an_end_is_redacted(redact, key, remains):
    out = redact(f"x\nlast {key}".encode())
    assert remains(out, key) is None
    assert not out.endswith(b"\n")


@pytest.mark.parametrize(
    "text",
    [
        b"a\0b\0",
        b"\xff\xfe\x80 x\n",
        "caf\u00e9\n".encode("latin-1"),
        b"a\r\nb\rc\n",
        b"",
        b"\n\n",
        b"no end",
        bytes(range(256)) * 3,
    ],
)
def test_bytes_without_a_secret_pass_unchanged(redact, text):
    assert redact(text) == text


def test_nul_bytes_stay_between_their_neighbours(redact, key):
    assert redact(f"A=1\0T={key}\0B=2\0".encode()).split(b"\0")[::2] == [b"A=1", b"B=2"]


@pytest.mark.parametrize("gap", range(-20, 21, 4))
def test_a_line_without_end_is_cut_between_tokens(gap, scanner, key, remains):
    text = (b"word " * (LINE // 5 + 10))[: LINE + gap] + b" " + key.encode() + b" " + b"more " * 2000
    redactor = Redactor(scanner)
    out = b"".join([*(redactor.feed(text[i : i + 65536]) for i in range(0, len(text), 65536)), redactor.finish()])
    assert remains(out, key) is None
    assert len(out) < len(text)


def test_numbers_stay_numbers(redact):
    line = b'{"password": 12345678, "token": null, "secret": true}\n'
    assert redact(line) == line


def test_lines_without_a_secret_keep_every_byte(redact):
    line = '{ "a" :"\\u00e9\\/x" ,"b": [1.0,2e5], "\u2028": "caf\u00e9"}\n'.encode()
    assert redact(line) == line


def test_a_packed_stream_stays_packed(scanner, key):
    out = []
    packing.pump(iter([gzip.compress(f"a {key} b\n".encode() * 3)]), Redactor(scanner), out.append)
    assert gzip.decompress(b"".join(out)) == b"a [REDACTED:github-token] b\n" * 3


def test_zstd_frames_stay_zstd(scanner, key):
    zstandard = pytest.importorskip("zstandard")
    out = []
    packing.pump(iter([zstandard.compress(f"a {key} b\n".encode())]), Redactor(scanner), out.append)
    assert zstandard.ZstdDecompressor().stream_reader(b"".join(out)).read() == b"a [REDACTED:github-token] b\n"


def test_damaged_gzip_gives_nothing_out_raw(scanner, key):
    from guard.errors import GuardError

    out = []
    with pytest.raises(GuardError, match="gzip"):
        packing.pump(iter([gzip.compress(key.encode() * 99)[:-9]]), Redactor(scanner), out.append)
    assert key.encode() not in b"".join(out)
