"""The site's resident service for account holders: what is exposed of mine, and that I rotated it.

One JSON object a line each way, on a unix socket. Who asks is known from the kernel (SO_PEERCRED, unix(7)); the
service shows an account its own incidents and nothing else. Between requests it keeps the ledger up to date, sends
the alerts of clocks that ran out, and the mail that is due.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from guard.errors import GuardError, UsageError
from guard.events.peers import peer_of, stranger
from guard.events.producer import user_name
from guard.incidents import choose
from guard.incidents.desk import Desk
from guard.incidents.ledger import Secret, Sighting
from guard.incidents.notices import send_due
from guard.incidents.office import catch_up, quietly
from guard.incidents.workflow import Incident, assess
from guard.redact.server import Ration, listen, notify

SOCKET: Final = "incidents.sock"
LINE: Final = 65536
PATIENCE: Final = 5.0
"""Seconds that a peer has for its request, and to take the answer."""
ROUND: Final = 60.0
"""Seconds between two rounds of folding, alerts and mail."""


def socket_path(state: str = "") -> str:
    """Where the service listens: in the state directory that was named, or in /run."""
    return os.path.join(state or os.environ.get("GUARD_STATE_DIR") or "/run/guard", SOCKET)


class Counter:
    """Answers an account holder's requests.

    Args:
        desk: the site's.
        clock: seconds, monotonic.
    """

    def __init__(self, desk: Desk, clock: Callable[[], float] = time.monotonic) -> None:
        self._desk = desk
        self._clock = clock
        self._asked = Ration(1.0, 30)
        self._matched = Ration(1 / 30, 10)

    def answer(self, uid: int, user: str, request: Mapping[str, Any], *, guarded: bool) -> dict[str, object]:
        """Answer one request.

        Args:
            uid, user: the peer, as the kernel gives it.
            request: `{"ask": "mine"}`, `{"ask": "match", "names": [[KEY_ID, FINGERPRINT], …]}` or
                `{"ask": "rotated", "id": ID, "reason": TEXT}`.
            guarded: whether the peer runs inside of a guarded tree: an agent speaks for nobody.

        Raises:
            UsageError: the request cannot be answered; the sentence says why.
        """
        ask = request.get("ask")
        if not self._asked.take(uid, 1, self._clock()):
            raise UsageError("too many requests", "wait a minute")
        if ask == "mine":
            return {"incidents": [row for one in owned(self._desk, uid, user) if (row := shown(one, uid, user))]}
        if ask == "match":
            if not self._matched.take(uid, 1, self._clock()):
                raise UsageError("too many keys in a short time", "wait a minute")
            names = request.get("names")
            pairs = [
                (str(n[0]), str(n[1])) for n in (names if isinstance(names, list) else [])[:64]
                if isinstance(n, list) and len(n) == 2
            ]  # fmt: skip
            each = (self._desk.ledger.named((pair,)) for pair in pairs)
            secret = next((s for s in each if s is not None and owns(s, uid, user)), None)
            self._desk.ledger.note_access(user, f"own match {secret.id if secret else 'none'}")
            return {"incident": shown(self._assess(secret), uid, user) if secret is not None else None}
        if ask == "rotated":
            if guarded:
                raise UsageError("this comes from inside of a guarded session", "say it in a shell of your own")
            secret = self._own(str(request.get("id", "")), uid, user)
            reason = str(request.get("reason", ""))[:500]
            (after,) = self._desk.by(user).decide([self._assess(secret)], "claim", reason)
            return {"incident": shown(after, uid, user)}
        raise UsageError("unknown request", "guard on this host is of another version than the service")

    def _own(self, given: str, uid: int, user: str) -> Secret:
        # Looked for among their own: that another's begins alike is not told either.
        digits = choose.digits(given)
        found = [s for s in self._desk.ledger.find(digits) if owns(s, uid, user)] if len(digits) >= 4 else []
        if len(found) != 1:
            # One answer for "none" and "another's": asking tells nothing of others.
            raise UsageError(f"you have no incident {given[:20]}", "guard incidents mine shows yours")
        return found[0]

    def _assess(self, secret: Secret) -> Incident:
        return assess(secret, self._desk.settings, self._desk.ledger.now())


def owns(secret: Secret, uid: int, user: str) -> bool:
    """Say whether one of a secret's sightings is of an account.

    By name where the event has one: numbers differ between hosts, and uid 0 is every host's own.
    """
    return any(_is_of(s, uid, user) for s in secret.sightings)


def owned(desk: Desk, uid: int, user: str) -> list[Incident]:
    """Return an account's incidents, the most urgent first."""
    now = desk.ledger.now()
    secrets = desk.ledger.secrets("s.user = ? OR s.uid = ?", (user, uid))
    found = (assess(s, desk.settings, now) for s in secrets if owns(s, uid, user))
    return choose.in_order(one for one in found if not one.weak)


