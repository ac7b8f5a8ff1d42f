"""The resident redactor: one warm engine a node, and the only holder of the site's fingerprint key.

Every connection's peer is known from the kernel (SO_PEERCRED, unix(7)). Requests are rationed by uid. A
fingerprint is given only for a value that the rules recognise and that nobody could guess, so the service
tells a guesser nothing.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
import threading
import time
from contextlib import suppress
from typing import Final

from guard.errors import GuardError, StateError
from guard.redact import fingerprint, lists
from guard.redact.carriers import NAMES
from guard.redact.client import LIMIT, SO_PEERCRED, socket_paths
from guard.redact.marking import Identity
from guard.redact.report import file_rows
from guard.redact.scan import Scanner
from guard.redact.spans import Span, marker
from guard.redact.stream import Sighting, redact_bytes

CONNECTIONS: Final = 128
IDLE: Final = 30.0
"""Seconds after which a silent connection is closed."""


class Ration:
    """A token bucket a uid.

    Args:
        rate: tokens that come back a second.
        burst: tokens at most.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left: dict[int, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, uid: int, tokens: float, now: float) -> bool:
        """Take tokens and say whether there were enough."""
        with self._lock:
            left, then = self._left.get(uid, (self._burst, now))
            left = min(self._burst, left + (now - then) * self._rate)
            if left < tokens:
                self._left[uid] = (left, now)
                return False
            self._left[uid] = (left - tokens, now)
            if len(self._left) > 4096:
                self._left = {u: v for u, v in self._left.items() if now - v[1] < 600}
            return True


class Service:
    """Answers requests; the sockets are `serve`'s.

    Args:
        keys: the fingerprint keys, the current one first; None where no site key is installed: then no fingerprint
            is made up.
        owner: the uid the service runs as; a user's own service answers that user and root only.
    """

    def __init__(self, keys: list[fingerprint.Key] | None, owner: int) -> None:
        self.keys = keys
        self._owner = owner
        self._scanner = Scanner()
        self._scanner.engine(1 << 20)
        # One scan at a time: hyperscan's scratch space is not shared.
        self._lock = threading.Lock()
        self._requests = Ration(500, 2000)
        self._bytes = Ration(64 << 20, 256 << 20)
        self._values = Ration(200, 4000)
        self._lists = self._load_lists()
        self.started = time.time()
        self.answered = 0

    def reload(self) -> None:
        """Read the site's key again, after it was installed or rotated."""
        if self._owner == 0:
            self.keys = fingerprint.site_keys()
        self._lists = self._load_lists()

    def _load_lists(self) -> lists.Lists:
        try:
            return lists.load()
        except StateError:
            return lists.Lists({}, {})  # `guard doctor` tells which line is wrong

    def answer(self, uid: int, verb: str, word: str, data: bytes) -> tuple[bool, bytes]:
        """Answer one request of a peer.

        Args:
            uid: the peer, as the kernel gives it.
            verb: redact, spans, fingerprint or status.
            word: the format, or the kind.
            data: the text, or the value.
        """
        now = time.monotonic()
        if self._owner != 0 and uid not in (0, self._owner):
            return False, b"this service is another user's"
        if not self._requests.take(uid, 1, now) or not self._bytes.take(uid, len(data), now):
            return False, b"too many requests; wait a second"
        self.answered += 1
        if verb == "status":
            return True, json.dumps(self.status()).encode()
        if verb in ("redact", "spans"):
            if word not in NAMES:
                return False, b"unknown format"
            return True, self._redact(uid, data, word, verb == "spans")
        if verb == "fingerprint":
            if not self._values.take(uid, 1, now):
                return False, b"too many fingerprints; wait a second"
            return self._fingerprint(word, data)
        return False, b"unknown request"

    def status(self) -> dict[str, object]:
        """Return what `guard doctor` shows; `key_id` is null where no key is installed."""
        return {
            "key_id": self.keys[0].key_id if self.keys else None,
            "engine": self._scanner.engine(1 << 20).name,
            "since": self.started,
            "answered": self.answered,
        }

    def _mark(self, span: Span) -> bytes:
        identity = self._identity(span)
        return marker(span.kind, identity.fingerprint if identity else None)

    def _identity(self, span: Span) -> Identity | None:
        if not self.keys or not fingerprint.fingerprinted(span):
            return None
        return Identity.under(self.keys, span.value, time.time())

    def _redact(self, uid: int, data: bytes, word: str, spans: bool) -> bytes:
        sightings: list[Sighting] = []
        watched = spans or bool(self._lists.honeytokens)
        with self._lock:
            out = redact_bytes(data, self._scanner, self._mark, word, sightings.append if watched else None)
        if self._lists.honeytokens:
            for sighting in sightings:
                self._raise(uid, sighting.span)
        if not spans:
            return out
        rows = [
            {
                "start": s.offset,
                "end": s.offset + s.length,
                "kind": s.span.kind,
                "incident": s.span.incident,
                "partial": s.span.partial,
                "marker": self._mark(s.span).decode(),
            }
            for s in sightings
        ]
        return json.dumps(rows).encode()

    def _raise(self, uid: int, span: Span) -> None:
        """File the sighting of a honeytoken; the events service adopts what is filed here."""
        for key in self.keys or ():
            name = key.of(span.value)
            if name in self._lists.honeytokens:
                row: dict[str, object] = {
                    "fingerprint": name,
                    "key_id": key.key_id,
                    "kind": span.kind,
                    "partial": False,
                    "file": f"<uid {uid}>",
                    "uid": uid,
                    "length": span.end - span.start,
                    "advice": "find out who used it, and what else they read",
                }
                self._lists.judge(row, time.time())
                with suppress(OSError, GuardError):
                    file_rows([row])
                return

    def _fingerprint(self, kind: str, value: bytes) -> tuple[bool, bytes]:
        if not self.keys:
            return False, b"no site key is installed on this node; see guard key status"
        # The rules must know the value by its own format, or it must be dense: nothing else is ever
        # fingerprinted.
        with self._lock:
            found = self._scanner.find(value)
        named = len(found) == 1 and found[0].named and found[0].end - found[0].start >= len(value) - 1
        identity = self._identity(Span(0, len(value), found[0].kind if named else kind, False, False, named, value))
        if identity is None:
            return True, b""
        pairs = [(identity.key_id, identity.fingerprint), *identity.former]
        return True, " ".join(f"{key} {value}" for key, value in pairs).encode()


