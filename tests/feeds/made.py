"""Events for tests of feeds, as several producers of one or more hosts make them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from guard.events.model import Event, say
from guard.events.producer import Producer
from guard.events.wire import Severity


def events(count: int, producers: int = 8, host: str = "", *, severity: Severity = Severity.INFO) -> Iterator[Event]:
    """Events in turns by producers p0, p1 and so on."""
    made = [Producer(f"p{number}", host=host) for number in range(producers)]
    for number in range(count):
        yield made[number % producers].event("telemetry", "load.test", severity, say("event {}", number))


def write(path: Path, made: Iterable[Event]) -> list[str]:
    """Write events as JSON lines; returns their ids."""
    ids = []
    with path.open("wb") as file:
        for event in made:
            ids.append(event.id)
            file.write(event.to_json() + b"\n")
    return ids


def ids(lines: Iterable[bytes]) -> list[str]:
    return [json.loads(line)["id"] for line in lines]


def gaps(lines: Iterable[bytes]) -> int:
    """Numbers missing between the first and the last `seq` of each host and producer."""
    seen: dict[tuple[str, str], set[int]] = defaultdict(set)
    for line in lines:
        event = json.loads(line)
        seen[event["host"], event["producer"]].add(event["seq"])
    return sum(max(each) - min(each) + 1 - len(each) for each in seen.values())


def twice(found: Iterable[str]) -> int:
    return sum(count - 1 for count in Counter(found).values())
