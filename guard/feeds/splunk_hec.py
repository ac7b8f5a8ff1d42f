"""Splunk's HTTP Event Collector: an event counts once the indexers acknowledge it, not when the collector took it.

Source of the protocol: Splunk Enterprise, "About HTTP Event Collector Indexer Acknowledgment" and "Troubleshoot HTTP
Event Collector", where the codes of its answers are.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from datetime import datetime

from guard.feeds.config import Feed
from guard.feeds.http import Http, in_parts
from guard.feeds.secrets import secret
from guard.feeds.sink import Context, FeedError, Item, Outcome, Sink, Undelivered
from guard.policy.source import printable

_REQUEST = 200  # events in one request: well below the 1 MB that collectors take by default

_CONTENT = frozenset((5, 6, 12, 13, 15))
"""Codes that blame the data: none, its format, its event or fields. A token that may not write to the index (7) blames
the configuration, and what waits for it is sent when that is put right."""
_NO_ACK = 14
_TOO_LARGE = 413


class SplunkHec(Sink):
    """Sends a batch in several requests and asks for their acknowledgements together."""

    def __init__(self, feed: Feed, context: Context) -> None:
        super().__init__(feed, context)
        # The channel tells acknowledgements of one sender from another's; it need not outlive a connection.
        self._channel = str(uuid.uuid4())
        self._head = {
            "Authorization": f"Splunk {secret(feed, 'token_file')}",
            "X-Splunk-Request-Channel": self._channel,
            "Content-Type": "application/json",
        }
        self._http = Http(feed)

    def deliver(self, items: Sequence[Item]) -> Outcome:
        """Send the batch and wait for the indexers."""
        outcome = Outcome()
        waiting: dict[int, list[int]] = {}  # acknowledgement → positions

        def send(part: Sequence[Item]) -> str:
            reason, number = self._send(part)
            if number is not None:
                waiting[number] = [item.position for item in part]
            return reason

        problem: Undelivered | None = None
        for start in range(0, len(items), _REQUEST):
            try:
                sent = in_parts(items[start : start + _REQUEST], send)
            except Undelivered as error:
                problem, sent = error, error.outcome
            outcome.refused.update(sent.refused)
            if not self.feed.flag("ack"):
                outcome.acked += sent.acked
            if problem is not None:
                break
        if waiting:
            self._acknowledged(waiting, outcome)
        if problem is not None:
            raise Undelivered(problem.reason, outcome, after=problem.after)
        return outcome

    def drop(self) -> None:
        """Close the connection; the next one has a channel of its own."""
        self._http.close()
        self._channel = str(uuid.uuid4())
        self._head["X-Splunk-Request-Channel"] = self._channel

    def _send(self, items: Sequence[Item]) -> tuple[str, int | None]:
        self.context.beat()
        body = b"".join(self._event(item) for item in items)
        status, content, after = self._http.post("/services/collector/event", body, self._head)
        answer = _object(content)
        code = answer.get("code")
        if status == 200 and code == 0:
            number = answer.get("ackId")
            if self.feed.flag("ack") and not isinstance(number, int):
                raise self._without_acknowledgement()
            return "", number if isinstance(number, int) else None
        if status == _TOO_LARGE or (status == 400 and code in _CONTENT):
            return f"refused with {_told(status, answer)}", None
        raise Undelivered(f"answered {_told(status, answer)}", after=after)

    def _acknowledged(self, waiting: dict[int, list[int]], outcome: Outcome) -> None:
        end = time.monotonic() + self.feed.seconds("ack_timeout")
        path = f"/services/collector/ack?channel={self._channel}"
        pause = 0.05
        while waiting:
            body = json.dumps({"acks": sorted(waiting)}).encode()
            try:
                status, content, after = self._http.post(path, body, self._head)
            except Undelivered as error:
                raise Undelivered(error.reason, outcome, again=sum(map(len, waiting.values()))) from error
            answer = _object(content)
            acks = answer.get("acks")
            if status == 400 and answer.get("code") == _NO_ACK:
                raise self._without_acknowledgement()
            if status != 200 or not isinstance(acks, dict):
                again = sum(map(len, waiting.values()))
                told = _told(status, answer)
                raise Undelivered(f"acknowledgements: answered {told}", outcome, again=again, after=after)
            for number in [number for number in waiting if acks.get(str(number)) is True]:
                outcome.acked += waiting.pop(number)
            self.context.beat()
            if waiting and time.monotonic() > end:
                raise Undelivered("not acknowledged in time", outcome, again=sum(map(len, waiting.values())))
            if waiting:
                time.sleep(pause)
                pause = min(pause * 2, 5)

    def _without_acknowledgement(self) -> FeedError:
        return FeedError(
            f"feed {self.feed.name}: the collector gives no acknowledgement",
            "enable indexer acknowledgement for the token, or write ack = false and accept losses",
        )

    def _event(self, item: Item) -> bytes:
        head: dict[str, object] = {"host": item.word("host") or self.context.host, "source": "guard"}
        head["sourcetype"] = self.feed.text("sourcetype")
        if self.feed.text("index"):
            head["index"] = self.feed.text("index")
        seconds = _epoch(item.word("time"))
        if seconds:
            head["time"] = seconds
        head["fields"] = {"guard_id": item.id, "severity": item.severity}
        body = item.body if self.feed.text("format") != "cef" else json.dumps(item.body.decode()).encode()
        return json.dumps(head).encode()[:-1] + b', "event": ' + body + b"}\n"


def _epoch(text: str) -> float:
    try:
        return round(datetime.fromisoformat(text).timestamp(), 6)
    except ValueError:
        return 0.0


def _told(status: int, answer: dict[str, object]) -> str:
    """An answer in words: the codes are Splunk's, and its text says what they mean."""
    code = answer.get("code")
    text = printable(str(answer.get("text", ""))[:100])
    return f"{status}, code {code}: {text}" if isinstance(code, int) else str(status)


def _object(content: bytes) -> dict[str, object]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
