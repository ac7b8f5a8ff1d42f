"""How much a tree does in a time: commands, questions to the scheduler, metadata. Said once a window."""

from __future__ import annotations

from collections.abc import Callable

from guard.monitor import handing
from guard.monitor.facts import AnyFact, Exec, Walk
from guard.monitor.findings import Context, Example, Outcome, Rule
from guard.monitor.rules.table import AGENT, PLAIN, context_of, exec_of


def scheduler_polling(fact: AnyFact, context: Context) -> Outcome | None:
    """Judge a question to the scheduler, by how many there were."""
    assert isinstance(fact, Exec)  # noqa: S101 - the row says so
    if handing.scheduler(context.image.names, context.image.words) != "poll":
        return None
    limits = context.settings.limits
    jobs = max(1, context.submissions)
    detail = {"polls": context.polls, "window": limits.window, "polls_ever": context.polls_ever,
              "submissions": context.submissions}  # fmt: skip
    if limits.scheduler_polls and context.polls > limits.scheduler_polls:
        return Outcome(f"asked the scheduler {context.polls} times in {limits.window} s", "", detail, "window")
    if limits.polls_per_job and context.polls_ever > limits.polls_per_job * jobs:
        return Outcome(
            f"asked the scheduler {context.polls_ever} times for {context.submissions} jobs", "low", detail, "job"
        )
    return None


def commands(fact: AnyFact, context: Context) -> Outcome | None:
    """Judge an exec by how many there were."""
    limits = context.settings.limits
    if not limits.commands or context.commands <= limits.commands:
        return None
    detail = {"commands": context.commands, "window": limits.window}
    return Outcome(f"started {context.commands} programs in {limits.window} s", "", detail, "commands")


def metadata(fact: AnyFact, context: Context) -> Outcome | None:
    """Judge a walk over files by how many were asked for."""
    limits = context.settings.limits
    if not limits.metadata_calls or context.calls <= limits.metadata_calls:
        return None
    detail = {"calls": context.calls, "window": limits.window}
    return Outcome(f"asked for the metadata of {context.calls} files in {limits.window} s", "", detail, "metadata")


def _asked(line: str, severity: str, says: Callable[[str], str] = str, **more: object) -> Example:
    fact = exec_of(line)
    return Example(says(line), fact, context_of(fact, **more), severity)


RULES = (
    Rule(
        "scheduler-polling",
        "rates",
        "medium",
        ("T1499",),
        (Exec,),
        scheduler_polling,
        "A tree asks the scheduler's controller again and again, more often than the site allows.",
        (
            _asked("squeue --me", "medium", polls=21, polls_ever=21),
            _asked("scontrol show job 5", "medium", polls=100, polls_ever=100),
            _asked("sacct -j 5", "low", polls=3, polls_ever=201, submissions=1),
            _asked("squeue --me", "", polls=20, polls_ever=20),
            _asked("sacct -j 5", "", polls=3, polls_ever=201, submissions=2),
            _asked("squeue --version", "", polls=100, polls_ever=100),
            _asked("scontrol update job 5", "", polls=100),
            _asked("ls -l", "", polls=100, polls_ever=1000),
        ),
    ),
    Rule(
        "commands",
        "rates",
        "low",
        ("T1499",),
        (Exec,),
        commands,
        "A tree starts more programs in a time than the site allows.",
        (_asked("true", "low", commands=30_001), _asked("true", "", commands=30_000)),
    ),
    Rule(
        "metadata-walk",
        "rates",
        "medium",
        ("T1083", "T1499"),
        (Walk,),
        metadata,
        "A tree asks for the metadata of more files than the site allows: find or rg over a shared file system.",
        (
            Example("find over /scratch", Walk(5, AGENT, 9_000), Context(PLAIN, calls=3_001_000), "medium"),
            Example("a search in a project", Walk(5, AGENT, 1_000), Context(PLAIN, calls=1_000), ""),
        ),
    ),
)
