"""The ledger: each secret once, whatever the order, the number of times, and the moment it is killed at."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.errors import StateError
from guard.incidents.ledger import Ledger, Received
from tests.conftest import LONG
from tests.incidents.made import T0, Site, event, exposure, fingerprint, received

HOUR = 3_600_000_000


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_one_secret_is_one_incident_however_often_and_wherever_it_is_seen(site: Site) -> None:
    site.fold(
        exposure("k"), exposure("k", at_host="login2", source="file", path="/home/alice/.env", line=3),
        exposure("k", at_tree={"uid": 1002, "user": "bob"}), exposure("other"),
    )  # fmt: skip
    assert len(site.all()) == 2
    assert site.one("k").users == ("alice", "bob")
    assert site.one("k").hosts == ("login1", "login2")


def test_the_same_event_twice_is_counted_once(site: Site) -> None:
    seen = exposure("k", count=3)
    site.fold(seen, seen)
    site.fold(seen)
    assert [s.count for s in site.one("k").secret.sightings] == [3]


def test_folded_three_times_out_of_order_and_from_two_nodes_it_is_the_same_ledger(tmp_path: Path) -> None:
    rng = random.Random(7)
    events = [
        exposure(f"k{rng.randrange(9)}", T0 + rng.randrange(HOUR), at_host=f"login{rng.randrange(2)}",
                 source=rng.choice(("argv", "history", "file")), path=f"/home/alice/{rng.randrange(4)}", line=rng.randrange(5),
                 audience=rng.choice(("owner", "node", "pushed")), count=rng.randrange(1, 4))
        for _ in range(300)
    ] + [event("bind", "bind", T0 + n, detail={"count": n}) for n in range(1, 50)]  # fmt: skip
    first = Site(tmp_path, name="first.db")
    first.fold(*events)
    second = Site(tmp_path, name="second.db")
    for _ in range(3):
        rng.shuffle(events)
        halves = [e for e in events if e["host"] == "login0"], [e for e in events if e["host"] != "login0"]
        for half in halves:
            second.fold(*half)
    assert second.dump() == first.dump()


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(6)))
def test_a_rotation_of_the_site_key_keeps_one_incident_in_every_order(tmp_path_factory: pytest.TempPathFactory, order: list[int]) -> None:
    old, new = ("site-000000000000", fingerprint("old")), ("site-111111111111", fingerprint("new"))
    former = [{"key_id": old[0], "fingerprint": old[1]}]
    kinds = [
        exposure("x", T0, key_id=old[0], fingerprint=old[1]), exposure("x", T0 + 1, key_id=new[0], fingerprint=new[1]),
        exposure("x", T0 + 2, key_id=new[0], fingerprint=new[1], former=former), exposure("y", T0 + 3),
        exposure("x", T0 + 4, key_id=old[0], fingerprint=old[1], source="file", path="/a"),
        exposure("x", T0 + 5, key_id=new[0], fingerprint=new[1], source="file", path="/b"),
    ]  # fmt: skip
    site = Site(tmp_path_factory.mktemp("order"))
    for number in order:
        site.fold(kinds[number])
    (rotated,) = [one for one in site.all() if len(one.secret.names) == 2]
    assert len(site.all()) == 2
    assert sum(s.count for s in rotated.secret.sightings) == 5
    assert rotated.id == min(old, new)[1][:12]


def test_only_fingerprints_of_one_key_are_compared(site: Site) -> None:
    site.fold(exposure("k"), exposure("k", key_id="local-0123456789ab"))
    assert sorted(one.matched for one in site.all()) == [False, True]


def test_a_secret_without_a_fingerprint_is_told_by_its_place(site: Site) -> None:
    password = {"fingerprint": None, "key_id": None, "kind": "password", "source": "file"}
    site.fold(
        exposure("", path="/a", line=1, **password), exposure("", T0 + 1, path="/a", line=1, **password),
        exposure("", path="/b", line=1, **password),
    )  # fmt: skip
    assert sorted(sum(s.count for s in one.secret.sightings) for one in site.all()) == [1, 2]


def test_what_a_user_claims_widens_and_lowers_nothing_of_the_service(site: Site) -> None:
    place = {"source": "file", "path": "/home/alice/.env", "line": 3}
    site.fold(exposure("k", audience="node", **place))
    site.fold(exposure("k", T0 - 30 * 24 * HOUR, at_origin="user", audience="owner", baseline=True, **place))
    one = site.one("k")
    assert one.audience == "node"
    assert not one.backlog
    assert one.received == T0


@pytest.mark.parametrize("line", [{}, {"id": 3, "time": "x"}, {"id": "a"}, {"id": "a", "time": None}])
def test_what_is_no_event_is_counted_and_changes_nothing(site: Site, line: dict[str, object]) -> None:
    folded = site.ledger.fold([*received(exposure("k")), Received(line, T0)])
    assert (folded.taken, folded.refused) == (1, 1)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(("key_id", "fingerprint", "kind", "incident", "source", "file", "line", "count", "former", "audience",
                         "happened", "controls", "lost", "agent_commands", "context")),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text()) | st.dictionaries(st.text(), st.text()),
    )
)  # fmt: skip
def test_no_detail_whatever_breaks_the_fold(tmp_path_factory: pytest.TempPathFactory, detail: dict[str, object]) -> None:
    site = Site(tmp_path_factory.mktemp("any"))
    site.fold(event("exposure", "secret", detail=detail), event("telemetry", "loss", detail=detail), exposure("k"))
    assert site.one("k").state == "open"
    site.all()


def test_a_ledger_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.touch(mode=0o644)
    path.chmod(0o644)
    with pytest.raises(StateError, match="read by others"):
        Ledger(str(path))


def test_a_damaged_ledger_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"no database at all, and long enough to be told from an empty one" * 20)
    path.chmod(0o600)
    with pytest.raises(StateError, match="fold the archive again"):
        Ledger(str(path))


_FOLDER = """
import sys, json
sys.path.insert(0, {root!r})
from guard.incidents import ledger as module
from guard.incidents.ledger import Ledger, Received, decode
module.BATCH = 20
with Ledger(sys.argv[1]) as book, open(sys.argv[2], "rb") as lines:
    print("open", flush=True)
    book.fold(Received(decode(line), 1) for line in lines)
