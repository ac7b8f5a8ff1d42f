"""A fleet of 1,740 nodes against a real three-node JetStream cluster, all on this machine, with the site's own sinks.

Every node has a connection and a user of its own, who may publish as that node alone. The load is that of agents at
20.8 times a person's rate of commands, in the worst case that each command is an event:

    nodes x sessions a node x 20.8 x a person's commands an hour / 3600, and a heartbeat a node every 300 s

  paced     that rate for SECONDS: time to the PubAck, and CPU of the servers and of the site's sinks
  burst     every node sends BACKLOG events at once, as after an outage: events a second
  sinks     `guard feed run` with [source] meanwhile: ledger (incidents), SIEM (jsonl), archive; how far behind they end

Environment: GUARD_BENCH_NODES (1740), GUARD_BENCH_SESSIONS (4), GUARD_BENCH_COMMANDS (60 an hour), GUARD_BENCH_SECONDS
(30), GUARD_BENCH_BACKLOG (30). The last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import secrets
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import stage

from guard.events.model import say
from guard.events.producer import Producer
from guard.events.wire import Severity
from guard.fleet.store import Store
from tests.conftest import GUARD
from tests.feeds.cluster import Cluster, until

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

NODES = int(os.environ.get("GUARD_BENCH_NODES", "1740"))
SESSIONS = int(os.environ.get("GUARD_BENCH_SESSIONS", "4"))
COMMANDS = float(os.environ.get("GUARD_BENCH_COMMANDS", "60"))
SECONDS = int(os.environ.get("GUARD_BENCH_SECONDS", "30"))
BACKLOG = int(os.environ.get("GUARD_BENCH_BACKLOG", "30"))
TIMES_A_PERSON = 20.8
HEARTBEAT = 300
RATE = NODES * (SESSIONS * TIMES_A_PERSON * COMMANDS / 3600 + 1 / HEARTBEAT)


class Node:
    """One node: its connection, its producer, and what is not acknowledged yet."""

    def __init__(self, number: int, client: Client, seen: list[float]) -> None:
        self.host = f"n{number}"
        self.waiting: dict[str, float] = {}
        self._client = client
        self._inbox = f"_INBOX.n{number}.acks."
        self._producer = Producer("monitor", host=self.host)
        self._seen = seen
        self._number = 0
        self._room = asyncio.Event()

    async def listen(self) -> None:
        """Hear acknowledgements."""
        await self._client.subscribe(f"{self._inbox}*", cb=self._answered)

    async def send(self) -> None:
        """Send one event; at most 20 of a node are on their way."""
        while len(self.waiting) >= 20:
            self._room.clear()
            await self._room.wait()
        event = self._producer.event("pipe-to-shell", "curl.to.shell", Severity.MEDIUM, SAID)
        self._number += 1
        reply = f"{self._inbox}{self._number}"
        self.waiting[reply] = time.perf_counter()
        await self._client.publish(f"guard.events.{self.host}", event.to_json(), reply, {"Nats-Msg-Id": event.id})

    async def _answered(self, message: Msg) -> None:
        assert b'"stream"' in message.data, message.data
        self._seen.append(time.perf_counter() - self.waiting.pop(message.subject))
        self._room.set()

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


SAID = say("a shell was fed from the network, pid {}", 1234)


async def connected(cluster: Cluster, passwords: list[str], seen: list[float]) -> list[Node]:
    """Connect every node, fifty at a time."""
    import nats

    slots = asyncio.Semaphore(50)

    async def one(number: int) -> Node:
        async with slots:
            client = await nats.connect(
                cluster.urls[number % 3], user=f"n{number}", password=passwords[number],
                inbox_prefix=f"_INBOX.n{number}".encode(), connect_timeout=30, ping_interval=60,
            )  # fmt: skip
            node = Node(number, client, seen)
            await node.listen()
            return node

    return list(await asyncio.gather(*map(one, range(NODES))))


async def acknowledged(nodes: list[Node]) -> None:
    """Wait until nothing is on its way."""
    while any(node.waiting for node in nodes):
        await asyncio.sleep(0.01)


async def paced(nodes: list[Node]) -> None:
    """Send at RATE for SECONDS, each time from a node by chance."""
    began, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < SECONDS:
        while sent < int(elapsed * RATE):
            await random.choice(nodes).send()
            sent += 1
        await asyncio.sleep(0.002)
    await acknowledged(nodes)


async def burst(nodes: list[Node]) -> None:
    """Every node sends its backlog."""

    async def one(node: Node) -> None:
        for _ in range(BACKLOG):
            await node.send()

    await asyncio.gather(*map(one, nodes))
    await acknowledged(nodes)


def cpu(pids: list[int]) -> float:
    """CPU seconds of processes so far."""
    total = 0
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(words[11]) + int(words[12])
    return total / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """A process and its children."""
    try:
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except OSError:
        return [pid]


def site(cluster: Cluster, base: Path) -> Path:
    """The site's feeds.toml with one consumer a sink."""
    password = base / "password"
    password.touch(0o600)
    password.write_text(cluster.password)
    servers = ", ".join(f'"{url}"' for url in cluster.urls)
    path = base / "site.toml"
    path.write_text(
        f'schema = 1\n[source]\nservers = [{servers}]\nuser = "guard"\npassword_file = "{password}"\n'
        f'[[feed]]\nname = "ledger"\nkind = "incidents"\npath = "{base}/site.db"\n'
        f'[[feed]]\nname = "siem"\nkind = "jsonl"\npath = "{base}/siem.jsonl"\n'
        f'[[feed]]\nname = "archive"\nkind = "archive"\npath = "{base}/archive"\n'
    )
    return path


