"""`guard incidents`: exposed keys, from the first sighting to the rotation."""

from __future__ import annotations

import getpass
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Annotated

import typer

from guard.cli import incidents_text as text
from guard.cli.ingest import ingest
from guard.errors import EXIT_FOUND, StateError, UsageError
from guard.events.query import moment
from guard.incidents import accounts, choose, notices, office
from guard.incidents.audience import AUDIENCES
from guard.incidents.desk import Desk
from guard.incidents.exposure import LATEST, SOURCES
from guard.incidents.workflow import Incident, State
from guard.policy.source import printable

app = typer.Typer(no_args_is_help=True, help="Exposed keys, from the first sighting to the rotation.")

MANY = 10
"""Incidents that one command changes without showing its plan first."""

_Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="Incidents, by id or its beginning; - reads them from standard input."),
]
_States = Annotated[list[str] | None, typer.Option("--state-is", help=f"One of {', '.join(State)}.")]
_Kinds = Annotated[list[str] | None, typer.Option("--kind", help="Of this kind of secret.")]
_Users = Annotated[list[str] | None, typer.Option("--user", help="Of this account.")]
_Hosts = Annotated[list[str] | None, typer.Option("--host", help="Seen on this host.")]
_Harnesses = Annotated[list[str] | None, typer.Option("--harness", help="Seen with this agent.")]
_Sources = Annotated[list[str] | None, typer.Option("--source", help=f"One of {', '.join(SOURCES)}.")]
_Audiences = Annotated[list[str] | None, typer.Option("--audience", help=f"One of {', '.join(AUDIENCES)}.")]
_Overdue = Annotated[bool, typer.Option("--overdue", help="Past their clock.")]
_Backlog = Annotated[bool | None, typer.Option("--backlog/--no-backlog", help="In the backlog, or not.")]
_Closed = Annotated[bool, typer.Option("--all", "-a", help="Resolved ones too.")]
_Weak = Annotated[bool, typer.Option("--weak", help="Those below the strict threshold too.")]
_Since = Annotated[str, typer.Option("--since", help="Received since: a date, a time, or as 7d, 12h.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help=f"Change more than {MANY} without asking.")]
_Reason = Annotated[str, typer.Option("--reason", help="Why; kept.")]
_Ticket = Annotated[str, typer.Option("--ticket", metavar="REF", help="A reference of your own; kept.")]
_Json = Annotated[bool, typer.Option("--json", help="For programs.")]


def when(given: str) -> int:
    """Read a time as µs since 1970: RFC 3339, a date, or how long ago (`7d`, `12h`); 0 for "".

    Raises:
        UsageError: it is none.
    """
    return int(moment(given) * 1e6) if given else 0


def until_when(given: str) -> int:
    """Read when something ends as µs since 1970: a date (its end), a time, or from now (`90d`); 0 for ""."""
    if given and given[-1] in "dhmw" and given[:-1].isdigit():
        end = 2 * int(time.time() * 1e6) - when(given)
    else:
        end = when(given)
        end = end + 86_400_000_000 - 1 if len(given) == 10 else end
    if end >= LATEST:
        raise UsageError(f"--until {given} is centuries away", "leave it out for what has no end")
    return end


def _known(values: Sequence[str] | None, allowed: Sequence[str], name: str) -> tuple[str, ...]:
    for value in values or ():
        if value not in allowed:
            raise UsageError(f"--{name} {value} is none", f"known are {', '.join(allowed)}")
    return tuple(values or ())


def _filter(
    states: list[str] | None, kinds: list[str] | None, users: list[str] | None, hosts: list[str] | None,
    harnesses: list[str] | None, sources: list[str] | None, audiences: list[str] | None, overdue: bool,
    backlog: bool | None, closed: bool, weak: bool, since: str,
) -> choose.Filter:  # fmt: skip
    return choose.Filter(
        states=_known(states, tuple(State), "state-is"),
        kinds=tuple(kinds or ()),
        users=tuple(users or ()),
        hosts=tuple(hosts or ()),
        harnesses=tuple(harnesses or ()),
        sources=_known(sources, SOURCES, "source"),
        audiences=_known(audiences, AUDIENCES, "audience"),
        overdue=overdue,
        backlog=backlog,
        closed=closed,
        weak=weak,
        since=when(since),
    )


def _given(ids: Sequence[str]) -> list[str]:
    """Return the ids, those of standard input in place of `-`: the first word of each line, a list's head apart."""
    out: list[str] = []
    for one in ids:
        if one != "-":
            out.append(one)
            continue
        words = (line.split() for line in sys.stdin)
        out += [row[0] for row in words if row and row[0] != "id"]
    return out


def _meant(desk: Desk, ids: list[str] | None, wanted: choose.Filter) -> list[Incident]:
    """Return what a command means.

    Raises:
        UsageError: neither ids nor a filter were given.
    """
    if ids:
        given = _given(ids)
        chosen = choose.by_ids(desk.ledger, desk.settings, given)
        return chosen if wanted == choose.Filter() else [one for one in chosen if wanted.meets(one)]
    if wanted == choose.Filter():
        raise UsageError(
            "name incidents, or a filter", "as `--overdue`, `--kind aws-access-key`, or - for ids on stdin"
        )
    return choose.every(desk.ledger, desk.settings, wanted)


def _approve(desk: Desk, incidents: Sequence[Incident], what: str, *, yes: bool) -> None:
    """Show the plan and ask, where much changes at once.

    Raises:
        UsageError: nobody agreed.
    """
    if len(incidents) <= MANY or yes:
        return
    sys.stderr.write(f"this will {what} {len(incidents)} incidents:\n")
    for line in text.lines(incidents, desk.ledger.now()):
        sys.stderr.write(f"  {line}\n")
    if not sys.stdin.isatty():
        raise UsageError(f"{len(incidents)} incidents would change", "look at the plan above, then say --yes")
    sys.stderr.write("go on? [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was changed")


def _decide(
    desk: Desk,
    incidents: Sequence[Incident],
    verb: str,
    *,
    reason: str = "",
    ticket: str = "",
    at: int = 0,
    until: int = 0,
    yes: bool = False,
) -> None:
    """Take a decision about each, after the plan was shown where there are many."""
    if not incidents:
        sys.stderr.write("guard: no incident is meant\n")
        raise typer.Exit(EXIT_FOUND)
    bad = desk.problems(incidents, verb, reason, until)
    if len(bad) == len(incidents):
        id_, why = next(iter(bad.items()))
        raise UsageError(f"{id_}: {why}" + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""))
    for id_, why in bad.items():
        sys.stderr.write(f"guard: {id_} is left as it is: {why}\n")
    good = [one for one in incidents if one.id not in bad]
    _approve(desk, good, verb, yes=yes)
    for one in desk.decide(good, verb, reason, ticket, at, until):
        sys.stdout.write(f"{one.id} {one.state}{' backlog' if one.backlog and not one.closed else ''}\n")


@app.command("list")
def list_(
    context: typer.Context, states: _States = None, kinds: _Kinds = None, users: _Users = None, hosts: _Hosts = None,
    harnesses: _Harnesses = None, sources: _Sources = None, audiences: _Audiences = None, overdue: _Overdue = False,
    backlog: _Backlog = None, closed: _Closed = False, weak: _Weak = False, since: _Since = "",
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many; 0 shows all.")] = 0,
    as_json: _Json = False,
) -> None:  # fmt: skip
    """List incidents, the most urgent first, a line each."""
    wanted = _filter(states, kinds, users, hosts, harnesses, sources, audiences, overdue, backlog, closed, weak, since)
    with _desk(context) as desk:
        found = choose.every(desk.ledger, desk.settings, wanted)
        shown = found[:limit] if limit > 0 else found
        desk.ledger.note_access(desk.who, f"list of {len(shown)}")
        if as_json:
            sys.stdout.writelines(json.dumps(text.plain(one)) + "\n" for one in shown)
        elif shown:
            sys.stdout.writelines(f"{line}\n" for line in text.lines(shown, desk.ledger.now()))
        else:
            sys.stderr.write("no incident is open\n" if wanted == choose.Filter() else "no incident is meant\n")
        if len(shown) < len(found):
            sys.stderr.write(f"{len(found) - len(shown)} more; --limit 0 shows all\n")


@app.command()
def show(
    context: typer.Context, ids: Annotated[list[str], typer.Argument(metavar="ID...")], as_json: _Json = False
) -> None:
    """Show incidents whole."""
    with _desk(context) as desk:
        found = choose.by_ids(desk.ledger, desk.settings, _given(ids))
        for one in found:
            desk.ledger.note_access(desk.who, f"show {one.id}")
            if as_json:
                sys.stdout.write(json.dumps(text.plain(one)) + "\n")
            else:
                sys.stdout.writelines(f"{line}\n" for line in text.whole(one, desk.ledger.now()))


@app.command()
def resolve(
    context: typer.Context, ids: _Ids = None, states: _States = None, kinds: _Kinds = None, users: _Users = None,
    hosts: _Hosts = None, harnesses: _Harnesses = None, sources: _Sources = None, audiences: _Audiences = None,
    overdue: _Overdue = False, backlog: _Backlog = None, since: _Since = "",
    at: Annotated[str, typer.Option("--at", help="When it was rotated; now if not given.")] = "",
    false_positive: Annotated[bool, typer.Option("--false-positive", help="It is no secret; wants --reason.")] = False,
    until: Annotated[str, typer.Option("--until", help="With --false-positive: when that ends.")] = "",
    reason: _Reason = "", ticket: _Ticket = "", yes: _Yes = False,
) -> None:  # fmt: skip
    """Close incidents: the secret is rotated, or it is none."""
    done = when(at)
    if done > time.time() * 1e6:
        raise UsageError("--at is in the future", "say when it was rotated")
    if done < 0:
        raise UsageError(f"--at {at} is before 1970", "say when it was rotated")
    wanted = _filter(states, kinds, users, hosts, harnesses, sources, audiences, overdue, backlog, False, False, since)
    with _desk(context) as desk:
        _decide(desk, _meant(desk, ids, wanted), "false-positive" if false_positive else "resolve", reason=reason,
                ticket=ticket, at=done, until=until_when(until), yes=yes)  # fmt: skip


@app.command()
def accept(
    context: typer.Context, ids: _Ids = None, kinds: _Kinds = None, users: _Users = None, hosts: _Hosts = None,
    until: Annotated[str, typer.Option("--until", help="When it ends: a date, or as 90d.")] = "",
    reason: _Reason = "", ticket: _Ticket = "", yes: _Yes = False,
) -> None:  # fmt: skip
    """Accept the risk of incidents until a day, with a reason."""
    wanted = choose.Filter(kinds=tuple(kinds or ()), users=tuple(users or ()), hosts=tuple(hosts or ()))
    with _desk(context) as desk:
        _decide(
            desk, _meant(desk, ids, wanted), "accept", reason=reason, ticket=ticket, until=until_when(until), yes=yes
        )


@app.command()
def reopen(
    context: typer.Context, ids: Annotated[list[str], typer.Argument(metavar="ID...")], reason: _Reason = "",
    ticket: _Ticket = "", yes: _Yes = False,
) -> None:  # fmt: skip
    """Open closed incidents again, with a reason; the clock starts anew."""
    with _desk(context) as desk:
        _decide(
            desk,
            choose.by_ids(desk.ledger, desk.settings, _given(ids)),
            "reopen",
            reason=reason,
            ticket=ticket,
            yes=yes,
        )


@app.command()
def promote(
    context: typer.Context, ids: _Ids = None, kinds: _Kinds = None, users: _Users = None, hosts: _Hosts = None,
    sources: _Sources = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="The most urgent so many.")] = 0,
    reason: _Reason = "", ticket: _Ticket = "", yes: _Yes = False,
) -> None:  # fmt: skip
    """Take incidents out of the backlog, in batches: their clock starts now."""
    wanted = choose.Filter(
        kinds=tuple(kinds or ()), users=tuple(users or ()), hosts=tuple(hosts or ()),
        sources=_known(sources, SOURCES, "source"), backlog=True,
    )  # fmt: skip
    with _desk(context) as desk:
        meant = choose.by_ids(desk.ledger, desk.settings, _given(ids)) if ids else _meant(desk, None, wanted)
        _decide(desk, meant[:limit] if limit > 0 else meant, "promote", reason=reason, ticket=ticket, yes=yes)


