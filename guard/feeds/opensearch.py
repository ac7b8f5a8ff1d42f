"""OpenSearch (and Elasticsearch) by the bulk API: the event's id is the document's, so a second try changes nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

from guard.feeds.config import Feed
from guard.feeds.http import CONTENT_AT_FAULT, Http, in_parts
from guard.feeds.secrets import secret
from guard.feeds.sink import Context, Item, Outcome, Sink, Undelivered

_AGAIN = frozenset((401, 403, 404, 408, 429, 500, 502, 503, 504))
_OF_THE_INDEX = frozenset((
    "index_closed_exception", "validation_exception", "invalid_index_name_exception", "cluster_block_exception",
))  # fmt: skip
"""Errors that come with a 400 and are no document's fault: the index is closed or cannot be made (too many shards)."""


class OpenSearch(Sink):
    """Creates documents; one that is there already counts as delivered."""

    def __init__(self, feed: Feed, context: Context) -> None:
        super().__init__(feed, context)
        self._head = {"Content-Type": "application/x-ndjson"}
        if feed.text("user"):
            login = f"{feed.text('user')}:{secret(feed, 'password_file')}"
            self._head["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        elif key := secret(feed, "api_key_file"):
            self._head["Authorization"] = f"ApiKey {key}"
        self._http = Http(feed)

    def deliver(self, items: Sequence[Item]) -> Outcome:
        """Send the batch; each document's own answer counts."""
        answered = Outcome()
        again: list[str] = []

        def send(part: Sequence[Item]) -> str:
            self.context.beat()
            body = b"".join(self._action(item) + b"\n" + item.body + b"\n" for item in part)
            status, content, after = self._http.post("/_bulk", body, self._head)
            if status in CONTENT_AT_FAULT:
                return f"refused with {status}"
            if status != 200:
                raise Undelivered(f"answered {status}", after=after)
            self._judge(part, content, answered, again)
            return ""

        sent = in_parts(items, send)
        answered.refused.update(sent.refused)
        if again:
            raise Undelivered(f"{len(again)} documents not taken: {again[0]}", answered)
        return answered

    def drop(self) -> None:
        """Close the connection."""
        self._http.close()

    def _action(self, item: Item) -> bytes:
        day = item.word("time")[:10].split("-")
        index = self.feed.text("index")
        for mark, value in zip(("%Y", "%m", "%d"), day if len(day) == 3 else ("0000", "00", "00"), strict=True):
            index = index.replace(mark, value)
        return json.dumps({"create": {"_index": index, "_id": item.id}}).encode()

    def _judge(self, items: Sequence[Item], content: bytes, outcome: Outcome, again: list[str]) -> None:
        try:
            rows = json.loads(content)["items"]
            answers = [next(iter(row.values())) for row in rows]
            statuses = [int(answer["status"]) for answer in answers]
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
            raise Undelivered("the answer is not that of the bulk API") from None
        if len(statuses) != len(items):
            raise Undelivered(f"{len(statuses)} answers to {len(items)} documents")
        for item, status, answer in zip(items, statuses, answers, strict=True):
            if status < 300 or status == 409:  # 409: the id is there already
                outcome.acked.append(item.position)
                continue
            error = answer.get("error")
            kind = error.get("type") if isinstance(error, dict) else error
            reason = f"{status} {kind}"
            if status in _AGAIN or str(kind) in _OF_THE_INDEX:
                again.append(reason)
            else:
                outcome.refused[item.position] = reason
