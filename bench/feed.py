"""What a feed into JetStream carries: rate, latency, memory; beside nats-py by itself, in the same run.

Three nats-server nodes on this machine, replicas 3, file storage. Rounds in turns:

  guard      `guard feed run --drain` of a spool with COUNT events: events a second from its start to its end
  nats-py    the same lines by nats-py alone, 2000 in flight, neither spool nor cursor: the peer
  latency    RATE events a second through the node's service (as root; else straight into the spool) for
             SECONDS: time in the stream less time of the event
  memory     the peak (VmHWM) of the two processes of `guard feed run` while it delivers COUNT events

Environment: GUARD_BENCH_ROUNDS (3), GUARD_BENCH_COUNT (50000), GUARD_BENCH_RATE (1000), GUARD_BENCH_SECONDS (20).
The last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import stage

from guard.events.model import Event
from guard.events.producer import Producer
from guard.events.sink import SocketSink
from guard.events.spool import Spool
from tests.conftest import GUARD
from tests.feeds import made
from tests.feeds.cluster import Cluster, feed_table, until

ROUNDS = int(os.environ.get("GUARD_BENCH_ROUNDS", "3"))
COUNT = int(os.environ.get("GUARD_BENCH_COUNT", "50000"))
RATE = int(os.environ.get("GUARD_BENCH_RATE", "1000"))
SECONDS = int(os.environ.get("GUARD_BENCH_SECONDS", "20"))


def filled(folder: Path, count: int) -> list[bytes]:
    """Make a spool with so many events; returns their lines."""
    events = list(made.events(count))
    with Spool(str(folder / "spool")) as spool:
        for at in range(0, count, 5000):
            spool.append(events[at : at + 5000])
    return [event.to_json() for event in events]


def configured(cluster: Cluster, folder: Path, stream: str) -> str:
    """A feeds.toml of its own stream."""
    text = feed_table(cluster, folder).replace('"GUARD"', f'"{stream}"').replace('"guard.events"', f'"{stream}"')
    (folder / "feeds.toml").write_text(text)
    return str(folder / "feeds.toml")


class Peak:
    """The highest VmHWM of a process and its children, looked at while they run."""

    def __init__(self, pid: int) -> None:
        self.kilobytes = 0
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            self.kilobytes = max(self.kilobytes, sum(map(_peak, [self._pid, *_children(self._pid)])))

    def end(self) -> int:
        """Stop looking; returns kB."""
        self._stop.set()
        self._thread.join()
        return self.kilobytes


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def by_guard(cluster: Cluster, base: Path, turn: int) -> tuple[float, float, int]:
    """Returns events a second, CPU seconds, and the peak in kB."""
    folder = Path(tempfile.mkdtemp(dir=base))
    filled(folder, COUNT)
    config = configured(cluster, folder, f"guard{turn}")
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.Popen([GUARD, "feed", "run", "--config", config, "--drain"])
    peak = Peak(process.pid)
    assert process.wait(300) == 0
    took = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert cluster.stored(f"guard{turn}") == COUNT
    return COUNT / took, cpu, peak.end()


def by_peer(cluster: Cluster, base: Path, turn: int) -> tuple[float, float]:
    """Returns events a second and CPU seconds of nats-py by itself."""
    lines = [event.to_json() for event in made.events(COUNT)]
    ids = made.ids(lines)

    async def publish() -> float:
        import nats
        from nats.js.api import StorageType, StreamConfig

        client = await nats.connect(cluster.urls, user="guard", password=cluster.password)
        context = client.jetstream(timeout=10)
        await context.add_stream(
            StreamConfig(name=f"peer{turn}", subjects=[f"peer{turn}.>"], num_replicas=3, storage=StorageType.FILE,
                         duplicate_window=600)
        )  # fmt: skip
        slots = asyncio.Semaphore(2000)

        async def one(identity: str, line: bytes) -> None:
            async with slots:
                await context.publish(f"peer{turn}.node", line, headers={"Nats-Msg-Id": identity})

        began = time.monotonic()
        await asyncio.gather(*map(one, ids, lines))
        took = time.monotonic() - began
        await client.close()
        return took

    before = time.process_time()
    took = asyncio.run(publish())
    return COUNT / took, time.process_time() - before


def latencies(cluster: Cluster, base: Path) -> list[float]:
    """Seconds from an event's own time to its time in the stream, at RATE a second."""
    folder = Path(tempfile.mkdtemp(dir=base))
    config = configured(cluster, folder, "latency")
    with accepting(folder) as emit:
        return _latencies(cluster, config, emit)


