"""The alert budget: few events, exact counts, and nothing new is folded away."""

from __future__ import annotations

import random

import pytest

from guard.events.budget import DAY, HOUR, Budget, Finding, Rules, Summary

START = 1_800_000_000.0


def finding(thing: str, rule: str = "world-writable/chmod", tree: str = "t", severity: int = 2) -> Finding:
    return Finding(tree, rule, thing, severity, thing, lambda: {"rule": rule, "tree": tree})


class Feed:
    """A feed over a budget, under a clock of its own."""

    def __init__(self, budget: Budget | None = None) -> None:
        self.budget = budget or Budget()
        self.now = START
        self.heads: list[Finding] = []
        self.summaries: list[Summary] = []

    def see(self, thing: str, at: float, **more: object) -> str:
        self.until(at)
        found = finding(thing, **more)  # type: ignore[arg-type]
        quiet = self.budget.judge(found, self.now)
        if not quiet:
            self.heads.append(found)
        return quiet

    def until(self, at: float) -> None:
        while self.now < at:
            self.now = min(at, self.now + 60)
            self.summaries += self.budget.due(self.now)

    @property
    def events(self) -> int:
        return len(self.heads) + len(self.summaries)

    @property
    def counted(self) -> int:
        return len(self.heads) + sum(sum(each.counts.values()) for each in self.summaries)


DAYS = {
    "evenly, each another file": lambda at: (at * 8.64, f"f{at}"),
    "evenly, one file": lambda at: (at * 8.64, "f"),
    "evenly, three files": lambda at: (at * 8.64, f"f{at % 3}"),
    "evenly, a hundred files": lambda at: (at * 8.64, f"f{at % 100}"),
    "in a minute": lambda at: (at * 0.006, f"f{at}"),
    "in a burst every two hours": lambda at: (at // 834 * 7200 + at % 834 * 0.1, f"f{at}"),
    "in a burst every five hours": lambda at: (at // 2001 * 18000 + at % 2001 * 0.1, f"f{at % 7}"),
}


@pytest.mark.parametrize("how", DAYS)
def test_a_day_with_ten_thousand_is_at_most_ten_events_with_exact_counts(how: str) -> None:
    feed = Feed()
    for at in range(10_000):
        when, thing = DAYS[how](at)
        feed.see(thing, START + when)
    feed.until(START + DAY)
    assert feed.events <= 10
    feed.until(START + 3 * DAY)
    assert feed.events <= 10
    assert feed.counted == 10_000
    assert all(each.first <= each.last for each in feed.summaries)


def test_the_first_is_sent_at_once_and_the_rest_after_the_window() -> None:
    feed = Feed()
    assert [feed.see("f", START + at) for at in (0, 1, 599)] == ["", "folded", "folded"]
    assert feed.summaries == []
    feed.until(START + 660)
    (told,) = feed.summaries
    assert (dict(told.counts), told.first, told.last, told.flood) == ({"world-writable/chmod": 2}, START + 1, START + 599, False)


def test_what_comes_back_after_a_quiet_window_is_new() -> None:
    feed = Feed()
    assert [feed.see("f", START), feed.see("f", START + 700)] == ["", ""]


def test_an_ordinary_day_is_told_one_by_one() -> None:
    feed = Feed()
    for at in range(70):
        assert feed.see(f"f{at}", START + at * 1200) == ""


@pytest.mark.parametrize("storm", ["another rule's flood", "an object that repeats itself", "another tree's flood"])
def test_a_new_rule_or_object_is_never_folded_away_by_anothers_flood(storm: str) -> None:
    feed = Feed()
    for at in range(3000):
        if storm == "another rule's flood":
            feed.see(f"f{at}", START + at, rule="files/read")
        elif storm == "another tree's flood":
            feed.see(f"f{at}", START + at, tree="other")
        else:
            feed.see("same", START + at)
        if at in (700, 2900):
            assert feed.see(f"new{at}", START + at) == ""


def test_something_graver_is_told_in_the_middle_of_its_own_flood() -> None:
    feed = Feed()
    for at in range(100):
        feed.see(f"f{at}", START + at)
    assert feed.see("g", START + 100) == "flood"
    assert feed.see("h", START + 100, severity=4) == ""


def test_a_flood_is_one_event_of_the_tree_with_counts_by_rule() -> None:
    feed = Feed()
    for at in range(100):
        feed.see(f"f{at}", START + at, rule="files/read")
        feed.see(f"f{at}", START + at, rule="setuid/chmod", severity=3)
    feed.until(START + 2 * HOUR)
    (flood,) = [each for each in feed.summaries if each.flood]
    assert dict(flood.counts) == {"files/read": 96, "setuid/chmod": 96}
    assert flood.severity == 3
    assert flood.samples[0] == "f4"


def test_a_restart_in_between_changes_no_count() -> None:
    feed = Feed()
    kept: dict[str, bytes] = {}
    random.seed(7)
    for at in range(2000):
        feed.see(f"f{at % 11}", START + at * 40, rule=f"r{at % 3}")
        for name, state in feed.budget.changes().items():
            if state is None:
                kept.pop(name, None)
            else:
                kept[name] = state
        if random.random() < 0.05:
            feed.budget = Budget(kept=kept)
    feed.until(START + 4 * DAY)
    assert feed.counted == 2000


def test_states_are_bounded_and_what_they_hold_is_told() -> None:
    feed = Feed(Budget(Rules(trees=10)))
    for at in range(200):
        feed.see("f", START + at, tree=f"t{at}")
        feed.see("f", START + at, tree=f"t{at}")
    feed.until(START + HOUR)
    assert feed.counted == 400
    assert len([name for name, state in feed.budget.changes().items() if state is not None]) <= 10


def test_a_user_who_makes_up_rules_makes_no_state_grow() -> None:
    feed = Feed(Budget(Rules(rules=50)))
    for at in range(3000):
        feed.see("f", at * 0.01, rule=f"files/made-up-{at}", tree="user 5 s")
    assert sum(map(len, filter(None, feed.budget.changes().values()))) < 50_000
    feed.until(START + 30 * DAY)
    assert feed.counted == 3000
    assert len(feed.heads) <= 60


def test_a_user_who_makes_up_trees_takes_no_state_of_what_the_kernel_saw() -> None:
    feed = Feed(Budget(Rules(trees=100)))
    assert feed.see("f", 0, tree="kernel 5 s") == ""
    for at in range(1000):
        feed.see("f", 1 + at * 0.01, tree=f"user 5 pid {at}")
        feed.summaries += feed.budget.due(feed.now) if at % 10 == 0 else []
    assert feed.see("f", 20, tree="kernel 5 s") == "folded", "its story goes on"
    assert sum(state is not None for state in feed.budget.changes().values()) <= 111
