"""What `guard doctor` says of the ways in which agents are started here: by name, by what else, and what runs now."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from guard.entry import shim, shims
from guard.history import install
from guard.monitor import answers
from guard.monitor.catalogue import shipped

if TYPE_CHECKING:
    from guard.cli import Places

MONITOR_ONLY = ("an absolute path", "npx, uvx, bunx, a package's own scripts", "an editor's extension host")
"""What no shim reaches (docs/shells.md); tests/entry/test_ways.py starts agents in each of these ways."""


_AGAIN = "open a new shell, or `guard shim install`"


class Agent(NamedTuple):
    """An agent that is installed here.

    Args:
        name: as it is typed.
        program: the real one, that stands first on PATH.
        state: `shim`, `shadowed` (a shim is there, behind it on PATH), or `missing` (there is no shim).
    """

    name: str
    program: str
    state: str


class Ways(NamedTuple):
    """How agents are started here.

    Args:
        agents: those on PATH.
        running: trees that the monitor sees, one's own, or everybody's for root; -1 where no monitor answers.
        unwrapped: harness → how many of them are without guard.
    """

    agents: tuple[Agent, ...] = ()
    running: int = -1
    unwrapped: Mapping[str, int] = {}


UNKNOWN = Ways()


def look(environment: Mapping[str, str], where: Places) -> Ways:
    """Find the agents of this PATH, and ask the monitor what runs."""
    path = environment.get("PATH", "")
    home = environment.get("HOME", "")
    folders = [shims.folder(install.node(where.config).folder)]
    if home:
        folders.append(shims.folder(install.user(home, environment).folder))
    agents = []
    for name in shim.names(shipped()):
        program = shim.find(name, path)
        if not program or shim.recognise(program, []) is None:
            continue
        first = shutil.which(name, path=path)
        there = any(os.path.exists(os.path.join(folder, name)) for folder in folders)
        state = "shim" if first and shim.is_shim(first) else "shadowed" if there else "missing"
        agents.append(Agent(name, program, state))
    try:
        trees = json.loads(answers.ask(answers.socket_path(where.state), b"ps"))["trees"]
    except (OSError, ValueError, KeyError):
        return Ways(tuple(agents))
    bare = Counter(str(tree["harness"] or "unknown") for tree in trees if not tree["guarded"])
    return Ways(tuple(agents), len(trees), dict(sorted(bare.items())))


def as_lines(ways: Ways) -> list[str]:
    """Say it in sentences."""
    out = []
    for state, words in (
        ("shim", "under guard by name: {names}"),
        ("shadowed", f"NOT under guard: {{names}}; another folder stands before the shims on PATH -> {_AGAIN}"),
        ("missing", "NOT under guard: {names}; no shim -> `guard shim install`"),
    ):
        names = ", ".join(agent.name for agent in ways.agents if agent.state == state)
        if names:
            out.append(words.format(names=names))
    out.append(f"monitor only, whatever the shims: {'; '.join(MONITOR_ONLY)}")
    if ways.running < 0:
        out.append("no monitor answers: what runs without guard is not counted")
    else:
        count = sum(ways.unwrapped.values())
        names = ", ".join(f"{name} {number}" for name, number in ways.unwrapped.items())
        out.append(f"{ways.running} running, {count} without guard" + (f": {names}" if names else ""))
    return out


def as_dict(ways: Ways) -> dict[str, object]:
    """Return it for JSON."""
    known = ways.running >= 0
    return {
        "agents": [agent._asdict() for agent in ways.agents],
        "monitor_only": list(MONITOR_ONLY),
        "running": ways.running if known else None,
        "unwrapped": dict(ways.unwrapped) if known else None,
    }
