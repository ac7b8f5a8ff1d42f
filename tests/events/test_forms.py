"""Every kind of event in every form: as the forms' own schemas say, and as it was yesterday (golden files).

`GUARD_GOLDEN=write` writes the golden files anew; read the difference before you commit it.
"""

from __future__ import annotations

import functools
import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ocsf_json_schema import OcsfJsonSchemaEmbedded, get_ocsf_schema
from py_ocsf_models.events.findings.detection_finding import DetectionFinding

from guard import __version__
from guard.events.forms import NAMES, cef, ecs, event, falcosidekick, ocsf
from guard.events.model import Event
from tests.events.kinds import ROWS
from tests.events.kinds import event as kind

GOLDEN = Path(__file__).parent / "golden"
RENDER = {"event": event.render, "ocsf": ocsf.render, "ecs": ecs.render, "cef": cef.render, "falcosidekick": falcosidekick.render}
# Checked against OCSF's own: of which class each kind is.
CLASSES = {
    "files-denied": 2004, "files-log": 1001, "metadata": 2004, "world-writable": 2004, "world-writable-low": 1001,
    "setuid": 2004, "bind": 2004, "bind-log": 4001, "connect": 2004, "unix-sockets": 4001, "pipe-to-shell": 2004,
    "processes": 2004, "kernel-surface": 2004, "limits": 1007, "hand-off": 2004, "rates": 1007, "flood": 2004,
    "exposure": 2006, "exposure-unsure": 2006, "incident": 2005, "harness": 2004, "session-start": 1007,
    "session-stop": 1007, "start-refused": 2004, "heartbeat": 0, "loss": 0, "odd": 2004,
}  # fmt: skip


@functools.cache
def schema(uid: int) -> Any:
    """OCSF's schema of a class, as it is published."""
    whole = OcsfJsonSchemaEmbedded(get_ocsf_schema(version=ocsf.VERSION))
    name = whole.lookup_class_name_from_uid(uid)
    made = whole.get_class_schema(name, profiles=ocsf.PROFILES)
    return jsonschema.Draft202012Validator(made)


@pytest.mark.parametrize("name", ROWS)
def test_ocsf_is_as_its_published_schema_says(name: str) -> None:
    whole = json.loads(ocsf.render(kind(name)))
    assert whole["class_uid"] == CLASSES[name]
    faults = [f"{'/'.join(map(str, each.absolute_path))}: {each.message}" for each in schema(whole["class_uid"]).iter_errors(whole)]
    assert not faults, faults
    assert whole["type_uid"] == whole["class_uid"] * 100 + whole["activity_id"]
    assert whole["category_uid"] == whole["class_uid"] // 1000
    assert whole["metadata"]["uid"] == kind(name).id


def test_the_schema_would_find_a_fault() -> None:
    whole = json.loads(ocsf.render(kind("setuid")))
    for change in ({"severity_id": "high"}, {"nonsense": 1}, {"finding_info": {}}, {"time": "now"}):
        assert list(schema(2004).iter_errors({**whole, **change})), change


@pytest.mark.parametrize("name", [name for name, uid in CLASSES.items() if uid == 2004])
def test_ocsf_findings_are_read_by_another_implementation(name: str) -> None:
    read = DetectionFinding.model_validate(json.loads(ocsf.render(kind(name))))
    assert read.finding_info.uid == kind(name).id


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("form", NAMES)
def test_a_form_is_what_it_was(form: str, name: str) -> None:
    line = RENDER[form](kind(name))
    assert not re.search(rb"[\x00-\x1f\x7f]", line), "one line, and nothing that a terminal takes for an order"
    shown = line.decode().replace(f'"version":"{__version__}"', '"version":"V"').replace(f"|{__version__}|", "|V|")
    if form != "cef":
        shown = json.dumps(json.loads(shown), indent=1, ensure_ascii=False, sort_keys=True)
    path = GOLDEN / form / f"{name}.{'txt' if form == 'cef' else 'json'}"
    if os.environ.get("GUARD_GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shown + "\n")
    assert path.read_text() == shown + "\n"


@pytest.mark.parametrize("name", ROWS)
def test_cef_gives_its_fields_back(name: str) -> None:
    made = kind(name)
    line = cef.render(made).decode()
    head = re.split(r"(?<!\\)(?:\\\\)*\|", line, maxsplit=7)
    assert head[0] == "CEF:0"
    assert len(head) == 8
    assert 0 <= int(head[6]) <= 10
    fields: dict[str, str] = {}
    # A key is a word before an equals sign that no backslash escapes.
    found = list(re.finditer(r"(?:^| )([A-Za-z0-9]+)=", head[7]))
    for here, there in zip(found, [*found[1:], None], strict=True):
        value = head[7][here.end() : there.start() if there else None]
        fields[here.group(1)] = re.sub(r"\\(.)", lambda m: "\n" if m.group(1) == "n" else m.group(1), value)
    assert fields["externalId"] == made.id
    assert fields["msg"] == made.message
    assert json.loads(fields["cs6"].replace("\n", "\\n")) == json.loads(json.dumps(dict(made.detail)))


@pytest.mark.parametrize("name", ROWS)
def test_falcosidekick_fields_are_flat_and_its_priorities_its_own(name: str) -> None:
    whole = json.loads(falcosidekick.render(kind(name)))
    assert set(whole) == {"uuid", "output", "priority", "rule", "time", "source", "hostname", "tags", "output_fields"}
    assert whole["priority"] in ("Critical", "Error", "Warning", "Notice", "Informational")
    assert all(isinstance(value, (str, int)) for value in whole["output_fields"].values())
    assert all(isinstance(tag, str) for tag in whole["tags"])


# ECS: allowed values of event.kind, event.category, event.type, event.outcome (8.11, "Categorization fields").
CATEGORIES = {
    "api", "authentication", "configuration", "database", "driver", "email", "file", "host", "iam", "intrusion_detection",
    "library", "malware", "network", "package", "process", "registry", "session", "threat", "vulnerability", "web",
}  # fmt: skip
TYPES = {
    "access", "admin", "allowed", "change", "connection", "creation", "deletion", "denied", "end", "error", "group",
    "indicator", "info", "installation", "protocol", "start", "user",
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_ecs_uses_the_words_that_ecs_allows(name: str) -> None:
    whole = json.loads(ecs.render(kind(name)))
    assert whole["event"]["kind"] in ("alert", "event")
    assert set(whole["event"]["category"]) <= CATEGORIES
    assert set(whole["event"]["type"]) <= TYPES
    assert whole["event"]["outcome"] in ("success", "failure", "unknown")
    assert {"@timestamp", "ecs", "message"} <= set(whole)


@pytest.mark.parametrize("form", NAMES)
def test_any_event_that_can_be_read_can_be_sent(form: str) -> None:
    least = {
        "schema": 3, "id": "018f2d5e-0000-7000-8000-000000000001", "time": "never", "control": "something-new",
        "rule": "r", "severity": "low", "verdict": "adored", "new": {"field": 1}, "detail": {"port": 99999999, "address": "x"},
        "tree": {"uid": -1, "root_pid": -3}, "process": {"pid": -1, "argv": ["\ud800", "'\""]},
    }  # fmt: skip
    for control in ("something-new", "bind", "exposure", "session", "files", "telemetry"):
        for severity in ("low", "high"):
            line = RENDER[form](Event.from_plain({**least, "control": control, "severity": severity}))
            assert b"\n" not in line
            if form == "ocsf":
                whole = json.loads(line)
                assert not list(schema(whole["class_uid"]).iter_errors(whole))
