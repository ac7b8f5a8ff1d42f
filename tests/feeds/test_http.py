"""Webhook, Splunk HEC, OpenSearch: acknowledged means stored, whatever the server does on the way."""

from __future__ import annotations

import json
import secrets
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from guard.events.reader import Reader, rows_of
from tests.beds.ports import free_port
from tests.conftest import LONG
from tests.feeds import made
from tests.feeds.rsyslog import Authority
from tests.feeds.running import drained, feeds, toml

RECEIVER = Path(__file__).with_name("receiver.py")


@pytest.mark.timeout(180 if not LONG else 600)
def test_a_webhook_that_fails_hangs_and_dies_in_turn_gets_every_event(tmp_path: Path) -> None:
    count = 20_000 if LONG else 4_000
    expected = made.write(tmp_path / "events.jsonl", made.events(count))
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_text(secrets.token_hex(16))
    port = free_port()
    config = toml(tmp_path, [
        'name = "hook"', 'kind = "webhook"', f'url = "http://127.0.0.1:{port}/guard"', f'hmac_file = "{tmp_path}/key"',
        "batch = 100", "timeout = 0.3", "backoff = 0.01", "backoff_most = 0.2",
    ])  # fmt: skip
    stored = tmp_path / "stored.jsonl"

    def receiver() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(RECEIVER), str(port), str(stored), str(tmp_path / "key")])

    with feeds("--config", str(config), "--input", str(tmp_path / "events.jsonl"), "--drain") as feed:
        server, deaths = receiver(), 0
        try:
            while feed.poll() is None:
                if server.poll() is not None:
                    server, deaths = receiver(), deaths + 1
                time.sleep(0.02)
        finally:
            server.kill()
            server.wait(10)
        assert feed.returncode == 0
    assert deaths > 3, "the server was to die on the way"
    found = Counter(made.ids(stored.read_bytes().splitlines()))
    assert set(expected) - set(found) == set()
    assert set(found) - set(expected) == set()
    assert max(found.values()) > 1, "some were stored and not acknowledged: they must have come twice"
    # After removal by id, which the set is, each is there exactly once: nothing else is needed of a receiver.


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fault", ["", "no certificate", "strange authority"])
def test_https_checks_both_sides(tmp_path: Path, fault: str) -> None:
    made.write(tmp_path / "events.jsonl", made.events(100))
    authority = Authority(tmp_path, "login1.test", "127.0.0.1")
    options = authority.options("login1.test")[:3]
    if fault == "no certificate":
        options = options[:1]
    elif fault:
        (tmp_path / "other").mkdir()
        options[0] = Authority(tmp_path / "other", "login1.test").options("login1.test")[0]
    seen: list[int] = []

    def take(path: str, head: dict[str, str], body: bytes) -> tuple[int, object]:
        seen.append(len(json.loads(body)))
        return 200, {}

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.pem"))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(tmp_path / "127.0.0.1.pem", tmp_path / "127.0.0.1.key")
    with server(take, tls) as url:
        config = toml(tmp_path, ['name = "hook"', 'kind = "webhook"', f'url = "{url}"', "timeout = 2", *options])
        words = ("--config", str(config), "--input", str(tmp_path / "events.jsonl"), "--drain", "--timeout", "5" if fault else "35")
        with feeds(*words) as feed:
            _, said = feed.communicate(timeout=40)
    assert (feed.returncode == 0) is (not fault), said
    assert sum(seen) == (0 if fault else 100)


