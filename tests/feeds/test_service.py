"""From producers through the node's service and spool into JetStream: nothing missing, twice, or out of count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from guard.events.model import word
from guard.events.producer import Producer
from guard.events.reader import Reader, rows_of
from guard.events.spool import Spool
from guard.events.wire import Severity
from guard.fleet.heartbeat import NodeBeat
from tests.conftest import GUARD, LONG, ROOT_HERE
from tests.feeds import made
from tests.feeds.cluster import Cluster, feed_table, server, until
from tests.feeds.running import feeds

PRODUCER = """
import sys
sys.path[:0] = {path!r}
from guard.events.model import say
from guard.events.producer import Producer
from guard.events.sink import SocketSink
from guard.events.wire import Severity
producer = Producer(sys.argv[1])
sink = SocketSink(producer, sys.argv[2], most=10**6)
for number in range(int(sys.argv[3])):
    event = producer.event("telemetry", "load.test", Severity.INFO, say("event {{}}", number))
    print(event.id)
    sink.emit(event)
assert sink.flush(200), "not all was accepted"
"""


@contextmanager
def service(state: Path, config: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`guard serve events` in directories of its own."""
    for each, mode in ((state, 0o700), (config, 0o755)):
        each.mkdir(mode=mode, exist_ok=True)
    process = subprocess.Popen(
        [GUARD, "serve", "events", "--state", str(state), "--config", str(config)], stdin=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != "INVOCATION_ID"},
    )  # fmt: skip
    try:
        until(lambda: (state / "events.sock").exists(), 30, "the service")
        yield process
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.root
@pytest.mark.skipif(not server(), reason="needs nats-server")
@pytest.mark.timeout(200 if not LONG else 500)
def test_eight_producers_through_a_cluster_whose_leader_is_killed(tmp_path: Path) -> None:
    each = 12_500 if LONG else 2_500
    state, folder = tmp_path / "state", tmp_path / "cluster"
    folder.mkdir()
    with Cluster(folder) as cluster, service(state, tmp_path / "config"):
        config = tmp_path / "feeds.toml"
        config.write_text(feed_table(cluster, tmp_path).replace(f'"{tmp_path}/spool"', f'"{state}/spool"'))
        with feeds("--config", str(config), "--state", str(state)) as feed:
            producers = [
                subprocess.Popen(
                    [sys.executable, "-c", PRODUCER.format(path=sys.path), f"p{n}", str(state / "events.sock"), str(each)],
                    stdout=subprocess.PIPE,
                )
                for n in range(8)
            ]
            until(lambda: cluster.stored() > each, 100, "the first events")
            leader = cluster.leader()
            cluster.kill(leader)
            expected = [line for process in producers for line in process.communicate(timeout=200)[0].decode().split()]
            cluster.start(leader)
            assert [process.returncode for process in producers] == [0] * 8
            with Reader(str(state / "spool")) as reader:
                kept = [json.loads(row.line) for row in rows_of(reader)]
                assert {event["id"] for event in kept if event["rule"] == "load.test"} == set(expected)
                until(lambda: reader.cursor("siem") == reader.high(), 150, "all events")
            until(cluster.healthy, 60, "a healthy cluster")
            feed.terminate()
            assert feed.wait(30) == 0
        lines = [line for line in cluster.messages() if json.loads(line)["rule"] == "load.test"]
    found = made.ids(lines)
    assert len(expected) == 8 * each
    assert set(expected) - set(found) == set()
    assert made.twice(found) == 0
    assert made.gaps(lines) == 0


@pytest.mark.root
@pytest.mark.timeout(100)
def test_a_heartbeat_says_backend_controls_and_feeds(tmp_path: Path) -> None:
    state, config = tmp_path / "state", tmp_path / "config"
    config.mkdir()
    (config / "events.toml").write_text("schema = 1\n[heartbeat]\nevery_s = 1\n")
    (config / "feeds.toml").write_text(
        f'schema = 1\n[[feed]]\nname = "file"\nkind = "jsonl"\npath = "{tmp_path}/out.jsonl"\n'
    )
    out = tmp_path / "out.jsonl"

    def last() -> dict[str, object]:
        beats = [json.loads(line) for line in out.read_bytes().splitlines()] if out.exists() else []
        beats = [event["detail"] for event in beats if event["rule"] == "heartbeat"]
        return beats[-1] if beats else {}

    with service(state, config):
        (state / "monitor.json").write_text(json.dumps({"boot": "", "until": 4e9, "backend": "tracepoint", "trees": []}))
        # The directories of the service say where the feeds' configuration and the spool are.
        with feeds("--state", str(state), env={"GUARD_CONFIG_DIR": str(config)}):
            until(lambda: "controls" in last() and "feeds" in last(), 80, "a heartbeat with everything")
    detail = last()
    assert detail["backend"] == "tracepoint"
    assert detail["controls"]["files"] == "enforced"  # type: ignore[index]
    assert detail["feeds"]["file"]["refused"] == 0  # type: ignore[index]
    assert detail["every_s"] == 1


@pytest.mark.root
@pytest.mark.timeout(60)
def test_a_loss_is_told_through_the_service_that_has_the_spool(tmp_path: Path) -> None:
    from guard.feeds.telling import Teller

    assert ROOT_HERE
    state = tmp_path / "state"
    with service(state, tmp_path / "config"):
        teller = Teller(str(state / "spool"), Producer("feed:siem"), str(state / "events.sock"))
        event = teller.producer.event("telemetry", "feed.cut", Severity.LOW, word("cut"))
        assert teller.put(event) == ""
        assert teller.put(event) == ""
    with Spool(str(state / "spool")) as spool:
        assert [row.id for row in spool.read(0) if b"feed.cut" in row.line] == [event.id]


def test_a_monitor_that_watches_no_more_is_no_backend(tmp_path: Path) -> None:
    beat = NodeBeat(str(tmp_path), str(tmp_path), str(tmp_path / "spool"), look=("/bin/false",), clock=lambda: 1000.0)
    assert beat.backend() == ""
    for until_then, expected in ((900.0, "lsm"), (500.0, "none")):
        (tmp_path / "monitor.json").write_text(json.dumps({"boot": "x", "until": until_then, "backend": "lsm"}))
        assert beat.backend() == expected
    (tmp_path / "monitor.json").write_text("{")
    assert beat.backend() == ""


def test_the_answer_that_a_timer_left_is_told_while_it_is_fresh(tmp_path: Path) -> None:
    from guard.events.heartbeat import Beat

    def controls(confined: bool) -> object:
        beat = NodeBeat(str(tmp_path), str(tmp_path), str(tmp_path / "spool"), look=("/bin/false",), confined=confined)
        event = beat(Producer("service"), Beat(300, 1, "0" * 64, 1, 0, 0, 0, 0))
        beat.close()
        return event.detail.get("controls")

    answer = tmp_path / "doctor.json"
    assert controls(confined=True) is None
    answer.write_text(json.dumps({"controls": {"files": {"status": "enforced"}, "bind": {"status": "absent"}}}))
    assert controls(confined=True) == controls(confined=False) == {"files": "enforced", "bind": "absent"}
    os.utime(answer, (1e9, 1e9))
    assert controls(confined=True) is None
