"""From what is told to an event: everything that a program chose goes through the redactor here, and nowhere later."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import get_args

from guard.events.model import NO_PROCESS, NO_TREE, Control, Detail, Event, Process, Severity, Tree, Verdict, say, word
from guard.events.producer import Producer
from guard.monitor.exposure import Arguments, Exposure
from guard.monitor.facts import boot_time
from guard.monitor.findings import Scalar
from guard.monitor.lineage import Tree as AgentTree
from guard.monitor.proc import link, same
from guard.monitor.telling import Told
from guard.redact import Redacted, bless
from guard.redact.exposed import of_arguments

ARGV_MOST = 64
"""Arguments that an event tells; `argc` says how many there were."""
_WORD_MOST = 4096
_MOMENT = 0.1
_NAMES_OBJECT = ("path", "file", "address")
"""Keys by which the events' budget knows the same thing again; another object stands under `object`."""
_CONTROLS: tuple[str, ...] = get_args(Control)
_VERDICTS: tuple[str, ...] = get_args(Verdict)


class Recorder:
    """Makes events.

    Args:
        producer: stamps them.
        arguments: redacts.
        record_argv: whether arguments are told at all.
    """

    def __init__(self, producer: Producer, arguments: Arguments, record_argv: bool = True) -> None:
        self._producer = producer
        self._arguments = arguments
        self.record_argv = record_argv
        self._audience = of_arguments()
        self._looked = 0.0
        self._cwds: dict[tuple[int, int], Redacted] = {}

    def event(self, told: Told) -> Event:
        """Return the event of what is told."""
        finding = told.finding
        detail = {name: self._scalar(value) for name, value in finding.detail.items()}
        if finding.fact is not None and finding.object and detail.keys().isdisjoint(_NAMES_OBJECT):
            detail["object"] = self._arguments.text(finding.object)
        if told.exposure is not None:
            detail.update(self._exposure(told.exposure))
        return self._producer.event(
            _control(finding.control),
            finding.rule,
            Severity.of(finding.severity),
            say("{}", self._arguments.text(finding.message)),
            verdict=_verdict(finding.verdict),
            tree=_tree(told.tree),
            process=self._process(told),
            detail=detail,
            mitre=finding.mitre,
            when=_wall(told.when),
            origin="kernel" if finding.fact is not None or told.exposure is not None else "service",
        )

    def _scalar(self, value: Scalar) -> Detail:
        if isinstance(value, str):
            return self._arguments.text(value)
        if isinstance(value, tuple):
            return [self._arguments.text(each) for each in value]
        return value

    def _process(self, told: Told) -> Process:
        if told.who is None:
            return NO_PROCESS
        image = told.image
        argv: tuple[Redacted, ...] = ()
        if self.record_argv and image.argv:
            argv = tuple(_cut(word) for word in self._arguments.redact(image.argv).argv[:ARGV_MOST])
        return Process(
            told.who.pid,
            told.who.ppid,
            self._arguments.text(image.path or image.name),
            argv,
            len(image.argv),
            self._cwd(told.who.pid, told.who.start),
        )

    def _cwd(self, pid: int, start: int) -> Redacted:
        """Where a process is now; looked at once for what is told in one moment, of a flood it would cost most."""
        now = time.monotonic()
        if now - self._looked > _MOMENT:
            self._looked = now
            self._cwds.clear()
        if (pid, start) not in self._cwds:
            self._cwds[pid, start] = self._arguments.text(link(pid, "cwd") if same(pid, start) else "")
        return self._cwds[pid, start]

    def _exposure(self, exposure: Exposure) -> Mapping[str, Detail]:
        out: dict[str, Detail] = {
            "kind": word(exposure.kind),
            "incident": exposure.incident,
            "confidence": word(exposure.confidence),
            "source": word("argv"),
            "audience": word(self._audience),
            "argument": exposure.argument,
            "offset": exposure.offset,
            "length": exposure.length,
            "split": exposure.split,
            "partial": exposure.partial,
            "advice": bless(exposure.advice),
        }
        identity = exposure.identity
        if identity is not None:
            out["fingerprint"] = word(identity.fingerprint)
            out["key_id"] = word(identity.key_id)
            if identity.former:
                out["former"] = [{"key_id": word(key), "fingerprint": word(value)} for key, value in identity.former]
        return out


def _cut(text: Redacted) -> Redacted:
    """Hold one argument to a length: what is left of redacted text is redacted, if no marker is cut in two."""
    if len(text) <= _WORD_MOST:
        return text
    end = _WORD_MOST
    opened = text.rfind("[REDACTED", 0, end)
    if opened >= 0 and "]" not in text[opened:end]:
        end = opened
    return bless(text[:end] + "…")


def _tree(tree: AgentTree | None) -> Tree:
    if tree is None:
        return NO_TREE
    return Tree(tree.session, tree.harness, tree.pid, tree.uid, tree.user, tree.slurm_job)


def _control(name: str) -> Control:
    assert name in _CONTROLS  # noqa: S101 - a row's
    return name  # type: ignore[return-value]


def _verdict(name: str) -> Verdict:
    assert name in _VERDICTS  # noqa: S101 - a fact's
    return name  # type: ignore[return-value]


def _wall(boot: int) -> int:
    """Turn nanoseconds since boot into nanoseconds since 1970; 0 stays now."""
    return time.time_ns() - boot_time() + boot if boot else 0
