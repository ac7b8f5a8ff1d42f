"""What of a person is left out of an event, before anything is stored.

How much is kept goes by severity, and by control where a site says so: from medium on everything, since a person
must judge it; below, the program's name and no working directory. What this takes out is nowhere else: not in the
spool, not in a feed.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from guard.events.wire import Severity

ARGV: Final = ("none", "program", "full")
PATHS: Final = ("hashed", "below-project", "full")
_MARK: Final = "[PATH:"
# A path within a text: what begins with a slash behind a blank, a bracket, a quote, a colon or an equals sign.
_IN_TEXT: Final = re.compile(r"(?:(?<=[\s'\"(=:\[,])|^)/[^\s'\"()\[\],]+")


@dataclass(frozen=True)
class Keep:
    """How much is kept.

    Args:
        argv: `none`, the `program`'s name, or `full`.
        paths: `full`, `below-project` (others hashed), or `hashed`.
        cwd: as `paths`, or `none`.
    """

    argv: str = "full"
    paths: str = "full"
    cwd: str = "full"


@dataclass(frozen=True)
class Rule:
    """Another measure for some controls and severities.

    Args:
        controls: names; empty for all.
        least, most: severities, both included.
        keep: the measure.
        names: which of its three it sets.
    """

    controls: frozenset[str]
    least: int
    most: int
    keep: Keep
    names: frozenset[str]


@dataclass(frozen=True)
class Privacy:
    """A site's measure.

    Args:
        alert: from medium on.
        log: below.
        rules: exceptions, each after the other.
        exempt_users: uids of whom nothing below medium is stored, and nothing that names what they worked on.
        exempt_groups: the same for the members of these.
    """

    alert: Keep = Keep()
    log: Keep = Keep("program", "full", "none")
    rules: tuple[Rule, ...] = ()
    exempt_users: frozenset[int] = frozenset()
    exempt_groups: frozenset[str] = frozenset()

    def measure(self, control: str, severity: Severity) -> Keep:
        """How much is kept of an event."""
        keep = self.alert if severity >= Severity.MEDIUM else self.log
        for rule in self.rules:
            if rule.least <= severity <= rule.most and (not rule.controls or control in rule.controls):
                keep = Keep(**{
                    name: getattr(rule.keep if name in rule.names else keep, name) for name in ("argv", "paths", "cwd")
                })
        return keep

    def exempts(self, uid: int, groups: frozenset[str]) -> bool:
        """Whether a user is exempt; that it is so stands in each event about him."""
        return uid in self.exempt_users or bool(self.exempt_groups and groups & self.exempt_groups)


EXEMPT: Final = Keep("none", "hashed", "none")


def node_key(spool: str) -> bytes:
    """The node's key for hashed paths, made once.

    Args:
        spool: the spool's directory, where it lies.
    """
    path = os.path.join(spool, "paths.key")
    try:
        with open(path, "rb") as file:
            key = file.read(32)
        if len(key) == 32:
            return key
    except FileNotFoundError:
        pass
    key = os.urandom(32)
    fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(fd)
    os.replace(f"{path}.new", path)
    return key


class Minimiser:
    """Takes out of an event what is not to be kept.

    Args:
        key: for the hashes of paths; the node's own, so that the same path has the same hash here and nowhere else.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def hashed(self, path: str) -> str:
        """What stands for a path that is not kept."""
        if path.startswith(_MARK):
            return path
        return f"{_MARK}{hmac.new(self._key, path.encode('utf-8', 'replace'), sha256).hexdigest()[:12]}]"

    def minimise(self, whole: dict[str, object], keep: Keep, exempt: bool = False) -> None:
        """Take out, in place, what a measure does not keep.

        Args:
            whole: the event's JSON object.
            keep: how much is kept.
            exempt: whether the user is exempt, which the event then says.
        """
        process = whole.get("process")
        # Only a measure of paths asks for it.
        project = _project(whole) if keep.paths != "full" or keep.cwd not in ("full", "none") else ""
        if isinstance(process, dict):
            self._process(process, keep, project)
        if keep.paths != "full":
            for name in ("detail", "message"):
                if name in whole:
                    whole[name] = self._texts(whole[name], keep.paths, project)
            for name in whole.keys() - {"detail", "message", *_KNOWN}:
                whole[name] = self._texts(whole[name], keep.paths, project)
        if exempt:
            detail = whole.get("detail")
            whole["detail"] = {**(detail if isinstance(detail, dict) else {}), "exempt": True}

    def _process(self, process: dict[str, object], keep: Keep, project: str) -> None:
        argv = process.get("argv")
        if isinstance(argv, list) and keep.argv != "full":
            first = str(argv[0]).rpartition("/")[2] if argv else ""
            process.setdefault("argc", len(argv))
            process["argv"] = [first] if first and keep.argv == "program" else []
        elif isinstance(argv, list) and keep.paths != "full":
            process["argv"] = [self._texts(each, keep.paths, project) for each in argv]
        exe = process.get("exe")
        if isinstance(exe, str) and (keep.paths != "full" or keep.argv != "full"):
            process["exe"] = "" if keep.argv == "none" else exe.rpartition("/")[2]
        cwd = process.get("cwd")
        if isinstance(cwd, str):
            process["cwd"] = "" if keep.cwd == "none" else self._texts(cwd, keep.cwd, project)

    def _texts(self, value: object, paths: str, project: str) -> object:
        if isinstance(value, str):
            if value.startswith("/"):
                return self._path(value, paths, project)  # a path by itself may hold blanks
            return _IN_TEXT.sub(lambda found: self._path(found.group(), paths, project), value)
        if isinstance(value, dict):
            return {name: self._texts(each, paths, project) for name, each in value.items()}
        if isinstance(value, list):
            return [self._texts(each, paths, project) for each in value]
        return value

    def _path(self, path: str, paths: str, project: str) -> str:
        if paths == "full":
            return path
        if paths == "below-project" and project and (path == project or path.startswith(project + "/")):
            return "{project}" + path[len(project) :]
        return self.hashed(path)


_KNOWN: Final = frozenset({
    "schema", "id", "time", "host", "boot", "producer", "seq", "origin", "control", "rule", "severity", "verdict",
    "policy", "mitre", "tree", "process",
})  # fmt: skip


def _project(whole: Mapping[str, object]) -> str:
    """The project of the session, where the event names it."""
    detail = whole.get("detail")
    named = detail.get("project") if isinstance(detail, dict) else None
    if not isinstance(named, str):
        tree = whole.get("tree")
        named = tree.get("project") if isinstance(tree, dict) else None
    return named.rstrip("/") if isinstance(named, str) and named.startswith("/") else ""
