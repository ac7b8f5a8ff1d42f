"""What a rule is told, and what it says: frozen values, before anything is redacted or stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from guard.confine.handlers.commands import family
from guard.kernel import basename
from guard.monitor.facts import AnyFact, CodeBy, Exec, Program
from guard.monitor.settings import MonitorSettings

Scalar = str | int | bool | float | tuple[str, ...]


def text_of(raw: bytes) -> str:
    """Return bytes that a program chose as text; what is no UTF-8 stays as lone surrogates."""
    return raw.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Image:
    """The program that a process runs: what its last exec said.

    Args:
        path: as it was asked for; `name`: the file that really runs, without directories.
        argv: as much as was seen.
        unseen: bytes of argv that were not.
        program: what the kernel's side takes it for.
        code_by: how an interpreter gets its code.
        uid: whose it was at the exec.
    """

    path: str
    name: str
    argv: tuple[str, ...]
    unseen: int = 0
    program: Program = Program.NONE
    code_by: CodeBy = CodeBy.NONE
    uid: int = 0

    @classmethod
    def of(cls, fact: Exec) -> Image:
        """Return what an exec says."""
        return cls(
            text_of(fact.path), text_of(fact.name), tuple(map(text_of, fact.argv)), fact.unseen, fact.program,
            fact.code_by, fact.who.uid,
        )  # fmt: skip

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which it may be known: as it was asked for, then as it really is."""
        asked = basename(self.path)
        return (asked,) if asked == self.name or not self.name else (asked, self.name)

    @property
    def words(self) -> tuple[str, ...]:
        """Its own arguments: of a script run by its interpreter line, those after the script."""
        if basename(self.path) != self.name and self.path in self.argv[1:]:
            return self.argv[self.argv.index(self.path, 1) + 1 :]
        return self.argv[1:]

    @property
    def interpreter(self) -> str:
        """Its name among interpreters, "" for none."""
        return next((name for name in (self.name, *self.names) if family(name)), "")


NOTHING = Image("", "", ())
"""Of a process whose exec was not seen."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may know beside the fact: all of it was gathered before, so that a rule asks nobody.

    Args:
        settings: the site's.
        image: of the process that did it.
        harness: of its tree, "" for none.
        tree_uid: the user who started the tree.
        guarded: the tree runs under `guard run`.
        launched: it, or what started it inside of the tree, is a launcher of parallel programs that root installed.
        bound: the same process has just bound this port.
        samples: first bytes of what lately came from outside into the tree.
        outside_server: a terminal multiplexer's server of this user runs outside of the tree.
        allowed_bind: why the user's policy lets this address be bound, "" where it does not.
        polls, submissions: scheduler commands of the tree, in the last window and since it began.
        commands: execs of the tree in the last window.
        calls: metadata calls of the tree in the last window.
    """

    settings: MonitorSettings
    image: Image = NOTHING
    harness: str = ""
    tree_uid: int = 0
    guarded: bool = False
    launched: bool = False
    bound: bool = False
    samples: tuple[bytes, ...] = ()
    outside_server: bool = False
    allowed_bind: str = ""
    polls: int = 0
    polls_ever: int = 0
    submissions: int = 0
    commands: int = 0
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule's function says of a fact.

    Args:
        message: one line for people, without anything that a program chose beyond names and numbers.
        severity: "" for the rule's own.
        detail: for programs; every text in it is redacted before it is stored.
        object: what folding takes for the same thing (a path, an address), "" for the process's program.
        mitre: ids of techniques, () for the rule's own.
    """

    message: str
    severity: str = ""
    detail: Mapping[str, Scalar] = field(default_factory=dict)
    object: str = ""
    mitre: tuple[str, ...] = ()


Judge = Callable[[AnyFact, Context], Outcome | None]


@dataclass(frozen=True)
class Example:
    """A fact with its context, and what must come of it.

    Args:
        says: in words, for the rule's page.
        fact, context: what the rule is told.
        severity: that must come out; "" for none (no finding).
    """

    says: str
    fact: AnyFact
    context: Context
    severity: str


@dataclass(frozen=True)
class Rule:
    """One row of the table.

    Args:
        name: as events name it, and its page under docs/rules.
        control: as in events.
        severity: unless the function says otherwise; the site may change it.
        mitre: ids of techniques.
        takes: kinds of facts.
        judge: says what is wrong, or None.
        says: one sentence: what it finds.
        examples: those that must be found and those that must not.
    """

    name: str
    control: str
    severity: str
    mitre: tuple[str, ...]
    takes: tuple[type, ...]
    judge: Judge
    says: str
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact that a rule speaks of.

    Args:
        rule, control, severity, verdict, mitre, message, detail, object: as in events.
        pid, start: of the process, 0 for none.
        fact: what was seen; None for what the monitor says of itself.
    """

    rule: str
    control: str
    severity: str
    verdict: str
    mitre: tuple[str, ...]
    message: str
    detail: Mapping[str, Scalar]
    object: str
    pid: int = 0
    start: int = 0
    fact: AnyFact | None = None