@app.command()
def assign(
    context: typer.Context, to: Annotated[str, typer.Argument(metavar="NAME", help="Who looks after them.")],
    ids: _Ids = None, kinds: _Kinds = None, users: _Users = None, hosts: _Hosts = None, overdue: _Overdue = False,
    ticket: _Ticket = "", yes: _Yes = False,
) -> None:  # fmt: skip
    """Say who looks after incidents."""
    if not to.strip() or len(to) > 64:
        raise UsageError("NAME is no name")
    wanted = choose.Filter(
        kinds=tuple(kinds or ()), users=tuple(users or ()), hosts=tuple(hosts or ()), overdue=overdue
    )
    with _desk(context) as desk:
        _decide(desk, _meant(desk, ids, wanted), "assign", reason=to, ticket=ticket, yes=yes)


@app.command()
def notify(
    context: typer.Context, ids: _Ids = None, kinds: _Kinds = None, users: _Users = None, overdue: _Overdue = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the mails, send none.")] = False,
    by_hand: Annotated[bool, typer.Option("--by-hand", help="You told the holders yourself: send nothing.")] = False,
    ticket: _Ticket = "", yes: _Yes = False,
) -> None:  # fmt: skip
    """Write to account holders: what the clock asks, or about the incidents named."""
    wanted = choose.Filter(kinds=tuple(kinds or ()), users=tuple(users or ()), overdue=overdue)
    with _desk(context) as desk:
        if by_hand:
            _decide(desk, _meant(desk, ids, wanted), "notify", reason="told by hand", ticket=ticket, yes=yes)
            return
        people = accounts.load(desk.settings.accounts)
        named = bool(ids) or wanted != choose.Filter()
        meant = _meant(desk, ids, wanted) if named else None
        for one in meant or ():
            if one.closed:
                sys.stderr.write(f"guard: {one.id} is {one.state}: nobody is written to\n")
        outcome = notices.planned(desk, people, meant, only="notice" if named else "")
        if dry_run:
            _preview(desk, outcome)
            return
        if not desk.settings.mail:
            raise StateError("mail is switched off", "set `mail = true` in incidents.toml; --dry-run shows the mails")
        chosen = [item.incident for one in outcome.sent for item in one.items]
        _approve(desk, list({one.id: one for one in chosen}.values()), "write mail about", yes=yes or not named)
        done = notices.send_due(desk, people, meant, only="notice" if named else "")
        for sent in done.sent:
            sys.stdout.write(f"{sent.to} {len(sent.items)}\n")
        _complain(done)


