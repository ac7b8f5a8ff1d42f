"""An account holder's view, from any node: the site's service where it runs, else what this node has seen."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from guard.errors import StateError, UsageError
from guard.events import client
from guard.events.model import Severity, Tree, say, word
from guard.events.producer import Producer, user_name
from guard.events.query import Query, unframed
from guard.events.sink import SocketSink, socket_path
from guard.incidents import service
from guard.incidents.audience import WORDS
from guard.incidents.choose import digits
from guard.incidents.exposure import CLAIM
from guard.incidents.kinds import after
from guard.incidents.ledger import Secret, Sighting
from guard.redact import redact_text
from guard.redact.fingerprint import state_dir
from guard.redact.rules.advice import advice_for

_TIMES: Final = (
    "happened_first", "happened_last", "observed_first", "observed_last", "received_first", "received_last",
)  # fmt: skip


def listed(state: str, path: str) -> tuple[list[Mapping[str, Any]], bool]:
    """Return one's own incidents, and whether that is all the site knows.

    Args:
        state: the state directory that was named, "" for none.
        path: the site's service.

    Raises:
        StateError: neither the site's service nor this node's can be asked.
    """
    answer = _ask({"ask": "mine"}, path, "try again, or on the node that keeps the ledger")
    return (list(_seen_here(state)), False) if answer is None else (list(answer["incidents"]), True)


def _ask(request: Mapping[str, object], path: str, advice: str = "try again") -> dict[str, Any] | None:
    """Ask the site's service; None where none listens on this host.

    Raises:
        StateError: it breaks off, or is not to be trusted; with this advice.
        UsageError: it said no.
    """
    try:
        return service.ask(request, path)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as error:
        raise StateError(f"{path}: {error.strerror or error}", advice) from None


def events(state: str) -> Iterator[bytes]:
    """Yield what this node keeps of one's own events, as lines of JSON.

    Args:
        state: the state directory that was named, "" for none.

    Raises:
        SpoolError: they cannot be read.
    """
    where = client.places(state, state_dir())
    yield from map(unframed, client.lines(where, Query(user=str(os.getuid()))))


def _seen_here(state: str) -> Iterator[Mapping[str, Any]]:
    """Fold what the node's service shows this account of its own events; nothing of it is stored."""
    from guard.incidents import ledger, settings
    from guard.incidents.workflow import assess

    with ledger.Ledger(ledger.MEMORY) as book:
        now = book.now()
        book.fold(ledger.Received(ledger.decode(line), now) for line in events(state))
        uid, user = os.getuid(), user_name(os.getuid())
        for secret in book.secrets():
            yield service.shown(assess(secret, settings.Settings(), now), uid, user)


def secret(id_: str, rows: Iterable[Mapping[str, Any]]) -> Secret:
    """Return of one's own incidents the one that an id, or its beginning, names: as much of it as its holder knows.

    Args:
        id_: its digits, or its marker.
        rows: as `listed` gives them.

    Raises:
        UsageError: none is meant, or several.
    """
    start = digits(id_).lower()
    found = [row for row in rows if str(row["id"]).startswith(start)] if len(start) >= 4 else []
    if len(found) != 1:
        raise UsageError(f"you have no incident {id_[:20]}", "guard incidents mine shows yours")
    (row,) = found
    uid, user = os.getuid(), user_name(os.getuid())
    seen = (
        Sighting(
            alias=0, host=at["host"], uid=uid, user=user, source=at["source"], path=at["path"], spot="", session="",
            claim=False, baseline=False, kind=row["kind"], length=row["length"], strict=True, honeytoken=False,
            harness=at["harness"], job="", line=at["line"], offset=0, audience=row["audience"],
            **dict.fromkeys(_TIMES, int(at["time"] * 1e6)), count=at["count"],
        )
        for at in row["seen"]
    )  # fmt: skip
    named = (("site", str(row["id"])),) if row.get("fingerprint", True) else (("", str(row["id"])),)
    return Secret(str(row["id"]), named, tuple(seen), ())


def matched(names: Sequence[tuple[str, str]], path: str) -> str:
    """Ask the service which incident of this account's a key is; return its id, "" for none.

    Args:
        names: of the key, each (scope, fingerprint).
        path: the service's socket.

    Raises:
        StateError: no service answers.
    """
    answer = _ask({"ask": "match", "names": names}, path)
    if answer is None:
        raise StateError(f"{path}: no service keeps incidents here", "ask on the site's service node")
    incident = answer.get("incident")
    return str(incident["id"]) if isinstance(incident, dict) else ""


def rotated(id_: str, reason: str, state: str, path: str) -> str:
    """Say that a key was rotated; return the sentence that tells what became of it.

    Raises:
        UsageError: there is no such incident of this account.
        StateError: no service takes it.
    """
    answer = _ask({"ask": "rotated", "id": id_, "reason": reason}, path)
    if answer is not None:
        return f"{answer['incident']['id']} {answer['incident']['state']}"
    start = digits(id_).lower()
    if not 4 <= len(start) <= 64 or start.strip("0123456789abcdef"):
        raise UsageError(f"{id_} is no incident's id", "it is the 12 digits that the marker and the mail show")
    producer = Producer("incidents", "user")
    event = producer.event(
        "exposure",
        CLAIM,
        Severity.INFO,
        say("the holder says that {} is rotated", word(start)),
        tree=Tree(uid=os.getuid(), user=user_name(os.getuid())),
        detail={"incident": word(start), "reason": redact_text(reason[:500])},
    )
    sink = SocketSink(producer, socket_path(state))
    sink.emit(event)
    done = sink.flush(2.0)
    sink.close()
    if not done:
        raise StateError("no service of guard's takes this on here", "say it on a login node, or to InfoSec")
    return f"{start} told: it is on its way to the site"


def text(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield one incident as its holder is shown it."""
    due = datetime.fromtimestamp(row["due"], UTC).strftime("%Y-%m-%d") if row["due"] else ""
    yield f"{row['id']}  {row['kind']}  {row['state']}" + (
        f"  {'OVERDUE since' if row['overdue'] else 'due'} {due}" if due else ""
    )
    yield f"    who could read it: {WORDS.get(row['audience'], 'not known')}; {row['length'] or 'unknown'} bytes long"
    for seen in row["seen"][:10]:
        at = datetime.fromtimestamp(seen["time"], UTC).strftime("%Y-%m-%d %H:%M")
        where = f"{seen['path']}:{seen['line']}" if seen["line"] else seen["path"]
        yield f"    {at} {seen['host']} {seen['source']} {where}"
    yield f"    revoke: {advice_for(row['kind'])}"
    yield f"    then:   {after(row['kind'])}; then: guard incidents rotated {row['id']}"