def serve(path: str | None = None, ready: threading.Event | None = None, stop: threading.Event | None = None) -> None:
    """Listen until told to stop.

    Args:
        path: the socket; None takes the usual place of who runs this.
        ready: set once the socket listens; systemd is told too.
        stop: set from outside to end.

    Raises:
        StateError: the socket's folder can be written by others, or another service listens there.
    """
    uid = os.geteuid()
    place = (
        path
        or socket_paths()[
            0 if uid == 0 or os.environ.get("GUARD_STATE_DIR") or os.environ.get("GUARD_REDACT_SOCKET") else -1
        ]
    )
    keys = (
        fingerprint.site_keys() if uid == 0 or os.access(fingerprint.site_path(), os.R_OK) else fingerprint.user_keys()
    )
    service = Service(keys, uid)
    listener = listen(place, everybody=uid == 0)
    notify(b"READY=1")
    if ready is not None:
        ready.set()
    slots = threading.BoundedSemaphore(CONNECTIONS)
    listener.settimeout(0.5)
    checked = time.monotonic()
    while stop is None or not stop.is_set():
        if time.monotonic() - checked > 5:
            service.reload()
            checked = time.monotonic()
        try:
            connection, _address = listener.accept()
        except TimeoutError:
            continue
        if not slots.acquire(blocking=False):
            connection.close()
            continue
        threading.Thread(target=_converse, args=(connection, service, slots), daemon=True).start()
    listener.close()
    with suppress(FileNotFoundError):
        os.unlink(place)


def listen(path: str, everybody: bool) -> socket.socket:
    """Bind the socket in a folder that only its owner can write.

    Raises:
        StateError: the folder is not safe, or a service listens there already.
    """
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o755 if everybody else 0o700, exist_ok=True)
    info = os.stat(folder)
    if info.st_uid not in (0, os.geteuid()) or (info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX):
        raise StateError(f"{folder} can be written by others", "use a folder of your own, or chmod go-w it")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        probe.connect(path)
        raise StateError(f"a service listens at {path} already", "stop it first (guard serve redact runs once a node)")
    except (FileNotFoundError, ConnectionRefusedError):
        with suppress(FileNotFoundError):
            os.unlink(path)  # what a killed service left behind
    finally:
        probe.close()
    umask = os.umask(0o111 if everybody else 0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(umask)
    listener.listen(64)
    return listener


def _converse(connection: socket.socket, service: Service, slots: threading.BoundedSemaphore) -> None:
    try:
        with connection:
            connection.settimeout(IDLE)
            credentials = connection.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12)
            uid = int.from_bytes(credentials[4:8], sys.byteorder)
            stream = connection.makefile("rb")
            while head := stream.readline(128):
                try:
                    verb, word, size = head.decode("ascii").split()
                    length = int(size)
                except ValueError:
                    break
                if not 0 <= length <= LIMIT:
                    break
                data = stream.read(length)
                if len(data) < length:
                    break
                good, answer = service.answer(uid, verb, word, data)
                connection.sendall(b"%s %d\n" % (b"ok" if good else b"no", len(answer)) + answer)
    except (OSError, ValueError):
        return  # the peer went away or was too slow; there is nobody left to tell
    finally:
        slots.release()


def notify(state: bytes) -> None:
    """Tell systemd (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier, suppress(OSError):
        # Never waiting: a manager that does not read must not stop the service.
        notifier.sendto(state, socket.MSG_DONTWAIT, "\0" + address[1:] if address.startswith("@") else address)
