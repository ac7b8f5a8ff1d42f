"""OCSF 1.5.0 (schema.ocsf.io): which class an event is, and how its fields are called there.

Findings that ask for a person are Detection Findings (2004), exposures Data Security Findings (2006), incidents
Incident Findings (2005). What is for the log is an activity: of files (1001), processes (1007) or the network
(4001). Guard's own telemetry is a Base Event. What has no place there stands in `unmapped`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from guard import __version__
from guard.events.forms import parts
from guard.events.model import Event, Severity
from guard.events.wire import dump

VERSION: Final = "1.5.0"
PROFILES: Final = ["host", "security_control"]
_CREATE: Final = 1
# verdict → (action_id, disposition_id)
_VERDICTS: Final[Mapping[str, tuple[int, int]]] = {
    "observed": (3, 15),
    "would_deny": (3, 17),
    "denied": (2, 2),
    "rewritten": (4, 11),
    "killed": (2, 2),
}
_ACTIONS: Final = {2: "Denied", 3: "Observed", 4: "Modified"}
_DISPOSITIONS: Final = {2: "Blocked", 11: "Corrected", 15: "Detected", 17: "Logged"}
_SEVERITIES: Final = {
    Severity.INFO: (1, "Informational"),
    Severity.LOW: (2, "Low"),
    Severity.MEDIUM: (3, "Medium"),
    Severity.HIGH: (4, "High"),
    Severity.CRITICAL: (5, "Critical"),
}
_CONFIDENCE: Final = {"low": 1, "medium": 2, "high": 3}
_STATUS: Final = {"new": 1, "in-progress": 2, "on-hold": 3, "resolved": 4, "closed": 5}
# control → class of what is for the log
_FILES: Final = frozenset({"files", "metadata", "world-writable", "setuid"})
_NETWORK: Final = frozenset({"bind", "connect", "unix-sockets"})

Whole = dict[str, object]


def render(event: Event) -> bytes:
    """The event as one line of OCSF JSON."""
    return dump(convert(event))


def convert(event: Event) -> Whole:
    """The event as an OCSF object."""
    if event.rule.startswith("incident"):
        return _incident(event)
    if event.control == "exposure":
        return _exposure(event)
    if event.control == "telemetry":
        return _whole(event, "Base Event", 0, "Uncategorized", 99)
    if event.severity >= Severity.MEDIUM:
        return _detection(event)
    if event.control in _FILES:
        return _file(event)
    if event.control in _NETWORK:
        return _network(event)
    return _process_activity(event)


def _whole(event: Event, name: str, uid: int, category: str, activity: int) -> Whole:
    """What every class has."""
    severity, word = _SEVERITIES[event.severity]
    action, disposition = _VERDICTS.get(event.verdict, (0, 0))
    metadata: Whole = {
        "version": VERSION,
        "uid": event.id,
        "event_code": f"{event.control}/{event.rule}",
        "log_name": event.producer,
        "log_provider": event.origin,
        "sequence": event.seq,
        "product": {"name": "guard", "vendor_name": "guard", "version": __version__},
        "profiles": PROFILES,
        "labels": [f"control:{event.control}", f"origin:{event.origin}"],
    }
    device: Whole = {"type_id": 1, "type": "Server", "hostname": event.host}
    if event.boot:
        device["boot_uid"] = event.boot
    whole: Whole = {
        "activity_id": activity,
        "category_uid": uid // 1000,
        "category_name": category,
        "class_uid": uid,
        "class_name": name,
        "type_uid": uid * 100 + activity,
        "severity_id": severity,
        "severity": word,
        "time": parts.epoch_ms(event),
        "message": event.message,
        "metadata": metadata,
        "device": device,
        "actor": _actor(event),
        "action_id": action,
        "disposition_id": disposition,
        "is_alert": event.severity >= Severity.MEDIUM,
        "count": parts.count_of(event),
        "unmapped": {
            "tree": event.tree.plain(), "verdict": event.verdict, "detail": dict(event.detail), **event.extra,
        },
    }  # fmt: skip
    if action:
        whole |= {"action": _ACTIONS[action], "disposition": _DISPOSITIONS[disposition]}
    if event.policy.name:
        whole["policy"] = {"name": event.policy.name, "uid": event.policy.digest}
    if event.mitre:
        whole["attacks"] = [_attack(each) for each in event.mitre]
    for ours, theirs in (("first", "start_time"), ("last", "end_time")):
        moment = event.detail.get(ours)
        if isinstance(moment, str) and parts.milliseconds(moment):
            whole[theirs] = parts.milliseconds(moment)
    return whole


def _attack(technique: str) -> Whole:
    parent, _, sub = technique.partition(".")
    if sub:
        return {"technique": {"uid": parent}, "sub_technique": {"uid": technique}, "version": "15"}
    return {"tactic" if technique.startswith("TA") else "technique": {"uid": technique}, "version": "15"}


def _actor(event: Event) -> Whole:
    actor: Whole = {"app_name": event.tree.harness or "guard", "process": _process(event)}
    if event.tree.uid >= 0:
        actor["user"] = _user(event)
    if event.tree.session:
        actor["session"] = {"uid": event.tree.session}
    return actor


def _user(event: Event) -> Whole:
    user: Whole = {"uid": str(event.tree.uid), "type_id": 2 if event.tree.uid == 0 else 1}
    if event.tree.user:
        user["name"] = event.tree.user
    return user


def _process(event: Event) -> Whole:
    process: Whole = {"pid": max(0, event.process.pid or event.tree.root_pid)}
    exe = event.process.exe
    if exe:
        process |= {"name": parts.base_name(exe), "file": _a_file(exe)}
    if event.process.argv:
        process["cmd_line"] = parts.command_line(event)
    if event.process.cwd:
        process["working_directory"] = event.process.cwd
    if event.process.ppid > 0:
        process["parent_process"] = {"pid": event.process.ppid}
    return process


def _a_file(path: str) -> Whole:
    found: Whole = {"name": parts.base_name(path) or path, "type_id": 1}
    if path.startswith("/"):
        found["path"] = path
    return found


def _finding_info(event: Event) -> Whole:
    info: Whole = {
        "uid": event.id,
        "title": event.message or f"{event.control}: {event.rule}",
        "types": [event.control],
        "created_time": parts.epoch_ms(event),
        "analytic": {
            "type_id": 1, "name": event.rule, "uid": f"{event.control}/{event.rule}", "category": event.control,
        },
        "data_sources": [event.producer],
    }  # fmt: skip
    explain = parts.text_of(event, "explain", "advice")
    if explain:
        info["desc"] = explain
    return info


def _evidence(event: Event) -> Whole:
    found: Whole = {"process": _process(event)}
    path, (address, port) = parts.path_of(event), parts.address_of(event)
    if path:
        found["file"] = _a_file(path)
    if address:
        found["dst_endpoint"] = _endpoint(address, port)
    return found


def _detection(event: Event) -> Whole:
    whole = _whole(event, "Detection Finding", 2004, "Findings", _CREATE)
    whole |= {
        "activity_name": "Create",
        "status_id": 1,
        "status": "New",
        "finding_info": _finding_info(event),
        "evidences": [_evidence(event)],
    }
    allow = parts.text_of(event, "allow", "advice")
    if allow:
        whole["remediation"] = {"desc": allow}
    return whole


def _exposure(event: Event) -> Whole:
    whole = _whole(event, "Data Security Finding", 2006, "Findings", _CREATE)
    confidence = _CONFIDENCE.get(parts.text_of(event, "confidence"), 0)
    where = parts.text_of(event, "file", "source", "object")
    security: Whole = {
        "category_id": 6,
        "category": "Security",
        "confidentiality_id": 3,
        "confidentiality": "Secret",
        "data_lifecycle_state_id": 1 if where.startswith("/") else 3,
        "detection_system_id": 1,
        "detection_system": "Endpoint",
    }
    kind = parts.text_of(event, "kind")
    if kind:
        security["detection_pattern"] = kind
    fingerprint = parts.text_of(event, "fingerprint")
    if fingerprint:
        # One secret at one site has one of it, whatever the file: what incidents are joined by.
        security["uid"] = f"{parts.text_of(event, 'key_id')}:{fingerprint}"
    whole |= {
        "activity_name": "Create",
        "status_id": 1,
        "status": "New",
        "confidence_id": confidence,
        "finding_info": _finding_info(event),
        "data_security": security,
    }
    if where:
        whole["file"] = _a_file(where)
    return whole


def _incident(event: Event) -> Whole:
    whole = _whole(event, "Incident Finding", 2005, "Findings", _CREATE)
    status = _STATUS.get(parts.text_of(event, "status"), 1)
    whole |= {
        "activity_name": "Create",
        "status_id": status,
        "finding_info_list": [_finding_info(event)],
        "assignee_group": {"name": parts.text_of(event, "assignee_group") or "infosec"},
    }
    assignee = parts.text_of(event, "assignee")
    if assignee:
        whole["assignee"] = {"name": assignee}
    return whole


def _file(event: Event) -> Whole:
    activity, name = (7, "Set Security") if event.control != "files" else (14, "Open")
    whole = _whole(event, "File System Activity", 1001, "System Activity", activity)
    return whole | {"activity_name": name, "file": _a_file(parts.path_of(event) or "unknown")}


def _network(event: Event) -> Whole:
    activity, name = (7, "Listen") if event.control == "bind" else (1, "Open")
    whole = _whole(event, "Network Activity", 4001, "Network Activity", activity)
    address, port = parts.address_of(event)
    side = "src_endpoint" if event.control == "bind" else "dst_endpoint"
    endpoint = _endpoint(address, port) if address else {"hostname": event.host, **({"port": port} if port else {})}
    return whole | {"activity_name": name, side: endpoint}


def _endpoint(address: str, port: int) -> Whole:
    return {"ip": address, "port": port} if port else {"ip": address}


def _process_activity(event: Event) -> Whole:
    ended = event.control == "session" and event.rule.endswith("stop")
    activity, name = (2, "Terminate") if ended else (1, "Launch")
    whole = _whole(event, "Process Activity", 1007, "System Activity", activity)
    whole |= {"activity_name": name, "process": _process(event)}
    code = event.detail.get("exit")
    if ended and isinstance(code, int):
        whole["exit_code"] = code
    return whole


