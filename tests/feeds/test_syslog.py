"""Syslog over TLS and over RELP into a real rsyslogd: what is cut off in flight comes again."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from guard.feeds.rfc5424 import framed, message
from guard.feeds.sink import Item
from tests.beds.ports import free_port
from tests.conftest import GUARD
from tests.feeds import made
from tests.feeds.cluster import until
from tests.feeds.rsyslog import Authority, Rsyslog, Wire, listening, needs
from tests.feeds.running import drained, feeds, toml

NODE = "login1.test"


@needs("imtcp", "lmnsd_gtls")
@pytest.mark.timeout(60)
def test_every_event_arrives_over_tls_with_both_sides_checked(tmp_path: Path) -> None:
    expected = made.write(tmp_path / "events.jsonl", made.events(5000))
    authority = Authority(tmp_path, NODE)
    port = free_port()
    with Rsyslog.tls(tmp_path, authority, {NODE: port}) as rsyslog:
        until(lambda: listening(port), 20, "rsyslogd")
        config = toml(tmp_path, [
            'name = "siem"', 'kind = "syslog"', f'server = "127.0.0.1:{port}"', *authority.options(NODE)
        ])  # fmt: skip
        drained("--config", str(config), "--input", str(tmp_path / "events.jsonl"))
        until(lambda: len(rsyslog.lines()) >= 5000, 20, "all events at rsyslogd")
    assert sorted(made.ids(rsyslog.events())) == sorted(expected)


@needs("imtcp", "lmnsd_gtls")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("fault", ["certificate of another node", "no certificate", "name of another server"])
def test_a_wrong_certificate_delivers_nothing(tmp_path: Path, fault: str) -> None:
    made.write(tmp_path / "events.jsonl", made.events(10))
    authority = Authority(tmp_path, NODE, "login2.test")
    port = free_port()
    options = authority.options("login2.test" if fault.startswith("certificate") else NODE)
    if fault == "no certificate":
        options = [options[0], options[3]]
    if fault.startswith("name"):
        options[3] = 'server_name = "other.test"'
    with Rsyslog.tls(tmp_path, authority, {NODE: port}) as rsyslog:
        until(lambda: listening(port), 20, "rsyslogd")
        config = toml(tmp_path, [
            'name = "siem"', 'kind = "syslog"', f'server = "127.0.0.1:{port}"', "timeout = 2", *options
        ])  # fmt: skip
        words = ("--config", str(config), "--input", str(tmp_path / "events.jsonl"), "--drain", "--timeout", "4")
        with feeds(*words) as feed:
            _, said = feed.communicate(timeout=40)
        assert feed.returncode == 3, said
        assert rsyslog.lines() == []


@needs("imtcp", "lmnsd_gtls")
@pytest.mark.timeout(90)
def test_a_cut_sends_the_window_again_and_says_so(tmp_path: Path) -> None:
    count = 6000
    expected = made.write(tmp_path / "events.jsonl", made.events(count))
    authority = Authority(tmp_path, NODE)
    port = free_port()
    with Rsyslog.tls(tmp_path, authority, {NODE: port}) as rsyslog:
        until(lambda: listening(port), 20, "rsyslogd")
        wire = Wire(port)
        wire.cut_at = 1_500_000
        config = toml(tmp_path, [
            'name = "siem"', 'kind = "syslog"', f'server = "127.0.0.1:{wire.port}"', "batch = 200", "backoff = 0.05",
            *authority.options(NODE),
        ])  # fmt: skip
        words = ("--config", str(config))
        drained(*words, "--input", str(tmp_path / "events.jsonl"))
        assert wire.cuts == 1
        drained(*words)  # the word of the cut goes the same way
        until(lambda: b"feed.cut" in rsyslog.output.read_bytes(), 20, "the word of the cut")
        wire.close()
    found = made.ids(rsyslog.events())
    assert set(expected) - set(found) == set()
    told = [event for event in map(json.loads, rsyslog.events()) if event["rule"] == "feed.cut"]
    assert len(told) == 1
    # Every one that came twice was announced; nothing left the window early, so nothing can be lost.
    assert 0 < made.twice(found) <= told[0]["detail"]["again"]
    assert told[0]["detail"]["lost_at_most"] == 0


@needs("imtcp")
@pytest.mark.timeout(90)
def test_what_may_be_lost_behind_a_small_window_is_told_exactly(tmp_path: Path) -> None:
    made.write(tmp_path / "events.jsonl", made.events(4000))
    port = free_port()
    with Rsyslog.tcp(tmp_path, port) as rsyslog:
        until(lambda: listening(port), 20, "rsyslogd")
        wire = Wire(port)
        wire.cut_at = 1_000_000
        config = toml(tmp_path, [
            'name = "siem"', 'kind = "syslog"', f'server = "127.0.0.1:{wire.port}"', "tls = false", "batch = 100",
            "window_events = 50", "backoff = 0.05",
        ])  # fmt: skip
        drained("--config", str(config), "--input", str(tmp_path / "events.jsonl"))
        drained("--config", str(config))
        until(lambda: b"feed.cut" in rsyslog.output.read_bytes(), 20, "the word of the cut")
        wire.close()
    events = [json.loads(line) for line in rsyslog.events()]
    told = next(event for event in events if event["rule"] == "feed.cut")
    sent = 4000 - told["detail"]["again"]
    assert told["severity"] == "medium"
    assert 0 < told["detail"]["lost_at_most"] <= sent


@needs("imrelp")
@pytest.mark.timeout(90)
def test_relp_loses_nothing_when_the_receiver_is_killed(tmp_path: Path) -> None:
    count = 5000
    expected = made.write(tmp_path / "events.jsonl", made.events(count))
    port = free_port()
    rsyslog = Rsyslog.relp(tmp_path, port)
    with rsyslog:
        until(lambda: listening(port), 20, "rsyslogd")
        config = toml(tmp_path, [
            'name = "siem"', 'kind = "relp"', f'server = "127.0.0.1:{port}"', "tls = false", "batch = 100",
            "backoff = 0.05", "backoff_most = 0.5", "timeout = 3",
        ])  # fmt: skip
        with feeds("--config", str(config), "--input", str(tmp_path / "events.jsonl"), "--drain") as feed:
            until(lambda: len(rsyslog.lines()) > 500, 30, "the first events")
            rsyslog.stop(signal.SIGTERM)
            rsyslog.start()
            assert feed.wait(60) == 0
        until(lambda: set(made.ids(rsyslog.events())) >= set(expected), 20, "all events at rsyslogd")


@needs("imrelp")
@pytest.mark.timeout(90)
@pytest.mark.parametrize("fault", ["", "no certificate", "strange authority"])
def test_relp_over_tls_checks_both_sides(tmp_path: Path, fault: str) -> None:
    expected = made.write(tmp_path / "events.jsonl", made.events(500))
    authority = Authority(tmp_path, NODE)
    options = authority.options(NODE)
    if fault == "no certificate":
        options = [options[0], options[3]]
    elif fault:
        (tmp_path / "other").mkdir()
        options[0] = Authority(tmp_path / "other", NODE).options(NODE)[0]
    port = free_port()
    with Rsyslog.relp(tmp_path, port, authority, NODE) as rsyslog:
        until(lambda: listening(port), 20, "rsyslogd")
        config = toml(tmp_path, [
            'name = "siem"', 'kind = "relp"', f'server = "127.0.0.1:{port}"', "timeout = 2", *options
        ])  # fmt: skip
        words = ("--config", str(config), "--input", str(tmp_path / "events.jsonl"), "--drain", "--timeout", "8" if fault else "35")
        with feeds(*words) as feed:
            _, said = feed.communicate(timeout=60)
        assert (feed.returncode == 0) is (not fault), said
        if not fault:
            until(lambda: made.ids(rsyslog.events()) == expected, 20, "all events at rsyslogd")
        else:
            assert rsyslog.lines() == []


def item(**more: object) -> Item:
    event = {"id": "1", "time": "2026-01-31T08:00:00.000001Z", "host": "login1", "rule": "bind.any", "producer": "monitor",
             "seq": 3, "control": "bind", "verdict": "denied", "origin": "kernel", **more}  # fmt: skip
    line = json.dumps(event).encode()
    return Item(1, "1", "high", line, line)


def text(**more: object) -> str:
    return message(item(**more), facility="authpriv", enterprise="32473", host="here", feed="siem").decode()


def test_a_message_is_rfc_5424() -> None:
    made_text = text()
    head = re.fullmatch(r"<(\d+)>1 (\S+) (\S+) (\S+) (\S+) (\S+) (\[guard@32473(?: \w+=\"[^\"]*\")+\]) (\{.*)", made_text)
    assert head is not None
    assert head.groups()[:6] == ("83", "2026-01-31T08:00:00.000001Z", "login1", "guard", "-", "bind.any")
    assert ' seq="3"' in head.group(7)


def test_what_would_end_a_parameter_is_escaped() -> None:
    assert r'producer="a\"b\\c\]d e"' in text(producer='a"b\\c]d\ne')


def test_a_host_with_spaces_is_no_second_field() -> None:
    assert text(host="a b").split(" ")[2] == "a_b"


def test_a_frame_is_counted_in_bytes() -> None:
    assert framed("é".encode()) == b"2 \xc3\xa9"


def test_a_feed_needs_no_root_to_be_asked(tmp_path: Path) -> None:
    config = toml(tmp_path, ['name = "siem"', 'kind = "syslog"', 'server = "siem.test:6514"'])
    import subprocess

    shown = subprocess.run([GUARD, "feed", "list", "--config", str(config)], capture_output=True, text=True, check=True)
    assert "siem.test:6514" in shown.stdout
