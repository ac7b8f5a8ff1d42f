"""`guard incidents ingest`: a site's intake, whatever carries the events there."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from guard.errors import EXIT_CANNOT, EventError

if TYPE_CHECKING:
    from guard.cli import Places
    from guard.fleet.store import Store

def ingest(
    context: typer.Context,
    files: Annotated[list[str] | None, typer.Argument(metavar="[FILE|DIR|-]...", help="Default: -.")] = None,
    sender: Annotated[str, typer.Option("--sender", help="Who these come from, where the lines do not say.")] = "",
    store: Annotated[str, typer.Option("--store", metavar="FILE", help="Default: site.db in the state.")] = "",
    alerts: Annotated[bool, typer.Option("--alerts/--no-alerts", help="Tell what is wrong with the fleet.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Take events of other nodes into the site's store, each once by its id.

    Lines are events, syslog messages with an event in them, or {"sender": …, "message": …}; a file may be
    compressed with zstd; a directory is a spool. - reads a pipe as it comes.
    """
    from guard.fleet.inputs import batches
    from guard.fleet.lines import Found, read
    from guard.fleet.store import Received, Store
    from guard.policy.source import printable

    done, skipped, bad, first_bad = Received(), 0, 0, ""
    with Store(store or site_store(context)) as target:
        watched = time.monotonic()
        for path in files or ["-"]:
            for batch in batches(path):
                found: list[Found] = []
                for number, line in batch:
                    try:
                        event = read(line, sender)
                    except EventError as error:
                        bad += 1
                        first_bad = first_bad or printable(f"{path}:{number}: {error.what}")
                        continue
                    if event is None:
                        skipped += 1
                    else:
                        found.append(event)
                if found:
                    done.add(target.receive(found, time.time()))
                if alerts and time.monotonic() - watched > 20:
                    watched = time.monotonic()
                    watch(context, target, time.time())
        if alerts:
            watch(context, target, time.time())
    counts = {"new": done.count, "known": done.known, "foreign": done.foreign, "skipped": skipped, "bad": bad}
    if as_json:
        sys.stdout.write(json.dumps(counts) + "\n")
    else:
        sys.stderr.write(f"guard: {', '.join(f'{count} {name}' for name, count in counts.items())}\n")
    if bad:
        sys.stderr.write(f"guard: {first_bad}; {bad} events are damaged and were left out\n")
        raise typer.Exit(EXIT_CANNOT)


def site_store(context: typer.Context) -> str:
    """Return the site's store where no option names one."""
    return os.path.join(state(context), "site.db")


def state(context: typer.Context) -> str:
    """Return the state directory."""
    from guard.redact.fingerprint import state_dir

    places: Places = context.obj
    return places.state or state_dir()


def watch(context: typer.Context, store: Store, now: float) -> int:
    """Judge the fleet and put what is new on record; returns how many events that were."""
    from guard.events import settings
    from guard.events.producer import Producer
    from guard.events.sink import socket_path
    from guard.feeds.telling import Teller
    from guard.fleet.alerts import tell

    places: Places = context.obj
    spool = settings.load(places.config).spool or os.path.join(state(context), "spool")
    teller = Teller(spool, Producer("fleet"), socket_path(places.state))
    count, problem = tell(store, teller, now)
    if problem:
        sys.stderr.write(f"guard: an alert could not be put on record, it is tried again next time: {problem}\n")
    return count