"""


def test_killed_at_any_moment_nothing_is_lost_and_nothing_doubled(tmp_path: Path) -> None:
    """SIGKILL while a fold runs, again and again; then once to its end."""
    rng = random.Random(3)
    events = [exposure(f"k{n % 40}", T0 + n, source="file", path=f"/f{n % 7}", line=n % 11) for n in range(3000)]
    lines = tmp_path / "events.jsonl"
    lines.write_text("".join(json.dumps(e) + "\n" for e in events))
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", _FOLDER.format(root=root), str(tmp_path / "killed.db"), str(lines)]
    for _ in range(200 if LONG else 12):
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(rng.random() * 0.15)  # the moment of the kill is the test's own dice, not a wait
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=True).returncode == 0
    whole = Site(tmp_path, name="whole.db")
    whole.ledger.fold(Received(e, 1) for e in events)
    killed = Site(tmp_path, name="killed.db")
    assert killed.dump() == whole.dump()


def test_a_fold_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    site = Site(tmp_path)

    def torn() -> object:
        yield from received(*(exposure(f"k{n}") for n in range(10)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        site.ledger.fold(torn())  # type: ignore[arg-type]
    assert site.all() == []


def test_a_disk_that_fills_up_amid_a_fold_costs_nothing_but_another_one(site: Site) -> None:
    events = [exposure(f"k{n}", T0 + n, source="file", path=f"/{n}{'x' * 500}") for n in range(500)]
    database = site.ledger.database
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages + 4}")
    for _ in range(2):
        with pytest.raises(sqlite3.OperationalError, match="full"):
            site.fold(*events)
    database.execute(f"PRAGMA max_page_count = {1 << 30}")
    site.fold(*events)
    assert len(site.all()) == 500


def test_an_id_is_found_by_its_beginning_and_by_its_marker(site: Site) -> None:
    from guard.incidents import choose

    site.fold(exposure("k"))
    whole = fingerprint("k")
    for given_ in (whole[:4], whole[:12], whole, f"[REDACTED:github-token:{whole[:12]}]", whole[:12].upper()):
        assert choose.one(site.ledger, given_).id == whole[:12]


def test_ids_that_begin_alike_are_not_guessed_at(site: Site) -> None:
    from guard.errors import UsageError
    from guard.incidents import choose

    names = (f"k{n}" for n in itertools.count())
    by_start: dict[str, str] = {}
    for name in names:
        start = fingerprint(name)[:4]
        if start in by_start:
            site.fold(exposure(name), exposure(by_start[start]))
            break
        by_start[start] = name
    with pytest.raises(UsageError, match="beginning of 2 incidents"):
        choose.one(site.ledger, start)


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "1969-12-31T00:00:00Z", 1e11, -5, 1e300])
def test_a_time_that_is_none_breaks_no_list(site: Site, moment: object) -> None:
    from guard.cli import incidents_text
    from guard.incidents.report.layout import case

    site.fold(exposure("k", happened=moment))
    one = site.one("k")
    assert one.secret.sightings[0].happened_first == T0
    assert list(incidents_text.whole(one, T0))
    assert case(one, T0)


@pytest.mark.parametrize("moment", ["", "hello", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_an_event_of_no_time_is_refused(site: Site, moment: str) -> None:
    assert site.ledger.fold([Received({**exposure("k"), "time": moment}, T0)]).refused == 1


@pytest.mark.parametrize("moment", ["20260601T120000Z", "2026-W23-1T12:00:00Z", "2026-06-01T23:30:00-05:00"])
def test_a_day_is_a_day_however_the_time_is_written(site: Site, moment: str) -> None:
    site.fold(event("bind", "bind", time=moment))
    day = site.ledger.database.execute("SELECT day FROM tally").fetchone()[0]
    assert day in ("2026-06-01", "2026-06-02")


def test_a_name_moves_no_cursor_of_who_reads(site: Site) -> None:
    from guard.cli import incidents_text
    from guard.incidents.report import layout, markdown

    wild = "\x1b]0;x\x07\x1b[2J\u202e\n"
    site.fold(exposure("k", kind=f"k{wild}", path=f"/x{wild}", at_tree={"user": f"u{wild}", "harness": wild}, at_host=wild))
    one = site.one("k")
    shown = "".join((*incidents_text.whole(one, T0), *incidents_text.lines([one], T0)))
    shown += markdown.render(layout.case(one, T0)).replace("\n", "")
    assert shown.isprintable()
