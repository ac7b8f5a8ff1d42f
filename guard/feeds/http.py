"""HTTP for the feeds that post: one kept connection, no redirects, no retries of its own, bounded answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import urllib3

from guard import __version__
from guard.feeds.config import Feed
from guard.feeds.secrets import tls_context
from guard.feeds.sink import Item, Outcome, Undelivered

CONTENT_AT_FAULT = frozenset((400, 411, 413, 415, 422))
"""Answers that blame what was sent: sending it again changes nothing (RFC 9110 15.5)."""

_MOST = 8 << 20


class Http:
    """Posts to one URL.

    Args:
        feed: with `url`, `timeout` and, for https, the files of the certificates.
    """

    def __init__(self, feed: Feed) -> None:
        self._url = feed.text("url")
        timeout = urllib3.Timeout(connect=feed.seconds("timeout"), read=feed.seconds("timeout"))
        https = self._url.startswith("https:")
        self._pool = urllib3.PoolManager(
            1, timeout=timeout, retries=False, maxsize=1, ssl_context=tls_context(feed) if https else None
        )

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes, float]:
        """Post and return (status, body, seconds that the server asks to be left alone).

        Args:
            path: appended to the URL.
            body: what is sent.
            headers: beside the usual ones.

        Raises:
            Undelivered: no answer came.
        """
        head = {"User-Agent": f"guard/{__version__}", **headers}
        try:
            answer = self._pool.request(
                "POST", self._url.rstrip("/") + path if path else self._url, body=body, headers=head,
                redirect=False, preload_content=False,
            )  # fmt: skip
            try:
                content = answer.read(_MOST, decode_content=True) or b""
            finally:
                answer.drain_conn()
                answer.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self.close()
            # The library's text names the URL; its query may hold a token, so the kind of error alone is told.
            raise Undelivered(f"no answer: {_cause(error)}") from error
        wait = answer.headers.get("Retry-After", "")
        return answer.status, content, float(wait) if wait.isdigit() else 0.0

    def close(self) -> None:
        """Close the connection."""
        self._pool.clear()


def _cause(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    inner = reason if isinstance(reason, Exception) else error.__cause__ or error.__context__
    text = type(error).__name__
    if isinstance(inner, OSError) and inner.strerror:
        return f"{text}: {inner.strerror}"
    return text


def in_parts(items: Sequence[Item], send: Callable[[Sequence[Item]], str]) -> Outcome:
    """Send a batch; where its content is refused, find the events at fault by halving it.

    Args:
        items: the batch.
        send: sends some of it; returns "" or why the content is refused; raises Undelivered.
    """
    outcome = Outcome()
    left = [list(items)]
    while left:
        part = left.pop()
        try:
            reason = send(part)
        except Undelivered as error:
            outcome.add(error.outcome)
            raise Undelivered(error.reason, outcome, after=error.after) from error
        if not reason:
            outcome.acked += [item.position for item in part]
        elif len(part) == 1:
            outcome.refused[part[0].position] = reason
        else:
            half = len(part) // 2
            left += [part[half:], part[:half]]
    return outcome
