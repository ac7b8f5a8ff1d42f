"""Which ATT&CK technique (attack.mitre.org, v15) a finding belongs to, where its producer names none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BY_CONTROL: Final[Mapping[str, tuple[str, ...]]] = {
    "files": ("T1005",),
    "metadata": ("T1222.002",),
    "world-writable": ("T1222.002",),
    "setuid": ("T1548.001",),
    "bind": ("T1571",),
    "connect": ("T1071",),
    "unix-sockets": ("T1559",),
    "pipe-to-shell": ("T1059.004", "T1105"),
    "processes": ("T1055",),
    "kernel-surface": ("T1068",),
    "limits": ("T1499",),
    "hand-off": ("T1053",),
    "exposure": ("T1552.001",),
    "harness": ("T1562.001",),
}
BY_RULE: Final[Mapping[str, tuple[str, ...]]] = {
    "ptrace": ("T1055.008",),
    "ssh": ("T1021.004",),
    "crontab": ("T1053.003",),
    "at": ("T1053.002",),
    "systemd-run": ("T1053.006",),
    "metadata-server": ("T1552.005",),
}
"""Rules that are narrower than their control."""


def techniques(control: str, rule: str) -> tuple[str, ...]:
    """The ids for a finding; none for the steps of a session and for telemetry."""
    return BY_RULE.get(rule) or BY_CONTROL.get(control, ())
