"""An account holder's own view: mine, match, rotated - through the site's service, and on a node without it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.redact import samples
from guard.redact.rules.formats import FORMATS
from tests.conftest import GUARD, Account
from tests.incidents.made import event, exposure, fingerprint
from tests.incidents.test_desk_cli import DAY, HOUR, NOW, Office

pytestmark = pytest.mark.root


def start(office: Office, service: str, waits_for: str, *options: str) -> subprocess.Popen[str]:
    """Start a resident service of root's, and wait until its socket is there."""
    environment = {**os.environ, "GUARD_STATE_DIR": str(office.state), "GUARD_CONFIG_DIR": str(office.config)}
    child = subprocess.Popen([GUARD, "serve", service, *options], env=environment, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 30
    while not (office.state / waits_for).exists():
        assert child.poll() is None, child.stderr.read() if child.stderr else ""
        assert time.monotonic() < end
        time.sleep(0.02)  # a socket's birth can only be looked for
    return child


def stop(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(15)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stderr:
        child.stderr.close()


@pytest.fixture
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="guard-office-", dir="/var/tmp"))
    folder.chmod(0o755)
    made = Office(folder)
    made.state.chmod(0o755)  # users reach the sockets in it, and nothing else
    yield made
    shutil.rmtree(folder, ignore_errors=True)


def as_user(office: Office, account: Account, *words: str, input: str = "") -> subprocess.CompletedProcess[str]:
    env = {"GUARD_STATE_DIR": str(office.state), "GUARD_CONFIG_DIR": str(office.config)}
    return account.command([GUARD, *words], env=env, input=input)


def test_a_holder_sees_claims_and_matches_their_own_and_nothing_else(office: Office, account: Account) -> None:
    rng = random.Random(21)
    template = next(f for f in FORMATS if f.kind == "github-token").samples[0]
    mine, theirs = (samples.fill(template, rng)[0] for _ in range(2))
    office.guard("key", "init")
    rows = []
    held = account.write(account.state.parent / "held.txt", f"one\n{mine}\n")
    for key in (mine, theirs):
        office.run("redact", "--check", "--report", str(office.state / "r.jsonl"), input=f"{key}\n")
        rows.append(json.loads((office.state / "r.jsonl").read_text()))
        (office.state / "r.jsonl").unlink()
    office.spool(
        event("exposure", "secret", NOW - HOUR, tree={"uid": account.uid, "user": account.name}, detail=rows[0]),
        event("exposure", "secret", NOW - HOUR, tree={"uid": 4321, "user": "somebody"}, detail=rows[1]),
        event("exposure", "secret", NOW - HOUR, tree={"uid": account.uid, "user": account.name}, host=os.uname().nodename,
              detail={**rows[0], "source": "file", "file": str(held)}),
    )  # fmt: skip
    redactor = start(office, "redact", "redact.sock")
    service = start(office, "incidents", "incidents.sock")
    try:
        own, other = (row["fingerprint"][:12] for row in rows)
        listed = as_user(office, account, "incidents", "mine")
        assert listed.returncode == 0, listed.stderr
        assert own in listed.stdout
        assert other not in listed.stdout
        assert "somebody" not in listed.stdout
        found = as_user(office, account, "incidents", "match", input=mine)
        assert (found.returncode, found.stdout.strip()) == (1, own)
        assert as_user(office, account, "incidents", "match", input=theirs).stdout.strip() == "none"
        # The commands that the mail names are the holder's to run.
        stands = as_user(office, account, "incidents", "places", own, "--check")
        assert (stands.returncode, "still holds it (line 2)" in stands.stdout) == (1, True), stands.stderr
        assert f"--in-place {held}" in stands.stdout
        assert as_user(office, account, "incidents", "places", other).returncode == 2
        refused = as_user(office, account, "incidents", "rotated", other)
        nothing = as_user(office, account, "incidents", "rotated", "0123456789ab")
        assert refused.returncode == nothing.returncode == 2
        assert refused.stderr.replace(other, "X") == nothing.stderr.replace("0123456789ab", "X")
        assert as_user(office, account, "incidents", "rotated", own).stdout == f"{own} claimed\n"
        assert as_user(office, account, "incidents", "list").returncode == 3
        tries = [as_user(office, account, "incidents", "match", input=theirs) for _ in range(14)]
        assert "too many keys" in tries[-1].stderr
    finally:
        stop(service)
        stop(redactor)
    whole = json.loads(office.guard("incidents", "show", own, "--json"))
    assert [(a["verb"], a["who"]) for a in whole["actions"]] == [("claim", account.name)]
    assert not (office.state / "incidents.sock").exists()


def test_an_agent_in_its_session_cannot_say_rotated(office: Office, account: Account) -> None:
    tree = {"uid": account.uid, "user": account.name}
    office.spool(exposure("k", NOW - HOUR, at_tree=tree))
    service = start(office, "incidents", "incidents.sock")
    program = (
        "import json, socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        f"s.sendall(json.dumps({{'ask': 'rotated', 'id': '{fingerprint('k')[:12]}'}}).encode() + b'\\n'); print(s.recv(4096))"
    )
    command = ["/usr/bin/python3", "-c", program, str(office.state / "incidents.sock")]
    policy = account.write(
        account.state.parent / "open.toml",
        'schema = 1\nname = "open"\nextends = "observe"\n[sockets]\nallow = [{ path = "/var/tmp", reason = "test" }]\n',
    )
    try:
        inside = account.guard(command, policy=str(policy))
        outside = account.command(command)
    finally:
        stop(service)
    assert "claimed" in outside.stdout, outside.stderr
    assert "claimed" not in inside.stdout


