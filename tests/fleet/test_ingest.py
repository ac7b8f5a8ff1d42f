"""A site without a broker: whatever carried them, events are taken in once, and what is missing is told."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from guard.events.model import Event
from guard.events.spool import Spool
from guard.feeds.rfc5424 import framed, message
from guard.feeds.sink import Item
from guard.fleet.lines import is_itself, read
from guard.fleet.store import Store
from tests.conftest import GUARD
from tests.feeds import made

Ran = subprocess.CompletedProcess[str]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return path


def guard(state: Path, *words: str, input: bytes | None = None) -> Ran:
    done = subprocess.run(
        [GUARD, *words, "--state", str(state)], capture_output=True, input=input, timeout=60, check=False,
        stdin=None if input is not None else subprocess.DEVNULL,
    )  # fmt: skip
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def ingest(state: Path, *words: str, input: bytes | None = None, code: int = 0) -> dict[str, int]:
    done = guard(state, "incidents", "ingest", "--json", *words, input=input)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def stored(state: Path) -> list[str]:
    with Store(str(state / "site.db"), write=False) as store:
        return made.ids(line for _, _, line in store.read(0, 10**6))


def alerts(state: Path) -> list[dict[str, object]]:
    """What was put on record in the site's own spool."""
    if not (state / "spool").exists():
        return []
    with Spool(str(state / "spool")) as spool:
        return [json.loads(row.line) for row in spool.read(0, 10**6)]


def syslog(event: Event) -> bytes:
    line = event.to_json()
    return message(Item(1, event.id, event.severity.label, line, line), facility="user", enterprise="32473", host="", feed="f")


