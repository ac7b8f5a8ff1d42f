"""An answer to "may a session do this?", and the words that every answer is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from guard.confine.explain.session import Entry

ALLOWED, DENIED, REWRITTEN, OBSERVED = "allowed", "denied", "rewritten", "observed"


@dataclass(frozen=True)
class Answer:
    """What happens when a session does this.

    Args:
        verdict: `allowed`, `denied`, `rewritten` (done in another way), `observed` (done, and on record as what
            would be denied).
        control: whose promise it is.
        why: one sentence.
        layer: what holds it here; "" where nothing needs to.
        entry: the deciding line of the policy; None where none decides.
        unseen: what that layer cannot see or hold here; "" for nothing.
        widen: key → entries or word of an exception that would allow it; tried before it is proposed.
        real: the path or address that was judged.
    """

    verdict: str
    control: str
    why: str
    layer: str = ""
    entry: Entry | None = None
    unseen: str = ""
    widen: Mapping[str, object] = field(default_factory=dict)
    real: str = ""


class UnfitError(Exception):
    """The act is not one that can be asked about; the text says why."""
