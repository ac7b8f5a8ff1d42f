"""Reports: right numbers, every form, nothing of a name or a path ever becomes markup."""

from __future__ import annotations

import csv
import importlib.util
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

from guard.incidents.accounts import Account
from guard.incidents.report import figures, html, layout, markdown, table
from guard.incidents.settings import DAY, Settings
from tests.incidents.made import T0, Site, event, exposure

HOSTILE = "<script>alert(1)</script>'\"=cmd|' /C calc'!A0`|\n# x"


def _month() -> ModuleType:
    spec = importlib.util.spec_from_file_location("month", Path(__file__).resolve().parents[2] / "bench/month.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    __import__("sys").modules["month"] = module
    spec.loader.exec_module(module)
    return module


def _figures(site: Site, days: float = 30, accounts: dict[str, Account] | None = None) -> figures.Figures:
    return figures.gather(site.ledger, site.settings, accounts or {}, site.now - int(days * DAY), site.now + 1)


def test_the_numbers_are_those_of_an_independent_count(tmp_path: Path) -> None:
    month = _month()
    made = month.Month(nodes=20, users=60, agents=20, days=9, seed=4)
    site = Site(tmp_path)
    site.fold(*made.events())
    site.now = (month.START + 9 * 86400) * 1_000_000
    found = figures.gather(site.ledger, Settings(), {}, month.START * 1_000_000, site.now)
    assert list(month.differences(found, made.expected)) == []
    assert found.keys.new > 20
    assert not found.complete


def test_a_command_counts_once_however_often_it_is_told(tmp_path: Path) -> None:
    """By the hour in which it was started; the sums of a tree that ends say it again, and are not added."""
    site = Site(tmp_path)
    hour = {"execs": 60, "scheduler": 2, "agents_execs": 40, "agents_polls": 5, "agents_submissions": 1, "seconds": 3600.0}
    site.fold(
        event("telemetry", "executions", T0 - 10, detail=hour), event("telemetry", "executions", detail=hour),
        event("session", "tree-stop", detail={"execs": 80, "polls": 10, "submissions": 2}),
    )  # fmt: skip
    found = _figures(site).commands
    assert (found.agent, found.other, found.polls, found.jobs) == (80, 120, 10, 2)


@pytest.fixture
def hostile(tmp_path: Path) -> Site:
    """A site in which every name and path is an attempt at markup, SQL or a formula."""
    site = Site(tmp_path, Settings(aup={"bind": HOSTILE}))
    site.fold(
        exposure("k", source="file", path=f"/home/{HOSTILE}", at_host=HOSTILE, kind="x'; DROP TABLE sighting; --",
                 at_tree={"user": HOSTILE, "uid": 5, "harness": HOSTILE}),
        event("bind", HOSTILE, tree={"user": HOSTILE}), event("bind", "bind"),
        event("telemetry", "policy-changed", message=HOSTILE, detail={"who": HOSTILE}, host=HOSTILE),
        event("telemetry", "loss", detail={"count": 3, "stage": HOSTILE}),
    )  # fmt: skip
    site.desk.decide([site.one("k")], "assign", HOSTILE)
    return site


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_html_of_hostile_names_has_no_markup_of_theirs(hostile: Site) -> None:
    for page in (layout.page(_figures(hostile), hostile.now), layout.case(hostile.one("k"), hostile.now)):
        text = html.render(page)
        tags = _Tags()
        tags.feed(text)
        assert tags.tags.count("script") == 1
        assert tags.handlers == []
        assert "&lt;script&gt;alert(1)" in text
        assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!#)\w""", text.replace("xmlns", ""))


def test_markdown_of_hostile_names_stays_text(hostile: Site) -> None:
    text = markdown.render(layout.page(_figures(hostile), hostile.now))
    assert "<script>" not in text
    assert "\n# x" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(re.fullmatch(r"\|( ([^|]|\\\|)* \|)+", row) for row in rows)


def test_csv_has_no_formula(hostile: Site) -> None:
    for text in (table.figures(_figures(hostile)), table.incidents([hostile.one("k")], hostile.now)):
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert not any(cell[:1] in ("=", "+", "@", "\t", "\r") for cell in cells)


def test_sql_in_a_name_is_text(hostile: Site) -> None:
    from guard.incidents import choose

    assert len(choose.every(hostile.ledger, hostile.settings, choose.Filter(users=(HOSTILE,)))) == 1
    assert choose.every(hostile.ledger, hostile.settings, choose.Filter(users=("' OR 1=1 --",))) == []


def test_a_loss_puts_a_banner_on_top(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.fold(event("telemetry", "loss", detail={"count": 1234, "stage": "ring"}))
    assert "1,234 events were lost" in html.render(layout.page(_figures(site), site.now))
    fresh = Site(tmp_path, name="other.db")
    assert "Incomplete" not in html.render(layout.page(_figures(fresh), fresh.now))


def test_an_empty_site_has_a_report_that_says_so(tmp_path: Path) -> None:
    site = Site(tmp_path)
    text = markdown.render(layout.page(_figures(site), site.now))
    for words in ("No incident is open", "Nothing was observed", "No monitor counted commands", "Nothing was changed"):
        assert words in text


def test_the_backlog_is_in_no_other_number(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.fold(exposure("old", T0 - 200 * DAY, baseline=True), exposure("new", T0 - DAY), at=T0 - DAY)
    keys = _figures(site).keys
    assert (keys.new, keys.open, keys.backlog) == (1, 1, 1)


def test_keys_are_told_by_group_of_the_account_map(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.fold(exposure("a"), exposure("b", at_tree={"user": "bob", "uid": 2}))
    rows = _figures(site, accounts={"alice": Account("alice", group="bio")}).keys.by["group"]
    assert {row.name: row.values[0] for row in rows} == {"bio": 1.0, "no group": 1.0}


def test_the_time_to_rotation_is_from_the_receipt(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.fold(*(exposure(f"k{n}", T0 - 9 * DAY) for n in range(3)), at=T0)
    for n, days in enumerate((1, 2, 6)):
        site.now = T0 + days * DAY
        site.desk.decide([site.one(f"k{n}")], "resolve")
    assert _figures(site).keys.median_days == 2.0


def test_a_user_is_not_counted_twice_for_two_places(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.fold(exposure("k", T0 - 3), exposure("k", T0 - 2, source="file", path="/x"), exposure("k", T0 - 1, at_host="b"))
    keys = _figures(site).keys
    assert keys.new == 1
    assert sum(n for _, n in keys.days) == 1


def test_a_case_is_a_timeline_in_order(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.fold(exposure("k", T0 - 2 * DAY), at=T0)
    site.days(1)
    site.desk.decide([site.one("k")], "resolve", "rotated", ticket="SEC-1")
    rows = layout.case(site.one("k"), site.now).sections[0].tables[0].rows
    assert [row[1] for row in rows] == ["exposed on login1", "received at the site", "resolve"]
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert "ticket SEC-1" in rows[-1][3]


def test_a_heartbeat_repeats_sums_and_is_no_loss(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.fold(event("telemetry", "heartbeat", detail={"lost": 9, "every_s": 300}))
    assert _figures(site).complete


def test_a_report_of_a_past_period_tells_what_stood_at_its_end(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.fold(exposure("closed later"), exposure("used later"), exposure("closed then"))
    site.desk.decide([site.one("used later"), site.one("closed then")], "resolve")
    site.days(20)
    end = site.now
    site.days(1)
    site.desk.decide([site.one("closed later")], "resolve")
    site.fold(exposure("used later", site.now), exposure("new later", site.now))
    keys = figures.gather(site.ledger, site.settings, {}, T0 - DAY, end).keys
    assert (keys.new, keys.open, keys.overdue, keys.closed) == (3, 1, 1, 2)


def test_letters_that_no_page_can_hold_are_in_none(tmp_path: Path) -> None:
    wild = "a\x00\x1b[2J\u202eb"
    site = Site(tmp_path, Settings(aup={"bind": wild}))
    site.fold(
        exposure("k", source="file", path=wild, at_host=wild, at_tree={"user": wild, "uid": 5, "harness": wild}),
        event("bind", "bind", host=wild), event("telemetry", "loss", detail={"count": 3, "stage": wild}),
        event("telemetry", "heartbeat", detail={"controls": {wild: "enforced"}}),
    )  # fmt: skip
    found = _figures(site)
    page = layout.page(found, site.now)
    texts = (html.render(page), html.render(layout.case(site.one("k"), T0)), markdown.render(page), table.figures(found),
             table.incidents(site.all(), T0))  # fmt: skip
    for text in texts:
        assert not set("\x00\x1b\u202e") & set(text)


def test_the_time_to_rotation_ends_with_it_not_with_its_entry(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.fold(exposure("k"))
    site.days(10)
    site.desk.decide([site.one("k")], "resolve", at=T0 + 2 * DAY)
    assert _figures(site).keys.median_days == 2
