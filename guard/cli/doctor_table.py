"""How `guard doctor` tells what it found: a table for people, under 80 columns, or JSON with stable keys."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from typing import TYPE_CHECKING

from guard.cli.doctor_ways import as_dict, as_lines
from guard.confine.prove import Verdict
from guard.kernel.probe import Ability, Kernel

if TYPE_CHECKING:
    from guard.cli.doctor import Report

_WIDTH = 79
_COLUMN = 16  # of the control's name
_REMEDIES = {
    "files": ("landlock.abi", "landlock.layer", "landlock.files", "landlock.refer", "namespace.mask"),
    "metadata": ("seccomp.filter",),
    "world-writable": ("seccomp.filter",),
    "setuid": ("seccomp.filter",),
    "bind": ("landlock.layer", "landlock.ports", "seccomp.filter"),
    "connect": ("landlock.layer", "landlock.ports", "seccomp.filter"),
    "unix-sockets": ("landlock.layer", "landlock.scopes", "seccomp.filter"),
    "pipe-to-shell": ("notify.listener",),
    "processes": ("landlock.layer", "landlock.scopes", "seccomp.filter"),
    "kernel-surface": ("seccomp.filter",),
    "limits": (),
}
"""Control → what it rests on; where one of these does not work, its remedy belongs to the control."""


_NOTHING = ("done", "not tried")


def remedies(control: str, kernel: Kernel) -> list[Ability]:
    """Return what a control rests on and this host lacks, each cause once."""
    found: dict[tuple[str, str], Ability] = {}
    for name in _REMEDIES[control]:
        ability = kernel.abilities.get(name)
        if ability is not None and not ability.works:
            found.setdefault((ability.cause, ability.remedy), ability)
    return list(found.values())


def as_text(report: Report) -> str:
    """Write the table."""
    kernel = report.kernel
    out = [f"policy   {report.effective.name} ({report.effective.assigned_by})", f"host     {_host(kernel)}"]
    if report.path:
        out.append(f"path     {report.path} ({report.file_system})")
    if report.redactor.key_id:
        said = "the service answers" if report.redactor.service else "no service"
        out.append(f"secrets  {report.redactor.key_id}, {said}")
    if report.redactor.pack:
        out.append(f"secrets  {report.redactor.pack} rules of the site's pack beside the built-in ones")
    for fault in report.redactor.faults:
        out += _wrap("secrets  ", fault, "         ")
    for name in ("library.pyseccomp", "library.landlock"):
        ability = kernel.abilities.get(name)
        if ability is not None and not ability.works:
            out += _wrap("", f"{ability.cause}: no new policy can be compiled -> {ability.remedy}", "         ")
    for line in as_lines(report.ways):
        out += _wrap("agents   ", line, "         ")
    if report.refused:
        out += ["", *_wrap("NOT STARTED  ", f"guard run says: {report.refused}", " " * 13)]
    out += ["", f"{'control':{_COLUMN}}{'status':10}tried"]
    for verdict in report.verdicts:
        out += _row(verdict, kernel)
    out += ["", _summary(report)]
    return "\n".join(line.rstrip() for line in out) + "\n"


def _host(kernel: Kernel) -> str:
    landlock = kernel.abilities["landlock.abi"]
    parts = [
        landlock.detail.replace("ABI", "Landlock ABI") if landlock.works else "no Landlock",
        "seccomp" if kernel.works("seccomp.filter") else "no seccomp",
        "mask" if kernel.works("namespace.mask") else "no mask",
        "user notification" if kernel.works("notify.listener") else "no user notification",
    ]
    return ", ".join(parts)


def _row(verdict: Verdict, kernel: Kernel) -> list[str]:
    out = [f"{verdict.control:{_COLUMN}}{verdict.status:10}{_tried(verdict)}"]
    if verdict.mismatch:
        out += _wrap("  MISMATCH ", verdict.mismatch, " " * 11)
    if verdict.status in ("partial", "absent") or verdict.mismatch:
        for text in verdict.claim.missing:
            out += _wrap("  - ", text, "    ")
        for ability in remedies(verdict.control, kernel):
            told = any(ability.cause in text for text in verdict.claim.missing)
            cause = "" if told else f"{ability.cause} "
            remedy = f"-> {ability.remedy}" if ability.remedy else ""
            out += _wrap("  ", f"{cause}{remedy}", "     ")
    return out


def _tried(verdict: Verdict) -> str:
    """Say in words how the acts went; the exact acts are in the JSON."""
    if verdict.claim.state in ("off", "observe"):
        return "not enforced, by the policy"
    refused, done = verdict.count(False, "refused"), verdict.count(False, "done")
    if not refused and any(
        not each.allowed and each.outcome == "untried" and each.bare not in _NOTHING for each in verdict.tried
    ):
        return "refused without guard too: not proved here"
    if not refused and not done:
        return "could not be tried here"
    words = "every act refused" if not done else "refused but as named" if refused else "no act refused"
    works = "what is allowed works" if not verdict.count(True, "refused") else "what is allowed fails"
    return f"{words}; {works}"


def _wrap(first: str, text: str, rest: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _summary(report: Report) -> str:
    mismatches = [each.control for each in report.verdicts if each.mismatch]
    absent = [each.control for each in report.verdicts if each.status == "absent"]
    if mismatches:
        return f"NOT AS CLAIMED: {', '.join(mismatches)}; report this"
    if absent:
        return f"absent: {', '.join(absent)}"
    return "every control asked is enforced, or partial as said above"


def as_json(report: Report) -> str:
    """Write one JSON object."""
    kernel, effective = report.kernel, report.effective
    content = {
        "schema": 1,
        "policy": {
            "name": effective.name,
            "digest": effective.digest,
            "mode": effective.mode,
            "assigned_by": effective.assigned_by,
        },
        "kernel": {
            "landlock_abi": kernel.abi,
            "landlock_errata": kernel.errata,
            "abilities": {name: dataclasses.asdict(each) for name, each in kernel.abilities.items()},
            "settings": dict(kernel.settings),
        },
        "path": {"path": report.path, "file_system": report.file_system} if report.path else None,
        "refused": report.refused,
        "redactor": {
            "key_id": report.redactor.key_id or None,
            "service": report.redactor.service,
            "pack_rules": report.redactor.pack,
            "faults": list(report.redactor.faults),
        },
        "ways": as_dict(report.ways),
        "controls": {each.control: _control(each, kernel) for each in report.verdicts},
        "exit": report.exit_code,
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _control(verdict: Verdict, kernel: Kernel) -> dict[str, object]:
    lacking = remedies(verdict.control, kernel) if verdict.status in ("partial", "absent") else []
    return {
        "status": verdict.status,
        "claimed": verdict.claim.state,
        "missing": list(verdict.claim.missing),
        "found": verdict.found,
        "mismatch": verdict.mismatch,
        "cause": "; ".join(each.cause for each in lacking),
        "remedy": "; ".join(each.remedy for each in lacking),
        "acts": [dataclasses.asdict(each) for each in verdict.tried],
    }
