"""What the redactor's tests share: one scanner, secrets made at run time, the carriers they are put into."""

from __future__ import annotations

import base64
import json
import random
import threading
import urllib.parse
from collections.abc import Callable

import pytest

from guard.redact import client, samples, server
from guard.redact.scan import Scanner
from guard.redact.stream import redact_bytes

Carry = Callable[[str], bytes]


def c_string(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _strace(text: str) -> bytes:
    return f'1234 12:00:01.000 write(3, "{c_string(text)}", 200) = 200\n'.encode()


CARRIERS: dict[str, Carry] = {
    "bare": lambda k: f"see {k} here\n".encode(),
    "shell": lambda k: f"export FOO_X={k}\n".encode(),
    "quoted": lambda k: f"FOO_X='{k}' cmd\n".encode(),
    "json": lambda k: (json.dumps({"a": 1, "text": f"x {k}\nnext"}) + "\n").encode(),
    "json in json": lambda k: (json.dumps({"a": json.dumps({"k": k, "t": f"l\n{k}\tx"})}) + "\n").encode(),
    "strace": lambda k: _strace("head\n" + k + "\nx"),
    "arguments": lambda k: f'execve("/usr/bin/x", ["x", "--foo", "{k}"], 0x7ff /* 9 vars */) = 0\n'.encode(),
    "colour": lambda k: f"\x1b[1m\x1b[31m{k}\x1b[0m ok\r\n".encode(),
    "colour inside": lambda k: f"a {k[:6]}\x1b[32m{k[6:]}\x1b[0m ok\r\n".encode(),
    "query": lambda k: f"https://h.example/p?x=1&y={urllib.parse.quote(k, safe='')}&z=1\n".encode(),
    "diff": lambda k: f"+{k}\n-{k}\n".encode(),
    "environ": lambda k: f"A=b\0{k}\0C=d\0".encode(),
    "crlf": lambda k: f"x: {k}\r\n".encode(),
    "history": lambda k: f": 1700000000:0;export X={k}\n".encode(),
}
"""Carriers in which the key's own characters stand."""

ENCODED: dict[str, tuple[Carry, float]] = {
    "unicode escapes": (lambda k: ("x " + "".join(f"\\u{ord(c):04x}" for c in k) + "\n").encode(), 6),
    "hex escapes": (
        lambda k: ('write(1, "' + "".join(f"\\x{ord(c):02x}" for c in k) + '", 9) = 9\n').encode(),
        4,
    ),
    "octal escapes": (
        lambda k: ('write(1, "' + "".join(f"\\{ord(c):03o}" for c in k) + '", 9) = 9\n').encode(),
        4,
    ),
    "percent twice": (lambda k: ("GET /x?y=" + "".join(f"%25{ord(c):02X}" for c in k) + " HTTP/1.1\n").encode(), 5),
    "punctuation percent twice": (
        lambda k: ("GET /x?y=" + urllib.parse.quote(urllib.parse.quote(k, safe=""), safe="") + " HTTP/1.1\n").encode(),
        1,
    ),
    "percent": (lambda k: ("GET /x?y=" + "".join(f"%{ord(c):02X}" for c in k) + " HTTP/1.1\n").encode(), 3),
    "hex": (lambda k: f"x {k.encode().hex()}\n".encode(), 2),
    "base64": (lambda k: f"x {base64.b64encode(k.encode()).decode()}\n".encode(), 4 / 3),
    "base64 within": (lambda k: f"x {base64.b64encode(f'bob:{k} x'.encode()).decode()}\n".encode(), 4 / 3),
    "base64 for addresses": (lambda k: f"x={base64.urlsafe_b64encode(k.encode()).decode()}\n".encode(), 4 / 3),
    "base64 in lines": (lambda k: base64.encodebytes(f"{'word ' * 12}{k}\n".encode()), 4 / 3),
    "base64 of base64": (lambda k: base64.b64encode(base64.b64encode(k.encode())) + b"\n", 16 / 9),
    "capital hex": (lambda k: f"x {k.encode().hex().upper()}\n".encode(), 2),
    "utf-16 of the other order": (lambda k: f"x={k}\n".encode("utf-16-be"), 2),
    "utf-16": (lambda k: f"x={k}\n".encode("utf-16-le"), 2),
    "utf-16 with its mark": (lambda k: f"\ufeffx={k}\r\n".encode("utf-16-be"), 2),
    "utf-16 behind bytes": (lambda k: b"\x01\xff" + f"a word and x={k}\n".encode("utf-16-be"), 2),
}
"""Carriers that hide the key, with raw bytes a character."""


def leftover(output: bytes, secret: str, size: int = 8) -> str | None:
    """Return a stretch of a secret that is still there; `size` characters count as a leak."""
    size = min(size, len(secret))
    for start in range(len(secret) - size + 1):
        if secret[start : start + size].encode() in output:
            return secret[start : start + size]
    return None


@pytest.fixture(scope="session")
def scanner() -> Scanner:
    return Scanner()


@pytest.fixture(scope="session")
def redact(scanner: Scanner) -> Callable[[bytes], bytes]:
    return lambda data: redact_bytes(data, scanner)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.node.name)  # a failure repeats itself


@pytest.fixture
def key(rng: random.Random) -> str:
    """A GitHub token with a right checksum."""
    return samples.fill("ghp_<crc62>", rng)[0]


@pytest.fixture
def word(rng: random.Random) -> str:
    """A password of letters and digits."""
    return samples.password(rng, "", 12)


@pytest.fixture(scope="session")
def carriers() -> dict[str, Carry]:
    return CARRIERS


@pytest.fixture(scope="session")
def encoded() -> dict[str, tuple[Carry, float]]:
    return ENCODED


@pytest.fixture(scope="session")
def remains() -> Callable[[bytes, str], str | None]:
    return leftover


@pytest.fixture(autouse=True)
def _own_places(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path_factory.mktemp("guard")
    monkeypatch.setenv("GUARD_STATE_DIR", str(place / "state"))
    monkeypatch.setenv("GUARD_CONFIG_DIR", str(place / "config"))


@pytest.fixture
def service(tmp_path, monkeypatch):
    """Run a resident service."""
    path = str(tmp_path / "run" / "redact.sock")
    monkeypatch.setenv("GUARD_REDACT_SOCKET", path)
    ready, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=server.serve, args=(path, ready, stop))
    thread.start()
    assert ready.wait(20)
    yield client.Client()
    stop.set()
    thread.join(10)
