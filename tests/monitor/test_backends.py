"""What a backend promises beyond what it sees: it is chosen by loading, it counts what it loses, and it leaves nothing
behind but what was asked to stay."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guard.errors import MonitorError
from guard.monitor import bcc_backend, choose, objects, pins
from guard.monitor.core import CoreSource
from guard.monitor.facts import Bind, Coverage, Exec, Exit, Fork, Listen, Loss, Mode, Program
from guard.monitor.libbpf import Library
from guard.monitor.source import Settings
from tests.conftest import GUARD, LONG
from tests.monitor.running import running

ROOT = Path(__file__).resolve().parent.parent.parent
HARNESS = "backend-agent"
SECONDS = 40
"""Until a test gives up; what it waits for is a fact, not a time."""

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("kernel_side")]


@pytest.fixture
def agent(tmp_path):
    """A shell under a harness's name."""
    return shutil.copy("/bin/bash", tmp_path / HARNESS)


@pytest.fixture(scope="session")
def odd(tmp_path_factory):
    made = tmp_path_factory.mktemp("odd") / "odd"
    subprocess.run(["gcc", "-O1", "-w", "-o", str(made), str(ROOT / "tests/monitor/suite/odd.c")], check=True)
    return made


def settings(**more):
    return Settings({HARNESS: Program.HARNESS}, **more)


@contextlib.contextmanager
def source(backend):
    """A backend in this very process; what another monitor pinned on this machine is left to it."""
    opened = choose.open_source(backend, settings(), replace_pins=False)
    try:
        yield opened
    finally:
        opened.close()


def take(opened, until, seconds=SECONDS):
    """Facts until one for which `until` holds."""
    facts, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        facts += opened.poll(0.1)
        if any(until(fact) for fact in facts):
            break
    return facts


def loaded_here():
    """Numbers of the programs that this process holds, by themselves or by a link: no other monitor's."""
    found = set()
    for fd in os.listdir("/proc/self/fdinfo"):
        with contextlib.suppress(OSError):  # the listing's own
            told = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
            found.update(int(line.split()[1]) for line in told if line.startswith("prog_id:"))
    return found


def still_in_the_kernel(programs):
    """Those that the kernel holds, whoever keeps them there; what a link held may take it a moment to let go."""
    library, end = Library(), time.monotonic() + SECONDS
    while programs and time.monotonic() < end:
        opened = {number: library.call("bpf_prog_get_fd_by_id", number) for number in programs}
        programs = {number for number, fd in opened.items() if fd >= 0}
        for number in programs:
            os.close(opened[number])
    return programs


# ---- choosing ----


def test_auto_takes_the_best_that_loads_and_says_why_not_the_better():
    with source("auto") as opened:
        better = choose.BACKENDS[: choose.BACKENDS.index(opened.status.backend)]
        assert set(better) == set(opened.status.refused)
        assert all(opened.status.refused.values())


def test_without_the_objects_another_backend_is_chosen_and_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(objects, "DIRECTORY", str(tmp_path))
    monkeypatch.setattr(bcc_backend, "PLACES", ())
    with source("auto") as opened:
        assert opened.status.backend == "poll"
        assert "is not there" in opened.status.refused["tracepoint"]
        assert opened.status.can["code-from-outside"].see == "no"


def test_a_backend_that_was_named_and_does_not_load_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(objects, "DIRECTORY", str(tmp_path))
    with pytest.raises(MonitorError, match="make setup"):
        choose.open_source("tracepoint", settings())


def test_a_load_that_fails_half_way_leaves_nothing_attached(monkeypatch):
    before, half_way = loaded_here(), set()
    attach_first = CoreSource._attach_first

    def fails(self):
        attach_first(self)
        half_way.update(loaded_here() - before)
        raise ZeroDivisionError

    monkeypatch.setattr(CoreSource, "_attach_first", fails)
    with pytest.raises(ZeroDivisionError):
        choose.open_source("tracepoint", settings(), replace_pins=False)
    assert len(half_way) >= len(objects.ALWAYS)
    assert loaded_here() == before
    assert still_in_the_kernel(half_way) == set()


# ---- trees ----


@pytest.mark.parametrize("backend", ["tracepoint", "poll"])
def test_a_thousand_short_lives_are_a_thousand_execs(backend, agent):
    count = 1000 if LONG else 200
    if backend == "poll":
        pytest.skip("poll sees what lives for a round: doctor says so")
    with (
        source(backend) as opened,
        subprocess.Popen([agent, "-c", f"for i in $(seq {count}); do /bin/true; done; :"]) as root,
    ):
        facts = take(opened, lambda fact: isinstance(fact, Exit) and fact.who.pid == root.pid, 60)
    execs = [fact for fact in facts if isinstance(fact, Exec) and fact.name == b"true" and fact.who.root == root.pid]
    assert len(execs) == count
    assert not [fact for fact in facts if isinstance(fact, Loss)]


