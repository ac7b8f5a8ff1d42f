"""Facts to findings: pure functions in a table, each row with what it must find and what it must leave alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from guard.monitor.facts import AnyFact, Fact, Mode
from guard.monitor.findings import Context, Finding, Outcome, Rule
from guard.monitor.rules import acts, code, modes, network, rates
from guard.monitor.rules.service import SAYINGS

__all__ = ["NAMES", "TABLE", "judge"]

TABLE: tuple[Rule, ...] = (*modes.RULES, *network.RULES, *code.RULES, *acts.RULES, *rates.RULES)
"""Every rule over facts of the kernel's."""

NAMES: tuple[str, ...] = (*(rule.name for rule in TABLE), *SAYINGS)
"""Every rule's name, with those by which the monitor speaks of trees, exposures and itself."""

_BY_KIND: Mapping[type, tuple[Rule, ...]] = {
    kind: tuple(rule for rule in TABLE if kind in rule.takes)
    for kind in {kind for rule in TABLE for kind in rule.takes}
}


def judge(fact: AnyFact, context: Context) -> Iterator[Finding]:
    """Give what the rules say of a fact.

    Args:
        fact: what was seen.
        context: what else a rule may know.
    """
    for rule in _BY_KIND.get(type(fact), ()):
        outcome = rule.judge(fact, context)
        if outcome is None:
            continue
        severity = context.settings.severities.get(rule.name, "") or outcome.severity or rule.severity
        if severity != "off":
            yield _finding(rule, severity, outcome, fact)


def _finding(rule: Rule, severity: str, outcome: Outcome, fact: AnyFact) -> Finding:
    verdict = getattr(fact, "verdict", None)
    who = fact.who if isinstance(fact, Fact) else None
    if isinstance(fact, Mode) and not outcome.object:
        raise AssertionError("a mode's finding names its path")
    return Finding(
        rule.name,
        rule.control,
        severity,
        verdict.value if verdict is not None else "observed",
        outcome.mitre or rule.mitre,
        outcome.message,
        outcome.detail,
        outcome.object,
        who.pid if who else 0,
        who.start if who else 0,
        fact,
    )