@contextmanager
def accepting(folder: Path) -> Iterator[Callable[[list[Event]], object]]:
    """What takes events into the folder's spool: its service, or, where we are not root, the spool itself."""
    if os.geteuid() != 0:
        with Spool(str(folder / "spool")) as spool:
            yield spool.append
        return
    (folder / "config").mkdir()
    (folder / "config/events.toml").write_text(f'schema = 1\n[spool]\npath = "{folder}/spool"\n')
    command = [GUARD, "serve", "events", "--state", str(folder / "state"), "--config", str(folder / "config")]
    service = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        until(lambda: (folder / "state/events.sock").exists(), 30, "the service")
        sink = SocketSink(Producer("bench"), str(folder / "state/events.sock"), most=1_000_000)

        def emit(events: list[Event]) -> None:
            for event in events:
                sink.emit(event)

        yield emit
        sink.close()
    finally:
        service.terminate()
        service.wait(30)


def _latencies(cluster: Cluster, config: str, emit: Callable[[list[Event]], object]) -> list[float]:
    process = subprocess.Popen([GUARD, "feed", "run", "--config", config])
    try:
        emit(list(made.events(10, producers=1)))
        until(lambda: cluster.stored("latency") >= 10, 60, "the first events")
        source = made.events(RATE * SECONDS, producers=4)
        begin, sent = time.monotonic(), 0
        while sent < RATE * SECONDS:
            due = int((time.monotonic() - begin) * RATE) - sent
            if due < 10:
                time.sleep(0.002)
                continue
            batch = [next(source) for _ in range(min(due, RATE * SECONDS - sent))]
            emit(batch)
            sent += len(batch)
        until(lambda: cluster.stored("latency") >= 10 + RATE * SECONDS, 60, "all events")
    finally:
        process.terminate()
        process.wait(20)
    return asyncio.run(_in_stream(cluster))


async def _in_stream(cluster: Cluster) -> list[float]:
    import nats

    client = await nats.connect(cluster.urls, user="guard", password=cluster.password)
    context = client.jetstream(timeout=10)
    left = (await context.stream_info("latency")).state.messages
    subscription = await context.subscribe("", stream="latency", ordered_consumer=True)
    found = []
    for _ in range(left):
        message = await subscription.next_msg(timeout=20)
        event = json.loads(message.data)
        if event["rule"] == "load.test":
            made_at = datetime.fromisoformat(event["time"]).timestamp()
            found.append(message.metadata.timestamp.timestamp() - made_at)
    await client.close()
    return found[10:]


def main() -> None:
    """Measure and print; the last line is JSON."""
    guard: list[tuple[float, float, int]] = []
    peer: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="guard-bench-", dir="/var/tmp") as name:
        base = Path(name)
        (base / "cluster").mkdir()
        with Cluster(base / "cluster") as cluster:
            for turn in range(ROUNDS):
                guard.append(by_guard(cluster, base, turn))
                peer.append(by_peer(cluster, base, turn))
            seen = sorted(latencies(cluster, base))
    result = {
        "guard_per_s": statistics.median(each[0] for each in guard),
        "peer_per_s": statistics.median(each[0] for each in peer),
        "guard_cpu_us": min(each[1] for each in guard) / COUNT * 1e6,
        "peer_cpu_us": min(each[1] for each in peer) / COUNT * 1e6,
        "peak_mb": max(each[2] for each in guard) / 1024,
        "latency_ms": {p: round(seen[int(len(seen) * q)] * 1000, 1) for p, q in (("p50", 0.5), ("p99", 0.99))},
        "latency_most_ms": round(seen[-1] * 1000, 1),
    }
    rows = [
        (f"{COUNT} events", "guard feed run", "nats-py alone"),
        ("events a second, median", f"{result['guard_per_s']:.0f}", f"{result['peer_per_s']:.0f}"),
        ("CPU an event, us, least", f"{result['guard_cpu_us']:.0f}", f"{result['peer_cpu_us']:.0f}"),
        ("peak memory, MB", f"{result['peak_mb']:.0f}", ""),
        (f"latency at {RATE}/s, ms: p50, p99, most", "{p50}, {p99}".format(**result["latency_ms"])
         + f", {result['latency_most_ms']}", ""),
    ]  # fmt: skip
    print(stage.table(rows))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
