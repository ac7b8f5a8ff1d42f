"""From accepted events to rows: what is minimised, suppressed, known already, folded; and what is told of it later.

Everything that passes here is stored, but what an exempt user does below medium. What is not to be sent is stored
quietly, with the reason: `suppressed`, `folded`, `flood`, `known`.

An exposure alerts once a fingerprint and node. The ledger of incidents needs more: a new place or a new use of a known
secret is sent too, as severity info, and so is what a site records as its baseline, with one summary at its end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

import orjson

from guard.events.budget import Budget, Finding, Summary
from guard.events.entry import Entry
from guard.events.names import Names
from guard.events.privacy import EXEMPT, Minimiser
from guard.events.producer import Ids, boot_id, rfc3339
from guard.events.settings import Settings
from guard.events.wire import Severity, table

SUPPRESSED: Final = "suppressed"
KNOWN: Final = "known"
BASELINE_QUIET_S: Final = 60.0
"""Seconds after the last exposure of a baseline until its summary."""
SAMPLE: Final = 512
"""Characters of an object that a summary shows."""
PLACES: Final = 50_000
"""Places of known secrets that are remembered; a forgotten one costs an event of severity info."""
NOT_FINDINGS: Final = frozenset({"session", "telemetry"})
"""Controls whose events are steps of a session or of guard itself: never folded."""
_OBJECT: Final = ("object_key", "object", "path", "file", "address", "host", "command")
_WITHHELD: Final = "[WITHHELD]"
_ABOUT: Final = ("host", "boot", "origin", "control", "rule", "verdict", "policy", "mitre", "tree")

Kept = list[tuple[str, str, bytes | None]]


@dataclass
class Batch:
    """What is to be stored in one transaction.

    Args:
        entries: the rows.
        kept: states that belong to them.
        lost: (stage, key) → count of what was lost on the way.
        ids: of what was taken into it.
        claimed: bytes of users' lines in it.
    """

    entries: list[Entry] = field(default_factory=list)
    kept: Kept = field(default_factory=list)
    lost: dict[tuple[str, str], int] = field(default_factory=dict)
    ids: set[bytes] = field(default_factory=set)
    claimed: int = 0

    def clear(self) -> None:
        """Begin another: this one is stored."""
        self.entries, self.kept, self.lost, self.ids = [], [], {}, set()

    def lose(self, stage: str, key: str, count: int = 1) -> None:
        """Count a loss."""
        self.lost[stage, key] = self.lost.get((stage, key), 0) + count


class Gate:
    """Judges what was accepted, in order.

    Args:
        settings: root's.
        key: for hashed paths.
        recall: (kind, key) → what was kept in the spool.
        budgets: tree → state of the budget, of an earlier process.
        names: of users and groups.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        settings: Settings,
        key: bytes,
        recall: Callable[[str, str], bytes | None],
        budgets: Mapping[str, bytes],
        names: Names,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._minimiser = Minimiser(key)
        self._recall = recall
        self._budget = Budget(settings.budget, budgets)
        self._names = names
        self._clock = clock
        self._ids = Ids(lambda: int(clock() * 1e9))
        self._exposures: dict[str, dict[str, float]] = {}
        self._places: dict[bytes, float] = {}
        # Of an earlier process too: its summary is still due.
        self._baseline: tuple[int, float, float] | None = orjson.loads(recall("baseline", "open") or b"null")
        self._counters: dict[str, int] = {}

    def judge(self, events: Iterable[dict[str, object]], batch: Batch) -> None:
        """Judge events that are not stored yet, and add what becomes of them to a batch.

        Args:
            events: JSON objects as `intake.accept` gives them; they are changed.
            batch: what is to be stored.
        """
        for whole in events:
            entry = self._one(whole, batch)
            if entry is not None:
                batch.entries.append(entry)

    def _one(self, whole: dict[str, object], batch: Batch) -> Entry | None:
        control = str(whole["control"])
        severity = Severity.of(str(whole["severity"]))
        tree, detail = table(whole, "tree"), table(whole, "detail")
        uid = tree.get("uid")
        uid = uid if isinstance(uid, int) else -1
        privacy = self._settings.privacy
        groups = self._names.groups(uid) if privacy.exempt_groups or self._settings.suppressions else frozenset[str]()
        exempt = privacy.exempts(uid, groups)
        if exempt and severity < Severity.MEDIUM and control != "telemetry":
            self._count(f"exempt {uid}", batch)
            return None
        thing = _thing(detail, table(whole, "process"))
        quiet = ""
        finding = control not in NOT_FINDINGS
        if finding:
            quiet = self._suppressed(whole, groups, thing, batch)
        keep = EXEMPT if exempt else privacy.measure(control, severity)
        self._minimiser.minimise(whole, keep, exempt)
        if finding and not quiet:
            fingerprint = detail.get("fingerprint") if control == "exposure" else None
            if control == "exposure" and detail.get("baseline") is True:
                whole["severity"] = Severity.INFO.label
                self._note_baseline(batch)
            elif isinstance(fingerprint, str) and fingerprint:
                quiet = self._exposure(whole, detail, uid, thing, batch)
            else:
                quiet = self._budget.judge(_finding(whole, severity, uid, thing), self._clock())
        return Entry(whole, quiet=quiet, renumber=True, owner=uid if whole.get("origin") == "user" else 0)

    def _suppressed(self, whole: Mapping[str, object], groups: frozenset[str], thing: str, batch: Batch) -> str:
        if not self._settings.suppressions:
            return ""
        user = str(table(whole, "tree").get("user", ""))
        process, now = table(whole, "process"), self._clock()
        program = str(process.get("exe", "")).rpartition("/")[2]
        for each in self._settings.suppressions:
            if now < each.until and each.matches(
                str(whole["control"]), str(whole["rule"]), user, groups, thing, program
            ):
                self._count(f"suppressed {each.name}", batch)
                return SUPPRESSED
        return ""

    def _exposure(
        self, whole: dict[str, object], detail: dict[str, object], uid: int, thing: str, batch: Batch
    ) -> str:
        """An exposure alerts once a fingerprint; a user's claims are known by him alone."""
        whose = f"user {uid}" if whole.get("origin") == "user" else "node"
        key = f"{whose} {str(detail.get('key_id'))[:64]} {str(detail['fingerprint'])[:128]}"
        now = self._clock()
        state = self._exposures.get(key)
        if state is None:
            kept = self._recall("exposure", key)
            state = orjson.loads(kept) if kept else None
        if state is None:
            state, quiet = {"count": 1, "first": now, "last": now}, ""
        else:
            state = {**state, "count": state["count"] + 1, "last": now}
            quiet = self._place(whole, detail, f"{key} {thing} {detail.get('context', '')}", now)
        self._exposures[key] = state
        if len(self._exposures) > 10_000:
            self._exposures.clear()
        batch.kept.append(("exposure", key, orjson.dumps(state)))
        return quiet

    def _place(self, whole: dict[str, object], detail: dict[str, object], key: str, now: float) -> str:
        """Send a new place or use of a known secret as severity info, one a window; the rest is stored quietly."""
        session = table(whole, "tree").get("session", "")
        place = sha256(f"{key} {whole.get('host')} {session}".encode("utf-8", "replace")).digest()[:12]
        sent = self._places.get(place)
        if sent is not None and now - sent < self._settings.budget.window_s:
            return KNOWN
        if len(self._places) >= PLACES:
            self._places.clear()
        self._places[place] = now
        whole["severity"] = Severity.INFO.label
        detail["known"] = True
        return ""

    def _note_baseline(self, batch: Batch) -> None:
        """Count an exposure of a baseline; `due` tells of all of them together."""
        now = self._clock()
        count, first, _ = self._baseline or (0, now, now)
        self._baseline = (count + 1, first, now)
        batch.kept.append(("baseline", "open", orjson.dumps(self._baseline)))

    def _baseline_summary(self, now: float) -> dict[str, object] | None:
        if not self._baseline or now - self._baseline[2] < BASELINE_QUIET_S:
            return None
        count, first, last = self._baseline
        self._baseline = None
        return {
            "schema": 1, "id": self._ids.new(), "time": _moment(now), "host": os.uname().nodename,
            "boot": boot_id(), "producer": "service", "seq": 0, "origin": "service", "control": "exposure",
            "rule": "baseline", "severity": Severity.LOW.label, "verdict": "observed", "policy": {}, "mitre": [],
            "tree": {}, "process": {},
            "detail": {"count": count, "first": _moment(first), "last": _moment(last)},
            "message": f"a baseline was recorded: {count} exposures that were there before",
        }  # fmt: skip

    def _count(self, name: str, batch: Batch) -> None:
        """Count what is not sent, or not stored, because root's files say so."""
        if name not in self._counters:
            kept = self._recall("counter", name)
            self._counters[name] = int(kept) if kept else 0
        self._counters[name] += 1
        batch.kept.append(("counter", name, b"%d" % self._counters[name]))

    def due(self, batch: Batch) -> None:
        """Add the summaries that are due, and the states that belong to the batch. Call it last."""
        now = self._clock()
        for summary in self._budget.due(now):
            batch.entries.append(Entry(self._summary(summary, now), renumber=True))
        baseline = self._baseline_summary(now)
        if baseline is not None:
            batch.entries.append(Entry(baseline, renumber=True))
            batch.kept.append(("baseline", "open", None))
        self.settle(batch)

    def settle(self, batch: Batch) -> None:
        """Add the states of the budget that changed."""
        batch.kept += [("budget", name, state) for name, state in self._budget.changes().items()]

    def _summary(self, summary: Summary, now: float) -> dict[str, object]:
        about = dict(summary.about)
        count = sum(summary.counts.values())
        detail: dict[str, object] = {
            "count": count,
            "first": _moment(summary.first),
            "last": _moment(summary.last),
        }
        if summary.flood:
            about |= {"control": "rates", "rule": "flood", "verdict": "observed", "mitre": []}
            detail |= {"counts": dict(summary.counts), "objects": list(summary.samples)}
            message = f"{count} more findings of {len(summary.counts)} rules in one tree"
        else:
            detail |= {"folded": True, "object": about.pop("object", "")}
            message = f"{about.get('control')}: {about.get('rule')} {count} times more"
        about.pop("object", None)
        return {
            "schema": 1,
            "id": self._ids.new(),
            "time": _moment(now),
            **about,
            "producer": "service",
            "seq": 0,
            "severity": Severity(summary.severity).label,
            "process": {"pid": 0, "ppid": 0, "exe": "", "argv": [], "argc": 0, "cwd": ""},
            "detail": detail,
            "message": message,
        }


