"""The event that says that a node is alive, and where its stream stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from guard import __version__
from guard.events.model import Detail, Event, Severity, say, word
from guard.events.producer import Producer


@dataclass(frozen=True)
class Beat:
    """What the service knows when a heartbeat is due.

    Args:
        every_s: seconds until the next.
        position: of the newest row.
        chain: the chain's digest there, hex: off the node it shows later whether the spool was changed.
        accepted: events taken since the service began.
        lost: events lost since the spool began, all stages.
        bytes: stored.
        exempt: how many users and groups are exempt.
        suppressed: how many suppressions act.
    """

    every_s: int
    position: int
    chain: str
    accepted: int
    lost: int
    bytes: int
    exempt: int
    suppressed: int


def heartbeat(producer: Producer, beat: Beat, more: Mapping[str, Detail] | None = None) -> Event:
    """Make the heartbeat.

    Args:
        producer: the service's.
        beat: what it knows.
        more: what others add to `detail`: the monitor's backend, the status of controls.
    """
    detail: dict[str, Detail] = {
        "every_s": beat.every_s,
        "version": word(__version__),
        "position": beat.position,
        "chain": word(beat.chain),
        "accepted": beat.accepted,
        "lost": beat.lost,
        "bytes": beat.bytes,
        "exempt": beat.exempt,
        "suppressions": beat.suppressed,
        **(more or {}),
    }
    return producer.event("telemetry", "heartbeat", Severity.INFO, say("this node's events are kept"), detail=detail)
