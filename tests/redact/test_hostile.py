# ruff: noqa: E501 - tables of lines and long literals read better unbroken
"""Text made to be slow ends all the same, keeps its lines, and what time does not suffice for goes whole.

How long it takes is measured by bench/redact.py.
"""

import os

import pytest

from guard.redact import scan
from guard.redact.stream import redact_bytes

PIECES = [
    b"eyJ", b"http://a:bcd", b"mysql -p", b"curl -u ", b"-----BEGIN RSA PRIVATE KEY-----", b"-----BEGIN RSA PRIVATE KEY-----\n", b"password=", b'password="',
    b'"password":"', b"sk-ant-api03-", b"\\u0070", b"%41", b"\x1b[31m", b"a\0", b"echo a|sudo -S ", b"Authorization: Bearer ", b"cookie: a=b;", b"LS0tLS1CRUdJTi",
    b'{"a":', b"\\", b'\\"', b"://a:b@", b"?key=", b"--token=", b"machine a login b password c ", b"identified by '", b"PuTTY-User-Key-File-3: ", b"openssl pass:",
    b"password=\\\n", b"Z2hwX", b"6768705f", b"[REDACTED:x]", b"\\040by ", b"a\x08", b'9 write(3, "sk-ant-", 4) = 4\n',
]  # fmt: skip


SIZE = (2 << 20) if os.environ.get("GUARD_TEST_LONG") else 128 << 10


@pytest.mark.parametrize("piece", PIECES, ids=[repr(p[:12]) for p in PIECES])
def test_a_hostile_text_keeps_its_lines_and_a_second_pass_changes_nothing(piece, scanner):
    text = (piece * (SIZE // len(piece) + 1))[:SIZE]
    out = redact_bytes(text, scanner)
    assert out.count(b"\n") == text.count(b"\n")
    assert redact_bytes(out, scanner) == out


def test_lines_that_time_does_not_suffice_for_go_whole(monkeypatch, key):
    monkeypatch.setattr(scan, "BUDGET", -1.0)
    out = redact_bytes(b"".join(b"line %d %s\n" % (n, key.encode()) for n in range(40)), scan.Scanner())
    assert key.encode() not in out
    assert b"[REDACTED:unscanned]\n" in out
