"""The JSON that Falcosidekick takes (falcosecurity/falcosidekick, `types.FalcoPayload`): as Falco's `json_output`.

Sidekick gives output fields to its sinks by name, so they are flat here, and texts or numbers only.
"""

from __future__ import annotations

from typing import Final

from guard.events.forms import parts
from guard.events.model import Event, Severity
from guard.events.wire import dump

_PRIORITIES: Final = {
    Severity.INFO: "Informational", Severity.LOW: "Notice", Severity.MEDIUM: "Warning", Severity.HIGH: "Error",
    Severity.CRITICAL: "Critical",
}  # fmt: skip


def render(event: Event) -> bytes:
    """The event as one line of Falcosidekick's JSON."""
    return dump(convert(event))


def convert(event: Event) -> dict[str, object]:
    """The event as Falcosidekick's object."""
    address, port = parts.address_of(event)
    fields: dict[str, object] = {
        "evt.id": event.id,
        "evt.time": parts.epoch_ms(event) * 1_000_000,
        "evt.count": parts.count_of(event),
        "proc.pid": event.process.pid,
        "proc.ppid": event.process.ppid,
        "proc.name": parts.base_name(event.process.exe),
        "proc.cmdline": parts.command_line(event),
        "proc.cwd": event.process.cwd,
        "user.uid": event.tree.uid,
        "user.name": event.tree.user,
        "fd.name": parts.path_of(event),
        "fd.ip": address,
        "fd.port": port,
        "guard.control": event.control,
        "guard.verdict": event.verdict,
        "guard.origin": event.origin,
        "guard.producer": event.producer,
        "guard.seq": event.seq,
        "guard.boot": event.boot,
        "guard.session": event.tree.session,
        "guard.harness": event.tree.harness,
        "guard.root_pid": event.tree.root_pid,
        "guard.policy": event.policy.name,
        "guard.detail": dump(dict(event.detail)).decode(),
    }
    return {
        "uuid": event.id,
        "output": f"{event.time} {_PRIORITIES[event.severity]} {event.message} (user={event.tree.user} "
        f"harness={event.tree.harness} session={event.tree.session} verdict={event.verdict})",
        "priority": _PRIORITIES[event.severity],
        "rule": f"{event.control}/{event.rule}",
        "time": event.time,
        "source": "guard",
        "hostname": event.host,
        "tags": [*event.mitre, event.control, "guard"],
        "output_fields": {name: value for name, value in fields.items() if value not in ("", 0, -1)},
    }
