"""What a node says of itself: found out by trying, without a trace of the trials in what is delivered."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from guard.events.heartbeat import Beat
from guard.events.producer import Producer
from guard.fleet.heartbeat import TRIALS, NodeBeat


@pytest.mark.root
@pytest.mark.timeout(240)
def test_a_look_at_the_controls_leaves_no_event_in_the_nodes_stream(tmp_path: Path) -> None:
    state, config = tmp_path / "state", tmp_path / "config"
    state.mkdir(mode=0o700)
    config.mkdir()
    beat = NodeBeat(str(state), str(config), str(state / "spool"), confined=False)
    producer = Producer("service")
    now = Beat(300, 0, "0" * 64, 0, 0, 0, 0, 0)
    try:
        end = time.monotonic() + 200
        while "controls" not in beat(producer, now).detail:
            assert time.monotonic() < end
            time.sleep(0.2)  # the look runs beside it; heartbeats come when they come
    finally:
        beat.close()
    assert "start-refused" not in "".join(p.read_text() for p in state.glob("events.jsonl*"))
    assert (state / TRIALS / "events.jsonl").exists()
    assert os.stat(state / TRIALS).st_mode & 0o077 == 0