def test_on_a_node_without_the_ledger_a_claim_goes_to_the_site(office: Office, account: Account) -> None:
    tree = {"uid": account.uid, "user": account.name}
    events = start(office, "events", "events.sock")
    try:
        with socket.socket(socket.AF_UNIX) as producer:
            producer.connect(str(office.state / "events.sock"))
            producer.sendall(json.dumps(exposure("k", NOW - HOUR, at_tree=tree)).encode() + b"\n")
            producer.recv(4096)
        id_ = fingerprint("k")[:12]
        listed = as_user(office, account, "incidents", "mine")
        assert id_ in listed.stdout, listed.stderr
        assert "this node has seen" in listed.stderr
        told = as_user(office, account, "incidents", "rotated", id_, "--reason", "done")
        assert told.returncode == 0, told.stderr
        assert "on its way" in told.stdout
    finally:
        stop(events)
    whole = json.loads(office.guard("incidents", "show", id_, "--json"))
    assert [(a["verb"], a["who"], a["reason"]) for a in whole["actions"]] == [("claim", account.name, "done")]


def test_the_service_alerts_of_what_is_overdue_without_being_asked(office: Office) -> None:
    from guard.events.spool import Reader, Spool, rows_of

    with Spool(str(office.state / "spool"), clock=lambda: (NOW - 8 * DAY) / 1e6) as spool:
        spool.append([json.dumps(exposure("k", NOW - 8 * DAY)).encode()])
    service = start(office, "incidents", "incidents.sock", "--every", "0.2")
    try:
        end = time.monotonic() + 30
        alerts: list[bytes] = []
        while not alerts and time.monotonic() < end:
            with Reader(str(office.state / "spool")) as reader:
                alerts = [row.line for row in rows_of(reader) if b"incident-overdue" in row.line]
            time.sleep(0.05)
        assert len(alerts) == 1
    finally:
        stop(service)


def test_a_peer_that_says_nothing_holds_up_nobody(office: Office, account: Account) -> None:
    service = start(office, "incidents", "incidents.sock")
    try:
        with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as garbage:
            silent.connect(str(office.state / "incidents.sock"))
            garbage.connect(str(office.state / "incidents.sock"))
            garbage.sendall(b"\xff\xfe not json\n")
            assert as_user(office, account, "incidents", "mine").returncode == 0
            assert b"no request" in garbage.recv(4096)
    finally:
        stop(service)


def test_old_histories_of_many_recorded_by_root_are_a_backlog_of_their_owners(office: Office, accounts: object) -> None:
    """Read as the owner, told of the owner, no alert, one summary; a key used afterwards leaves the backlog."""
    people: list[Account] = [accounts.new() for _ in range(3)]  # type: ignore[attr-defined]
    template = next(f for f in FORMATS if f.kind == "github-token").samples[0]
    keys = [samples.fill(template, random.Random(100 + n))[0] for n in range(3)]
    files = [
        str(one.write(one.home / ".bash_history", f"#1700000000\nexport T={key}\nls\n", 0o600))
        for one, key in zip(people, keys, strict=True)
    ]
    office.guard("key", "init")
    (office.config / "events.toml").write_text("schema = 1\n[alerts]\nwindow_s = 600\n")
    events = start(office, "events", "events.sock")
    try:
        done = office.run("redact", "--check", "--record", "--baseline", *files)
        assert done.returncode == 1, done.stderr
        end = time.monotonic() + 60
        while "github-token" not in (listed := office.run("incidents", "list", "--backlog").stdout) or listed.count("\n") < 4:
            assert time.monotonic() < end, listed
            time.sleep(0.2)
        sent = office.run("events", "--json", "--sent", "--control", "exposure", "--severity", "low").stdout
        assert sent == ""
    finally:
        stop(events)
    whole = [json.loads(line) for line in office.guard("incidents", "list", "--backlog", "--json").splitlines()]
    assert sorted(one["users"][0] for one in whole) == sorted(one.name for one in people)
    assert all(e["happened"] == 1700000000 and e["audience"] == "owner" for one in whole for e in one["exposures"])
    assert office.guard("incidents", "list", "--overdue") == ""


def test_a_users_link_is_followed_with_the_users_rights(office: Office, account: Account) -> None:
    secret = office.state / "roots.env"
    secret.write_text("T=" + samples.fill(next(f for f in FORMATS if f.kind == "github-token").samples[0], random.Random(1))[0])
    secret.chmod(0o600)
    link = account.directory("l") / ".bash_history"
    assert account.command(["ln", "-s", str(secret), str(link)]).returncode == 0
    refused = office.run("redact", "--check", str(link))
    assert refused.returncode == 3
    assert "Permission denied" in refused.stderr
    assert office.run("redact", "--check", str(secret)).returncode == 1
    pipe = account.directory("p") / "x"
    assert account.command(["mkfifo", str(pipe)]).returncode == 0
    assert "no regular file" in office.run("redact", "--check", str(pipe)).stderr
