"""The reading client: asks the node's service, or reads what this user may read without one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import orjson

from guard.errors import EventError, SpoolError
from guard.events import access, answers, chain
from guard.events.intake import bound_id
from guard.events.peers import Peer, stranger
from guard.events.producer import Producer
from guard.events.query import Query, find, framed
from guard.events.reader import Reader
from guard.events.sink import SOCKET, socket_path
from guard.events.spool import Spool
from guard.events.wire import Severity, parse

TIMEOUT: Final = 20.0
OWN: Final = ("events.jsonl.1", "events.jsonl")


@dataclass(frozen=True)
class Places:
    """Where a user's events may be.

    Args:
        intake: the service's socket.
        reading: the one of its reading side.
        spool: the spool's directory, for who may read it.
        state: the user's own state directory.
    """

    intake: str
    reading: str
    spool: str
    state: str


def places(state: str, own: str, spool: str = "") -> Places:
    """Say where to look.

    Args:
        state: the state directory that was named; empty where none was.
        own: the user's own, where none was named.
        spool: as root's configuration names it.
    """
    intake = socket_path(state)
    return Places(
        intake,
        os.path.join(os.path.dirname(intake), answers.SOCKET),
        spool or os.path.join(state or "/var/lib/guard", "spool"),
        state or own,
    )


def connect(path: str, timeout: float = TIMEOUT) -> socket.socket | None:
    """Connect to a service of root's or our own; None where there is none.

    Raises:
        SpoolError: it is another user's.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    channel.settimeout(timeout)
    try:
        channel.connect(path)
    except OSError:
        channel.close()
        return None
    uid = stranger(channel)
    if uid >= 0:
        channel.close()
        raise SpoolError(f"{path}: the service is user {uid}'s", "name your own with --state")
    return channel


def poke(path: str) -> None:
    """Let the service adopt what is new in our own spool, and wait until it has."""
    channel = connect(path, 10)
    if channel is None:
        return
    with channel, suppress(OSError):
        channel.sendall(b'{"adopt":true}\n')
        channel.makefile("rb").readline(256)


def ask(channel: socket.socket, query: Query) -> Iterator[bytes]:
    """The service's answer, line by line as `query.framed` makes them.

    Raises:
        SpoolError: the service says why it gives no more, or broke off.
    """
    with channel, channel.makefile("rb") as stream:
        channel.sendall(orjson.dumps(query.plain()) + b"\n")
        if query.follow:
            channel.settimeout(None)
        for line in stream:
            if line.startswith(b'{"end"'):
                return
            if line.startswith(b'{"error"'):
                raise SpoolError(str(orjson.loads(line)["error"]))
            if line.strip():
                yield line
    raise SpoolError("the service broke off", "see its log, and try again")


def verify(where: Places) -> chain.Verdict | None:
    """Check the chain: directly where we may, else by the service; None where there is no spool.

    Raises:
        SpoolError: the service broke off.
    """
    if os.access(os.path.join(where.spool, "spool.db"), os.R_OK):
        with Reader(where.spool) as reader:
            return reader.verify()
    channel = connect(where.reading, 600)
    if channel is None:
        return None
    with channel, channel.makefile("rb") as stream:
        channel.sendall(b'{"verify":true}\n')
        line = stream.readline()
    if not line.startswith(b'{"verdict"'):
        raise SpoolError("the service broke off", "see its log, and try again")
    return chain.Verdict(**orjson.loads(line)["verdict"])


def lines(where: Places, query: Query) -> Iterator[bytes]:
    """The events that are wanted, framed, from wherever this user finds them.

    Raises:
        SpoolError: they cannot be read.
    """
    poke(where.intake)
    channel = connect(where.reading)
    if channel is not None:
        yield from ask(channel, query)
        return
    found: set[str] = set()
    if os.access(os.path.join(where.spool, "spool.db"), os.R_OK):
        _record(where.spool, query)
        with Reader(where.spool) as reader:
            for row in find(reader, query, None):
                if row is not None:
                    found.add(row.id)
                    yield framed(row)
    yield from _own(where.state, query, found)


def _own(state: str, query: Query, found: set[str]) -> Iterator[bytes]:
    """The lines of the user's own spool that no service has adopted yet."""
    host, uid = os.uname().nodename, os.geteuid()
    kept: list[bytes] = []
    for name in OWN:
        try:
            file = open(os.open(os.path.join(state, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")  # noqa: SIM115 - closed below
        except OSError:
            continue
        with file:
            for line in file:
                try:
                    whole = parse(line)
                    severity = Severity.of(str(whole.get("severity")))
                except EventError:
                    continue  # half a line of a crash, or no event
                identity = str(whole.get("id"))
                if identity in found or bound_id(identity, host, uid) in found or not query.matches(whole):
                    continue
                if severity >= Severity.of(query.minimum) and _within(str(whole.get("time")), query):
                    kept.append(b'{"position":0,"quiet":"","event":%s}\n' % line.strip())
    yield from kept[-query.limit :] if query.limit else kept


def _within(text: str, query: Query) -> bool:
    if not query.since and not query.until:
        return True
    from datetime import datetime

    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return True  # better one too many
    return when >= query.since and (not query.until or when <= query.until)


def _record(spool: str, query: Query) -> None:
    """Put on record, without a service, that root looked at what is not about root alone."""
    if os.geteuid() != 0:
        return
    event = access.record(Producer("reader"), Peer(os.getpid(), 0, 0, frozenset(), False), "root", query)
    with suppress(SpoolError), Spool(spool) as writer:  # a service that has just started writes it: it records
        writer.append([event])


def erase(spool: str, positions: Sequence[int], uid: int) -> int:
    """Erase what is personal in rows of a spool: by our own hand, or by the service that writes it.

    Args:
        spool: its directory.
        positions: of the rows.
        uid: whose they are: states that name this user go too.

    Returns:
        How many rows had anything personal left.

    Raises:
        SpoolError: neither is possible.
    """
    try:
        with Spool(spool, patience=0.5) as writer:
            count = writer.erase(positions)
            writer.forget_user(uid)
            return count
    except SpoolError:
        beside = os.path.join(os.path.dirname(os.path.abspath(spool)), SOCKET)
        channel = connect(beside, 120) or connect(socket_path(), 120)
        if channel is None:
            raise
    count = 0
    with channel, channel.makefile("rb") as stream:
        for at in range(0, max(1, len(positions)), 5000):
            order = {"erase": list(positions[at : at + 5000]), "uid": uid, "spool": os.path.realpath(spool)}
            channel.sendall(orjson.dumps(order) + b"\n")
            answer = stream.readline()
            if not answer.startswith(b'{"erased"'):
                raise SpoolError("the service erased nothing", "it takes this from root alone, for its own spool")
            count += int(orjson.loads(answer)["erased"])
    return count
