"""A seeded month of a site: folded into the ledger, reported, and compared with what the generator counted itself.

    bench/month.py [--nodes 1740] [--users 1600] [--agents 300] [--days 30] [--seed 1]

The rates are the measured site's (docs/why.md): 127 exposed keys in three weeks, agents at 20.8 times the human rate
of commands, 55.8 % of submissions. The peer in the same run is a bare insert of the same lines into SQLite.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import resource
import sqlite3
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

START = 1_767_225_600  # 2026-01-01T00:00:00Z
KEYS_A_DAY = 127 / 21
HUMAN_COMMANDS_A_DAY = 22
RATIO = 20.8
KINDS = ("github-token", "aws-access-key", "openai-key", "private-key", "slack-token", "generic-key")
HARNESSES = ("claude", "codex", "cursor", "copilot")
SOURCES = (("argv", "node"), ("history", "owner"), ("transcript", "off-site"), ("file", "group"), ("trace", "unknown"))


@dataclass
class Expected:
    """What a right report must say, counted while the events are made."""

    events: int = 0
    keys: set[str] = field(default_factory=set)
    by_kind: Counter[str] = field(default_factory=Counter)
    acts: Counter[tuple[str, str]] = field(default_factory=Counter)
    agent: int = 0
    other: int = 0
    polls: int = 0
    jobs: int = 0
    lost: int = 0
    unwrapped: int = 0


class Month:
    """Makes the events of a month.

    Args:
        nodes, users, agents, days: how many of each; the first `agents` users have agents.
        seed: the same seed makes the same month.
    """

    def __init__(self, nodes: int = 1740, users: int = 1600, agents: int = 300, days: int = 30, seed: int = 1) -> None:
        self.nodes, self.users, self.agents, self.days = nodes, users, agents, days
        self.expected = Expected()
        self._agents: dict[int, Counter[str]] = defaultdict(Counter)
        self._random = random.Random(seed)
        self._made = 0

    def events(self) -> Iterator[dict[str, object]]:
        """Yield the events in the order of time, a day at once."""
        for day in range(self.days):
            whole = [*self._trees(day), *self._hours(day), *self._keys(day), *self._acts(day)]
            whole.sort(key=lambda event: str(event["time"]))
            self.expected.events += len(whole)
            yield from whole

    def _event(
        self, second: float, host: int, control: str, rule: str, severity: str, **more: object
    ) -> dict[str, object]:
        moment = START + second
        self._made += 1
        milliseconds = int(moment * 1000)
        tail = f"{self._made:019x}"
        id_ = f"{milliseconds:012x}7{tail[:3]}8{tail[4:]}"
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{self._made % 1_000_000:06d}Z"
        return {
            "schema": 1, "id": f"{id_[:8]}-{id_[8:12]}-{id_[12:16]}-{id_[16:20]}-{id_[20:]}", "time": whole,
            "host": f"node{host:04d}", "boot": "b", "producer": "monitor", "seq": self._made, "origin": "service",
            "control": control, "rule": rule, "severity": severity, "verdict": "observed", "policy": {}, "mitre": [],
            "tree": {}, "process": {}, "detail": {}, "message": rule, **more,
        }  # fmt: skip

    def _tree(self, user: int) -> dict[str, object]:
        return {"session": f"s{user}", "harness": HARNESSES[user % len(HARNESSES)], "root_pid": 100 + user,
                "uid": 10_000 + user, "user": f"user{user:04d}"}  # fmt: skip

    def _hours(self, day: int) -> Iterator[dict[str, object]]:
        """Commands of everybody, counted by each node's monitor, an event an hour."""
        whole = HUMAN_COMMANDS_A_DAY * self.users / self.nodes / 24
        for node in range(self.nodes):
            for hour in range(24):
                count = int(self._random.expovariate(1) * whole)
                self.expected.other += count
                agents = self._agents.pop(node, {}) if hour == 23 else {}
                detail = {"execs": count, "scheduler": count // 30, "seconds": 3600.0, **agents}
                yield self._event(
                    day * 86400 + hour * 3600 + 3599, node, "telemetry", "executions", "info", detail=detail
                )
        if day % 7 == 3:
            self.expected.lost += 17
            yield self._event(day * 86400 + 5, 0, "telemetry", "loss", "low", detail={"count": 17, "stage": "ring"})

    def _keys(self, day: int) -> Iterator[dict[str, object]]:
        """New keys, each seen in one to twenty places over the rest of its day."""
        for _ in range(round(self._random.gauss(KEYS_A_DAY, KEYS_A_DAY**0.5))):
            user = self._random.randrange(self.agents)
            kind = self._random.choice(KINDS)
            fingerprint = hashlib.sha256(f"{day}.{self._random.random()}".encode()).hexdigest()
            self.expected.keys.add(fingerprint)
            self.expected.by_kind[kind] += 1
            for place in range(self._random.randint(1, 20)):
                source, audience = SOURCES[place % len(SOURCES)]
                detail = {
                    "key_id": "site-0123456789ab", "fingerprint": fingerprint, "kind": kind, "incident": True,
                    "source": source, "file": f"/home/user{user:04d}/f{place}", "line": place, "length": 40,
                    "audience": audience,
                }  # fmt: skip
                second = day * 86400 + self._random.randrange(86400)
                yield self._event(second, self._random.randrange(self.nodes), "exposure", "exposed-secret", "high",
                                  tree=self._tree(user), detail=detail)  # fmt: skip

    def _acts(self, day: int) -> Iterator[dict[str, object]]:
        for control, rule, a_day in (("world-writable", "world-writable", 2.2), ("pipe-to-shell", "pipe-to-shell", 0.7),
                                     ("bind", "bind", 1.1)):  # fmt: skip
            for _ in range(round(a_day * self.agents)):
                user = self._random.randrange(self.agents)
                verdict = self._random.choice(("observed", "denied", "rewritten", "would_deny"))
                count = self._random.choice((1, 1, 1, 40))
                self.expected.acts[control, verdict] += count
                yield self._event(
                    day * 86400 + self._random.randrange(86400), self._random.randrange(self.nodes), control, rule,
                    "medium", verdict=verdict, tree=self._tree(user), detail={"count": count},
                )  # fmt: skip

    def _trees(self, day: int) -> Iterator[dict[str, object]]:
        """A session a day of each user with an agent; its commands are counted by the node's monitor, too."""
        for user in range(self.agents):
            node, second = self._random.randrange(self.nodes), day * 86400 + self._random.randrange(80_000)
            execs = int(self._random.expovariate(1) * HUMAN_COMMANDS_A_DAY * RATIO)
            polls, jobs = execs // 9, execs // 40
            e = self.expected
            e.agent, e.polls, e.jobs = e.agent + execs, e.polls + polls, e.jobs + jobs
            self._agents[node].update(agents_execs=execs, agents_polls=polls, agents_submissions=jobs)
            yield self._event(second, node, "session", "tree-start", "info", tree=self._tree(user))
            yield self._event(second + 6000, node, "session", "tree-stop", "info", tree=self._tree(user),
                              detail={"execs": execs, "polls": polls, "submissions": jobs})  # fmt: skip
            if self._random.random() < 0.8:
                yield self._event(second + 1, node, "session", "session-start", "info", tree=self._tree(user))
            else:
                self.expected.unwrapped += 1
                yield self._event(second + 1, node, "harness", "unwrapped-agent", "low", tree=self._tree(user))


def main() -> int:
    """Fold a month, report it, and print what both took and whether the numbers agree."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("nodes", 1740), ("users", 1600), ("agents", 300), ("days", 30), ("seed", 1)):
        options.add_argument(f"--{name}", type=int, default=default)
    given = options.parse_args()
    from guard.incidents.ledger import Ledger, Received, decode
    from guard.incidents.report import figures, html, layout
    from guard.incidents.settings import Settings

    with tempfile.TemporaryDirectory() as folder:
        month = Month(**vars(given))
        lines = Path(folder, "events.jsonl")
        with lines.open("w", encoding="utf-8") as out:
            out.writelines(json.dumps(event) + "\n" for event in month.events())
        expected = month.expected
        end = START + given.days * 86400

        began = time.perf_counter()
        bare = sqlite3.connect(f"{folder}/bare.db")
        bare.execute("PRAGMA journal_mode = WAL")
        bare.execute("CREATE TABLE e (id TEXT PRIMARY KEY, line TEXT) WITHOUT ROWID")
        with lines.open("rb") as source:
            for block in iter(lambda: [line for _, line in zip(range(5000), source, strict=False)], []):
                with bare:
                    bare.executemany("INSERT OR IGNORE INTO e VALUES (?, ?)", ((json.loads(x)["id"], x) for x in block))
        peer = time.perf_counter() - began

        with Ledger(f"{folder}/ledger.db", clock=lambda: float(end)) as ledger, lines.open("rb") as source:
            began = time.perf_counter()
            folded = ledger.fold(Received(decode(line), int(_seconds(line) * 1e6)) for line in source)
            fold = time.perf_counter() - began
            began = time.perf_counter()
            found = figures.gather(ledger, Settings(), {}, START * 1_000_000, end * 1_000_000)
            page = html.render(layout.page(found, ledger.now()))
            report = time.perf_counter() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rate = folded.taken / fold
        print(f"events        {folded.taken:>12,}")
        print(
            f"fold          {rate:>12,.0f} events/s   (bare SQLite insert of the same lines {folded.taken / peer:,.0f})"
        )
        print(f"report        {report:>12.2f} s, {len(page) / 1024:,.0f} KiB of HTML")
        print(f"peak memory   {memory:>12.0f} MiB")
        wrong = list(differences(found, expected))
        for line in wrong:
            print(f"DIFFERS       {line}")
        print("numbers       agree with the generator's own" if not wrong else "numbers       DIFFER")
        return 1 if wrong else 0


def _seconds(line: bytes) -> float:
    at = line.index(b'"id": "') + 7
    return int(line[at : at + 8] + line[at + 9 : at + 13], 16) / 1000


def differences(found: object, expected: Expected) -> Iterator[str]:
    """Yield what a report says otherwise than its generator counted."""
    from guard.incidents.report.figures import ACTS, Figures

    assert isinstance(found, Figures)
    pairs: dict[str, tuple[object, object]] = {
        "new keys": (found.keys.new, len(expected.keys)),
        "agent commands": (found.commands.agent, expected.agent),
        "other commands": (found.commands.other, expected.other),
        "polls": (found.commands.polls, expected.polls),
        "jobs": (found.commands.jobs, expected.jobs),
        "lost": (sum(row.values[0] for row in found.losses), expected.lost),
        "unwrapped": (sum(row.values[3] for row in found.coverage), expected.unwrapped),
    }
    kinds = {row.name: row.values[0] for row in found.keys.by["kind"]}
    pairs |= {f"new {kind}": (kinds.get(kind, 0), n) for kind, n in expected.by_kind.items()}
    for row in found.acts:
        control = next(c for c, name in ACTS.items() if name == row.name)
        count = expected.acts
        pairs[control] = (row.values, (float(count[control, "observed"]), float(count[control, "would_deny"]),
                                       float(count[control, "denied"] + count[control, "rewritten"])))  # fmt: skip
    for name, (got, wanted) in pairs.items():
        if got != wanted:
            yield f"{name}: {got}, not {wanted}"


if __name__ == "__main__":
    sys.exit(main())
