"""`guard report`: the figures of a period, or one incident's timeline, as pages for people and tables for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Annotated

import typer

from guard.cli.incidents import when
from guard.errors import UsageError
from guard.incidents import accounts, choose, office
from guard.incidents.report import figures, html, layout, markdown, table
from guard.incidents.settings import DAY
from guard.incidents.workflow import assess
from guard.redact.files import Output

app = typer.Typer(add_completion=False, help="Reports people read: exposed keys, acts, coverage, changes, losses.")


@app.command()
def report(
    context: typer.Context,
    html_file: Annotated[str, typer.Option("--html", metavar="FILE", help="One HTML file, no network.")] = "",
    md_file: Annotated[str, typer.Option("--md", metavar="FILE", help="Markdown.")] = "",
    csv_file: Annotated[
        str, typer.Option("--csv", metavar="FILE", help="A table: section, name, measure, value.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="On standard output, for programs.")] = False,
    since: Annotated[str, typer.Option("--since", help="A date, or how long ago: 7d. 30d if not given.")] = "30d",
    until: Annotated[
        str, typer.Option("--until", help="A date (that day is left out), or a time. Now if not given.")
    ] = "",
    case: Annotated[str, typer.Option("--case", metavar="ID", help="One incident's timeline.")] = "",
) -> None:
    """Make a report. FILE - is standard output; without a form it is Markdown there."""
    forms = {"html": html_file, "md": md_file, "csv": csv_file, "json": "-" if as_json else ""}
    wanted = {form: path for form, path in forms.items() if path} or {"md": "-"}
    places = context.obj
    with office.opened(str(getattr(places, "state", "") or ""), str(getattr(places, "config", "") or "")) as desk:
        now = desk.ledger.now()
        if case:
            secret = choose.one(desk.ledger, case)
            desk.ledger.note_access(desk.who, f"case {secret.id}")
            incident = assess(secret, desk.settings, now)
            page = layout.case(incident, now)
            texts = {"html": lambda: html.render(page), "md": lambda: markdown.render(page),
                     "csv": lambda: table.incidents([incident], now), "json": lambda: _incident(incident)}  # fmt: skip
        else:
            start, end = when(since), when(until) or int(time.time() * 1e6)
            if not start < end:
                raise UsageError(f"--since {since} is not before {until or 'now'}", "give a period that has begun")
            if end - start > 3660 * DAY:
                raise UsageError("the period is longer than ten years", "give a later --since")
            found = figures.gather(desk.ledger, desk.settings, accounts.load(desk.settings.accounts), start, end)
            desk.ledger.note_access(desk.who, f"report {found.since} to {found.until}")
            shown = layout.page(found, now)
            texts = {"html": lambda: html.render(shown), "md": lambda: markdown.render(shown),
                     "csv": lambda: table.figures(found), "json": lambda: _figures(found)}  # fmt: skip
        for form, path in wanted.items():
            _put(path, texts[form]())


def _put(path: str, text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    if path == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    with Output(path) as out:
        out.write(data)


def _incident(incident: object) -> str:
    from guard.cli import incidents_text
    from guard.incidents.workflow import Incident

    assert isinstance(incident, Incident)  # noqa: S101 - the one kind it is called with
    return json.dumps(incidents_text.plain(incident), indent=1) + "\n"


def _figures(found: figures.Figures) -> str:
    from guard.cli import incidents_text

    whole = dataclasses.asdict(dataclasses.replace(found, urgent=()))
    whole["urgent"] = [incidents_text.plain(one) for one in found.urgent]
    whole["complete"] = found.complete
    whole["commands"]["share"] = found.commands.share
    whole["commands"]["polls_per_job"] = found.commands.polls_per_job
    return json.dumps(whole, indent=1) + "\n"
