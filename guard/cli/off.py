"""`guard off`: root's switch for this node."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import typer

from guard.entry import off as switch
from guard.entry.start import told
from guard.errors import UsageError
from guard.hooks import blocks

app = typer.Typer()


def allowed(config: str) -> None:
    """Refuse who may not switch.

    Raises:
        UsageError: only root switches a node.
    """
    if os.geteuid() != 0 and config == "/etc/guard":
        raise UsageError("only root switches guard off or on", "ask the site")


@app.command()
def off(
    context: typer.Context,
    reason: Annotated[str, typer.Option("--reason", help="Why; everybody sees it.")] = "",
    until: Annotated[str, typer.Option("--until", help="30m, 8h, 2d, or 2026-11-30T18:00 (UTC).")] = "",
) -> None:
    """Start plain programs on this node at once: shims, login shells; redaction goes on."""
    config = context.obj.config
    allowed(config)
    if not reason.strip():
        raise UsageError("--reason is missing", "say why: everybody who meets the switch sees it")
    end = switch.moment(until) if until else 0.0
    if end is None or (end and end <= time.time()):
        raise UsageError(f"--until {until!r} is no time to come", "30m, 8h, 2d, or 2026-11-30T18:00 (UTC)")
    path = os.path.join(config, switch.NAME)
    blocks.write(path, switch.text(reason, end).encode())
    told("switched-off", "guard was switched off on this node", {"until": int(end)}, "high")
    rest = f"until {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(end))}" if end else "until `guard on`"
    sys.stderr.write(f"guard is off on this node {rest}; what runs under it already, and `guard run`, stays so\n")
