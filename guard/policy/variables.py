"""Putting the site's variables into what a file says; the session's own stay open until launch."""

from __future__ import annotations

from collections.abc import Mapping

from guard.policy import addresses, paths
from guard.policy.keys import KEYS, SITE_VARIABLES, Key, Kind
from guard.policy.model import BindAllow, ConnectRule, Item, Policy, Setting, Value


def fill(policy: Policy, variables: Mapping[str, tuple[str, ...]], notes: list[str]) -> dict[str, Setting]:
    """Put the site's variables into a policy's values.

    Args:
        policy: as loaded.
        variables: name → values.
        notes: what was left out, because the site gives a well-known variable no value, is added.

    Raises:
        PolicyError: a value does not make sense where it is used.
    """
    out = {}
    for name, setting in policy.settings.items():
        items: dict[Value, Item] = {}
        for item in setting.items:
            for value in _filled(policy, KEYS[name], item, variables, notes):
                items.setdefault(value, Item(value, item.origin))
        out[name] = Setting(tuple(items.values()), setting.origin, setting.everything)
    return out


def _filled(
    policy: Policy, key: Key, item: Item, variables: Mapping[str, tuple[str, ...]], notes: list[str]
) -> list[Value]:
    value = item.value
    texts = _texts(value)
    names = {name for text in texts for name in paths.variables(text)} if key.kind.is_list else set()
    missing = sorted(name for name in names & set(SITE_VARIABLES) if name not in variables)
    if missing:
        listed = ", ".join(f"{{{name}}}" for name in missing)
        notes.append(f"{item.origin}: {key.name}: {value} left out, since site.toml gives {listed} no value")
        return []
    if not names & set(variables):
        return [value]
    try:
        return _put(value, key, variables)
    except ValueError as error:
        raise policy.error(item.origin, f"with the site's variables put in: {error}") from error


def _texts(value: Value) -> tuple[str, ...]:
    if isinstance(value, ConnectRule):
        return (value.to, *value.except_)
    if isinstance(value, BindAllow):
        return (value.addr, value.exec)
    return (value,) if isinstance(value, str) else ()


def _put(value: Value, key: Key, variables: Mapping[str, tuple[str, ...]]) -> list[Value]:
    open_names = [name for name in paths.variables(" ".join(_texts(value))) if name not in variables]
    for each in variables.values():
        open_names += [name for text in each for name in paths.variables(text)]

    def address(text: str, names: tuple[str, ...]) -> list[str]:
        return [addresses.address(each, names) for each in paths.fill(text, variables)]

    def path(text: str) -> list[str]:
        stars = key.kind is Kind.DEVICES
        return [paths.normal(each, open_names, stars=stars) for each in paths.fill(text, variables)]

    if isinstance(value, ConnectRule):
        except_ = tuple(sorted({each for name in value.except_ for each in address(name, addresses.EXCEPTIONS)}))
        return [ConnectRule(value.ports, to, except_) for to in address(value.to, tuple(addresses.NAMED))]
    if isinstance(value, BindAllow):
        programs = path(value.exec) if value.exec else [""]
        return [
            BindAllow(addr, value.ports, program, value.reason)
            for addr in address(value.addr, tuple(addresses.NAMED))
            for program in programs
        ]
    return list(path(str(value)))
