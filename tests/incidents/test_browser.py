"""The report and the page in a real browser: pictures are made, text is there, and axe-core finds nothing serious."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from guard.incidents import choose
from guard.incidents.report import figures, html, layout
from guard.incidents.report.html import asset, environment
from guard.incidents.workflow import CLOSED
from tests.incidents.made import Site, exposure
from tests.incidents.test_report import _month

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
AXE = Path(__file__).resolve().parents[2] / ".venv/npm/node_modules/axe-core/axe.min.js"

pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="needs chromium (apt-get install chromium)"),
    pytest.mark.timeout(240),
]

_RUN = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => {
  document.documentElement.setAttribute("data-axe", JSON.stringify(found.violations.map(
    (v) => [v.id, v.impact, v.nodes.map((n) => n.html.slice(0, 200))])));
});
"""


def _browse(page: Path, folder: Path, *options: str) -> str:
    """Open a file in headless Chromium with a profile of its own; returns the page as it is then."""
    command = [
        CHROMIUM, "--headless=new", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-dev-shm-usage", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=8000",
        *(["--no-sandbox"] if os.geteuid() == 0 else []), *options, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _pages(folder: Path) -> dict[str, Path]:
    """A month's report, a case, and the two views of the page, each a file that needs nothing else."""
    month = _month()
    made = month.Month(nodes=30, users=80, agents=30, days=20, seed=2)
    site = Site(folder)
    site.fold(*made.events())
    site.now = (month.START + 20 * 86400) * 1_000_000
    site.fold(exposure("k", site.now - 9_000_000_000, audience="pushed", at_tree={"user": "user0001", "uid": 10001}))
    site.desk.decide([site.one("k")], "assign", "carol", ticket="SEC-12")
    found = figures.gather(site.ledger, site.settings, {}, month.START * 1_000_000, site.now)
    texts = {
        "report": html.render(layout.page(found, site.now)),
        "case": html.render(layout.case(site.one("k"), site.now)),
    }
    from guard.incidents.audience import WORDS
    from guard.incidents.service import shown
    from guard.incidents.web import Visitor, _when

    visitor = Visitor("carol", 5, infosec=True)
    rows = choose.every(site.ledger, site.settings, choose.Filter())[:30]
    style = f"<style>{asset('style.css')}</style>"
    for name, template, values in (
        ("list", "incidents.html", {"rows": rows, "title": "Everybody's exposed keys", "closed": CLOSED}),
        ("one", "incident.html", {
            "incident": shown(site.one("k"), 10001, "user0001"), "timeline": layout.case(site.one("k"), site.now), "own": True,
            "advice": "revoke it", "after": "look at the log", "form": "0" * 64}),
    ):  # fmt: skip
        text = environment().get_template(name=template).render(
            visitor=visitor, contact="Ask the helpdesk.", words=WORDS, when=_when, **values
        )
        texts[name] = re.sub(r'<link rel="stylesheet"[^>]*>', style.replace("\\", "\\\\"), text)
    out = {}
    for name, text in texts.items():
        out[name] = folder / f"{name}.html"
        out[name].write_text(text, encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return _pages(tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("name", ["report", "case", "list", "one"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(pages: dict[str, Path], tmp_path: Path, name: str, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip("needs axe-core (npm, by make setup)")
    text = pages[name].read_text(encoding="utf-8")
    # The checker is a script: in the copy that it reads, the policy that forbids scripts is left out.
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    if scheme == "dark":
        text = text.replace("@media (prefers-color-scheme:dark)", "@media all")
    checked = tmp_path / "checked.html"
    checked.write_text(text.replace("</body>", f"<script>{AXE.read_text(encoding='utf-8')}</script><script>{_RUN}</script></body>"))
    dom = _browse(checked, tmp_path, "--dump-dom")
    result = re.search(r'data-axe="([^"]*)"', dom)
    assert result is not None, "axe did not end"
    import html as entities

    violations = json.loads(entities.unescape(result[1]))
    assert [v for v in violations if v[1] in ("serious", "critical")] == []


@pytest.mark.parametrize("name", ["report", "one"])
def test_a_picture_is_made_and_the_text_is_there(pages: dict[str, Path], tmp_path: Path, name: str) -> None:
    picture = tmp_path / "page.png"
    _browse(pages[name], tmp_path, f"--screenshot={picture}", "--window-size=1100,2400", "--hide-scrollbars")
    assert picture.stat().st_size > 20_000
    dom = _browse(pages[name], tmp_path, "--dump-dom")
    for words in {"report": ("Exposed keys", "How far to trust this", "downloads run as code"), "one": ("I rotated it", "Timeline")}[name]:
        assert words in dom
    if os.environ.get("GUARD_KEEP_PICTURES"):
        shutil.copy(picture, Path(os.environ["GUARD_KEEP_PICTURES"]) / f"{name}.png")


def test_the_tables_sort_with_the_script_and_read_without(pages: dict[str, Path], tmp_path: Path) -> None:
    dom = _browse(pages["report"], tmp_path, "--dump-dom")
    assert "<button" in dom  # its own script ran under its own policy
    assert "<button" not in pages["report"].read_text(encoding="utf-8")


def test_an_injected_script_does_not_run(pages: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "injected.html"
    text = pages["report"].read_text(encoding="utf-8")
    page.write_text(text.replace("</main>", "<script>document.title='owned'</script></main>"), encoding="utf-8")
    assert "<title>owned" not in _browse(page, tmp_path, "--dump-dom")
