r"""CEF 0 (ArcSight Common Event Format, Micro Focus Security ArcSight, revision 26): a header and key=value pairs.

In the header `|` and `\` are escaped, in values `=` and `\`; a line break in a value is `\n`.
"""

from __future__ import annotations

import re
from typing import Final

from guard import __version__
from guard.events.forms import parts
from guard.events.model import Event, Severity
from guard.events.wire import dump

_SEVERITIES: Final = {
    Severity.INFO: 1, Severity.LOW: 3, Severity.MEDIUM: 5, Severity.HIGH: 8, Severity.CRITICAL: 10,
}  # fmt: skip
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def render(event: Event) -> bytes:
    """The event as one line of CEF."""
    head = "|".join(
        _header(each)
        for each in (
            "CEF:0", "guard", "guard", __version__, f"{event.control}/{event.rule}", event.message or event.rule,
            str(_SEVERITIES[event.severity]),
        )
    )  # fmt: skip
    pairs = " ".join(f"{name}={_value(text)}" for name, text in _pairs(event) if text != "")
    return f"{head}|{pairs}".encode("utf-8", "backslashreplace")


def _pairs(event: Event) -> list[tuple[str, str]]:
    path, (address, port) = parts.path_of(event), parts.address_of(event)
    bound = event.control == "bind"
    tree = event.tree
    return [
        ("externalId", event.id),
        ("rt", str(parts.epoch_ms(event))),
        ("dvchost", event.host),
        ("cat", event.control),
        ("act", event.verdict),
        ("cnt", str(parts.count_of(event))),
        ("suid", str(tree.uid) if tree.uid >= 0 else ""),
        ("suser", tree.user),
        ("sproc", event.process.exe),
        ("spid", str(event.process.pid) if event.process.pid else ""),
        ("filePath", path),
        ("fname", parts.base_name(path) if path else ""),
        ("src" if bound else "dst", address),
        ("spt" if bound else "dpt", str(port) if port else ""),
        ("msg", event.message),
        ("deviceExternalId", event.boot),
        ("cs1Label", "session"),
        ("cs1", tree.session),
        ("cs2Label", "harness"),
        ("cs2", tree.harness),
        ("cs3Label", "producer"),
        ("cs3", event.producer),
        ("cs4Label", "policy"),
        ("cs4", event.policy.name),
        ("cs5Label", "mitre"),
        ("cs5", ",".join(event.mitre)),
        ("cs6Label", "detail"),
        ("cs6", dump(dict(event.detail)).decode() if event.detail else ""),
        ("cn1Label", "seq"),
        ("cn1", str(event.seq)),
        ("deviceFacility", event.origin),
        ("requestContext", parts.command_line(event)),
    ]


def _header(text: str) -> str:
    return _CONTROL.sub(" ", text).replace("\\", "\\\\").replace("|", "\\|")


def _value(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("=", "\\=").replace("\r\n", "\\n").replace("\n", "\\n")
    return _CONTROL.sub(" ", escaped.replace("\r", "\\r"))