def _preview(desk: Desk, outcome: notices.Outcome) -> None:
    from guard.incidents import mail

    now = desk.ledger.now()
    for one in (*outcome.sent, *outcome.waiting):
        sys.stdout.write(f"To: {one.to}\nSubject: {mail.subject(one)}\n\n{mail.text(one, desk.settings, now)}\n")
    _complain(outcome)


def _complain(outcome: notices.Outcome) -> None:
    if outcome.waiting:
        sys.stderr.write(f"guard: {len(outcome.waiting)} mails wait: `per_hour` is reached\n")
    for incident, role in outcome.nowhere:
        sys.stderr.write(f"guard: {incident.id}: no address of the {role} is known (see `accounts` and `domain`)\n")


@app.command()
def places(
    context: typer.Context, id_: Annotated[str, typer.Argument(metavar="ID")],
    check: Annotated[bool, typer.Option("--check", help="Look, as the owner, which still hold it.")] = False,
    as_json: _Json = False,
) -> None:  # fmt: skip
    """Show where a secret stands, and the command that scrubs each place; exit 1 when one still holds it."""
    from guard.incidents import own
    from guard.incidents import places as looking

    if _is_desk(context):
        with _desk(context) as desk:
            secret = choose.one(desk.ledger, id_)
            desk.ledger.note_access(desk.who, f"places {secret.id}")
    else:
        secret = own.secret(id_, own.listed(_state(context), _socket(context))[0])
    found = looking.of(secret, os.uname().nodename, check=check)
    if as_json:
        for place in found:
            row = {"host": place.sighting.host, "user": place.sighting.user, "path": place.sighting.path,
                   "source": place.sighting.source, "state": place.state, "lines": place.lines,
                   "scrub": place.scrub}  # fmt: skip
            sys.stdout.write(json.dumps(row) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in text.places(found))
    if any(place.state == "holds" for place in found):
        raise typer.Exit(EXIT_FOUND)