def test_what_runs_already_is_put_into_a_tree_with_its_children(agent):
    with subprocess.Popen(
        ["/bin/sh", "-c", "sleep 30 & read x; chmod 777 f; :"], stdin=subprocess.PIPE, cwd=Path(agent).parent
    ) as old:
        (Path(agent).parent / "f").touch()
        with source("tracepoint") as opened:
            assert opened.label(old.pid, old.pid, harness=True)
            labels = {label.pid: label for label in opened.labels()}
            children = [pid for pid, (_, parent) in opened.processes().items() if parent == old.pid]
            assert children
            assert {labels[pid].root for pid in (old.pid, *children)} == {old.pid}
            old.stdin.write(b"\n")
            old.stdin.flush()
            facts = take(opened, lambda fact: isinstance(fact, Mode) and fact.who.root == old.pid)
        assert [fact for fact in facts if isinstance(fact, Mode)]
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def test_a_process_that_is_gone_gets_no_label():
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    with source("tracepoint") as opened:
        assert not opened.label(gone.pid, gone.pid)


def test_argv_is_seen_to_sixteen_kibibytes_and_the_rest_is_counted(agent):
    words = ["x" * 200] * 120
    with source("tracepoint") as opened, subprocess.Popen([agent, "-c", '/bin/true "$@"; :', "-", *words]) as root:
        facts = take(opened, lambda fact: isinstance(fact, Exec) and fact.name == b"true")
    fact = next(fact for fact in facts if isinstance(fact, Exec) and fact.name == b"true" and fact.who.root == root.pid)
    total = len("/bin/true") + 1 + sum(len(word) + 1 for word in words)
    assert sum(map(len, fact.argv)) + len(fact.argv) - 1 == 16384
    assert fact.unseen == total - 16384


def test_the_programs_that_cost_others_are_there_only_with_a_tree(agent, monkeypatch):
    monkeypatch.setattr("guard.monitor.core._QUIET", 0.3)
    with source("tracepoint") as opened:
        assert not opened._following
        with subprocess.Popen([agent, "-c", "read x"], stdin=subprocess.PIPE) as root:
            facts = take(opened, lambda fact: isinstance(fact, Coverage))
            assert [fact.full for fact in facts if isinstance(fact, Coverage)] == [True]
            assert opened._following
            root.stdin.close()
        end = time.monotonic() + SECONDS
        while opened._following and time.monotonic() < end:
            list(opened.poll(0.1))
        assert not opened._following


def test_a_cap_on_the_cost_detaches_what_costs_others_and_keeps_trees_and_binds(agent, tmp_path):
    bind = "import socket; socket.socket().bind(('0.0.0.0', 29321))"
    text = f'read x; touch f; chmod 777 f; /usr/bin/python3 -c "{bind}"; :'
    with (
        source("tracepoint") as opened,
        subprocess.Popen([agent, "-c", text], stdin=subprocess.PIPE, cwd=tmp_path) as root,
    ):
        take(opened, lambda fact: isinstance(fact, Coverage))
        opened.follow(False)
        told = take(opened, lambda fact: isinstance(fact, Coverage))
        assert [fact.full for fact in told if isinstance(fact, Coverage)] == [False]
        root.stdin.write(b"\n")
        root.stdin.flush()
        facts = take(opened, lambda fact: isinstance(fact, Exit) and fact.who.pid == root.pid)
        kinds = {type(fact) for fact in facts}
        assert {Exec, Fork, Bind} <= kinds
        assert Mode not in kinds
        opened.follow(True)


def test_a_label_is_nobodys_who_ended_meanwhile(agent):
    with source("tracepoint") as opened:
        with subprocess.Popen(["/bin/sh", "-c", "read x"], stdin=subprocess.PIPE) as one:
            listing = opened.processes
            answers = iter([listing()])
            one.stdin.close()
            one.wait()
            opened.processes = lambda: next(answers, None) or listing()
            assert not opened.label(one.pid, one.pid)
        assert one.pid not in {label.pid for label in opened.labels()}


