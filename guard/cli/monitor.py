"""`guard monitor`: the resident monitor, in the foreground."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from guard.errors import UsageError

app = typer.Typer()

_HARNESS = typer.Option(
    "--harness", metavar="NAME=BASENAME", help="Count a program of this name as a harness; again for more."
)
_EXTERNAL = typer.Option(
    "--external", metavar="CIDR", help="Count a network as outside, whatever else it is; again for more."
)
_BACKENDS = "auto|lsm|fmod|tracepoint|bcc|poll"


@app.command()
def monitor(
    context: typer.Context,
    backend: Annotated[str, typer.Option("--backend", metavar=_BACKENDS, help="How the kernel is watched.")] = "auto",
    enforce: Annotated[bool, typer.Option("--enforce", help="Deny what monitor.toml's [enforce] names.")] = False,
    harness: Annotated[list[str] | None, _HARNESS] = None,
    external: Annotated[list[str] | None, _EXTERNAL] = None,
) -> None:
    """Watch every agent's tree on this node, in the foreground, until told to stop (SIGTERM)."""
    from guard.monitor import catalogue, service, settings
    from guard.monitor.choose import open_source
    from guard.monitor.source import BACKENDS

    if backend not in (*BACKENDS, "auto"):
        raise UsageError(f"--backend {backend!r} is no backend", f"known are {', '.join(('auto', *BACKENDS))}")
    rows = tuple(map(catalogue.from_option, harness or ()))
    networks = tuple(map(settings.network, external or ()))
    if os.geteuid() != 0:
        raise UsageError("guard monitor runs as root: it watches every user's agents", "see docs/monitor.md")
    config, state = context.obj.config, context.obj.state or "/var/lib/guard"
    from guard.policy.source import check_private

    check_private(config)
    check_private(state)
    os.makedirs(state, mode=0o755, exist_ok=True)
    options = service.Options(config, state, _spool(config, state), backend, enforce, rows, networks, context.obj.state)
    service.Service(options, lambda name, told, pinned: open_source(name, told, pinned=pinned), _log).run()


def _spool(config: str, state: str) -> str:
    return os.path.join(state, "spool")


def _log(line: str) -> None:
    try:
        sys.stderr.write(f"guard monitor: {line}\n")
        sys.stderr.flush()
    except OSError:
        return  # nobody reads it any more
