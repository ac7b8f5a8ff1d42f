"""An event is built from redacted text alone, and is one line whatever it holds."""

from __future__ import annotations

import json
import re
import uuid

import pytest

from guard.errors import EventError
from guard.events.model import Event, Process, Severity, Tree, say, word
from guard.events.producer import Ids, Producer
from guard.redact import bless, program_name

ODD = ["\x1b[31m", "a\nb", "\x7f", "\x85", "\u2028", "\u2029", '"\\', "\udcff\udcfe", "x" * 20_000, "\U0001f600", "\x00"]


def make(**more: object) -> Event:
    return Producer("monitor", "kernel").event("setuid", "chmod", Severity.HIGH, say("setuid"), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "more",
    [
        {"process": Process(exe="/bin/sh")},  # type: ignore[arg-type]
        {"process": Process(argv=(bless("sh"), "-c"))},  # type: ignore[arg-type]
        {"process": Process(cwd=bless("/home") + "/x")},  # type: ignore[arg-type]
        {"detail": {"object": "/home/x"}},
        {"detail": {"deep": [{"in": ["plain"]}]}},
        {"detail": {"object": b"bytes"}},
    ],
)
def test_text_that_was_not_redacted_makes_no_event(more: dict[str, object]) -> None:
    assert make(detail={"object": bless("/home/x")})
    with pytest.raises(EventError, match="redact"):
        make(**more)


def test_a_message_is_made_of_redacted_parts() -> None:
    assert say("{} started under {}", program_name("/bin/claude"), word("login-node")) == "claude started under login-node"
    assert len(say("{}", bless("x" * 500))) < 100
    assert "\n" not in say("{}", bless("a\nb"))
    with pytest.raises(EventError):
        say("{} x", "plain")  # type: ignore[arg-type]
    with pytest.raises(EventError):
        word("a sentence, which is none of guard's own words")
    with pytest.raises(EventError):
        Producer("m").event("setuid", "r", Severity.LOW, "plain")  # type: ignore[arg-type]


def test_a_refused_event_counts_for_nothing() -> None:
    producer = Producer("monitor", "kernel")
    with pytest.raises(EventError):
        producer.event("nonsense", "r", Severity.LOW, say("x"))  # type: ignore[arg-type]
    assert producer.event("setuid", "r", Severity.LOW, say("x")).seq == 1
    assert producer.event("setuid", "r", Severity.LOW, say("x")).seq == 2


@pytest.mark.parametrize("text", ODD)
def test_an_event_is_one_line_whatever_it_holds(text: str) -> None:
    line = make(process=Process(argv=(bless(text),)), detail={"object": bless(text)}).to_json()
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", line.decode())
    assert json.loads(line)["process"]["argv"][0] == text.encode("utf-8", "backslashreplace").decode()
    assert Event.from_json(line).to_json() == line


def test_what_a_later_version_adds_is_kept() -> None:
    whole = json.loads(make().to_json())
    whole |= {"schema": 7, "weather": {"sky": ["blue"]}, "tree": {**whole["tree"], "depth": 3}}
    read = Event.from_json(json.dumps(whole))
    assert read.extra == {"weather": {"sky": ["blue"]}}
    assert json.loads(read.to_json())["weather"] == {"sky": ["blue"]}
    del whole["mitre"], whole["tree"], whole["detail"]
    assert Event.from_json(json.dumps(whole)).tree == Tree()


@pytest.mark.parametrize(
    "change",
    [{"id": "x"}, {"severity": "grave"}, {"seq": "1"}, {"tree": []}, {"schema": None, "id": 3}, {"detail": 7}, {"seq": True}],
)
def test_what_is_no_event_is_refused_with_the_field(change: dict[str, object]) -> None:
    whole = {**json.loads(make().to_json()), **change}
    with pytest.raises(EventError, match="|".join(change) + "|severity"):
        Event.from_json(json.dumps(whole))
    for line in ("", "[]", "{", "\xff", "{}", "[" * 5000):
        with pytest.raises(EventError):
            Event.from_json(line)


def test_ids_rise_whatever_the_clock_does() -> None:
    times = iter([5_000, 5_000, 3_000, 3_000, 9_000, 1] + [2] * 5000)
    ids = Ids(lambda: next(times) * 1_000_000)
    made = [ids.new() for _ in range(5006)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {(uuid.UUID(each).version, uuid.UUID(each).variant) for each in made} == {(7, uuid.RFC_4122)}