def test_what_listened_before_the_programs_came_is_seen(agent):
    script = (
        "import socket,sys; s=socket.socket(); s.bind(('0.0.0.0', 0)); s.listen(); print(flush=True); sys.stdin.read()"
    )
    command = ["/usr/bin/python3", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        server.stdout.readline()
        with source("tracepoint") as opened:
            opened.label(server.pid, server.pid)
            facts = take(opened, lambda fact: isinstance(fact, Listen))
        server.stdin.close()
    assert [fact.address for fact in facts if isinstance(fact, Listen)] == ["0.0.0.0"]


def test_poll_sees_a_tree_and_its_server(agent):
    serve = "/usr/bin/python3 -c 'import socket,time; s=socket.socket(); s.bind((\"0.0.0.0\", 0)); s.listen(); time.sleep(30)'; :"
    with source("poll") as opened, subprocess.Popen([agent, "-c", serve], start_new_session=True) as root:
        facts = take(opened, lambda fact: isinstance(fact, Listen) and fact.who.root == root.pid, 20)
        os.killpg(root.pid, signal.SIGKILL)
        facts += take(opened, lambda fact: isinstance(fact, Exit) and fact.who.pid == root.pid)
    kinds = {type(fact) for fact in facts if getattr(fact, "who", None) and fact.who.root == root.pid}
    assert {Exec, Fork, Listen, Exit} <= kinds


# ---- loss ----


def flooded(act, count, odd, agent, tmp_path):
    """Flood in a network namespace of its own; the facts, and the counters."""
    (tmp_path / "f").touch()
    text = f"ip link set lo up; ip addr add 203.0.113.5/32 dev lo; read x; {odd} {act} {tmp_path}/f {count}; :"
    with source("tracepoint") as opened:
        with subprocess.Popen(["unshare", "-n", agent, "-c", text], stdin=subprocess.PIPE) as root:
            facts = take(opened, lambda fact: isinstance(fact, Coverage))  # all is attached
            root.stdin.write(b"\n")
            root.stdin.flush()
            facts += take(opened, lambda fact: isinstance(fact, Exit) and fact.who.pid == root.pid, 120)
        while left := list(opened.poll(0.5)):
            facts += left
        return facts, opened.stats()


def test_a_flood_of_telemetry_loses_no_alert(odd, agent, tmp_path):
    count = 100_000 if LONG else 20_000
    facts, stats = flooded("flood-telemetry", count, odd, agent, tmp_path)
    assert stats.emitted["Connect"] == count
    assert len([fact for fact in facts if isinstance(fact, Mode)]) == count // 1000
    assert stats.lost["alerts"] == 0


def test_of_a_flood_of_alerts_taken_and_lost_are_all(odd, agent, tmp_path):
    count = 100_000 if LONG else 20_000
    facts, stats = flooded("flood-alerts", count, odd, agent, tmp_path)
    taken = len([fact for fact in facts if isinstance(fact, Mode)])
    lost = sum(fact.count for fact in facts if isinstance(fact, Loss) and fact.stage == "alerts")
    assert stats.emitted["Mode"] == count
    assert taken + lost == count


# ---- through the command line ----


def guard(*words, **more):
    return subprocess.run([GUARD, *words], capture_output=True, text=True, timeout=90, check=False, **more)


def test_a_check_tries_every_rule_and_ends():
    done = guard("monitor", "--check", "--backend", "tracepoint")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAULT" not in done.stdout
    assert "code-from-outside   seen" in done.stdout


def test_a_check_that_expects_another_backend_fails():
    done = guard("monitor", "--check", "--backend", "tracepoint", "--expect", "lsm")
    assert done.returncode == 1
    assert "expected lsm, and tracepoint" in done.stdout


def test_a_check_says_what_cannot_be_enforced():
    done = guard("monitor", "--check", "--backend", "tracepoint", "--enforce")
    assert done.returncode == 1
    assert "cannot be enforced by tracepoint" in done.stdout
    assert "bind                seen         refused" in done.stdout


def bound(*command):
    """The address that a program gets when it asks for 0.0.0.0; "" where it is refused."""
    script = (
        "import socket\ns=socket.socket()\ntry:\n s.bind(('0.0.0.0', 29123))\n print(s.getsockname()[0])\n"
        "except PermissionError: pass"
    )
    done = subprocess.run([*command, "-c", "/usr/bin/python3 -c \"$S\"; :"], env={**os.environ, "S": script},
                          capture_output=True, text=True, check=True)  # fmt: skip
    return done.stdout.strip()


BACKEND = ("--backend", "tracepoint")
ENFORCE = (*BACKEND, "--enforce")


@pytest.fixture
def bpffs():
    """A process in a mount namespace with a bpffs of its own: what is pinned there is no other monitor's."""
    own = "mount -t bpf bpf /sys/fs/bpf && echo mounted && read x"
    with subprocess.Popen(["unshare", "-m", "sh", "-c", own], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"mounted\n"
        yield holder


@pytest.fixture
def node(bpffs):
    with running(start=False) as made:
        made.before = ["nsenter", f"--mount=/proc/{bpffs.pid}/ns/mnt", "--"]
        yield made


@pytest.fixture
def pinned(bpffs):
    """Tells what the node's monitors have pinned."""
    return lambda: list(pins.generations(f"/proc/{bpffs.pid}/root{pins.DIRECTORY}"))


def test_an_agents_bind_is_refused_and_anothers_is_not(node):
    node.settings('[enforce]\nbind = "deny"\n')
    node.start(*ENFORCE)
    assert (bound(node.agent), bound("/bin/sh")) == ("", "0.0.0.0")
    node.stop()
    assert bound(node.agent) == "0.0.0.0"


def test_an_agents_bind_is_turned_to_loopback_and_anothers_is_not(node):
    node.settings('[enforce]\nbind = "rewrite"\n')
    node.start(*ENFORCE)
    assert (bound(node.agent), bound("/bin/sh")) == ("127.0.0.1", "0.0.0.0")


def test_roots_switch_stops_what_is_denied_and_starts_it_again(node):
    node.settings('[enforce]\nbind = "deny"\n')
    node.start(*ENFORCE)
    assert bound(node.agent) == ""
    switch = node.config / "off"
    switch.write_text('reason = "maintenance"\n')
    end = time.monotonic() + 20
    while bound(node.agent) == "":
        assert time.monotonic() < end, "still denied"
    switch.unlink()
    end = time.monotonic() + 20
    while bound(node.agent) != "":
        assert time.monotonic() < end, "not denied again"


def test_without_enforce_nothing_is_refused(node):
    node.settings('[enforce]\nbind = "deny"\n')
    node.start(*BACKEND)
    assert bound(node.agent) == "0.0.0.0"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_enforcement_that_is_to_stay_outlives_the_monitor_until_it_is_detached(node, pinned, how):
    node.settings('[monitor]\nfail_closed = true\n[enforce]\nbind = "deny"\n')
    node.start(*ENFORCE)
    node.stop(how)
    assert pinned()
    assert (bound(node.agent), bound("/bin/sh")) == ("", "0.0.0.0")
    node.start(*ENFORCE)  # another start takes over, and there is one set of pins again
    assert len(pinned()) == 1
    assert bound(node.agent) == ""
    node.stop(signal.SIGKILL)
    assert node.guard("monitor", "--detach").returncode == 0
    assert (bound(node.agent), pinned()) == ("0.0.0.0", [])


def test_a_start_that_enforces_nothing_takes_away_what_an_earlier_one_left(node, pinned):
    node.settings('[monitor]\nfail_closed = true\n[enforce]\nbind = "deny"\n')
    node.start(*ENFORCE)
    node.stop(signal.SIGKILL)
    assert bound(node.agent) == ""
    node.start(*BACKEND)
    assert (bound(node.agent), pinned()) == ("0.0.0.0", [])


def test_detaching_where_nothing_is_attached_is_fine(node):
    assert node.guard("monitor", "--detach").returncode == 0


def test_detach_stops_a_monitor_that_runs(node):
    node.settings('[monitor]\nfail_closed = true\n[enforce]\nbind = "deny"\n')
    node.start(*ENFORCE)
    assert bound(node.agent) == ""
    done = node.guard("monitor", "--detach")
    assert done.returncode == 0, done.stderr
    assert node.process.wait(10) == 0
    assert bound(node.agent) == "0.0.0.0"


# ---- bcc ----


def _bcc_missing():
    try:
        bcc_backend.module()
    except MonitorError as error:
        return str(error)
    return "" if shutil.which("bpftool") else "needs bpftool to lay out headers"


@pytest.fixture(scope="session")
def headers(tmp_path_factory):
    tree = tmp_path_factory.mktemp("headers")
    subprocess.run([ROOT / "packaging/bcc-stub", str(tree)], check=True)
    return tree


@pytest.mark.skipif(bool(_bcc_missing()), reason=_bcc_missing())
@pytest.mark.timeout(300)
def test_bcc_tells_what_it_promises_and_ordinary_work_is_silent(headers):
    stage = [
        "unshare",
        "-n",
        sys.executable,
        "-m",
        "tests.monitor.suite.stage",
        "--guard",
        GUARD,
        "--backend",
        "bcc",
        "--verbose",
    ]
    done = subprocess.run(stage, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280,
                          env={**os.environ, "BCC_KERNEL_SOURCE": str(headers)})  # fmt: skip
    assert done.returncode == 0, done.stdout[-600:] + done.stderr[-2000:]


@pytest.mark.skipif(bool(_bcc_missing()), reason=_bcc_missing())
def test_bcc_without_headers_is_refused_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
    with pytest.raises(MonitorError, match="headers"):
        choose.open_source("bcc", settings())
