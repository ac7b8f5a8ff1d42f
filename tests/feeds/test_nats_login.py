"""Ways into NATS: TLS with both sides checked, an NKey, a token, credentials; each refused where it is wrong."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import signal
import subprocess
import time
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


class Signed:
    """An operator, one account with a stream, and users: JWTs as `nsc` makes them (github.com/nats-io/jwt, version 2)."""

    def __init__(self) -> None:
        import nkeys

        self.operator, self.account = self._pair(nkeys.PREFIX_BYTE_OPERATOR), self._pair(nkeys.PREFIX_BYTE_ACCOUNT)
        self.system = self._pair(nkeys.PREFIX_BYTE_ACCOUNT)  # JetStream's own
        disk = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
        free = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
        self.accounts = {
            self.account[1]: self.jwt("guard", self.account, self.operator, {"type": "account", "limits": free | disk}),
            self.system[1]: self.jwt("SYS", self.system, self.operator, {"type": "account", "limits": free}),
        }

    @staticmethod
    def _pair(kind: int) -> tuple[bytes, str]:
        import nkeys

        seed = nkeys.encode_seed(secrets.token_bytes(32), kind)
        return seed, nkeys.from_seed(bytearray(seed)).public_key.decode()

    @staticmethod
    def jwt(name: str, whose: tuple[bytes, str], issuer: tuple[bytes, str], claims: dict[str, object]) -> str:
        import nkeys

        def packed(data: bytes) -> str:
            return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

        body: dict[str, object] = {"iat": int(time.time()), "iss": issuer[1], "name": name, "sub": whose[1]}
        number = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).rstrip(b"=").decode()
        body |= {"jti": number, "nats": {**claims, "version": 2}}
        text = ".".join(packed(json.dumps(each).encode()) for each in ({"typ": "JWT", "alg": "ed25519-nkey"}, body))
        return f"{text}.{packed(nkeys.from_seed(bytearray(issuer[0])).sign(text.encode()))}"

    def server(self) -> list[str]:
        """What the server is told."""
        operator = self.jwt("site", self.operator, self.operator, {"type": "operator"})
        preload = ", ".join(f"{name}: {jwt}" for name, jwt in self.accounts.items())
        return [f"operator: {operator}", f"system_account: {self.system[1]}", "resolver: MEMORY", f"resolver_preload: {{ {preload} }}"]

    def creds(self, name: str, *, by: tuple[bytes, str] | None = None, everything: bool = False) -> str:
        """A user's credentials file: a node's, who may publish as itself and hear its own answers, or the site's."""
        import nkeys

        user = self._pair(nkeys.PREFIX_BYTE_USER)
        node = {"pub": {"allow": [f"guard.events.{name}"]}, "sub": {"allow": [f"_INBOX.{name}.>"]}}
        may = {"pub": {}, "sub": {}} if everything else node
        claims = {"type": "user", "subs": -1, "data": -1, "payload": -1, **may}
        jwt = self.jwt(name, user, by or self.account, claims)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user[0].decode()}\n------END USER NKEY SEED------\n"
        )


@pytest.mark.timeout(150)
def test_credentials_let_a_node_publish_as_itself_and_as_nobody_else(tmp_path: Path) -> None:
    import nkeys

    signed = Signed()
    with nats(tmp_path, *signed.server()) as port:
        url = f"nats://127.0.0.1:{port}"

        def sent(name: str, creds: str, *options: str, right: bool = True) -> tuple[int, str]:
            place = tmp_path / name
            place.mkdir()
            return delivered(place, url, [f'creds_file = "{secret(place, "creds", creds)}"', *options], right=right)

        site = signed.creds("site", everything=True)
        code, said = sent("site", site, 'node = "site"')  # makes the stream
        assert code == 0, said
        login1 = signed.creds("login1")
        code, said = sent("itself", login1, 'node = "login1"', "create = false")
        assert code == 0, said
        code, said = sent("another", login1, 'node = "login2"', "create = false", right=False)
        assert code == 3, said
        assert "ermission" in said, said
        forged = signed.creds("login1", by=signed._pair(nkeys.PREFIX_BYTE_ACCOUNT))
        code, said = sent("forged", forged, 'node = "login1"', "create = false", right=False)
        assert code == 3, said
        assert "SEED" not in said
        (tmp_path / "login").touch(0o600)
        (tmp_path / "login").write_text(site)
        assert [subject for subject, _ in stored(url, str(tmp_path / "login"))] == ["guard.events.site"] * 10 + ["guard.events.login1"] * 10


def stored(url: str, creds: str) -> list[tuple[str, bytes]]:
    """All that is in the stream: (subject, message)."""
    import asyncio

    import nats as client

    async def read() -> list[tuple[str, bytes]]:
        connection = await client.connect(url, user_credentials=creds)
        context = connection.jetstream(timeout=10)
        count = (await context.stream_info("GUARD")).state.messages
        found = [await context.get_msg("GUARD", seq) for seq in range(1, count + 1)]
        await connection.close()
        return [(each.subject or "", bytes(each.data or b"")) for each in found]

    return asyncio.run(read())


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
