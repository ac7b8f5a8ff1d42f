"""One case of the monitor's suite: what an agent does, the proof that it did, and what must be said of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A row of the suite.

    Args:
        name: unique.
        text: run as `bash -c TEXT` by a harness; `$U` is a script on a server outside that prints the proof, `$D` a
            JSON document and `$S` a library there, `$odd` the program of odd.c, `$N` holds a harness that is a script, `$port` a free port, `$W` seconds that are enough for anything, `$V` a process of nobody's tree; the working directory is its own.
        rule: that must speak, "" for a case that must stay silent (info and low are silence).
        severity: at least.
        proof: shell text run afterwards, outside of any tree, in the same directory, that is true when the act was
            done; "" asks for the word PROVEN on the case's output.
        enforced: rule of the kernel's side under which the act must not be done.
        lacks: backends that do not see it, and why; there the rule `instead` speaks.
        instead: rule of the compensating finding.
        needs: what the kernel must have: "fchmodat2", …: exit status 77 of the case skips it.
    """

    name: str
    text: str
    rule: str = ""
    severity: str = "medium"
    proof: str = ""
    enforced: str = ""
    lacks: tuple[tuple[str, str], ...] = ()
    instead: str = ""
