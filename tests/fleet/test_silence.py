"""A node that stops without a word, a weaker backend, a lost control: an alert in the feed, in time, once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from guard.events.model import word
from guard.events.producer import Producer
from guard.events.wire import Severity
from guard.fleet.judge import Gap, Node, judge
from tests.conftest import GUARD
from tests.fleet.test_ingest import alerts, guard, ingest, state

__all__ = ["state"]

START = 1_790_000_000


def beats(host: str, until: int, every: int = 300, more: Mapping[int, Mapping[str, object]] | None = None) -> bytes:
    """A node's heartbeats from START on, `until` seconds later the last."""
    now = 0
    producer = Producer("service", host=host, clock=lambda: (START + now) * 10**9)
    lines = []
    while now <= until:
        detail = {"every_s": every, "version": word("0.1.0"), **dict((more or {}).get(now, {}))}
        event = producer.event("telemetry", "heartbeat", Severity.INFO, word("alive"), detail=detail)  # type: ignore[arg-type]
        lines.append(event.to_json())
        now += every
    return b"\n".join(lines) + b"\n"


def at(seconds: int) -> str:
    return datetime.fromtimestamp(START + seconds, UTC).isoformat()


def words(table: Mapping[str, str]) -> dict[str, object]:
    return {name: word(value) for name, value in table.items()}


def test_a_node_that_stops_without_a_word_is_alerted_within_15_minutes(state: Path) -> None:
    ingest(state, "-", "--no-alerts", input=beats("login1", 3600) + beats("login2", 1800))
    # Whoever looks every minute, as the timer does.
    first = 0
    for minute in range(31, 61):
        guard(state, "fleet", "status", "--alert", "--at", at(minute * 60))
        if alerts(state):
            first = minute
            break
    assert 0 < first * 60 - 1800 <= 15 * 60
    told = alerts(state)
    assert [(event["rule"], event["severity"], event["detail"]["node"]) for event in told] == [  # type: ignore[index]
        ("fleet.silent", "high", "login2")
    ]
    shown = guard(state, "fleet", "status", "--json", "--at", at(3600))
    assert shown.returncode == 1
    assert [bool(json.loads(line)["wrong"]) for line in shown.stdout.splitlines()] == [False, True]
    # Once, and its end once.
    ingest(state, "-", "--no-alerts", input=beats("login2", 3600))
    guard(state, "fleet", "status", "--alert", "--at", at(3600))
    assert guard(state, "fleet", "status", "--alert", "--at", at(3660)).returncode == 0
    assert [event["severity"] for event in alerts(state)] == ["high", "info"]


def test_a_node_that_beats_is_not_alerted_while_one_beat_is_late(state: Path) -> None:
    ingest(state, "-", "--no-alerts", input=beats("login1", 1800))
    assert guard(state, "fleet", "status", "--alert", "--at", at(1800 + 700)).returncode == 0
    assert alerts(state) == []


def test_a_weaker_backend_and_a_lost_control_are_alerts_and_better_ones_are_not(state: Path) -> None:
    full = {"files": "enforced", "bind": "enforced", "connect": "partial"}
    stream = beats("login1", 1200, more={
        0: {"backend": word("lsm"), "controls": words(full)},
        300: {"backend": word("poll"), "controls": words({**full, "bind": "absent", "connect": "enforced"})},
        600: {"backend": word("poll"), "controls": words({**full, "bind": "absent", "connect": "enforced"})},
        900: {"backend": word("fmod"), "controls": words(full)},
    })  # fmt: skip
    ingest(state, "-", input=stream)
    told = [(e["rule"], e["severity"], e["message"]) for e in alerts(state) if e["rule"] != "fleet.silent"]
    assert told == [
        ("fleet.backend", "high", "login1: the monitor went from lsm to poll"),
        ("fleet.control", "high", "login1: bind was enforced, is absent"),
        ("fleet.control", "info", "login1: connect was partial, is enforced"),
        ("fleet.backend", "info", "login1: the monitor went from poll to fmod"),
        ("fleet.control", "info", "login1: bind was absent, is enforced"),
        ("fleet.control", "high", "login1: connect was enforced, is partial"),
    ]


