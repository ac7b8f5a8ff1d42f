"""An effective policy as text and as a digest; the text is a policy file and gives the digest again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from guard.policy.keys import KEYS, TABLES, Key, Kind
from guard.policy.model import BindAllow, ConnectRule, Item, Origin, Setting, quote

_WIDTH = 79


def values_of(settings: Mapping[str, Setting]) -> dict[str, object]:
    """Return key → value, as `Effective.values` has it, of what a mapping holds."""
    return {name: _value(key, settings[name]) for name, key in KEYS.items() if name in settings}


def _value(key: Key, setting: Setting) -> object:
    if setting.everything:
        return None
    if key.kind.is_list:
        return tuple(item.value for item in setting.items)
    return setting.items[0].value if setting.items else None


def origins_of(settings: Mapping[str, Setting]) -> dict[str, dict[str, Origin]]:
    """Return key → text of the value or entry → where it came from."""
    return {
        name: {shown(item): item.origin for item in setting.items} or {shown_whole(setting): setting.origin}
        for name, setting in settings.items()
    }


def shown(item: Item) -> str:
    """Write an entry the way `Effective.origins` names it."""
    return str(item.value)


def shown_whole(setting: Setting) -> str:
    """Write a setting without entries: `any`, or an empty list."""
    return "any" if setting.everything else ""


def digest_of(name: str, values: Mapping[str, object], mode: str) -> str:
    """Return the hex SHA-256 of the canonical JSON of an effective policy.

    Args:
        name: of the policy.
        values: every key of `KEYS`.
        mode: `enforce`, `observe` or `off`.
    """
    whole = {"mode": mode, "name": name, "values": {key: plain(values[key]) for key in KEYS}}
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def plain(value: object) -> object:
    """Return a value as JSON has it."""
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if isinstance(value, ConnectRule):
        return {"ports": _plain_ports(value.ports), "to": value.to, "except": list(value.except_)}
    if isinstance(value, BindAllow):
        return {
            "addr": value.addr,
            "ports": _plain_ports(value.ports),
            "exec": value.exec,
        }
    return value


def _plain_ports(ports: tuple[tuple[int, int], ...]) -> list[int | str]:
    return [low if low == high else f"{low}-{high}" for low, high in ports]


def text_of(name: str, values: Mapping[str, object], mode: str) -> str:
    """Write an effective policy as a policy file.

    Args:
        name: of the policy.
        values: every key of `KEYS`.
        mode: of the whole; it is no key of a policy, so a comment carries it.
    """
    out = [f"# mode: {mode}", "schema = 1", f"name = {quote(name)}"]
    for table, names in TABLES.items():
        out += ["", f"[{table}]"]
        for key in names:
            if KEYS[key].kind is Kind.CONNECT and values[key] is None:
                out.append('connect = "any"')
            elif values[key] is not None:
                out.append(f"{key.split('.')[1]} = {_toml(values[key])}")
    return "\n".join(out) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, tuple):
        entries = [_entry(each) for each in value]
        line = "[" + ", ".join(entries) + "]"
        if len(line) < _WIDTH - 20:
            return line
        return "[\n" + "".join(f"  {entry},\n" for entry in entries) + "]"
    return str(value)


def _entry(value: object) -> str:
    if isinstance(value, BindAllow):
        return str(value)[:-2] + f", reason = {quote(value.reason)} }}"
    return quote(value) if isinstance(value, str) else str(value)
