"""SIGKILL at any moment: what the service acknowledged is there, once, and the counts are exact.

The service runs in a fork of this process, so that it is at work within milliseconds of each start, its recovery too.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.events.model import Severity, Tree, say
from guard.events.producer import Producer
from guard.events.reader import Reader, rows_of
from guard.events.service import Service
from guard.events.sink import SocketSink
from guard.redact import bless
from tests.conftest import LONG, ROOT_HERE

KILLS, PRODUCERS = (200, 8) if LONG else (25, 4)


@pytest.fixture
def top() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="guard-kills-", dir="/var/tmp"))
    for name in ("state", "config"):
        (path / name).mkdir(mode=0o755)
    yield path
    shutil.rmtree(path)


def serve(top: Path) -> int:
    """Start the service in a child; returns its pid."""
    child = os.fork()
    if child == 0:
        try:
            service = Service(str(top / "state"), str(top / "config"), str(top / "state/events.sock"))
            while True:
                service.attempt(0.2)
        finally:
            os._exit(1)
    return child


@pytest.mark.skipif(not ROOT_HERE, reason="needs root: the service renames the producers of others")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost_or_doubled_by_kills_at_any_moment(top: Path) -> None:
    stop = threading.Event()
    counts = [0] * PRODUCERS
    flushed = [False] * PRODUCERS
    child = serve(top)

    def produce(at: int) -> None:
        producer = Producer(f"load{at}", "kernel")
        sink = SocketSink(producer, str(top / "state/events.sock"), most=1_000_000)
        tree = Tree(f"01a22d5e-0000-7000-8f62-{at:012x}", "claude", 7, 4711, "ann")
        while not stop.is_set():
            for _ in range(100):
                counts[at] += 1
                sink.emit(
                    producer.event("world-writable", "chmod", Severity.MEDIUM, say("load"), tree=tree,
                                   detail={"object": bless(f"/f{counts[at]}"), "number": counts[at]})
                )  # fmt: skip
            while not stop.is_set() and not sink.flush(0.2):
                pass  # the next follow when these are durable, whatever was killed meanwhile
        flushed[at] = sink.flush(120) and not sink.lost
        sink.close()

    threads = [threading.Thread(target=produce, args=(at,)) for at in range(PRODUCERS)]
    for each in threads:
        each.start()
    try:
        for _ in range(KILLS):
            time.sleep(random.uniform(0.005, 0.25))  # the random point is the test
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            child = serve(top)
        stop.set()
        for each in threads:
            each.join()
        assert all(flushed)
    finally:
        stop.set()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with Reader(str(top / "state/spool")) as reader:
        seen: dict[str, list[int]] = {}
        sent = 0
        for row in rows_of(reader, quiet=True):
            whole = json.loads(row.line)
            if whole["rule"] == "chmod":
                seen.setdefault(whole["producer"], []).append(whole["detail"]["number"])
                sent += not row.quiet
        for at in range(PRODUCERS):
            assert seen[f"load{at}"] == list(range(1, counts[at] + 1))
        assert reader.verify().broken == 0
        # The budget counted each of them once, whatever was sent again after a kill.
        states = reader._db.execute("SELECT value FROM kept WHERE kind = 'budget'").fetchall()
        folded = sum(sum(json.loads(value)["flood"]["counts"].values()) for (value,) in states)
        assert folded + sent == sum(counts)
