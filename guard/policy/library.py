"""Finding policies by name, and making one partial mapping of all that a policy builds on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from guard.errors import PolicyError
from guard.policy import layers
from guard.policy.load import load
from guard.policy.model import Item, Origin, Policy, Setting
from guard.policy.source import Reader, printable, read_file
from guard.policy.values import NAME
from guard.policy.variables import fill

DEEPEST = 8
"""Most policies in one chain of `extends`."""


@dataclass
class Library:
    """Policies and overlays by name, looked up in directories in turn.

    Args:
        directories: each holds `NAME.toml` and `overlays/NAME.toml`; the first that has a name wins.
        variables: the site's, put into every value.
        reader: how files are read.
    """

    directories: tuple[str, ...]
    variables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reader: Reader = read_file

    def __post_init__(self) -> None:
        self.looked_for: dict[str, None] = {}
        self.layers: list[str] = []
        self.notes: list[str] = []

    def read_by(self, reader: Reader) -> Library:
        """Return a library of the same directories whose files are read in another way."""
        return Library(self.directories, self.variables, reader)

    def read(self, path: str, kind: str) -> Policy | None:
        """Read one file, and remember that it was looked for."""
        self.looked_for[path] = None
        return load(path, kind, variables=self.variables, reader=self.reader)

    def named(self, name: str, kind: str = "policy", beyond: str = "") -> Policy | None:
        """Find a policy or overlay by name; None when no directory has it.

        Args:
            name: NAME, never a path.
            kind: `policy` or `overlay`.
            beyond: a file: look only in the directories after its own, so that a site's `login-node` can
                extend the shipped one.
        """
        if not NAME.fullmatch(name):
            return None
        paths = [
            os.path.join(directory, *(["overlays"] if kind == "overlay" else []), f"{name}.toml")
            for directory in self.directories
        ]
        if beyond in paths:
            paths = paths[paths.index(beyond) + 1 :]
        for path in paths:
            policy = self.read(path, kind)
            if policy is not None:
                return policy
        return None

    def policy(self, name: str, asked_by: str) -> Policy:
        """Find a policy by name.

        Args:
            name: NAME.
            asked_by: who names it, for the error.

        Raises:
            PolicyError: there is none.
        """
        policy = self.named(name)
        if policy is None:
            raise PolicyError(f"{asked_by}: {self._missing(name, 'policy')}")
        return policy

    def overlay(self, name: str, asked_by: str) -> Policy:
        """Find an overlay by name.

        Raises:
            PolicyError: there is none.
        """
        policy = self.named(name, "overlay")
        if policy is None:
            raise PolicyError(f"{asked_by}: {self._missing(name, 'overlay')}")
        return policy

    def _missing(self, name: str, kind: str) -> str:
        places = ", ".join(printable(directory) for directory in self.directories)
        names = [each for each, _ in self.names(kind)]
        return f"there is no {kind} {printable(name)!r} in {places}; there are {', '.join(names) or 'none'}"

    def names(self, kind: str) -> list[tuple[str, str]]:
        """Return every (name, file) of a kind, what a former directory hides left out."""
        found: dict[str, str] = {}
        for directory in self.directories:
            folder = os.path.join(directory, "overlays") if kind == "overlay" else directory
            try:
                entries = sorted(os.listdir(folder))
            except OSError:
                continue  # a directory that is not there has no policies
            for entry in entries:
                name = entry.removesuffix(".toml")
                if name != entry and NAME.fullmatch(name):
                    found.setdefault(name, os.path.join(folder, entry))
        return sorted(found.items())

    def chain(self, policy: Policy) -> list[Policy]:
        """Return all that a policy extends, the root first, itself last.

        Raises:
            PolicyError: a name is not found, the chain closes, or is longer than `DEEPEST`.
        """
        out = [policy]
        while (extends := out[0].extends) is not None:
            name = str(extends.value)
            itself = os.path.basename(out[0].file) == f"{name}.toml"
            base = self.named(name, beyond=out[0].file if itself else "")
            if base is None:
                loop = itself and self.named(name) is not None
                sentence = f"{name!r} extends itself" if loop else self._missing(name, "policy")
                raise out[0].error(extends.origin, sentence)
            if any(base.file == other.file for other in out):
                names = " → ".join(other.name for other in (*reversed(out), base))
                raise out[0].error(extends.origin, f"extends goes in a circle: {names}")
            if len(out) == DEEPEST:
                names = " → ".join(other.name for other in (*reversed(out), base))
                raise out[0].error(extends.origin, f"extends more than {DEEPEST} policies deep: {names}")
            out.insert(0, base)
        return out

    def flatten(self, policy: Policy, start: Mapping[str, Setting]) -> dict[str, Setting]:
        """Apply a policy's chain and overlays, in order, to what is there.

        Args:
            policy: the leaf.
            start: complete for a policy at the base, empty for a layer that tightens.
        """
        out = dict(start)
        for each in self.chain(policy):
            out = layers.extend(out, self.filled(each))
            for item in each.overlays:
                out = self.laid(out, self._laid_by(each, item))
        return out

    def _laid_by(self, policy: Policy, item: Item) -> Policy:
        overlay = self.named(str(item.value), "overlay")
        if overlay is None:
            raise policy.error(item.origin, self._missing(str(item.value), "overlay"))
        return overlay

    def laid(self, settings: Mapping[str, Setting], overlay: Policy) -> dict[str, Setting]:
        """Apply one overlay."""
        return layers.overlay(settings, self.filled(overlay))

    def filled(self, policy: Policy) -> dict[str, Setting]:
        """Return a policy's settings with the site's variables, and count it as a layer."""
        self.layers.append(policy.file)
        return fill(policy, self.variables, self.notes)


def place(origin: Origin) -> str:
    """Write an origin short: the file's own name and the line."""
    return f"{os.path.basename(origin.file)}:{origin.line}"
