# ruff: noqa: E501 - tables of lines read better unbroken
"""What people paste: commands, files and sentences with a secret, in the texts that carry them, leave none of it.

The lines are those of facts that others reported and of manuals; every secret is made when the test runs.
"""

from __future__ import annotations

import html
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from guard.redact import samples

LINES = (Path(__file__).parent / "pasted.txt").read_text(encoding="utf-8").splitlines()


def c_string(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def escaped(text: str) -> str:
    """Write punctuation as .NET and Go do, `\\u0022`."""
    return "".join(c if c.isalnum() or c in " -_.:/" else f"\\u{ord(c):04x}" for c in text)


CARRIERS: dict[str, Callable[[str], str]] = {
    "bare": lambda t: t,
    "prompt": lambda t: "bob@login1:~$ " + t,
    "diff": lambda t: f"+{t}\n-{t}",
    "transcript": lambda t: json.dumps({"role": "user", "content": f"run:\n{t}\nok"}),
    "transcript in a transcript": lambda t: json.dumps({"m": json.dumps({"c": [{"text": f"x\n{t}\ny"}]})}),
    "strace": lambda t: f'123 write(1, "{c_string(t)}\\n", 99) = 99',
    "recording": lambda t: f"\x1b[32m$\x1b[0m {t}\r",
    "log": lambda t: "2026-11-30T12:00:00.123Z INFO [main] executing: " + t,
    "notebook": lambda t: f'    "{c_string(t)}\\n",',
    "here-document": lambda t: f"cat > f <<EOF\n{t}\nEOF",
    "page": lambda t: f"<pre>{html.escape(t)}</pre>",
    "page, numbered": lambda t: re.sub(r"[^\w\s]", lambda m: f"&#{ord(m.group())};", t),
    "page, escaped twice": lambda t: f"<td>{html.escape(html.escape(t))}</td>",
    "escaped": lambda t: f'{{"t": "run {escaped(t)}"}}',
}


def remains(out: str, secret: str) -> str | None:
    """Return eight characters in a row of a secret that are still there, in any carrier's spelling."""
    pieces = [secret] if len(secret) < 8 else [secret[i : i + 8] for i in range(len(secret) - 7)]
    return next((piece for piece in pieces if piece in out), None)


def plain(out: str) -> str:
    """Undo what the carriers did."""
    for _ in range(2):
        out = html.unescape(out)
    return re.sub(r"\\u([0-9a-f]{4})", lambda m: chr(int(m.group(1), 16)), out)


@pytest.mark.parametrize("template", LINES)
def test_nothing_of_a_pasted_secret_stays(template: str, redact) -> None:
    rng = random.Random(template)
    for name, carry in CARRIERS.items():
        for _ in range(2):
            text, secrets = samples.fill(template.replace("<pw>", "<apw>"), rng)
            out = redact(carry(text).encode() + b"\n").decode()
            assert all(remains(form, secret) is None for secret in secrets for form in (out, plain(out))), (name, out)
            assert redact(out.encode()) == out.encode(), name


@pytest.mark.parametrize("name", CARRIERS)
def test_where_a_text_is_cut_changes_nothing(name: str, scanner) -> None:
    from guard.redact.stream import Redactor, redact_bytes

    rng = random.Random(name)
    text = "\n".join(CARRIERS[name](samples.fill(line, rng)[0]) for line in rng.sample(LINES, 60)).encode()
    whole = redact_bytes(text, scanner)
    for size in (7, 61, 997):
        redactor = Redactor(scanner)
        parts = [redactor.feed(text[i : i + size]) for i in range(0, len(text), size)]
        assert b"".join(parts) + redactor.finish() == whole, size


@pytest.mark.parametrize("name", CARRIERS)
def test_the_fallback_engine_finds_the_same(name: str, scanner) -> None:
    from guard.redact.scan import Scanner
    from guard.redact.stream import redact_bytes

    pytest.importorskip("hyperscan")
    rng = random.Random(name)
    text = "\n".join(CARRIERS[name](samples.fill(line, rng)[0]) for line in LINES).encode()
    fast = Scanner()
    fast.engine(1 << 20)
    assert redact_bytes(text, fast) == redact_bytes(text, Scanner())
