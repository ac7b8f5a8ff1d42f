# ruff: noqa: E501 - tables of lines and long literals read better unbroken
"""Two megabytes made to be slow take under two seconds of processor time, and lose nothing."""

import time

import pytest

from guard.redact.stream import redact_bytes

PIECES = [
    b"eyJ", b"http://a:bcd", b"mysql -p", b"curl -u ", b"-----BEGIN RSA PRIVATE KEY-----", b"-----BEGIN RSA PRIVATE KEY-----\n", b"password=", b'password="',
    b'"password":"', b"sk-ant-api03-", b"\\u0070", b"%41", b"\x1b[31m", b"a\0", b"echo a|sudo -S ", b"Authorization: Bearer ", b"cookie: a=b;", b"LS0tLS1CRUdJTi",
    b'{"a":', b"\\", b'\\"', b"://a:b@", b"?key=", b"--token=", b"machine a login b password c ", b"identified by '", b"PuTTY-User-Key-File-3: ", b"openssl pass:",
    b"password=\\\n", b"Z2hwX", b"6768705f", b"[REDACTED:x]", b"\\040by ", b"a\x08", b'9 write(3, "sk-ant-", 4) = 4\n',
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("piece", PIECES, ids=[repr(p[:12]) for p in PIECES])
def test_a_hostile_input_is_bounded(piece, scanner):
    text = (piece * ((2 << 20) // len(piece) + 1))[: 2 << 20]
    scanner.engine(1 << 20)
    start = time.process_time()
    redact_bytes(text, scanner)
    assert time.process_time() - start < 2.5  # two seconds on an idle machine; caches are shared on a busy one


def test_lines_that_time_does_not_suffice_for_go_whole(monkeypatch, key):
    from guard.redact import scan

    monkeypatch.setattr(scan, "BUDGET", -1.0)
    out = redact_bytes(b"".join(b"line %d %s\n" % (n, key.encode()) for n in range(40)), scan.Scanner())
    assert key.encode() not in out
    assert b"[REDACTED:unscanned]\n" in out
