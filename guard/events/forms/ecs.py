"""ECS 8.11 (elastic.co/guide/en/ecs) for Elasticsearch and OpenSearch; what ECS has no name for is `guard.*`."""

from __future__ import annotations

from typing import Final

from guard import __version__
from guard.events.forms import parts
from guard.events.model import Event, Severity
from guard.events.wire import dump

VERSION: Final = "8.11.0"
_SEVERITIES: Final = {
    Severity.INFO: 10, Severity.LOW: 30, Severity.MEDIUM: 50, Severity.HIGH: 75, Severity.CRITICAL: 95,
}  # fmt: skip
# control → (event.category, event.type), values that ECS allows
_KINDS: Final = {
    "files": (["file"], ["access"]),
    "metadata": (["network"], ["access"]),
    "world-writable": (["file"], ["change"]),
    "setuid": (["file"], ["change"]),
    "bind": (["network"], ["start"]),
    "connect": (["network"], ["connection"]),
    "unix-sockets": (["network"], ["connection"]),
    "session": (["session"], ["info"]),
    "telemetry": (["host"], ["info"]),
    "exposure": (["file"], ["info"]),
}
_OUTCOMES: Final = {"denied": "failure", "killed": "failure", "rewritten": "success", "observed": "success"}


def render(event: Event) -> bytes:
    """The event as one line of ECS JSON."""
    return dump(convert(event))


def convert(event: Event) -> dict[str, object]:
    """The event as an ECS document."""
    category, kind = _KINDS.get(event.control, (["process"], ["info"]))
    if event.verdict in ("denied", "killed"):
        kind = [*kind, "denied"]
    if event.control == "session":
        kind = ["end"] if event.rule.endswith("stop") else ["start"]
    about: dict[str, object] = {
        "kind": "alert" if event.severity >= Severity.MEDIUM else "event",
        "category": category,
        "type": kind,
        "action": event.rule,
        "outcome": _OUTCOMES.get(event.verdict, "unknown"),
        "severity": _SEVERITIES[event.severity],
        "id": event.id,
        "sequence": event.seq,
        "module": "guard",
        "dataset": f"guard.{event.control}",
        "provider": event.producer,
        "reason": event.message,
    }
    for ours, theirs in (("first", "start"), ("last", "end")):
        moment = event.detail.get(ours)
        if isinstance(moment, str) and parts.milliseconds(moment):
            about[theirs] = moment
    process: dict[str, object] = {
        "pid": event.process.pid,
        "args": list(event.process.argv),
        "args_count": event.process.argc or len(event.process.argv),
    }
    if event.process.exe:
        process |= {"name": parts.base_name(event.process.exe), "executable": event.process.exe}
    if event.process.argv:
        process["command_line"] = parts.command_line(event)
    if event.process.cwd:
        process["working_directory"] = event.process.cwd
    if event.process.ppid:
        process["parent"] = {"pid": event.process.ppid}
    whole: dict[str, object] = {
        "@timestamp": event.time,
        "ecs": {"version": VERSION},
        "message": event.message,
        "event": about,
        "host": {"hostname": event.host, "name": event.host, "boot": {"id": event.boot}},
        "observer": {"product": "guard", "vendor": "guard", "version": __version__, "type": "hids"},
        "process": process,
        "rule": {"name": event.rule, "category": event.control, "ruleset": event.policy.name or "guard"},
        "guard": {
            "schema": event.schema,
            "origin": event.origin,
            "control": event.control,
            "verdict": event.verdict,
            "severity": event.severity.label,
            "tree": event.tree.plain(),
            "policy": {"name": event.policy.name, "digest": event.policy.digest},
            "detail": dict(event.detail),
            **({"extra": dict(event.extra)} if event.extra else {}),
        },
    }
    if event.tree.uid >= 0:
        whole["user"] = {"id": str(event.tree.uid), **({"name": event.tree.user} if event.tree.user else {})}
    if event.mitre:
        techniques = [each for each in event.mitre if not each.startswith("TA")]
        tactics = [each for each in event.mitre if each.startswith("TA")]
        threat: dict[str, object] = {"framework": "MITRE ATT&CK"}
        if techniques:
            threat["technique"] = {"id": [each.partition(".")[0] for each in techniques]}
            subs = [each for each in techniques if "." in each]
            if subs:
                threat["technique"] = {**threat["technique"], "subtechnique": {"id": subs}}  # type: ignore[dict-item]
        if tactics:
            threat["tactic"] = {"id": tactics}
        whole["threat"] = threat
    path, (address, port) = parts.path_of(event), parts.address_of(event)
    if path:
        whole["file"] = {"name": parts.base_name(path), **({"path": path} if path.startswith("/") else {})}
    if address:
        side = "source" if event.control == "bind" else "destination"
        whole[side] = {"ip": address, "address": address, **({"port": port} if port else {})}
    return whole
