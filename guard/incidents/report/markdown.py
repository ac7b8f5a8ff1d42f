"""A report as Markdown (CommonMark with tables, as GitHub renders it)."""

from __future__ import annotations

import re

from guard.incidents.report.layout import Page, Table
from guard.policy.source import printable

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$])")


def render(page: Page) -> str:
    """Return a page as Markdown; whatever a name or a path holds stays text."""
    out = [f"# {_text(page.title)}", "", _text(page.period), ""]
    for line in page.banner:
        out += [f"> **{_text(line)}**", ""]
    out += [f"- **{_text(number)}** {_text(what)}" for number, what, _ in page.tiles]
    for section in page.sections:
        out += ["", f"## {_text(section.title)}", ""]
        for sentence in section.text:
            out += [_text(sentence), ""]
        for table in section.tables:
            out += [*_table(table), ""]
    return "\n".join([*out, f"Made by guard at {page.made}.", ""])


def _table(table: Table) -> list[str]:
    if not table.rows:
        return [_text(table.empty)]
    rule = ["---" if n < table.numbers else "--:" for n in range(len(table.head))]
    rows = (table.head, tuple(rule), *table.rows)
    return ["| " + " | ".join(c if n == 1 else _text(c) for c in row) + " |" for n, row in enumerate(rows)]


def _text(value: str) -> str:
    return _SPECIAL.sub(r"\\\1", printable(" ".join(value.split())))
