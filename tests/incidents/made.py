"""Events for tests of incidents: exposures with chosen times and places, and a ledger with a clock that stands."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterable
from pathlib import Path

from guard.events.producer import rfc3339
from guard.incidents.desk import Desk
from guard.incidents.ledger import Ledger, Received
from guard.incidents.settings import DAY, Settings
from guard.incidents.workflow import Incident, assess

T0 = 1_780_000_000_000_000
"""Midday of some day, µs since 1970."""
_numbers = itertools.count(1)


def fingerprint(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def event(control: str, rule: str, at: int = T0, **more: object) -> dict[str, object]:
    tail = f"{random.Random(next(_numbers)).getrandbits(74):019x}"
    digits = f"{at // 1000:012x}7{tail[:3]}8{tail[4:]}"
    return {
        "schema": 1, "id": "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])),
        "time": rfc3339(at * 1000), "host": "login1", "boot": "b", "producer": "monitor", "seq": next(_numbers),
        "origin": "service", "control": control, "rule": rule, "severity": "high", "verdict": "observed",
        "policy": {}, "mitre": [], "tree": {"uid": 1001, "user": "alice"}, "process": {}, "detail": {}, "message": rule,
        **more,
    }  # fmt: skip


def exposure(key: str, at: int = T0, *, source: str = "argv", path: str = "/usr/bin/curl", **detail: object) -> dict[str, object]:
    """An exposure of the secret called `key`; its top-level fields are set by names beginning with `at_`."""
    top = {name.removeprefix("at_"): detail.pop(name) for name in list(detail) if name.startswith("at_")}
    whole = {
        "key_id": "site-0123456789ab", "fingerprint": fingerprint(key), "kind": "github-token", "incident": True,
        "source": source, "file": path, "length": 40, "audience": "owner", **detail,
    }  # fmt: skip
    return event("exposure", "secret", at, detail=whole, **top)


def received(*events: dict[str, object], at: int | None = None) -> list[Received]:
    """Events that the site received when they happened, or all at one time."""
    from guard.incidents.exposure import microseconds

    return [Received(e, microseconds(e["time"]) if at is None else at) for e in events]


class Site:
    """A ledger of a test with a clock that stands until it is moved."""

    def __init__(self, folder: Path, settings: Settings | None = None, name: str = "ledger.db") -> None:
        self.now = T0
        self.settings = settings or Settings()
        self.sent: list[object] = []
        self.ledger = Ledger(str(folder / name), clock=lambda: self.now / 1e6)
        self.desk = Desk(self.ledger, self.settings, "infosec", self.sent.extend, host="site")

    def fold(self, *events: dict[str, object], at: int | None = None) -> None:
        self.ledger.fold(received(*events, at=at))

    def days(self, number: float) -> None:
        self.now += int(number * DAY)

    def one(self, key: str) -> Incident:
        secret = self.ledger.named([("site-0123456789ab", fingerprint(key))])
        assert secret is not None
        return assess(secret, self.settings, self.now)

    def all(self) -> list[Incident]:
        return [assess(secret, self.settings, self.now) for secret in self.ledger.secrets()]

    def dump(self) -> list[tuple[object, ...]]:
        """Everything that does not depend on the order of rows and numbers."""
        return _plain(self.ledger.secrets()) + [
            row for table in ("tally", "gauge", "loss", "status", "change")
            for row in self.ledger.database.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4")
        ]  # fmt: skip


def _plain(secrets: Iterable[object]) -> list[tuple[object, ...]]:
    from dataclasses import asdict

    rows = []
    for secret in secrets:
        whole = asdict(secret)  # type: ignore[call-overload]
        rows.append(
            (secret.id, secret.names, [{**s, "alias": 0} for s in whole["sightings"]], whole["actions"])  # type: ignore[attr-defined]
        )
    return rows
