"""What several forms need of an event: its moment, its file or address, its arguments as one text."""

from __future__ import annotations

import ipaddress
import shlex
from datetime import datetime

from guard.events.model import Event

_WITHHELD = "[WITHHELD]"


def epoch_ms(event: Event) -> int:
    """The event's time in milliseconds since 1970."""
    return milliseconds(event.time)


def milliseconds(text: str) -> int:
    """An RFC 3339 time in milliseconds since 1970; 0 for what is none."""
    try:
        return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
    except ValueError:
        return 0


def text_of(event: Event, *names: str) -> str:
    """The first of these texts in `detail` that is there and not withheld."""
    for name in names:
        value = event.detail.get(name)
        if isinstance(value, str) and value not in ("", _WITHHELD):
            return value
    return ""


def path_of(event: Event) -> str:
    """The file that the event is about; empty where there is none or it is not told."""
    found = text_of(event, "path", "file", "object")
    return found if found.startswith(("/", "{project}", "{home}", "[PATH:")) else ""


def address_of(event: Event) -> tuple[str, int]:
    """The address and port that the event is about; ("", 0) where there is none."""
    found, port = text_of(event, "address", "object"), event.detail.get("port")
    if not isinstance(port, int):
        host, _, last = found.rpartition(":")
        port = int(last) if last.isdigit() and len(last) < 6 else 0
        found = host.strip("[]") if port else found
    try:
        return str(ipaddress.ip_address(found)), port if 0 < port < 65536 else 0
    except ValueError:
        return "", port if 0 < port < 65536 else 0


def count_of(event: Event) -> int:
    """How many findings the event stands for."""
    value = event.detail.get("count")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


def command_line(event: Event) -> str:
    """The arguments as a shell would read them."""
    return shlex.join(event.process.argv)


def base_name(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rpartition("/")[2] or path
