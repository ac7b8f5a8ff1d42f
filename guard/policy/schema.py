"""JSON Schema (draft 2020-12) of every configuration file, made from the table of keys.

A schema cannot say all that the loader checks: whether a name is known at a site, whether a CIDR has
bits beyond its prefix. What the schema refuses, the loader refuses too; a test holds them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from guard.policy.addresses import EXCEPTIONS, LAST_PORT, NAMED
from guard.policy.keys import CONTROLS, KEYS, MODES, TABLES, Key, Kind, Tighten
from guard.policy.load import AUDIT, HEADS, SCHEMA, SITE_KEYS

Node = dict[str, object]

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_VARIABLE = r"^\{[a-z][a-z0-9_]*\}$"
_CIDR = r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*)(/[0-9]{1,3})?$"
_RANGE = r"^ *[0-9]{1,5} *(- *[0-9]{1,5} *)?$"
_PLACE = r"^(/|\{[a-z][a-z0-9_]*\}(/|$))"
_PARENT = r"(^|/)\.\.(/|$)"
_STAR = r"\*(?!/*$)"

TIGHTENS: Mapping[Tighten, str] = {
    Tighten.SUBSET: "a lower layer can only take away",
    Tighten.UNION: "a lower layer can only add",
    Tighten.MAX: "a lower layer can only move to the right",
    Tighten.MIN: "a lower layer can only lower it",
    Tighten.ALL: "a lower layer can only say false",
}
"""How a key tightens, in words."""

KINDS = ("policy", "overlay", "site", "assign", "exceptions")
"""Kinds of file that have a schema."""


def schema(kind: str = "policy") -> Node:
    """Return the schema of one kind of file.

    Args:
        kind: one of `KINDS`.
    """
    content = {"assign": _assign, "exceptions": _exceptions}.get(kind, lambda: _policy(kind))()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"guard {kind} file",
        **content,
        "$defs": _definitions(),
    }


def _closed(properties: Mapping[str, object], required: tuple[str, ...] = (), **more: object) -> Node:
    out: Node = {"type": "object", "properties": dict(properties), "additionalProperties": False, **more}
    if required:
        out["required"] = list(required)
    return out


def _text(description: str = "") -> Node:
    out: Node = {"type": "string", "pattern": r"\S"}
    return {**out, "description": description} if description else out


def _ref(name: str) -> Node:
    return {"$ref": f"#/$defs/{name}"}


def _array(items: object) -> Node:
    return {"type": "array", "items": items}


def _path(*, stars: bool) -> Node:
    parts: list[Node] = [{"pattern": _PLACE}, {"not": {"pattern": _PARENT}}, {"not": {"pattern": "\\x00"}}]
    parts.append({"not": {"pattern": _STAR if stars else r"\*"}})
    if stars:
        parts.append({"pattern": "^/+dev/"})
    return {"type": "string", "maxLength": 4095, "allOf": parts}


def _address(names: tuple[str, ...]) -> Node:
    return {
        "type": "string",
        "anyOf": [{"enum": list(names)}, {"pattern": _VARIABLE}, {"pattern": _CIDR}],
    }


def _definitions() -> Node:
    port: Node = {
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": LAST_PORT},
            {"type": "string", "pattern": _RANGE},
        ]
    }
    connect = _closed(
        {
            "ports": _ref("ports"),
            "to": _address(tuple(NAMED)),
            "except": _array(_address(EXCEPTIONS)),
            "reason": _text(),
        },
        ("ports",),
    )
    bind = _closed(
        {
            "addr": _address(tuple(NAMED)),
            "ports": _ref("ports"),
            "exec": {"anyOf": [{"const": ""}, _ref("path")]},
            "reason": _text(),
        },
        ("addr", "ports", "reason"),
    )
    return {
        "name": {"type": "string", "pattern": _NAME},
        "path": _path(stars=False),
        "device": _path(stars=True),
        "place": {"anyOf": [_ref("path"), _closed({"path": _ref("path"), "reason": _text()}, ("path",))]},
        "devicePlace": {"anyOf": [_ref("device"), _closed({"path": _ref("device"), "reason": _text()}, ("path",))]},
        "glob": {"type": "string", "pattern": r"^[^=\x00?\[\]{}]+$"},
        "ports": {"anyOf": [port, {"type": "array", "items": port, "minItems": 1}]},
        "connect": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": LAST_PORT}, connect]},
        "bindAllow": bind,
        "oneOrMore": {"anyOf": [_text(), {"type": "array", "items": _text(), "minItems": 1}]},
    }


_LISTS: Mapping[Kind, str] = {
    Kind.PATHS: "place",
    Kind.DEVICES: "devicePlace",
    Kind.SOCKETS: "place",
    Kind.GLOBS: "glob",
    Kind.BIND_ALLOW: "bindAllow",
}

_SCALARS: Mapping[Kind, Callable[[Key], Node]] = {
    Kind.WORD: lambda key: {"enum": list(key.words)},
    Kind.NUMBER: lambda key: {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    Kind.FLAG: lambda key: {"type": "boolean"},
    Kind.CONNECT: lambda key: {"anyOf": [{"const": "any"}, _array(_ref("connect"))]},
}


def value_schema(key: Key) -> Node:
    """Return the schema of one key's value, with its sentence and default."""
    shape = _array(_ref(_LISTS[key.kind])) if key.kind in _LISTS else _SCALARS[key.kind](key)
    out: Node = {"description": f"{key.doc} Layers: {TIGHTENS[key.tighten]}.", **shape}
    if key.kind is Kind.CONNECT:
        out["default"] = "any"
    elif key.default is not None:
        out["default"] = list(key.default) if isinstance(key.default, tuple) else key.default
    return out


