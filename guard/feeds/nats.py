"""NATS JetStream: an event counts once a majority of the cluster has it on disk (its PubAck).

`Nats-Msg-Id` is the event's id, so a second try within the stream's duplicate window is stored once. A batch that makes
no progress for `timeout` seconds ends with the connection thrown away; what is left is sent by a fresh one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import nats.errors
import nats.js.errors
from nats.js.api import DiscardPolicy, StorageType, StreamConfig

from guard.feeds.config import Feed
from guard.feeds.jetstream import Connection, token
from guard.feeds.sink import Context, Item, Outcome, Sink, Undelivered

if TYPE_CHECKING:
    from nats.aio.msg import Msg

_TOO_LARGE = 10054  # JetStream's error for a message above the stream's own limit


class Nats(Sink):
    """Publishes with up to `in_flight` events unacknowledged."""

    def __init__(self, feed: Feed, context: Context) -> None:
        super().__init__(feed, context)
        node = feed.text("node") or feed.text("user") or context.host
        self._subject = f"{feed.text('subject')}.{token(node)}"
        self._connection: Connection | None = None
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._inbox = ""
        self._number = 0
        self._moved = 0.0

    def deliver(self, items: Sequence[Item]) -> Outcome:
        """Publish the batch and wait for every acknowledgement."""
        outcome = Outcome()
        connection = self._open()
        try:
            # The batch as a whole has no limit, but every wait for a sign of progress has.
            connection.run(self._publish(connection, items, outcome), 3600)
        except Undelivered as error:
            self.drop()
            settled = len(outcome.acked) + len(outcome.refused)
            raise Undelivered(error.reason, outcome, again=len(items) - settled) from error
        return outcome

    def settle(self) -> Outcome:
        """Let the connection answer pings, and notice that it is gone."""
        if self._connection is not None:
            self._connection.run(asyncio.sleep(0), 1)
            if not self._connection.client.is_connected:
                self.drop()
        return Outcome()

    def drop(self) -> None:
        """Throw the connection away."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._waiting.clear()

    def _open(self) -> Connection:
        if self._connection is not None and not self._connection.client.is_connected:
            self.drop()
        if self._connection is None:
            connection = Connection(self.feed, f"guard feed {self.feed.name} on {self.context.host}")
            try:
                self.context.beat()
                connection.run(self._prepare(connection), connection.timeout)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    async def _prepare(self, connection: Connection) -> None:
        client = connection.client
        inbox = client.new_inbox()
        self._inbox = inbox + "."
        await client.subscribe(f"{inbox}.*", cb=self._answered)
        if self.feed.flag("create"):
            await self._stream(connection)

    async def _stream(self, connection: Connection) -> None:
        """Make the stream where it is absent; one that is there stays as its owner made it."""
        feed = self.feed
        manager = connection.client.jsm(timeout=min(3.0, connection.timeout))
        try:
            await manager.stream_info(feed.text("stream"))
        except nats.js.errors.NotFoundError:
            await manager.add_stream(self._wanted())

    def _wanted(self) -> StreamConfig:
        feed = self.feed
        limit = feed.number("stream_bytes")
        return StreamConfig(
            name=feed.text("stream"),
            subjects=[feed.text("subject") + ".>"],
            num_replicas=feed.number("replicas"),
            storage=StorageType.FILE,
            duplicate_window=feed.seconds("duplicate_window"),
            max_bytes=limit or -1,
            # A full stream refuses, and the spool keeps: nothing unread is pushed out.
            discard=DiscardPolicy.NEW if limit else DiscardPolicy.OLD,
        )

    async def _publish(self, connection: Connection, items: Sequence[Item], outcome: Outcome) -> None:
        left = list(reversed(items))
        flying: dict[asyncio.Future[str], Item] = {}
        most = self.feed.number("in_flight")
        self._moved = time.monotonic()
        problem = ""
        while left or flying:
            while left and len(flying) < most and not problem:
                item = left.pop()
                try:
                    flying[await self._send(connection, item)] = item
                except nats.errors.MaxPayloadError:
                    outcome.refused[item.position] = "larger than the server takes"
            if not flying:
                break
            done, _ = await asyncio.wait(
                flying, timeout=min(1.0, connection.timeout), return_when=asyncio.FIRST_COMPLETED
            )
            for future in done:
                item = flying.pop(future)
                reason = future.result()
                if not reason:
                    outcome.acked.append(item.position)
                elif reason == "too large":
                    outcome.refused[item.position] = "larger than the stream takes"
                else:
                    problem = reason
            if done:
                self._moved = time.monotonic()
            self.context.beat()
            if not connection.client.is_connected:
                raise Undelivered(connection.problem or "the connection is gone")
            if time.monotonic() - self._moved > connection.timeout:
                raise Undelivered(connection.problem or "no acknowledgement in time")
        if problem:
            raise Undelivered(problem)

    async def _send(self, connection: Connection, item: Item) -> asyncio.Future[str]:
        self._number += 1
        number = self._number
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        head = {"Nats-Msg-Id": item.id, "Guard-Feed": self.feed.name}
        try:
            await connection.client.publish(self._subject, item.body, f"{self._inbox}{number}", head)
        except BaseException:
            del self._waiting[number]
            raise
        return future

    async def _answered(self, message: Msg) -> None:
        number = message.subject.rpartition(".")[2]
        future = self._waiting.pop(int(number), None) if number.isdigit() else None
        if future is None or future.done():
            return
        future.set_result(_problem(message))


def _problem(message: Msg) -> str:
    """Return "" for a PubAck, else what is wrong."""
    if message.headers and message.headers.get("Status") == "503":
        return "no stream takes this subject, or it has no leader"
    try:
        answer = json.loads(message.data)
    except ValueError:
        return "an answer that is no PubAck"
    error = answer.get("error")
    if error is None:
        return "" if "stream" in answer else "an answer that is no PubAck"
    if error.get("err_code") == _TOO_LARGE:
        return "too large"
    return str(error.get("description") or error)[:200]
