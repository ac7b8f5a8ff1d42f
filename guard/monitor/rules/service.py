"""What the monitor says of trees, of exposures and of itself: no fact of the kernel's, but rules all the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Saying:
    """One row.

    Args:
        control, severity, mitre: as in events; the site may change the severity.
        says: one sentence: what it tells.
    """

    control: str
    severity: str
    says: str
    mitre: tuple[str, ...] = ()


SAYINGS: Mapping[str, Saying] = {
    "tree-start": Saying("session", "info", "An agent's tree began, or was found when the monitor started."),
    "tree-stop": Saying("session", "info", "The last process of an agent's tree ended."),
    "unwrapped-agent": Saying("harness", "low", "An agent runs without `guard run`."),
    "exposed-secret": Saying("exposure", "high", "A secret stands in the arguments of a program.", ("T1552",)),
    "monitor-start": Saying("telemetry", "info", "The monitor started: its backend, and what that cannot see."),
    "monitor-stop": Saying("telemetry", "info", "The monitor was stopped."),
    "monitor-gap": Saying("telemetry", "low", "Nobody watched from one time to another; flows begun then are unknown."),
    "backend-worse": Saying(
        "telemetry", "medium", "The backend, or one of its controls, is worse than at the last start."
    ),
    "coverage": Saying("telemetry", "info", "The backend sees more or less than before."),
    "coverage-lost": Saying("telemetry", "medium", "A program fell off, or the site's cap on cost detached it."),
    "loss": Saying("telemetry", "low", "Facts were lost, with how many and at which stage."),
    "settings": Saying(
        "telemetry", "medium", "The site's monitor.toml does not load; the last good one stays in force."
    ),
    "switch": Saying("telemetry", "high", "Root switched guard off on this node, or on again; off, nothing is denied."),
    "executions": Saying("telemetry", "info", "Programs started in an hour, in trees and outside: numbers to add up."),
    "redactor-down": Saying("telemetry", "medium", "Arguments could not be redacted, and were dropped."),
}
"""Rule → what it tells."""
