"""Prometheus metrics (text format 0.0.4): counts alone, never a user, a path, a session or an argument."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from guard.monitor.source import Stats

Values = Iterable[tuple[Mapping[str, str], float]]


@dataclass(frozen=True)
class Numbers:
    """What is told.

    Args:
        backend: its name.
        full: whether all that it can see is seen.
        trees: how many.
        findings: rule → how many.
        stats: of the source.
        lost: stage → how many, beyond the source's.
        waiting: events that are not handed on; `served`: the events service takes them.
        cost: share of one processor.
    """

    backend: str
    full: bool
    trees: int
    findings: Mapping[str, int]
    stats: Stats
    lost: Mapping[str, int]
    waiting: int
    served: bool
    cost: float


def render(now: Numbers) -> str:
    """Write all families."""
    stats = now.stats
    seconds = {name: nanoseconds / 1e9 for name, nanoseconds in stats.run_ns.items()}
    rows: tuple[tuple[str, str, str, Values], ...] = (
        ("info", "gauge", "The backend in use.", [({"backend": now.backend}, 1)]),
        ("coverage_full", "gauge", "Whether all that this backend can see is seen.", _one(float(now.full))),
        ("trees", "gauge", "Agents' trees.", _one(now.trees)),
        ("processes", "gauge", "Processes in trees.", _one(stats.labelled)),
        ("findings_total", "counter", "Findings, by rule.", _each("rule", now.findings)),
        ("facts_total", "counter", "Facts that the kernel offered, by kind.", _each("kind", stats.emitted)),
        ("lost_total", "counter", "Facts and events lost, by stage.", _each("stage", {**stats.lost, **now.lost})),
        ("unlabelled_execs_total", "counter", "Programs started in no tree.", _one(stats.unlabelled_execs)),
        ("unlabelled_scheduler_total", "counter", "Of them, scheduler commands.", _one(stats.unlabelled_scheduler)),
        ("events_waiting", "gauge", "Events that are not handed on.", _one(now.waiting)),
        ("served", "gauge", "Whether the events service takes them.", _one(float(now.served))),
        ("cost_ratio", "gauge", "Share of one processor in the last ten seconds.", _one(now.cost)),
        ("program_seconds_total", "counter", "Time in the kernel's programs.", _each("program", seconds)),
        ("program_runs_total", "counter", "Runs of the kernel's programs.", _each("program", stats.run_count)),
        ("resident_bytes", "gauge", "Memory of the monitor.", _one(_resident())),
    )
    return "".join(family(*row) for row in rows)


def family(name: str, kind: str, says: str, values: Values) -> str:
    """Write one family of metrics.

    Args:
        name: without the prefix `guard_monitor_`.
        kind: counter or gauge.
        says: one line of help.
        values: (labels, value).
    """
    full = f"guard_monitor_{name}"
    lines = [f"# HELP {full} {says}", f"# TYPE {full} {kind}"]
    for labels, value in values:
        told = ",".join(f'{key}="{_escape(each)}"' for key, each in sorted(labels.items()))
        number = str(int(value)) if value == int(value) else repr(float(value))
        lines.append(f"{full}{{{told}}} {number}" if told else f"{full} {number}")
    return "\n".join(lines) + "\n"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _one(value: float) -> Values:
    return [({}, value)]


def _each(label: str, counts: Mapping[str, float]) -> Values:
    return [({label: name}, count) for name, count in sorted(counts.items())]


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
