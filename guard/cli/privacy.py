"""`guard privacy`: what is stored about an account, taken out for it, or erased."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from guard.cli.incidents import when
from guard.errors import EXIT_FOUND, StateError, UsageError
from guard.events.model import Severity, say, word
from guard.events.producer import Producer
from guard.fleet.store import Store
from guard.incidents import keepers, office, own, privacy
from guard.incidents import notice as telling
from guard.incidents import purge as purging
from guard.incidents.desk import PRODUCER, Desk, operator
from guard.policy.source import printable
from guard.redact import Redacted, redact_text
from guard.redact.fingerprint import state_dir

app = typer.Typer(no_args_is_help=True, help="What is stored about an account: show, export, erase, explain.")

_User = Annotated[str, typer.Option("--user", metavar="NAME", help="The account.")]
_Mine = Annotated[bool, typer.Option("--mine", help="Your own.")]
_Before = Annotated[str, typer.Option("--before", metavar="T", help="Only what happened before: a date, or as 90d.")]
_Archives = Annotated[
    list[str] | None, typer.Option("--archive", metavar="DIR", help="A folder of the feed `archive`.")
]


def _account(user: str, mine: bool) -> tuple[str, int]:
    """Return (name, uid) of the account that is meant; uid -1 where this host does not know it.

    Raises:
        UsageError: none was named, or another's by somebody who is not root.
    """
    try:
        me = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise UsageError(f"this host knows no account {os.getuid()}", "run it where the account is known") from None
    if mine == bool(user):
        raise UsageError("say whose", "--mine, or --user NAME as root")
    name = me if mine else user
    if os.geteuid() != 0 and name != me:
        raise UsageError("another's records are not yours to see", "--mine shows your own")
    try:
        return name, pwd.getpwnam(name).pw_uid
    except KeyError:
        return name, -1


def _keepers(desk: Desk, state: str, name: str, archives: list[str] | None) -> list[privacy.Keeper]:
    from guard.incidents import accounts

    account = accounts.load(desk.settings.accounts).get(name)
    addresses = [account.mail] if account is not None and account.mail else []
    return [privacy.LedgerKeeper(desk.ledger, addresses), *_elsewhere(state, archives)]


def _elsewhere(state: str, archives: list[str] | None) -> list[privacy.Keeper]:
    return [*keepers.of_events(state), *map(privacy.ArchiveKeeper, archives or ())]


@contextmanager
def _read(
    what: str, state: str, config: str, name: str, archives: list[str] | None
) -> Iterator[tuple[Desk | None, list[privacy.Keeper]]]:
    """Open what keeps records, the ledger first, and record the look; a node that keeps no ledger begins none."""
    if office.has_ledger(state):
        with office.opened(state, config) as desk:
            desk.ledger.note_access(desk.who, what)
            yield desk, _keepers(desk, state, name, archives)
        return
    places = _elsewhere(state, archives)
    if places:
        _record(operator(), state, "events-read", name, say("events of others were read"), wanted=word(what))
    yield None, places


def _places(context: typer.Context) -> tuple[str, str]:
    return str(getattr(context.obj, "state", "") or ""), str(getattr(context.obj, "config", "") or "")


@app.command()
def show(
    context: typer.Context, user: _User = "", mine: _Mine = False, archives: _Archives = None
) -> None:  # fmt: skip
    """Show how much is stored about an account, and where."""
    name, uid = _account(user, mine)
    state, config = _places(context)
    if os.geteuid() != 0 and (mine or not office.has_ledger(state)):
        count = sum(1 for _ in own.events(state))
        sys.stdout.write(f"{'this node, events':44}{count:>8}\n")
        return
    with _read("privacy show", state, config, name, archives) as (desk, places):
        for row in privacy.stored(desk.ledger, name, uid) if desk else ():
            sys.stdout.write(f"{row.what:44}{row.records:>8}  {row.oldest}\n")
        for keeper in places[1:] if desk else places:
            count = sum(1 for _ in keeper.records(name, uid, purging.until_now()))
            sys.stdout.write(f"{keeper.what:44}{count:>8}\n")


@app.command()
def export(
    context: typer.Context, user: _User = "", mine: _Mine = False, archives: _Archives = None
) -> None:  # fmt: skip
    """Write everything that is stored about an account, one JSON object a line."""
    name, uid = _account(user, mine)
    state, config = _places(context)
    out = sys.stdout.buffer
    if os.geteuid() != 0 and (mine or not office.has_ledger(state)):
        out.writelines(line + b"\n" for line in own.events(state))
        return
    with _read("privacy export", state, config, name, archives) as (_, places):
        for keeper in places:
            out.writelines(line + b"\n" for line in keeper.records(name, uid, purging.until_now()))


@app.command()
def purge(
    context: typer.Context, user: _User = "", before: _Before = "", archives: _Archives = None,
    yes: Annotated[bool, typer.Option("--yes", help="Erase without asking.")] = False,
) -> None:  # fmt: skip
    """Erase what is stored about an account; counts and open incidents stay, without whose they were."""
    if os.geteuid() != 0 and not os.environ.get("GUARD_STATE_DIR"):
        raise UsageError("only root can erase records", "ask the site: guard privacy purge --user NAME")
    name, uid = _account(user, False)
    state, config = _places(context)
    moment = when(before) or purging.until_now()
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"this erases the records of {name}", "say --yes")
        sys.stderr.write(f"erase the records of {name}? [y/N] ")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError("nothing was erased")
    if office.has_ledger(state):
        with office.opened(state, config) as desk:
            done = purging.purge(desk.ledger, _keepers(desk, state, name, archives), name, uid, moment)
    else:
        # A node of a fleet: its spool is all it has, and a ledger of its own is not begun for that.
        done = {keeper.what: keeper.erase(name, uid, moment) for keeper in _elsewhere(state, archives)}
    count = sum(done.values())
    _record(operator(), state, "privacy-purged", name,
            say("the records of an account were erased: {} in all", count), records=count)  # fmt: skip
    for what, count in done.items():
        sys.stdout.write(f"{what:44}{count:>8}\n")
    for line in telling.out_of_reach(name, config or "/etc/guard"):
        sys.stderr.write(f"not erased: {line}\n")


@app.command()
def nodes(
    context: typer.Context, user: _User = "",
    since: Annotated[str, typer.Option("--since", metavar="T", help="An older purge counts for nothing.")] = "7d",
) -> None:  # fmt: skip
    """List the nodes that have not told that they erased an account's records, one a line; 1 where there are any."""
    if not user:
        raise UsageError("say whose", "--user NAME")
    state, config = _places(context)
    path = os.path.join(state or state_dir(), "site.db")
    with office.opened(state, config) as desk, Store(path, write=False) as store:
        if why := purging.held(desk.ledger, user):
            raise purging.on_hold(user, why)
        left = purging.unpurged(desk.ledger, store, user, when(since))
    sys.stdout.writelines(f"{printable(host)}\n" for host in left)
    if left:
        raise typer.Exit(EXIT_FOUND)


