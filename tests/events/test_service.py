"""`guard serve events` and `guard events`: who may say what, who may see what, and that nothing is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from guard.events.model import Event, Process, Severity, Tree, say
from guard.events.producer import Ids, Producer
from guard.events.sink import SocketSink
from guard.redact import bless, samples
from tests.conftest import GUARD, Account
from tests.events.conftest import Node, eventually

PYTHON = str(Path(GUARD).with_name("python"))
OTHER = "01a22d5e-0000-7000-8f62-3aaa5840726a"
# Sends what stands on its input, a line at a time, and prints the last answer.
SENDER = """
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
lines = sys.stdin.buffer.read(); s.sendall(lines)
count, last = lines.count(b"\\n"), b""
while True:
    got = s.recv(65536)
    if not got: sys.exit(3)
    last = (last + got)
    answer = last.strip().split(b"\\n")[-1]
    if b'"through":%d,' % count in answer: break
print(answer.decode())
"""


def event(**more: Any) -> dict[str, Any]:
    """An event as a sender would write it."""
    made = Producer("monitor", "kernel").event("files", "denied", Severity.MEDIUM, say("a test's"))
    return {**json.loads(made.to_json()), **more}


def send(node: Node, account: Account, *events: dict[str, Any] | bytes, under: list[str] | None = None) -> dict[str, Any]:
    lines = b"".join((each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in events)
    done = account.command([*(under or []), "/usr/bin/python3", "-c", SENDER, node.socket], input=lines)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def sink(node: Node, name: str = "monitor") -> tuple[Producer, SocketSink]:
    producer = Producer(name, "kernel")
    return producer, SocketSink(producer, node.socket)


def found(node: Node, text: str, *options: str) -> list[dict[str, Any]]:
    return [each for each in node.events(*options) if text in each["message"]]


# What a sender may say --------------------------------------------------------------------------------


def test_a_user_speaks_for_himself_alone(node: Node, account: Account) -> None:
    forged = event(
        message="forged", host="login9", origin="kernel", producer="monitor", seq=77, boot="x",
        tree={"session": OTHER, "harness": "codex", "root_pid": 1, "uid": 0, "user": "root", "slurm_job_id": 12},
        time="2999-01-01T00:00:00Z", weather="fine",
    )  # fmt: skip
    assert send(node, account, forged)["dropped"] == 0
    (seen,) = found(node, "forged")
    assert seen["host"] == os.uname().nodename
    assert seen["origin"] == "user"
    assert seen["producer"] == f"user:{account.uid}"
    assert seen["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (seen["tree"]["uid"], seen["tree"]["user"]) == (account.uid, account.name)
    assert seen["tree"]["root_pid"] == 0, "a process of root's is nobody's tree but root's"
    assert seen["time"] < "2999"
    assert seen["id"] != forged["id"]
    assert seen["seq"] == 1
    assert seen["weather"] == "fine"


def test_a_session_is_whose_named_it_first(node: Node, account: Account, accounts: Any) -> None:
    other = accounts.new()
    mine = {"session": OTHER, "harness": "claude", "root_pid": 0, "uid": account.uid, "user": account.name}
    send(node, account, event(message="mine", tree=mine, producer=f"run:{OTHER}"))
    send(node, other, event(message="stolen", tree=mine, producer=f"run:{OTHER}"))
    send(node, account, event(message="again", tree={**mine, "harness": "codex"}, producer=f"run:{OTHER}"))
    trees = {each["message"]: (each["producer"], each["tree"]) for each in node.events()}
    assert trees["mine"] == (f"run:{OTHER}", {**mine})
    assert trees["stolen"][0] == f"user:{other.uid}"
    assert (trees["stolen"][1]["session"], trees["stolen"][1]["harness"]) == ("", "")
    assert trees["stolen"][1]["uid"] == other.uid
    assert trees["again"][1]["harness"] == "claude", "a session's harness is what it began with"


def test_a_claim_takes_no_other_events_place(node: Node, account: Account) -> None:
    producer, out = sink(node)
    real = producer.event("files", "denied", Severity.HIGH, say("real"))
    send(node, account, event(id=real.id, message="claimed"))
    out.emit(real)
    assert out.flush(20)
    assert {each["message"] for each in node.events() if each["rule"] == "denied"} == {"real", "claimed"}
    assert found(node, "real")[0]["id"] == real.id
    again = send(node, account, event(id=real.id, message="claimed"))
    assert again["dropped"] == 0
    assert len(found(node, "claimed")) == 1, "the same claim twice is one event"


def test_what_a_user_sends_goes_through_the_redactor(node: Node, account: Account) -> None:
    key = samples.fill("ghp_<crc62>", random.Random())[0]
    process = {"pid": 1, "exe": "curl", "argv": ["curl", "-H", f"Authorization: Bearer {key}"], "cwd": f"/x/{key}"}
    send(node, account, event(message=f"secret {key}", process=process, detail={key: [{"deep": f"token={key}"}]}))
    shown = node.show("--json").stdout
    assert "a test" not in key
    assert "curl" in shown
    assert key not in shown
    content = b"".join(path.read_bytes() for path in (node.state / "spool").iterdir())
    assert key.encode() not in content


def test_ids_digests_and_fingerprints_are_no_secrets(node: Node, account: Account) -> None:
    detail = {"fingerprint": os.urandom(32).hex(), "key_id": os.urandom(8).hex(), "incident": True, "kind": "github-pat"}
    whole = event(
        control="exposure", rule="secret", detail=detail, policy={"name": "login-node", "digest": os.urandom(32).hex()},
        tree={"session": Ids().new(), "harness": "claude", "root_pid": 0},
    )  # fmt: skip
    send(node, account, whole)
    (seen,) = [each for each in node.events() if each["rule"] == "secret"]
    assert seen["detail"] == detail
    assert seen["policy"] == whole["policy"]
    assert seen["tree"]["session"] == whole["tree"]["session"]


BAD = [
    b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b'{"id":1}', b"x" * 70_000, b"[" * 2000,
    json.dumps(event(control="nonsense")).encode(), json.dumps(event(rule="a b")).encode(),
    json.dumps(event(id="../../x")).encode(), json.dumps(event(verdict="adored")).encode(),
    json.dumps(event(detail="x" * 70_000)).encode(), b'{"a":' * 900 + b"1" + b"}" * 900,
    json.dumps(event(tree={"uid": "0"})).replace('"uid": "0"', '"uid": 1e400').encode(),
]  # fmt: skip


def test_what_is_no_event_is_refused_and_counted_and_harms_nobody(node: Node, account: Account) -> None:
    answer = send(node, account, *[line for line in BAD if line], event(message="good"))
    assert len(found(node, "good")) == 1
    assert answer["dropped"] >= len(BAD) - 3
    eventually(lambda: [e for e in node.events("--rule", "events-lost") if e["detail"]["stages"].get("refused")])
    (told,) = node.events("--rule", "events-lost")
    assert told["detail"]["stages"]["refused"] == {f"uid {account.uid}": answer["dropped"]}
    assert told["detail"]["lost"] == answer["dropped"]


def test_odd_values_are_put_right(node: Node, account: Account) -> None:
    odd = event(
        message="odd\x1b[31m\nsecond line " + "x" * 300, mitre=["T1552.001", "nonsense", 7], time="yesterday",
        tree={"uid": -5, "root_pid": "x", "session": ["a"], "slurm_job_id": -1}, process=None, severity="critical",
    )  # fmt: skip
    assert send(node, account, odd)["dropped"] == 0
    (seen,) = found(node, "odd")
    assert len(seen["message"]) < 100
    assert "\n" not in seen["message"]
    assert seen["mitre"] == ["T1552.001"]
    assert seen["tree"]["uid"] == account.uid
    assert "\x1b" not in node.show().stdout


def test_a_uid_has_its_ration_and_the_rest_is_told(idle: Node, account: Account) -> None:
    idle.write("events.toml", "[intake]\nrate = 1\nburst = 50\n")
    idle.start()
    answer = send(idle, account, *[event(message=f"flooding {at}", rule=f"r{at}") for at in range(200)])
    assert 140 <= answer["dropped"] <= 150
    assert len(found(idle, "flooding")) == 200 - answer["dropped"]
    eventually(lambda: idle.events("--rule", "events-lost"))
    (told,) = idle.events("--rule", "events-lost")
    assert told["detail"]["stages"] == {"ration": {f"uid {account.uid}": answer["dropped"]}}
    assert told["origin"] == "service"


# Inside a tree ----------------------------------------------------------------------------------------

LET_IN = 'schema = 1\nname = "in"\nextends = "login-node"\n[supervisor]\nuse = "never"\n'


def test_from_inside_a_session_only_its_own_exposures_are_taken(node: Node, account: Account) -> None:
    policy = account.write(account.state.parent / "in.toml", LET_IN)
    guarded = [GUARD, "run", "--policy", str(policy), "--"]
    claims = [
        event(message="from outside", control="files"),
        event(message="exposed", control="exposure", rule="secret", producer=f"run:{OTHER}",
              tree={"session": OTHER, "harness": "codex", "uid": 0}),
        event(message="start", control="session", rule="session-start"),
    ]  # fmt: skip
    assert send(node, account, *claims)["dropped"] == 0, "outside all of it is taken as a claim"
    assert len(node.events("--rule", "secret")) == 1
    claims = [{**each, "id": event()["id"]} for each in claims]
    answer = send(node, account, *claims, under=guarded)
    assert answer["dropped"] == 2
    inside = node.events("--rule", "secret")[-1]
    assert inside["producer"] == f"inside:{account.uid}"
    assert inside["tree"]["session"] == ""
    assert inside["tree"]["uid"] == account.uid
    assert inside["process"]["pid"] > 0


# Who sees what ----------------------------------------------------------------------------------------


def test_a_user_sees_his_own_events_and_root_sees_all_and_is_seen(node: Node, account: Account, accounts: Any) -> None:
    other = accounts.new()
    send(node, account, event(message="of the first"))
    send(node, other, event(message="of the second"))
    mine = {each["message"] for each in node.events(account=account)}
    assert mine == {"of the first"}
    for options in (["--user", other.name], ["--user", str(other.uid)], ["--rule", "denied"], ["--session", OTHER]):
        shown = {each["message"] for each in node.events(*options, account=account)}
        assert shown <= mine
    assert {each["tree"]["uid"] for each in node.events("--rule", "events-read")} == {0}, "only this very look"
    everything = {each["message"] for each in node.events()}
    assert {"of the first", "of the second"} <= everything
    assert node.events("--rule", "events-read")
    assert {"of the second"} == {each["message"] for each in node.events("--user", other.name, "--rule", "denied")}


def test_members_of_a_named_group_see_all_and_that_is_recorded(idle: Node, account: Account, accounts: Any) -> None:
    group = f"gtread{os.getpid() % 100000}"
    reader = accounts.new([group])
    try:
        idle.write("events.toml", f'[access]\nreaders = ["{group}"]\n')
        idle.start()
        send(idle, account, event(message="private"))
        assert "private" in {each["message"] for each in idle.events(account=reader)}
        (looked,) = [e for e in idle.events("--rule", "events-read") if e["tree"]["uid"] == reader.uid]
        assert looked["origin"] == "service"
        assert looked["tree"]["user"] == reader.name
    finally:
        subprocess.run(["groupdel", "-f", group], check=False, capture_output=True)


def test_the_spool_is_roots_alone(node: Node, account: Account) -> None:
    spool = node.state / "spool"
    assert account.command(["sh", "-c", f"ls {spool}; cat {spool}/*"]).stdout == ""
    assert spool.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in spool.iterdir() if path.suffix == ".db"} == {0}


# Producers and readers --------------------------------------------------------------------------------


def listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as channel:
        return channel.connect_ex(path) == 0


def nested(levels: int) -> bytes:
    """An event with so many objects in one another."""
    return json.dumps(event()).encode()[:-1] + b',"more":' + b'{"a":' * levels + b"1" + b"}" * (levels + 1)


@pytest.mark.root
def test_no_line_whatever_ends_the_service(node: Node, account: Account) -> None:
    """What is read is what can be written again: a line nested so deeply that it could not be ended it once."""
    odd: list[dict[str, Any] | bytes] = [
        b"[]", b"null", b"nan", b"[" * 60_000, b"{" * 5000, b"\x00\xff", b'{"erase":[1]}', b'{"erase":',
        nested(70), nested(250), nested(700), nested(1000),
        event(seq=2**63), event(seq=-(2**63)), event(seq=1.5), event(seq=None), event(rule=None), event(control=[]), event(verdict=[]),
        event(tree={"uid": 2**70, "root_pid": 2**62, "session": ["a"], "harness": {}}), event(time="0000-00-00T00:00:00Z"),
        event(control="exposure", detail={"fingerprint": "a" * 50_000, "key_id": {"x": [1] * 1000}, "port": []}),
        event(process={"argv": [1, None, {}, [[]]], "exe": 7, "cwd": []}), event(mitre=[1, "T1", None]), event(policy={"name": {}}),
    ]  # fmt: skip
    assert send(node, account, *odd)["through"] == len(odd)
    with_root = subprocess.run([PYTHON, "-c", SENDER, node.socket], input=b"".join(
        (each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in odd[8:]
    ), capture_output=True, check=False)  # fmt: skip
    assert b'"through"' in with_root.stdout, with_root.stderr
    asks = "import socket,sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(sys.stdin.buffer.read()); print(s.recv(99))"
    reading = node.socket.replace("events.sock", "events-read.sock")
    eventually(lambda: listens(reading))  # its process is ready a little later
    for request in ('{"user":"\\u0000"}', '{"user":"\u00b2"}', '{"limit":-5}', '{"since":1e999}', "[" * 2000, "7"):
        done = account.command(["/usr/bin/python3", "-c", asks, reading], input=request.encode() + b"\n")
        assert len(done.stdout) > len("b''\n"), f"{request} was not answered"
    assert send(node, account, event(message="still here"))["dropped"] == 0
    assert found(node, "still here")
    assert node.process is not None
    assert node.process.poll() is None
    assert node.show("--verify").returncode == 0


def test_filters_and_the_two_forms(node: Node) -> None:
    producer, out = sink(node)
    process = Process(1, 0, bless("chmod"), (bless("chmod"), bless("777")), 2, bless("/home/x"))
    for severity in Severity:
        tree = Tree("s", "claude", 7, 4711, "ann")
        out.emit(producer.event("setuid", f"r{severity:d}", severity, say("it is {}", int(severity)), tree=tree,
                                process=process, verdict="denied" if severity > 2 else "observed"))  # fmt: skip
    assert out.flush(20)
    assert [e["rule"] for e in node.events("--severity", "high")] == ["r3", "r4"]
    assert [e["rule"] for e in node.events("--rule", "r1")] == ["r1"]
    assert [e["rule"] for e in node.events("--user", "ann", "--limit", "2")] == ["r3", "r4"]
    assert [e["rule"] for e in node.events("--verdict", "denied", "--harness", "claude")] == ["r3", "r4"]
    assert [e["rule"] for e in node.events("--control", "setuid", "--until", "1h")] == []
    assert len(node.events("--control", "setuid", "--since", "1h")) == 5
    low, medium = (node.events("--rule", rule)[0]["process"] for rule in ("r1", "r2"))
    assert (low["argv"], low["cwd"]) == (["chmod"], ""), "below medium no arguments and no directory"
    assert (medium["argv"], medium["cwd"]) == (["chmod", "777"], "/home/x")
    text = node.show("--control", "setuid").stdout
    assert max(map(len, text.splitlines())) < 80
    assert "critical ann claude: it is 4" in text
    for wrong in (["--since", "soon"], ["--severity", "grave"], ["--limit", "-1"]):
        assert node.show(*wrong).returncode == 2


def test_following_shows_what_comes(node: Node) -> None:
    producer, out = sink(node)
    shown = subprocess.Popen(
        [GUARD, "events", "--state", str(node.state), "--config", str(node.config), "--follow", "--json", "--rule", "new"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert shown.stdout is not None
        eventually(lambda: node.events("--rule", "events-read"))
        for at in range(3):
            out.emit(producer.event("files", "new", Severity.LOW, say("number {}", at), detail={"object": bless(str(at))}))
            assert json.loads(shown.stdout.readline())["message"] == f"number {at}"
    finally:
        shown.send_signal(signal.SIGINT)
        shown.wait(20)


def test_the_chain_is_checked_from_the_command_line(node: Node) -> None:
    producer, out = sink(node)
    for at in range(20):
        out.emit(producer.event("session", "step", Severity.LOW, say("step {}", at)))
    assert out.flush(20)
    done = node.show("--verify")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "the chain is whole")
    assert node.stop() == 0
    script = "import sqlite3,sys; d=sqlite3.connect(sys.argv[1]); d.execute('DELETE FROM events WHERE position = 9'); d.commit()"
    subprocess.run([PYTHON, "-c", script, str(node.state / "spool/spool.db")], check=True)
    done = node.show("--verify")
    assert done.returncode == 1
    assert "BROKEN at row 9" in done.stdout


def test_what_is_personal_is_erased_under_a_running_service_by_root_alone(node: Node, account: Account) -> None:
    send(node, account, event(message="unspeakable"), event(message="another"))
    order = {"erase": [1, 2, 3], "uid": account.uid, "spool": str(node.state / "spool")}
    assert send(node, account, json.dumps(order).encode())["dropped"] == 1
    assert len(found(node, "unspeakable")) == 1
    code = "import sys; from guard.events import client; print(client.erase(sys.argv[1], [1, 2, 3], int(sys.argv[2])))"
    done = subprocess.run([PYTHON, "-c", code, str(node.state / "spool"), str(account.uid)], capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 2
    assert not found(node, "unspeakable")
    assert not node.events(account=account)
    assert node.show("--verify").returncode == 0
    files = b"".join(path.read_bytes() for path in (node.state / "spool").iterdir())
    assert b"unspeakable" not in files
    other = subprocess.run([PYTHON, "-c", code, str(node.top / "elsewhere"), "1"], capture_output=True, text=True, check=False)
    assert other.stdout.strip() == "0", "another spool is never taken for this one"


def test_a_clean_stop_keeps_all_and_takes_the_sockets_away(node: Node) -> None:
    producer, out = sink(node)
    out.emit(producer.event("files", "kept", Severity.LOW, say("kept")))
    assert out.flush(20)
    assert node.stop() == 0
    assert not list(node.state.glob("*.sock"))
    assert [each["message"] for each in node.events("--rule", "kept")] == ["kept"], "root reads without a service too"


def test_a_second_service_does_not_start(node: Node) -> None:
    command = [GUARD, "serve", "events", "--state", str(node.state), "--config", str(node.config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3
    assert "already" in done.stderr or "another process" in done.stderr
    assert node.events() is not None


def test_a_broken_file_keeps_the_last_good_one_in_force_and_is_an_alert(node: Node) -> None:
    assert node.process is not None
    node.write("events.toml", "[intake]\nrate = -1\n")
    node.process.send_signal(signal.SIGHUP)
    eventually(lambda: node.events("--rule", "site-files-broken"))
    (alert,) = node.events("--rule", "site-files-broken")
    assert alert["severity"] == "high"
    assert "rate is a whole number" in node.log
    assert "events.toml:3:8:" in node.log
    command = [GUARD, "serve", "events", "--state", str(node.top / "other"), "--config", str(node.config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3
    assert "^" in done.stderr


# Users' own spools ------------------------------------------------------------------------------------


def test_what_a_session_wrote_is_adopted_and_seen_at_once(node: Node, account: Account, project: Path) -> None:
    env = {"GUARD_STATE_DIR": str(node.users_state(account))}
    assert account.guard(["true"], cwd=project, env=env).returncode == 0
    (start,) = node.events("--rule", "session-start", account=account)
    assert start["tree"]["uid"] == account.uid
    assert start["producer"] == f"run:{start['tree']['session']}"
    assert start["detail"]["version"]
    assert account.guard(["true"], cwd=project, env=env).returncode == 0
    assert len(node.events("--rule", "session-start")) == 2


def test_a_users_file_is_read_as_that_user_and_only_if_it_is_a_file(node: Node, account: Account) -> None:
    state = node.users_state(account)
    secret = node.top / "roots"
    secret.write_bytes(json.dumps(event(message="roots own")).encode() + b"\n")
    secret.chmod(0o600)
    lines = json.dumps(event(message="his own")) + "\n"
    account.write(state / "events.jsonl.1", lines, 0o600)
    for make in (
        lambda: os.symlink(secret, state / "events.jsonl"),
        lambda: os.mkfifo(state / "events.jsonl"),
        lambda: os.link(secret, state / "events.jsonl"),
        lambda: os.mkdir(state / "events.jsonl"),
    ):
        make()
        assert {each["message"] for each in node.events(account=account)} == {"his own"}
        (state / "events.jsonl").rmdir() if (state / "events.jsonl").is_dir() else (state / "events.jsonl").unlink()
    assert "roots own" not in node.show("--json").stdout


def test_half_lines_wait_and_replaced_files_are_read_anew(node: Node, account: Account) -> None:
    file = account.write(node.users_state(account) / "events.jsonl", json.dumps(event(message="one")) + "\n" + '{"sch', 0o600)
    assert [each["message"] for each in node.events(account=account)] == ["one"]
    whole = json.dumps(event(message="two"))
    file.write_text(json.dumps(event(message="three")) + "\n" + whole + "\n")
    assert {each["message"] for each in node.events(account=account)} == {"one", "two", "three"}
    with file.open("a") as more:
        more.write("x" * 300_000 + "\n" + json.dumps(event(message="four")) + "\n")
    assert {each["message"] for each in node.events(account=account)} == {"one", "two", "three", "four"}


def test_lines_cut_out_of_a_users_file_are_told(node: Node, account: Account) -> None:
    tree = {"session": OTHER, "uid": account.uid}
    made = [event(message=f"n{at}", seq=at, producer=f"run:{OTHER}", tree=tree, rule=f"r{at}") for at in (1, 2, 6)]
    account.write(node.users_state(account) / "events.jsonl", "".join(json.dumps(each) + "\n" for each in made), 0o600)
    assert len(node.events(account=account)) == 3
    eventually(lambda: node.events("--rule", "events-lost"))
    (told,) = node.events("--rule", "events-lost")
    assert told["detail"]["stages"] == {"gap": {f"uid {account.uid}": 3}}


def test_recorded_exposures_are_adopted_as_events(node: Node, account: Account) -> None:
    state = node.users_state(account)
    key = samples.fill("ghp_<crc62>", random.Random())[0]
    env = {"GUARD_STATE_DIR": str(state)}
    for _ in range(2):
        assert account.cli("redact", "--record", input=f"export GITHUB_TOKEN={key}\n", env=env).returncode == 0
    seen = node.events("--control", "exposure", account=account)
    assert len(seen) == 2
    assert seen[0]["detail"]["fingerprint"] == seen[1]["detail"]["fingerprint"]
    assert seen[0]["detail"]["kind"]
    assert seen[0]["severity"] in ("medium", "high")
    assert len(node.events("--control", "exposure", "--sent", "--severity", "low")) == 1, "one fingerprint alerts once"
    assert key not in json.dumps(seen)


# Nothing is lost --------------------------------------------------------------------------------------


def test_what_is_acknowledged_is_there_once_whatever_kills_the_service(node: Node) -> None:
    kills, producers = 4, 4  # many more in test_kills.py
    stop = threading.Event()
    counts = [0] * producers

    def produce(at: int) -> None:
        producer, out = sink(node, f"load{at}")
        while not stop.is_set():
            for _ in range(50):
                counts[at] += 1
                out.emit(producer.event("session", "load", Severity.LOW, say("load {}", counts[at])))
            out.flush(0.05)
        assert out.flush(60)
        assert out.lost == 0

    threads = [threading.Thread(target=produce, args=(at,)) for at in range(producers)]
    for each in threads:
        each.start()
    for _ in range(kills):
        stop.wait(random.uniform(0.02, 0.4))
        node.kill()
        node.start()
    stop.set()
    for each in threads:
        each.join()
    seen: dict[str, list[int]] = {}
    ids = set()
    for each in node.events("--rule", "load"):
        seen.setdefault(each["producer"], []).append(each["seq"])
        ids.add(each["id"])
    for at in range(producers):
        assert seen[f"load{at}"] == list(range(1, counts[at] + 1))
    assert len(ids) == sum(counts) > 0
    assert node.show("--verify").returncode == 0


def test_events_are_kept_while_the_service_is_away(idle: Node) -> None:
    producer = Producer("monitor", "kernel")
    out = SocketSink(producer, idle.socket, most=100)
    for at in range(150):
        out.emit(producer.event("session", "early", Severity.LOW, say("early {}", at)))
    for at in range(60):
        out.emit(producer.event("session", "alert", Severity.HIGH, say("alert {}", at)))
    assert out.lost == 110
    idle.start()
    assert out.flush(30)
    assert len(idle.events("--rule", "alert")) == 60
    assert len(idle.events("--rule", "early")) == 40
    (told,) = idle.events("--rule", "events-lost")
    assert told["detail"] == {"lost": 110, "stage": "producer"}


def test_a_full_disk_keeps_alerts_and_counts_what_it_drops(idle: Node) -> None:
    idle.state.mkdir(mode=0o755)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m,mode=0755", "guard-test", str(idle.state)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this host lets its root make no mounts")
    try:
        idle.start()
        (idle.state / "filler").write_bytes(b"x")
        producer, out = sink(idle)

        def burst(rule: str, severity: Severity, count: int) -> None:
            for at in range(count):
                out.emit(producer.event("session", rule, severity, say("{} {}", bless(rule), at),
                                        detail={"pad": bless("x" * 400)}))  # fmt: skip
            assert out.flush(60)

        burst("before", Severity.LOW, 2000)
        fill_up(idle.state / "filler")
        burst("telemetry", Severity.LOW, 6000)
        burst("alert", Severity.HIGH, 1000)
        burst("telemetry", Severity.LOW, 2000)
        burst("alert", Severity.HIGH, 1000)
        (idle.state / "filler").unlink()
        burst("after", Severity.LOW, 100)
        eventually(lambda: len(idle.events("--rule", "after")) == 100)
        assert len(idle.events("--rule", "alert")) == 2000, "no alert is lost"
        kept = len(idle.events("--rule", "telemetry")) + len(idle.events("--rule", "before"))
        # The service's own first heartbeat is telemetry as well, and may have made way too.
        lost = 10_001 - kept - len(idle.events("--rule", "heartbeat"))
        eventually(lambda: told(idle) == lost)
        assert kept < 10_000
        assert idle.show("--verify").returncode == 0
        idle.stop()
    finally:
        if idle.process is not None and idle.process.poll() is None:
            idle.kill()
        subprocess.run(["umount", "-l", str(idle.state)], check=False)


def fill_up(path: Path) -> None:
    """Take the last block of a file system."""
    with path.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def told(node: Node) -> int:
    return sum(each["detail"]["lost"] for each in node.events("--rule", "events-lost"))


# What is sent -----------------------------------------------------------------------------------------


def test_ten_thousand_of_a_kind_are_all_stored_and_few_are_sent(node: Node) -> None:
    producer, out = sink(node)
    tree = Tree("01a22d5e-0000-7000-8f62-3aaa5840726b", "claude", 7, 4711, "ann")
    count = 3000
    for at in range(count):
        out.emit(producer.event("world-writable", "chmod", Severity.MEDIUM, say("777"), tree=tree,
                                detail={"object": bless(f"/home/ann/{at}")}))  # fmt: skip
    assert out.flush(60)
    assert len(node.events("--rule", "chmod")) == count
    sent = node.events("--rule", "chmod", "--sent")
    assert len(sent) == 4
    assert [each["seq"] for each in sent] == [1, 2, 3, 4], "what a feed sees has no gaps"
    # Nothing of the count is forgotten when the service dies before it is told.
    node.kill()
    node.start()
    import sqlite3

    db = sqlite3.connect(node.state / "spool/spool.db")
    (state,) = db.execute("SELECT value FROM kept WHERE kind = 'budget'").fetchone()
    assert json.loads(state)["flood"]["counts"] == {"world-writable/chmod": count - 4}


def test_a_suppressed_finding_is_stored_and_counted_but_not_sent(idle: Node) -> None:
    idle.write(
        "suppressions.toml",
        '[[suppression]]\nrule = "world-writable/*"\nuser = "ann"\npath = "/scratch/*"\nreason = "shared"\nuntil = 2999-01-01\n'
        '[[suppression]]\nrule = "setuid/*"\nreason = "over"\nuntil = 2020-01-01\n',
    )
    idle.start()
    producer, out = sink(idle)
    for user, thing, rule in (("ann", "/scratch/x", "world-writable"), ("bob", "/scratch/x", "world-writable"), ("ann", "/s", "setuid")):
        tree = Tree("", "", 7, 4711 + len(user + thing), user)
        out.emit(producer.event(rule, "chmod", Severity.MEDIUM, say("{}", bless(user)), tree=tree, detail={"object": bless(thing)}))  # type: ignore[arg-type]
    assert out.flush(20)
    assert len(idle.events("--rule", "chmod")) == 3
    assert {(e["tree"]["user"], e["control"]) for e in idle.events("--rule", "chmod", "--sent")} == {
        ("bob", "world-writable"), ("ann", "setuid"),
    }  # fmt: skip


def test_an_exempt_users_events_say_so_and_name_nothing(idle: Node, account: Account) -> None:
    idle.write("events.toml", f'[[privacy.exempt]]\nuser = "{account.name}"\nreason = "works council"\n')
    idle.start()
    process = {"pid": 9, "exe": "/opt/tool", "argv": ["tool", "--x"], "argc": 2, "cwd": "/home/p"}
    send(idle, account, event(message="quiet", severity="low"), event(message="loud", process=process, detail={"object": "/home/p/f"}))
    (seen,) = [each for each in idle.events() if each["rule"] == "denied"]
    assert seen["detail"]["exempt"] is True
    assert seen["detail"]["object"].startswith("[PATH:")
    assert (seen["process"]["argv"], seen["process"]["exe"], seen["process"]["cwd"]) == ([], "", "")
    beat = idle.events("--rule", "heartbeat")[-1]
    assert beat["detail"]["exempt"] == 1


def test_the_node_says_that_it_is_alive(node: Node) -> None:
    eventually(lambda: node.events("--rule", "heartbeat"))
    (beat,) = node.events("--rule", "heartbeat")
    assert beat["producer"] == "service"
    assert beat["detail"]["every_s"] == 300
    assert {"position", "chain", "lost", "version"} <= set(beat["detail"])
    assert isinstance(Event.from_json(json.dumps(beat)), Event)
