"""`guard events`: shows, follows and checks the node's events; each user sees their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Annotated

import orjson
import typer

from guard.cli import Places
from guard.confine.state import default_state
from guard.errors import EXIT_CANNOT, EXIT_FOUND, GuardError, UsageError
from guard.events import client, settings
from guard.events.query import Query, moment, unframed
from guard.events.wire import Severity

app = typer.Typer(no_args_is_help=False, help="Show, follow and check the node's events.")
_WIDTH = 79


@app.command("events")
def events(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    since: Annotated[str, typer.Option("--since", metavar="T", help="2h, 3d, 2027-01-31, …T10:00Z.")] = "",
    until: Annotated[str, typer.Option("--until", metavar="T", help="The same.")] = "",
    verify: Annotated[bool, typer.Option("--verify", help="Check the chain over all that is stored.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One event a line, as it is stored.")] = False,
    severity: Annotated[str, typer.Option("--severity", help="The least: info, low, medium, …")] = "info",
    control: Annotated[str, typer.Option("--control", help="Only of this control.")] = "",
    rule: Annotated[str, typer.Option("--rule", help="Only of this rule.")] = "",
    user: Annotated[str, typer.Option("--user", help="Only about this user.")] = "",
    session: Annotated[str, typer.Option("--session", help="Only of this session.")] = "",
    harness: Annotated[str, typer.Option("--harness", help="Only of this harness.")] = "",
    verdict: Annotated[str, typer.Option("--verdict", help="Only with this verdict.")] = "",
    sent: Annotated[bool, typer.Option("--sent", help="Without what was folded or suppressed.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="The newest N.")] = 0,
) -> None:
    """Show the node's events; root and the site's readers see all, and that they looked is an event."""
    places = context.obj if isinstance(context.obj, Places) else Places("/etc/guard", "")
    try:
        least = Severity.of(severity).label
    except GuardError as error:
        raise UsageError(f"--severity: {error.what}", error.remedy) from None
    query = Query(
        moment(since) if since else 0.0, moment(until) if until else 0.0, least, control, rule, session, harness,
        verdict, user, sent, limit, follow,
    )  # fmt: skip
    where = _places(places)
    if verify:
        raise typer.Exit(_verify(where, as_json))
    try:
        for line in _shown(client.lines(where, query), as_json):
            sys.stdout.buffer.write(line)
            if follow:
                sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        if not follow:
            raise


def _places(places: Places) -> client.Places:
    spool = ""
    if os.geteuid() == 0:
        try:
            spool = settings.load(places.config).spool
        except GuardError as error:
            sys.stderr.write(f"guard events: {error}\n")
    return client.places(places.state, default_state(os.geteuid()), spool)


def _verify(where: client.Places, as_json: bool) -> int:
    verdict = client.verify(where)
    if verdict is None:
        sys.stderr.write("guard events: there is no spool to check here; is `guard serve events` running?\n")
        return EXIT_CANNOT
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(verdict) + b"\n")
    else:
        state = f"BROKEN at row {verdict.broken}: {verdict.reason}" if verdict.broken else "whole"
        sys.stdout.write(
            f"the chain is {state}\n{verdict.rows} rows, {verdict.erased} with personal fields erased, "
            f"{verdict.dropped} displaced by alerts\nhead {verdict.head}\n"
        )
    return EXIT_FOUND if verdict.broken else 0


def _shown(lines: Iterator[bytes], as_json: bool) -> Iterator[bytes]:
    for line in lines:
        if as_json:
            yield unframed(line) + b"\n"
        else:
            whole = orjson.loads(line)
            yield _sentence(whole["event"], whole.get("quiet", "")).encode("utf-8", "replace")


def _sentence(event: dict[str, object], quiet: object) -> str:
    """One event in under 80 columns for people: time, severity, whose, what."""
    tree = event.get("tree")
    tree = tree if isinstance(tree, dict) else {}
    who = str(tree.get("user") or (tree.get("uid") if tree.get("uid", -1) != -1 else "-"))
    harness = str(tree.get("harness") or "")
    mark = "." if quiet else " "
    head = f"{str(event.get('time', ''))[:19]}Z {event.get('severity', '')!s:<8}{mark}"
    about = " ".join(filter(None, (who, harness)))
    text = str(event.get("message", ""))
    lines = [f"{head}{about}: {text}"]
    if len(lines[0]) > _WIDTH:
        lines = [f"{head}{about}", f"    {text}"]
    return "".join(_plain(line) + "\n" for line in lines)


def _plain(text: str) -> str:
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
