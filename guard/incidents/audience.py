"""Who could read an exposed secret: the words, from the narrowest to the widest."""

from __future__ import annotations

from typing import Final

OWNER: Final = "owner"
GROUP: Final = "group"
UNKNOWN: Final = "unknown"
NODE: Final = "node"
OFF_SITE: Final = "off-site"
PUSHED: Final = "pushed"

AUDIENCES: Final = (OWNER, GROUP, UNKNOWN, NODE, OFF_SITE, PUSHED)
"""From the narrowest to the widest. What nobody found out ranks above a group: it may be worse."""

WORDS: Final = {
    OWNER: "the owner alone",
    GROUP: "a group",
    UNKNOWN: "not known",
    NODE: "everyone on the node",
    OFF_SITE: "sent off-site",
    PUSHED: "pushed to a repository",
}


def widest(*audiences: str) -> str:
    """Return the widest of some audiences; an unknown word counts as `unknown`."""
    return max((a if a in AUDIENCES else UNKNOWN for a in audiences), key=AUDIENCES.index, default=UNKNOWN)
