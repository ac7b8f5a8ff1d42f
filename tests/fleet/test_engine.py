"""A fleet by JetStream: nodes publish as themselves alone, the site has one consumer a sink; rsyslog gives the same."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from guard.fleet.store import Store
from tests.beds.ports import free_ports
from tests.feeds import made
from tests.feeds.cluster import Cluster, server, until
from tests.feeds.rsyslog import Authority, Rsyslog, listening, needs
from tests.feeds.running import drained, feeds, toml
from tests.fleet.test_ingest import alerts, guard, ingest, state

__all__ = ["state"]

pytestmark = pytest.mark.skipif(not server(), reason="needs nats-server")

NODES = ("login1", "login2", "login3")


def permissions(node: str, password: str) -> str:
    """What docs/fleet.md gives a node: it may publish its own subject and hear its own answers, no more."""
    return (
        f'{{user: {node}, password: "{password}", permissions: {{'
        f'publish: ["guard.events.{node}"], subscribe: ["_INBOX.{node}.>"]}}}}'
    )


@pytest.fixture
def passwords() -> dict[str, str]:
    return {name: secrets.token_hex(12) for name in (*NODES, "guard")}


@pytest.fixture
def cluster(tmp_path: Path, passwords: dict[str, str]) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    users = [permissions(node, passwords[node]) for node in NODES]
    users.append(f'{{user: guard, password: "{passwords["guard"]}"}}')
    with Cluster(folder, ", ".join(users)) as running:
        running.password = passwords["guard"]
        yield running


def secret(folder: Path, name: str, value: str) -> Path:
    path = folder / f"{name}.password"
    path.touch(0o600)
    path.write_text(value)
    return path


def login(cluster: Cluster, folder: Path, user: str, password: str) -> list[str]:
    servers = ", ".join(f'"{url}"' for url in cluster.urls)
    return [f"servers = [{servers}]", f'user = "{user}"', f'password_file = "{secret(folder, user, password)}"']


def site(cluster: Cluster, folder: Path, *feed_tables: Sequence[str]) -> Path:
    """The site's feeds.toml: it reads the stream."""
    lines = ["schema = 1", "[source]", *login(cluster, folder, "guard", cluster.password), 'stream = "GUARD"']
    for table in feed_tables:
        lines += ["[[feed]]", *table]
    path = folder / "site.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def make_stream(cluster: Cluster) -> None:
    """What the site's administrator does once."""
    import nats
    from nats.js.api import StorageType, StreamConfig

    async def make() -> None:
        client = await nats.connect(cluster.urls, user="guard", password=cluster.password)
        await client.jsm(timeout=20).add_stream(
            StreamConfig(name="GUARD", subjects=["guard.events.>"], num_replicas=3, storage=StorageType.FILE,
                         duplicate_window=600)
        )  # fmt: skip
        await client.close()

    asyncio.run(make())


def publish(cluster: Cluster, folder: Path, node: str, password: str, events: Path, *more: str) -> None:
    home = folder / node
    home.mkdir(exist_ok=True)
    config = toml(home, ['name = "fleet"', 'kind = "nats"', "create = false", *login(cluster, home, node, password), *more])
    drained("--config", str(config), "--input", str(events))


def rows(path: Path) -> set[tuple[str, str, bytes]]:
    """(host, who sent it, event) of a store, whatever the way of transport."""
    with Store(str(path), write=False) as store:
        return {
            (json.loads(line)["host"], sender.partition(":")[2], line) for _, sender, line in store.read(0, 10**6)
        }


@needs("imtcp", "lmnsd_gtls")
@pytest.mark.timeout(150)
def test_three_nodes_by_rsyslog_and_by_jetstream_give_the_site_the_same(
    cluster: Cluster, passwords: dict[str, str], tmp_path: Path, state: Path
) -> None:
    count = 1500
    make_stream(cluster)
    authority = Authority(tmp_path, *NODES)
    ports = dict(zip(NODES, free_ports(3), strict=True))
    # The name of the input is the name in the certificate that it takes: the sender, by TLS.
    template = (
        'template(name="line" type="list") { constant(value="{\\"sender\\":\\"tls:") property(name="inputname")'
        ' constant(value="\\",\\"message\\":\\"") property(name="rawmsg" format="json") constant(value="\\"}\\n") }'
    )
    folder = tmp_path / "rsyslog"
    folder.mkdir()
    with Rsyslog.tls(folder, authority, ports, template) as rsyslog:
        until(lambda: all(map(listening, ports.values())), 20, "rsyslogd")
        for node in NODES:
            events = tmp_path / f"{node}.jsonl"
            made.write(events, made.events(count, host=node))
            publish(cluster, tmp_path, node, passwords[node], events)
            home = tmp_path / f"{node}.syslog"
            home.mkdir()
            config = toml(home, [
                'name = "siem"', 'kind = "syslog"', f'server = "127.0.0.1:{ports[node]}"', *authority.options(node)
            ])  # fmt: skip
            drained("--config", str(config), "--input", str(events))
        until(lambda: len(rsyslog.lines()) == 3 * count, 30, "all events at rsyslogd")
    assert ingest(state, str(rsyslog.output))["new"] == 3 * count
    config = site(cluster, tmp_path, ['name = "ledger"', 'kind = "incidents"', f'path = "{tmp_path}/engine.db"'])
    drained("--config", str(config), "--state", str(tmp_path / "site"))
    by_rsyslog, by_engine = rows(state / "site.db"), rows(tmp_path / "engine.db")
    assert len(by_rsyslog) == 3 * count
    assert by_rsyslog == by_engine
    for path in (state / "site.db", tmp_path / "engine.db"):
        with Store(str(path), write=False) as store:
            assert store.gaps() == []
            assert [node.host for node in store.nodes()] == sorted(NODES)


