"""What the node's spool takes: events a second, durably, by one process; and how long one is on its way.

    .venv/bin/python bench/spool.py [EVENTS]        (root: the service is the node's own)

Peers in the same run: a plain file of lines with one fdatasync a batch, which is what a log file costs at least;
and persist-queue's SQLite queue where it is installed (`pip install persist-queue`). Each figure is the best of three.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from guard.events.model import Event, Process, Severity, Tree, say
from guard.events.producer import Producer
from guard.events.reader import Reader
from guard.events.sink import SocketSink
from guard.events.spool import Spool
from guard.redact import bless

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 40_000
BATCH = 500
PRODUCERS = 8
GUARD = str(Path(sys.executable).with_name("guard"))


def make(name: str, count: int) -> list[Event]:
    """Events as a monitor makes them: half steps of sessions, half findings in a tree."""
    producer = Producer(name, "kernel")
    argv = (bless("chmod"), bless("o+w"), bless("file"))
    process = Process(4242, 4241, argv[0], argv, 3, bless("/home/ann/p"))
    tree = Tree(f"01a22d5e-0000-7000-8f62-{hash(name) & 0xFFFFFFFFFFFF:012x}", "claude", 4200, 1000, "ann")
    return [
        producer.event(
            "world-writable" if at % 2 else "session", "chmod" if at % 2 else "exec", Severity.LOW,
            say("number {}", at), tree=tree, process=process, mitre=("T1222.002",),
            detail={"object": bless(f"/home/ann/p/{at}"), "count": 1},
        )
        for at in range(count)
    ]  # fmt: skip


def best(run: Callable[[str], float], times: int = 3) -> float:
    found = []
    for _ in range(times):
        folder = tempfile.mkdtemp(prefix="guard-bench-", dir="/var/tmp")
        os.chmod(folder, 0o755)
        try:
            found.append(run(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return max(found)


def in_process(folder: str) -> float:
    lines = [each.to_json() for each in make("monitor", COUNT)]
    with Spool(folder + "/spool") as spool:
        begin = time.perf_counter()
        for at in range(0, COUNT, BATCH):
            spool.append(lines[at : at + BATCH])
        return COUNT / (time.perf_counter() - begin)


def plain_file(folder: str) -> float:
    lines = [each.to_json() + b"\n" for each in make("monitor", COUNT)]
    with open(folder + "/lines", "ab", buffering=0) as file:
        begin = time.perf_counter()
        for at in range(0, COUNT, BATCH):
            file.write(b"".join(lines[at : at + BATCH]))
            os.fdatasync(file.fileno())
        return COUNT / (time.perf_counter() - begin)


def persist_queue(folder: str) -> float:
    import persistqueue  # type: ignore[import-not-found]

    count = min(COUNT, 2000)  # it syncs each by itself
    lines = [each.to_json() for each in make("monitor", count)]
    queue = persistqueue.SQLiteQueue(folder + "/queue", auto_commit=False)
    begin = time.perf_counter()
    for at in range(0, count, BATCH):
        for line in lines[at : at + BATCH]:
            queue.put(line)
        queue.task_done()
    return count / (time.perf_counter() - begin)


class Service:
    """`guard serve events` in a folder."""

    def __init__(self, folder: str) -> None:
        self.state = folder + "/state"
        os.mkdir(folder + "/config", 0o755)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.bind(folder + "/notify")
            self.process = subprocess.Popen(
                [GUARD, "serve", "events", "--state", self.state, "--config", folder + "/config"],
                env={**os.environ, "NOTIFY_SOCKET": folder + "/notify"},
            )
            ready.recv(4096)
        self.socket = self.state + "/events.sock"

    def cpu(self) -> float:
        """Seconds of CPU so far."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mb(self) -> float:
        """Its largest size so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def end(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.wait()


def send(path: str, lines: list[bytes]) -> None:
    """Hand lines in as fast as they are taken, and wait until all are durable."""
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(path)
        writer = threading.Thread(target=channel.sendall, args=(b"".join(lines),))
        writer.start()
        rest = b""
        while True:
            *answers, rest = (rest + channel.recv(65536)).split(b"\n")
            if answers and json.loads(answers[-1])["through"] == len(lines):
                break
        writer.join()


COSTS: dict[str, float] = {}


def through_the_service(folder: str) -> float:
    parts = [[each.to_json() + b"\n" for each in make(f"load{at}", COUNT // PRODUCERS)] for at in range(PRODUCERS)]
    service = Service(folder)
    try:
        threads = [threading.Thread(target=send, args=(service.socket, part)) for part in parts]
        cpu, begin = service.cpu(), time.perf_counter()
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        rate = COUNT / (time.perf_counter() - begin)
        per_event = (service.cpu() - cpu) / COUNT * 1e6
        COSTS["cpu"] = min(COSTS.get("cpu", 1e9), per_event)
        COSTS["peak"] = max(COSTS.get("peak", 0), service.peak_mb())
        with Reader(service.state + "/spool") as reader:
            assert sum(1 for _ in reader.read(0, 10 * COUNT, quiet=True) if b'"load' in _.line) == COUNT
    finally:
        service.end()
    return rate


def latency(rate: int, seconds: float) -> tuple[float, float, float]:
    """From `emit` to a reader that sees it, at a rate: median, 99th percentile, worst, in milliseconds."""
    folder = tempfile.mkdtemp(prefix="guard-bench-", dir="/var/tmp")
    service = Service(folder)
    try:
        events = make("monitor", int(rate * seconds))
        sink = SocketSink(Producer("monitor", "kernel"), service.socket)
        born: dict[str, float] = {}
        took: list[float] = []

        def watch() -> None:
            with Reader(service.state + "/spool") as reader:
                after = 0
                while len(took) < len(events):
                    reader.wait(after, 1, step=0.002)
                    now = time.perf_counter()
                    for row in reader.read(after, 5000, quiet=True):
                        after = row.position
                        if row.id in born:
                            took.append(now - born[row.id])

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        begin = time.perf_counter()
        for at, each in enumerate(events):
            wait = begin + at / rate - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            born[each.id] = time.perf_counter()
            sink.emit(each)
        sink.flush(60)
        watcher.join(60)
        took.sort()
        return tuple(1000 * each for each in (statistics.median(took), took[len(took) * 99 // 100], took[-1]))  # type: ignore[return-value]
    finally:
        service.end()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    print(f"{COUNT} events of {len(make('x', 1)[0].to_json())} bytes, best of three, load {os.getloadavg()[0]:.1f}")
    rows: list[tuple[str, Callable[[str], float]]] = [
        ("guard, spool alone, batches of 500", in_process),
        ("peer: lines in a file, fdatasync a batch", plain_file),
    ]
    try:
        import persistqueue  # noqa: F401

        rows.append(("peer: persist-queue, SQLite", persist_queue))
    except ImportError:
        print("peer persist-queue: not installed")
    if os.geteuid() == 0:
        rows.append((f"guard, service, {PRODUCERS} producers over the socket", through_the_service))
    for name, run in rows:
        print(f"{name:<48} {best(run):>9.0f} events/s")
    if os.geteuid() == 0:
        print(f"service: {COSTS['cpu']:.1f} us of CPU an event, peak {COSTS['peak']:.0f} MB")
        middle, high, worst = latency(1000, 10)
        print(f"emit to reader at 1000/s: median {middle:.1f} ms, p99 {high:.1f} ms, worst {worst:.1f} ms")


if __name__ == "__main__":
    main()
