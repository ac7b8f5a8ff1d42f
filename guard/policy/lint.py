"""Checking policies off the node: one file, or a whole checkout of a site's configuration.

Nothing here asks the host anything; what is found is the same on a laptop, in CI and on the node.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from guard.errors import PolicyError
from guard.policy import layers
from guard.policy.assign import USER_FILE, exception_files
from guard.policy.dangers import dangers_of
from guard.policy.keys import KEYS, Tighten
from guard.policy.library import Library
from guard.policy.load import PROJECT_FILE, load_site
from guard.policy.model import Item, Origin, Policy, Setting, Site
from guard.policy.rows import Assignment, Exemption, load_assignments, load_exceptions
from guard.policy.source import Document, printable, read_document
from guard.policy.values import NAME

_ERROR_PLACE = re.compile(r"(?P<file>.*?):(?P<line>\d+):(?P<column>\d+): (?P<what>.*)", re.DOTALL)
_FOLDERS = ("policies", "exceptions.d")
_FILES = ("site.toml", "assign.toml")


@dataclass(frozen=True, order=True)
class Finding:
    """One thing to mend.

    Args:
        file: the path.
        line, column: counted from 1, 0 where the whole file is meant.
        level: `error` (the file is refused) or `warning`.
        message: a sentence; an error's carries the source line and a caret.
    """

    file: str
    line: int
    column: int
    level: str
    message: str

    def __str__(self) -> str:
        at = f"{printable(self.file)}:" + (f"{self.line}:{self.column}:" if self.line else "")
        return f"{at} {self.level}: {self.message}"


def finding_of(error: PolicyError) -> Finding:
    """Return an error of the loader as a finding."""
    match = _ERROR_PLACE.fullmatch(error.what)
    if match is None:
        file, _, what = error.what.partition(": ")
        return Finding(file, 0, 0, "error", what)
    return Finding(match["file"], int(match["line"]), int(match["column"]), "error", match["what"])


@dataclass
class _Lint:
    """A run over one set of files."""

    shipped_dir: str
    now: float
    site: Site = field(default_factory=Site)
    directories: tuple[str, ...] = ()
    found: list[Finding] = field(default_factory=list)

    def try_(self, step: Callable[[], None]) -> None:
        """Do a step; what the loader refuses becomes a finding."""
        try:
            step()
        except PolicyError as error:
            self.found.append(finding_of(error))

    def warn(self, origin: Origin, message: str) -> None:
        self.found.append(Finding(origin.file, origin.line, origin.column, "warning", message))

    def library(self) -> Library:
        return Library((*self.directories, self.shipped_dir), self.site.variables)

    # One kind of file each --------------------------------------------------------------------------

    def site_file(self, path: str) -> None:
        sitefile = load_site(path)
        if sitefile is None:
            return
        self.site = sitefile.site
        library = self.library()
        library.filled(sitefile.floor)
        for name in self.site.harnesses:
            if library.named(name, "overlay") is None:
                self.warn(Origin(path, 1, "", 1), f"harness {name}: there is no overlay of that name")
        if library.named(self.site.default_policy) is None and sitefile.floor.doc is not None:
            where = ("site", "default_policy")
            raise sitefile.floor.doc.error(where, f"there is no policy {self.site.default_policy!r}")

    def policy_file(self, path: str, kind: str) -> None:
        library = self.library()
        if kind == "project":
            library = Library((self.shipped_dir,), self.site.variables)
        policy = library.read(path, kind)
        if policy is None:
            raise PolicyError(f"{printable(path)}: there is no such file")
        chain = library.chain(policy)
        whole = library.flatten(policy, layers.complete({}))
        stem = os.path.basename(path).removesuffix(".toml")
        if kind in ("policy", "overlay") and policy.name != stem:
            self.warn(Origin(path, 1, "", 1), f"is named {policy.name!r}, and found by the name {stem!r}")
        if kind in ("policy", "overlay"):
            base = layers.complete({})
            for each in chain[:-1]:
                base = library.flatten(each, base)
            self.reasons(policy, library.filled(policy), base)
            for item, key, danger in dangers_of(policy, library.filled(policy), whole):
                self.warn(item.origin, f"{key}: {item.value}: {danger.why}")

    def reasons(self, policy: Policy, own: Mapping[str, Setting], base: Mapping[str, Setting]) -> None:
        for name, setting in own.items():
            widened = [item for item in _wider(name, setting, base[name]) if not item.origin.reason]
            if widened:
                first = widened[0]
                more = f" and {len(widened) - 1} more" if len(widened) > 1 else ""
                value = f"{name}: {first.value}{more}" if KEYS[name].kind.is_list else f"{name} = {first.value}"
                self.warn(first.origin, f"{value} widens without a reason")

    def assign_file(self, path: str) -> None:
        rows = load_assignments(path) or ()
        for index, row in enumerate(rows):
            self.try_(lambda row=row: self.row(row))  # type: ignore[misc]
            above = next((each for each in rows[:index] if each.subject.covers(row.subject)), None)
            if above is not None:
                self.warn(row.origin, f"is never reached: line {above.origin.line} matches all that this does")

    def row(self, row: Assignment) -> None:
        library = self.library()
        named = [("policy", row.policy)] if row.policy else []
        for kind, item in [*named, *(("overlay", each) for each in row.overlays)]:
            if library.named(str(item.value), kind) is None:
                raise row.doc.error_at(item.origin.line, item.origin.column, f"there is no {kind} {item.value!r}")
        if row.mode != "enforce" and not row.reason:
            self.warn(row.origin, f"mode = {row.mode} widens without a reason")

    def exception_file(self, path: str) -> None:
        notes: list[str] = []
        for each in load_exceptions(path, self.site.variables, notes) or ():
            self.exemption(each)

    def exemption(self, each: Exemption) -> None:
        if each.until <= self.now:
            self.warn(each.origin, "has ended and is ignored; remove it")
        whole = layers.complete({})
        stand_in = Policy("exception", "exception", each.origin.file)
        for item, key, danger in dangers_of(stand_in, dict(each.widen), whole):
            if KEYS[key].tighten is not Tighten.UNION:
                self.warn(item.origin, f"{key}: {item.value}: {danger.why}")

    def any_file(self, path: str, kind: str) -> None:
        steps: dict[str, Callable[[], None]] = {
            "site": lambda: self.site_file(path),
            "assign": lambda: self.assign_file(path),
            "exceptions": lambda: self.exception_file(path),
        }
        self.try_(steps.get(kind, lambda: self.policy_file(path, kind)))


def _wider(name: str, setting: Setting, base: Setting) -> list[Item]:
    """Return what a file's own setting opens beyond what it adds to."""
    key = KEYS[name]
    if key.tighten is Tighten.UNION or base.everything:
        return []
    if setting.everything:
        return [Item("any", setting.origin)]
    if not key.kind.is_list:
        return list(setting.items) if layers.tighter(key, base, setting) else []
    inside = layers.WITHIN[key.kind]
    return [item for item in setting.items if not any(inside(there.value, item.value) for there in base.items)]


