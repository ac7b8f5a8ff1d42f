"""Ways into NATS: TLS with both sides checked, an NKey, a token; each refused where it is wrong."""

from __future__ import annotations

import secrets
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.beds.ports import free_port
from tests.feeds import made
from tests.feeds.cluster import server, until
from tests.feeds.rsyslog import Authority, listening
from tests.feeds.running import drained, feeds, toml

pytestmark = pytest.mark.skipif(not server(), reason="needs nats-server")

NODE = "login1.test"


@contextmanager
def nats(folder: Path, *lines: str) -> Iterator[int]:
    """One node without a cluster; gives its port."""
    port = free_port()
    config = folder / "nats.conf"
    config.write_text("\n".join([f"listen: 127.0.0.1:{port}", f'jetstream {{ store_dir: "{folder}/js" }}', *lines]))
    with open(folder / "nats.log", "ab") as log:
        process = subprocess.Popen([server(), "-c", str(config)], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        until(lambda: listening(port), 20, "nats-server")
        yield port
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)


def secret(folder: Path, name: str, value: str) -> str:
    path = folder / name
    path.touch(0o600)
    path.write_text(value)
    return str(path)


def delivered(folder: Path, url: str, options: Sequence[str], *, right: bool) -> tuple[int, str]:
    """Deliver ten events; returns the exit code and what was said."""
    made.write(folder / "events.jsonl", made.events(10))
    config = toml(folder, [
        'name = "fleet"', 'kind = "nats"', f'servers = ["{url}"]', "replicas = 1", "timeout = 2", *options
    ])  # fmt: skip
    words = ("--config", str(config), "--input", str(folder / "events.jsonl"), "--drain", "--timeout", "35" if right else "8")
    with feeds(*words) as feed:
        _, said = feed.communicate(timeout=70)
    return int(feed.returncode), said.decode()


@pytest.mark.timeout(100)
@pytest.mark.parametrize("fault", ["", "no certificate", "name of another server", "strange authority"])
def test_tls_checks_both_sides(tmp_path: Path, fault: str) -> None:
    authority = Authority(tmp_path, NODE)
    options = authority.options(NODE)
    if fault == "no certificate":
        options = [options[0], options[3]]
    elif fault.startswith("name"):
        options[3] = 'server_name = "other.test"'
    elif fault:
        (tmp_path / "other").mkdir()
        options[0] = Authority(tmp_path / "other", NODE).options(NODE)[0]
    tls = (
        f'tls {{ cert_file: "{tmp_path}/siem.test.pem", key_file: "{tmp_path}/siem.test.key",'
        f' ca_file: "{tmp_path}/ca.pem", verify: true }}'
    )
    with nats(tmp_path, tls) as port:
        code, said = delivered(tmp_path, f"tls://127.0.0.1:{port}", options, right=not fault)
    assert (code == 0) is (not fault), said


@pytest.mark.timeout(100)
@pytest.mark.parametrize("right", [True, False])
def test_an_nkey_lets_in_whoever_has_its_seed(tmp_path: Path, right: bool) -> None:
    import nkeys

    def seed() -> bytes:
        return nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)

    mine = seed()
    public = nkeys.from_seed(bytearray(mine)).public_key.decode()
    with nats(tmp_path, f"authorization {{ users: [{{ nkey: {public} }}] }}") as port:
        file = secret(tmp_path, "seed", (mine if right else seed()).decode() + "\n")
        code, said = delivered(tmp_path, f"nats://127.0.0.1:{port}", [f'nkey_file = "{file}"'], right=right)
    assert (code == 0) is right, said


@pytest.mark.timeout(100)
@pytest.mark.parametrize("right", [True, False])
def test_a_token_lets_in_whoever_has_it(tmp_path: Path, right: bool) -> None:
    word = secrets.token_hex(16)
    with nats(tmp_path, f'authorization {{ token: "{word}" }}') as port:
        file = secret(tmp_path, "token", word if right else secrets.token_hex(16))
        code, said = delivered(tmp_path, f"nats://127.0.0.1:{port}", [f'token_file = "{file}"'], right=right)
    assert (code == 0) is right, said
    assert word not in said


@pytest.mark.timeout(60)
def test_an_event_that_the_server_does_not_take_holds_up_no_other(tmp_path: Path) -> None:
    from guard.events.model import say
    from guard.events.producer import Producer
    from guard.events.wire import Severity
    from guard.redact import bless

    events = list(made.events(20))
    long = Producer("p", host="login1").event(
        "telemetry", "load.test", Severity.INFO, say("long"), detail={"text": bless("x" * 60_000)}
    )
    made.write(tmp_path / "events.jsonl", [*events[:10], long, *events[10:]])
    with nats(tmp_path, "max_payload: 30000") as port:
        config = toml(tmp_path, [
            'name = "fleet"', 'kind = "nats"', f'servers = ["nats://127.0.0.1:{port}"]', "replicas = 1", "create = true"
        ])  # fmt: skip
        drained("--config", str(config), "--input", str(tmp_path / "events.jsonl"))
    status = (tmp_path / "spool.feeds/fleet.json").read_text()
    assert '"refused": 1' in status
    assert '"delivered": 2' in status
