"""A rule pack taken from an installed scanner: what is taken, what it finds, and what a damaged one does."""

import json
import os
import random
import re
import shutil
import subprocess
import sys

import pytest

from guard.errors import EXIT_CANNOT, EXIT_USAGE
from guard.redact import conversion, health, pack, samples
from guard.redact.client import Client
from guard.redact.engine import HyperscanEngine, PlainEngine
from guard.redact.scan import Scanner
from guard.redact.stream import redact_bytes
from guard.redact.text import Text

END = r"""(?:\\?['"\x60]|[\s;]|\\[nr]|$)"""
NAMED = r"""(?i)(?:%s)(?:[ \t\w.-]{0,20})[\s'"]{0,3}(?:=|>|:{1,3}=|\|\||:|=>|\?=|,)[\x60'"\s=]{0,5}(%s)""" + END


def rule(name, pattern, **more):
    return {"name": "What it is.", "id": f"acme.{name}", "pattern": pattern, "confidence": "high", "examples": [],
            "visible": True, **more}  # fmt: skip


TAKEN = [
    rule("zqx-key.1", rf"\b(zqx7[a-z0-9]{{32}}){END}"),
    rule("pzv-token", rf"\b(p9zv\.(?i)[a-z0-9]{{32}}){END}"),
    rule("frobnic", NAMED % ("frobnic", "[a-f0-9]{20}")),
    rule("wuzzle", NAMED % ("wuzzle", "[a-z0-9]{32}"), entropy=3.0),
    rule("either", "qjxa[a-z0-9]{20}|qjxb[a-z0-9]{20}"),
    rule("long", r"\b(lqvz[A-Za-z0-9]{100,})"),
]
TEMPLATES = ["zqx7<b36:32>", "p9zv.<b36:32>", "qjxa<b36:20>", "qjxa<b36:30>"]
LEFT = [
    (rule("hidden", r"(zqx7[a-z0-9]{30})", visible=False), "no secret by itself"),
    (rule("thing-client-id", r"(zqx7[a-z0-9]{30})"), "no secret by itself"),
    (rule("nested", r"(zqx7(?:[a-z]+[0-9]+)+)"), "not linear"),
    (rule("blanks", r'zqx7 "([^"]+)"'), "its secret may hold blanks, quotes or anything"),
    (rule("no-start", r"([a-f0-9]{32})"), "begins with no literal"),
    (rule("everyday", r"(self[a-z.]{8,40})"), "begins with a word of ordinary text"),
    (rule("dialect", r"(zqx7\p{Greek}{8})"), "another dialect of expressions"),
    (rule("after", r"(zqx7[a-z]{8})(?=x)"), "look-around or back-reference"),
]


def program(folder, text):
    path = folder / "scanner"
    path.write_text(f"#!{sys.executable}\nimport sys\nassert sys.argv[1:3] == ['rules', 'list']\nprint({text!r})\n")
    path.chmod(0o755)
    return str(path)


def run(*arguments, data=b""):
    return subprocess.run([sys.executable, "-m", "guard.redact", "--no-service", *arguments], input=data,
                          capture_output=True, check=False)  # fmt: skip


def drawn(template, seed=""):
    """Fill a template; `<b36:N>` is N characters of digits and small letters."""
    rng = random.Random(f"{template}{seed}")
    some = "abcdefghijkmnopqrstuvwxyz0123456789"
    template = re.sub(r"<b36:(\d+)>", lambda m: "".join(rng.choice(some) for _ in range(int(m.group(1)))), template)
    return samples.fill(template, rng)[0]


@pytest.fixture
def installed(tmp_path):
    before = Scanner()
    done = run("--install-rules", program(tmp_path, json.dumps(TAKEN + [each for each, _why in LEFT])))
    assert done.returncode == 0, done.stderr
    return done.stdout.decode(), before, Scanner()


def test_what_cannot_be_converted_is_counted_with_the_reason(installed):
    told = installed[0]
    for why in {why for _each, why in LEFT}:
        assert f"{sum(why == other for _each, other in LEFT):5} left out: {why}" in told
    assert f"{len(TAKEN):5} of the site's pack, from scanner" in told
    assert os.stat(pack.path()).st_mode & 0o777 == 0o644
    assert run("--rules").stdout.decode() in told
    assert health.examine(os.path.dirname(pack.path()), Client()).pack == len(TAKEN)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_key_of_the_pack_is_gone_in_every_carrier(template, installed, carriers, remains):
    _told, before, after = installed
    key = drawn(template)
    assert remains(redact_bytes(carriers["bare"](key), before), key) is not None
    for name, carry in carriers.items():
        out = redact_bytes(carry(key), after)
        assert remains(out, key) is None, name
        assert redact_bytes(out, after) == out
        if name.startswith("json"):
            json.loads(out)


def test_the_command_line_uses_the_pack(installed):
    key = drawn(TEMPLATES[0])
    out = run(data=f"see {key} here\n".encode()).stdout
    assert re.fullmatch(rb"see \[REDACTED:zqx-key(:[0-9a-f]{12})?\] here\n", out)
    assert run("--check", data=f"see {key} here\n".encode()).returncode == 1