@app.command()
def hold(context: typer.Context, user: _User = "", reason: Annotated[str, typer.Option("--reason")] = "") -> None:
    """Forbid that an account's records are erased, until `release`."""
    if not user or not reason.strip():
        raise UsageError("a hold needs --user and --reason")
    state, config = _places(context)
    with office.opened(state, config) as desk:
        purging.hold(desk.ledger, user, reason, desk.who)
        _record(desk.who, state, "privacy-held", user, say("a legal hold was placed on an account's records"),
                reason=redact_text(reason.replace(user, "this account")))  # fmt: skip


@app.command()
def release(context: typer.Context, user: _User = "") -> None:
    """Take a legal hold away."""
    state, config = _places(context)
    with office.opened(state, config) as desk:
        if not purging.release(desk.ledger, user):
            raise StateError(f"there is no hold on {user}", "guard privacy hold places one")
        _record(desk.who, state, "privacy-released", user, say("a legal hold was taken from an account's records"))


def _record(by: str, state: str, rule: str, name: str, message: Redacted, **more: Redacted | int) -> None:
    """Put on record who did what to an account's records, without whose they are: a digest under a salt of its own."""
    salt, digest = purging.receipt(name)
    who = redact_text(by if by != name else "")
    event = Producer(PRODUCER).event(
        "telemetry", rule, Severity.INFO, message,
        detail={"salt": word(salt), "account": word(digest), "who": who, **more},
    )  # fmt: skip
    office.sender(state or state_dir())([event])


@app.command()
def notice(context: typer.Context) -> None:
    """Print, from the settings in force, what is collected, why, who sees it, and for how long."""
    state, config = _places(context)
    sys.stdout.write(telling.text(state, config or "/etc/guard"))