def _moment(seconds: float) -> str:
    return rfc3339(int(seconds * 1e6) * 1000)


def _finding(whole: Mapping[str, object], severity: Severity, uid: int, thing: str) -> Finding:
    tree, detail = table(whole, "tree"), table(whole, "detail")
    session = tree.get("session") or f"pid {tree.get('root_pid')}"
    sample = detail.get("object")
    shown = sample[:SAMPLE] if isinstance(sample, str) else ""

    def about() -> Mapping[str, object]:
        return {name: whole[name] for name in _ABOUT if name in whole} | {"object": shown}

    # Whatever a tree is called: what users claim is counted apart from what the kernel or a service saw.
    name = f"{whole.get('origin')} {uid} {session}"
    return Finding(
        name, f"{whole['control']}/{whole['rule']}", sha256(thing.encode("utf-8", "replace")).hexdigest()[:16],
        int(severity), shown, about,
    )  # fmt: skip


def _thing(detail: Mapping[str, object], process: Mapping[str, object]) -> str:
    """The object of a finding: what tells it from another of the same rule."""
    for name in _OBJECT:
        value = detail.get(name)
        if isinstance(value, (str, int)) and value not in ("", _WITHHELD):
            return f"{value}:{detail['port']}" if name == "address" and "port" in detail else str(value)
    return str(process.get("exe", ""))
