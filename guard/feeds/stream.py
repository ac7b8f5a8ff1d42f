"""A stream of JetStream as a source: a durable consumer a feed, which hands out again what is not acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig

from guard.feeds.config import Feed
from guard.feeds.jetstream import Connection, token
from guard.feeds.sink import Item, Undelivered

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg


class StreamSource:
    """Events of a stream, for the site's own feeds.

    Args:
        source: the configuration's `[source]`.
        feed: whose consumer this is.
        host: this node's name, for the server's operators.
    """

    def __init__(self, source: Feed, feed: Feed, host: str) -> None:
        self._source = source
        self._durable = f"{source.text('consumer')}-{token(feed.name)}"
        self._host = host
        self._connection: Connection | None = None
        self._subscription: Any = None
        self._held: dict[int, Any] = {}
        self._again: list[Item] = []
        self._behind = 0

    def read(self, limit: int, wait: float) -> list[Item]:
        """Return up to `limit` events; fewer, or none, after `wait` seconds.

        Raises:
            Undelivered: the cluster is away.
        """
        if self._again:
            found, self._again = self._again[:limit], self._again[limit:]
            return found
        connection = self._open()
        try:
            messages = connection.run(self._fetch(limit, wait), wait + 10)
        except Undelivered:
            self.drop()
            raise
        return [self._item(message) for message in messages]

    def settle(self, positions: Sequence[int]) -> None:
        """Acknowledge: the stream does not hand these out again.

        Raises:
            Undelivered: the cluster is away; they come again.
        """
        connection = self._connection
        if connection is None:
            return
        messages = [self._held.pop(position) for position in positions if position in self._held]
        try:
            connection.run(_ack(connection.client, messages), 10)
        except Undelivered:
            self.drop()
            raise

    def rewind(self, held: Sequence[Item]) -> None:
        """Hand these out again."""
        self._again = [item for item in held if item.position in self._held] + self._again

    def behind(self) -> int:
        """Return how many events wait."""
        return self._behind + len(self._again)

    def exhausted(self) -> bool:
        """Whether the stream has nothing more for this consumer.

        Raises:
            Undelivered: the cluster is away.
        """
        connection = self._open()
        info = connection.run(self._subscription.consumer_info(), 10)
        return not info.num_pending and not info.num_ack_pending

    def drop(self) -> None:
        """Throw the connection away; what is not acknowledged is handed out again by the stream."""
        if self._connection is not None:
            if self._held and self._connection.client.is_connected:
                with suppress(Undelivered):  # else the stream waits for as long as `ack_wait`
                    self._connection.run(_give_back(self._connection.client, list(self._held.values())), 1)
            self._connection.close()
        self._connection = None
        self._held.clear()
        self._again.clear()

    def _open(self) -> Connection:
        if self._connection is not None and not self._connection.client.is_connected:
            self.drop()
        if self._connection is None:
            connection = Connection(self._source, f"guard {self._durable} on {self._host}")
            try:
                connection.run(self._subscribe(connection), 10)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    async def _subscribe(self, connection: Connection) -> None:
        stream = self._source.text("stream")
        context = connection.client.jetstream(timeout=5)
        wanted = ConsumerConfig(
            durable_name=self._durable,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._source.seconds("ack_wait"),
            max_ack_pending=50000,
            max_waiting=8,
        )
        try:
            await context.add_consumer(stream, wanted)  # made, or brought up to date
        except nats.js.errors.BadRequestError:
            await context.consumer_info(stream, self._durable)  # made otherwise by its owner: used as it is
        self._subscription = await context.pull_subscribe_bind(consumer=self._durable, stream=stream)

    async def _fetch(self, limit: int, wait: float) -> list[Msg]:
        try:
            return list(await self._subscription.fetch(limit, timeout=max(wait, 0.5)))
        except (nats.errors.TimeoutError, TimeoutError):
            return []

    def _item(self, message: Msg) -> Item:
        metadata = message.metadata
        position = metadata.sequence.stream
        self._held[position] = message
        self._behind = metadata.num_pending
        line = bytes(message.data)
        prefix = self._source.text("subject") + "."
        sender = message.subject.removeprefix(prefix) if message.subject.startswith(prefix) else ""
        item = Item(position, "", "info", line, line, f"nats:{sender}" if sender else "")
        return Item(position, item.word("id"), item.word("severity") or "info", line, line, item.sender)


async def _give_back(client: Client, messages: Sequence[Any]) -> None:
    for message in messages:
        await message.nak()
    await client.flush()


async def _ack(client: Client, messages: Sequence[Any]) -> None:
    for message in messages:
        await message.ack()
    await client.flush()
