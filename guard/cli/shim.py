"""`guard shim`: names of agents on PATH that start them under guard."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from guard.cli.history import program, target
from guard.entry import shim, shims
from guard.errors import UsageError
from guard.history.install import Target, shells_here
from guard.history.render import SHELLS
from guard.monitor.catalogue import shipped

app = typer.Typer(no_args_is_help=True, help="Start agents under guard by their names.")

_System = Annotated[bool, typer.Option("--system", help="For every user of this node (root).")]
_Root = Annotated[str, typer.Option("--root", metavar="DIR", help="With --system: below this directory, as an image.")]


@app.callback()
def top() -> None:
    """Start agents under guard by their names."""


def _start_files(where: Target, shells: tuple[str, ...]) -> list[tuple[str, str, bool]]:
    found = [(shell, *where.file(shell)) for shell in shells]
    files = [(shell, file.replace("guard-history.fish", "guard-shims.fish"), own) for shell, file, own in found]
    if not where.home:
        files.append(("bash", where.root + shims.PROFILE, True))  # login shells of bash and sh, and what they start
    return files


@app.command()
def install(
    ctx: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Names of agents; all of the catalogue if none.")] = None,
    system: _System = False,
    root: _Root = "",
) -> None:
    """Put a shim for each agent first on PATH."""
    where = target(ctx, system, root)
    known = shim.names(shipped(), "low")
    for name in names or ():
        if name not in known:
            raise UsageError(f"no agent is started as {name!r}", f"known: {', '.join(known)}")
    files = _start_files(where, shells_here("all"))
    for file in shims.install(where.folder, files, program(), names or ()):
        sys.stderr.write(f"{file}: puts the shims first from the next shell on\n")


@app.command()
def uninstall(ctx: typer.Context, system: _System = False, root: _Root = "") -> None:
    """Take the shims away, and leave the start-up files as they were."""
    where = target(ctx, system, root)
    for file in shims.uninstall(where.folder, _start_files(where, SHELLS)):
        sys.stderr.write(f"{file}: as before\n")


@app.command("list")
def list_(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    system: _System = False,
) -> None:
    """Tell where each agent's name leads on your PATH."""
    where = target(ctx, system, "")
    rows = shims.rows(shims.folder(where.folder), os.environ.get("PATH", ""))
    if as_json:
        told = [{"name": r.name, "program": r.real, "shim": r.reached} for r in rows]
        sys.stdout.write(json.dumps(told, indent=1) + "\n")
        return
    for row in rows:
        if row.real:
            way = "under guard" if row.reached else "NOT under guard: another folder stands before the shims on PATH"
            sys.stdout.write(f"{row.name:14} {way:12}  {row.real}\n")
    missing = sum(not row.real for row in rows)
    sys.stderr.write(f"{len(rows)} shims, {missing} of agents that are not installed\n")