@pytest.mark.parametrize(
    "line", ["frobnic: <hex:20>", "FROBNIC_ID=<hex:20>", '{"frobnic": "<hex:20>"}', '"{\\"frobnic\\": \\"<hex:20>\\"}"']
)
def test_a_value_beside_a_name_of_the_pack_is_gone(line, installed, remains):
    _told, before, after = installed
    text = drawn(line)
    value = re.search(r"[0-9a-f]{20}", text).group()
    assert redact_bytes(text.encode() + b"\n", before) == text.encode() + b"\n"
    assert remains(redact_bytes(text.encode() + b"\n", after), value) is None


@pytest.mark.parametrize(
    "text",
    ["zqx7" + "x" * 32, "zqx7" + "0123456789" * 3 + "01", "frobnic: " + "0" * 20, "azqx7" + "h3k9" * 8,
     "frobnic(value)", "wuzzle = your_secret_goes_here_right_now"],
)  # fmt: skip
def test_placeholders_and_parts_of_words_stay(text, installed):
    assert redact_bytes(text.encode() + b"\n", installed[2]) == text.encode() + b"\n"


def test_only_a_rule_with_name_and_entropy_makes_an_incident(installed):
    _told, _before, after = installed
    (plain,) = after.find(drawn("see zqx7<b36:32> here").encode())
    (named,) = after.find(drawn("wuzzle: <b62:32>").encode())
    assert (plain.incident, named.kind, named.incident) == (False, "wuzzle", True)


def test_a_value_longer_than_the_window_goes_whole(installed):
    assert redact_bytes(drawn("see lqvz<b62:6000> here").encode() + b"\n", installed[2]).endswith(b"] here\n")


def test_both_engines_and_all_chunkings_redact_the_same(installed, carriers, tmp_path):
    from guard.redact.stream import Redactor

    pytest.importorskip("hyperscan")
    after = installed[2]
    fast = Scanner(HyperscanEngine(after.patterns, str(tmp_path / "db")))
    lines = [*TEMPLATES, "frobnic = <hex:20>", "wuzzle:<b36:32>", "zqx7zqx7<b36:32>", "frobnicfrobnic=<hex:20>"]
    text = b"".join(carry(drawn(line, n)) for n, carry in enumerate(carriers.values()) for line in lines)
    out = redact_bytes(text, Scanner(PlainEngine(after.patterns)))
    assert redact_bytes(text, fast) == out != text
    for size in (1, 7, 61):
        redactor = Redactor(after)
        pieces = [redactor.feed(text[at : at + size]) for at in range(0, len(text), size)]
        assert b"".join(pieces) + redactor.finish() == out


def test_a_rule_that_finds_secrets_in_clean_text_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "_clean", lambda: Text(drawn("clean zqx7<b36:32> text").encode()))
    made = conversion.install(program(tmp_path, json.dumps(TAKEN)))
    assert made.left_out == {"finds secrets in clean text": 1}
    assert [each.kind for each in made.pack.rules] == [each["id"].split(".")[1] for each in TAKEN[1:]]


@pytest.mark.parametrize("damage", ["cut", "changed", "writable", "other"])
def test_a_damaged_pack_is_one_error_and_the_built_in_rules_go_on(damage, installed, key):
    place = pack.path()
    with open(place, encoding="ascii") as file:
        text = file.read()
    texts = {"cut": text[:200], "changed": text.replace("{32}", "{31}"), "writable": text, "other": "[]"}
    with open(place, "w", encoding="ascii") as file:
        file.write(texts[damage])
    os.chmod(place, 0o666 if damage == "writable" else 0o644)
    done = run(data=f"see {key} {drawn(TEMPLATES[0])}\n".encode())
    assert done.stdout.startswith(b"see [REDACTED:github-token")
    assert done.returncode == 0
    (said,) = done.stderr.decode().splitlines()
    assert place in said
    assert run("--rules").returncode == EXIT_CANNOT
    (fault,) = [each for each in health.examine(os.path.dirname(place), Client()).faults if place in each]
    assert fault in said


@pytest.mark.parametrize("text", ["no rules here", "{}", "[1, 2]", "[]", json.dumps([LEFT[0][0]])])
def test_a_program_that_prints_no_rules_leaves_the_pack_as_it_is(text, installed, tmp_path):
    with open(pack.path(), "rb") as file:
        held = file.read()
    done = run("--install-rules", program(tmp_path, text))
    assert done.returncode == EXIT_CANNOT
    assert len(done.stderr.splitlines()) == 1
    with open(pack.path(), "rb") as file:
        assert file.read() == held


def test_no_such_program_and_files_beside_it_are_usage_errors():
    assert run("--install-rules", "no-such-scanner-here").returncode == EXIT_USAGE
    assert run("--rules", "file").returncode == EXIT_USAGE
    assert run("--rules").stdout.endswith(b"    0 of the site's pack, none: see guard redact --install-rules\n")


@pytest.mark.skipif(shutil.which("kingfisher") is None, reason="kingfisher (PyPI kingfisher-bin) is not installed")
def test_the_rules_of_a_real_scanner(remains):
    before = Scanner()
    done = run("--install-rules", "kingfisher")
    assert done.returncode == 0, done.stderr
    assert len(pack.load().rules) > 200
    after = Scanner()
    text = drawn("looker: <b36:24>").encode() + b"\n"
    assert redact_bytes(text, before) == text
    assert redact_bytes(text, after).startswith(b"looker: [REDACTED:looker-client-")
    for each in pack.load().rules:
        re.compile(each.regex.encode())
