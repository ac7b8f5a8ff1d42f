"""From sightings and decisions to a state, a clock and what comes first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guard.errors import UsageError
from guard.incidents import choose
from guard.incidents.exposure import VERBS as NAMES
from guard.incidents.exposure import read
from guard.incidents.ledger import Received
from guard.incidents.settings import DAY, Settings
from guard.incidents.workflow import VERBS, State
from tests.incidents.made import T0, Site, event, exposure, fingerprint, received

HOUR = DAY // 24
HISTORY = {"source": "history", "path": "/home/alice/.bash_history"}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_clock_runs_from_the_receipt_not_from_the_sighting(site: Site) -> None:
    site.fold(exposure("k", T0 - 40 * DAY), at=T0)
    assert site.one("k").due == T0 + 7 * DAY


def test_of_two_keys_one_hour_before_and_after_the_end_one_is_overdue(site: Site) -> None:
    site.fold(exposure("late", T0 - 7 * DAY - HOUR), exposure("not yet", T0 - 7 * DAY + HOUR))
    late = choose.every(site.ledger, site.settings, choose.Filter(overdue=True))
    assert [one.id for one in late] == [fingerprint("late")[:12]]


def test_what_is_overdue_is_alerted_once_a_clock(site: Site) -> None:
    site.fold(exposure("k"))
    site.days(6.9)
    assert site.desk.alert_overdue() == []
    site.days(0.2)
    assert [one.id for one in site.desk.alert_overdue()] == [fingerprint("k")[:12]]
    assert site.desk.alert_overdue() == []
    assert [(e.rule, e.severity.label) for e in site.sent] == [("incident-overdue", "high")]  # type: ignore[attr-defined]
    site.desk.decide([site.one("k")], "resolve")
    site.fold(exposure("k", site.now + 1))
    site.days(8)
    assert len(site.desk.alert_overdue()) == 1  # a new use, a new clock


def test_a_claim_closes_nothing(site: Site) -> None:
    site.fold(exposure("k"))
    site.desk.decide([site.one("k")], "claim")
    site.days(8)
    assert site.one("k").state is State.CLAIMED
    assert site.one("k").overdue


def test_a_new_command_after_the_rotation_reopens(site: Site) -> None:
    site.fold(exposure("k"))
    site.desk.decide([site.one("k")], "resolve")
    site.days(2)
    site.fold(exposure("k", site.now - HOUR), at=site.now)
    one = site.one("k")
    assert (one.state, one.reopened, one.due) == (State.OPEN, True, site.now + 7 * DAY)


def test_a_rescan_of_an_old_history_reopens_nothing(site: Site) -> None:
    site.fold(exposure("k", line=7, context="a", **HISTORY))
    site.desk.decide([site.one("k")], "resolve")
    site.days(2)
    # The file has grown and its first lines were cut off: time and line changed, the place did not.
    site.fold(exposure("k", site.now, line=2, context="a", **HISTORY))
    one = site.one("k")
    assert one.state is State.ROTATED
    assert len(one.remnants) == 1


def test_a_new_line_in_a_known_history_reopens(site: Site) -> None:
    site.fold(exposure("k", line=7, context="a", **HISTORY))
    site.desk.decide([site.one("k")], "resolve")
    site.days(2)
    site.fold(exposure("k", site.now, line=9, context="b", **HISTORY))
    assert site.one("k").reopened


def test_a_late_event_from_before_the_rotation_is_a_remnant_list_of_its_own(site: Site) -> None:
    site.fold(exposure("k"))
    site.days(1)
    site.desk.decide([site.one("k")], "resolve")
    site.days(1)
    site.fold(exposure("k", T0 + HOUR, source="file", path="/x"), at=site.now)
    one = site.one("k")
    assert (one.state, one.reopened) == (State.ROTATED, False)


def test_the_rotation_is_when_it_was_done_not_when_it_was_said(site: Site) -> None:
    site.fold(exposure("k"))
    site.days(3)
    site.fold(exposure("k", site.now - DAY))
    site.desk.decide([site.one("k")], "resolve", at=site.now - 2 * DAY)
    assert site.one("k").reopened  # it was used a day after


@pytest.mark.parametrize(("verb", "until"), [("accept", 5), ("false-positive", 5), ("false-positive", 0)])
def test_a_dismissal_holds_for_the_fingerprint_everywhere_until_it_ends(site: Site, verb: str, until: int) -> None:
    site.fold(exposure("k"))
    site.desk.decide([site.one("k")], verb, "a key of the course", until=site.now + until * DAY if until else 0)
    site.days(2)
    site.fold(exposure("k", site.now, at_host="other", at_tree={"user": "bob", "uid": 7}, **HISTORY))
    assert site.one("k").closed
    site.days(4)
    assert site.one("k").closed is not bool(until)
    assert site.one("k").due == (T0 + until * DAY + 7 * DAY if until else 0)


def test_what_was_there_before_the_clock_is_backlog_until_promoted(tmp_path: Path) -> None:
    site = Site(tmp_path, Settings(clock_starts=T0))
    site.fold(exposure("old", T0 - DAY, **HISTORY), exposure("new"), exposure("base", baseline=True), at=T0)
    assert [site.one(k).backlog for k in ("old", "new", "base")] == [True, False, True]
    assert site.one("old").due == T0 + 90 * DAY
    site.days(10)
    assert not site.one("old").overdue
    site.desk.decide([site.one("old")], "promote")
    assert (site.one("old").backlog, site.one("old").due) == (False, site.now + 7 * DAY)


def test_a_backlog_key_that_is_used_is_no_backlog(tmp_path: Path) -> None:
    site = Site(tmp_path, Settings(clock_starts=T0))
    site.fold(exposure("k", T0 - DAY, **HISTORY), at=T0)
    site.days(1)
    site.fold(exposure("k", site.now))
    assert not site.one("k").backlog
    assert site.one("k").due == site.now + 7 * DAY


def test_what_is_below_the_strict_threshold_opens_nothing(site: Site) -> None:
    site.fold(exposure("k", incident=False), exposure("p", partial=True))
    site.days(9)
    assert choose.every(site.ledger, site.settings, choose.Filter()) == []
    assert len(choose.every(site.ledger, site.settings, choose.Filter(weak=True))) == 2
    assert site.desk.alert_overdue() == []


def test_a_honeytoken_comes_first_and_cannot_be_accepted(site: Site) -> None:
    site.fold(exposure("bait", honeytoken=True, incident=False, kind="password"), exposure("k", audience="pushed"))
    site.days(20)
    first, *_ = choose.every(site.ledger, site.settings, choose.Filter())
    assert first.honeytoken
    with pytest.raises(UsageError, match="bait"):
        site.desk.decide([site.one("bait")], "accept", "why not", until=site.now + DAY)


def test_the_wider_the_audience_the_more_urgent(site: Site) -> None:
    for name in ("owner", "group", "unknown", "node", "off-site", "pushed"):
        site.fold(exposure(name, audience=name))
    order = [one.audience for one in choose.every(site.ledger, site.settings, choose.Filter())]
    assert order == ["pushed", "off-site", "node", "unknown", "group", "owner"]


@pytest.mark.parametrize(
    ("verb", "reason", "until", "says"),
    [
        ("accept", "r", 0, "needs --until"), ("accept", "", 1, "needs --reason"), ("accept", "r", -1, "in the past"),
        ("false-positive", " ", 0, "needs --reason"), ("reopen", "r", 0, "it is open already"), ("promote", "", 0, "not in the backlog"),
    ],
)  # fmt: skip
def test_a_decision_that_lacks_something_changes_nothing(site: Site, verb: str, reason: str, until: int, says: str) -> None:
    site.fold(exposure("k"), exposure("other"))
    with pytest.raises(UsageError, match=says):
        site.desk.decide([site.one("other"), site.one("k")], verb, reason, until=site.now + until * DAY if until else 0)
    assert site.one("k").secret.actions == site.one("other").secret.actions == ()


def test_every_decision_is_one_event_with_who_and_why(site: Site) -> None:
    site.fold(exposure("k"))
    site.desk.decide([site.one("k")], "assign", "carol", ticket="SEC-7")
    site.desk.decide([site.one("k")], "notify")
    site.desk.decide([site.one("k")], "resolve", "rotated by phone")
    site.desk.decide([site.one("k")], "reopen", "not so")
    told = [(e.rule, e.detail["who"], e.detail["reason"], e.detail["ticket"]) for e in site.sent]  # type: ignore[attr-defined]
    assert told == [
        ("incident-assign", "infosec", "carol", "SEC-7"), ("incident-notify", "infosec", "", ""),
        ("incident-resolve", "infosec", "rotated by phone", ""), ("incident-reopen", "infosec", "not so", ""),
    ]  # fmt: skip
    assert [e.id for e in site.sent] == [a.id for a in site.one("k").secret.actions]  # type: ignore[attr-defined]
    assert tuple(VERBS) == NAMES
    assert set(VERBS) >= {a.verb for a in site.one("k").secret.actions}


def test_the_event_of_a_decision_that_could_not_be_sent_is_sent_later(site: Site) -> None:
    site.fold(exposure("k"))

    def fails(_: object) -> None:
        raise OSError("the spool is away")

    broken = site.desk.by("infosec")
    broken._emit = fails  # type: ignore[assignment]
    with pytest.raises(OSError, match="away"):
        broken.decide([site.one("k")], "resolve")
    assert site.one("k").state is State.ROTATED
    assert site.desk.tell() == 1
    assert site.desk.tell() == 0


def test_a_secret_in_a_reason_is_not_stored(site: Site) -> None:
    from guard.redact import samples
    from guard.redact.rules.formats import FORMATS

    row = next(f for f in FORMATS if f.kind == "github-token")
    key = samples.fill(row.samples[0], __import__("random").Random(5))[0]
    site.fold(exposure("k"))
    site.desk.decide([site.one("k")], "resolve", f"it was {key}")
    assert key not in site.one("k").secret.actions[0].reason
    assert b"REDACTED" in site.sent[0].to_json()  # type: ignore[attr-defined]


def test_an_event_about_an_incident_is_no_exposure() -> None:
    told = event("exposure", "incident-resolve", detail={"kind": "github-token", "incident": "0123456789ab"})
    assert read(told) is None


def test_a_claim_from_a_node_reaches_the_incident_whichever_comes_first(tmp_path: Path) -> None:
    claim = event("exposure", "incident-claimed", T0 + 5, origin="user",
                  detail={"incident": fingerprint("k")[:12], "reason": "done"})  # fmt: skip
    for number, order in enumerate(([claim, exposure("k")], [exposure("k"), claim])):
        site = Site(tmp_path, name=f"{number}.db")
        for each in order:
            site.fold(each)
        assert site.one("k").state is State.CLAIMED


def test_decisions_are_in_the_stream_and_make_the_same_ledger_again(tmp_path: Path) -> None:
    site, again = Site(tmp_path), Site(tmp_path, name="again.db")
    seen = exposure("k")
    site.fold(seen)
    site.desk.decide([site.one("k")], "assign", "carol", ticket="T-1")
    site.desk.decide([site.one("k")], "accept", "a test key", until=T0 + 9 * DAY)
    told = [json.loads(e.to_json()) for e in site.sent]  # type: ignore[attr-defined]
    again.ledger.fold([*(Received(e, T0, own=True) for e in told), *received(seen)])
    assert again.one("k").secret.actions == site.one("k").secret.actions
    assert again.one("k").state is State.ACCEPTED


def test_what_is_closed_long_enough_is_deleted_and_an_old_event_does_not_bring_it_back(tmp_path: Path) -> None:
    site = Site(tmp_path, Settings(keep_days=30))
    old = exposure("old")
    site.fold(old, exposure("open"), event("bind", "bind", severity="medium"))
    site.desk.decide([site.one("old")], "resolve")
    site.days(29)
    assert site.desk.retire() == 0
    site.days(2)
    assert site.desk.retire() >= 2
    site.fold(old)
    assert [one.id for one in site.all()] == [fingerprint("open")[:12]]
    assert site.ledger.database.execute("SELECT count(*) FROM tally").fetchone() == (0,)


def test_no_node_decides_for_the_site(site: Site) -> None:
    forged = event("exposure", "incident-resolve", T0 + 5, detail={"incident": fingerprint("k")[:12], "who": "root"})
    site.fold(exposure("k"), forged)
    site.ledger.fold([Received({**forged, "id": forged["id"][:-1] + "0", "origin": "user"}, T0, own=True)])  # type: ignore[index]
    assert site.one("k").state is State.OPEN


def test_a_claim_of_somebody_else_is_none(site: Site) -> None:
    site.fold(exposure("k"), event("exposure", "incident-claimed", T0 + 5, tree={"user": "mallory", "uid": 66},
                                   detail={"incident": fingerprint("k")[:12]}))  # fmt: skip
    assert site.one("k").state is State.OPEN


def test_what_an_expiry_opened_again_can_be_resolved(site: Site) -> None:
    site.fold(exposure("k"))
    site.desk.decide([site.one("k")], "accept", "a test key", until=T0 + DAY)
    site.days(2)
    assert site.one("k").state is State.OPEN
    assert site.desk.decide([site.one("k")], "notify")[0].state is State.NOTIFIED
    site.days(1)
    assert site.desk.decide([site.one("k")], "resolve")[0].state is State.ROTATED
    site.days(30)
    assert site.one("k").state is State.ROTATED


def test_what_a_use_opened_again_can_be_claimed_and_resolved(site: Site) -> None:
    site.fold(exposure("k"))
    site.desk.decide([site.one("k")], "resolve")
    site.days(1)
    site.fold(exposure("k", site.now))
    site.days(1)
    assert site.desk.decide([site.one("k")], "notify")[0].state is State.NOTIFIED
    assert site.desk.decide([site.one("k")], "claim")[0].state is State.CLAIMED
    site.days(1)
    assert site.desk.decide([site.one("k")], "resolve")[0].state is State.ROTATED


def test_a_session_that_goes_on_using_a_key_does_not_move_its_clock(site: Site) -> None:
    tree = {"uid": 1001, "user": "alice", "session": "s"}
    site.fold(exposure("k", at_tree=tree))
    site.desk.decide([site.one("k")], "resolve")
    due = set()
    for _ in range(20):
        site.days(0.5)
        site.fold(exposure("k", site.now, at_tree=tree))
        due.add(site.one("k").due)
    assert site.one("k").overdue
    assert len(due) <= 2  # within one day the last use is all that is kept


def test_a_node_whose_clock_is_ahead_reopens_nothing(site: Site) -> None:
    site.fold(exposure("k", T0 + 40 * DAY), at=T0)
    site.days(1)
    site.desk.decide([site.one("k")], "resolve")
    assert site.one("k").state is State.ROTATED


@pytest.mark.parametrize("kind", ["aaa", "basic-auth"])
def test_a_users_word_for_the_kind_makes_nothing_less_urgent(site: Site, kind: str) -> None:
    site.fold(exposure("k", kind="private-key"))
    before = site.one("k").priority
    site.fold(exposure("k", at_origin="user", kind=kind))
    assert (site.one("k").kind, site.one("k").priority) == ("private-key", before)


def test_a_user_cannot_join_a_key_to_one_that_was_dismissed(site: Site) -> None:
    site.fold(exposure("fake"), exposure("real"))
    site.desk.decide([site.one("fake")], "false-positive", "a sample")
    former = [{"key_id": "site-0123456789ab", "fingerprint": fingerprint("fake")}]
    site.fold(exposure("real", at_origin="user", former=former), exposure("real", former=former))
    other = [{"key_id": "site-222222222222", "fingerprint": fingerprint("new")}, *former]
    site.fold(exposure("real", at_origin="user", former=other), exposure("real", former=other))
    assert site.one("real").state is State.OPEN
    assert len(site.one("fake").secret.names) == 1


def test_a_decision_that_came_round_by_the_sites_own_feed_still_counts(tmp_path: Path) -> None:
    site, again = Site(tmp_path), Site(tmp_path, name="again.db")
    seen = exposure("k")
    site.fold(seen)
    site.desk.decide([site.one("k")], "resolve")
    told = [json.loads(e.to_json()) for e in site.sent]  # type: ignore[attr-defined]
    again.ledger.fold([*received(seen), *(Received(e, T0) for e in told)])
    assert again.one("k").state is State.OPEN
    for _ in range(2):
        again.ledger.fold(Received(e, T0, own=True) for e in told)
    assert again.one("k").secret.actions == site.one("k").secret.actions
    assert again.ledger.database.execute("SELECT sum(events) FROM tally").fetchone() == (2,)


def test_claims_of_nothing_are_not_kept_and_of_anothers_are_passed_over(site: Site) -> None:
    for digits in ("", "ab", "zzzz", "%", fingerprint("k") + "0"):
        site.fold(event("exposure", "incident-claimed", detail={"incident": digits}))
    assert site.ledger.database.execute("SELECT count(*) FROM pending").fetchone() == (0,)


@pytest.mark.parametrize("verb", ["notify", "claim", "assign"])
def test_a_clock_that_started_anew_is_not_set_back_by_a_decision(site: Site, verb: str) -> None:
    site.fold(exposure("k"), exposure("used"))
    site.desk.decide([site.one("k"), site.one("used")], "resolve")
    site.days(30)
    site.desk.decide([site.one("k")], "reopen", "it was not")
    site.fold(exposure("used", site.now))
    for key in ("k", "used"):
        assert site.one(key).due == site.now + 7 * DAY
        (after,) = site.desk.decide([site.one(key)], verb, "carol")
        assert (after.due, after.overdue) == (site.now + 7 * DAY, False)
