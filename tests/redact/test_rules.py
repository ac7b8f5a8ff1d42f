# ruff: noqa: E501 - tables of lines and long literals read better unbroken
"""Every row of the tables catches its samples and leaves what it must leave."""

import json
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
    key = samples.fill(template, random.Random(template))[0]
    secret = key[len(row.before) :] if row.before else key
    for name, (carry, width) in encoded.items():
        spans = scanner.find(carry(key))
        assert sum(span.end - span.start for span in spans) >= 0.9 * width * len(secret), name


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


@pytest.mark.parametrize("spelt", ["8yOUR1", "2TEST3", "9example0", "4foo5"])
@pytest.mark.parametrize("start", ["ghp_", "npm_"])
def test_a_right_checksum_is_a_token_whatever_chance_has_spelt_in_it(start, spelt, redact, monkeypatch):
    """One in 30,000 tokens has such a word; without the sum it would be an example of a documentation."""
    drawn = iter(("1Z4fFq9fcErlS2faGEwbowvS" + spelt)[-30:].rjust(30, "k"))
    monkeypatch.setattr(samples, "_draw", lambda *_: "".join(drawn))
    key = samples.fill(f"{start}<crc62>", random.Random(1))[0]
    for text in (f"see {key} here", f"rec {key}", f'{{"message": "secret {key}"}}'):
        assert key not in redact(text.encode() + b"\n").decode(), text


@pytest.mark.parametrize(
    "text",
    [
        "ghp_" + "x" * 36, "hf_" + "x" * 34, "AKIA" + "IOSFODNN7" + "EXAMPLE", "sk-" + "0123456789" * 4, "$TOKEN", "export A_TOKEN=${{ secrets.A }}",
        "A_TOKEN=$(pass show a)", "api_key = 'YOUR_API_KEY'", "password: changeme", "token = None", "key = os.environ['KEY']",
        "password = 'password'", "A_SECRET=<your secret>", "password=" + "Passw0rd" + "!", "K_TOKEN=sk-" + "1234567890abcdef" * 2,
        "PrivateKey=" + "EEGlnEPYJV//kbvvIqxKk" + "QwOiS+UENyPncC4bF46ong=", "access_token: " + "2YotnFZFEjr1z" + "CsicMWpAA", "Authorization: Bearer <token>", "https://user:password@host/x",
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


CARRIERS_OF_A_COMMAND = {
    "json": lambda line: json.dumps({"command": f"cd x\n{line}\nok"}).encode() + b"\n",
    "json twice": lambda line: json.dumps({"m": json.dumps({"text": f"run:\n{line}"})}).encode() + b"\n",
    "html-safe json": lambda line: json.dumps({"t": line}).replace("=", "\\u003d").replace("-", "\\u002d").encode(),
    "strace": lambda line: b'9 write(1, "' + json.dumps(line)[1:-1].encode() + b'\\n", 90) = 90\n',
    "colour": lambda line: f"\x1b[32m$\x1b[0m {line}\x1b[0m\r\n".encode(),
    "audit": lambda line: f"type=USER_CMD msg=audit(1700000000.1:4): cmd={line.encode().hex().upper()} t=1\n".encode(),
    "zsh": lambda line: f": 1700000000:0;{line}\n".encode(),
    "diff": lambda line: f"+{line}\n".encode(),
}


@pytest.mark.parametrize("name", CARRIERS_OF_A_COMMAND)
@pytest.mark.parametrize(
    "template",
    [
        "export ACME_API_KEY=<b62:40>", "ACME_TOKEN='<hex:40>' make", "tool --acme-pat <b62:40>", "conn = connect(password='<pw>')", "echo '<pw>' | sudo -S ls",
        "sudo -S ls <<< '<pw>'", "mysql -u root -p'<pw>' db", "curl -H 'X-Api-Key: <b62:32>' h", "gh secret set ACME_TOKEN --body \"<b62:40>\"", "curl -u 'bob:<pw>' h",
        "setenv ACME_SECRET <b62:32>", "INSERT INTO t (api_token) VALUES ('<b62:40>')", "acmePat: '<b62:40>'", "aws_secret_access_key = /<b64:39>",
    ],
)  # fmt: skip
def test_a_secret_in_a_command_is_gone_in_every_carrier(template, name, redact, remains):
    for seed in range(3):
        line, (value,) = samples.fill(template, random.Random(f"{template}{seed}"))
        out = redact(CARRIERS_OF_A_COMMAND[name](line))
        assert remains(out, value) is None, out
        assert remains(out, value.encode().hex().upper(), 16) is None, out


@pytest.mark.parametrize(
    "text",
    [
        "PASS: binutils-all/common-1a", '#define TLS1_TXT_PSK_WITH_AES_128_CBC_SHA "PSK-AES128-CBC-SHA"', "the storage identified by __TSS_ID.",
        '"unifdef -UDNETCONN src/xcb_util.c"', "auth: <b64:86>==", 'ANNOUNCED = rb"::add-mask::|::set-output name="', '("auth: user:password", "auth: sha256:0123456789abcdef0123456789abcdef")',
        'rb"oauthhandler|access_token|twilioclient)\\([^\\n()]{1,200},"', 'firebase login:ci --token "1//0<u64:60>"', "keytool -storepass '<pw>'", 'TOKEN: Final = rb"[A-Za-z0-9_+/=.~%]"', "{value:!0});P.Minipass=P.isWritable=P.isStream=void 0", "The option --passphrase= can be empty.",
        "MultiHostUrl('https://foo.example:123,foo:bar@bar.example/path')", '("mongosh -p", "snmpget -p 161 host")', "$ENV{'PWD'}=\"$2$3\"", "| token | description |",
        'BEGIN = "-----BEGIN OPENSSH PRIVATE KEY-----"\n\n@fixture\ndef place(account): ...',
    ],
)  # fmt: skip
def test_programs_and_prose_about_secrets_stay(text, redact):
    assert redact(text.encode() + b"\n") == text.encode() + b"\n"
