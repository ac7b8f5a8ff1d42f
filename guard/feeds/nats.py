"""NATS JetStream: an event counts once a majority of the cluster has it on disk (its PubAck).

`Nats-Msg-Id` is the event's id, so a second try within the stream's duplicate window is stored once. Connections are
rebuilt, never repaired: whatever a client library, a cluster without a leader, or a half-dead server does, a batch that
makes no progress for `timeout` seconds ends with the connection thrown away, and a fresh one sends what is left.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import nats
import nats.errors
import nats.js.errors
from nats.js.api import DiscardPolicy, StorageType, StreamConfig

from guard.feeds.config import Feed
from guard.feeds.secrets import check, secret, tls_context
from guard.feeds.sink import Context, FeedError, Item, Outcome, Sink, Undelivered

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

T = TypeVar("T")

_TOKEN = re.compile(r"[^A-Za-z0-9_-]")
_TOO_LARGE = 10054  # JetStream's error for a message above the stream's own limit


class Connection:
    """One connection with an event loop of its own, so that throwing it away leaves nothing behind.

    Args:
        feed: with the options of `options.NATS_LOGIN`.
        name: what the server's operators see.

    Raises:
        Undelivered: no server can be reached, or none takes the login.
        FeedError: a file of the configuration cannot be used.
    """

    def __init__(self, feed: Feed, name: str) -> None:
        self.feed = feed
        self.timeout = feed.seconds("timeout") if "timeout" in feed.options else 10.0
        self.problem = ""
        self._loop = asyncio.new_event_loop()
        try:
            self.client: Client = self.run(self._connect(name), self.timeout)
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run to the end, or give it up after so many seconds.

        Raises:
            Undelivered: it failed or took too long.
        """
        try:
            return self._loop.run_until_complete(asyncio.wait_for(work, seconds))
        except TimeoutError as error:
            raise Undelivered(self.problem or "no answer in time") from error
        except (nats.errors.Error, OSError, ValueError) as error:
            raise Undelivered(self.problem or str(error) or type(error).__name__) from error

    def close(self) -> None:
        """Throw the connection away, politely for at most a second."""
        loop = self._loop
        if loop.is_closed():
            return
        try:
            client = getattr(self, "client", None)
            if client is not None:
                loop.run_until_complete(asyncio.wait_for(client.close(), 1))
        except (TimeoutError, nats.errors.Error, OSError):
            pass  # it is thrown away all the same
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=1))
            loop.close()

    async def _connect(self, name: str) -> Client:
        feed = self.feed
        options: dict[str, Any] = {}
        if feed.text("user"):
            # As options, not in the address: servers that the cluster tells of have addresses without a login.
            options |= {"user": feed.text("user"), "password": secret(feed, "password_file")}
        if feed.text("token_file"):
            options["token"] = secret(feed, "token_file")
        if feed.text("creds_file"):
            check(feed, "creds_file")
            options["user_credentials"] = feed.text("creds_file")
        if feed.text("nkey_file"):
            options["nkeys_seed_str"] = secret(feed, "nkey_file")
        servers = list(feed.texts("servers"))
        if any(server.startswith("tls:") for server in servers) or feed.text("ca_file"):
            options["tls"] = tls_context(feed)
            if feed.text("server_name"):
                options["tls_hostname"] = feed.text("server_name")
        if feed.text("user") and feed.text("user").isascii():
            # A user who may only hear its own answers hears them here.
            options["inbox_prefix"] = f"_INBOX.{token(feed.text('user'))}".encode()
        return await nats.connect(
            servers,
            name=name,
            error_cb=self._note,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            connect_timeout=max(1, min(5, int(self.timeout))),
            ping_interval=20,
            drain_timeout=1,
            **options,
        )

    async def _note(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        self.problem = " ".join(text.split())[:200]


def token(text: str) -> str:
    """Return a text as one token of a subject: letters, digits, `_` and `-`."""
    return _TOKEN.sub("_", text) or "_"


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


class StreamSource:
    """Events of a stream, for the site's own feeds; see guard.feeds.source."""

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
        from nats.js.api import AckPolicy, ConsumerConfig

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


def open_source(source: Feed, feed: Feed, host: str) -> StreamSource:
    """Return the stream as a source for one feed.

    Raises:
        FeedError: a file of the configuration cannot be used.
    """
    if not source.texts("servers"):
        raise FeedError("[source] names no servers", "write servers")
    return StreamSource(source, feed, host)
