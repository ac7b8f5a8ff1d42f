"""JetStream: what was acknowledged is in the cluster once, whatever happens to its leader or to guard."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import GUARD, LONG
from tests.feeds import made
from tests.feeds.cluster import Cluster, feed_table, server, until

pytestmark = pytest.mark.skipif(not server(), reason="needs nats-server")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    with Cluster(folder) as running:
        yield running


def start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([GUARD, "feed", "run", *words], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


def ended(process: subprocess.Popen[bytes], seconds: float) -> str:
    try:
        _, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, said
    return said.decode()


def all_there(cluster: Cluster, expected: list[str]) -> None:
    stored = cluster.messages()
    found = made.ids(stored)
    assert set(expected) - set(found) == set()
    assert made.twice(found) == 0
    assert made.gaps(stored) == 0


@pytest.mark.timeout(150 if not LONG else 400)
def test_a_killed_leader_costs_no_event_and_delivers_none_twice(cluster: Cluster, tmp_path: Path) -> None:
    count = 100_000 if LONG else 20_000
    expected = made.write(tmp_path / "events.jsonl", made.events(count))
    config = tmp_path / "feeds.toml"
    config.write_text(feed_table(cluster, tmp_path))
    feed = start("--config", str(config), "--input", str(tmp_path / "events.jsonl"), "--drain")
    try:
        until(lambda: cluster.stored() > count // 20, 60, "the first events")
        leader = cluster.leader()
        cluster.kill(leader)
        until(lambda: cluster.stored() > count // 2 or feed.poll() is not None, 120, "events after the leader's death")
        cluster.start(leader)
        ended(feed, 120)
    finally:
        feed.kill()
    until(cluster.healthy, 40, "a healthy cluster")
    all_there(cluster, expected)


@pytest.mark.timeout(150)
def test_a_killed_feed_goes_on_where_it_was(cluster: Cluster, tmp_path: Path) -> None:
    count = 20_000
    expected = made.write(tmp_path / "events.jsonl", made.events(count))
    config = tmp_path / "feeds.toml"
    config.write_text(feed_table(cluster, tmp_path, more=["batch = 500", "in_flight = 200"]))
    first = start("--config", str(config), "--input", str(tmp_path / "events.jsonl"), "--drain")
    until(lambda: cluster.stored() > 2000, 60, "the first events")
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    # Its feed's process dies with it: the lock is free, or this would end with 3.
    status = json.loads((tmp_path / "spool.feeds/siem.json").read_text())
    until(lambda: not os.path.exists(f"/proc/{status['pid']}"), 10, "the end of the feed's process")
    ended(start("--config", str(config), "--input", str(tmp_path / "events.jsonl"), "--drain"), 100)
    all_there(cluster, expected)


@pytest.mark.timeout(150)
def test_an_engine_that_is_down_costs_nothing_but_time(cluster: Cluster, tmp_path: Path) -> None:
    expected = made.write(tmp_path / "events.jsonl", made.events(3000))
    config = tmp_path / "feeds.toml"
    config.write_text(feed_table(cluster, tmp_path, more=["backoff_most = 0.5"]))
    for number in range(3):
        cluster.kill(number)
    feed = start("--config", str(config), "--input", str(tmp_path / "events.jsonl"), "--drain")
    try:
        status = tmp_path / "spool.feeds/siem.json"
        until(lambda: status.exists() and json.loads(status.read_text())["retries"] >= 3, 60, "three failed tries")
        for number in range(3):
            cluster.start(number)
        ended(feed, 100)
    finally:
        feed.kill()
    all_there(cluster, expected)


@pytest.mark.timeout(150)
def test_a_cluster_that_freezes_in_the_middle_costs_nothing_but_time(cluster: Cluster, tmp_path: Path) -> None:
    count = 20_000
    expected = made.write(tmp_path / "events.jsonl", made.events(count))
    config = tmp_path / "feeds.toml"
    config.write_text(feed_table(cluster, tmp_path, more=["timeout = 1", "backoff_most = 0.5", "batch = 2000"]))
    feed = start("--config", str(config), "--input", str(tmp_path / "events.jsonl"), "--drain")
    try:
        until(lambda: cluster.stored() > 1000, 60, "the first events")
        # Its sockets stay open and nothing answers: only the publisher's own clock can tell.
        for node in cluster.nodes.values():
            node.send_signal(signal.SIGSTOP)
        status = tmp_path / "spool.feeds/siem.json"
        until(lambda: json.loads(status.read_text())["retries"] >= 2, 60, "two rebuilt connections")
        for node in cluster.nodes.values():
            node.send_signal(signal.SIGCONT)
        ended(feed, 100)
    finally:
        feed.kill()
        for node in cluster.nodes.values():
            node.send_signal(signal.SIGCONT)
    until(cluster.healthy, 60, "a healthy cluster")
    all_there(cluster, expected)


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="ten times; GUARD_TEST_LONG=1 runs it")
@pytest.mark.timeout(900)
def test_a_killed_follower_never_holds_the_feed_up(cluster: Cluster, tmp_path: Path) -> None:
    expected: list[str] = []
    config = tmp_path / "feeds.toml"
    config.write_text(feed_table(cluster, tmp_path))

    def deliver(before: int) -> None:
        feed = start("--config", str(config), "--input", str(tmp_path / "events.jsonl"), "--drain")
        try:
            until(lambda: cluster.stored() > before + 2000, 60, "the first events")
            follower = next(number for number in cluster.nodes if number != cluster.leader())
            cluster.kill(follower)
            until(lambda: cluster.stored() > before + 10_000 or feed.poll() is not None, 60, "half of the events")
            cluster.start(follower)
            ended(feed, 80)
        finally:
            feed.kill()

    for _ in range(10):
        expected += made.write(tmp_path / "events.jsonl", made.events(20_000))
        deliver(cluster.stored())
        until(cluster.healthy, 60, "a healthy cluster")
    found = made.ids(cluster.messages())
    assert set(expected) - set(found) == set()
    assert made.twice(found) == 0
