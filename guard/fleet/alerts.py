"""What was judged, as events in the site's own spool, from where the site's feeds take them."""

from __future__ import annotations

from guard.events.model import Event, say
from guard.events.producer import Producer
from guard.events.wire import Severity
from guard.feeds.telling import Teller, redacted
from guard.fleet.judge import MANY, Limits, Notice, judge
from guard.fleet.store import Store
from guard.redact import Redacted, redact_text


def tell(store: Store, teller: Teller, now: float, limits: Limits = Limits()) -> tuple[int, str]:  # noqa: B008
    """Judge the fleet and put on record what is new: each alert once, and its end.

    Args:
        store: the site's.
        teller: puts events on record.
        now: seconds since 1970.
        limits: when something is wrong.

    Returns:
        How many events were made, and "" or why not all could be put on record (they are tried again next time).
    """
    store.settle(judge(store.nodes(), store.gaps(), now, limits), now)
    made: list[tuple[int, Event]] = []
    for number, notice, kept in store.untold():
        event = Event.from_json(kept) if kept else _event(teller.producer, notice)
        if not kept:
            store.made(number, event.to_json())
        made.append((number, event))
    if made and (problem := teller.put(*(event for _, event in made))):
        return 0, problem
    for number, _ in made:
        store.told(number)
    return len(made), ""


def _event(producer: Producer, notice: Notice) -> Event:
    severity, message = _said(notice)
    detail = {"node": notice.host, **notice.detail}
    if notice.closed is not None:
        detail["closed"] = True
    return producer.event(
        "telemetry",
        f"fleet.{notice.kind}",
        severity,
        message,
        detail={name: redacted(value) for name, value in detail.items()},
        when=int((notice.closed or notice.when) * 1e9),
    )


def _said(notice: Notice) -> tuple[Severity, Redacted]:
    host = redact_text(notice.host[:40], "text")
    detail = notice.detail
    if notice.closed is not None:
        if notice.subject == MANY:
            return Severity.INFO, say("most nodes are heard again")
        what = {"silent": "{} is heard again", "gap": "{}: a gap in its events was filled"}
        return Severity.INFO, say(what.get(notice.kind, "{}: over"), host)
    if notice.kind == "silent" and notice.subject == MANY:
        nodes, total = detail.get("nodes"), detail.get("of")
        counts = [each if isinstance(each, int) else 0 for each in (nodes, total)]
        return Severity.CRITICAL, say("{} of {} nodes are silent: the way to them, or the site itself?", *counts)
    if notice.kind == "silent":
        seconds = detail.get("seconds")
        late = "{}: no fresh heartbeat for {} s, its events come late" if "late" in detail else "{} is silent for {} s"
        return Severity.HIGH, say(late, host, seconds if isinstance(seconds, int) else 0)
    if notice.kind == "gap":
        missing = detail.get("missing")
        return Severity.MEDIUM, say("{}: {} events are missing", host, missing if isinstance(missing, int) else 0)
    if notice.kind == "backend":
        severity = Severity.HIGH if detail.get("weaker") else Severity.INFO
        return severity, say("{}: the monitor went from {} to {}", host, *(_word(detail, n) for n in ("before", "now")))
    if notice.kind == "control":
        severity = Severity.HIGH if detail.get("lost") else Severity.INFO
        name = redact_text(notice.subject[:20], "text")
        return severity, say("{}: {} was {}, is {}", host, name, *(_word(detail, n) for n in ("before", "now")))
    return Severity.HIGH, say("{} speaks for {}", redact_text(notice.subject[:40], "text"), host)


def _word(detail: object, name: str) -> Redacted:
    value = detail.get(name) if isinstance(detail, dict) else ""
    return redact_text(str(value)[:20], "text")
