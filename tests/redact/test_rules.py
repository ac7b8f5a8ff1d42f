# ruff: noqa: E501 - tables of lines and long literals read better unbroken
"""Every row of the tables catches its samples and leaves what it must leave."""

import random

import pytest

from guard.redact import samples
from guard.redact.rules.commands import COMMANDS
from guard.redact.rules.formats import FORMATS
from guard.redact.rules.table import CONTEXTS

FORMAT_SAMPLES = [
    pytest.param(row, template, id=f"{row.kind}-{template[:24]}") for row in FORMATS for template in row.samples
]
PLACES = [(row, template) for row in (*CONTEXTS, *COMMANDS) for template in row.samples]
LEAVES = [text for row in (*FORMATS, *CONTEXTS, *COMMANDS) for text in row.leaves]


@pytest.mark.parametrize(("row", "template"), FORMAT_SAMPLES)
def test_a_key_is_gone_in_every_carrier(row, template, redact, carriers, remains):
    for seed in range(2):
        key = samples.fill(template, random.Random(f"{template}{seed}"))[0]
        secret = key.removeprefix("AccountKey=").removeprefix("https://")
        for name, carry in carriers.items():
            assert remains(redact(carry(key)), secret) is None, (name, row.kind)


@pytest.mark.parametrize(("row", "template"), FORMAT_SAMPLES)
def test_a_key_is_seen_in_every_encoding(row, template, scanner, encoded):
    if (
        row.grow is not None
        or any("[" in str(start) for start in row.starts)
        or row.kind in ("crypt-hash", "azure-storage-key", "twilio-key")
    ):
        pytest.skip("recognised by its middle, or by too short a start: an encoding hides it")
    key = samples.fill(template, random.Random(template))[0]
    for name, (carry, width) in encoded.items():
        if name == "base64" and len(row.starts[0]) < 4:
            continue
        spans = scanner.find(carry(key))
        assert sum(span.end - span.start for span in spans) >= 0.9 * width * len(key), name


@pytest.mark.parametrize("template", [template for _row, template in PLACES])
def test_a_secret_in_a_context_is_gone(template, redact, remains):
    for seed in range(3):
        text, values = samples.fill(template, random.Random(f"{template}{seed}"))
        for line in (
            text,
            "+" + text,
            f"$ cd /tmp && {text}" if template[0].isalpha() and ":" not in template.split()[0] else text,
        ):
            out = redact(line.encode() + b"\n")
            assert all(remains(out, value, 4) is None for value in values), out


@pytest.mark.parametrize("text", LEAVES)
def test_what_is_no_secret_stays(text, redact):
    assert redact(text.encode() + b"\n") == text.encode() + b"\n"


@pytest.mark.parametrize(
    "template", [t for row in FORMATS for t in row.samples if row.kind not in ("stripe-key", "square-secret")]
)
def test_a_whole_key_of_a_known_format_is_an_incident(template, scanner):
    key = samples.fill(template, random.Random(template))[0]
    assert any(span.incident for span in scanner.find(f"see {key} here".encode()))


def test_a_wrong_checksum_is_redacted_and_no_incident(scanner, key):
    broken = key[:-1] + ("a" if key[-1] != "a" else "b")
    (span,) = scanner.find(f"see {broken} here".encode())
    assert (span.kind, span.incident) == ("github-token", False)


@pytest.mark.parametrize(
    "text",
    [
        "ghp_" + "x" * 36, "hf_" + "x" * 34, "AKIA" + "IOSFODNN7" + "EXAMPLE", "sk-" + "0123456789" * 4, "$TOKEN", "export A_TOKEN=${{ secrets.A }}",
        "A_TOKEN=$(pass show a)", "api_key = 'YOUR_API_KEY'", "password: changeme", "token = None", "key = os.environ['KEY']",
        "password = 'password'", "A_SECRET=<your secret>", "Authorization: Bearer <token>", "https://user:password@host/x",
    ],
)  # fmt: skip
def test_placeholders_are_no_incident(text, scanner):
    assert not any(span.incident for span in scanner.find(text.encode()))


@pytest.mark.parametrize(
    "label",
    [
        "RSA PRIVATE KEY",
        "EC PRIVATE KEY",
        "PRIVATE KEY",
        "ENCRYPTED PRIVATE KEY",
        "OPENSSH PRIVATE KEY",
        "PGP PRIVATE KEY BLOCK",
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\\n", "\\\\n", " ", ""])
def test_a_private_key_is_gone_in_every_form(label, newline, redact, remains, rng):
    block = samples.pem(rng, label, newline=newline)
    body = max(block.replace("\\", "\n").split(), key=len) if newline else block[40:-40]
    for text in (block, "x: '" + block + "'", "\n".join("+" + line for line in block.split("\n"))):
        assert remains(redact(text.encode() + b"\nafter\n"), body) is None
        assert redact(text.encode() + b"\nafter\n").endswith(b"after\n")


def test_a_cut_private_key_is_gone_and_the_text_behind_it_stays(redact, remains, rng):
    lines = samples.pem(rng).split("\n")[:8]
    out = redact("\n".join(["cat key", *lines, "this line was never part of it", ""]).encode())
    assert all(remains(out, line) is None for line in lines[1:])
    assert b"this line was never part of it" in out


def test_the_lines_of_a_private_key_keep_their_number(redact, rng):
    block = samples.pem(rng)
    assert redact(block.encode()).count(b"\n") == block.count("\n")


def test_a_putty_key_loses_its_private_lines_only(redact, remains, rng):
    text = samples.putty(rng)
    out = redact(text.encode())
    assert remains(out, text.split("Private-Lines: 12\n")[1].split("\n")[3]) is None
    assert b"Comment: bob@host" in out