def test_an_old_heartbeat_that_comes_late_changes_nothing(state: Path) -> None:
    both = beats("login1", 300, more={0: {"backend": word("lsm")}, 300: {"backend": word("poll")}}).splitlines()
    ingest(state, "-", "--no-alerts", input=both[1])
    ingest(state, "-", "--no-alerts", input=both[0])
    guard(state, "fleet", "status", "--alert", "--at", at(360))
    assert alerts(state) == []


def test_a_users_claim_is_no_heartbeat(state: Path) -> None:
    forged = json.loads(beats("login1", 0))
    forged["origin"] = "user"
    ingest(state, "-", "--no-alerts", input=json.dumps(forged).encode())
    shown = guard(state, "fleet", "status", "--json", "--at", at(0))
    assert json.loads(shown.stdout)["every"] == 0


def test_a_node_that_is_no_more_can_be_forgotten(state: Path) -> None:
    ingest(state, "-", "--no-alerts", input=beats("login1", 0))
    assert guard(state, "fleet", "status", "--at", at(9999)).returncode == 1
    assert guard(state, "fleet", "status", "--forget", "login1", "--at", at(9999)).returncode == 0
    assert guard(state, "fleet", "status", "--forget", "login1").returncode == 3


def test_what_a_node_says_of_itself_gives_a_terminal_no_order(state: Path) -> None:
    order = "\x1b]0;x\x07\x9b31m\u202e\n"
    lines = beats("login1", 600).decode().splitlines()
    forged = [json.loads(line) for line in lines]
    for each in forged:
        each["host"] += order
        each["detail"] |= {"version": order, "backend": order, "controls": {f"files{order}": "absent"}}
    ingest(state, "-", "--no-alerts", input="\n".join(map(json.dumps, forged)).encode() + b"\n")
    shown = guard(state, "fleet", "status", "--at", at(6000))
    assert "login1?" in shown.stdout
    assert not {char for char in shown.stdout + shown.stderr if not char.isprintable()} - {"\n"}
    assert len(shown.stdout.splitlines()) == 2


def test_without_a_store_status_says_so(state: Path) -> None:
    done = subprocess.run(
        [GUARD, "fleet", "status", "--state", str(state)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 3
    assert "nothing has been ingested" in done.stderr


@pytest.mark.parametrize(("silent", "expected"), [(719, 0), (721, 1)])
def test_silence_is_a_multiple_of_a_nodes_own_interval(silent: int, expected: int) -> None:
    assert len(judge([Node("a", beat=1000, last=1000, every=300)], [], 1000 + silent)) == expected


def test_a_clock_that_is_ahead_does_not_hide_silence() -> None:
    event = {"control": "telemetry", "rule": "heartbeat", "time": "2999-01-01T00:00:00Z", "detail": {"every_s": 10**9}}
    node, _ = Node("a").heard(event, "", 1000.0)
    assert node.beat == 1000.0
    assert len(judge([node], [], 1000 + 3600 * 3)) == 1


def test_a_gap_is_left_some_time_to_be_filled() -> None:
    gap = Gap("a", "p", 3, 4, noticed=1000)
    assert judge([], [gap], 1500) == []
    assert [notice.detail["missing"] for notice in judge([], [gap], 1700)] == [2]


def test_a_fleet_that_falls_silent_is_one_alert(state: Path) -> None:
    beat = b"".join(beats(f"login{number}", 0) for number in range(40))
    ingest(state, "-", "--no-alerts", input=beat)
    for minutes in (20, 21):
        guard(state, "fleet", "status", "--alert", "--at", at(minutes * 60))
    assert [(event["severity"], event["message"]) for event in alerts(state)] == [
        ("critical", "40 of 40 nodes are silent: the way to them, or the site itself?")
    ]
    back = b"".join(beats(f"login{number}", 1500, every=1500) for number in range(38))
    ingest(state, "-", "--no-alerts", input=back)
    guard(state, "fleet", "status", "--alert", "--at", at(1500))
    assert [event["severity"] for event in alerts(state)] == ["critical", "info", "high", "high"]
