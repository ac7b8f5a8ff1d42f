"""Each feed for itself: one that hangs, freezes or dies holds up no other, and comes back."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from guard.events.reader import Reader
from guard.events.spool import Spool
from tests.beds.ports import free_port
from tests.conftest import GUARD
from tests.feeds import made
from tests.feeds.cluster import until
from tests.feeds.running import feeds, toml


def status(tmp_path: Path, name: str) -> dict[str, object]:
    try:
        return json.loads((tmp_path / f"spool.feeds/{name}.json").read_text())  # type: ignore[no-any-return]
    except (OSError, ValueError):
        return {}


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.timeout(60)
def test_a_destination_that_never_answers_delays_no_other_feed(tmp_path: Path) -> None:
    made.write(tmp_path / "events.jsonl", made.events(2000))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = toml(
            tmp_path,
            ['name = "silent"', 'kind = "webhook"', f'url = "http://127.0.0.1:{silent.getsockname()[1]}/"', "timeout = 25"],
            ['name = "gone"', 'kind = "syslog"', f'server = "127.0.0.1:{free_port()}"', "tls = false"],
            ['name = "file"', 'kind = "jsonl"', f'path = "{tmp_path}/out.jsonl"'],
        )
        with feeds("--config", str(config), "--input", str(tmp_path / "events.jsonl")) as running:
            until(lambda: lines(tmp_path / "out.jsonl") == 2000, 20, "the file's events")
            with Reader(str(tmp_path / "spool")) as reader:
                until(lambda: reader.cursors() == {"file": 2000, "gone": 0, "silent": 0}, 20, "three cursors")
            assert running.poll() is None


def _process(folder: Path) -> int:
    """The process of the feed `file`: 0 stands for none, and a signal to 0 goes to everybody."""
    seen: list[int] = []

    def running() -> bool:
        seen.append(int(str(status(folder, "file").get("pid") or 0)))
        return seen[-1] > 0

    until(running, 20, "the process")
    return seen[-1]


@pytest.mark.timeout(60)
def test_a_frozen_feed_is_killed_and_started_again(tmp_path: Path) -> None:
    made.write(tmp_path / "a.jsonl", made.events(10))
    config = toml(
        tmp_path,
        ['name = "file"', 'kind = "jsonl"', f'path = "{tmp_path}/out.jsonl"', "watchdog = 3", "timeout = 1"],
        ['name = "other"', 'kind = "jsonl"', f'path = "{tmp_path}/other.jsonl"'],
    )
    with feeds("--config", str(config), "--input", str(tmp_path / "a.jsonl")) as running:
        until(lambda: lines(tmp_path / "out.jsonl") == 10, 20, "the first events")
        frozen = _process(tmp_path)
        os.kill(frozen, signal.SIGSTOP)
        with Spool(str(tmp_path / "spool")) as spool:
            spool.append(made.events(5))
        until(lambda: lines(tmp_path / "other.jsonl") == 15, 20, "the other feed's events")
        until(lambda: lines(tmp_path / "out.jsonl") == 15, 20, "the frozen feed's events")
        until(lambda: status(tmp_path, "file").get("restarts") == 1, 20, "the count of it")
        assert status(tmp_path, "file")["pid"] != frozen
        running.terminate()
        _, said = running.communicate(timeout=20)
    assert b"feed file has given no sign of life" in said
    assert running.returncode == 0


@pytest.mark.timeout(60)
def test_a_feed_that_dies_is_started_again(tmp_path: Path) -> None:
    made.write(tmp_path / "a.jsonl", made.events(10))
    config = toml(tmp_path, ['name = "file"', 'kind = "jsonl"', f'path = "{tmp_path}/out.jsonl"'])
    with feeds("--config", str(config), "--input", str(tmp_path / "a.jsonl")):
        until(lambda: lines(tmp_path / "out.jsonl") == 10, 20, "the first events")
        os.kill(_process(tmp_path), signal.SIGKILL)
        with Spool(str(tmp_path / "spool")) as spool:
            spool.append(made.events(5))
        until(lambda: lines(tmp_path / "out.jsonl") == 15, 20, "the events after its death")


@pytest.mark.timeout(60)
def test_a_feed_runs_once(tmp_path: Path) -> None:
    config = toml(tmp_path, ['name = "file"', 'kind = "jsonl"', f'path = "{tmp_path}/out.jsonl"'])
    with feeds("--config", str(config)) as first:
        until(lambda: bool(status(tmp_path, "file").get("state")), 20, "the first")
        second = subprocess.run(
            [GUARD, "feed", "run", "--config", str(config)], capture_output=True, text=True, timeout=20, check=False
        )
        assert second.returncode == 3
        assert "feed file runs already" in second.stderr
        assert first.poll() is None


@pytest.mark.timeout(60)
def test_a_killed_service_leaves_no_process_behind(tmp_path: Path) -> None:
    config = toml(tmp_path, ['name = "file"', 'kind = "jsonl"', f'path = "{tmp_path}/out.jsonl"'])
    with feeds("--config", str(config)) as running:
        until(lambda: bool(status(tmp_path, "file").get("pid")), 20, "the feed's process")
        pid = int(str(status(tmp_path, "file")["pid"]))
        running.kill()
        running.wait(10)
        until(lambda: not os.path.exists(f"/proc/{pid}"), 10, "its end")


@pytest.mark.timeout(60)
def test_a_feed_waits_for_a_spool_that_is_not_there_yet(tmp_path: Path) -> None:
    config = toml(tmp_path, [
        'name = "file"', 'kind = "jsonl"', f'path = "{tmp_path}/out.jsonl"', "backoff_most = 0.2", "backoff = 0.1"
    ])  # fmt: skip
    with feeds("--config", str(config)):
        until(lambda: "spool" in str(status(tmp_path, "file").get("problem")), 20, "the word of it")
        with Spool(str(tmp_path / "spool")) as spool:
            spool.append(made.events(5))
        until(lambda: lines(tmp_path / "out.jsonl") == 5, 20, "the events")
