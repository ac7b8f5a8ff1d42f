"""`guard serve`: the resident services."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Annotated

import typer

from guard.errors import GuardError

app = typer.Typer(no_args_is_help=True, help="The resident services.")


def register(parent: typer.Typer) -> None:
    """Add the command group to the full command line."""
    parent.add_typer(app, name="serve")


@app.callback()
def serve() -> None:
    """Run a resident service in the foreground; a group, since `events` comes beside `redact`."""


@app.command("incidents")
def serve_incidents(
    context: typer.Context,
    socket: Annotated[str, typer.Option("--socket", help="Where to listen; the usual place if not given.")] = "",
    every: Annotated[float, typer.Option("--every", help="Seconds between two rounds of alerts and mail.")] = 60.0,
) -> None:
    """At the site: keep the ledger, alert of what is overdue, send mail, and answer account holders."""
    from guard.incidents import accounts, office, service
    from guard.redact.fingerprint import state_dir

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    state, config = (str(getattr(context.obj, name, "") or "") for name in ("state", "config"))
    with office.opened(state, config) as desk:
        service.serve(
            desk, state or state_dir(), lambda: accounts.load(desk.settings.accounts), stop.is_set, socket, every
        )


@app.command("redact")
def serve_redact(
    context: typer.Context,
    socket: Annotated[
        str, typer.Option("--socket", help="Where to listen; the usual place if not given.")
    ] = "",
    state: Annotated[str, typer.Option("--state", help="State directory.")] = "",
    config: Annotated[str, typer.Option("--config", help="Configuration directory.")] = "",
) -> None:
    """Answer redactions and fingerprints on a unix socket until told to stop (SIGTERM)."""
    from guard.cli import Places
    from guard.redact import server

    if isinstance(context.obj, Places):
        state, config = state or context.obj.state, config or context.obj.config
    for name, value in (("GUARD_STATE_DIR", state), ("GUARD_CONFIG_DIR", config)):
        if value:
            os.environ[name] = value
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    try:
        server.serve(socket or None, stop=stop)
    except (GuardError, OSError) as error:
        sys.stderr.write(f"guard serve redact: {error}\n")
        raise typer.Exit(3) from None


@app.command("events")
def serve_events(
    context: typer.Context,
    socket: Annotated[
        str, typer.Option("--socket", help="Where to listen; /run/guard/events.sock if not given.")
    ] = "",
) -> None:
    """Take events from every producer of this node and keep them, until told to stop (SIGTERM)."""
    from guard.cli import Places
    from guard.confine.state import ROOT_STATE, default_state
    from guard.events import serving
    from guard.fleet.heartbeat import NodeBeat

    places = context.obj if isinstance(context.obj, Places) else Places("/etc/guard", "")
    state = places.state or (ROOT_STATE if os.geteuid() == 0 else default_state(os.geteuid()))
    try:
        serving.serve(
            state,
            places.config,
            socket,
            named=bool(places.state),
            beat=lambda spool: NodeBeat(state, places.config, spool),
        )
    except (GuardError, OSError) as error:
        sys.stderr.write(f"guard serve events: {error}\n")
        raise typer.Exit(3) from None
