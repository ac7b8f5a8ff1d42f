"""A connection to NATS with an event loop of its own, so that throwing it away leaves nothing behind.

Connections are rebuilt, never repaired: whatever a client library, a cluster without a leader, or a half-dead server
does, every wait has an end, and after it a fresh connection goes on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import nats
import nats.errors

from guard.feeds.config import Feed
from guard.feeds.secrets import check, secret, tls_context
from guard.feeds.sink import Undelivered

if TYPE_CHECKING:
    from nats.aio.client import Client

T = TypeVar("T")

_TOKEN = re.compile(r"[^A-Za-z0-9_-]")


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
        named = feed.text("user") or (feed.text("node") if "node" in feed.options else "")
        if named and named.isascii():
            # Who may only hear its own answers hears them here.
            options["inbox_prefix"] = f"_INBOX.{token(named)}".encode()
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
