"""What is wrong with a fleet: silence, gaps, a weaker backend, a lost control; functions on what is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

BACKENDS: Final = ("lsm", "fmod", "tracepoint", "bcc", "poll", "none")
"""The monitor's backends, the strongest first."""

STATUSES: Final = ("enforced", "partial", "absent")
"""A control's statuses, the best first."""


MANY: Final = "many"
"""Subject of the one notice for most of a fleet."""

_MANY: Final = 20


@dataclass(frozen=True)
class Limits:
    """When something is wrong.

    Args:
        silence: heartbeats missed, as a multiple of a node's own interval; with 2.4, a node that beats every five
            minutes is silent after twelve, which leaves three for whoever looks once a minute or less.
        grace: seconds that a gap may stay open: another way, or a second try, may still bring what is missing.
    """

    silence: float = 2.4
    grace: float = 600.0


@dataclass(frozen=True)
class Gap:
    """Numbers of one producer that did not come, though later ones did.

    Args:
        host, producer: whose.
        first, last: both missing.
        noticed: seconds since 1970.
    """

    host: str
    producer: str
    first: int
    last: int
    noticed: float

    @property
    def count(self) -> int:
        """How many are missing."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class Notice:
    """Something that is, or was, wrong.

    Args:
        host: the node.
        kind: silent, gap, backend, control, sender.
        subject: what of it; with host and kind it names the notice.
        detail: what an event says of it.
        when: seconds since 1970 at which it was known.
        closed: when it ended, None while it lasts.
    """

    host: str
    kind: str
    subject: str
    detail: Mapping[str, object]
    when: float
    closed: float | None = None


@dataclass(frozen=True)
class Node:
    """What is known of a host.

    Args:
        host: its name.
        sender: who vouches for it, "" for nobody.
        first, last: seconds since 1970 at which its first and newest event were received.
        beat: when it was last alive: the newest heartbeat's own time, or its reception where that is earlier.
        every: seconds between its heartbeats, 0 before the first.
        state: version, backend, controls, feeds, lost; as the newest heartbeat has them.
    """

    host: str
    sender: str = ""
    first: float = 0.0
    last: float = 0.0
    beat: float = 0.0
    every: float = 0.0
    state: Mapping[str, object] = field(default_factory=dict)

    def heard(self, event: Mapping[str, object], sender: str, now: float) -> tuple[Node, list[Notice]]:
        """Return the node after an event, and what has changed for the worse or the better.

        Args:
            event: of this host.
            sender: who the transport says has sent it.
            now: seconds since 1970.
        """
        node = replace(self, last=max(self.last, now), sender=sender or self.sender)
        detail = event.get("detail")
        if event.get("control") != "telemetry" or event.get("origin") == "user" or not isinstance(detail, dict):
            return node, []
        # A node whose clock is ahead must not look alive for longer; one that is behind, or whose events are held up
        # on the way, looks as old as it says.
        when = min(_seconds(event.get("time")), now)
        if event.get("rule") == "heartbeat":
            if when <= self.beat:
                return node, []  # an older one, come late
            every = detail.get("every_s")
            # A node cannot say that it will be silent for a month.
            kept = min(max(float(every), 1.0), 3600.0) if isinstance(every, int | float) else 300.0
            node = replace(node, beat=when, every=kept)
        elif "backend" not in detail:
            return node, []
        state = dict(node.state)
        notices = [*_backend(node, state, detail, when), *_controls(node, state, detail, when)]
        for name in ("version", "feeds", "lost", "bytes", "position", "exempt", "suppressions"):
            if name in detail:
                state[name] = detail[name]
        return replace(node, state=state), notices


def _backend(node: Node, state: dict[str, object], detail: Mapping[str, object], when: float) -> list[Notice]:
    now = detail.get("backend")
    if not isinstance(now, str) or not now:
        return []
    before = state.get("backend")
    state["backend"] = now
    if not isinstance(before, str) or before == now:
        return []
    weaker = _rank(now) > _rank(before)
    return [Notice(node.host, "backend", now, {"before": before, "now": now, "weaker": weaker}, when)]


def _rank(backend: str) -> int:
    return BACKENDS.index(backend) if backend in BACKENDS else len(BACKENDS)


def _controls(node: Node, state: dict[str, object], detail: Mapping[str, object], when: float) -> list[Notice]:
    now = detail.get("controls")
    if not isinstance(now, dict):
        return []
    before = state.get("controls")
    state["controls"] = now
    if not isinstance(before, dict):
        return []
    notices = []
    for name, was in before.items():
        status = now.get(name, "absent")
        if status != was and isinstance(status, str):
            lost = _worse(str(was), status)
            notices.append(Notice(node.host, "control", name, {"before": was, "now": status, "lost": lost}, when))
    return notices


def _worse(before: str, now: str) -> bool:
    rank = {name: index for index, name in enumerate(STATUSES)}
    return rank.get(now, len(STATUSES)) > rank.get(before, len(STATUSES))


def judge(nodes: Iterable[Node], gaps: Iterable[Gap], now: float, limits: Limits = Limits()) -> list[Notice]:
    """Return what lasts and is wrong now: silent nodes, and gaps that nothing has filled.

    Args:
        nodes: every node.
        gaps: every gap.
        now: seconds since 1970.
        limits: when it is wrong.
    """
    notices = []
    total = 0
    for node in nodes:
        total += 1
        silent = now - node.beat
        if node.every and silent > node.every * limits.silence:
            detail = {"last": _rfc3339(node.beat), "seconds": int(silent), "every_s": int(node.every)}
            if now - node.last < node.every:
                detail["late"] = int(silent)  # its events come: they are held up, or its clock is behind
            notices.append(Notice(node.host, "silent", "", detail, now))
    if len(notices) > max(_MANY, total // 2):
        # A fleet does not fall silent node by node: one alert, not one for each.
        some = sorted(notice.host for notice in notices)[:_MANY]
        notices = [Notice("", "silent", MANY, {"nodes": len(notices), "of": total, "some": some}, now)]
    for gap in gaps:
        if now - gap.noticed > limits.grace:
            detail = {"producer": gap.producer, "first": gap.first, "last": gap.last, "missing": gap.count}
            notices.append(Notice(gap.host, "gap", f"{gap.producer} {gap.first}", detail, now))
    return notices


def _seconds(text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def _rfc3339(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