def _is_of(sighting: Sighting, uid: int, user: str) -> bool:
    return sighting.user == user if sighting.user else sighting.uid == uid and uid > 0


def shown(incident: Incident, uid: int, user: str) -> dict[str, object]:
    """Return what an account holder is shown of an incident: their own sightings alone."""
    own = [s for s in incident.secret.sightings if _is_of(s, uid, user)]
    return {
        "id": incident.id,
        "kind": incident.kind,
        "state": str(incident.state),
        "due": incident.due / 1e6,
        "overdue": incident.overdue,
        "audience": incident.audience,
        "length": max((s.length for s in own), default=0),
        "fingerprint": bool(incident.secret.names[0][0]),
        "seen": [
            {"host": s.host, "source": s.source, "path": s.path, "line": s.line, "time": s.happened_last / 1e6,
             "harness": s.harness, "count": s.count}
            for s in own
        ],
    }  # fmt: skip


def serve(
    desk: Desk,
    state: str,
    accounts: Callable[[], Mapping[str, Any]],
    stop: Callable[[], bool],
    path: str = "",
    every: float = ROUND,
) -> None:
    """Listen until told to stop.

    Args:
        desk: the site's.
        state: the state directory, whose spool is folded.
        accounts: gives the account map, read anew each round.
        stop: asked twice a second.
        path: the socket; the usual place when not given.
        every: seconds between two rounds.

    Raises:
        StateError: the socket's directory can be written by others, or a service listens there.
    """
    place = path or socket_path()
    counter = Counter(desk)
    listener = listen(place, everybody=os.geteuid() == 0)
    listener.settimeout(0.5)
    notify(b"READY=1")
    due = 0.0
    try:
        while not stop():
            if time.monotonic() >= due:
                due = time.monotonic() + every
                round_(desk, state, accounts)
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                _converse(connection, counter)
    finally:
        listener.close()
        os.unlink(place)


def round_(desk: Desk, state: str, accounts: Callable[[], Mapping[str, Any]]) -> None:
    """Fold what came in, alert of what is overdue, and send what mail is due; what fails is said and tried again."""
    try:
        catch_up(desk.ledger, state)
        quietly(desk)
        desk.alert_overdue()
        desk.retire()
        if desk.settings.mail:
            send_due(desk, accounts())
    except (GuardError, sqlite3.Error) as error:
        sys.stderr.write(f"guard serve incidents: {error}\n")


def _converse(connection: socket.socket, counter: Counter) -> None:
    """Take one request and answer it; a peer that is slow or breaks off costs `PATIENCE` at most."""
    connection.settimeout(PATIENCE)
    end = time.monotonic() + PATIENCE
    try:
        peer = peer_of(connection)
        line = b""
        while not line.endswith(b"\n"):
            part = connection.recv(LINE)
            if not part or len(line) > LINE or time.monotonic() > end:
                return
            line += part
        try:
            request = orjson.loads(line)
            if not isinstance(request, dict):
                raise UsageError("this is no request")
            answer = counter.answer(peer.uid, user_name(peer.uid) or f"uid {peer.uid}", request, guarded=peer.inside)
        except orjson.JSONDecodeError:
            answer = {"error": "this is no request"}
        except GuardError as error:
            answer = {"error": str(error)}
        except sqlite3.Error as error:
            sys.stderr.write(f"guard serve incidents: {error}\n")
            answer = {"error": "the ledger cannot be used now; try again"}
        connection.sendall(orjson.dumps(answer) + b"\n")
    except OSError:
        return  # nobody is left to be told


def ask(request: Mapping[str, object], path: str = "", timeout: float = PATIENCE) -> dict[str, Any]:
    """Ask the service; for an account holder's commands.

    Raises:
        FileNotFoundError: no service listens on this host.
        OSError: it broke off, or runs as somebody who is not to be trusted.
        UsageError: it said no; the sentence is its own.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(timeout)
        connection.connect(path or socket_path())
        if stranger(connection) >= 0:
            raise PermissionError("the service is another user's")
        connection.sendall(orjson.dumps(request) + b"\n")
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    try:
        answer = orjson.loads(b"".join(parts))
    except orjson.JSONDecodeError:
        raise ConnectionError("the service broke off") from None
    if "error" in answer:
        raise UsageError(str(answer["error"]))
    return dict(answer)