@app.command()
def match(context: typer.Context) -> None:
    """Tell which incident a key belongs to; reads it from standard input or a prompt, and keeps nothing of it."""
    from guard.incidents import match as matching
    from guard.incidents import own
    from guard.redact.marking import Marks

    if sys.stdin.isatty():
        key = getpass.getpass("key (not shown, not kept): ").encode("utf-8", "surrogateescape")
    else:
        key = sys.stdin.buffer.read(matching.LIMIT)
    if not key.strip():
        raise UsageError("no key was given", "pipe it in, or type it at the prompt")
    names = matching.names_of(key, Marks())
    if not names:
        raise UsageError("this is nothing a fingerprint is made of", "give the whole key, and nothing around it")
    if _is_desk(context):
        with _desk(context) as desk:
            secret = desk.ledger.named(names)
            desk.ledger.note_access(desk.who, f"match {secret.id if secret else 'none'}")
            found = secret.id if secret else ""
    else:
        found = own.matched(names, _socket(context))
    sys.stdout.write(f"{found or 'none'}\n")
    if found:
        raise typer.Exit(EXIT_FOUND)


@app.command()
def mine(context: typer.Context, as_json: _Json = False) -> None:
    """Show your own exposed keys."""
    from guard.incidents import own

    rows, complete = own.listed(_state(context), _socket(context))
    if as_json:
        sys.stdout.writelines(json.dumps(row) + "\n" for row in rows)
        return
    for row in rows:
        sys.stdout.writelines(f"{printable(line)}\n" for line in own.text(row))
    if not rows:
        sys.stdout.write("no exposed key of yours is known\n")
    if not complete:
        sys.stderr.write("guard: this is what this node has seen; the site's service does not run here\n")


