"""`guard on`: takes root's switch back."""

from __future__ import annotations

import os
import sys

import typer

from guard.cli.off import allowed
from guard.entry import off as switch
from guard.entry.start import told

app = typer.Typer()


@app.command()
def on(context: typer.Context) -> None:
    """Start programs under guard again."""
    config = context.obj.config
    allowed(config)
    path = os.path.join(config, switch.NAME)
    if not os.path.lexists(path):
        sys.stderr.write("guard is on\n")
        return
    os.unlink(path)
    told("switched-on", "guard was switched on again on this node", {})
    sys.stderr.write("guard is on again\n")
