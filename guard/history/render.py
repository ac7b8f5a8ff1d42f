"""The file that a shell reads: a template of hooks/shell with guard's path, the prefilter and the exceptions in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from guard.history.prefilter import LOOP, expression, pattern, programs

FOLDER: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "shipped", "hooks", "shell")
_SOURCE: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "hooks", "shell")

SHELLS: Final = ("bash", "zsh", "fish", "tcsh")


@dataclass(frozen=True)
class Exceptions:
    """Whom a site leaves out.

    Args:
        uids: users.
        gids: groups, of which one is enough.
    """

    uids: Sequence[int] = ()
    gids: Sequence[int] = ()


def _single(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_QUOTE: Mapping[str, Callable[[str], str]] = {"bash": _single, "zsh": _single, "fish": _fish, "tcsh": _single}


def _wanted(shell: str, exceptions: Exceptions) -> str:
    """Return a condition in the shell's language that fails for who is left out; it costs nothing where nobody is."""
    uids = [str(uid) for uid in exceptions.uids]
    gids = [str(gid) for gid in exceptions.gids]
    if not uids and not gids:
        return "true" if shell != "tcsh" else "1"
    asked = _ASK_TCSH if shell == "tcsh" else _ASK
    command = asked.format(uids="|".join(uids) or "-", gids="|".join(gids) or "-")
    return {"fish": f"sh -c {_fish(command)}", "tcsh": command}.get(shell, f"sh -c {_single(command)}")


_ASK = 'case $(id -u) in {uids}) exit 1;; esac; for g in $(id -G); do case $g in {gids}) exit 1;; esac; done'
_ASK_TCSH = "{{ sh -c 'case `id -u` in {uids}) exit 1;; esac; for g in `id -G`; do case $g in {gids}) exit 1;; esac; done' }}"  # noqa: E501


def hook(shell: str, guard: str, path: str, exceptions: Exceptions | None = None) -> dict[str, str]:
    """Return the files that a shell reads: name behind `path` → text.

    Args:
        shell: one of `SHELLS`.
        guard: the program guard, absolute.
        path: where the first of them will lie, absolute.
        exceptions: whom the site leaves out.
    """
    quote = _QUOTE[shell]
    values = {
        "@GUARD@": quote(guard),
        "@HOOK@": quote(path) if shell != "tcsh" else path,
        "@FOLDER@": quote(os.path.dirname(path)) if shell != "tcsh" else os.path.dirname(path),
        "@PREFILTER@": quote(expression()),
        "@SHORT@": quote(expression(called=False)),
        "@PROGRAMS@": " ".join(f"[{name}]=1" for name in programs()),
        "@PATTERN@": pattern(),
        "@LOOP@": LOOP,
        "@WANTED@": _wanted(shell, exceptions or Exceptions()),
    }
    files = {"": template(f"history.{shell}", values)}
    if shell == "tcsh":
        files[".file"] = template("history.tcsh.file", values)
        files[".look"] = template("history.tcsh.look", values)
    return files


def template(name: str, values: Mapping[str, str]) -> str:
    """Return a file of hooks/shell with values in it."""
    folder = FOLDER if os.path.isdir(FOLDER) else _SOURCE
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        text = file.read()
    for key, value in values.items():
        text = text.replace(key, value)
    return text