async def stream(cluster: Cluster) -> None:
    """Make the stream, as the site does once."""
    import nats
    from nats.js.api import StorageType, StreamConfig

    client = await nats.connect(cluster.urls, user="guard", password=cluster.password)
    await client.jsm(timeout=30).add_stream(
        StreamConfig(name="GUARD", subjects=["guard.events.>"], num_replicas=3, storage=StorageType.FILE,
                     duplicate_window=600)
    )  # fmt: skip
    await client.close()


async def measured(cluster: Cluster, passwords: list[str], sinks: int) -> dict[str, float]:
    """Run both loads."""
    await stream(cluster)
    seen: list[float] = []
    nodes = await connected(cluster, passwords, seen)
    servers = [each.pid for each in cluster.nodes.values()]

    async def timed(work: Callable[[list[Node]], Awaitable[None]]) -> tuple[float, float, float]:
        before = (cpu(servers), cpu(family(sinks)), time.monotonic())
        await asyncio.wait_for(work(nodes), 300)
        took = time.monotonic() - before[2]
        return took, (cpu(servers) - before[0]) / took, (cpu(family(sinks)) - before[1]) / took

    took, servers_used, sinks_used = await timed(paced)
    count, times = len(seen), sorted(seen)
    burst_took, burst_used, _ = await timed(burst)
    for node in nodes:
        await node.close()
    return {
        "events": len(seen),
        "wanted_per_s": RATE,
        "rate_per_s": count / took,
        "ack_p50_ms": times[count // 2] * 1000,
        "ack_p99_ms": times[int(count * 0.99)] * 1000,
        "server_cores": servers_used,
        "sink_cores": sinks_used,
        "burst_per_s": (len(seen) - count) / burst_took,
        "burst_server_cores": burst_used,
    }


def main() -> None:
    """Measure and print; the last line is JSON."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    passwords = [secrets.token_hex(8) for _ in range(NODES)]
    users = [
        f'{{user: n{number}, password: "{password}", permissions: {{publish: ["guard.events.n{number}"],'
        f' subscribe: ["_INBOX.n{number}.>"]}}}}'
        for number, password in enumerate(passwords)
    ]
    with tempfile.TemporaryDirectory(prefix="guard-bench-", dir="/var/tmp") as name:
        base = Path(name)
        (base / "cluster").mkdir()
        own = secrets.token_hex(12)
        with Cluster(base / "cluster", ",\n".join([*users, f'{{user: guard, password: "{own}"}}'])) as cluster:
            cluster.password = own
            command = [GUARD, "feed", "run", "--config", str(site(cluster, base)), "--state", str(base)]
            sinks = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            try:
                result = asyncio.run(measured(cluster, passwords, sinks.pid))
                ended, wanted = time.monotonic(), int(result["events"])

                def through() -> int:
                    with Store(f"{base}/site.db", write=False) as store:
                        return store.count()

                until(lambda: through() >= wanted, 300, "all events in the ledger")
                result["ledger_behind_s"] = time.monotonic() - ended
                until(lambda: _lines(base / "siem.jsonl") >= wanted, 300, "all events at the SIEM")
                with Store(f"{base}/site.db", write=False) as store:
                    assert store.gaps() == []
                    assert store.count() == wanted
                    assert len(store.nodes()) == NODES
            finally:
                sinks.terminate()
                sinks.wait(30)
            disk = [_size(base / "cluster" / f"js{number}") for number in range(3)]
        result["disk_bytes_an_event"] = statistics.median(disk) / wanted
        result["ledger_bytes_an_event"] = (base / "site.db").stat().st_size / wanted
        result["archive_bytes_an_event"] = _size(base / "archive") / wanted
    rows = [
        (f"{NODES} nodes, {SESSIONS} sessions a node, {TIMES_A_PERSON} x {COMMANDS:g} commands an hour", ""),
        ("paced, events a second: wanted, done", f"{RATE:.0f}, {result['rate_per_s']:.0f}"),
        ("  to the PubAck, ms: p50, p99", f"{result['ack_p50_ms']:.1f}, {result['ack_p99_ms']:.1f}"),
        ("  CPU of three servers, cores", f"{result['server_cores']:.2f}"),
        ("  CPU of three sinks, cores", f"{result['sink_cores']:.2f}"),
        ("burst of all nodes, events a second", f"{result['burst_per_s']:.0f}"),
        ("  CPU of three servers, cores", f"{result['burst_server_cores']:.2f}"),
        ("ledger behind at the end, s", f"{result['ledger_behind_s']:.1f}"),
        ("bytes an event: a server, ledger, archive", f"{result['disk_bytes_an_event']:.0f}, "
         f"{result['ledger_bytes_an_event']:.0f}, {result['archive_bytes_an_event']:.0f}"),
    ]  # fmt: skip
    print(stage.table(rows))
    print(json.dumps(result))


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _size(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


if __name__ == "__main__":
    main()
