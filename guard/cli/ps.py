"""`guard ps`: the agents' trees of this node, as the monitor knows them."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from guard.errors import MonitorError
from guard.policy.source import printable

app = typer.Typer()


@app.command()
def ps(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the agents' trees of this node: yours, and everybody's for root."""
    from guard.monitor import answers

    path = answers.socket_path(context.obj.state)
    try:
        told = json.loads(answers.ask(path, b"ps"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it makes no sense"
        raise MonitorError(f"no monitor answers at {path}: {reason}", "start it: `guard monitor`, as root") from None
    if as_json:
        sys.stdout.write(json.dumps(told, indent=1) + "\n")
        return
    rows = told["trees"]
    if not rows:
        sys.stderr.write("guard: no agent runs\n")
        return
    sys.stdout.write("".join(f"{line}\n" for line in table(rows)))


_HEAD = ("PID", "HARNESS", "USER", "SINCE", "GUARD", "PROCS", "JOB", "FINDINGS")
_LOUD = ("critical", "high", "medium", "low")


def table(rows: list[dict[str, object]]) -> list[str]:
    """Lay trees out in columns of under 80.

    Args:
        rows: as the monitor answers.
    """
    cells = [_HEAD, *(_cells(row) for row in sorted(rows, key=lambda row: str(row["since"])))]
    widths = [max(len(row[at]) for row in cells) for at in range(len(_HEAD) - 1)]
    return ["  ".join((*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1])).rstrip() for row in cells]


def _cells(row: dict[str, object]) -> tuple[str, ...]:
    findings = row["findings"]
    counts = findings if isinstance(findings, dict) else {}
    told = " ".join(f"{counts[name]} {name}" for name in _LOUD if counts.get(name)) or "-"
    return (
        str(row["pid"]),
        _plain(row["harness"] or "-", 12),
        _plain(row["user"] or row["uid"], 12),
        str(row["since"])[5:16].replace("T", " "),
        "yes" if row["guarded"] else "no",
        str(row["processes"]),
        str(row["slurm_job_id"] or "-"),
        told,
    )


def _plain(value: object, most: int) -> str:
    text = printable(str(value))
    return text if len(text) <= most else text[: most - 1] + "…"
