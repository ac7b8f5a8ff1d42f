"""What differs between two policies in effect, and whether the second is wider or narrower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from guard.policy.keys import KEYS, Key, Kind, Tighten
from guard.policy.layers import WITHIN, covering, tighter
from guard.policy.model import Item, Origin, Setting


@dataclass(frozen=True)
class Change:
    """One difference.

    Args:
        key: dotted.
        before, after: as text, "" where an entry is new or gone.
        effect: `wider`, `narrower`, or `same` where another entry grants or refuses it anyway.
        origin: where the one of the two that is there was written.
    """

    key: str
    before: str
    after: str
    effect: str
    origin: Origin


def compare(one: Mapping[str, Setting], other: Mapping[str, Setting]) -> list[Change]:
    """Return the changes that lead from one complete mapping to another, in the order of the keys."""
    out: list[Change] = []
    for name, key in KEYS.items():
        before, after = one[name], other[name]
        if not key.kind.is_list or before.everything or after.everything:
            out += _whole(key, before, after)
            continue
        old, new = {item.value for item in before.items}, {item.value for item in after.items}
        grants = key.tighten is Tighten.SUBSET
        for item in before.items:
            if item.value not in new:
                effect = _effect(key, item, other, "narrower" if grants else "wider")
                out.append(Change(name, str(item.value), "", effect, item.origin))
        for item in after.items:
            if item.value not in old:
                effect = _effect(key, item, one, "wider" if grants else "narrower")
                out.append(Change(name, "", str(item.value), effect, item.origin))
    return out


def _effect(key: Key, item: Item, there: Mapping[str, Setting], effect: str) -> str:
    inside = WITHIN[key.kind]
    granted = (*there[key.name].items, *covering(KEYS.get(key.covers), there))
    return "same" if any(inside(each.value, item.value) for each in granted) else effect


def _whole(key: Key, before: Setting, after: Setting) -> list[Change]:
    if key.kind is Kind.CONNECT:
        if before.everything and after.everything:
            return []
        effect = "wider" if after.everything else "narrower"
    else:
        if [item.value for item in before.items] == [item.value for item in after.items]:
            return []
        effect = "narrower" if tighter(key, after, before) else "wider"
    return [Change(key.name, shown(key, before), shown(key, after), effect, after.origin)]


def shown(key: Key, setting: Setting) -> str:
    """Write a whole setting on one line."""
    if setting.everything:
        return "any"
    if key.kind.is_list:
        return "[" + ", ".join(str(item.value) for item in setting.items) + "]"
    if not setting.items:
        return "untouched"
    value = setting.items[0].value
    return str(value).lower() if isinstance(value, bool) else str(value)
