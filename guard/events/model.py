"""The event: frozen, typed, built from redacted text alone, one line of JSON.

A producer makes events through a `Producer`, which fills in who, where and when. Every text that comes from
outside guard (arguments, paths, names of files) has the type `Redacted`, which only the redactor gives; guard's
own words come from `word` and `say`. What is read back from a line was redacted before it was written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, TypeGuard, get_args

from guard.errors import EventError
from guard.events.wire import FIELDS, Severity, check, dump, parse, table
from guard.redact import Redacted, bless

__all__ = [
    "CONTROLS", "Control", "Detail", "Event", "Origin", "PolicyRef", "Process", "Severity", "Tree",
    "Verdict", "say", "word",
]  # fmt: skip

SCHEMA: Final = 1
MESSAGE_MOST: Final = 99
"""Characters of a message at most."""

Control = Literal[
    "files", "metadata", "world-writable", "setuid", "bind", "connect", "unix-sockets", "pipe-to-shell",
    "processes", "kernel-surface", "limits", "hand-off", "rates", "exposure", "harness", "session", "telemetry",
]  # fmt: skip
Verdict = Literal["observed", "would_deny", "denied", "rewritten", "killed"]
Origin = Literal["kernel", "service", "user"]
CONTROLS: Final = get_args(Control)
VERDICTS: Final = get_args(Verdict)

Detail: TypeAlias = "Redacted | int | float | bool | Sequence[Detail] | Mapping[str, Detail] | None"
"""What may stand in `detail`: numbers, and text that went through the redactor."""

WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:+/-]{0,63}")
NOTHING: Final = bless("")


def word(text: str) -> Redacted:
    """Give one of guard's own words (a control, a state, the name of a program of ours) as stored text.

    Args:
        text: at most 64 letters, digits, spaces and `._:+/-`. Never anything that came from outside.

    Raises:
        EventError: it is no such word.
    """
    if not WORD.fullmatch(text):
        raise EventError("this is no word of guard's own", "text from outside goes through guard.redact")
    return bless(text)


def say(template: str, *parts: Redacted | int) -> Redacted:
    """Put redacted parts into a sentence of guard's own, as one line of under 100 characters.

    Args:
        template: a constant of the code, with `{}` for each part.
        parts: redacted texts and numbers.

    Raises:
        EventError: a part is neither.
    """
    for part in parts:
        if not isinstance(part, (Redacted, int)):
            raise EventError("a part of a message was not redacted", "pass it through guard.redact first")
    text = " ".join(template.format(*parts).split())
    return bless(text if len(text) <= MESSAGE_MOST else text[: MESSAGE_MOST - 1] + "…")


@dataclass(frozen=True, slots=True)
class Tree:
    """The process tree of one agent session.

    Args:
        session: its id; empty where none is known.
        harness: as the catalogue names it; empty for none.
        root_pid: the harness process; of `guard run`, the one that the shell started and all of the session descends
            from: it becomes the command, or waits for it where a supervisor stands beside.
        uid, user: whose it is; the name is empty where the number has none.
        slurm_job_id: of the job that it runs in.
    """

    session: str = ""
    harness: str = ""
    root_pid: int = 0
    uid: int = -1
    user: str = ""
    slurm_job_id: int | None = None

    def plain(self) -> dict[str, object]:
        """The JSON object."""
        whole: dict[str, object] = {
            "session": self.session,
            "harness": self.harness,
            "root_pid": self.root_pid,
            "uid": self.uid,
            "user": self.user,
        }
        if self.slurm_job_id is not None:
            whole["slurm_job_id"] = self.slurm_job_id
        return whole


@dataclass(frozen=True, slots=True)
class Process:
    """The process that acted.

    Args:
        pid, ppid: in the host's numbers; 0 where not known.
        exe: the program, a path or a base name.
        argv: the arguments, redacted.
        argc: how many there were, of which `argv` may hold fewer.
        cwd: the working directory.
    """

    pid: int = 0
    ppid: int = 0
    exe: Redacted = NOTHING
    argv: tuple[Redacted, ...] = ()
    argc: int = 0
    cwd: Redacted = NOTHING

    def plain(self) -> dict[str, object]:
        """The JSON object."""
        return {
            "pid": self.pid,
            "ppid": self.ppid,
            "exe": self.exe,
            "argv": list(self.argv),
            "argc": self.argc,
            "cwd": self.cwd,
        }


@dataclass(frozen=True, slots=True)
class PolicyRef:
    """The policy in force, and the digest its text is kept under."""

    name: str = ""
    digest: str = ""


NO_TREE: Final = Tree()
NO_PROCESS: Final = Process()
NO_POLICY: Final = PolicyRef()


@dataclass(frozen=True, slots=True)
class Event:
    """One event, as design.md describes it; `Producer.event` builds one, `from_json` reads one back.

    Args:
        extra: top-level fields of a later version, kept as they came.
    """

    id: str
    time: str
    host: str
    boot: str
    producer: str
    seq: int
    origin: Origin
    control: str
    rule: str
    severity: Severity
    verdict: str
    tree: Tree = NO_TREE
    process: Process = NO_PROCESS
    policy: PolicyRef = NO_POLICY
    detail: Mapping[str, Detail] = field(default_factory=dict)
    mitre: tuple[str, ...] = ()
    message: Redacted = NOTHING
    schema: int = SCHEMA
    extra: Mapping[str, object] = field(default_factory=dict)

    def plain(self) -> dict[str, object]:
        """The JSON object, in the order in which it is written."""
        return {
            "schema": self.schema,
            "id": self.id,
            "time": self.time,
            "host": self.host,
            "boot": self.boot,
            "producer": self.producer,
            "seq": self.seq,
            "origin": self.origin,
            "control": self.control,
            "rule": self.rule,
            "severity": self.severity.label,
            "verdict": self.verdict,
            "policy": {"name": self.policy.name, "digest": self.policy.digest},
            "mitre": list(self.mitre),
            "tree": self.tree.plain(),
            "process": self.process.plain(),
            "detail": dict(self.detail),
            "message": self.message,
            **self.extra,
        }

    def to_json(self) -> bytes:
        """One line, without its newline."""
        return dump(self.plain())

    @classmethod
    def from_json(cls, line: bytes | str) -> Event:
        """Read an event that was stored or sent; what a later version added is kept in `extra`.

        Raises:
            EventError: it is no event; the sentence says what is wrong.
        """
        return cls.from_plain(parse(line))

    @classmethod
    def from_plain(cls, whole: Mapping[str, object]) -> Event:
        """Read an event from its JSON object.

        Raises:
            EventError: it is no event.
        """
        check(whole)
        tree, process, policy = (table(whole, name) for name in ("tree", "process", "policy"))
        argv = process.get("argv")
        mitre = whole.get("mitre")
        job = tree.get("slurm_job_id")
        origin = _text(whole, "origin")
        return cls(
            id=_text(whole, "id"),
            time=_text(whole, "time"),
            host=_text(whole, "host"),
            boot=_text(whole, "boot"),
            producer=_text(whole, "producer"),
            seq=_number(whole, "seq"),
            # What is not known to this version is the least trusted.
            origin="kernel" if origin == "kernel" else "service" if origin == "service" else "user",
            control=_text(whole, "control"),
            rule=_text(whole, "rule"),
            severity=Severity.of(_text(whole, "severity")),
            verdict=_text(whole, "verdict"),
            tree=Tree(
                _text(tree, "session"),
                _text(tree, "harness"),
                _number(tree, "root_pid"),
                _number(tree, "uid", -1),
                _text(tree, "user"),
                job if isinstance(job, int) else None,
            ),
            process=Process(
                _number(process, "pid"),
                _number(process, "ppid"),
                bless(_text(process, "exe")),
                tuple(bless(str(each)) for each in argv) if isinstance(argv, list) else (),
                _number(process, "argc"),
                bless(_text(process, "cwd")),
            ),
            policy=PolicyRef(_text(policy, "name"), _text(policy, "digest")),
            detail={name: _stored(value) for name, value in table(whole, "detail").items()},
            mitre=tuple(str(each) for each in mitre) if isinstance(mitre, list) else (),
            message=bless(_text(whole, "message")),
            schema=_number(whole, "schema", SCHEMA),
            extra={name: value for name, value in whole.items() if name not in FIELDS},
        )


def _text(table: Mapping[str, object], name: str) -> str:
    value = table.get(name)
    return value if isinstance(value, str) else ""


def _number(table: Mapping[str, object], name: str, absent: int = 0) -> int:
    value = table.get(name)
    return value if isinstance(value, int) else absent


def _stored(value: object) -> Detail:
    if isinstance(value, str):
        return bless(value)
    if isinstance(value, dict):
        return {str(name): _stored(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_stored(each) for each in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise EventError(f"no JSON for {type(value).__name__}", "see docs/events.md for the fields")


def is_redacted(value: object) -> TypeGuard[Detail]:
    """Whether a value of `detail` holds no text but redacted text; keys are guard's own names."""
    if isinstance(value, str):
        return isinstance(value, Redacted)
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and is_redacted(each) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(is_redacted, value))
    return value is None or isinstance(value, (bool, int, float))
