"""`guard feed`: events to where a site wants them (docs/feeds.md)."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from guard.errors import EXIT_CANNOT, StateError
from guard.policy.source import printable

if TYPE_CHECKING:
    from guard.cli import Places
    from guard.feeds.config import Config, Feed
    from guard.feeds.sink import Context

app = typer.Typer(no_args_is_help=True, help="Send events to where a site wants them.")

_Config = Annotated[str, typer.Option("--config", metavar="FILE", help="Default: feeds.toml in /etc/guard.")]
_Names = Annotated[list[str] | None, typer.Argument(metavar="[FEED]...", help="Only these; default: all.")]


def register(parent: typer.Typer) -> None:
    """Add the command group to the full command line."""
    parent.add_typer(app, name="feed")


@app.command("list")
def list_feeds(
    context: typer.Context,
    config: _Config = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Tell each feed, where it goes, and how it is doing."""
    from dataclasses import asdict

    from guard.feeds import status

    found = _load(context, config)
    folder = status.folder(_spool(context, found))
    rows = [("feed", "kind", "to", "state", "delivered", "waits", "last", "problem")]
    for feed in found.feeds:
        each = status.read(folder, feed.name)
        if each.pid and not os.path.exists(f"/proc/{each.pid}"):
            each.pid, each.state = 0, "stopped"
        if as_json:
            sys.stdout.write(json.dumps({"kind": feed.kind, "to": _target(feed), **asdict(each)}) + "\n")
            continue
        last = f"{_age(time.time() - each.last_delivery)} ago" if each.last_delivery else "never"
        rows.append((
            feed.name, feed.kind, _target(feed), each.state, str(each.delivered), str(each.behind), last, each.problem
        ))  # fmt: skip
    if not as_json:
        _table(rows)


@app.command("test")
def try_feeds(context: typer.Context, feeds: _Names = None, config: _Config = "") -> None:
    """Send one test event through each feed, past the spool, and tell whether it was acknowledged."""
    from dataclasses import replace

    from guard.events.model import say
    from guard.events.producer import Producer
    from guard.events.wire import Severity
    from guard.feeds.forms import renderer
    from guard.feeds.sink import FeedError, Item, Undelivered, open_sink

    found = _load(context, config)
    failed = False
    for feed in _chosen(found, feeds):
        # A producer of its own each time: `seq` of the real ones has no gap.
        event = Producer(f"feed-test:{os.getpid()}").event(
            "telemetry", "feed.test", Severity.INFO, say("A test of this feed; nothing has happened.")
        )
        line = event.to_json()
        item = Item(1, event.id, "info", line, line)
        try:
            item = replace(item, body=renderer(feed.text("format"))(line))
            sink = open_sink(feed, _context(context, found.spool))
            outcome = sink.deliver([item])
            outcome.add(sink.finish())
            problem = outcome.refused.get(1, "" if 1 in outcome.acked else "not acknowledged")
        except Undelivered as error:
            problem = error.reason
        except FeedError as error:
            problem = str(error)
        failed = failed or bool(problem)
        sys.stdout.write(f"{feed.name}: {printable(problem) or 'acknowledged'} ({event.id})\n")
    if failed:
        raise typer.Exit(EXIT_CANNOT)


@app.command()
def preview(
    context: typer.Context,
    feeds: _Names = None,
    since: Annotated[str, typer.Option("--since", metavar="T", help="RFC 3339, or 90s, 15m, 2h, 7d ago.")] = "1h",
    most: Annotated[int, typer.Option("--most", metavar="N", help="Events at most, a feed.")] = 100,
    config: _Config = "",
) -> None:
    """Print what each feed would send of the stored events; nothing is sent, no cursor moves."""
    from guard.events.reader import Reader, rows_of
    from guard.feeds.forms import renderer
    from guard.feeds.runner import chooser
    from guard.feeds.since import moment
    from guard.feeds.sink import Item

    found = _load(context, config)
    start = moment(since, time.time())
    with Reader(_spool(context, found)) as reader:
        for feed in _chosen(found, feeds):
            choose, render = chooser(feed), renderer(feed.text("format"))
            shown = count = 0
            for row in rows_of(reader, reader.position_at(start)):
                if not choose(Item(row.position, row.id, row.severity.label, row.line)):
                    continue
                count += 1
                if shown < most:
                    shown += 1
                    sys.stdout.buffer.write(render(row.line) + b"\n")
            sys.stdout.buffer.flush()
            sys.stderr.write(f"guard: {feed.name} would send {count} events, {shown} shown\n")