@app.command()
def rotated(
    context: typer.Context, id_: Annotated[str, typer.Argument(metavar="ID")], reason: _Reason = ""
) -> None:  # fmt: skip
    """Say that you have rotated a key of yours; InfoSec closes it."""
    from guard.incidents import own

    sys.stdout.write(f"{own.rotated(id_, reason, _state(context), _socket(context))}\n")


@app.command()
def export(
    context: typer.Context, ids: _Ids = None, kinds: _Kinds = None, users: _Users = None, hosts: _Hosts = None,
    overdue: _Overdue = False, closed: _Closed = False, weak: _Weak = False, since: _Since = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="A table, one incident a line.")] = False,
) -> None:  # fmt: skip
    """Write incidents out whole, one JSON object a line; all open ones unless told otherwise."""
    from guard.incidents.report import table

    wanted = _filter(None, kinds, users, hosts, None, None, None, overdue, None, closed, weak, since)
    with _desk(context) as desk:
        found = _meant(desk, ids, wanted) if ids else choose.every(desk.ledger, desk.settings, wanted)
        desk.ledger.note_access(desk.who, f"export of {len(found)}")
        if as_csv:
            sys.stdout.write(table.incidents(found, desk.ledger.now()))
        else:
            sys.stdout.writelines(json.dumps(text.plain(one)) + "\n" for one in found)


app.command()(ingest)


# --- where things are


def _state(context: typer.Context) -> str:
    return str(getattr(context.obj, "state", "") or "")


def _socket(context: typer.Context) -> str:
    from guard.incidents import service

    return service.socket_path(_state(context))


def _is_desk(context: typer.Context) -> bool:
    """Whether this account keeps the ledger: root, or who has one of its own where the site's does not answer."""
    from guard.incidents.ledger import FILE
    from guard.redact.fingerprint import state_dir

    if os.geteuid() == 0:
        return True
    return not os.path.exists(_socket(context)) and os.access(
        os.path.join(_state(context) or state_dir(), FILE), os.R_OK | os.W_OK
    )


def _desk(context: typer.Context) -> AbstractContextManager[Desk]:
    return office.opened(_state(context), str(getattr(context.obj, "config", "") or ""))
