"""`guard monitor --check` tells a slow machine from a broken one: the time is counted by what is done, never by a rule."""

from __future__ import annotations

import pytest

from guard.monitor import check, reach
from guard.monitor.facts import Bind, Exec, Mode, ModeBy, Process, Verdict
from guard.monitor.source import Settings, Status

CHILD = 42
WHO = Process(CHILD, 5, 1, 0, b"python3", CHILD, 5)
EXEC = Exec(1, WHO, b"/bin/sleep", b"sleep", (b"sleep", b"0"))
MODE = Mode(1, WHO, b"/tmp/example", 0o100666, 0o600, ModeBy.CHMOD)
REWRITTEN = Bind(1, WHO, "0.0.0.0", 65535, "inet", "stream", 6, False, Verdict.REWRITTEN)


class Machine:
    """A source, a child and a clock in one: each look takes `pace` seconds, each deed `work` looks, 0: for ever."""

    def __init__(self, facts: dict, pace: float, work: int, answers: dict) -> None:
        self.status = Status("lsm", (), {}, {}, reach.of("lsm", {}), 0.1)
        self.pid, self.gone = CHILD, False
        self._facts, self._pace, self._work, self._answers = facts, pace, work, answers
        self._now, self._left, self._doing = 1000.0, 0, ""

    def clock(self) -> float:
        return self._now

    def ask(self, rule: str) -> None:
        self._doing, self._left = rule, self._work

    def answer(self, seconds: float) -> str:
        if self._left or not self._work or self.gone or not self._doing:
            return ""
        done, self._doing = self._doing, ""
        return f"{done} {self._answers.get(done, 'done')}"

    def poll(self, timeout: float, limit: int = 4096):
        self._now += self._pace
        self._left = max(0, self._left - 1)
        return iter(self._facts.get(self._doing, ()) if self._left == 1 else ())


def attempts(facts: dict, enforce: dict | None = None, pace: float = 0.05, work: int = 3, **answers: str):
    machine = Machine(facts, pace, work, answers)
    rows = [check.attempt(machine, machine, rule, Settings({}, enforce=enforce or {}), machine.clock)
            for rule in ("ancestry", "world-writable", "bind")]  # fmt: skip
    return rows, machine.clock() - 1000


ALL = {"ancestry": [EXEC], "world-writable": [MODE], "bind": [REWRITTEN]}


def test_a_machine_that_is_slow_all_over_passes():
    rows, took = attempts(ALL, pace=7.0)
    assert [row.note for row in rows] == ["", "", ""]
    assert took > 30


def test_what_is_done_and_not_seen_is_a_fault_at_once_and_takes_no_time_from_the_next():
    rows, took = attempts({**ALL, "ancestry": []})
    assert [row.note for row in rows] == ["was not seen", "", ""]
    assert took < 30


def test_a_child_that_is_stuck_is_given_up_once():
    rows, took = attempts(ALL, work=0)
    assert {row.note for row in rows} == {"the example did not end"}
    assert took < 30


@pytest.mark.parametrize(("answer", "note"), [("refused", ""), ("done", "was not refused")])
def test_what_is_enforced_must_be_refused(answer: str, note: str):
    rows, _ = attempts(ALL, {"world-writable": "deny"}, **{"world-writable": answer})
    assert [row.note for row in rows] == ["", note, ""]


def test_an_address_that_was_rewritten_counts_as_refused():
    rows, _ = attempts(ALL, {"bind": "rewrite"})
    assert (rows[2].refused, rows[2].note) == (True, "")