def _policy(kind: str) -> Node:
    heads: dict[str, Node] = {
        "schema": {"const": SCHEMA},
        "name": _ref("name"),
        "description": _text("One line for `policy list`."),
        "reason": _text("Why, where no entry and no table says it nearer."),
        "extends": {"$ref": "#/$defs/name", "description": "The policy that this one adds to."},
        "overlays": _array(_ref("name")),
        "opens": _text("What an overlay opens."),
        "tried": _text("What was run under an overlay, or `untried`."),
        "site": _site(),
        "variables": {
            "type": "object",
            "propertyNames": {
                "pattern": "^[a-z][a-z0-9_]*$",
                "not": {"enum": ["home", "project", "tmp", "user", "uid"]},
            },
            "additionalProperties": {"anyOf": [_text(), _array(_text())]},
        },
    }
    tables = {
        table: _closed({**{name.split(".")[1]: value_schema(KEYS[name]) for name in names}, "reason": _text()})
        for table, names in TABLES.items()
    }
    required = ("schema", "reason", "opens") if kind == "overlay" else ("schema",)
    return _closed({**{name: heads[name] for name in HEADS[kind]}, **tables}, required)


def _site() -> Node:
    shapes: dict[str, Node] = {
        "audit": {"enum": list(AUDIT)},
        "default_policy": _ref("name"),
        "project_roots": _array(_ref("path")),
        "tmp": _ref("path"),
        "harnesses": _array(_ref("name")),
    }
    return _closed({name: shapes[name] for name in SITE_KEYS})


def _subject() -> dict[str, object]:
    return {name: _ref("oneOrMore") for name in ("user", "group", "host", "harness")}


def _assign() -> Node:
    row = _closed(
        {
            **_subject(),
            "policy": _ref("name"),
            "overlays": _array(_ref("name")),
            "mode": {"enum": list(MODES)},
            "reason": {"type": "string"},
        }
    )
    return _closed({"schema": {"const": SCHEMA}, "assign": _array(row)}, ("schema",))


def _exceptions() -> Node:
    dotted = {name: value_schema(key) for name, key in KEYS.items()}
    nested = {
        table: _closed({name.split(".")[1]: value_schema(KEYS[name]) for name in names})
        for table, names in TABLES.items()
    }
    row = _closed(
        {
            **_subject(),
            "everyone": {"type": "boolean"},
            "control": {"enum": list(CONTROLS)},
            "widen": _closed({**dotted, **nested}, minProperties=1),
            "reason": _text(),
            "ticket": _text(),
            "until": {"type": "string", "anyOf": [{"format": "date"}, {"format": "date-time"}]},
        },
        ("control", "widen", "reason", "until"),
        oneOf=[
            {"required": ["user"]},
            {"required": ["group"]},
            {"required": ["everyone"], "properties": {"everyone": {"const": True}}},
        ],
    )
    return _closed({"schema": {"const": SCHEMA}, "exception": _array(row)}, ("schema",))
