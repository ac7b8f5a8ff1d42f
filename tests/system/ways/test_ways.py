"""No known way leads out of a session with the mask; without it only those that docs/ways-out.md lists, with reasons."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT, Account
from tests.system.mask import masked
from tests.system.stage import NO_MASK, UNTRIED, _said, guarded
from tests.system.ways.ground import Ground, services
from tests.system.ways.table import WAYS, Way

DOCS = ROOT / "docs/ways-out.md"
LEAST = 90
"""Ways that must have been tried, for the suite to say anything."""


@pytest.fixture(scope="module")
def found(account: Account) -> Iterator[dict[str, dict[str, int]]]:
    """What each way came to: `bare`, `masked` and `unmasked`."""
    runs: dict[str, dict[str, int]] = {}
    with services(account) as things:
        for run in ("masked", "unmasked", "bare"):
            ground = Ground(account, things)
            if run == "masked":
                head = guarded(ground.stage, *ground.projects(), policy=masked(account))
            elif run == "unmasked":
                head = guarded(ground.stage, *ground.projects(), policy=ground.stage.policy(NO_MASK))
            else:
                head = []
            ways = [way for way in WAYS if not ground.possible(way)]
            runs[run] = ground.attempt(ways, head)
            ground.remove()
        yield runs


def tried(found: dict[str, dict[str, int]]) -> list[Way]:
    """The ways that lead out without guard."""
    return [way for way in WAYS if found["bare"].get(way.name) == 0]


def listed(title: str) -> dict[str, str]:
    """One of the tables of docs/ways-out.md: name to reason; none where the page has no such part."""
    part = (DOCS.read_text() + f"\n## {title}").split(f"\n## {title}")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", part, re.MULTILINE)
    return {name.replace("\\|", "|").strip("`"): reason for name, reason in rows if not re.match("-+$|way$", name)}


def test_names_and_ways_are_distinct() -> None:
    assert [name for name, count in Counter(way.name for way in WAYS).items() if count > 1] == []
    assert [words for words, count in Counter(way.words for way in WAYS).items() if count > 1] == []


def test_nothing_that_can_be_tried_here_fails_without_guard(found: dict[str, dict[str, int]]) -> None:
    """The positive control of each: a way that leads nowhere without guard proves nothing."""
    closed = {name: _said(code) for name, code in found["bare"].items() if code not in (0, UNTRIED)}
    assert closed == {}
    assert len(tried(found)) >= LEAST


def test_no_way_leads_out_of_a_session_with_the_mask(found: dict[str, dict[str, int]]) -> None:
    open_to_all = {way.name for way in tried(found) if found["masked"][way.name] == 0}
    assert open_to_all == set(listed("Not closed yet"))


def test_without_the_mask_only_what_the_docs_list_leads_out(found: dict[str, dict[str, int]]) -> None:
    assert {way.name for way in tried(found) if found["unmasked"][way.name] == 0} == {
        *listed("Open without the mask"),
        *listed("Not closed yet"),
    }


def test_every_refusal_is_one_and_no_fault_of_the_trial(found: dict[str, dict[str, int]]) -> None:
    """A crash, or a program that waits for ever, is no refusal."""
    for run in ("masked", "unmasked"):
        odd = {way.name: found[run][way.name] for way in tried(found) if found[run][way.name] in (251, UNTRIED, -14)}
        assert odd == {}, run


def test_the_docs_count_the_ways_as_they_are() -> None:
    counts = Counter(way.kind for way in WAYS)
    rows = re.findall(r"^\| (.+?) \| (\d+) \|", DOCS.read_text(), re.MULTILINE)
    assert {kind: int(count) for kind, count in rows} == dict(counts)


@pytest.fixture(autouse=True, scope="module")
def _tools() -> None:
    if not shutil.which("git"):
        pytest.skip("not installed: git")
