"""A policy in effect, for people (TOML with comments, below 80 columns) and for programs (JSON)."""

from __future__ import annotations

import datetime
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from guard.policy.canonical import plain
from guard.policy.diff import Change
from guard.policy.keys import KEYS, TABLES, Kind
from guard.policy.model import BindAllow, Effective, Origin, quote
from guard.policy.source import printable

_WIDTH = 79


def comment(title: str, text: str) -> list[str]:
    """Write a titled comment, wrapped."""
    first = f"# {title:<12}"
    return textwrap.wrap(
        printable(text),
        _WIDTH,
        initial_indent=first,
        subsequent_indent="#" + " " * (len(first) - 1),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]


def when(seconds: float) -> str:
    """Write a time in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def short_file(file: str) -> str:
    """Write a file by its own name, with the folder where that tells what it is."""
    folder, name = os.path.split(file)
    if os.path.basename(folder) in ("overlays", "exceptions.d"):
        name = os.path.join(os.path.basename(folder), name)
    return printable(name)


def short(origin: Origin) -> str:
    """Write where a value came from: the file's own name and the line."""
    return f"{short_file(origin.file)}:{origin.line}" if origin.line else origin.file


def layers_text(files: Iterable[str]) -> str:
    """Write files in the order in which they were applied."""
    return ", ".join(short_file(file) for file in dict.fromkeys(files))


def change(each: Change) -> str:
    """Write one difference: sign, effect, key and value, and where it is written."""
    whole = bool(each.before and each.after)
    sign = "~" if whole else "+" if each.after else "-"
    value = f"{each.before} -> {each.after}" if whole else each.after or each.before
    return _row("", f"{sign} {each.effect:<8} {each.key}: {printable(value)}", each.origin)


def render(values: Mapping[str, object], origins: Mapping[str, Mapping[str, Origin]]) -> list[str]:
    """Write values as TOML, followed by its origin, reasons above what they are given for.

    Args:
        values: as `Effective.values`, or some of them.
        origins: as `Effective.origins`.
    """
    out: list[str] = []
    for table, names in TABLES.items():
        rows = [row for name in names if name in values for row in _value(name, values[name], origins[name])]
        if rows:
            out += ["", f"[{table}]", *rows]
    return out


def _value(name: str, value: object, origins: Mapping[str, Origin]) -> list[str]:
    last = name.split(".")[1]
    if isinstance(value, tuple) and value:
        out, reason = [f"{last} = ["], ""
        for entry in value:
            origin = origins[str(entry)]
            if origin.reason != reason:
                reason = origin.reason
                out += _reason("  ", reason)
            out.append(_row("  ", f"{_entry(entry)},", origin))
        return [*out, "]"]
    origin = next(iter(origins.values()))
    if isinstance(value, tuple):
        return [_row("", f"{last} = []", origin)]
    if value is None and not _is_any(name, value):
        return []
    text = "any" if value is None else value
    text = quote(text) if isinstance(text, str) else str(text).lower()
    return [*_reason("", origin.reason), _row("", f"{last} = {text}", origin)]


def _entry(value: object) -> str:
    if isinstance(value, BindAllow):
        return f"{str(value)[:-2]}, reason = {quote(value.reason)} }}"
    return quote(value) if isinstance(value, str) else str(value)


def _reason(indent: str, reason: str) -> list[str]:
    if not reason:
        return []
    lead = f"{indent}# "
    return textwrap.wrap(printable(reason), _WIDTH, initial_indent=lead, subsequent_indent=lead, break_long_words=False)


def _row(indent: str, text: str, origin: Origin) -> str:
    left, right = f"{indent}{text}", f"# {short(origin)}"
    return f"{left:<46} {right}"


def head(effective: Effective, settings_of: str, present: Sequence[str] | None) -> list[str]:
    """Write what holds for a session beside the values.

    Args:
        effective: the policy in effect.
        settings_of: whom it is for.
        present: names of the variables of this environment that would be dropped; None where the
            environment is not that user's.
    """
    out = [
        *comment("policy", effective.name),
        *comment("for", settings_of),
        *comment("mode", effective.mode),
        *comment("assigned by", effective.assigned_by),
        *comment("layers", layers_text(effective.layers)),
    ]
    if effective.exceptions:
        until = f" (the first ends {when(effective.expires)})" if effective.expires is not None else ""
        out += comment("exceptions", ", ".join(effective.exceptions) + until)
    out += comment("audit", effective.site.audit)
    if effective.site.project_roots:
        out += comment("projects", "below " + ", ".join(effective.site.project_roots))
    out += comment("digest", effective.digest)
    out += comment("drops", ", ".join(effective.words("env.drop")) or "no variable")
    if kept := effective.words("env.keep"):
        out += comment("but keeps", ", ".join(kept))
    if present is not None:
        out += comment("here drops", ", ".join(present) or "nothing of the present environment")
    for alert in effective.alerts:
        out += comment("ALERT", " ".join(alert.split()))
    for note in effective.notes:
        out += comment("note", note)
    return out


def document(effective: Effective, user: str, present: Sequence[str]) -> dict[str, object]:
    """Return a policy in effect as JSON has it.

    Args:
        effective: the policy in effect.
        user: whom it is for.
        present: names of the variables of this environment that would be dropped.
    """
    return {
        "name": effective.name,
        "user": user,
        "harness": effective.harness,
        "mode": effective.mode,
        "assigned_by": effective.assigned_by,
        "layers": list(effective.layers),
        "exceptions": list(effective.exceptions),
        "expires": effective.expires,
        "digest": effective.digest,
        "values": values_json(effective.values),
        "origins": origins_json(effective.origins),
        "env_dropped": list(present),
        "site": {
            "file": effective.site.file,
            "audit": effective.site.audit,
            "project_roots": list(effective.site.project_roots),
            "tmp": effective.site.tmp,
            "variables": {name: list(values) for name, values in effective.site.variables.items()},
        },
        "notes": list(effective.notes),
        "alerts": list(effective.alerts),
    }


def values_json(values: Mapping[str, object]) -> dict[str, object]:
    """Return key → value as JSON has it."""
    return {name: "any" if _is_any(name, value) else plain(value) for name, value in values.items()}


def origins_json(origins: Mapping[str, Mapping[str, Origin]]) -> dict[str, object]:
    """Return key → entry → where it came from, as JSON has it."""
    return {
        name: {
            entry: {"file": origin.file, "line": origin.line, "reason": origin.reason}
            for entry, origin in entries.items()
        }
        for name, entries in origins.items()
    }


def _is_any(name: str, value: object) -> bool:
    return value is None and KEYS[name].kind is Kind.CONNECT
