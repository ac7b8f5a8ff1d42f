"""Dumps of bytes in columns: a secret is gone from the digits and from what is readable beside them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from guard.redact import samples
from guard.redact.stream import Redactor, redact_bytes


def _rows(data: bytes) -> Iterator[tuple[int, bytes, str]]:
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        yield at, row, "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)


def xxd(data: bytes) -> str:
    pairs = ((at, " ".join(row[i : i + 2].hex() for i in range(0, len(row), 2)), shown) for at, row, shown in _rows(data))
    return "".join(f"{at:08x}: {digits:39}  {shown}\n" for at, digits, shown in pairs)


def hexdump(data: bytes) -> str:
    halves = ((at, row[:8].hex(" "), row[8:].hex(" "), shown) for at, row, shown in _rows(data))
    return "".join(f"{at:08x}  {low:23}  {high:23}  |{shown}|\n" for at, low, high, shown in halves)


def od_hex(data: bytes) -> str:
    return "".join(f"{at:07o} {row.hex(' ')}\n" for at, row, _shown in _rows(data))


def od_hex_shown(data: bytes) -> str:
    return "".join(f"{at:07o} {row.hex(' '):47}  >{shown}<\n" for at, row, shown in _rows(data))


def od_characters(data: bytes) -> str:
    names = {10: "\\n", 0: "\\0", 9: "\\t"}
    cells = ((at, [names.get(byte, chr(byte)) for byte in row]) for at, row, _shown in _rows(data))
    return "".join(f"{at:07o}{''.join(f'{cell:>4}' for cell in row)}\n" for at, row in cells)


def words(data: bytes) -> str:
    data += b"\0" * (len(data) % 2)
    pairs = ((at, [row[i : i + 2][::-1].hex() for i in range(0, len(row), 2)]) for at, row, _shown in _rows(data))
    return "".join(f"{at:07x} {' '.join(row)}\n" for at, row in pairs)


DUMPS: dict[str, Callable[[bytes], str]] = {
    "xxd": xxd, "hexdump -C": hexdump, "od -t x1": od_hex, "od -t x1z": od_hex_shown, "od -c": od_characters, "hexdump": words,
}  # fmt: skip
TEXTS = ("name = x\ntoken = ghp_<crc62>\nmore = y\n", '{"user": "bob", "password": "<apw>x1"}\n', "see sk-ant-api03-<u64:93>AA.\n")


def shown(out: str, secret: str, size: int = 6) -> bool:
    """Say whether `size` bytes of a secret in a row still stand in any column of a dump."""
    for at in range(len(secret) - size + 1):
        piece = secret[at : at + size].encode()
        pairs = [piece[i : i + 2] for i in range(0, size, 2)]
        forms = (
            piece.decode(), piece.hex(), piece.hex(" "), "   ".join(map(chr, piece)), " ".join(pair.hex() for pair in pairs),
            " ".join(pair[::-1].hex() for pair in pairs),
        )  # fmt: skip
        if any(form in out for form in forms):
            return True
    return False


@pytest.mark.parametrize("dump", DUMPS)
@pytest.mark.parametrize("template", TEXTS)
def test_a_secret_is_gone_from_every_column(dump: str, template: str, redact) -> None:
    rng = random.Random(dump + template)
    for lead in range(17):
        text, secrets = samples.fill("f" * lead + "\n" + template + "the rest of the file\n" * 3, rng)
        out = redact(DUMPS[dump](text.encode()).encode()).decode()
        assert "REDACTED" in out
        assert not any(shown(out, secret) for secret in secrets), out
        assert redact(out.encode()) == out.encode()


@pytest.mark.parametrize("dump", DUMPS)
def test_a_key_over_a_page_s_end_is_gone(dump: str, scanner) -> None:
    rng = random.Random(dump)
    for before in (3, 40, 90):
        text, (secret,) = samples.fill("see sk-ant-api03-<u64:93>AA here\n", rng)
        data = ("a line of the file\n" * 500)[: 8192 - before - 4] + text + "the rest of the file\n" * 300
        dumped = DUMPS[dump](data.encode()).encode()
        whole = redact_bytes(dumped, scanner)
        assert b"REDACTED" in whole
        assert not shown(whole.decode(), secret)
        redactor = Redactor(scanner)
        parts = [redactor.feed(line) for line in dumped.splitlines(keepends=True)]
        assert b"".join(parts) + redactor.finish() == whole


@pytest.mark.parametrize("dump", DUMPS)
def test_a_dump_without_a_secret_stays(dump: str, redact) -> None:
    data = random.Random(dump).randbytes(3000) + b"plain text of a file\n" * 200
    text = DUMPS[dump](data if dump != "od -c" else data[3000:]).encode()
    assert redact(text) == text


@pytest.mark.parametrize("dump", DUMPS)
def test_where_a_dump_is_cut_changes_nothing(dump: str, scanner) -> None:
    rng = random.Random(dump)
    data = "".join(samples.fill(rng.choice(TEXTS), rng)[0] + "x" * rng.randrange(99) for _ in range(90)).encode()
    text = b"$ dump\n" + DUMPS[dump](data).encode() + b"$ exit\n"
    whole = redact_bytes(text, scanner)
    for size in (997, 70001):
        redactor = Redactor(scanner)
        parts = [redactor.feed(text[at : at + size]) for at in range(0, len(text), size)]
        assert b"".join(parts) + redactor.finish() == whole
