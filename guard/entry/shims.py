"""The shims themselves, and the start-up files that put them first on PATH."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from guard.entry import shim
from guard.history.render import template
from guard.hooks import blocks
from guard.monitor.catalogue import shipped

PROFILE = "/etc/profile.d/guard-shims.sh"


@dataclass(frozen=True)
class Row:
    """One name of an agent on this account's PATH.

    Args:
        name: as it is typed.
        real: the program; "" where it is not installed.
        reached: whether the name leads to the shim.
    """

    name: str
    real: str
    reached: bool


def folder(hooks: str) -> str:
    """Return where shims lie: beside the hooks."""
    return os.path.join(os.path.dirname(hooks), "shims")


def install(hooks: str, start: Sequence[tuple[str, str, bool]], guard: str, names: Sequence[str]) -> list[str]:
    """Write shims and let the shells find them.

    Args:
        hooks: the folder of hooks.
        start: (shell, start-up file, whether it is guard's alone), as `guard.history.install.Target.file` gives them.
        guard: the program guard.
        names: of agents; () for all of the catalogue.

    Returns:
        The files that changed.
    """
    place = folder(hooks)
    wanted = names or shim.names(shipped())
    os.makedirs(place, exist_ok=True)
    for old in _there(place):
        if old not in wanted:
            os.unlink(os.path.join(place, old))
    for name in wanted:
        blocks.renew(os.path.join(place, name), shim.script(name, guard).encode(), 0o755)
    changed = []
    aliases = "\n".join(f"alias {name} {place}/{name}" for name in wanted)
    for shell, file, own in start:
        hook = os.path.join(hooks, f"shims.{shell}")
        text = template(f"shims.{shell}", {"@FOLDER@": place, "@ALIASES@": aliases})
        blocks.renew(hook, text.encode())
        if blocks.put(file, "shim", _source(shell, hook), own):
            changed.append(file)
    return changed


def _there(place: str) -> list[str]:
    """Return the names that have a shim in a folder."""
    names = sorted(os.listdir(place)) if os.path.isdir(place) else ()
    return [name for name in names if shim.is_shim(os.path.join(place, name))]


def _source(shell: str, path: str) -> str:
    if shell == "fish":
        return f"# made by `guard shim install`\ntest -r {path}; and source {path}\n"
    return f"if (-r {path}) source {path}" if shell == "tcsh" else f"[ ! -r {path} ] || . {path}"


def uninstall(hooks: str, start: Sequence[tuple[str, str, bool]]) -> list[str]:
    """Take shims and lines away again and return the start-up files that changed."""
    changed = []
    for shell, file, own in start:
        if blocks.take(file, "shim", own):
            changed.append(file)
        blocks.remove(os.path.join(hooks, f"shims.{shell}"))
    place = folder(hooks)
    for name in _there(place):
        os.unlink(os.path.join(place, name))
    for empty in (place, hooks, os.path.dirname(hooks)):
        try:
            os.rmdir(empty)
        except OSError:
            continue  # something else lies there, or nothing ever did
    return changed


def rows(place: str, path: str) -> list[Row]:
    """Return every name that has a shim, and where it leads on this PATH."""
    out = []
    for name in _there(place):
        first = shutil.which(name, path=path)
        out.append(Row(name, shim.find(name, path), first is not None and shim.is_shim(first)))
    return out
