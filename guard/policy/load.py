"""One policy file: TOML in, `Policy` out, or one error with file, line, column and a caret."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from guard.errors import PolicyError
from guard.policy import paths
from guard.policy.keys import KEYS, OPEN_VARIABLES, SITE_VARIABLES, TABLES
from guard.policy.model import Item, Policy, Setting, Site
from guard.policy.source import Document, Reader, parse_document, printable, read_document, read_file
from guard.policy.values import NAME, PROJECT_MOST, Reading, describe, read_setting

SCHEMA = 1
PROJECT_FILE = ".guard.toml"

HEADS: Mapping[str, tuple[str, ...]] = {
    "policy": ("schema", "name", "description", "reason", "extends", "overlays"),
    "overlay": ("schema", "name", "description", "reason", "opens", "tried"),
    "site": ("schema", "name", "description", "reason", "site", "variables"),
    "project": ("schema", "name", "description", "reason", "extends", "overlays"),
    "user": ("schema", "name", "description", "reason", "extends", "overlays"),
}
"""Kind of file → what may stand beside the tables of keys."""

SITE_KEYS = ("audit", "default_policy", "project_roots", "tmp", "harnesses")
AUDIT = ("allow", "forbid")


@dataclass(frozen=True)
class SiteFile:
    """A site.toml: what it decides for the node, and the floor that it sets."""

    site: Site
    floor: Policy


def known_variables(kind: str, site: Collection[str] = ()) -> frozenset[str]:
    """Return the variables that a kind of file may use.

    Args:
        kind: as in `Policy.kind`. Agents write project files: those get `{project}` alone.
        site: names that the site defines.
    """
    if kind == "project":
        return frozenset(("project",))
    return frozenset((*OPEN_VARIABLES, *SITE_VARIABLES, *site))


def load(path: str, kind: str, *, variables: Collection[str] = (), reader: Reader = read_file) -> Policy | None:
    """Read one file; None when there is none.

    Args:
        path: the file.
        kind: `policy`, `overlay`, `project` or `user`.
        variables: names that the site defines.
        reader: how its bytes are had.

    Raises:
        PolicyError: it is there and cannot be used.
    """
    doc = read_document(path, reader, project=kind == "project")
    return None if doc is None else from_document(doc, kind, variables)


def loads(content: bytes, file: str, kind: str = "policy", variables: Collection[str] = ()) -> Policy:
    """Read a policy from its bytes.

    Raises:
        PolicyError: it cannot be used.
    """
    return from_document(parse_document(file, content), kind, variables)


def load_site(path: str, reader: Reader = read_file) -> SiteFile | None:
    """Read site.toml; None when there is none.

    Raises:
        PolicyError: it is there and cannot be used.
    """
    doc = read_document(path, reader)
    return None if doc is None else site_from_document(doc)


def from_document(doc: Document, kind: str, variables: Collection[str] = ()) -> Policy:
    """Check a document and return the policy that it is.

    Args:
        doc: a parsed file.
        kind: as in `HEADS`.
        variables: names that the site defines.

    Raises:
        PolicyError: the first thing that is wrong with it.
    """
    reading = Reading(doc, known_variables(kind, variables))
    if kind == "project":
        reading = replace(reading, most=PROJECT_MOST)
    data = doc.data
    check_schema(reading)
    heads = HEADS[kind]
    for name in data:
        if name not in heads and name not in TABLES:
            _unknown_head(reading, name, kind)
    texts = {
        name: reading.text(data[name], (name,), name, empty=False)
        for name in ("description", "reason", "opens", "tried")
        if name in data
    }
    if kind == "overlay":
        for name in ("reason", "opens"):
            if name not in texts:
                raise PolicyError(f"{printable(doc.file)}:1:1: an overlay says its {name!r}; add it at the top")
    stem = os.path.basename(doc.file).removesuffix(".toml")
    name = stem if NAME.fullmatch(stem) else kind
    if "name" in data:
        name = reading.name(data["name"], ("name",), "name")
    extends = None
    if "extends" in data:
        base = reading.name(data["extends"], ("extends",), "extends")
        extends = Item(base, reading.origin(("extends",)))
    overlays = tuple(
        Item(reading.name(each, ("overlays", index), "an overlay"), reading.origin(("overlays", index)))
        for index, each in enumerate(reading.array(data.get("overlays", []), ("overlays",), "overlays"))
    )
    settings: dict[str, Setting] = {}
    reason = texts.get("reason", "")
    for table in TABLES:
        if table in data:
            settings.update(_table(reading, table, data[table], reason))
    return Policy(
        name=name,
        kind=kind,
        file=doc.file,
        description=texts.get("description", ""),
        reason=reason,
        opens=texts.get("opens", ""),
        tried=texts.get("tried", ""),
        extends=extends,
        overlays=overlays,
        settings=settings,
        doc=doc,
    )


def check_schema(reading: Reading) -> None:
    """Check that a file says which schema it is written in.

    Raises:
        PolicyError: it does not, or is written in one of the future.
    """
    value = reading.doc.data.get("schema")
    if value is None:
        raise PolicyError(f"{printable(reading.doc.file)}:1:1: schema is missing; begin with `schema = {SCHEMA}`")
    if isinstance(value, bool) or value != SCHEMA:
        reading.fail(("schema",), f"schema is {SCHEMA}, the only one that this guard reads")


def _unknown_head(reading: Reading, name: str, kind: str) -> None:
    for other, heads in HEADS.items():
        if name in heads:
            reading.fail((name,), f"{name!r} belongs in a file of kind {other}, not {kind}", of_key=True)
    for dotted in KEYS:
        if dotted.split(".")[1] == name:
            reading.fail((name,), f"unknown key {name!r}; did you mean {dotted}?", of_key=True)
    reading.unknown((name,), name, (*HEADS[kind], *TABLES), "key or table")


def _table(reading: Reading, table: str, value: object, reason: str) -> dict[str, Setting]:
    names = {key.split(".")[1]: KEYS[key] for key in TABLES[table]}
    content = reading.table(value, (table,), (*names, "reason"), f"[{table}]")
    if "reason" in content:
        reason = reading.text(content["reason"], (table, "reason"), "reason", empty=False)
    return {
        names[name].name: read_setting(reading, names[name], each, (table, name), reason)
        for name, each in content.items()
        if name != "reason"
    }


def site_from_document(doc: Document) -> SiteFile:
    """Check a site.toml.

    Raises:
        PolicyError: the first thing that is wrong with it.
    """
    reading = Reading(doc, frozenset(("user", "home", "uid")))
    variables = _site_variables(reading, doc.data.get("variables", {}))
    places = Reading(doc, known_variables("site", variables))
    content = reading.table(doc.data.get("site", {}), ("site",), SITE_KEYS, "[site]")
    audit = content.get("audit", "allow")
    if not isinstance(audit, str) or audit not in AUDIT:
        reading.fail(("site", "audit"), f"audit is one of {', '.join(AUDIT)}")
    default = reading.name(content.get("default_policy", "login-node"), ("site", "default_policy"), "default_policy")
    roots = reading.array(content.get("project_roots", []), ("site", "project_roots"), "project_roots")
    project_roots: list[str] = []
    for index, each in enumerate(roots):
        where = ("site", "project_roots", index)
        path = places.path(each, where, "a project root")
        for name in ("project", "tmp"):
            if name in paths.variables(path):
                reading.fail(where, f"{{{name}}} differs by session; a root is the site's")
        project_roots += paths.fill(path, variables)
    harnesses = reading.array(content.get("harnesses", []), ("site", "harnesses"), "harnesses")
    tmp = reading.path(content.get("tmp", "/tmp"), ("site", "tmp"), "tmp")  # noqa: S108 - the default
    site = Site(
        audit=audit,
        default_policy=default,
        project_roots=tuple(project_roots),
        tmp=tmp,
        variables=variables,
        harnesses=tuple(
            reading.name(each, ("site", "harnesses", index), "a harness") for index, each in enumerate(harnesses)
        ),
        file=doc.file,
    )
    return SiteFile(site, from_document(doc, "site", variables))


def _site_variables(reading: Reading, value: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        reading.fail(("variables",), f"[variables] is a table, not {describe(value)}")
    out: dict[str, tuple[str, ...]] = {}
    for name, content in value.items():
        where = ("variables", name)
        try:
            paths.check_name(name)
        except ValueError as error:
            reading.fail(where, str(error), of_key=True)
        listed = content if isinstance(content, list) else [content]
        texts: list[str] = []
        for index, each in enumerate(listed):
            place = (*where, index) if isinstance(content, list) else where
            text = reading.text(each, place, "a variable's value", empty=False)
            try:
                paths.check_variables(text, reading.variables)
            except ValueError as error:
                reading.fail(place, str(error))
            texts.append(text)
        out[name] = tuple(texts)
    return out
