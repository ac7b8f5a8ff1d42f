"""`guard web`: the small page for account holders and InfoSec; off until somebody starts it."""

from __future__ import annotations

import os
import pwd
import sys
from typing import Annotated

import typer

from guard.errors import PolicyError
from guard.incidents import accounts, office, settings, web
from guard.redact.server import notify

app = typer.Typer(add_completion=False, help='Serve the small page: one\'s own exposed keys, and "I rotated it".')


@app.command("web")
def serve(
    context: typer.Context,
    socket: Annotated[str, typer.Option("--socket", metavar="PATH", help="The unix socket for the proxy.")] = "",
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="On 127.0.0.1 instead, with a token; 0 for any.")
    ] = None,
) -> None:
    """Serve the page until SIGTERM: on a unix socket behind the site's proxy, or on loopback with a token."""
    state = str(getattr(context.obj, "state", "") or "")
    path = "" if port is not None else socket or os.path.join(state or "/run/guard", web.SOCKET)

    def ready(where: str) -> None:
        notify(b"READY=1")
        sys.stderr.write(f"guard web: {where}\n")
        sys.stderr.flush()

    with office.opened(state, str(getattr(context.obj, "config", "") or "")) as desk:
        proxy = desk.settings.proxy_user
        if path and proxy and not _known(proxy):
            raise PolicyError(
                f"{settings.FILE}: proxy_user = {proxy!r}: this host knows no such account",
                "name the account that the web proxy runs as",
            )
        web.serve(desk, path, port or 0, accounts.load(desk.settings.accounts), ready)


def _known(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
