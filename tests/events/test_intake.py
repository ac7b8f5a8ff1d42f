"""What a sender may claim, without a service: sessions, ids, and the bounds of what one user can hold."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from guard.errors import EventError
from guard.events.adopt import Reading, places
from guard.events.adopting import Adoption
from guard.events.intake import Node, Redactor, Sessions, accept, bound_id
from guard.events.names import Names
from guard.events.peers import Peer
from guard.events.producer import Ids
from tests.events.kinds import event as kind

USER = Peer(os.getpid(), 4711, 4711, frozenset({4711}), False)


def node(owner: int = 0) -> Node:
    return Node("here", "7d6b2f6e-6f0f-4c53-8d9d-0c3a4b1e2f30", owner, time.time_ns, Names())


def claim(**more: Any) -> bytes:
    return json.dumps({**json.loads(kind("setuid").to_json()), **more}).encode()


def test_one_user_holds_so_many_sessions_and_takes_none_of_anothers() -> None:
    sessions, ids = Sessions(most=50), Ids()
    theirs = [ids.new() for _ in range(20)]
    for each in theirs:
        assert sessions.claim(each, 1000, "claude", 1) == ("claude", 1)
    for _ in range(500):
        assert sessions.claim(ids.new(), 2000, "codex", 2)
    assert len(sessions.known) == 70
    assert all(sessions.claim(each, 2000, "codex", 2) is None for each in theirs)
    assert all(sessions.claim(each, 1000, "", 0) == ("claude", 1) for each in theirs)


def test_a_claimed_id_is_the_same_again_and_another_for_others() -> None:
    claimed = Ids().new()
    made = bound_id(claimed, "here", 1)
    assert made == bound_id(claimed, "here", 1)
    assert len({made, claimed, bound_id(claimed, "here", 2), bound_id(claimed, "there", 1)}) == 4
    assert made[:13] == claimed[:13], "it still says when"
    assert json.loads(json.dumps(accept(claim(), USER, node(), Sessions())))["id"] != kind("setuid").id


def test_a_users_own_service_takes_nobody_elses() -> None:
    with pytest.raises(EventError, match="another user's"):
        accept(claim(), USER, node(owner=1000), Sessions())
    assert accept(claim(), USER, node(owner=4711), Sessions())["origin"] == "user"


def test_of_a_users_policy_stay_its_name_and_digest() -> None:
    taken = accept(claim(policy={"name": "p" * 5000, "digest": 7, "more": {"x": ["y"] * 500}}), USER, node(), Sessions())
    assert taken["policy"] == {"name": "p" * 128, "digest": "7"}


def test_root_says_what_the_kernel_saw_on_this_host() -> None:
    root = Peer(1, 0, 0, frozenset({0}), False)
    taken = accept(claim(host="elsewhere", origin="kernel"), root, node(), Sessions())
    assert (taken["host"], taken["origin"], taken["id"]) == ("here", "kernel", kind("setuid").id)
    assert accept(claim(origin="god"), root, node(), Sessions())["origin"] == "service"
    sandboxed = Peer(1, 0, 0, frozenset({0}), True)
    with pytest.raises(EventError, match="only exposures"):
        accept(claim(), sandboxed, node(), Sessions())


def test_techniques_are_named_where_the_producer_names_none() -> None:
    assert accept(claim(mitre=[]), USER, node(), Sessions())["mitre"] == ["T1548.001"]
    assert accept(claim(mitre=["T1068"]), USER, node(), Sessions())["mitre"] == ["T1068"]
    assert accept(claim(mitre=[], control="session"), USER, node(), Sessions())["mitre"] == []


def test_lines_stay_lines_whatever_the_redactor_meets() -> None:
    lines = [claim(), b"no json", b'{"half', b"\xff\x00", claim(message="x" * 5000), b'"', b"'" * 100]
    assert len(Redactor().lines(lines)) == len(lines)
    assert Redactor().lines(lines)[0] == lines[0]


# Users' own spools ------------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def finish(adoption: Adoption, reading: Reading, pause: float = 0.0) -> list[Any]:
    while not reading.advance():
        time.sleep(0.001)  # the child's end makes its pipe readable; there is no other sign
    return adoption.done(reading, reading.finish(), pause)


def test_a_user_is_read_one_at_a_time_and_not_too_often(tmp_path: Path) -> None:
    clock = Clock()
    adoption = Adoption({}, clock)
    place = (os.geteuid(), str(tmp_path))
    adoption.want([place], None)
    (first,) = adoption.start()
    adoption.want([place], None)
    assert adoption.start() == [], "one at a time"
    finish(adoption, first, pause=3.0)
    assert adoption.start() == [], "he has used his ration up"
    clock.now += 3.1
    (second,) = adoption.start()
    finish(adoption, second)
    assert not adoption.waits


def test_a_child_that_hangs_holds_up_its_own_user_alone(tmp_path: Path) -> None:
    clock = Clock()
    adoption = Adoption({}, clock)
    adoption.want([(os.geteuid(), str(tmp_path))], None)
    (hung,) = adoption.start()
    hung.is_gone = lambda: False  # type: ignore[method-assign] # as in a file system that never answers
    clock.now += 11
    finish(adoption, hung)
    adoption.want([(os.geteuid(), str(tmp_path)), (65533, str(tmp_path / "other"))], None)
    (other,) = adoption.start()
    assert other.uid == 65533
    finish(adoption, other)


def test_only_directories_of_the_pattern_are_places(tmp_path: Path) -> None:
    for name in ("guard-1000", "guard-x", "guard-", "guard-10 00", "guard-1000-more", "other-5"):
        (tmp_path / name).mkdir()
    assert list(places((f"{tmp_path}/guard-{{uid}}", "/nowhere/guard-{uid}"))) == [(1000, f"{tmp_path}/guard-1000")]


def test_an_agent_in_its_session_says_for_nobody_that_a_key_is_rotated() -> None:
    inside = Peer(os.getpid(), 4711, 4711, frozenset({4711}), True)
    word = claim(control="exposure", rule="incident-claimed", detail={"incident": "0123456789ab"})
    assert accept(word, USER, node(), Sessions())["rule"] == "incident-claimed"
    with pytest.raises(EventError, match="only exposures"):
        accept(word, inside, node(), Sessions())
    assert accept(claim(control="exposure", rule="secret"), inside, node(), Sessions())["origin"] == "user"
