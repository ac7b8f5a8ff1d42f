"""Where each shell's hook goes, for one user and for a whole node."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from guard.errors import GuardError
from guard.history.render import SHELLS, Exceptions, hook
from guard.hooks import blocks


@dataclass(frozen=True)
class Place:
    """Where a shell looks.

    Args:
        files: start-up files, the first that is there; the last where none is.
        own: whether the file is guard's alone (fish reads every file of a folder).
    """

    files: Sequence[str]
    own: bool = False


USER: Final[Mapping[str, Place]] = {
    "bash": Place(("{home}/.bashrc",)),
    "zsh": Place(("{zdotdir}/.zshrc",)),
    "fish": Place(("{config}/fish/conf.d/guard-history.fish",), own=True),
    "tcsh": Place(("{home}/.tcshrc", "{home}/.cshrc")),
}
NODE: Final[Mapping[str, Place]] = {
    "bash": Place(("/etc/bash.bashrc", "/etc/bashrc")),
    "zsh": Place(("/etc/zsh/zshrc", "/etc/zshrc")),
    "fish": Place(("/etc/fish/conf.d/guard-history.fish",), own=True),
    "tcsh": Place(("/etc/csh.cshrc",)),
}
"""/etc/profile.d is not enough: zsh, tcsh and nested shells do not read it (docs/shells.md)."""


@dataclass(frozen=True)
class Target:
    """Whose start-up files are edited.

    Args:
        home: the user's home; "" for the node.
        folder: where the hooks themselves lie.
        environment: for `ZDOTDIR` and `XDG_CONFIG_HOME`.
        root: stands before the node's paths (an image, a test).
    """

    home: str
    folder: str
    environment: Mapping[str, str]
    root: str = ""

    def file(self, shell: str) -> tuple[str, bool]:
        """Return the start-up file of a shell, and whether it is guard's alone."""
        place = USER[shell] if self.home else NODE[shell]
        names = [
            self.root
            + file.format(
                home=self.home,
                zdotdir=self.environment.get("ZDOTDIR") or self.home,
                config=self.environment.get("XDG_CONFIG_HOME") or f"{self.home}/.config",
            )
            for file in place.files
        ]
        there = [name for name in names if os.path.lexists(name)]
        return (there or names[-1:])[0], place.own


def user(home: str, environment: Mapping[str, str]) -> Target:
    """Return the target for one user."""
    data = environment.get("XDG_DATA_HOME") or f"{home}/.local/share"
    return Target(home, f"{data}/guard/hooks", environment)


def node(config: str, root: str = "") -> Target:
    """Return the target for the whole node; `config` is the configuration directory."""
    return Target("", f"{config}/hooks", {}, root)


def install(target: Target, shells: Sequence[str], guard: str, exceptions: Exceptions | None = None) -> list[str]:
    """Write the hooks and let the shells read them.

    Args:
        target: whose.
        shells: of `SHELLS`.
        guard: the program guard, absolute.
        exceptions: whom the site leaves out.

    Returns:
        The start-up files that changed.

    Raises:
        GuardError: a start-up file cannot be edited; those before it were.
    """
    changed = []
    for shell in shells:
        path = os.path.join(target.folder, f"history.{shell}")
        for suffix, text in hook(shell, guard, path, exceptions).items():
            blocks.renew(path + suffix, text.encode())
        file, own = target.file(shell)
        if blocks.put(file, "history", source(shell, path), own):
            changed.append(file)
    return changed


def source(shell: str, path: str) -> str:
    """Return the line of a start-up file that reads a hook; for fish, the whole file.

    Raises:
        GuardError: the path would have to be quoted, which each shell does otherwise.
    """
    if any(character in path for character in " '\"\\$`!"):
        raise GuardError(f"{path} cannot be named in a start-up file", "set XDG_DATA_HOME to a plain path")
    if shell == "tcsh":
        return f"if (-r {path}) source {path}"
    if shell == "fish":
        return f"# made by `guard history install`\ntest -r {path}; and source {path}\n"
    if shell == "bash":
        # A file that is read does not see the DEBUG trap of its reader: this line does.
        trap = '_guard_history_trap DEBUG _guard_history_debug "$(trap -p DEBUG)"'
        return f'if [ -r {path} ]; then . {path}; [ -z "${{_guard_history-}}" ] || {trap}; fi'
    return f"[ -r {path} ] && . {path}"


def uninstall(target: Target, shells: Sequence[str]) -> list[str]:
    """Take the hooks away again and return the start-up files that changed.

    Raises:
        GuardError: a block was damaged by hand.
    """
    changed = []
    for shell in shells:
        file, own = target.file(shell)
        if blocks.take(file, "history", own):
            changed.append(file)
        path = os.path.join(target.folder, f"history.{shell}")
        for suffix in ("", ".rx", ".file", ".look"):
            blocks.remove(path + suffix)
        _drop_empty(os.path.dirname(file) if own else "", target.home)
    _drop_empty(target.folder, target.home)
    return changed


def _drop_empty(folder: str, home: str) -> None:
    """Take away folders that hold nothing, up to the home: whether they were there before, nobody can tell."""
    while home and folder.startswith(home + "/") and folder not in (home + "/.config", home + "/.local"):
        try:
            os.rmdir(folder)
        except OSError:
            return  # not empty, or not there
        folder = os.path.dirname(folder)


def shells_here(wanted: str) -> tuple[str, ...]:
    """Return the shells that are meant: the one named, or each that this host has.

    Raises:
        GuardError: the name is none of `SHELLS`.
    """
    if wanted and wanted != "all":
        if wanted not in SHELLS:
            raise GuardError(f"no hook for the shell {wanted!r}", f"one of {', '.join(SHELLS)}, all")
        return (wanted,)
    folders = ("/bin", "/usr/bin", "/usr/local/bin")
    return tuple(shell for shell in SHELLS if any(os.access(f"{folder}/{shell}", os.X_OK) for folder in folders))
