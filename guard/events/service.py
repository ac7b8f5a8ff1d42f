"""`guard serve events`: takes events from every producer of the node, and keeps them.

One process, one thread, one writer. What came in while the last commit was on its way to the disk is the next
batch: the more there is to do, the cheaper each event becomes. An event is acknowledged when it is durable. Readers
are answered by a process of their own (`answers`), users' own spools are read by children that are those users
(`adopt`), names are looked up in a thread that nobody waits for: nothing of that can hold acceptance up.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import orjson

from guard.errors import EventError, PolicyError, SpoolError, StateError
from guard.events import adopt, settings
from guard.events.adopting import AGAIN, Adoption
from guard.events.connection import Connection
from guard.events.entry import Entry
from guard.events.exposures import as_events
from guard.events.gate import Batch, Gate
from guard.events.heartbeat import Beat, heartbeat
from guard.events.intake import Node, Redactor, Sessions, accept
from guard.events.model import Event, Severity, say
from guard.events.names import Names
from guard.events.peers import Peer, peer_of
from guard.events.privacy import node_key
from guard.events.producer import Producer, boot_id
from guard.events.settings import Settings
from guard.events.spool import Spool
from guard.redact import lists, redact_text, withhold
from guard.redact.server import Ration, listen

CONNECTIONS: Final = 512
CONNECTIONS_A_UID: Final = 32
READ: Final = 256 << 10
TICK: Final = 1.0
SWEEP: Final = 10.0
"""Seconds between two looks for users' spools; a poke is answered at once."""
TRIM: Final = 60.0
TELL: Final = 10.0
"""Seconds between two events that tell of losses."""
BATCH: Final = 4000
"""Events after which a turn takes no more."""
PART: Final = 64
"""Events that are judged together."""
CLAIMED: Final = 256 << 10
"""Bytes of users' lines after which a turn takes no more of them."""
LINE: Final = 2048
"""Bytes that a line of a user's may have on average."""
POKE: Final = b'{"adopt":true}'
"""A line by which a user asks that his own spool be adopted now."""
ADOPTED: Final = b'{"adopted":true}\n'


