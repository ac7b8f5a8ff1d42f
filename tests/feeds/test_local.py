"""Destinations on the node itself: a file, the journal, Prometheus, an archive."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.events.wire import Severity
from tests.beds.ports import free_port
from tests.conftest import GUARD
from tests.feeds import made
from tests.feeds.cluster import until
from tests.feeds.running import drained, feeds, toml


def jsonl(tmp_path: Path, *more: str, name: str = "file") -> Path:
    return toml(tmp_path, [f'name = "{name}"', 'kind = "jsonl"', f'path = "{tmp_path}/out.jsonl"', *more])


@pytest.mark.timeout(60)
def test_a_file_has_every_event_once_and_the_same_input_again_adds_nothing(tmp_path: Path) -> None:
    expected = made.write(tmp_path / "events.jsonl", made.events(3000))
    config = jsonl(tmp_path)
    for _ in range(2):
        drained("--config", str(config), "--input", str(tmp_path / "events.jsonl"))
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "events.jsonl").read_bytes()
    assert made.ids((tmp_path / "out.jsonl").read_bytes().splitlines()) == expected


@pytest.mark.timeout(60)
def test_a_torn_line_is_cut_off_and_written_again(tmp_path: Path) -> None:
    made.write(tmp_path / "events.jsonl", made.events(20))
    (tmp_path / "out.jsonl").write_bytes(b'{"id": "older"}\n{"id": "to')
    drained("--config", str(jsonl(tmp_path)), "--input", str(tmp_path / "events.jsonl"))
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
    assert len(lines) == 21
    assert all(json.loads(line) for line in lines)


@pytest.mark.timeout(60)
def test_a_file_that_logrotate_moved_away_is_left_alone(tmp_path: Path) -> None:
    made.write(tmp_path / "a.jsonl", made.events(10))
    made.write(tmp_path / "b.jsonl", made.events(10))
    config = jsonl(tmp_path)
    with feeds("--config", str(config), "--input", str(tmp_path / "a.jsonl")) as feed:
        until(lambda: len(made_lines(tmp_path / "out.jsonl")) == 10, 20, "the first file's events")
        os.rename(tmp_path / "out.jsonl", tmp_path / "out.jsonl.1")
        feed.terminate()
        assert feed.wait(20) == 0
    drained("--config", str(config), "--input", str(tmp_path / "b.jsonl"))
    assert len(made_lines(tmp_path / "out.jsonl")) == len(made_lines(tmp_path / "out.jsonl.1")) == 10


def made_lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


@pytest.mark.timeout(60)
def test_rotation_keeps_every_event(tmp_path: Path) -> None:
    expected = made.write(tmp_path / "events.jsonl", made.events(1000))
    drained("--config", str(jsonl(tmp_path, "rotate_bytes = 100000", "keep = 50", "batch = 50")),
            "--input", str(tmp_path / "events.jsonl"))  # fmt: skip
    parts = list(tmp_path.glob("out.jsonl*"))
    assert len(parts) > 3
    assert sorted(made.ids(line for part in parts for line in part.read_bytes().splitlines())) == sorted(expected)


@pytest.mark.root
@pytest.mark.timeout(60)
def test_a_full_disk_leaves_no_half_batch_and_loses_nothing(tmp_path: Path) -> None:
    expected = made.write(tmp_path / "events.jsonl", made.events(2000))
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(disk)], check=True)
    try:
        (disk / "ballast").write_bytes(b"x" * 300_000)
        config = toml(tmp_path, ['name = "file"', 'kind = "jsonl"', f'path = "{disk}/out.jsonl"', "backoff_most = 0.3"])
        with feeds("--config", str(config), "--input", str(tmp_path / "events.jsonl"), "--drain") as feed:
            status = tmp_path / "spool.feeds/file.json"
            until(lambda: status.exists() and os.strerror(errno.ENOSPC) in status.read_text(), 20, "the word of it")
            lines = made_lines(disk / "out.jsonl")
            assert all(json.loads(line) for line in lines)
            subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
            assert feed.wait(30) == 0
        assert made.ids(made_lines(disk / "out.jsonl")) == expected
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.timeout(60)
def test_filters_send_what_they_say_and_the_cursor_passes_the_rest(tmp_path: Path) -> None:
    low = list(made.events(50, host="login1"))
    high = list(made.events(30, host="login2", severity=Severity.HIGH))
    made.write(tmp_path / "events.jsonl", [*low, *high])
    out = tmp_path / "out.jsonl"
    config = toml(
        tmp_path,
        ['name = "a"', 'kind = "jsonl"', f'path = "{tmp_path}/a.jsonl"', 'minimum = "medium"'],
        ['name = "b"', 'kind = "jsonl"', f'path = "{tmp_path}/b.jsonl"', 'only = { host = ["login?"], producer = ["p1"] }'],
        ['name = "c"', 'kind = "jsonl"', f'path = "{tmp_path}/c.jsonl"', 'except = { host = ["*2"] }'],
    )
    drained("--config", str(config), "--input", str(tmp_path / "events.jsonl"))
    wanted = {
        "a": [e.id for e in high],
        "b": [e.id for e in [*low, *high] if e.producer == "p1"],
        "c": [e.id for e in low],
    }
    for name, expected in wanted.items():
        assert made.ids(made_lines(out.with_name(f"{name}.jsonl"))) == expected
    listed = subprocess.run([GUARD, "feed", "list", "--json", "--config", str(config)], capture_output=True, check=True)
    assert [json.loads(line)["behind"] for line in listed.stdout.splitlines()] == [0, 0, 0]


FORMS = {
    "event": lambda line: json.loads(line)["id"],
    "ocsf": lambda line: json.loads(line)["metadata"]["uid"],
    "ecs": lambda line: json.loads(line)["event"]["id"],
    "falcosidekick": lambda line: json.loads(line)["uuid"],
    "cef": lambda line: re.search(rb"externalId=(\S+)", line).group(1).decode(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.timeout(60)
def test_every_format_carries_the_id(tmp_path: Path, form: str) -> None:
    expected = made.write(tmp_path / "events.jsonl", made.events(20))
    drained("--config", str(jsonl(tmp_path, f'format = "{form}"')), "--input", str(tmp_path / "events.jsonl"))
    assert [FORMS[form](line) for line in made_lines(tmp_path / "out.jsonl")] == expected


@pytest.mark.timeout(60)
def test_a_feed_that_is_no_more_can_be_forgotten(tmp_path: Path) -> None:
    made.write(tmp_path / "events.jsonl", made.events(5))
    drained("--config", str(jsonl(tmp_path, name="old")), "--input", str(tmp_path / "events.jsonl"))
    config = str(jsonl(tmp_path, name="new"))
    assert "`guard feed forget` ends that" in drained("--config", config).stderr

    def forget(name: str) -> int:
        words = [GUARD, "feed", "forget", name, "--config", config]
        return subprocess.run(words, capture_output=True, timeout=30, check=False).returncode

    assert [forget("new"), forget("old"), forget("old")] == [3, 0, 3]
    assert drained("--config", config).stderr == ""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", ["a directory that others may write", "no spool", "no feeds"])
def test_what_cannot_be_delivered_is_said_at_once(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    config = jsonl(folder) if what != "no feeds" else toml(folder)
    if what.startswith("a directory"):
        folder.chmod(0o777)
    with feeds("--config", str(config), "--drain") as feed:
        _, said = feed.communicate(timeout=30)
    assert feed.returncode == 3, said
    assert {"a directory that others may write": b"chmod go-w", "no spool": b"spool", "no feeds": b"[[feed]]"}[what] in said


@pytest.mark.timeout(60)
def test_a_line_that_is_no_event_is_told_and_the_others_are_delivered(tmp_path: Path) -> None:
    expected = made.write(tmp_path / "events.jsonl", made.events(4))
    lines = (tmp_path / "events.jsonl").read_bytes().splitlines()
    (tmp_path / "events.jsonl").write_bytes(b"\n".join([lines[0], b"{not json", *lines[1:], b'{"id": 3}', lines[0][:40]]))
    with feeds("--config", str(jsonl(tmp_path)), "--input", str(tmp_path / "events.jsonl"), "--drain") as feed:
        _, said = feed.communicate(timeout=30)
    assert feed.returncode == 3
    assert f"{tmp_path}/events.jsonl:2: ".encode() in said
    assert b"3 lines" in said
    assert made.ids(made_lines(tmp_path / "out.jsonl")) == expected


@pytest.mark.timeout(60)
def test_preview_shows_what_would_be_sent_and_moves_nothing(tmp_path: Path) -> None:
    made.write(tmp_path / "events.jsonl", [*made.events(5), *made.events(3, severity=Severity.HIGH)])
    drained("--config", str(jsonl(tmp_path)), "--input", str(tmp_path / "events.jsonl"))
    config = jsonl(tmp_path, 'minimum = "high"', name="alerts")
    words = [GUARD, "feed", "preview", "--since", "1h", "--config", str(config)]
    for _ in range(2):
        shown = subprocess.run(words, capture_output=True, check=True)
        assert len(shown.stdout.splitlines()) == 3
    assert len(made_lines(tmp_path / "out.jsonl")) == 8


@pytest.mark.timeout(60)
def test_a_test_event_goes_through_and_a_dead_destination_is_3(tmp_path: Path) -> None:
    config = toml(
        tmp_path,
        ['name = "file"', 'kind = "jsonl"', f'path = "{tmp_path}/out.jsonl"'],
        ['name = "dead"', 'kind = "syslog"', f'server = "127.0.0.1:{free_port()}"', "tls = false"],
    )
    tried = subprocess.run([GUARD, "feed", "test", "--config", str(config)], capture_output=True, text=True, check=False)
    assert tried.returncode == 3
    assert "file: acknowledged" in tried.stdout
    assert "dead: 127.0.0.1" in tried.stdout
    assert [json.loads(line)["rule"] for line in made_lines(tmp_path / "out.jsonl")] == ["feed.test"]


@pytest.mark.timeout(60)
def test_prometheus_counts_events_and_shows_how_feeds_do(tmp_path: Path) -> None:
    made.write(tmp_path / "events.jsonl", [*made.events(40), *made.events(7, severity=Severity.HIGH)])
    port = free_port()
    config = toml(
        tmp_path,
        ['name = "metrics"', 'kind = "prometheus"', f'listen = "127.0.0.1:{port}"', f'textfile = "{tmp_path}/guard.prom"'],
        ['name = "file"', 'kind = "jsonl"', f'path = "{tmp_path}/out.jsonl"'],
    )

    def scraped() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer:
                return answer.read().decode()  # type: ignore[no-any-return]
        except OSError:
            return ""

    with feeds("--config", str(config), "--input", str(tmp_path / "events.jsonl")):
        wanted = (
            'guard_events_total{control="telemetry",severity="high",verdict="observed"} 7.0',
            'guard_events_total{control="telemetry",severity="info",verdict="observed"} 40.0',
            'guard_feed_delivered_total{feed="file"} 47.0',
        )
        until(lambda: all(line in scraped() for line in wanted), 20, "the counters")
        until(lambda: wanted[0] in (tmp_path / "guard.prom").read_text(), 20, "the text file")


@pytest.mark.timeout(60)
def test_an_archive_has_a_file_a_day_and_survives_a_torn_frame(tmp_path: Path) -> None:
    zstd = shutil.which("zstd")
    if not zstd:
        pytest.skip("needs zstd")
    expected = made.write(tmp_path / "a.jsonl", made.events(500))
    more = made.write(tmp_path / "b.jsonl", made.events(100))
    config = toml(tmp_path, ['name = "archive"', 'kind = "archive"', f'path = "{tmp_path}/archive"', "batch = 100"])
    drained("--config", str(config), "--input", str(tmp_path / "a.jsonl"))
    parts = sorted((tmp_path / "archive").iterdir())
    with parts[-1].open("ab") as file:
        file.write(b"\x50\x2a\x4d\x18\x0a\x00\x00\x00guard1\xff\x00\x00\x00" + secrets.token_bytes(20))  # a crash in mid-frame
    drained("--config", str(config), "--input", str(tmp_path / "b.jsonl"))
    found = []
    for part in sorted((tmp_path / "archive").iterdir()):
        lines = subprocess.run([zstd, "-dc", str(part)], capture_output=True, check=True).stdout.splitlines()
        assert {json.loads(line)["time"][:10] for line in lines} == {part.name.removesuffix(".jsonl.zst")}
        found += made.ids(lines)
    assert found == expected + more


@pytest.fixture
def journal() -> Iterator[str]:
    """A real journald of a namespace of its own."""
    program = next((p for p in ("/lib/systemd/systemd-journald", "/usr/lib/systemd/systemd-journald") if os.path.exists(p)), "")
    if not program or not shutil.which("journalctl"):
        pytest.skip("needs systemd-journald")
    name = f"guard{secrets.token_hex(4)}"
    process = subprocess.Popen([program, name], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: os.path.exists(f"/run/systemd/journal.{name}/socket"), 20, "journald")
        yield name
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(f"/run/systemd/journal.{name}", ignore_errors=True)
        for place in (*Path("/run/log/journal").glob(f"*.{name}"), *Path("/var/log/journal").glob(f"*.{name}")):
            shutil.rmtree(place)


@pytest.mark.root
@pytest.mark.timeout(60)
def test_the_journal_has_every_event_and_can_be_asked_by_its_fields(tmp_path: Path, journal: str) -> None:
    expected = made.write(tmp_path / "events.jsonl", made.events(200))
    config = toml(tmp_path, [
        'name = "journal"', 'kind = "journald"', f'socket = "/run/systemd/journal.{journal}/socket"'
    ])  # fmt: skip
    drained("--config", str(config), "--input", str(tmp_path / "events.jsonl"))

    def ask(*words: str) -> list[dict[str, str]]:
        shown = subprocess.run(
            ["journalctl", f"--namespace={journal}", "-o", "json", "--no-pager", *words], capture_output=True, check=False
        )
        return [json.loads(line) for line in shown.stdout.splitlines()]

    until(lambda: len(ask("SYSLOG_IDENTIFIER=guard")) == 200, 20, "all entries")
    assert [json.loads(row["GUARD_EVENT"])["id"] for row in ask("SYSLOG_IDENTIFIER=guard")] == expected
    assert [row["MESSAGE"] for row in ask(f"GUARD_ID={expected[3]}")] == ["event 3"]


def test_an_entry_larger_than_a_datagram_and_with_line_ends_is_whole(tmp_path: Path) -> None:
    import socket

    from guard.feeds.config import loads
    from guard.feeds.journald import Journald, entry
    from guard.feeds.sink import Context, Item

    line = json.dumps({"id": "1", "message": "two\nlines", "detail": {"x": "y" * 1_000_000}}).encode()
    item = Item(1, "1", "info", line, line)
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.settimeout(10)
        feed = loads(f'schema = 1\n[[feed]]\nname = "j"\nkind = "journald"\nsocket = "{path}"\n'.encode(), "f").feeds[0]
        assert Journald(feed, Context()).deliver([item]).acked == [1]
        data, files, _, _ = socket.recv_fds(receiver, 65536, 4)
        assert data == b""
        with os.fdopen(files[0], "rb") as file:
            file.seek(0)
            assert file.read() == entry(item)
    assert b"MESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\n" in entry(item)
