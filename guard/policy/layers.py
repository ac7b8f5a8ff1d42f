"""How layers become one: within a level of trust they widen, between levels they only tighten.

Everything here is driven by the rows of `KEYS`. A *partial* mapping holds only what a file sets; a
*complete* one holds every key. What a partial mapping does not name it leaves as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from guard.policy import addresses, paths
from guard.policy.keys import KEYS, Key, Kind, Tighten
from guard.policy.model import (
    DEFAULT_ORIGIN,
    BindAllow,
    ConnectRule,
    Item,
    Setting,
    Value,
)

Settings = Mapping[str, Setting]


def complete(settings: Settings) -> dict[str, Setting]:
    """Return every key: what is set, else the default."""
    return {name: settings.get(name) or _default(key) for name, key in KEYS.items()}


def _default(key: Key) -> Setting:
    if key.kind is Kind.CONNECT:
        return Setting((), DEFAULT_ORIGIN, everything=True)
    if isinstance(key.default, str | int):
        return Setting((Item(key.default, DEFAULT_ORIGIN),), DEFAULT_ORIGIN)
    return Setting((), DEFAULT_ORIGIN)


def extend(base: Settings, child: Settings) -> dict[str, Setting]:
    """Add a policy to the one it extends: lists add, words and numbers replace.

    `connect = "any"` and a list of rules are two answers to one question, so the child's replaces.
    """
    out = dict(base)
    for name, setting in child.items():
        old = base.get(name)
        bounded = old is not None and not old.everything and not setting.everything
        if old is not None and KEYS[name].kind.is_list and bounded:
            out[name] = _added(old, setting)
        else:
            out[name] = setting
    return out


def overlay(base: Settings, added: Settings) -> dict[str, Setting]:
    """Add an overlay: it opens, so it never bounds a list of grants that the base leaves without bounds.

    Such a list is one that a partial base does not name, and `connect = "any"`.
    """
    out = dict(base)
    for name, setting in added.items():
        key, old = KEYS[name], base.get(name)
        if not key.kind.is_list:
            out[name] = setting
        elif old is None:
            if key.tighten is Tighten.UNION:
                out[name] = setting
        elif setting.everything:
            out[name] = setting
        elif not old.everything:
            out[name] = _added(old, setting)
    return out


def _added(old: Setting, new: Setting) -> Setting:
    items = {item.value: item for item in old.items}
    for item in new.items:
        items.setdefault(item.value, item)
    return Setting(tuple(items.values()), new.origin)


def exempt(base: Settings, widen: Settings, notes: list[str]) -> dict[str, Setting]:
    """Apply an exception to a complete mapping: it only ever widens.

    Lists of grants gain its entries, lists of refusals (`files.deny`, `files.protect`, `env.drop`) lose
    what it names and what lies beneath, words and numbers are replaced where its own is wider.

    Args:
        base: complete.
        widen: what the exception names.
        notes: what had no effect is added.
    """
    out = dict(base)
    for name, setting in widen.items():
        key, old = KEYS[name], base[name]
        if key.tighten is Tighten.UNION:
            inside = WITHIN[key.kind]
            kept = tuple(
                item for item in old.items if not any(inside(named.value, item.value) for named in setting.items)
            )
            if len(kept) == len(old.items):
                notes.append(f"{setting.origin}: {name}: the exception names nothing that is refused")
            out[name] = Setting(kept, setting.origin)
        elif key.kind.is_list:
            if setting.everything or not old.everything:
                out[name] = setting if setting.everything else _added(old, setting)
        elif tighter(key, old, setting):
            out[name] = setting
        elif tighter(key, setting, old):
            notes.append(f"{setting.origin}: {name}: the exception would tighten, so it is not applied")
    return out


def tighten(upper: Settings, lower: Settings, notes: list[str]) -> dict[str, Setting]:
    """Return what both layers allow.

    Args:
        upper: complete.
        lower: partial or complete; what it does not name stays as in `upper`.
        notes: what `lower` asked for and did not get is added.
    """
    out: dict[str, Setting] = {}
    # A key that covers another is done first: what may be written need not be listed for reading.
    for key in sorted(KEYS.values(), key=lambda row: bool(row.covers)):
        above, below = upper[key.name], lower.get(key.name)
        if key.tighten is Tighten.SUBSET:
            out[key.name] = _common(key, upper, lower, out, notes)
        elif below is None:
            out[key.name] = above
        elif key.tighten is Tighten.UNION:
            out[key.name] = _added(above, below) if below.items else above
        else:
            out[key.name] = below if tighter(key, below, above) else above
            if tighter(key, above, below):
                asked = below.items[0].value
                notes.append(f"{below.origin}: {key.name} = {_shown(asked)} would loosen, so it is not applied")
    return {name: out[name] for name in KEYS}


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def tighter(key: Key, one: Setting, other: Setting) -> bool:
    """Whether a word, number or flag is strictly tighter than another."""
    if not one.items:
        return False
    first = one.items[0].value
    second = other.items[0].value if other.items else None
    if key.tighten is Tighten.MAX:
        return key.words.index(str(first)) > key.words.index(str(second))
    if key.tighten is Tighten.ALL:
        return second is True and first is False
    return isinstance(first, int) and (second is None or (isinstance(second, int) and first < second))


def _common(key: Key, upper: Settings, lower: Settings, done: Settings, notes: list[str]) -> Setting:
    above, below = upper[key.name], lower.get(key.name)
    covered = KEYS.get(key.covers)
    if below is None:
        if covered is None or not covered.kind.is_list or covered.name not in lower:
            return above
        # `lower` narrows writing alone: what may no longer be written may still be read.
        kept = [*above.items, *upper[covered.name].items]
        return Setting(_without(key, kept, done), above.origin)
    if below.everything:
        return above
    if above.everything:
        return below
    granted = [*above.items, *covering(covered, upper)]
    asked = [*below.items, *covering(covered, lower)]
    common = COMMON[key.kind]
    items = [
        Item(value, second.origin if value == second.value else first.origin)
        for first in granted
        for second in asked
        for value in common(first.value, second.value)
    ]
    inside = WITHIN[key.kind]
    for item in below.items:
        if not any(inside(first.value, item.value) for first in granted):
            partly = any(common(first.value, item.value) for first in granted)
            what = "narrowed to what the layer above grants" if partly else "left out, not granted above"
            notes.append(f"{item.origin}: {key.name}: {item.value} {what}")
    return Setting(_without(key, items, done), below.origin)


_BOUND = {name: BindAllow(name, addresses.EVERY_PORT) for name in addresses.NAMED}


def covering(covered: Key | None, settings: Settings) -> tuple[Item, ...]:
    """Return what the covered key grants, as entries of the covering one."""
    setting = settings.get(covered.name) if covered is not None else None
    if covered is None or setting is None:
        return ()
    if covered.kind.is_list:
        return setting.items
    # network.bind: its word is an entry of bind_allow in short.
    word = _BOUND.get(str(setting.items[0].value))
    return (Item(word, setting.origin),) if word is not None else ()


def _without(key: Key, items: list[Item], done: Settings) -> tuple[Item, ...]:
    """Drop entries that are twice there, or that the covered key grants anyway."""
    inside = WITHIN[key.kind]
    granted = covering(KEYS.get(key.covers), done)
    out: dict[Value, Item] = {}
    for item in items:
        if not any(inside(other.value, item.value) for other in granted):
            out.setdefault(item.value, item)
    return tuple(out.values())


def _path_within(upper: Value, lower: Value) -> bool:
    return paths.below(str(upper), str(lower))


def _path_common(one: Value, other: Value) -> tuple[Value, ...]:
    if paths.below(str(one), str(other)):
        return (other,)
    return (one,) if paths.below(str(other), str(one)) else ()


def _glob_within(upper: Value, lower: Value) -> bool:
    return paths.glob_within(str(upper), str(lower))


def _glob_common(one: Value, other: Value) -> tuple[Value, ...]:
    if _glob_within(one, other):
        return (other,)
    return (one,) if _glob_within(other, one) else ()


def _connect_within(upper: Value, lower: Value) -> bool:
    return isinstance(upper, ConnectRule) and isinstance(lower, ConnectRule) and addresses.connect_within(upper, lower)


def _connect_common(one: Value, other: Value) -> tuple[Value, ...]:
    if isinstance(one, ConnectRule) and isinstance(other, ConnectRule):
        return addresses.common_connect(one, other)
    return ()


def _bind_within(upper: Value, lower: Value) -> bool:
    return isinstance(upper, BindAllow) and isinstance(lower, BindAllow) and addresses.bind_within(upper, lower)


def _bind_common(one: Value, other: Value) -> tuple[Value, ...]:
    if isinstance(one, BindAllow) and isinstance(other, BindAllow):
        return addresses.common_bind(one, other)
    return ()


WITHIN: Mapping[Kind, Callable[[Value, Value], bool]] = {
    Kind.PATHS: _path_within,
    Kind.DEVICES: _path_within,
    Kind.SOCKETS: _path_within,
    Kind.GLOBS: _glob_within,
    Kind.CONNECT: _connect_within,
    Kind.BIND_ALLOW: _bind_within,
}
"""Kind of list → whether its second entry grants nothing beyond the first."""

COMMON: Mapping[Kind, Callable[[Value, Value], tuple[Value, ...]]] = {
    Kind.PATHS: _path_common,
    Kind.DEVICES: _path_common,
    Kind.SOCKETS: _path_common,
    Kind.GLOBS: _glob_common,
    Kind.CONNECT: _connect_common,
    Kind.BIND_ALLOW: _bind_common,
}
"""Kind of list → what two entries both grant."""
