"""Of a flood that one process makes: each of the first, then one for the rest, which says how many.

To make an event and to store it takes ten times as long as to take a fact. So where many facts wait, telling each would
lose others, unseen; nothing is folded where few do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from guard.monitor.facts import AnyFact, Connect, Mode

MANY = 512
"""Facts of a batch that are like each other above which they are a flood: half of the alerts' ring."""
EACH = 32
"""Of a flood, so many are told one by one."""
_UNDER = 16
_NAMES = 53


def fold(facts: Sequence[AnyFact]) -> list[AnyFact]:
    """Give a batch with the floods in it folded: what is beyond `EACH` in one fact, at the place of the last.

    Args:
        facts: in the order of time.
    """
    out: list[AnyFact | None] = list(facts)
    alike: dict[tuple[object, ...], list[int]] = {}
    for at, fact in enumerate(facts):
        if kind := _kind(fact):
            alike.setdefault(kind, []).append(at)
    for places in alike.values():
        if len(places) <= MANY:
            continue
        under: dict[bytes, None] = {}
        for at in places[EACH:]:
            last, out[at] = out[at], None
            if isinstance(last, Mode) and len(under) < _UNDER:
                under[os.path.dirname(last.path)] = None
        more = len(places) - EACH - 1
        if isinstance(last, Mode):
            out[places[-1]] = replace(last, more=more, under=tuple(under))
        elif isinstance(last, Connect):
            out[places[-1]] = replace(last, more=more)
    return [fact for fact in out if fact is not None]


def _kind(fact: AnyFact) -> tuple[object, ...]:
    """What facts that are alike have in common: rules say the same of them; () of what is never folded."""
    if isinstance(fact, Mode):
        return (fact.who.pid, fact.who.start, fact.mode, fact.before, fact.by, fact.verdict, fact.io_uring)
    if isinstance(fact, Connect):
        return (fact.who.pid, fact.who.start, fact.private, fact.port == _NAMES)
    return ()
