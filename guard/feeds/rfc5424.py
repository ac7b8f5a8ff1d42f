"""An event as a syslog message (RFC 5424), framed by its length (RFC 6587 3.4.1, RFC 5425)."""

from __future__ import annotations

import re
from typing import Final

from guard.feeds.sink import Item

SEVERITY: Final = {"info": 6, "low": 5, "medium": 4, "high": 3, "critical": 2}
"""Ours → syslog's: informational, notice, warning, error, critical."""

FACILITY: Final = {
    "kern": 0, "user": 1, "daemon": 3, "auth": 4, "syslog": 5, "authpriv": 10, **{f"local{n}": 16 + n for n in range(8)}
}  # fmt: skip

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)")
_FIELDS = ("id", "producer", "seq", "control", "rule", "verdict", "origin")
BOM: Final = b"\xef\xbb\xbf"


def message(item: Item, *, facility: str, enterprise: str, host: str, feed: str) -> bytes:
    """Return one syslog message.

    Args:
        item: the event; its body is the MSG part.
        facility: a key of `FACILITY`.
        enterprise: private enterprise number of the structured data's id.
        host: HOSTNAME where the event names none.
        feed: the feed's name, a parameter of the structured data.
    """
    event = item.event
    priority = FACILITY[facility] * 8 + SEVERITY.get(item.severity, 6)
    time = item.word("time")
    process = event.get("process")
    pid = process.get("pid") if isinstance(process, dict) else None
    parameters = [(name, event.get(name)) for name in _FIELDS] + [("feed", feed)]
    data = "".join(f' {name}="{escape(str(value))}"' for name, value in parameters if value not in (None, ""))
    head = " ".join(
        (
            f"<{priority}>1",
            time if _TIME.fullmatch(time) else "-",
            _token(item.word("host") or host, 255),
            "guard",
            _token(str(pid or ""), 128),
            _token(item.word("rule") or item.word("control"), 32),
            f"[guard@{enterprise}{data}]",
        )
    )
    # JSON and CEF are UTF-8; a MSG that is declares it by a byte order mark (RFC 5424 6.4) unless plain ASCII says it.
    mark = b"" if item.body.isascii() else BOM
    return head.encode("utf-8", "replace") + b" " + mark + item.body.replace(b"\n", b" ")


def framed(text: bytes) -> bytes:
    """Return a message with its length in front, so that nothing in it can end it."""
    return b"%d %s" % (len(text), text)


def escape(value: str) -> str:
    r"""Escape a parameter's value: `"`, `\` and `]` (RFC 5424 6.3.3); control characters become spaces."""
    cleaned = "".join(char if char.isprintable() else " " for char in value)
    return cleaned.replace("\\", "\\\\").replace('"', '\\"').replace("]", "\\]")


def _token(text: str, most: int) -> str:
    """Return printable ASCII without spaces, `-` for nothing (RFC 5424 6)."""
    return "".join(char if "!" <= char <= "~" else "_" for char in text)[:most] or "-"
