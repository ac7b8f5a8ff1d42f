"""A real NATS JetStream cluster of three nodes on loopback, stopped node by node by pid."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.beds.ports import free_ports


def server() -> str:
    """nats-server of the wheel beside this Python, or the system's."""
    beside = Path(sys.prefix) / "bin" / "nats-server"
    return str(beside) if beside.exists() else shutil.which("nats-server") or ""


def until(true: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for something that other processes bring about."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what} did not come about within {seconds} s"
        time.sleep(0.02)


class Cluster:
    """Three nodes; `users` replaces the one user `guard` by a list of the server's own configuration."""

    def __init__(self, folder: Path, users: str = "") -> None:
        self.folder = folder
        self.password = secrets.token_hex(12)
        self.users = users or f'{{user: guard, password: "{self.password}"}}'
        ports = free_ports(9)
        self.ports, self.routes, self.monitors = ports[:3], ports[3:6], ports[6:]
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def urls(self) -> list[str]:
        return [f"nats://127.0.0.1:{port}" for port in self.ports]

    def __enter__(self) -> Cluster:
        for number in range(3):
            routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self.routes)
            (self.folder / f"n{number}.conf").write_text(
                f"server_name: n{number}\nlisten: 127.0.0.1:{self.ports[number]}\n"
                f"http: 127.0.0.1:{self.monitors[number]}\n"
                f'jetstream {{ store_dir: "{self.folder}/js{number}", max_mem: 256M, max_file: 4G }}\n'
                f"cluster {{ name: guard, listen: 127.0.0.1:{self.routes[number]}, routes: [{routes}] }}\n"
                f"authorization {{ users: [{self.users}] }}\n"
            )
            self.start(number)
        until(self.healthy, 40, "a healthy cluster")
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self.nodes):
            self.kill(number)

    def start(self, number: int) -> None:
        with open(self.folder / f"n{number}.log", "ab") as log:
            self.nodes[number] = subprocess.Popen(
                [server(), "-c", str(self.folder / f"n{number}.conf")], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def kill(self, number: int) -> None:
        node = self.nodes.pop(number)
        os.kill(node.pid, signal.SIGKILL)
        node.wait(10)

    def ask(self, number: int, path: str) -> dict[str, object]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.monitors[number]}/{path}", timeout=2) as answer:
                return json.load(answer)  # type: ignore[no-any-return]
        except (OSError, ValueError):
            return {}

    def healthy(self) -> bool:
        up = [self.ask(number, "healthz").get("status") == "ok" for number in range(3)]
        return all(up) and bool(self.ask(0, "jsz").get("meta_cluster", {}).get("leader"))  # type: ignore[union-attr]

    def leader(self, stream: str = "GUARD") -> int:
        """The node that leads a stream, -1 where none does."""
        for number in self.nodes:
            for account in self.ask(number, "jsz?streams=true").get("account_details") or []:
                for each in account.get("stream_detail") or []:
                    name = (each.get("cluster") or {}).get("leader") if each["name"] == stream else ""
                    if name:
                        return int(name[1:])
        return -1

    def stored(self, stream: str = "GUARD") -> int:
        """Messages in a stream, by whoever knows of most."""
        counts = [
            each["state"]["messages"]
            for number in self.nodes
            for account in self.ask(number, "jsz?streams=true").get("account_details") or []
            for each in account.get("stream_detail") or []
            if each["name"] == stream
        ]
        return max(counts, default=0)

    def messages(self, stream: str = "GUARD", login: dict[str, str] | None = None) -> list[bytes]:
        """Every message of a stream, in order; asked again where a cluster that elects a leader did not answer."""
        import asyncio

        import nats
        from nats.errors import TimeoutError as Unanswered
        from nats.js.api import DeliverPolicy

        async def read() -> list[bytes]:
            client = await nats.connect(self.urls, **(login or {"user": "guard", "password": self.password}))
            context = client.jetstream(timeout=10)
            info = await context.stream_info(stream)
            left, found = info.state.messages, []
            subscription = await context.subscribe(
                "", stream=stream, ordered_consumer=True, deliver_policy=DeliverPolicy.ALL
            )
            while len(found) < left:
                found.append(bytes((await subscription.next_msg(timeout=20)).data))
            await client.close()
            return found

        for _ in range(5):
            with suppress(Unanswered):
                return asyncio.run(read())
        raise AssertionError("the cluster answers nothing")


def feed_table(cluster: Cluster, folder: Path, *, name: str = "siem", more: Sequence[str] = ()) -> str:
    """A feeds.toml for this cluster."""
    password = folder / "password"
    password.touch(0o600)
    password.write_text(cluster.password)
    servers = ", ".join(f'"{url}"' for url in cluster.urls)
    lines = [
        "schema = 1", "[spool]", f'path = "{folder}/spool"', "[[feed]]", f'name = "{name}"', 'kind = "nats"',
        f"servers = [{servers}]", 'user = "guard"', f'password_file = "{password}"', 'stream = "GUARD"',
        'subject = "guard.events"', "replicas = 3", "duplicate_window = 600", *more,
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