@app.command()
def run(
    context: typer.Context,
    feeds: _Names = None,
    config: _Config = "",
    source: Annotated[str, typer.Option("--input", metavar="FILE", help="Take these events in first.")] = "",
    drain: Annotated[bool, typer.Option("--drain", help="End with 0 when everything is delivered.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", metavar="S", help="With --drain: give up, 3.")] = 0,
) -> None:
    """Deliver until told to stop (SIGTERM): a process a feed, and one that watches them."""
    from guard.events.producer import Producer
    from guard.events.reader import Reader
    from guard.events.sink import socket_path
    from guard.feeds import processes, status
    from guard.feeds.forms import renderer
    from guard.feeds.intake import take
    from guard.feeds.runner import Source, Tell
    from guard.feeds.secrets import loose
    from guard.feeds.source import SpoolSource
    from guard.feeds.telling import Losses, Teller

    found = _load(context, config)
    chosen = _chosen(found, feeds)
    spool = _spool(context, found)
    for feed in chosen:
        for path in loose(feed):
            _say(f"feed {feed.name}: anybody on this node may read {path}; chmod 600 it")
    code = 0
    if source:
        if found.source is not None:
            raise StateError("--input goes into a spool, and these feeds read a stream", "leave --input out")
        taken = take(source, spool)
        if taken.bad:
            _say(f"{taken.first_bad}; {taken.bad} lines are no event and were left out")
            code = EXIT_CANNOT

    if found.source is None and (drain or os.path.exists(spool)):
        with Reader(spool) as reader:  # to drain what is not there would take for ever: said at once
            strangers = sorted(set(reader.cursors()) - {feed.name for feed in found.feeds})
        if strangers:
            _say(f"events wait for {', '.join(strangers)}, not in {found.file}; `guard feed forget` ends that")

    def open_source(feed: Feed) -> Source:
        if found.source is None:
            return SpoolSource(spool, feed.name)
        import socket

        from guard.feeds.stream import StreamSource

        return StreamSource(found.source, feed, socket.gethostname())

    node = _node_spool(context) if found.source is not None else spool
    # The service writes the node's spool alone: what concerns a spool of the feeds' own is no news for it.
    socket_at = socket_path(context.obj.state) if node == _node_spool(context) else os.path.join(node, "no service")

    def tell(feed: Feed) -> Tell:
        return Losses(Teller(node, Producer(f"feed:{feed.name}"), socket_at), _say)

    work = processes.Work(
        found, status.folder(spool), open_source, renderer, tell, _context(context, found.spool), drain
    )
    ended = processes.run(work, chosen, _say, timeout=timeout)
    raise typer.Exit(max(code, ended))


@app.command()
def forget(
    context: typer.Context,
    feed: Annotated[str, typer.Argument(help="A feed that is no more.")],
    config: _Config = "",
) -> None:
    """Remove the cursor of a feed that is no more, so that no event waits for it."""
    from guard.events.reader import Reader
    from guard.feeds import status

    found = _load(context, config)
    if any(each.name == feed for each in found.feeds):
        raise StateError(f"feed {feed} is in {found.file}", "take it out there first")
    spool = _spool(context, found)
    with Reader(spool) as reader:
        if feed not in reader.cursors():
            known = ", ".join(reader.cursors()) or "none"
            raise StateError(f"no event waits for a feed {feed!r}", f"known are {known}")
        reader.forget(feed)
    status.remove(status.folder(spool), feed)


def _load(context: typer.Context, path: str) -> Config:
    from guard.feeds.config import load
    from guard.policy.source import check_private

    if not path:
        places: Places = context.obj
        path = os.path.join(places.config, "feeds.toml")
    elif os.path.isdir(path):
        path = os.path.join(path, "feeds.toml")
    # Whoever can write it decides where events go, and which files are read as secrets.
    check_private(os.path.dirname(os.path.abspath(path)))
    return load(path)


def _chosen(config: Config, names: list[str] | None) -> list[Feed]:
    if not config.feeds:
        raise StateError(f"{config.file} has no [[feed]]", "docs/feeds.md shows one for each destination")
    return [config.feed(name) for name in names] if names else list(config.feeds)


def _state(context: typer.Context) -> str:
    from guard.confine.state import default_state

    places: Places = context.obj
    return places.state or default_state(os.geteuid())


def _spool(context: typer.Context, config: Config) -> str:
    if config.source is not None:
        return os.path.join(_state(context), "site")
    return config.spool or _node_spool(context)


def _context(context: typer.Context, spool: str) -> Context:
    from guard.cli.ingest import site_store
    from guard.feeds.sink import Context

    return Context(state=_state(context), spool=spool or _node_spool(context), store=site_store(context))


def _node_spool(context: typer.Context) -> str:
    """Where the service keeps this node's events: its own settings say, so that the two look in one place."""
    from guard.events import settings

    return settings.load(context.obj.config).spool or os.path.join(_state(context), "spool")


def _target(feed: Feed) -> str:
    from urllib.parse import urlsplit

    if feed.texts("servers"):
        return ",".join(feed.texts("servers"))
    if feed.text("url"):
        parts = urlsplit(feed.text("url"))  # its query may hold a token
        return f"{parts.scheme}://{parts.netloc}{parts.path}"
    for name in ("server", "path", "listen", "textfile", "socket"):
        if feed.text(name):
            return feed.text(name)
    return "-"


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    rows = [tuple(map(printable, row)) for row in rows]  # a problem is told in a server's words
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")


def _say(text: str) -> None:
    sys.stderr.write(f"guard: {printable(text)}\n")
    sys.stderr.flush()
