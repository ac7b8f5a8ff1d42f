"""An account holder's view, from any node: the site's service where it runs, else what this node has seen."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from guard.errors import StateError, UsageError
from guard.events import client
from guard.events.model import Severity, Tree, say, word
from guard.events.producer import Producer
from guard.events.query import Query
from guard.events.sink import SocketSink, socket_path
from guard.incidents import service
from guard.incidents.audience import WORDS
from guard.incidents.exposure import CLAIM
from guard.incidents.kinds import after
from guard.redact import redact_text
from guard.redact.fingerprint import state_dir
from guard.redact.rules.advice import advice_for


def listed(state: str, path: str) -> tuple[list[Mapping[str, Any]], bool]:
    """Return one's own incidents, and whether that is all the site knows.

    Args:
        state: the state directory that was named, "" for none.
        path: the site's service.

    Raises:
        StateError: neither the site's service nor this node's can be asked.
    """
    try:
        return list(service.ask({"ask": "mine"}, path)["incidents"]), True
    except (FileNotFoundError, ConnectionRefusedError):
        return list(_seen_here(state)), False
    except OSError as error:
        raise StateError(
            f"{path}: {error.strerror or error}", "try again, or on the node that keeps the ledger"
        ) from None


def events(state: str) -> Iterator[bytes]:
    """Yield what this node keeps of one's own events, as lines of JSON.

    Args:
        state: the state directory that was named, "" for none.

    Raises:
        SpoolError: they cannot be read.
    """
    where = client.places(state, state_dir())
    for line in client.lines(where, Query(user=str(os.getuid()))):
        # Each is an event in a frame of its position; what is handed on is the event as it is stored.
        yield line[line.index(b'"event":') + 8 :].rstrip()[:-1]


def _seen_here(state: str) -> Iterator[Mapping[str, Any]]:
    """Fold what the node's service shows this account of its own events; nothing of it is stored."""
    from guard.incidents import ledger, settings
    from guard.incidents.workflow import assess

    with ledger.Ledger(":memory:") as book:
        now = book.now()
        book.fold(ledger.Received(ledger.decode(line), now) for line in events(state))
        uid, user = os.getuid(), _name()
        for secret in book.secrets():
            yield service.shown(assess(secret, settings.Settings(), now), uid, user)


def rotated(id_: str, reason: str, state: str, path: str) -> str:
    """Say that a key was rotated; return the sentence that tells what became of it.

    Raises:
        UsageError: there is no such incident of this account.
        StateError: no service takes it.
    """
    try:
        answer = service.ask({"ask": "rotated", "id": id_, "reason": reason}, path)["incident"]
        return f"{answer['id']} {answer['state']}"
    except (FileNotFoundError, ConnectionRefusedError):
        pass
    except OSError as error:
        raise StateError(f"{path}: {error.strerror or error}", "try again") from None
    digits = id_.strip().lower()
    if not 4 <= len(digits) <= 64 or digits.strip("0123456789abcdef"):
        raise UsageError(f"{id_} is no incident's id", "it is the 12 digits that the marker and the mail show")
    producer = Producer("incidents", "user")
    event = producer.event(
        "exposure",
        CLAIM,
        Severity.INFO,
        say("the holder says that {} is rotated", word(digits)),
        tree=Tree(uid=os.getuid(), user=_name()),
        detail={"incident": word(digits), "reason": redact_text(reason[:500])},
    )
    sink = SocketSink(producer, socket_path(state))
    sink.emit(event)
    done = sink.flush(2.0)
    sink.close()
    if not done:
        raise StateError("no service of guard's takes this on here", "say it on a login node, or to InfoSec")
    return f"{digits} told: it is on its way to the site"


def _name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


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
