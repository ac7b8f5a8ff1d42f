"""`guard hooks`: the agents' own hooks, and git's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Annotated

import typer

from guard.cli.history import home, program
from guard.errors import UsageError
from guard.history import install as places
from guard.hooks import agents, git

app = typer.Typer(no_args_is_help=True, help="Advice before an agent's command, a scrub after it; git's hooks.")

_Agent = Annotated[str, typer.Argument(metavar="AGENT", help=f"{', '.join(agents.AGENTS)}, or git.")]


@app.callback()
def top() -> None:
    """Advice before an agent's command, a scrub after it; git's hooks."""


def _memory() -> str:
    return os.path.join(places.user(home(), os.environ).folder, "agents")


def _path(name: str) -> str:
    if name not in agents.AGENTS:
        raise UsageError(f"no hooks for {name!r}", f"known: {', '.join(agents.AGENTS)}, git")
    form = agents.AGENTS[name].file
    return form.format(home=home(), project=_project() if "{project}" in form else "")


def _project() -> str:
    done = subprocess.run(["git", "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=False)  # noqa: S607
    return done.stdout.strip() if done.returncode == 0 else os.getcwd()


@app.command()
def install(agent: _Agent) -> None:
    """Merge guard's hooks into an agent's settings, or into a repository for `git`."""
    if agent == "git":
        for path in git.install(_project(), program()):
            sys.stderr.write(f"{path}: asks guard from now on\n")
        return
    path = _path(agent)
    if agents.install(agent, path, program(), _memory()):
        sys.stderr.write(f"{path}: asks guard from the next session on\n")
    if agents.AGENTS[agent].note:
        sys.stderr.write(f"{agents.AGENTS[agent].note}\n")


@app.command()
def uninstall(agent: _Agent) -> None:
    """Take guard's hooks out again; the settings are as they were."""
    if agent == "git":
        for path in git.uninstall(_project()):
            sys.stderr.write(f"{path}: as before\n")
        return
    path = _path(agent)
    if agents.uninstall(agent, path, _memory()):
        sys.stderr.write(f"{path}: as before\n")


@app.command()
def show(agent: _Agent) -> None:
    """Print what `install` merges into an agent's settings, for those kept elsewhere."""
    _path(agent)
    made = agents.merged(dict(agents.AGENTS[agent].base or {}), agent, program())
    sys.stdout.write(json.dumps(made, indent=2) + "\n")
