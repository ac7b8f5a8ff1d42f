"""The spool: each event once, in order, within its bounds, and a loss is never silent."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.errors import EventError, SpoolError
from guard.events.entry import Entry
from guard.events.model import Event, Origin, Severity, Tree, say
from guard.events.producer import Producer
from guard.events.spool import Limits, Loss, Reader, Spool, rows_of

MONITOR = Producer("monitor", "kernel")


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spool(tmp_path: Path, clock: Clock) -> Iterator[Spool]:
    with Spool(str(tmp_path / "spool"), clock=clock) as made:
        yield made


def make(count: int = 1, severity: Severity = Severity.MEDIUM, origin: Origin = "kernel", uid: int = 1000) -> list[Event]:
    return [
        MONITOR.event("setuid", "chmod", severity, say("number {}", at), tree=Tree("s", uid=uid), origin=origin)
        for at in range(count)
    ]


def test_each_event_is_stored_once_and_read_in_order(spool: Spool) -> None:
    events = make(30)
    done = spool.append(events)
    assert (done.count, done.duplicates, done.dropped, done.position) == (30, 0, 0, 30)
    again = spool.append([*events, *make(2), events[0]])
    assert (again.count, again.duplicates) == (2, 31)
    rows = spool.read(0, 100)
    assert [row.position for row in rows] == list(range(1, 33))
    assert [row.id for row in rows[:30]] == [event.id for event in events]
    assert Event.from_json(rows[3].line) == events[3]


def test_an_id_twice_in_one_batch_is_one_event(spool: Spool) -> None:
    (event,) = make()
    assert spool.append([event, event.to_json(), event]).count == 1


def test_a_line_that_is_no_event_stores_nothing_of_its_batch(spool: Spool) -> None:
    with pytest.raises(EventError):
        spool.append([*make(3), b"{}"])
    assert spool.append(make(1)).position == 1


def test_there_is_one_writer(spool: Spool) -> None:
    with pytest.raises(SpoolError, match="another process"):
        Spool(spool.path)


def test_positions_are_never_used_again(tmp_path: Path, clock: Clock) -> None:
    with Spool(str(tmp_path), limits=Limits(max_age_s=10), clock=clock) as spool:
        spool.append(make(5))
        clock.now += 11
        assert spool.trim() == 5
        assert spool.read(0) == []
        assert spool.append(make(1)).position == 6
        assert spool.verify().broken == 0
    with Spool(str(tmp_path), limits=Limits(max_age_s=10), clock=clock) as spool:
        assert spool.append(make(1)).position == 7
        verdict = spool.verify()
        assert (verdict.broken, verdict.rows) == (0, 2)


def test_what_a_feed_wants_is_all_it_reads(spool: Spool) -> None:
    spool.append([*make(3, Severity.INFO), *make(2, Severity.HIGH, uid=7)])
    spool.append([Entry.of(make(1)[0], "folded")])
    assert len(spool.read(0, minimum=Severity.MEDIUM)) == 2
    assert [row.quiet for row in spool.read(5, quiet=True)] == ["folded"]
    assert len(spool.read(0, uid=7)) == 2
    assert [len(list(rows_of(spool, limit=2))), len(list(rows_of(spool, limit=2, quiet=True)))] == [5, 6]


def test_a_cursor_never_goes_back_and_a_reader_in_another_process_may_keep_it(spool: Spool) -> None:
    spool.append(make(9))
    with Reader(spool.path) as feed:
        assert feed.cursor("siem") == 0
        feed.advance("siem", 7)
        feed.advance("siem", 3)
        assert [row.position for row in feed.read(feed.cursor("siem"))] == [8, 9]
    assert spool.cursors() == {"siem": 7}


def test_a_clock_that_jumps_back_loses_nothing(spool: Spool, clock: Clock) -> None:
    spool.append(make(2))
    clock.now -= 10 * 365 * 86400
    spool.append(make(2))
    assert spool.trim() == 0
    clock.now += 10 * 365 * 86400 + 50
    spool.append(make(1))
    accepted = [row.accepted for row in spool.read(0)]
    assert accepted == sorted(accepted)
    assert spool.position_at(accepted[-1]) == 4
    assert [spool.position_at(0), spool.position_at(accepted[-1] + 1)] == [0, 5]


# Bounds -------------------------------------------------------------------------------------------------


def losses(spool: Spool) -> dict[tuple[str, str], int]:
    return {(each.stage, each.key): each.count for each in spool.losses()}


def test_rows_that_every_feed_has_go_before_anything_is_refused(tmp_path: Path) -> None:
    with Spool(str(tmp_path), limits=Limits(max_bytes=200_000)) as spool:
        spool.cursor("slow")
        for _ in range(40):
            spool.append(make(20, Severity.INFO))
            spool.advance("slow", spool.high())
        assert spool.losses() == []
        assert spool.stored_bytes() <= 200_000
        assert spool.first() > 1
        assert spool.verify().broken == 0


def test_behind_a_dead_feed_telemetry_is_refused_and_alerts_displace_it(tmp_path: Path) -> None:
    with Spool(str(tmp_path), limits=Limits(max_bytes=200_000)) as spool:
        spool.cursor("dead")
        stored = sum(spool.append(make(20, Severity.INFO)).count for _ in range(30))
        assert 0 < stored < 600
        assert losses(spool) == {("spool", "telemetry"): 600 - stored}
        alerts = sum(spool.append(make(10)).count for _ in range(15))
        assert alerts == 150
        counted = losses(spool)
        rows = spool.read(0, 10_000)
        kept = [row for row in rows if row.severity == Severity.INFO]
        assert len(rows) - len(kept) == 150
        assert counted[("displaced", "telemetry")] == stored - len(kept) > 0
        verdict = spool.verify()
        assert (verdict.broken, verdict.dropped) == (0, stored - len(kept))


def test_a_dead_feed_costs_another_nothing(tmp_path: Path) -> None:
    with Spool(str(tmp_path), limits=Limits(max_bytes=200_000)) as spool:
        spool.cursor("dead")
        spool.append(make(5))
        delivered = 0
        for _ in range(40):
            done = spool.append(make(20, Severity.INFO))
            assert (done.count, done.dropped) == (20, 0)
            rows = spool.read(spool.cursor("live"), 10_000)
            delivered += len(rows)
            spool.advance("live", rows[-1].position)
        assert delivered == 805
        kept = spool.read(0, 10_000)
        # What asks for attention waits for the dead one; of the telemetry it loses the oldest, and that is counted.
        assert [row.severity for row in kept[:5]] == [Severity.MEDIUM] * 5
        assert losses(spool) == {("undelivered", "dead"): 805 - len(kept)}
        assert spool.stored_bytes() <= 200_000
        assert spool.verify().broken == 0


def test_what_a_user_claims_displaces_nothing_of_another_origin(tmp_path: Path) -> None:
    with Spool(str(tmp_path), limits=Limits(max_bytes=100_000)) as spool:
        spool.cursor("dead")
        for _ in range(20):
            spool.append(make(10, Severity.INFO))
        seen = len(spool.read(0, 10_000))
        for _ in range(20):
            spool.append(make(10, Severity.CRITICAL, "user"))
        rows = spool.read(0, 10_000)
        assert sum(row.severity == Severity.INFO for row in rows) == seen
        assert losses(spool)[("spool", "user alerts")] == 200 - (len(rows) - seen)
        # The kernel's own alerts find room still, and the claims make it.
        done = [spool.append(make(10)) for _ in range(8)]
        assert sum(each.dropped for each in done) == 0


def test_undelivered_rows_go_at_twice_the_age_and_are_counted_by_feed(tmp_path: Path, clock: Clock) -> None:
    with Spool(str(tmp_path), limits=Limits(max_age_s=100), clock=clock) as spool:
        spool.cursor("dead")
        spool.append(make(10))
        spool.cursor("half")
        spool.advance("half", 4)
        clock.now += 150
        assert spool.trim() == 0
        clock.now += 100
        assert spool.trim() == 10
        assert losses(spool) == {("undelivered", "dead"): 10, ("undelivered", "half"): 6}


def test_a_loss_is_told_once(spool: Spool) -> None:
    spool.append(make(1), lost={("ration", "uid 7"): 12})
    (loss,) = spool.losses()
    assert (loss.stage, loss.key, loss.count) == ("ration", "uid 7", 12)
    spool.append(make(1), lost={("ration", "uid 7"): 3})
    spool.tell([loss], make(1)[0])
    (rest,) = spool.losses()
    assert rest.count == 3
    spool.tell([rest], make(1)[0])
    assert spool.losses() == []
    assert isinstance(spool.losses(told=True)[0], Loss)


# The chain ----------------------------------------------------------------------------------------------


def test_the_chain_holds_over_erased_personal_fields(spool: Spool) -> None:
    spool.append(make(20))
    head = spool.head()
    assert spool.erase([3, 4, 99]) == 2
    assert spool.erase([3]) == 0
    verdict = spool.verify()
    assert (verdict.broken, verdict.erased, verdict.head) == (0, 2, head[1])
    row = spool.read(2, 1)[0]
    assert b"number" not in row.line
    assert Event.from_json(row.line).tree == Tree()
    assert Event.from_json(row.line).rule == "chmod"
    content = b"".join(path.read_bytes() for path in Path(spool.path).iterdir() if path.is_file())
    assert b"number 2" not in content.replace(b"number 20", b"")
    assert b"number 5" in content


@pytest.mark.parametrize(
    "forge",
    [
        "UPDATE events SET public = replace(public, '\"medium\"', '\"info\"') WHERE position = 5",
        "UPDATE events SET personal = replace(personal, 'number 4', 'number 5') WHERE position = 5",
        "DELETE FROM events WHERE position = 5",
        "DELETE FROM events WHERE position < 5",
        "DELETE FROM events WHERE position >= 5",
        "UPDATE events SET seal = zeroblob(32) WHERE position = 5",
    ],
)
def test_a_change_behind_the_spools_back_is_found(spool: Spool, forge: str) -> None:
    spool.append(make(9))
    assert spool.verify().broken == 0
    db = sqlite3.connect(f"{spool.path}/spool.db")
    db.execute(forge)
    db.commit()
    db.close()
    verdict = spool.verify()
    assert verdict.broken == (1 if "< 5" in forge else 5), verdict


def test_sent_rows_are_numbered_by_producer_without_gaps(spool: Spool) -> None:
    def entry(event: Event, quiet: str = "") -> Entry:
        return Entry(event.plain(), quiet=quiet, renumber=True)

    first, second, third, fourth = make(4)
    spool.append([entry(first), entry(second, "folded")])
    spool.append([entry(first), entry(third)])
    with pytest.raises(EventError):
        spool.append([entry(fourth), b"nonsense"])
    spool.append([entry(fourth)])
    assert [Event.from_json(row.line).seq for row in spool.read(0)] == [1, 2, 3]


def test_what_one_user_makes_up_is_forgotten_before_it_fills_the_disk(spool: Spool, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guard.events.bounds.OF_ONE_USER", 10)
    for at in range(40):
        clock.now += 1
        whole = make()[0].plain() | {"producer": f"run:{at}", "origin": "user"}
        kept = [("exposure", f"{whose} key {at}", b"{}") for whose in ("user 7", "user 70", "node")]
        kept += [("adopted", f"{uid} 1 {at} {part}", b"9") for uid in (7, 70) for part in range(4)]
        spool.append([Entry(whole, renumber=True, owner=7)], kept=kept)
    spool.append([Entry(make()[0].plain(), renumber=True)])
    spool.trim()
    assert set(spool.producers()) == {"monitor", *(f"run:{at}" for at in range(30, 40))}
    known = spool.kept("exposure")
    assert len(known) == 60
    assert {f"user 70 key {at}" for at in range(30, 40)} < set(known), "the newest of each user"
    assert sum(key.startswith("node ") for key in known) == 40, "what services saw stays"
    adopted = spool.kept("adopted")
    assert len(adopted) == 200
    assert {f"70 1 {at} {part}" for at in range(15, 40) for part in range(4)} <= set(adopted)


@pytest.mark.parametrize("make", ["later", "other", "damaged"])
def test_a_database_that_is_not_ours_is_told_and_left_as_it_is(tmp_path: Path, make: str) -> None:
    place = tmp_path / "spool"
    place.mkdir(mode=0o700)
    file = place / "spool.db"
    if make == "damaged":
        file.write_bytes(b"no database" * 1000)
    else:
        with sqlite3.connect(file) as db:
            db.execute("CREATE TABLE events(x)")
            db.execute(f"PRAGMA user_version = {99 if make == 'later' else 0}")
    before = file.read_bytes()[100:]
    with pytest.raises(SpoolError, match="later guard" if make == "later" else "spool"):
        Spool(str(place))
    assert file.read_bytes()[100:] == before
    file.unlink()
    for rest in place.glob("spool.db-*"):
        rest.unlink()
    Spool(str(place)).close()
