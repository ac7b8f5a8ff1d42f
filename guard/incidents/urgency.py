"""What comes first: kind times audience times age."""

from __future__ import annotations

from typing import Final

from guard.incidents.audience import AUDIENCES, NODE, OFF_SITE, OWNER, PUSHED, UNKNOWN

CRITICAL: Final = 1_000.0
"""A honeytoken's priority: above everything else, whatever its age."""

_WORST: Final = (
    "private-key", "aws", "gcp", "google", "azure", "github", "gitlab", "openai", "anthropic", "slurm", "munge",
    "kerberos",
)  # fmt: skip
"""Kinds beginning with these open a whole account, a cluster, or a bill."""

_LEAST: Final = (
    "password", "url-password", "basic-auth", "cookie", "signature", "crypt-hash", "secret", "token", "generic",
)  # fmt: skip
"""Kinds that only their surroundings tell: what they open is not known."""

AUDIENCE_WEIGHT: Final = {OWNER: 1.0, "group": 2.0, UNKNOWN: 2.5, NODE: 4.0, OFF_SITE: 5.0, PUSHED: 6.0}
assert set(AUDIENCE_WEIGHT) == set(AUDIENCES)  # noqa: S101 - the two tables belong together


def kind_weight(kind: str) -> float:
    """Return how much a kind of secret can open: 1 to 3."""
    if kind in _LEAST:
        return 1.0
    return 3.0 if kind.startswith(_WORST) else 2.0


def priority(kind: str, audience: str, age: float, *, honeytoken: bool = False) -> float:
    """Return an incident's priority; larger is more urgent.

    Args:
        kind: the rule's kind.
        audience: one of `audience.AUDIENCES`.
        age: days since the site received it.
        honeytoken: a bait: somebody who looked for keys has used it.
    """
    if honeytoken:
        return CRITICAL
    return round(kind_weight(kind) * AUDIENCE_WEIGHT[audience] * (1 + min(max(age, 0.0), 28.0) / 7), 2)
