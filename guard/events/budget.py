"""What of the findings is sent: repetitions are folded, floods are summed up, and nothing new is folded away.

Findings of one rule, tree and object are one story: the first is sent at once, what follows is counted and told
with count, first and last after a window, and then at growing distances. A rule that tells more new objects of one
tree in an hour than its budget floods: the rest is counted, by rule, and told by one `flood` event of the tree. The
budget is each rule's own, and new objects have their own part of it: neither another rule nor an object that
repeats itself takes it away. Everything folded is stored; it is not sent.

However long and however fast a tree goes on with one rule, a day has at most ten events of it (`DEFAULT`): four
new objects in the first hour that has too many and one after a relapse, two summaries, two floods, and what is left
at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import orjson

DAY: Final = 86400
HOUR: Final = 3600
SAMPLES: Final = 5
OTHER: Final = "other"
"""What counts for all rules of a tree beyond the most."""
CLAIMED: Final = "user "
"""What the name of a tree begins with that users claim; when there are too many, these go first."""
FOLDED: Final = "folded"
FLOOD: Final = "flood"


@dataclass(frozen=True)
class Rules:
    """The budget.

    Args:
        window_s: seconds in which findings of one rule, tree and object are one event.
        hourly: new objects of one rule that a tree may tell in an hour.
        summaries: of repetitions, for one rule and tree in a day.
        floods: events of one tree in a day.
        trees: of which a state is kept at most.
        rules: of one tree that are told apart: a user may claim any.
    """

    window_s: int = 600
    hourly: int = 4
    summaries: int = 2
    floods: int = 2
    trees: int = 20_000
    rules: int = 200


DEFAULT: Final = Rules()


class Finding(NamedTuple):
    """What the budget knows of an event.

    Args:
        tree: whose finding it is, with its origin: no user's claim counts against what the kernel saw.
        rule: the rule, with its control.
        thing: the object it was done to; empty where there is nothing of the kind.
        severity: as a number.
        sample: the object as it may be stored, for a flood's examples.
        about: makes what a summary repeats of the event: tree, control, rule, verdict, ….
    """

    tree: str
    rule: str
    thing: str
    severity: int
    sample: str
    about: Callable[[], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Summary:
    """What was folded, and is now to be sent.

    Args:
        counts: rule → how many; one rule for repetitions, all of a tree's for a flood.
        first, last: seconds since 1970.
        severity: the highest of them.
        about: of the finding it repeats, or of one of the tree.
        samples: objects of a flood.
        flood: whether it is one.
    """

    counts: Mapping[str, int]
    first: float
    last: float
    severity: int
    about: Mapping[str, object]
    samples: tuple[str, ...] = ()
    flood: bool = False


@dataclass(slots=True)
class _Count:
    """What is counted until it is due."""

    first: float = 0.0
    last: float = 0.0
    due: float = 0.0
    step: float = 0.0
    severity: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    about: Mapping[str, object] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)

    def add(self, rule: str, count: int, first: float, last: float, severity: int) -> None:
        if not self.counts:
            self.first = first
        self.first = min(self.first, first)
        self.last = max(self.last, last)
        self.counts[rule] = self.counts.get(rule, 0) + count
        self.severity = max(self.severity, severity)

    def summary(self, flood: bool) -> Summary:
        made = Summary(dict(self.counts), self.first, self.last, self.severity, self.about, tuple(self.samples), flood)
        self.counts, self.samples = {}, []
        return made


@dataclass(slots=True)
class _Rule:
    """One rule in one tree: times of what was told, and of floods.

    `crossed` is when a new object was last refused, `before` when the flood before that one ended, `folded` when
    repetitions last went into the tree's flood, `highest` the gravest severity told.
    """

    heads: list[float] = field(default_factory=list)
    summaries: list[float] = field(default_factory=list)
    crossed: float = 0.0
    before: float = 0.0
    folded: float = 0.0
    last: float = 0.0
    highest: int = -1
    objects: dict[str, _Count] = field(default_factory=dict)


@dataclass(slots=True)
class _Tree:
    rules: dict[str, _Rule] = field(default_factory=dict)
    flood: _Count = field(default_factory=_Count)
    told: list[float] = field(default_factory=list)
    last: float = 0.0


class Budget:
    """Judges findings one by one; pure but for its own memory.

    Args:
        rules: the budget.
        kept: tree → state, as `changes` gave it, of an earlier process.
    """

    def __init__(self, rules: Rules = DEFAULT, kept: Mapping[str, bytes] | None = None) -> None:
        self._rules = rules
        self._trees: dict[str, _Tree] = {}
        self._dirty: set[str] = set()
        for name, state in (kept or {}).items():
            self.restore(name, state)

    def judge(self, finding: Finding, now: float) -> str:
        """Say why a finding is not sent: `folded`, `flood`, or empty for one that is.

        Args:
            finding: the finding.
            now: seconds since 1970.
        """
        tree = self._trees.setdefault(finding.tree, _Tree())
        name = finding.rule if finding.rule in tree.rules or len(tree.rules) < self._rules.rules else OTHER
        rule = tree.rules.setdefault(name, _Rule())
        self._dirty.add(finding.tree)
        tree.last = rule.last = now
        seen = rule.objects.get(finding.thing)
        if seen is not None:
            seen.add(name, 1, now, now, finding.severity)
            return FOLDED
        if self._may_tell(rule, now) or finding.severity > rule.highest:
            rule.heads.append(now)
            rule.highest = max(rule.highest, finding.severity)
            window = float(self._rules.window_s)
            rule.objects[finding.thing] = _Count(due=now + window, step=window, about=finding.about())
            return ""
        rule.crossed = now
        self._flood(tree, finding.about, finding.sample, now)
        tree.flood.add(name, 1, now, now, finding.severity)
        return FLOOD

    def due(self, now: float) -> list[Summary]:
        """What is to be told now, each once.

        Args:
            now: seconds since 1970.
        """
        found: list[Summary] = []
        for name, tree in list(self._trees.items()):
            for rule in tree.rules.values():
                found += self._repetitions(name, tree, rule, now)
            flood = tree.flood
            tree.told = [each for each in tree.told if each > now - DAY]
            if flood.counts and now >= flood.due and len(tree.told) < self._rules.floods:
                tree.told.append(now)
                found.append(flood.summary(True))
                flood.due = now + HOUR if len(tree.told) < self._rules.floods else tree.told[0] + DAY
                self._dirty.add(name)
            if not flood.counts and tree.last < now - 2 * DAY:
                del self._trees[name]
                self._dirty.add(name)
        if len(self._trees) > self._rules.trees:
            # A tenth at once: to look for one at a time would cost whoever makes many trees nothing, and us all.
            ordered = sorted(self._trees, key=lambda name: (not name.startswith(CLAIMED), self._trees[name].last))
            for name in ordered[: len(ordered) - self._rules.trees * 9 // 10]:
                found += self._evict(name)
        return found

    def _repetitions(self, name: str, tree: _Tree, rule: _Rule, now: float) -> Iterable[Summary]:
        for thing, count in list(rule.objects.items()):
            if now < count.due:
                continue
            self._dirty.add(name)
            if not count.counts:
                del rule.objects[thing]  # a whole window without it: the next one is new again
                continue
            rule.summaries = [each for each in rule.summaries if each > now - DAY]
            if len(rule.summaries) < self._rules.summaries and rule.folded < now - 2 * DAY:
                rule.summaries.append(now)
                yield count.summary(False)
            else:
                rule.folded = now
                self._flood(tree, lambda about=count.about: about, "", now)  # type: ignore[misc]
                for what, number in count.counts.items():
                    tree.flood.add(what, number, count.first, count.last, count.severity)
                count.counts = {}
            count.step = min(count.step * 3, DAY)
            count.due = now + count.step

    def _may_tell(self, rule: _Rule, now: float) -> bool:
        rule.heads = [each for each in rule.heads if each > now - HOUR]
        if rule.crossed:
            # After the first flood an hour of calm is enough, after a relapse within a day it takes a day.
            relapsed = rule.before > rule.crossed - DAY
            if now - rule.crossed < (DAY if relapsed else HOUR):
                rule.crossed = now
                return False
            rule.before, rule.crossed, rule.highest = rule.crossed, 0.0, -1
        return len(rule.heads) < (self._rules.hourly if rule.before < now - DAY else 1)

    def _flood(self, tree: _Tree, about: Callable[[], Mapping[str, object]], sample: str, now: float) -> None:
        if not tree.flood.counts:
            tree.flood.about = about()
            tree.flood.due = max(tree.flood.due, now + HOUR)
        if sample and len(tree.flood.samples) < SAMPLES:
            tree.flood.samples.append(sample)

    def _evict(self, name: str) -> Iterable[Summary]:
        """Give up the state of a tree, and tell what it holds."""
        tree = self._trees.pop(name)
        self._dirty.add(name)
        for rule in tree.rules.values():
            for count in rule.objects.values():
                if count.counts:
                    yield count.summary(False)
        if tree.flood.counts:
            yield tree.flood.summary(True)

    # Kept with the events ---------------------------------------------------------------------------

    def changes(self) -> dict[str, bytes | None]:
        """Tree → its state, of all that changed since the last call; None for one that is gone."""
        dirty, self._dirty = self._dirty, set()
        return {name: orjson.dumps(self._trees[name]) if name in self._trees else None for name in dirty}

    def restore(self, name: str, state: bytes | None) -> None:
        """Put a tree's state back, as `changes` gave it; None for one that was not there."""
        self._trees.pop(name, None)
        if state is None:
            return
        whole = orjson.loads(state)
        tree = _Tree(flood=_Count(**whole["flood"]), told=whole["told"], last=whole["last"])
        for rule, kept in whole["rules"].items():
            objects = {thing: _Count(**count) for thing, count in kept.pop("objects").items()}
            tree.rules[rule] = _Rule(**kept, objects=objects)
        self._trees[name] = tree
