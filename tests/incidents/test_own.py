"""Whose is whose: what an account is shown, and what a purge takes, is that account's and nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from guard.incidents.accounts import address_of
from guard.incidents.privacy import ERASED, LedgerKeeper
from guard.incidents.report.figures import gather
from guard.incidents.service import Counter, shown
from guard.incidents.settings import DAY, Settings
from tests.conftest import GUARD, Account
from tests.incidents.made import T0, Site, event, exposure


def test_a_beginning_is_looked_for_among_ones_own(tmp_path: Path) -> None:
    site = Site(tmp_path)
    mine, theirs = "abcd" + "0" * 60, "abcd" + "1" * 60
    site.fold(exposure("", fingerprint=mine), exposure("", fingerprint=theirs, at_tree={"user": "bob", "uid": 9}))
    counter = Counter(site.desk)
    told = counter.answer(1001, "alice", {"ask": "rotated", "id": "abcd"}, guarded=False)["incident"]
    assert told["id"] == mine[:12]  # type: ignore[index]
    names = [["site-0123456789ab", theirs], ["site-0123456789ab", mine]]
    told = counter.answer(1001, "alice", {"ask": "match", "names": names}, guarded=False)["incident"]
    assert told["id"] == mine[:12]  # type: ignore[index]


def test_an_account_nobody_knows_is_not_everybody_unknown(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.fold(exposure("k", at_tree={"user": "alice"}), exposure("k", at_tree={}, path="/home/bob/x"))
    (one,) = site.all()
    assert "/home/bob" not in str(shown(one, -1, "alice"))
    assert list(LedgerKeeper(site.ledger).records("gone", -1, site.now + DAY)) == []
    assert LedgerKeeper(site.ledger).erase("gone", -1, site.now + DAY) == 0


def test_a_purge_takes_one_name_and_none_that_begins_alike(tmp_path: Path) -> None:
    site = Site(tmp_path, Settings(domain="x.example"))
    site.fold(
        exposure("k", at_tree={"user": "a_b", "uid": 7}),
        event("telemetry", "policy-changed", message="by a_bc", detail={"who": "a_bc"}),
    )
    site.ledger.mark_sent([(site.one("k").secret, "notice", to, 0) for to in ("axb@x.example", "a_b@x.example")], site.now)
    LedgerKeeper(site.ledger).erase("a_b", 7, site.now + DAY)
    database = site.ledger.database
    assert {to for (to,) in database.execute("SELECT recipient FROM sent")} == {"axb@x.example", ERASED}
    assert database.execute("SELECT who, message FROM change").fetchone() == ("a_bc", "by a_bc")
    assert address_of(site.one("k").users[0], {}, "x.example") == ""


def test_ones_own_question_is_no_read_of_others(tmp_path: Path) -> None:
    site = Site(tmp_path)
    Counter(site.desk).answer(1001, "alice", {"ask": "match", "names": []}, guarded=False)
    site.ledger.note_access("carol", "list of 3")
    assert [row.name for row in gather(site.ledger, site.settings, {}, T0 - DAY, T0 + DAY).reads] == ["carol"]


@pytest.mark.root
def test_a_user_gets_no_empty_ledger_of_their_own(account: Account) -> None:
    done = account.command([GUARD, "incidents", "list"], env={"GUARD_STATE_DIR": ""})
    assert done.returncode == 3
    assert "guard incidents mine" in done.stderr
