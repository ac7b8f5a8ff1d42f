"""A flood of one process is told in few events, and none of it is left out of the count."""

from __future__ import annotations

import pytest

from guard.monitor.facts import AnyFact, Connect, Exit, Mode, ModeBy, Process
from guard.monitor.folding import EACH, MANY, fold


def many(count: int, *, pid: int = 50, by: ModeBy = ModeBy.CHMOD) -> list[AnyFact]:
    who = Process(pid, 9, 1, 1000, b"chmod", 7, 5)
    return [Mode(100 + at, who, b"/w/d%d/f%d" % (at % 20, at), 0o100666, 0o600, by) for at in range(count)]


def modes(facts: list[AnyFact], by: ModeBy) -> list[Mode]:
    return [fact for fact in facts if isinstance(fact, Mode) and fact.by is by]


def test_of_many_alike_the_first_are_told_and_the_rest_counted() -> None:
    out = fold([*many(MANY + 100), *many(3, by=ModeBy.OPEN)])
    changed = modes(out, ModeBy.CHMOD)
    assert [fact.more for fact in changed] == [0] * EACH + [MANY + 100 - EACH - 1]
    assert [fact.path for fact in changed[:2]] == [b"/w/d0/f0", b"/w/d1/f1"]
    assert changed[-1].path == b"/w/d11/f611"
    assert 0 < len(changed[-1].under) <= 16
    assert [fact.more for fact in modes(out, ModeBy.OPEN)] == [0, 0, 0]


@pytest.mark.parametrize("count", [1, EACH + 1, MANY])
def test_few_stay_as_they_are(count: int) -> None:
    assert fold(many(count)) == many(count)


def test_what_many_processes_do_is_told_of_each() -> None:
    facts = [fact for pid in range(40, 60) for fact in many(MANY, pid=pid)]
    assert fold(facts) == facts


def test_a_folded_fact_stands_where_the_last_of_them_was() -> None:
    facts = many(MANY + 1)
    gone = Exit(1000, Process(50, 9, 1, 1000, b"chmod", 7, 5), 0)
    out = fold([*facts, gone])
    assert out[-1] is gone
    assert isinstance(out[-2], Mode)
    assert out[-2].more == MANY - EACH


def test_a_flood_of_connections_is_folded_and_questions_for_names_apart_from_it() -> None:
    who = Process(50, 9, 1, 1000, b"scan", 7, 5)
    facts = [Connect(100 + at, who, f"203.0.113.{at % 200}", 53 if at == 3 * MANY - 1 else 443, "inet", "stream", 6, False)
             for at in range(3 * MANY)]  # fmt: skip
    out = [fact for fact in fold(facts) if isinstance(fact, Connect)]
    assert len(out) == EACH + 2
    assert (out[-1].port, out[-1].more) == (53, 0)
    assert (out[-2].port, out[-2].more) == (443, 3 * MANY - 1 - EACH - 1)
