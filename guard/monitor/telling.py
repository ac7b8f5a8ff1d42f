"""What is to become an event: a finding with the tree and process that it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from guard.monitor.exposure import Exposure
from guard.monitor.facts import Process
from guard.monitor.findings import NOTHING, Finding, Image, Scalar
from guard.monitor.lineage import Tree
from guard.monitor.rules.service import SAYINGS


@dataclass(frozen=True)
class Told:
    """What is to become an event.

    Args:
        finding: it.
        tree: as it stood then, None for none.
        image: what the process runs.
        who: the process, None for what the monitor says of itself.
        exposure: of an exposure.
        when: nanoseconds since boot, 0 for now.
    """

    finding: Finding
    tree: Tree | None = None
    image: Image = NOTHING
    who: Process | None = None
    exposure: Exposure | None = None
    when: int = 0


def say(
    rule: str, message: str, detail: Mapping[str, Scalar], severity: str = "", *, tree: Tree | None = None,
    image: Image = NOTHING, who: Process | None = None, exposure: Exposure | None = None, when: int = 0,
) -> Told:  # fmt: skip
    """Return what the monitor says by a row of `SAYINGS`."""
    row = SAYINGS[rule]
    finding = Finding(
        rule, row.control, severity or row.severity, "observed", row.mitre, message, detail, rule,
        who.pid if who else 0, who.start if who else 0,
    )  # fmt: skip
    return Told(finding, tree, image, who, exposure, when)
