"""Why a session may or may not do something, asked of the policy: no act is tried.

`judge` follows what the launcher sets up and what the supervisor decides, layer by layer, and says of each what
it cannot see on this host. It knows no processes: what a download wrote, or which ports the session has opened
by now, it says as a condition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from guard.confine.explain import files, network
from guard.confine.explain.answer import ALLOWED, DENIED, OBSERVED, REWRITTEN, Answer, UnfitError
from guard.confine.explain.session import ORDINARY, Entry, Here, Session
from guard.confine.handlers.addresses import Address

__all__ = [
    "ACTS", "ALLOWED", "DENIED", "OBSERVED", "REWRITTEN", "Act", "Answer", "Answers", "Entry", "Here", "Session",
    "UnfitError", "judge",
]  # fmt: skip

Answers = Callable[[Session], list[Answer]]


@dataclass(frozen=True)
class Act:
    """One that can be asked about.

    Args:
        words: what is given after its name.
        answers: arguments → what answers for a session; one answer for each address that a name has.
    """

    words: tuple[str, ...]
    answers: Callable[..., Answers]


def _path(judge: Callable[[Session, str], Answer]) -> Callable[[str], Answers]:
    return lambda path: lambda session: [judge(session, path)]


def _address(judge: Callable[[Session, Address], Answer]) -> Callable[[str], Answers]:
    def answers(text: str) -> Answers:
        found = network.addresses(text)
        return lambda session: [judge(session, address) for address in found]

    return answers


ACTS = {
    "write": Act(("PATH",), _path(files.write)),
    "read": Act(("PATH",), _path(files.read)),
    "exec": Act(("PATH",), _path(files.execute)),
    "chmod": Act(("MODE", "PATH"), lambda mode, path: lambda session: [files.chmod(session, mode, path)]),
    "bind": Act(("ADDR:PORT",), _address(network.bind)),
    "connect": Act(("ADDR:PORT",), _address(network.connect)),
    "unix": Act(("PATH",), _path(network.unix)),
}
"""Name → act."""


def judge(session: Session, answers: Answers) -> list[Answer]:
    """Answer, and say `observed` where only an observing control lets something pass.

    Args:
        session: what is asked.
        answers: as an act of `ACTS` gives it.
    """
    found = answers(session)
    if all(mode != "observe" for mode in session.modes.values()) and session.effective.mode == "enforce":
        return found
    strict = answers(session.enforced())
    return [_observed(session, real, other) for real, other in zip(found, strict, strict=True)]


def _observed(session: Session, real: Answer, strict: Answer) -> Answer:
    if real.verdict != ALLOWED or strict.verdict not in (DENIED, REWRITTEN) or strict.layer == ORDINARY:
        return real
    if session.modes.get(strict.control) == "off":
        return real
    why = f"{strict.why}; the policy only observes that"
    return replace(strict, verdict=OBSERVED, why=why, layer="", unseen="", widen={})
