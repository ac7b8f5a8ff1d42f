"""Every rule finds its hostile examples at the right severity, and leaves the others alone."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from guard.events.model import Severity
from guard.monitor import handing
from guard.monitor.facts import Coverage, Loss, Verdict
from guard.monitor.findings import Example, Rule
from guard.monitor.rules import NAMES, TABLE, judge
from guard.monitor.rules.pages import pages
from guard.monitor.rules.service import SAYINGS
from guard.monitor.settings import MonitorSettings
from guard.policy.keys import CONTROLS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [(rule, example) for rule in TABLE for example in rule.examples]


@pytest.mark.parametrize(
    ("rule", "example"), EXAMPLES, ids=[f"{rule.name}: {example.says}" for rule, example in EXAMPLES]
)
def test_an_example_comes_out_as_it_says(rule: Rule, example: Example) -> None:
    outcome = rule.judge(example.fact, example.context)
    found = "" if outcome is None else outcome.severity or rule.severity
    assert found == example.severity
    if outcome is not None:
        assert len(outcome.message) < 100
        assert outcome.object


@pytest.mark.parametrize(
    ("rule", "example"), EXAMPLES, ids=[f"{rule.name}: {example.says}" for rule, example in EXAMPLES]
)
def test_no_other_rule_raises_what_should_be_silent(rule: Rule, example: Example) -> None:
    """Of an example that is for the log or nothing, no rule at all may ask for a person's attention."""
    if example.severity in ("", "info"):
        loud = [f.rule for f in judge(example.fact, example.context) if Severity.of(f.severity) >= Severity.MEDIUM]
        assert loud == []


def test_every_rule_has_hostile_and_benign_examples() -> None:
    for rule in TABLE:
        severities = {example.severity for example in rule.examples}
        assert rule.severity in severities, rule.name
        assert severities - {rule.severity} or rule.name == "connect-outside", rule.name


def test_names_are_unique_and_controls_are_known() -> None:
    assert len(NAMES) == len(set(NAMES))
    controls = {rule.control for rule in TABLE} | {saying.control for saying in SAYINGS.values()}
    assert controls <= {*CONTROLS, "hand-off", "rates", "exposure", "harness", "session", "telemetry"}


def test_a_site_changes_a_severity_or_turns_a_rule_off() -> None:
    example = next(e for e in TABLE[0].examples if e.severity == "medium")
    for said, expected in (("critical", ["critical"]), ("off", [])):
        settings = MonitorSettings(severities={"world-writable": said})
        found = judge(example.fact, replace(example.context, settings=settings))
        assert [finding.severity for finding in found] == expected


def test_what_the_kernel_denied_is_denied_in_the_finding() -> None:
    example = next(e for e in TABLE[0].examples if e.severity == "medium")
    (finding,) = judge(replace(example.fact, verdict=Verdict.DENIED), example.context)
    assert finding.verdict == "denied"


def test_loss_and_coverage_are_no_findings_of_a_tree() -> None:
    context = EXAMPLES[0][1].context
    assert not list(judge(Loss(1, "alerts", 5), context))
    assert not list(judge(Coverage(1, True), context))


def test_each_rule_has_a_page_that_says_what_the_table_says() -> None:
    folder = ROOT / "docs/rules"
    for name, text in pages().items():
        assert (folder / name).read_text() == text, (
            f"write it anew: python -m guard.monitor.rules.pages docs/rules ({name})"
        )
    assert {path.name for path in folder.iterdir()} == set(pages())


@pytest.mark.parametrize(("words", "hands"), [((), False), (("-q", "b"), False), (("12", "13"), False),
                                              (("-f", "job", "now"), True), (("-f", "x", "-t", "1"), True)])  # fmt: skip
@pytest.mark.parametrize("name", ["atq", "atrm"])
def test_a_link_to_at_that_lists_or_removes_hands_nothing_out(name: str, words: tuple[str, ...], hands: bool) -> None:
    assert (handing.find((name, "at"), words) is not None) is hands


def test_this_machine_is_known_by_its_own_name_too() -> None:
    own = os.uname().nodename
    assert all(map(handing.is_local, (own, own.upper(), own.partition(".")[0], "localhost", "127.0.0.1", "[::1]")))
    assert not any(map(handing.is_local, (f"{own}-2", "login2.example.org", "10.0.0.1")))
