"""A report as one HTML file: no network, no script needed to read it, printable, light and dark."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from guard.incidents.report.layout import Chart, Page, chart_text
from guard.policy.source import printable

COLOURS: Final = ("var(--one)", "var(--two)", "var(--three)")
"""Of the series; the style sheet gives them for light and dark, each 4.5:1 against the ground (WCAG 1.4.3)."""


def _plain(value: object) -> object:
    """Take out of a text what no page can hold (HTML 13.1.4), or what turns the order of its letters."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the templates' environment: everything is escaped, and a name that is missing is an error."""
    return Environment(
        loader=PackageLoader("guard.incidents.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_plain,
    )


@lru_cache(maxsize=8)
def asset(name: str) -> str:
    """Return a style sheet or script that ships with the templates."""
    return (resources.files("guard.incidents.report") / "templates" / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """Return a text's digest as a Content-Security-Policy names it (CSP3, 'sha256-…')."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def render(page: Page) -> str:
    """Return a page as HTML."""
    script = asset("sort.js")
    return (
        environment()
        .get_template("report.html")
        .render(
            page=page,
            style=Markup(asset("style.css")),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            # The charts carry styles of their own; a script runs only if it is ours.
            policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src {digest(script)};"
            " base-uri 'none'; form-action 'none'",
            draw=draw,
            chart_text=chart_text,
        )
    )


def draw(chart: Chart) -> Markup:
    """Return a chart as inline SVG without scripts."""
    import pygal
    from pygal.etree import etree
    from pygal.style import Style

    style = Style(
        background="transparent", plot_background="transparent", foreground="var(--ink)",
        foreground_strong="var(--ink)", foreground_subtle="var(--faint)", colors=COLOURS, font_family="inherit",
        label_font_size=13, legend_font_size=13, opacity="1", opacity_hover="1", transition="none",
        guide_stroke_color="var(--faint)", major_guide_stroke_color="var(--faint)",
    )  # fmt: skip
    form: Any = pygal.Bar if chart.kind == "bars" else pygal.HorizontalStackedBar
    wide = max(260, 90 + 34 * len(chart.labels)) if chart.kind != "bars" else 240
    plot = form(
        style=style, js=[], disable_xml_declaration=True, show_legend=len(chart.series) > 1, legend_at_bottom=True,
        width=900, height=wide, print_values=False, margin=8, x_label_rotation=45 if len(chart.labels) > 10 else 0,
        x_labels_major_count=10 if len(chart.labels) > 12 else None, show_minor_x_labels=len(chart.labels) <= 12,
        truncate_label=-1, order_min=0, min_scale=2, include_x_axis=True, pretty_print=False, no_prefix=False,
        value_formatter=lambda value: f"{value:,.0f}",
    )  # fmt: skip
    plot.x_labels = [printable(label) for label in chart.labels]
    for name, values in chart.series:
        plot.add(printable(name), list(values))
    tree = plot.render_tree()
    for parent in list(tree.iter()):
        for child in list(parent):
            if str(child.tag).rpartition("}")[2] in ("script", "title"):
                parent.remove(child)
    for name in ("width", "height"):
        tree.attrib.pop(name, None)
    tree.set("role", "img")
    tree.set("aria-label", printable("; ".join(chart_text(chart))))
    return Markup(etree.tostring(tree, encoding="unicode"))  # noqa: S704 - made by the library, which escapes
