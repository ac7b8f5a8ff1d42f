"""What would allow what is denied: an overlay that ships, or the narrowest exception; each tried before it is told."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from guard.confine.explain.answer import DENIED, Answer
from guard.confine.explain.session import Session
from guard.policy import layers
from guard.policy.canonical import origins_of, values_of
from guard.policy.dangers import DANGERS
from guard.policy.keys import KEYS, TABLES, Tighten
from guard.policy.load import known_variables
from guard.policy.model import DEFAULT_ORIGIN, Effective, Item, Policy, Setting, quote
from guard.policy.source import parse_document
from guard.policy.values import Reading, read_setting

DAYS = 30
"""How long a proposed exception lasts; whoever grants it decides."""


@dataclass(frozen=True)
class Remedy:
    """What would allow it.

    Args:
        overlay: the name of one that ships, "" for none.
        opens: what that overlay opens besides.
        text: TOML of an exception or of a policy of one's own, "" for none.
        danger: why nothing is proposed although something would open it.
        managed: whether the site's files decide: then only they can widen anything.
    """

    overlay: str = ""
    opens: str = ""
    text: str = ""
    danger: str = ""
    managed: bool = False


def settings_of(effective: Effective) -> dict[str, Setting]:
    """Return an effective policy as layers take it."""
    found = {}
    for name, value in effective.values.items():
        origins = effective.origins[name]
        last = list(origins.values())[-1] if origins else DEFAULT_ORIGIN
        entries = value if isinstance(value, tuple) else () if value is None else (value,)
        items = tuple(Item(entry, origins.get(str(entry), last)) for entry in entries)
        found[name] = Setting(items, last, everything=value is None and KEYS[name].kind.value == "connect")
    return found


def with_settings(effective: Effective, settings: Mapping[str, Setting]) -> Effective:
    """Return a policy with other settings."""
    return replace(effective, values=values_of(settings), origins=origins_of(settings))


def remedy(
    session: Session,
    ask: Callable[[Session], list[Answer]],
    denied: Answer,
    overlays: Iterable[tuple[Policy, Mapping[str, Setting]]],
    floor: Mapping[str, Setting],
    managed: bool,
    named: bool,
    until: datetime.date,
) -> Remedy:
    """Look for what would allow an act.

    Args:
        session: the one that denies.
        ask: the act.
        denied: its answer.
        overlays: each with its settings, the ones to name first first.
        floor: the site's own bounds, which no overlay passes; empty without a site.
        managed: whether the site's files decide, so that only they can widen anything.
        named: whether the policy can be extended by its name.
        until: when a proposed exception ends.
    """
    present = settings_of(session.effective)

    def opens(settings: Mapping[str, Setting]) -> bool:
        other = Session(with_settings(session.effective, settings), session.here)
        kept = other.modes[denied.control] == "enforce" or set(denied.widen) <= {"modes.setuid", "modes.world_writable"}
        return kept and all(answer.verdict != DENIED for answer in ask(other))

    for overlay, added in overlays:
        settings = layers.overlay(present, added)
        if floor:
            settings = layers.tighten(settings, floor, [])
        if session.modes[denied.control] == "enforce" and _still(settings, present, denied.control) and opens(settings):
            return Remedy(overlay.name, overlay.opens, managed=managed)
    if not denied.widen:
        return Remedy(managed=managed)
    if not managed and any(KEYS[key].tighten is Tighten.UNION for key in denied.widen):
        return Remedy()  # a policy of one's own adds refusals, and takes none away
    danger = _danger(denied.widen)
    if danger:
        return Remedy(danger=danger, managed=managed)
    text = (
        exception(denied, session.here.user, until)
        if managed
        else own_policy(denied, session.effective.name if named else "")
    )
    widen = _parsed(text, denied.widen)
    settings = layers.exempt(present, widen, []) if managed else layers.extend(present, widen)
    return Remedy(text=text if opens(settings) else "", managed=managed)


def _danger(widen: Mapping[str, object]) -> str:
    """Why lint would warn of such a grant, "" if it would not."""
    return next(
        (
            danger.why
            for key, values in widen.items()
            for value in (values if isinstance(values, list) else ())
            for danger in DANGERS
            if key in danger.keys and isinstance(value, str) and danger.meets(value)
        ),
        "",
    )


def _still(settings: Mapping[str, Setting], present: Mapping[str, Setting], control: str) -> bool:
    """Whether the control's switch is as it was: an overlay that turns it off opens everything."""
    key = f"controls.{control.replace('-', '_')}"
    return bool(settings[key].items == present[key].items)


def exception(denied: Answer, user: str, until: datetime.date) -> str:
    """Write the exception, as a file of exceptions.d has it."""
    key = next(iter(denied.widen))
    widen = ", ".join(f"{quote(name)} = {_toml(value)}" for name, value in denied.widen.items())
    return (
        "schema = 1\n"
        "[[exception]]\n"
        f"{f'user = {quote(user)}' if user else 'everyone = true'}\n"
        f"control = {quote(KEYS[key].control or denied.control)}\n"
        f"widen = {{ {widen} }}\n"
        'reason = "REASON"\n'
        f"until = {until.isoformat()}\n"
    )


def own_policy(denied: Answer, name: str) -> str:
    """Write a policy of the user's own that widens: where no site decides, that is who decides.

    Args:
        denied: the answer.
        name: what it extends; "" for lines to add to the policy itself.
    """
    lines = ["schema = 1", 'name = "mine"', f"extends = {quote(name)}", 'reason = "REASON"'] if name else []
    for table in TABLES:
        keys = [key for key in denied.widen if key.startswith(f"{table}.")]
        if keys:
            lines += [f"[{table}]", *(f"{key.partition('.')[2]} = {_toml(denied.widen[key])}" for key in keys)]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    return quote(value) if isinstance(value, str) else str(value)


def _parsed(text: str, widen: Mapping[str, object]) -> dict[str, Setting]:
    """Read back what was written, by the loader's own rules."""
    doc = parse_document("proposed", text.encode())
    reading = Reading(doc, known_variables("policy", {}))
    return {key: read_setting(reading, KEYS[key], value, (), "REASON") for key, value in widen.items()}
