"""The site's rule pack: more rules, which `guard redact --install-rules` took from a scanner (`conversion.py`).

`rules.json` in the configuration directory is root's. A rule is looked at where one of its starts, a literal, stands;
from there its expression is matched within the line, and the gates of the built-in rules judge what it captured. The
prefilter gets the literals only, so both engines see the same places.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from guard.errors import StateError
from guard.redact import site, words
from guard.redact.engine import Pattern
from guard.redact.lazy import Lazy
from guard.redact.spans import MARKER_START, Span
from guard.redact.text import Handler, Text, begins_token

FILE: Final = "rules.json"
LONGEST: Final = 2048
"""A rule sees this many bytes of a line, so that confirming stays linear; a value that goes on is taken whole."""
_LARGEST: Final = 4 << 20
_RUN = Lazy(rb"[A-Za-z0-9_\-+/=.]*")
_REMEDY: Final = "make it anew with `guard redact --install-rules PROGRAM`, or remove it; the built-in rules go on"


class PackRule(NamedTuple):
    """One rule of the pack.

    `starts` are lower-case literals with one of which a match begins; `group` is the secret (0: the whole match);
    `entropy` is the least in bits a character; `keyword` says that a name stands before the secret.
    """

    kind: str
    regex: str
    starts: tuple[str, ...]
    group: int
    entropy: float
    keyword: bool


class Pack(NamedTuple):
    """The rules, and the scanner they came from."""

    rules: tuple[PackRule, ...] = ()
    source: str = ""


def path(config: str = "") -> str:
    """Return where the pack stands, or would, in the configuration directory given or the usual one."""
    return os.path.join(config or site.config_dir(), FILE)


def load(config: str = "") -> Pack:
    """Read the site's pack; an empty one where there is none, or where this process may not read it.

    Args:
        config: the configuration directory; the usual one if not given.

    Raises:
        StateError: it is damaged, or somebody else could have written it.
    """
    place = path(config)
    try:
        text = site.read(place, _LARGEST)
    except OSError as error:
        raise StateError(f"{place}: the rule pack cannot be read: {error.strerror}", _REMEDY) from None
    if text is None:
        return Pack()
    import json  # a cold call without a pack does without it

    try:
        held = json.loads(text)
        rules = tuple(
            PackRule(str(kind), str(regex), tuple(map(str, starts)), int(group), float(entropy), bool(keyword))
            for kind, regex, starts, group, entropy, keyword in held["rules"]
        )
        whole = held["digest"] == digest(rules)
        source = str(held["source"])
    except (ValueError, TypeError, KeyError, RecursionError):
        whole = False
    if not whole:
        raise StateError(f"{place}: the rule pack is damaged", _REMEDY)
    return Pack(rules, source)


def digest(rules: Sequence[PackRule]) -> str:
    """Return what tells a damaged pack from a whole one."""
    import hashlib
    import json

    return hashlib.sha256(json.dumps(rules).encode()).hexdigest()


def rows(pack: Pack) -> list[tuple[Pattern, Handler]]:
    """Return what the scanner adds to its table: one row a start, whatever the number of rules behind it."""
    by_start: dict[bytes, list[Confirmer]] = {}
    for rule in pack.rules:
        confirmer = Confirmer(rule)
        for start in rule.starts:
            by_start.setdefault(start.encode(), []).append(confirmer)
    out: list[tuple[Pattern, Handler]] = []
    for literal, confirmers in sorted(by_start.items()):

        def confirm(
            text: Text, end: int, depth: int, size: int = len(literal), each: Sequence[Confirmer] = confirmers
        ) -> list[Span]:
            return [span for confirmer in each for span in confirmer.confirm(text, end - size, size)]

        out.append((Pattern(re.escape(literal), (literal,), True, True), confirm))
    return out


class Confirmer:
    """The confirmer of one rule of the pack; its expression is compiled on first use."""

    def __init__(self, rule: PackRule) -> None:
        self.rule = rule
        self._regex = Lazy(rule.regex.encode())

    def confirm(self, text: Text, anchor: int, size: int) -> list[Span]:
        """Return the span of the secret of a match that begins at `anchor` with a start of `size` bytes, or nothing."""
        data, rule = text.data, self.rule
        limit = text.line(anchor)[1]
        stop = min(limit, anchor + LONGEST)
        found = self._regex.match(data, anchor, stop)
        if found is None:
            return []
        start, end = found.span(rule.group)
        if _meets_marker(data, anchor, end) or start < 0 or (start == anchor and not begins_token(data, anchor, b"_")):
            return []
        if end == stop < limit:
            run = _RUN.match(data, end, limit)
            end = run.end() if run is not None else end
        value = data[start:end]
        # A letter behind a backslash is the rest of an escape, and none of the value's.
        if data[start - 1 : start] == b"\\" and start > anchor:
            return []
        body = value[size:] if start == anchor else value
        if text.known(start, end) or not _drawn(body, value, rule.entropy):
            return []
        return [Span(start, end, rule.kind, self._incident(value), False, False, value)]

    def _incident(self, value: bytes) -> bool:
        return (
            self.rule.entropy > 0
            and self.rule.keyword
            and words.looks_random(value, 16)
            and words.entropy(value) >= 3.0
            and words.wordiness(value) < 0.3
        )


def _meets_marker(data: bytes, anchor: int, end: int) -> bool:
    """Say whether a match begins within a marker or runs over one: a second pass changes nothing."""
    before = data.rfind(MARKER_START, max(0, anchor - 64), anchor)
    return MARKER_START in data[anchor:end] or (before >= 0 and data.find(b"]", before, anchor) < 0)


def _drawn(body: bytes, value: bytes, entropy: float) -> bool:
    """Say whether a captured value may be a secret: no example, no placeholder, no name, and dense enough."""
    if words.is_example(body) or words.is_placeholder(value) or words.counts_up(value) or words.is_name(body):
        return False
    return words.drawn(body, 8) and words.entropy(value) >= entropy