class Service:
    """Takes, judges and stores events; `attempt` and `turn` are one turn of its loop.

    Args:
        state: the service's state directory: root's, or a user's for a service of his own.
        config: the configuration directory.
        socket_at: where to listen.
        beat: makes the heartbeat; another one adds what it knows of the node.
        clock: nanoseconds since 1970.

    Raises:
        PolicyError: a configuration file does not load.
        StateError, SpoolError: the socket or the spool cannot be had.
    """

    def __init__(
        self,
        state: str,
        config: str,
        socket_at: str,
        *,
        beat: Callable[[Producer, Beat], Event] = heartbeat,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.settings: Settings = settings.load(config)
        self._config = config
        self._clock = clock
        self._owner = os.geteuid()
        self._state = state
        self.spool_path = self.settings.spool or os.path.join(state, "spool")
        self.spool = Spool(self.spool_path, limits=self.settings.limits, clock=lambda: clock() / 1e9, patience=3.0)
        self._key = node_key(self.spool_path)
        self._names = Names()
        self._node = Node(os.uname().nodename, boot_id(), self._owner, clock, self._names)
        self.producer = Producer("service", clock=clock)
        self._sessions = Sessions(_sessions(self.spool.kept("session")))
        self._adoption = Adoption(self.spool.kept("adopted"))
        self._gate = self._new_gate()
        self._redactor = Redactor()
        self._ration, self._bytes = self._rations()
        self._beat = beat
        self._told = False
        self._turns = 0
        self._broken: dict[str, tuple[int, int, int]] = {}
        self._accepted = 0
        self._claimed: OrderedDict[str, int] = OrderedDict()
        self._connections: dict[int, Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._path = socket_at
        self._listener = listen(socket_at, everybody=self._owner == 0)
        self._listener.listen(256)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._times = dict.fromkeys(("sweep", "trim", "tell", "beat", "config", "tick"), 0.0)

    # The loop ---------------------------------------------------------------------------------------

    def attempt(self, timeout: float = TICK) -> None:
        """One turn; where the spool cannot be written, say so and wait: producers keep what was not acknowledged.

        Args:
            timeout: seconds to wait for something to do.
        """
        try:
            self.turn(timeout)
        except SpoolError as error:
            sys.stderr.write(f"guard serve events: {error}\n")
            time.sleep(timeout)

    def wake_by(self, channel: socket.socket) -> None:
        """Let a byte on a socket end the waiting of a turn: a signal has come."""
        channel.setblocking(False)
        self._selector.register(channel, selectors.EVENT_READ, channel)

    def turn(self, timeout: float) -> None:
        """One turn: take what is there, store it, acknowledge it, do what is due."""
        # Who is read for again has to wait a little, and is not to wait longer.
        ready = self._selector.select(min(timeout, AGAIN) if self._adoption.waits else timeout)
        # Each in turn is the first: what is over `BATCH` waits in its sockets.
        self._turns += 1
        at = self._turns % (len(ready) or 1)
        batch = Batch()
        answers: list[tuple[Connection, bytes]] = []
        for key, _ in ready[at:] + ready[:at]:
            if len(batch.entries) > BATCH:
                break
            if batch.claimed > CLAIMED and isinstance(key.data, Connection) and not key.data.peer.is_root:
                continue  # what users send costs the most, and the node's own producers wait behind it
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, Connection):
                self._receive(key.data, batch, answers)
            elif isinstance(key.data, adopt.Reading):
                self._adopt(key.data, batch)
            elif isinstance(key.data, socket.socket):
                key.data.recv(4096)
        for reading in self._adoption.late():
            self._adopt(reading, batch)
        self._housekeeping(batch)
        self._store(batch)
        self._answer(answers)
        for reading in self._adoption.start():
            self._selector.register(reading.fileno(), selectors.EVENT_READ, reading)

    def close(self) -> None:
        """Close everything; the socket goes."""
        self._adoption.close()
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._listener.close()
        self._selector.close()
        with suppress(OSError):
            os.unlink(self._path)
        self.spool.close()

    def _store(self, batch: Batch) -> None:
        if not (batch.entries or batch.kept or batch.lost):
            return
        self._gate.settle(batch)
        changed = self._sessions.changed
        batch.kept += [("session", name, _session(self._sessions.known.get(name))) for name in changed]
        self._sessions.changed = set()
        try:
            done = self.spool.append(batch.entries, kept=batch.kept, lost=batch.lost)
        except SpoolError:
            # Nothing of it is acknowledged, and it comes again: what was counted of it must not count twice.
            self._gate = self._new_gate()
            self._sessions.changed |= changed
            self._adoption.forget(self.spool.kept("adopted"))
            for connection in list(self._connections.values()):
                self._drop(connection)
            raise
        self._accepted += done.count

    def _rations(self) -> tuple[Ration, Ration]:
        given = self.settings.ration
        return Ration(given.rate, given.burst), Ration(given.rate * LINE, given.burst * LINE)

    def _new_gate(self) -> Gate:
        return Gate(
            self.settings, self._key, self.spool.recall, self.spool.kept("budget"), self._names,
            lambda: self._clock() / 1e9,
        )  # fmt: skip

    # Connections ------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(64):
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return  # that was all; or it went away again, or we have no descriptor left for now
            try:
                peer = peer_of(channel)
            except OSError:
                channel.close()
                continue
            same = sum(each.peer.uid == peer.uid for each in self._connections.values())
            # Users, however many, leave room for the node's own producers.
            if not peer.is_root and (len(self._connections) >= CONNECTIONS or same >= CONNECTIONS_A_UID):
                channel.close()
                continue
            channel.setblocking(False)
            connection = Connection(channel, peer)
            self._connections[channel.fileno()] = connection
            self._selector.register(channel, selectors.EVENT_READ, connection)

    def _drop(self, connection: Connection) -> None:
        if self._connections.pop(connection.fileno(), None) is not None:
            self._selector.unregister(connection.channel)
        connection.channel.close()
        self._adoption.drop(connection)

    def _receive(self, connection: Connection, batch: Batch, answers: list[tuple[Connection, bytes]]) -> None:
        try:
            lines, ended = connection.lines(READ)
        except OSError:
            self._drop(connection)
            return
        if POKE in lines:
            self._poke(connection)
            lines = [line for line in lines if line != POKE]
        if connection.peer.is_root and lines and lines[0].startswith(b'{"erase":'):
            self._erase(connection, lines.pop(0))
        if lines:
            connection.through += len(lines)
            connection.dropped += self._take(lines, connection.peer, batch)
            answer = orjson.dumps({"through": connection.through, "dropped": connection.dropped})
            answers.append((connection, answer + b"\n"))
        if ended:
            self._drop(connection)

    def _take(self, lines: Sequence[bytes], peer: Peer, batch: Batch, *, adopted: bool = False) -> int:
        """Put lines into a batch; returns how many were not taken."""
        dropped = 0
        if not peer.is_root and not adopted:
            allowed = self._allowed(peer.uid, lines)
            if allowed < len(lines):
                batch.lose("ration", f"uid {peer.uid}", len(lines) - allowed)
                dropped += len(lines) - allowed
                lines = lines[:allowed]
        if not peer.is_root:
            batch.claimed += sum(map(len, lines))
            lines = self._redactor.lines(lines)
        # A few at a time: what was parsed of them is gone again before it fills the processor's cache.
        for at in range(0, len(lines), PART):
            found: list[dict[str, object]] = []
            for line in lines[at : at + PART]:
                try:
                    found.append(accept(line, peer, self._node, self._sessions, adopted=adopted))
                except (EventError, RecursionError):
                    batch.lose("refused", f"uid {peer.uid}")
                    dropped += 1
            found = self._fresh(found, batch)
            if adopted:
                self._gaps(found, peer.uid, batch)
            self._gate.judge(found, batch)
        return dropped

    def _allowed(self, uid: int, lines: Sequence[bytes]) -> int:
        """How many of these lines a user may hand in now: a ration of lines, and one of 2 KiB a line."""
        now, count = time.monotonic(), 0
        for line in lines:
            if not (self._ration.take(uid, 1, now) and self._bytes.take(uid, len(line), now)):
                break
            count += 1
        return count

    def _fresh(self, found: list[dict[str, object]], batch: Batch) -> list[dict[str, object]]:
        """Those that are not stored yet, nor twice in the batch."""
        ids = [bytes.fromhex(str(each["id"]).replace("-", "")) for each in found]
        known = self.spool.known(ids)
        fresh = []
        for identity, each in zip(ids, found, strict=True):
            if identity not in known and identity not in batch.ids:
                batch.ids.add(identity)
                fresh.append(each)
        return fresh

    def _gaps(self, found: Sequence[dict[str, object]], uid: int, batch: Batch) -> None:
        """Count what is missing in a user's file, by the numbers that its producers gave."""
        for each in found:
            name, seq = f"{uid} {each.get('producer')}", each.get("seq")
            if not isinstance(seq, int):
                continue
            last = self._claimed.get(name)
            if last is not None and last + 1 < seq < last + 1_000_000:
                batch.lose("gap", f"uid {uid}", seq - last - 1)
            self._claimed[name] = max(seq, last or 0)
            if len(self._claimed) > 20_000:
                self._claimed.popitem(last=False)

    def _answer(self, answers: list[tuple[Connection, bytes]]) -> None:
        for connection, answer in answers:
            try:
                if connection.channel.send(answer) != len(answer):
                    self._drop(connection)  # it reads no answers
            except OSError:
                self._drop(connection)

    # What users left, and what root asks ------------------------------------------------------------

    def _poke(self, connection: Connection) -> None:
        """Somebody says that there is something new, and waits until it is adopted: his own, or for root all."""
        peer = connection.peer
        places = [each for each in self._places() if each[0] == peer.uid or peer.is_root]
        if not self._adoption.want(places, connection):
            self._answer([(connection, ADOPTED)])

    def _places(self) -> list[tuple[int, str]]:
        if self._owner:
            return [(self._owner, self._state)]
        return [(0, self._state), *(each for each in adopt.places(self.settings.adopt) if each[0])]

    def _adopt(self, reading: adopt.Reading, batch: Batch) -> None:
        """Take what a child has read; who waits for it is told when it is stored."""
        if not reading.advance():
            return
        self._selector.unregister(reading.fileno())
        peer = Peer(0, reading.uid, reading.uid, frozenset(), False)
        count = 0
        parts = reading.finish()
        for part in parts:
            lines = part.lines
            if part.name.startswith("exposures"):
                lines = self._exposures(lines, reading.uid, part.key)
            self._take(lines, peer, batch, adopted=True)
            count += len(lines)
            batch.kept.append(("adopted", f"{reading.uid} {part.key}", b"%d" % part.end))
        waiting = self._adoption.done(reading, parts, count / self.settings.ration.rate if reading.uid else 0.0)
        if waiting:
            self._store(batch)
            batch.clear()
            self._answer([(each, ADOPTED) for each in waiting])

    def _exposures(self, lines: Sequence[bytes], uid: int, file: str) -> list[bytes]:
        """What `guard redact --record` left, as events, with what root's lists say of each."""
        try:
            known = lists.load(self._config)
        except StateError:
            known = lists.Lists({}, {})  # `guard doctor` tells which line is wrong
        return as_events(lines, uid, file, self._names.user, lambda row: known.judge(row, self._clock() / 1e9))

    def _erase(self, connection: Connection, line: bytes) -> None:
        """Erase what is personal in rows, for root (`guard privacy purge`)."""
        try:
            order = orjson.loads(line)
            wanted = [int(each) for each in order["erase"]]
        except (ValueError, TypeError, OverflowError):
            self._answer([(connection, b'{"error":"no list of positions"}\n')])
            return
        if order.get("spool") != os.path.realpath(self.spool_path):
            self._answer([(connection, b'{"error":"another spool"}\n')])  # positions mean something in one alone
            return
        count = self.spool.erase(each for each in wanted if 0 < each < 1 << 63)
        if isinstance(order.get("uid"), int):
            self.spool.forget_user(order["uid"])
            self._gate = self._new_gate()
        self._answer([(connection, orjson.dumps({"erased": count}) + b"\n")])

    # What is due ------------------------------------------------------------------------------------

    def _housekeeping(self, batch: Batch) -> None:
        now = time.monotonic()
        if self._is_due("tick", TICK, now):
            self._gate.due(batch)
        if self._is_due("config", 5.0, now) and settings.stamps(self._config) != self.settings.stamps:
            self.reload()
        if self._is_due("sweep", SWEEP, now):
            self._adoption.want(self._places(), None)
        if self._is_due("trim", TRIM, now):
            self.spool.trim()
            self.spool.forget_kept("session", int(self._clock() / 1e9) - 30 * 86400)
            self.spool.forget_kept("adopted", int(self._clock() / 1e9) - 90 * 86400)
        if self._is_due("beat", float(self.settings.heartbeat_s), now):
            self._own(self._beat(self.producer, self._status()), batch)
        self._tell(now)

    def _is_due(self, name: str, every: float, now: float) -> bool:
        if self._times[name] and now - self._times[name] < every:
            return False
        self._times[name] = now
        return True

    def _own(self, event: Event, batch: Batch) -> None:
        batch.entries.append(Entry(event.plain(), renumber=True))

    def _tell(self, now: float) -> None:
        """Tell what was lost: at once, and then not again for a while."""
        if now - self._times["tell"] < (TELL if self._told else TICK):
            return
        self._times["tell"] = now
        losses = self.spool.losses()
        self._told = bool(losses)
        if not losses:
            return
        total = sum(each.count for each in losses)
        stages: dict[str, dict[str, int]] = {}
        for each in losses:
            stages.setdefault(each.stage, {})[each.key] = each.count
        event = self.producer.event(
            "telemetry", "events-lost", Severity.MEDIUM, say("{} events were lost", total),
            detail={"lost": total, "stage": withhold("") if len(stages) > 1 else redact_text(next(iter(stages))),
                    "stages": dict(stages)},
        )  # fmt: skip
        with suppress(SpoolError):
            self.spool.tell(losses, Entry(event.plain(), renumber=True))

    def _status(self) -> Beat:
        position, digest = self.spool.head()
        privacy = self.settings.privacy
        now = self._clock() / 1e9
        return Beat(
            self.settings.heartbeat_s, position, digest, self._accepted,
            sum(each.count for each in self.spool.losses(told=True)), self.spool.stored_bytes(),
            len(privacy.exempt_users) + len(privacy.exempt_groups),
            sum(now < each.until for each in self.settings.suppressions),
        )  # fmt: skip

    def reload(self) -> None:
        """Read root's files again; one that does not load leaves the last good ones in force, and is an alert."""
        found = settings.stamps(self._config)
        batch = Batch()
        self._gate.settle(batch)
        try:
            self.settings = settings.load(self._config)
        except (PolicyError, StateError) as error:
            self.settings = replace(self.settings, stamps=found)
            if found != self._broken:
                self._broken = found
                self._tell_broken(str(error), batch)
        self._store(batch)
        self._ration, self._bytes = self._rations()
        self._gate = self._new_gate()


    def _tell_broken(self, error: str, batch: Batch) -> None:
        sys.stderr.write(f"guard serve events: {error}\nguard serve events: the last good files stay in force\n")
        event = self.producer.event(
            "telemetry", "site-files-broken", Severity.HIGH,
            say("a file for events does not load: the last good one stays in force"),
            detail={"alerts": [redact_text(error.partition("\n")[0])]},
        )  # fmt: skip
        self._own(event, batch)


def _session(known: tuple[int, str, int] | None) -> bytes | None:
    return orjson.dumps(known) if known else None


def _sessions(kept: Mapping[str, bytes]) -> OrderedDict[str, tuple[int, str, int]]:
    found = OrderedDict()
    for name, value in kept.items():
        uid, harness, root = orjson.loads(value)
        found[name] = (int(uid), str(harness), int(root))
    return found
