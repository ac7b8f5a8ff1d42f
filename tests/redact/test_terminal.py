"""Terminals: colours, wraps at the right margin, typed characters, recordings event by event."""

import json

import pytest

from guard.redact import samples
from guard.redact.rules.formats import FORMATS
from guard.redact.stream import Redactor, redact_bytes


def recording(pieces, kind="o"):
    lines = [json.dumps({"version": 2, "width": 80, "height": 24})]
    return ("\n".join([*lines, *(json.dumps([n / 10, kind, piece]) for n, piece in enumerate(pieces))]) + "\n").encode()


@pytest.mark.parametrize("size", [1, 3, 7, 39])
@pytest.mark.parametrize("kind", ["o", "i"])
def test_a_key_over_events_is_gone_and_the_recording_stays_one(size, kind, redact, key):
    pieces = ["$ ", "echo ", *(key[i : i + size] for i in range(0, len(key), size)), "\r\n", "done\r\n"]
    text = recording(pieces, kind)
    events = [json.loads(line) for line in redact(text).splitlines()]
    shown = "".join(event[2] for event in events[1:])
    assert not any(key[i : i + 8] in shown for i in range(len(key) - 7))
    assert [event[0] for event in events[1:]] == [n / 10 for n in range(len(pieces))]
    assert shown.endswith("\r\ndone\r\n")


def test_typed_and_echoed_events_do_not_hide_each_other(redact, key):
    events = [event for char in key for event in (("i", char), ("o", char))]
    text = "".join(json.dumps([n / 10, kind, char]) + "\n" for n, (kind, char) in enumerate([*events, ("o", "\r\n")]))
    shown = {
        kind: "".join(e[2] for e in map(json.loads, redact(text.encode()).splitlines()) if e[1] == kind)
        for kind in "io"
    }
    assert all(key[4:12] not in part for part in shown.values())


def test_chunks_of_a_recording_change_nothing(scanner, key):
    text = recording(["$ ", *key, "\r\n", "ok\r\n", "$ "])
    redactor = Redactor(scanner)
    assert b"".join(
        [*(redactor.feed(text[i : i + 5]) for i in range(0, len(text), 5)), redactor.finish()]
    ) == redact_bytes(text, scanner)


def test_a_wrapped_key_is_gone_on_both_lines(redact, remains, key):
    line = "$ " + "x" * 60 + " "
    text = f"\x1b[0m{line}{key[:17]}\r\n{key[17:]} more\r\n\x1b[1mok\r\n".encode()
    out = redact(text)
    assert remains(out, key) is None
    assert out.endswith(b" more\r\n\x1b[1mok\r\n")


@pytest.mark.parametrize("gap", ["\r\n", "\r\r\n", " \r", "\x1b[K\r\n\x1b[K"])
@pytest.mark.parametrize("row", FORMATS, ids=[row.kind for row in FORMATS])
def test_every_key_is_gone_wherever_the_margin_breaks_it(row, gap, redact, remains, rng):
    key = samples.fill(rng.choice(row.samples), rng)[0]
    for cut in (3, len(key) // 3, len(key) // 2, len(key) - 9):
        shown = "$ " + "x" * (80 - cut - 3) + " " + key + " more" if cut < 76 else "$ " + key + " more"
        text = gap.join(shown[i : i + 80] for i in range(0, len(shown), 80)) + "\r\n$ ls\r\n"
        out = redact(text.encode())
        assert remains(out, key[len(row.before) :]) is None, out
        assert out.endswith(b"$ ls\r\n")


def test_lines_with_cr_lf_are_no_wrapped_lines(redact, key):
    text = f"# a line as long as a terminal is wide, or nearly so\r\nA_TOKEN={key}\r\nB_NAME=value\r\n".encode()
    assert redact(text).endswith(b"]\r\nB_NAME=value\r\n")


def test_colours_inside_a_key_in_a_transcript_hide_nothing(redact, key):
    line = json.dumps({"out": f"a \x1b[1m{key[:9]}\x1b[32m{key[9:]}\x1b[0m b"}) + "\n"
    shown = json.loads(redact(line.encode()))["out"]
    assert key[9:17] not in shown
    assert shown.endswith("\x1b[0m b")


def test_screen_control_without_a_secret_is_byte_identical(redact):
    text = b"\x1b[2J\x1b[H\x1b]0;title\x07\x1b[?2004h$ ls\r\n\x1b[01;34mdir\x1b[0m a\x08 \x08b\r\n"
    assert redact(text) == text


def test_a_title_and_a_paste_carry_keys_too(redact, remains, key):
    assert remains(redact(f"\x1b]0;ssh {key}\x07$ \r\n".encode()), key) is None
    assert remains(redact(f"\x1b[200~{key}\x1b[201~\r\n".encode()), key) is None


def test_typed_and_erased_characters_do_not_hide_a_key(redact, remains, key):
    assert remains(redact(f"$ {key[:6]}x\x08 \x08{key[6:]}\r\n".encode()), key) is None
    for size in (1, 2, 5):
        out = redact(f"$ {key[:6]}{'z' * size}{chr(8) * size}{key[6:]}\r\n".encode())
        assert remains(out, key[6:]) is None, size


def test_a_session_is_recorded_without_its_keys(key):
    from guard.redact.recording import Recorder

    out = []
    times = iter(range(1000))
    recorder = Recorder(out.append, 80, 24, clock=lambda: float(next(times)), started=0.0)
    for char in f"$ echo {key}\r\n":
        recorder.input(char.encode())
        recorder.output(char.encode())
    recorder.output("caf\u00e9\r\n".encode()[:4])
    recorder.output("caf\u00e9\r\n".encode()[4:])
    recorder.close()
    lines = [json.loads(line) for line in b"".join(out).splitlines()]
    assert (lines[0]["version"], lines[0]["width"]) == (2, 80)
    for kind in "io":
        shown = "".join(event[2] for event in lines[1:] if event[1] == kind)
        assert key[4:12] not in shown
    assert "".join(event[2] for event in lines[1:] if event[1] == "o").endswith("caf\u00e9\r\n")


def test_a_key_over_three_lines_of_the_terminal_is_gone(redact, remains, rng):
    long = samples.fill("sk-ant-api03-<u64:93>AA", rng)[0]
    shown = "$ " + "x" * 70 + " " + long
    text = "".join(shown[i : i + 80] + "\r\n" for i in range(0, len(shown), 80)) + "$ ls\r\n"
    out = redact(text.encode())
    assert remains(out, long) is None
    assert out.endswith(b"\r\n$ ls\r\n")