FORMS = {
    "events": lambda event: event.to_json(),
    "syslog": syslog,
    "syslog framed": lambda event: framed(syslog(event)),
    "rsyslog's file": lambda event: b"2026-01-31T08:00:00+00:00 login1 guard[7]: " + event.to_json(),
    "envelope": lambda event: json.dumps({"sender": "tls:login1", "message": syslog(event).decode()}).encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_taken_in_once(state: Path, tmp_path: Path, form: str) -> None:
    events = list(made.events(50, host="login1"))
    path = tmp_path / "in"
    path.write_bytes(b"\n".join(map(FORMS[form], events)) + b"\n")
    assert ingest(state, str(path))["new"] == 50
    assert ingest(state, str(path)) == {"new": 0, "known": 50, "foreign": 0, "skipped": 0, "bad": 0}
    assert stored(state) == [event.id for event in events]


def test_a_pipe_an_archive_and_a_spool_give_the_same(state: Path, tmp_path: Path) -> None:
    events = list(made.events(300, host="login1"))
    lines = b"".join(event.to_json() + b"\n" for event in events)
    packed = tmp_path / "day.jsonl.zst"
    packed.write_bytes(b"".join(zstandard.compress(part) for part in (lines[: len(lines) // 2], lines[len(lines) // 2 :])))
    with Spool(str(tmp_path / "spool")) as spool:
        spool.append(events)
    assert ingest(state, "-", input=lines)["new"] == 300
    for path in (packed, tmp_path / "spool", tmp_path / "spool/spool.db"):
        assert ingest(state, str(path))["known"] == 300


def test_a_pipe_is_taken_in_as_it_comes(state: Path) -> None:
    events = list(made.events(10, host="login1"))
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [GUARD, "incidents", "ingest", "--state", str(state)], stdin=reader, stderr=subprocess.PIPE
    )
    os.close(reader)
    from tests.feeds.cluster import until

    def count() -> int:
        try:
            return len(stored(state))
        except Exception:
            return 0

    os.write(writer, b"".join(event.to_json() + b"\n" for event in events[:6]) + events[6].to_json()[:50])
    until(lambda: count() == 6, 20, "the first events")
    os.write(writer, events[6].to_json()[50:] + b"\n")
    until(lambda: count() == 7, 20, "the one that came in two pieces")
    os.close(writer)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 0, said


def test_other_programs_lines_are_passed_over_and_damaged_events_told(state: Path, tmp_path: Path) -> None:
    events = list(made.events(3, host="login1"))
    path = tmp_path / "in"
    path.write_bytes(b"\n".join((
        b"<13>1 2026-01-31T08:00:00Z login1 cron 12 - - session opened", events[0].to_json(),
        b'<13>1 2026-01-31T08:00:00Z login1 app 12 - - {"level": 3}', syslog(events[1])[:-5], events[2].to_json(),
    )))  # fmt: skip
    done = guard(state, "incidents", "ingest", str(path))
    assert done.returncode == 3
    assert f"{path}:4: cut off or damaged" in done.stderr
    assert "2 new, 0 known, 0 foreign, 2 skipped, 1 bad" in done.stderr
    assert stored(state) == [events[0].id, events[2].id]


def test_a_gap_is_told_when_nothing_fills_it_and_its_end_too(state: Path, tmp_path: Path) -> None:
    events = list(made.events(40, producers=1, host="login1"))
    (tmp_path / "a").write_bytes(b"".join(e.to_json() + b"\n" for e in [*events[:10], *events[15:]]))
    (tmp_path / "b").write_bytes(b"".join(e.to_json() + b"\n" for e in events[10:15]))
    ingest(state, str(tmp_path / "a"))
    assert alerts(state) == []
    later = "2999-01-01"
    shown = guard(state, "fleet", "status", "--alert", "--at", later)
    assert shown.returncode == 1
    assert "5 events of p0 missing" in shown.stdout
    for _ in range(2):
        guard(state, "fleet", "status", "--alert", "--at", later)
    told = alerts(state)
    assert [event["rule"] for event in told] == ["fleet.gap"]
    assert told[0]["severity"] == "medium"
    assert told[0]["detail"] == {"node": "login1", "producer": "p0", "first": 11, "last": 15, "missing": 5}
    ingest(state, str(tmp_path / "b"))
    assert [event["severity"] for event in alerts(state)] == ["medium", "info"]
    assert guard(state, "fleet", "status", "--at", later).returncode == 0


def test_any_order_of_arrival_gives_no_gap(state: Path) -> None:
    import random

    events = list(made.events(500, producers=3, host="login1"))
    random.Random(7).shuffle(events)
    with Store(str(state / "site.db")) as store:
        for at in range(0, 500, 37):
            found = [read(event.to_json()) for event in events[at : at + 37]]
            store.receive([each for each in found if each], now=1000.0 + at)
        assert store.gaps() == []


def test_a_node_cannot_fill_the_site_with_holes(state: Path) -> None:
    from guard.fleet import store as module

    events = list(made.events(3000, producers=1, host="login1"))
    with Store(str(state / "site.db")) as store:
        found = [read(replace(event, seq=event.seq * 2).to_json()) for event in events]
        store.receive([each for each in found if each], now=1000.0)
        gaps = store.gaps()
        assert len(gaps) <= module.RUNS_MOST + 1
        assert sum(gap.count for gap in gaps) == 2999


def test_a_sender_that_speaks_for_another_host_is_kept_apart_and_told(state: Path, tmp_path: Path) -> None:
    real = list(made.events(5, producers=1, host="login1"))
    forged = [replace(event, host="login1") for event in made.events(5, producers=1, host="login2")]
    same_id = [replace(real[4], producer="forged")]
    envelope = [json.dumps({"sender": "tls:login2", "message": e.to_json().decode()}).encode() for e in [*forged, *same_id]]
    (tmp_path / "forged").write_bytes(b"\n".join(envelope))
    (tmp_path / "real").write_bytes(b"\n".join(e.to_json() for e in real))
    assert ingest(state, str(tmp_path / "forged"))["foreign"] == 6
    # The forged one came first, under the id of a real one: that one is taken all the same.
    assert ingest(state, "--sender", "tls:login1", str(tmp_path / "real")) == {
        "new": 5, "known": 0, "foreign": 0, "skipped": 0, "bad": 0,
    }  # fmt: skip
    assert [event["rule"] for event in alerts(state)] == ["fleet.sender"]
    assert alerts(state)[0]["message"] == "tls:login2 speaks for login1"
    with Store(str(state / "site.db"), write=False) as store:
        assert [node.host for node in store.nodes()] == ["login1"]
        assert store.gaps() == []
        assert {sender for _, sender, _ in store.read(0)} == {"tls:login1", "tls:login2"}


SENDERS = [
    ("tls:login1", "login1", True), ("tls:login1.example.org", "login1.example.org", True),
    ("tls:login1.example.org", "login1", True), ("nats:login1", "login1.example.org", True),
    ("nats:login1_example_org", "login1.example.org", True), ("tls:LOGIN1", "login1", True),
    ("tls:login1", "login2", False), ("tls:login1.example.org", "login1.example.com", False),
    ("tls:login", "login1", False), ("tls:x", "", False),
]  # fmt: skip


@pytest.mark.parametrize(("sender", "host", "may"), SENDERS)
def test_who_may_speak_for_whom(sender: str, host: str, may: bool) -> None:
    assert is_itself(sender, host) is may


def test_many_at_once_take_in_each_event_once(state: Path, tmp_path: Path) -> None:
    events = list(made.events(400, host="login1"))
    (tmp_path / "in").write_bytes(b"\n".join(event.to_json() for event in events))
    threads = [threading.Thread(target=ingest, args=(state, str(tmp_path / "in"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(stored(state)) == sorted(event.id for event in events)


HOSTILE: Sequence[bytes] = (
    b"{", b"{}", b'{"schema":1}', b"[1,2]", b'{"sender":"x","message":{}}', b"\xff\xfe{", b'{"a":' * 3000,
    b'{"sender":"x","message":"{\\"sender\\":\\"y\\",\\"message\\":\\"{}\\"}"}', b"guard@32473 nothing", b"0 {",
    secrets.token_bytes(200).replace(b"\n", b""),
)  # fmt: skip


def test_nothing_that_comes_in_breaks_the_intake(state: Path, tmp_path: Path) -> None:
    event = next(iter(made.events(1, host="login1")))
    plain = json.loads(event.to_json())
    bad = [json.dumps({**plain, name: value}).encode() for name in plain for value in (None, 3, "x", [], {}, -1, True)]
    (tmp_path / "in").write_bytes(b"\n".join([*HOSTILE, *bad, event.to_json()]))
    done = guard(state, "incidents", "ingest", "--json", str(tmp_path / "in"))
    assert done.returncode in (0, 3), done.stderr
    assert "internal error" not in done.stderr
    assert event.id in stored(state)


def lines_of(events: Sequence[Event]) -> Iterator[bytes]:
    for event in events:
        yield event.to_json()


@pytest.mark.parametrize("write", [True, False])
def test_a_store_that_is_damaged_or_a_later_guards_is_told_by_name(tmp_path: Path, write: bool) -> None:
    import sqlite3

    from guard.errors import StateError
    from guard.fleet.store import Store

    path = tmp_path / "site.db"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(StateError, match=r"site\.db: file is not a database"):
        Store(str(path), write=write)
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StateError, match="later guard"):
        Store(str(path), write=write)
