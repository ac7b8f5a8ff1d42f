"""What becomes of exposures on their way into the spool: one alert a secret, and the ledger still hears of every use."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from guard.events.gate import BASELINE_QUIET_S, Batch, Gate
from guard.events.names import Names
from guard.events.settings import Settings
from tests.incidents.made import exposure


class Clocked:
    """A gate with a clock of the test's own, and what it kept."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.memory: dict[tuple[str, str], bytes] = {}
        self.gate = self.restart()

    def restart(self) -> Gate:
        self.gate = Gate(Settings(), b"k" * 32, lambda kind, key: self.memory.get((kind, key)), {}, Names(), lambda: self.now)
        return self.gate

    def sent(self, *events: dict[str, object]) -> list[tuple[str, str]]:
        """(rule, severity) of what of these is sent."""
        batch = Batch()
        self.gate.judge(copy.deepcopy(events), batch)
        self.gate.due(batch)
        for kind, key, value in batch.kept:
            if value is None:
                self.memory.pop((kind, key), None)
            else:
                self.memory[kind, key] = value
        return [(e.rule, e.severity.label) for e in _events(batch) if not e.quiet]


class _Seen:
    def __init__(self, entry: object) -> None:
        import json

        public, personal = entry.sealed(1)  # type: ignore[attr-defined]
        whole = json.loads(public[:-1] + b"," + personal[1:])
        self.rule, self.severity, self.quiet = whole["rule"], entry.severity, entry.quiet  # type: ignore[attr-defined]


def _events(batch: Batch) -> list[_Seen]:
    return [_Seen(entry) for entry in batch.entries]


@pytest.fixture
def clocked() -> Iterator[Clocked]:
    yield Clocked()


FILE = {"source": "file"}


def test_a_secret_alerts_once_and_each_new_place_is_sent_as_info(clocked: Clocked) -> None:
    assert clocked.sent(exposure("k", path="/a", **FILE)) == [("secret", "high")]
    assert clocked.sent(exposure("k", path="/a", **FILE)) == [("secret", "info")]  # the first repetition of a known place
    assert clocked.sent(exposure("k", path="/a", **FILE)) == []
    assert clocked.sent(exposure("k", path="/b", **FILE)) == [("secret", "info")]
    assert clocked.sent(exposure("k", path="/b", context="x-1", **FILE)) == [("secret", "info")]
    assert clocked.sent(exposure("other", path="/b", **FILE)) == [("secret", "high")]


def test_a_use_after_the_window_is_sent_again_so_that_the_ledger_can_reopen(clocked: Clocked) -> None:
    for _ in range(3):
        clocked.sent(exposure("k"))
    clocked.now += Settings().budget.window_s + 1
    assert clocked.sent(exposure("k")) == [("secret", "info")]


def test_ten_thousand_uses_in_a_window_are_three_events(clocked: Clocked) -> None:
    assert len(clocked.sent(*(exposure("k") for _ in range(10_000)))) <= 3


def test_a_baseline_alerts_nobody_and_has_one_summary(clocked: Clocked) -> None:
    sent = clocked.sent(*(exposure(f"k{n}", baseline=True, path="/h", **FILE) for n in range(500)))
    assert set(sent) == {("secret", "info")}
    clocked.now += BASELINE_QUIET_S + 1
    clocked.restart()  # the service was restarted in between
    assert clocked.sent() == [("baseline", "low")]
    clocked.now += BASELINE_QUIET_S + 1
    assert clocked.sent() == []
    clocked.restart()
    assert clocked.sent() == []