@contextmanager
def server(
    handler: Callable[[str, dict[str, str], bytes], tuple[int, object]], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """An HTTP server in this process; the handler gets path, headers and body."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, answer = handler(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    if tls is not None:
        http.socket = tls.wrap_socket(http.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield f"{'https' if tls else 'http'}://127.0.0.1:{http.server_address[1]}"
    http.shutdown()
    http.server_close()


def secret(folder: Path) -> tuple[str, Path]:
    path = folder / "token"
    path.touch(0o600)
    path.write_text(secrets.token_hex(16) + "\n")
    return path.read_text().strip(), path


class Splunk:
    """The collector's side of acknowledgement: numbers by channel, each told once; some are never acknowledged."""

    def __init__(self, token: str, lose: int) -> None:
        self.token, self.lose = token, lose
        self.events: list[dict[str, object]] = []
        self.pending: dict[str, dict[int, int]] = {}
        self.requests = 0

    def __call__(self, path: str, head: dict[str, str], body: bytes) -> tuple[int, object]:
        if head.get("authorization") != f"Splunk {self.token}":
            return 401, {"text": "Token is required", "code": 2}
        channel = self.pending.setdefault(head.get("x-splunk-request-channel", ""), {})
        if path == "/services/collector/event":
            self.requests += 1
            if self.requests == 2:
                return 503, {"text": "Server is busy", "code": 9}
            number = len(channel)
            if self.requests == 3 and self.lose:
                channel[number] = 10**9  # the indexer loses it: no acknowledgement will come
                return 200, {"text": "Success", "code": 0, "ackId": number}
            self.events += [json.loads(line) for line in body.splitlines()]
            channel[number] = 2
            return 200, {"text": "Success", "code": 0, "ackId": number}
        assert path.startswith("/services/collector/ack?channel=")
        answer = {}
        for number in json.loads(body)["acks"]:
            channel[number] -= 1
            answer[str(number)] = channel[number] == 0
        return 200, {"acks": answer}


@pytest.mark.timeout(60)
def test_splunk_counts_when_the_indexers_acknowledge(tmp_path: Path) -> None:
    expected = made.write(tmp_path / "events.jsonl", made.events(1000))
    token, path = secret(tmp_path)
    splunk = Splunk(token, lose=1)
    with server(splunk) as url:
        config = toml(tmp_path, [
            'name = "splunk"', 'kind = "splunk-hec"', f'url = "{url}"', f'token_file = "{path}"', 'index = "guard"',
            "backoff = 0.01", "ack_timeout = 2",
        ])  # fmt: skip
        drained("--config", str(config), "--input", str(tmp_path / "events.jsonl"))
    found = [row["event"]["id"] for row in splunk.events]  # type: ignore[index]
    assert set(found) == set(expected)
    assert {row["index"] for row in splunk.events} == {"guard"}
    assert {row["sourcetype"] for row in splunk.events} == {"guard:event"}
    assert all(isinstance(row["time"], float) for row in splunk.events)


@pytest.mark.timeout(60)
def test_a_collector_without_acknowledgement_is_no_silent_success(tmp_path: Path) -> None:
    made.write(tmp_path / "events.jsonl", made.events(10))
    _, path = secret(tmp_path)
    with server(lambda *_: (200, {"text": "Success", "code": 0})) as url:
        config = toml(tmp_path, [
            'name = "splunk"', 'kind = "splunk-hec"', f'url = "{url}"', f'token_file = "{path}"'
        ])  # fmt: skip
        with feeds("--config", str(config), "--input", str(tmp_path / "events.jsonl"), "--drain") as feed:
            _, said = feed.communicate(timeout=30)
    assert feed.returncode == 3
    assert b"acknowledgement" in said


KEPT = [
    (403, 1, "Token disabled"), (401, 2, "Token is required"), (401, 3, "Invalid authorization"), (403, 4, "Invalid token"),
    (400, 7, "Incorrect index"), (500, 8, "Internal server error"), (503, 9, "Server is busy"),
    (400, 10, "Data channel is missing"), (400, 11, "Invalid data channel"), (429, None, ""), (502, None, ""),
]  # fmt: skip
"""What Splunk answers where the events are not at fault (help.splunk.com, Troubleshoot HTTP Event Collector)."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("status", "code", "text"), KEPT, ids=str)
def test_what_splunk_does_not_blame_on_the_events_costs_none(status: int, code: int | None, text: str, tmp_path: Path) -> None:
    expected = made.write(tmp_path / "events.jsonl", made.events(40))
    token, path = secret(tmp_path)
    splunk, asked = Splunk(token, lose=0), []
    splunk.requests = 3  # past its own faults

    def first_refuse(where: str, head: dict[str, str], body: bytes) -> tuple[int, object]:
        asked.append(where)
        return (status, {"text": text, "code": code}) if len(asked) < 3 else splunk(where, head, body)

    with server(first_refuse) as url:
        config = toml(tmp_path, [
            'name = "splunk"', 'kind = "splunk-hec"', f'url = "{url}"', f'token_file = "{path}"', "backoff = 0.01",
            "backoff_most = 0.05",
        ])  # fmt: skip
        drained("--config", str(config), "--input", str(tmp_path / "events.jsonl"))
    assert {row["event"]["id"] for row in splunk.events} == set(expected)  # type: ignore[index]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("status", "code"), [(400, 6), (400, 12), (400, 13), (400, 15), (413, 27)])
def test_what_splunk_blames_on_one_event_costs_that_one(status: int, code: int, tmp_path: Path) -> None:
    expected = made.write(tmp_path / "events.jsonl", made.events(40))
    token, path = secret(tmp_path)
    splunk = Splunk(token, lose=0)
    splunk.requests = 3

    def particular(where: str, head: dict[str, str], body: bytes) -> tuple[int, object]:
        if f'"guard_id": "{expected[11]}"'.encode() in body:
            return status, {"text": "no", "code": code}
        return splunk(where, head, body)

    with server(particular) as url:
        config = toml(tmp_path, ['name = "splunk"', 'kind = "splunk-hec"', f'url = "{url}"', f'token_file = "{path}"'])
        drained("--config", str(config), "--input", str(tmp_path / "events.jsonl"))
        drained("--config", str(config))  # the refusal is an event of its own
    found = [row["event"] for row in splunk.events]
    assert set(expected) - {each["id"] for each in found} == {expected[11]}  # type: ignore[index]
    assert [each["detail"]["events"] for each in found if each["rule"] == "feed.refused"] == [[expected[11]]]  # type: ignore[index]


@pytest.mark.timeout(60)
def test_a_token_that_loses_its_acknowledgement_is_told_and_nothing_counts(tmp_path: Path) -> None:
    made.write(tmp_path / "events.jsonl", made.events(10))
    _, path = secret(tmp_path)

    def disabled(where: str, *_: object) -> tuple[int, object]:
        if where.endswith("/event"):
            return 200, {"text": "Success", "code": 0, "ackId": 0}
        return 400, {"text": "ACK is disabled", "code": 14}

    with server(disabled) as url:
        config = toml(tmp_path, ['name = "splunk"', 'kind = "splunk-hec"', f'url = "{url}"', f'token_file = "{path}"'])
        with feeds("--config", str(config), "--input", str(tmp_path / "events.jsonl"), "--drain") as feed:
            _, said = feed.communicate(timeout=30)
    assert feed.returncode == 3
    assert b"enable indexer acknowledgement" in said
    with Reader(str(tmp_path / "spool")) as reader:
        assert reader.cursor("splunk") == 0


class Search:
    """The bulk API's answers: `create` of a known id is 409, one node too busy is 429, what does not fit is 400."""

    def __init__(self) -> None:
        self.documents: dict[tuple[str, str], dict[str, object]] = {}
        self.busy: set[str] = set()
        self.bad = ""

    def __call__(self, path: str, head: dict[str, str], body: bytes) -> tuple[int, object]:
        assert path == "/_bulk"
        assert head["content-type"] == "application/x-ndjson"
        lines = body.splitlines()
        assert body.endswith(b"\n")
        items = []
        for action, source in zip(lines[::2], lines[1::2], strict=True):
            meta = json.loads(action)["create"]
            key = (meta["_index"], meta["_id"])
            status, kind = 201, ""
            if meta["_id"] == self.bad:
                status, kind = 400, "mapper_parsing_exception"
            elif key in self.documents:
                status, kind = 409, "version_conflict_engine_exception"
            elif meta["_id"] not in self.busy and len(self.busy) < 20:
                self.busy.add(meta["_id"])
                status, kind = 429, "es_rejected_execution_exception"
            else:
                self.documents[key] = json.loads(source)
            items.append({"create": {"_id": meta["_id"], "status": status, **({"error": {"type": kind}} if kind else {})}})
        return 200, {"took": 1, "errors": True, "items": items}


@pytest.mark.timeout(60)
def test_opensearch_has_each_event_under_its_id_and_one_that_does_not_fit_holds_up_nobody(tmp_path: Path) -> None:
    events = list(made.events(600))
    expected = made.write(tmp_path / "events.jsonl", events)
    search = Search()
    search.bad = expected[7]
    with server(search) as url:
        config = toml(tmp_path, [
            'name = "search"', 'kind = "opensearch"', f'url = "{url}"', "backoff = 0.01", 'index = "guard-%Y.%m"'
        ])  # fmt: skip
        drained("--config", str(config), "--input", str(tmp_path / "events.jsonl"))
        # The refusal is an event of its own, and goes the same way.
        drained("--config", str(config))
    found = {identity for _, identity in search.documents}
    assert set(expected) - found == {search.bad}
    told = [row for row in search.documents.values() if row["rule"] == "feed.refused"]
    assert [row["detail"]["count"] for row in told] == [1]  # type: ignore[index]
    assert told[0]["detail"]["events"] == [search.bad]  # type: ignore[index]
    assert {index for index, _ in search.documents} == {f"guard-{events[0].time[:4]}.{events[0].time[5:7]}"}


BULK = [
    (429, "es_rejected_execution_exception", True), (503, "unavailable_shards_exception", True),
    (403, "cluster_block_exception", True), (404, "index_not_found_exception", True),
    (400, "index_closed_exception", True), (400, "validation_exception", True),
    (400, "mapper_parsing_exception", False), (400, "document_parsing_exception", False),
    (400, "strict_dynamic_mapping_exception", False), (400, "illegal_argument_exception", False),
]  # fmt: skip
"""What a document may be answered in a bulk, and whether it is to come again."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("status", "kind", "again"), BULK, ids=str)
def test_only_what_a_document_is_to_blame_for_lets_it_go(status: int, kind: str, again: bool, tmp_path: Path) -> None:
    expected = made.write(tmp_path / "events.jsonl", made.events(30))
    stored: list[str] = []
    answers: list[int] = []

    def partly(where: str, head: dict[str, str], body: bytes) -> tuple[int, object]:
        answers.append(0)
        items = []
        for line in body.splitlines()[::2]:
            identity = json.loads(line)["create"]["_id"]
            wrong = identity == expected[5] and (len(answers) < 3 or not again)
            stored.extend([] if wrong else [identity])
            items.append({"create": {"status": status, "error": {"type": kind}} if wrong else {"status": 201}})
        return 200, {"errors": True, "items": items}

    with server(partly) as url:
        config = toml(tmp_path, [
            'name = "search"', 'kind = "opensearch"', f'url = "{url}"', "backoff = 0.01", "backoff_most = 0.05"
        ])  # fmt: skip
        drained("--config", str(config), "--input", str(tmp_path / "events.jsonl"))
    assert set(expected) - set(stored) == (set() if again else {expected[5]})
    assert max(Counter(stored).values()) == 1, "what was taken is not sent again"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("status", [401, 403, 404, 429, 503])
def test_a_bulk_that_is_refused_whole_comes_again(status: int, tmp_path: Path) -> None:
    expected = made.write(tmp_path / "events.jsonl", made.events(30))
    search, asked = Search(), []
    search.busy = set(map(str, range(20)))  # past its own faults

    def first_refuse(where: str, head: dict[str, str], body: bytes) -> tuple[int, object]:
        asked.append(where)
        return (status, {"error": "no"}) if len(asked) < 3 else search(where, head, body)

    with server(first_refuse) as url:
        config = toml(tmp_path, [
            'name = "search"', 'kind = "opensearch"', f'url = "{url}"', "backoff = 0.01", "backoff_most = 0.05"
        ])  # fmt: skip
        drained("--config", str(config), "--input", str(tmp_path / "events.jsonl"))
    assert {identity for _, identity in search.documents} == set(expected)


@pytest.mark.timeout(60)
def test_a_secret_that_others_may_change_is_refused(tmp_path: Path) -> None:
    made.write(tmp_path / "events.jsonl", made.events(1))
    _, path = secret(tmp_path)
    path.chmod(0o666)
    config = toml(tmp_path, [
        'name = "splunk"', 'kind = "splunk-hec"', 'url = "http://127.0.0.1:9"', f'token_file = "{path}"'
    ])  # fmt: skip
    with feeds("--config", str(config), "--input", str(tmp_path / "events.jsonl"), "--drain") as feed:
        _, said = feed.communicate(timeout=30)
    assert feed.returncode == 3
    assert b"chmod 600" in said


@pytest.mark.timeout(60)
def test_a_destination_that_refuses_everything_brings_forth_no_endless_refusals(tmp_path: Path) -> None:
    made.write(tmp_path / "events.jsonl", made.events(300))
    seen: list[int] = []

    def refuse(path: str, head: dict[str, str], body: bytes) -> tuple[int, object]:
        seen.append(len(json.loads(body)))
        return 400, {}

    with server(refuse) as url:
        config = toml(tmp_path, ['name = "hook"', 'kind = "webhook"', f'url = "{url}"', "batch = 50"])
        drained("--config", str(config), "--input", str(tmp_path / "events.jsonl"))
        drained("--config", str(config))
    with Reader(str(tmp_path / "spool")) as reader:
        told = [json.loads(row.line) for row in rows_of(reader) if b"feed.refused" in row.line]
        assert sum(event["detail"]["count"] for event in told) == 300
        assert len(told) <= 2
        assert reader.cursor("hook") == reader.high()
    assert max(seen) == 50
