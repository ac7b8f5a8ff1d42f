"""`guard fleet`: the nodes of a site, as their events show them."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from guard.errors import EXIT_FOUND, StateError
from guard.policy.source import printable

if TYPE_CHECKING:
    from guard.fleet.judge import Node, Notice

app = typer.Typer(no_args_is_help=True, help="The nodes of a site.")


def register(parent: typer.Typer) -> None:
    """Add the command group to the full command line."""
    parent.add_typer(app, name="fleet")


@app.callback()
def fleet() -> None:
    """Keep a group, since design.md names `fleet status`."""


@app.command()
def status(
    context: typer.Context,
    store: Annotated[str, typer.Option("--store", metavar="FILE", help="Default: site.db in the state.")] = "",
    alert: Annotated[bool, typer.Option("--alert", help="Put what is new on record, for the feeds.")] = False,
    at: Annotated[str, typer.Option("--at", metavar="T", help="Judge as of this time instead of now.")] = "",
    forget: Annotated[str, typer.Option("--forget", metavar="HOST", help="Remove a node that is no more.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a node.")] = False,
) -> None:
    """Tell which nodes are silent, lose events, or are guarded by less than before; 1 where any is."""
    from guard.cli.ingest import site_store, watch
    from guard.feeds.since import moment
    from guard.fleet.judge import judge
    from guard.fleet.store import Store

    now = moment(at, time.time()) if at else time.time()
    with Store(store or site_store(context), write=alert or bool(forget)) as target:
        if forget and not target.forget_node(forget):
            raise StateError(f"there is no node {forget!r}", "`guard fleet status` lists them")
        if alert:
            watch(context, target, now)
        nodes = target.nodes()
        wrong = judge(nodes, target.gaps(), now)
        lasting = {(each.host, each.kind, each.subject) for each in wrong}
        wrong += [
            each
            for each in target.open_notices()
            if (each.host, each.kind, each.subject) not in lasting and each.kind == "sender"
        ]
    if as_json:
        for node in nodes:
            problems = [asdict(each) for each in wrong if each.host == node.host]
            sys.stdout.write(json.dumps({**asdict(node), "silent_s": int(now - node.beat), "wrong": problems}) + "\n")
    else:
        _print(nodes, wrong, now)
    if wrong or any(_weak(node) for node in nodes):
        raise typer.Exit(EXIT_FOUND)


def _print(nodes: list[Node], wrong: list[Notice], now: float) -> None:
    rows = [("node", "heard", "version", "backend", "wrong")]
    for node in nodes:
        problems = [_told(each) for each in wrong if each.host == node.host]
        if weak := _weak(node):
            problems.append(weak)
        heard = f"{_age(now - node.beat)} ago" if node.beat else "never"
        rows.append((
            node.host, heard, str(node.state.get("version", "")), str(node.state.get("backend", "")),
            "; ".join(problems) or "-",
        ))  # fmt: skip
    for each in wrong:
        if not each.host:
            sys.stderr.write(f"guard: {each.detail['nodes']} of {each.detail['of']} nodes are silent\n")
    # Names and versions are what a node says of itself, and for a terminal they are text alone.
    rows = [tuple(map(printable, row)) for row in rows]  # type: ignore[misc]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
        sys.stdout.write("  ".join([*cells, row[4]]).rstrip() + "\n")


def _told(notice: Notice) -> str:
    detail = notice.detail
    if notice.kind == "silent":
        return "late" if "late" in detail else "silent"
    if notice.kind == "gap":
        return f"{detail['missing']} events of {detail['producer']} missing"
    return f"{detail.get('sender')} speaks for it"


def _weak(node: Node) -> str:
    controls = node.state.get("controls")
    absent = sorted(name for name, value in controls.items() if value == "absent") if isinstance(controls, dict) else []
    return f"absent: {', '.join(absent)}" if absent else ""


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
