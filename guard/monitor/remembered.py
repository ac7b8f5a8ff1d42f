"""What the monitor remembers over a restart: its trees, when it last watched, and how good it was.

One file in root's state, replaced whole. It is of one boot: after another, pids mean nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from guard.monitor.lineage import Tree

FILE = "monitor.json"
_MOST = 64 << 20
_TREE = (
    "pid",
    "start",
    "harness",
    "how",
    "confidence",
    "uid",
    "since",
    "session",
    "user",
    "login",
    "slurm_job",
    "guarded",
)


@dataclass(frozen=True)
class Remembered:
    """What the last monitor left.

    Args:
        boot: the boot it ran in.
        until: seconds since 1970 at which it last watched; 0: never.
        backend: its backend's name.
        see: rule → `all`, `part` or `no`; `act`: rule → what it could do.
        trees: with (pid, start) of their processes.
        clean: it was stopped, and did not die.
    """

    boot: str = ""
    until: float = 0.0
    backend: str = ""
    see: Mapping[str, str] = field(default_factory=dict)
    act: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    trees: tuple[tuple[Tree, tuple[tuple[int, int], ...]], ...] = ()
    clean: bool = False

    def save(self, directory: str) -> None:
        """Write it, for the next one.

        Raises:
            OSError: it cannot be written.
        """
        data = {
            "boot": self.boot,
            "until": self.until,
            "backend": self.backend,
            "see": dict(self.see),
            "act": {name: list(acts) for name, acts in self.act.items()},
            "clean": self.clean,
            "trees": [
                {**{name: getattr(tree, name) for name in _TREE}, "processes": living} for tree, living in self.trees
            ],
        }
        path = os.path.join(directory, FILE)
        with open(f"{path}.new", "w", encoding="ascii", opener=_private) as file:
            json.dump(data, file)
        os.replace(f"{path}.new", path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def load(directory: str) -> Remembered:
    """Read what was left; nothing where there is no file, or it is damaged."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        path = os.path.join(directory, FILE)
        if os.stat(path).st_size > _MOST or os.stat(path).st_uid not in (0, os.geteuid()):
            return Remembered()
        with open(path, encoding="ascii") as file:
            data = json.load(file)
        return Remembered(
            str(data["boot"]),
            float(data["until"]),
            str(data["backend"]),
            {str(name): str(value) for name, value in data["see"].items()},
            {str(name): tuple(map(str, acts)) for name, acts in data["act"].items()},
            tuple(_tree(row) for row in data["trees"]),
            bool(data["clean"]),
        )
    return Remembered()


def _tree(row: Mapping[str, object]) -> tuple[Tree, tuple[tuple[int, int], ...]]:
    tree = Tree(**{name: row[name] for name in _TREE})  # type: ignore[arg-type]
    tree.seeded = True
    living = row["processes"]
    if not isinstance(living, Iterable):
        raise TypeError("processes")
    return tree, tuple((int(pid), int(start)) for pid, start in living)


_RANK = ("no", "part", "all")


def worse(before: Remembered, backends: tuple[str, ...], backend: str, see: Mapping[str, str],
          act: Mapping[str, tuple[str, ...]]) -> list[str]:  # fmt: skip
    """Say in words what is worse than at the last start; [] for nothing.

    Args:
        before: the last one.
        backends: from the best to the least.
        backend, see, act: of now.
    """
    out = []
    if before.backend in backends and backend in backends and backends.index(backend) > backends.index(before.backend):
        out.append(f"backend {backend} instead of {before.backend}")
    for name, value in before.see.items():
        now = see.get(name, "no")
        if value in _RANK and now in _RANK and _RANK.index(now) < _RANK.index(value):
            out.append(f"{name} is seen {'in part' if now == 'part' else 'no more'}")
    for name, acts in before.act.items():
        gone = [each for each in acts if each not in act.get(name, ())]
        if gone:
            out.append(f"{name} cannot be met with {' or '.join(gone)} any more")
    return out
