"""`guard monitor --check`: load, attach, let one harmless example a rule be seen, detach. For a node before service."""

from __future__ import annotations

import ipaddress
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from guard.errors import MonitorError
from guard.monitor import deeds
from guard.monitor.choose import open_source
from guard.monitor.facts import AnyFact, Fact, Verdict
from guard.monitor.source import Settings, Source, Status

PATIENCE = 25.0
"""Seconds without a sign of the child until it counts as stuck: what is broken shows within 30, and a machine that is
slow all over takes the time that it needs."""
_SETTLE, _LOOKS = 2.0, 3
"""Seconds, and looks, that a fact may still come after its act has ended: by then the kernel has told it."""


@dataclass(frozen=True)
class Row:
    """What came of one rule.

    Args:
        rule: its name.
        expected: the backend says that it sees this.
        seen: it did.
        enforced: it was to be refused; `refused`: it was.
        right: as it must be.
        note: what is wrong, "" where nothing is.
    """

    rule: str
    expected: bool
    seen: bool
    enforced: bool
    refused: bool
    right: bool
    note: str = ""


@dataclass(frozen=True)
class Report:
    """What a check found.

    Args:
        status: of the backend that was loaded.
        rows: one a rule.
        expect: the backend that was asked for, "" for any.
        seconds: the whole of it.
    """

    status: Status
    rows: tuple[Row, ...]
    expect: str
    seconds: float

    @property
    def right(self) -> bool:
        """Whether the node may be taken into service."""
        return all(row.right for row in self.rows) and self.expect in ("", self.status.backend)


def check(backend: str, settings: Settings, expect: str = "") -> Report:
    """Try everything once. What runs already is not touched, and nothing stays attached.

    Args:
        backend: as for `open_source`.
        settings: the site's; what it enforces is tried, too.
        expect: a backend's name that must be the one.

    Raises:
        MonitorError: nothing loads, or the child cannot be started.
    """
    begun = time.monotonic()
    settings = replace(settings, external=(*settings.external, ipaddress.ip_network(deeds.OUTSIDE)))
    with tempfile.TemporaryDirectory(prefix="guard-check-") as directory:
        source = open_source(backend, settings, replace_pins=False)
        try:
            return _checked(source, directory, settings, expect, begun)
        finally:
            source.close()


def _checked(source: Source, directory: str, settings: Settings, expect: str, begun: float) -> Report:
    hold = 6 * source.interval if source.fileno() < 0 else 0.0
    with _child(directory, hold) as child:
        source.label(child.pid, child.pid)
        # A look at all that runs comes with the label; what it brings is no answer to a deed.
        list(source.poll(0.2))
        rows = tuple(attempt(source, child, rule, settings) for rule in deeds.DEEDS)
    return Report(source.status, rows, expect, time.monotonic() - begun)


def as_text(report: Report) -> str:
    """The report for people, at most 80 columns."""
    status = report.status
    lines = [f"backend {status.backend}, {len(status.programs)} programs, checked in {report.seconds:.1f} s"]
    lines += [f"  not {name}: {why}"[:80] for name, why in status.refused.items()]
    for row in report.rows:
        seen = "seen" if row.seen else "not seen" if row.expected else "not offered"
        held = "refused" if row.refused and row.enforced else "let through" if row.enforced else ""
        lines.append(f"{'ok' if row.right else 'FAULT':6}{row.rule:20}{seen:13}{held:13}{row.note}".rstrip())
    if report.expect not in ("", status.backend):
        lines.append(f"FAULT expected {report.expect}, and {status.backend} is what loads here")
    return "\n".join(lines) + "\n"


def as_json(report: Report) -> str:
    """The report for programs: one object."""
    status = report.status
    value = {
        "backend": status.backend, "expect": report.expect, "right": report.right,
        "seconds": round(report.seconds, 3), "programs": status.programs, "skipped": dict(status.skipped),
        "refused": dict(status.refused), "rules": [asdict(row) for row in report.rows],
    }  # fmt: skip
    return json.dumps(value) + "\n"


class _child:  # noqa: N801 - a context manager used as a function
    """The process that does the deeds; ends with the block."""

    def __init__(self, directory: str, hold: float) -> None:
        package = os.path.dirname(os.path.dirname(deeds.__file__))
        command = [sys.executable, "-I", "-c", _START, package, directory, str(hold)]
        self._process = subprocess.Popen(  # noqa: S603 - this very program
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.gone = False
        """It ended, or was given up: it answers nothing more."""

    def __enter__(self) -> _child:
        self.pid = self._process.pid
        if self.answer(PATIENCE) != "ready":
            raise MonitorError("the child that tries the rules did not start", "unshare -n must work: run it as root")
        return self

    def ask(self, rule: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it was made with a pipe
        with suppress(BrokenPipeError):  # it is gone: its answer says so
            self._process.stdin.write(rule + "\n")
            self._process.stdin.flush()

    def answer(self, seconds: float) -> str:
        assert self._process.stdout is not None  # noqa: S101 - it was made with a pipe
        if self.gone or not select.select([self._process.stdout], [], [], seconds)[0]:
            return ""
        line = self._process.stdout.readline()
        self.gone = not line
        return line.strip()

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()


_START = (
    "import os, sys; sys.path[:0] = [os.path.dirname(sys.argv[1])]; del sys.argv[1]; "
    "from guard.monitor.deeds import main; main()"
)


class Doer(Protocol):
    """Who does a rule's deed when asked: the child."""

    pid: int
    gone: bool

    def ask(self, rule: str) -> None:
        """Let it begin."""

    def answer(self, seconds: float) -> str:
        """`RULE done` or `RULE refused`, once it has ended."""


def attempt(
    source: Source, child: Doer, rule: str, settings: Settings, clock: Callable[[], float] = time.monotonic
) -> Row:
    """Try one rule.

    Args:
        child: does the deed.
        clock: seconds, monotonic.
    """
    can = source.status.can[rule]
    expected = can.see != "no"
    act = settings.enforce.get(rule, "")
    enforced = bool(act)
    child.ask(rule)
    asked = ended = clock()
    answer, seen, rewritten, looks = "", False, False, 0
    while not child.gone and not (answer and (seen or not expected)):
        if not answer and clock() - asked > PATIENCE:
            child.gone = True
        if answer and looks >= _LOOKS and clock() - ended > _SETTLE:
            break
        looks += bool(answer)
        if not answer and (answer := child.answer(0)):
            ended = clock()
        for fact in _of_child(source.poll(0.05), child.pid):
            if isinstance(fact, deeds.FACT_OF[rule]):
                seen = True
                enforced = enforced and not getattr(fact, "private", False)
                rewritten = rewritten or getattr(fact, "verdict", None) is Verdict.REWRITTEN
    refused = rewritten or answer.endswith("refused")
    note = ""
    if not answer:
        note = "the example did not end"
    elif expected and not seen:
        note = "was not seen"
    elif enforced and act in can.act and not refused:
        note = "was not refused"
    elif enforced and act not in can.act:
        note = f"cannot be enforced by {source.status.backend}"
    return Row(rule, expected, seen, enforced, refused, not note, note)


def _of_child(facts: Iterator[AnyFact], root: int) -> Iterator[Fact]:
    for fact in facts:
        if isinstance(fact, Fact) and fact.who.root == root:
            yield fact
