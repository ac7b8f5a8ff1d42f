"""What one user may see of another: decided here and nowhere else.

Root and the members of the groups that root's `events.toml` names as readers see all events; everybody else sees
those that speak of himself. Seeing others' is itself an event.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import orjson

from guard.events.model import Event, Severity, Tree, say, word
from guard.events.peers import Peer
from guard.events.producer import Producer
from guard.events.query import Query
from guard.redact import redact_text


@dataclass(frozen=True)
class Scope:
    """What somebody may see.

    Args:
        uid: only events about this user; None for all.
        recorded: whether the look is to be recorded.
    """

    uid: int | None
    recorded: bool


def scope(peer: Peer, readers: Collection[int], owner: int, wanted: int | None = None) -> Scope:
    """Decide what a peer may see.

    Args:
        peer: who asks.
        readers: numbers of the groups whose members may see all.
        owner: the uid the service runs as.
        wanted: the user whose events are asked for; None for all that may be seen.
    """
    everything = peer.is_root or (not peer.inside and bool(peer.groups & set(readers)))
    if owner and peer.uid == owner:
        return Scope(None, False)  # a user's own service holds nobody else's
    if not everything:
        return Scope(peer.uid, False)
    return Scope(wanted, wanted != peer.uid)


def record(producer: Producer, peer: Peer, user: str, query: Query) -> Event:
    """Make the event that says that somebody looked at others' events.

    Args:
        producer: the service's reader.
        peer: who looked.
        user: that one's name.
        query: what was asked for.
    """
    wanted = {name: value for name, value in query.plain().items() if value not in ("", 0, False)}
    return producer.event(
        "telemetry", "events-read", Severity.INFO, say("events of others were read"),
        tree=Tree(uid=peer.uid, user=user),
        detail={"wanted": redact_text(orjson.dumps(wanted).decode()), "by": word(f"uid {peer.uid}")},
    )  # fmt: skip