def kind_of(path: str, doc: Document | None) -> str:
    """Tell what kind of file a path is, by its name and place, else by what stands in it."""
    name, folder = os.path.basename(path), os.path.basename(os.path.dirname(os.path.abspath(path)))
    by_name = {"site.toml": "site", "assign.toml": "assign", PROJECT_FILE: "project"}
    if name in by_name:
        return by_name[name]
    if folder in ("exceptions.d", "overlays"):
        return "exceptions" if folder == "exceptions.d" else "overlay"
    if name == USER_FILE and folder == "guard":
        return "user"
    data = doc.data if doc is not None else {}
    for head, kind in (
        ("assign", "assign"),
        ("exception", "exceptions"),
        ("site", "site"),
        ("variables", "site"),
        ("opens", "overlay"),
    ):
        if head in data:
            return kind
    return "policy"


def lint(path: str, shipped_dir: str, now: float) -> list[Finding]:
    """Check a file or a directory.

    Args:
        path: a file of any kind, a site's configuration directory, or a directory of policies.
        shipped_dir: the policies that ship, which those of the site build on.
        now: seconds since the epoch, for what has ended.

    Returns:
        Findings by file and line; none when all is well.
    """
    run = _Lint(shipped_dir, now)
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return [Finding(path, 0, 0, "error", f"cannot be read: {reason}")]
    if stat.S_ISDIR(mode):
        _directory(run, path)
    else:
        _single(run, path)
    return sorted(dict.fromkeys(run.found))


def _single(run: _Lint, path: str) -> None:
    try:
        kind = kind_of(path, read_document(path))
    except PolicyError as error:
        run.found.append(finding_of(error))
        return
    top = _top_of(path)
    run.directories = (os.path.join(top, "policies"),)
    site = os.path.join(top, "site.toml")
    if kind != "site" and os.path.lexists(site):
        # Its variables count; what is wrong with it is told when it is linted itself.
        with_site = _Lint(run.shipped_dir, run.now, directories=run.directories)
        with_site.any_file(site, "site")
        run.site = with_site.site
    run.any_file(path, kind)


def _top_of(path: str) -> str:
    """Return the configuration directory that a file belongs to."""
    top = os.path.dirname(os.path.abspath(path))
    while os.path.basename(top) in ("overlays", *_FOLDERS):
        top = os.path.dirname(top)
    return top


def _directory(run: _Lint, path: str) -> None:
    entries = set(_listed(run, path))
    if entries.isdisjoint((*_FILES, *_FOLDERS)):
        run.directories = (path,)
        _policies(run, path)
        return
    run.directories = (os.path.join(path, "policies"),)
    for name, kind in (("site.toml", "site"), ("assign.toml", "assign")):
        if name in entries:
            run.any_file(os.path.join(path, name), kind)
    if "policies" in entries:
        _policies(run, os.path.join(path, "policies"))

    def exceptions() -> None:
        for file in exception_files(path):
            run.any_file(file, "exceptions")

    run.try_(exceptions)
    for name in sorted(entries):
        near = difflib.get_close_matches(name, (*_FILES, *_FOLDERS), 1, 0.8)
        if near and name != near[0]:
            run.warn(Origin(os.path.join(path, name), 0), f"is read by nobody; did you mean {near[0]}?")


def _policies(run: _Lint, folder: str) -> None:
    for place, kind in ((folder, "policy"), (os.path.join(folder, "overlays"), "overlay")):
        for name in sorted(_listed(run, place)):
            file = os.path.join(place, name)
            if not name.endswith(".toml"):
                continue
            if not NAME.fullmatch(name.removesuffix(".toml")):
                run.warn(Origin(file, 0), "cannot be named: names have letters, digits, . _ and - only")
                continue
            run.any_file(file, kind)


def _listed(run: _Lint, folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        run.found.append(Finding(folder, 0, 0, "error", f"cannot be listed: {error.strerror}"))
        return []