@pytest.mark.timeout(120)
def test_a_node_can_publish_as_itself_only(cluster: Cluster, passwords: dict[str, str], tmp_path: Path) -> None:
    make_stream(cluster)
    events = tmp_path / "events.jsonl"
    expected = made.write(events, made.events(20, host="login1"))
    publish(cluster, tmp_path, "login1", passwords["login1"], events)
    assert made.ids(cluster.messages()) == expected
    made.write(events, made.events(20, host="login2"))
    home = tmp_path / "forger"
    home.mkdir()
    config = toml(home, [
        'name = "fleet"', 'kind = "nats"', "create = false", 'node = "login2"', "timeout = 1",
        *login(cluster, home, "login1", passwords["login1"]),
    ])  # fmt: skip
    with feeds("--config", str(config), "--input", str(events), "--drain", "--timeout", "12") as forger:
        _, said = forger.communicate(timeout=60)
    assert forger.returncode == 3
    assert b"permissions violation" in said.lower()
    assert len(cluster.messages()) == 20


@pytest.mark.timeout(120)
def test_an_event_for_another_host_under_its_own_subject_is_told(
    cluster: Cluster, passwords: dict[str, str], tmp_path: Path
) -> None:
    make_stream(cluster)
    events = tmp_path / "events.jsonl"
    made.write(events, made.events(5, host="login2"))
    publish(cluster, tmp_path, "login1", passwords["login1"], events)
    home = tmp_path / "site"
    home.mkdir(mode=0o700)
    config = site(cluster, tmp_path, ['name = "ledger"', 'kind = "incidents"'])
    drained("--config", str(config), "--state", str(home))
    guard(home, "fleet", "status", "--alert")
    assert [event["message"] for event in alerts(home)] == ["nats:login1 speaks for login2"]


@pytest.mark.timeout(150)
def test_one_consumer_a_sink_and_each_has_everything(
    cluster: Cluster, passwords: dict[str, str], tmp_path: Path
) -> None:
    make_stream(cluster)
    expected = set()
    for node in NODES:
        events = tmp_path / f"{node}.jsonl"
        expected |= set(made.write(events, made.events(1000, host=node)))
        publish(cluster, tmp_path, node, passwords[node], events)
    config = site(
        cluster, tmp_path,
        ['name = "ledger"', 'kind = "incidents"', f'path = "{tmp_path}/site.db"'],
        ['name = "siem"', 'kind = "jsonl"', f'path = "{tmp_path}/siem.jsonl"', 'only = { host = ["login2"] }'],
        ['name = "archive"', 'kind = "archive"', f'path = "{tmp_path}/archive"'],
    )  # fmt: skip
    config.write_text(config.read_text().replace('stream = "GUARD"', 'stream = "GUARD"\nack_wait = 2'))
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with feeds("--config", str(config), "--state", str(home), "ledger") as first:
        # Killed in the middle: what it had not acknowledged is handed out again, to a store that knows the ids.
        until(lambda: (tmp_path / "site.db").exists(), 30, "the first events")
        first.kill()
    shutil.rmtree(home / "site.feeds", ignore_errors=True)
    drained("--config", str(config), "--state", str(home), timeout=140)
    with Store(f"{tmp_path}/site.db", write=False) as store:
        assert set(made.ids(line for _, _, line in store.read(0, 10**6))) == expected
        assert store.count() == 3000
    assert len((tmp_path / "siem.jsonl").read_bytes().splitlines()) == 1000
    if zstd := shutil.which("zstd"):
        found: list[str] = []
        for part in (tmp_path / "archive").iterdir():
            found += made.ids(subprocess.run([zstd, "-dc", str(part)], capture_output=True, check=True).stdout.splitlines())
        assert set(found) == expected
