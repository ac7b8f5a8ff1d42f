"""`guard redact`: the filter between anything and storage."""

from __future__ import annotations

from typing import Annotated

import typer

from guard.cli import Places
from guard.redact import command
from guard.redact.carriers import NAMES

app = typer.Typer(add_completion=False, help="Replace every secret in a stream or file.")


@app.command()
def redact(
    context: typer.Context,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Files; none or - is standard input.")
    ] = None,
    format_name: Annotated[str, typer.Option("--format", help=f"One of {', '.join(NAMES)}.")] = "auto",
    output: Annotated[str, typer.Option("-o", "--output", help="Where the output goes.")] = "",
    in_place: Annotated[
        bool,
        typer.Option("--in-place", "-i", help="Rewrite the files; live histories keep inode and length."),
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 when a secret was found.")] = False,
    report: Annotated[str, typer.Option("--report", help="One exposure a line as JSON; *.sarif gives SARIF.")] = "",
    record: Annotated[bool, typer.Option("--record", help="File the exposures as events.")] = False,
    baseline: Annotated[bool, typer.Option("--baseline", help="With --record: known from before.")] = False,
    known: Annotated[
        str, typer.Option("--known", metavar="FILE", help="A detect-secrets baseline: what it lists is no finding.")
    ] = "",
    follow: Annotated[
        str, typer.Option("--follow", metavar="DIR", help="Scrub the transcripts under DIR as they grow.")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="With --follow: one pass, then end.")] = False,
    install_rules: Annotated[
        str,
        typer.Option("--install-rules", metavar="PROGRAM", help="Make an installed scanner's rules the site's pack."),
    ] = "",
    rules: Annotated[bool, typer.Option("--rules", help="Say how many rules are in force.")] = False,
    no_service: Annotated[bool, typer.Option("--no-service", help="Do not ask the resident service.")] = False,
    state: Annotated[str, typer.Option("--state", help="State directory.")] = "",
    config: Annotated[str, typer.Option("--config", help="Configuration directory.")] = "",
) -> None:
    """Replace every secret in a stream or file."""
    if isinstance(context.obj, Places):  # both are taken out of the full command line, wherever they stand
        state, config = context.obj.state, context.obj.config
    arguments = ["--format", format_name]
    for name, value in (
        ("-o", output),
        ("--report", report),
        ("--known", known),
        ("--follow", follow),
        ("--install-rules", install_rules),
        ("--state", state),
        ("--config", config),
    ):
        arguments += [name, value] if value else []
    for name, given in (
        ("--in-place", in_place),
        ("--check", check),
        ("--record", record),
        ("--baseline", baseline),
        ("--once", once),
        ("--rules", rules),
        ("--no-service", no_service),
    ):
        arguments += [name] if given else []
    raise typer.Exit(command.main([*arguments, "--", *(files or [])]))
