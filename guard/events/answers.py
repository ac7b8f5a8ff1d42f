"""The reading side of `guard serve events`: a process of its own that shows each user what that one may see.

A request is one line of JSON: a `Query`, or `{"verify":true}`. The answer is a line for each row (`query.framed`),
and at last `{"end":true}`, or `{"error":"…"}`.
"""

from __future__ import annotations

import grp
import os
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from typing import Final

import orjson

from guard.errors import GuardError
from guard.events import access, settings
from guard.events.names import Names
from guard.events.peers import Peer, peer_of
from guard.events.producer import Producer
from guard.events.query import Query, find, framed
from guard.events.reader import Reader
from guard.events.sink import SocketSink
from guard.redact.server import listen

SOCKET: Final = "events-read.sock"
CONNECTIONS: Final = 128
CONNECTIONS_A_UID: Final = 8
IDLE: Final = 30.0
"""Seconds in which a reader must take what it is sent."""
RECORDED_WITHIN: Final = 18.0
"""Seconds; who asks waits for twenty."""


class Answers:
    """Answers readers.

    Args:
        spool: its directory.
        config: the configuration directory.
        intake: the service's socket, where looks at others' events are recorded.
    """

    def __init__(self, spool: str, config: str, intake: str) -> None:
        self._spool = spool
        self._config = config
        self._producer = Producer("reader")
        self._sink = SocketSink(self._producer, intake)
        self._names = Names()
        self._owner = os.geteuid()
        self._lock = threading.Lock()
        self._checking = threading.Lock()
        self._by_uid: Counter[int] = Counter()

    def serve(self, path: str, parent: int) -> None:
        """Listen for good; ends with the process that started it.

        Args:
            path: the socket.
            parent: the process that started this one.
        """
        listener = listen(path, everybody=self._owner == 0)
        listener.settimeout(0.5)
        while os.getppid() == parent:
            with suppress(TimeoutError):
                channel, _ = listener.accept()
                threading.Thread(target=self._converse, args=(channel,), daemon=True).start()
        with suppress(OSError):
            os.unlink(path)

    def _converse(self, channel: socket.socket) -> None:
        uid = -1
        try:
            with channel:
                peer = peer_of(channel)
                with self._lock:
                    full = self._by_uid.total() >= CONNECTIONS or self._by_uid[peer.uid] >= CONNECTIONS_A_UID
                    if full and not peer.is_root:
                        return
                    uid = peer.uid
                    self._by_uid[uid] += 1
                channel.settimeout(IDLE)
                request = channel.makefile("rb").readline(65536)
                try:
                    self._answer(channel, peer, orjson.loads(request))
                except (GuardError, ValueError, OverflowError) as error:  # no request, or one of senseless values
                    channel.sendall(orjson.dumps({"error": str(error)}) + b"\n")
        except OSError:
            return  # the reader went away, or takes nothing more
        finally:
            if uid >= 0:
                with self._lock:
                    self._by_uid[uid] -= 1

    def _answer(self, channel: socket.socket, peer: Peer, request: object) -> None:
        if isinstance(request, dict) and request.get("verify") is True:
            # It reads all there is: one at a time, and only for as long as somebody waits for it.
            with self._checking, Reader(self._spool) as reader:
                verdict = reader.verify(lambda position: None if position % 4096 else _waited_for(channel))
            channel.sendall(orjson.dumps({"verdict": asdict(verdict)}) + b"\n")
            return
        with Reader(self._spool) as reader:
            query = Query.of(request)
            may = access.scope(peer, self._readers(), self._owner, _uid(query.user))
            if may.recorded:
                self._sink.emit(access.record(self._producer, peer, self._names.user(peer.uid), query))
                if not self._sink.flush(RECORDED_WITHIN):
                    raise GuardError("the look at others' events cannot be recorded now", "try again")
            self._send(channel, reader, query, may.uid)

    def _send(self, channel: socket.socket, reader: Reader, query: Query, uid: int | None) -> None:
        held: list[bytes] = []
        size = 0
        for row in find(reader, query, uid):
            if row is None:
                if held:
                    channel.sendall(b"".join(held))
                    held, size = [], 0
                else:
                    channel.sendall(b"\n")  # shows whether somebody reads still
                continue
            held.append(framed(row))
            size += len(held[-1])
            if size > 1 << 16 or query.follow:
                channel.sendall(b"".join(held))
                held, size = [], 0
        channel.sendall(b"".join(held) + b'{"end":true}\n')

    def _readers(self) -> set[int]:
        try:
            names = settings.load(self._config).readers
        except GuardError:
            return set()  # a file that does not load lets nobody see more
        found = set()
        for name in names:
            with suppress(KeyError):
                found.add(grp.getgrnam(name).gr_gid)
        return found


def _waited_for(channel: socket.socket) -> None:
    """See that the other side is still there; what it says meanwhile is not asked for.

    Raises:
        ConnectionError: it is gone.
    """
    with suppress(BlockingIOError):
        if not channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            raise ConnectionError("nobody waits for the answer")


def _uid(user: str) -> int | None:
    if user.isascii() and user.isdigit():
        return int(user)
    import pwd

    with suppress(KeyError):
        return pwd.getpwnam(user).pw_uid if user else None
    return None


def main(arguments: list[str]) -> None:
    """Run for the service that started this: its pid, spool, configuration, its socket, our socket."""
    parent, spool, config, intake, path = arguments
    while not os.path.exists(os.path.join(spool, "spool.db")):
        if os.getppid() != int(parent):
            return
        time.sleep(0.05)
    Answers(spool, config, intake).serve(path, int(parent))
