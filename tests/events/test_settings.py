"""Root's files for events: what they say, and that what is wrong in them is shown with its place."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from guard.errors import PolicyError
from guard.events.gate import Batch, Gate
from guard.events.names import Names
from guard.events.privacy import EXEMPT, Keep, Minimiser, Privacy
from guard.events.settings import Settings, load
from guard.events.wire import Severity
from tests.events.kinds import event as kind


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.mkdir(mode=0o755)
    return path


def read(config: Path, text: str, name: str = "events.toml") -> Settings:
    (config / name).write_text(text)
    return load(str(config))


def test_without_files_everything_has_its_default(config: Path) -> None:
    settings = load(str(config))
    assert settings.limits.max_bytes == 2 << 30
    assert settings.readers == ()
    assert settings.suppressions == ()


def test_all_that_the_documentation_shows_is_read(config: Path) -> None:
    text = Path("docs/events.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```toml\n")[1:]]
    suppressions, events = sorted(blocks, key=len)
    settings = read(config, suppressions, "suppressions.toml")
    assert settings.suppressions[0].rule == "world-writable/*"
    with pytest.raises(PolicyError, match="no group 'works-council'"):
        read(config, events)
    settings = read(config, events.replace("works-council", "root"))
    assert settings.readers == ("infosec",)
    assert settings.privacy.exempt_groups == {"root"}
    assert settings.heartbeat_s == 300
    assert settings.privacy.measure("session", Severity.LOW).argv == "none"
    assert settings.privacy.measure("session", Severity.HIGH).argv == "full"


WRONG = {
    "schema = 2\n": "1:10: schema = 1",
    "[spool]\n": "schema = 1",
    "schema = 1\n[spol]\n": "did you mean spool",
    "schema = 1\n[spool]\npath = 'here'\n": "3:8: path is absolute",
    "schema = 1\n[spool]\nmax_mb = true\n": "3:10: max_mb is a whole number",
    "schema = 1\n[access]\nreaders = 'all'\n": "3:11: readers is a list",
    "schema = 1\n[intake]\nadopt = ['/home']\n": "3:10: a place to adopt from",
    "schema = 1\n[privacy]\nargv = 'some'\n": "3:8: one of none, program, full",
    "schema = 1\n[[privacy.exempt]]\nuser = 'root'\n": "reason",
    "schema = 1\n[[privacy.exempt]]\nuser = 'nobody-of-that-name'\nreason = 'x'\n": "3:8: no user",
    "schema = 1\n[[privacy.exempt]]\nreason = 'x'\n": "names a user or a group",
    "schema = 1\n[alerts]\nhourly = 0\n": "3:10: hourly",
    "schema = 1\nschema = 2\n": "events.toml:2",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_shown_with_its_place(config: Path, text: str) -> None:
    with pytest.raises(PolicyError) as error:
        read(config, text)
    assert WRONG[text] in str(error.value)
    assert "events.toml:" in str(error.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('rule = "x"\nuntil = 2027-01-01\n', "has a reason"),
        ('rule = "x"\nreason = "r"\n', "has a until"),
        ('rule = "*"\nreason = "r"\nuntil = 2027-01-01\n', "suppress everything"),
        ('rule = "x"\nreason = "r"\nuntil = "soon"\n', "until is a date"),
        ('rule = "x"\nreason = "r"\nuntil = 2027-01-01\nwho = "x"\n', "unknown key"),
    ],
)
def test_a_suppression_says_what_why_and_until_when(config: Path, row: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        read(config, f"schema = 1\n[[suppression]]\n{row}", "suppressions.toml")


def test_a_suppression_ends_with_its_day(config: Path) -> None:
    text = 'schema = 1\n[[suppression]]\nrule = "setuid/*"\nreason = "r"\nuntil = 2026-11-30\n'
    settings = read(config, text, "suppressions.toml")
    end = time.mktime((2026, 12, 1, 0, 0, 0, 0, 0, -1))
    for now, quiet in ((end - 60, "suppressed"), (end + 60, "")):
        gate = Gate(settings, b"k" * 32, lambda _kind, _key: None, {}, Names(), lambda now=now: now)
        batch = Batch()
        gate.judge([kind("setuid").plain()], batch)
        assert batch.entries[0].quiet == quiet
        assert any(kind == "counter" for kind, _, _ in batch.kept) == bool(quiet)


# What is left out -------------------------------------------------------------------------------------


def whole() -> dict[str, object]:
    made = kind("world-writable").plain()
    made["detail"] = {"object": "/home/ann/p/x y", "explain": "see /home/ann/secret/plan.txt: it is open", "list": ["/srv/a"], "project": "/home/ann/p"}
    made["message"] = "chmod of /home/ann/p/x"
    return made


def test_paths_are_hashed_the_same_here_and_nowhere_else() -> None:
    here, there = Minimiser(b"a" * 32), Minimiser(b"b" * 32)
    first, second, other = whole(), whole(), whole()
    here.minimise(first, Keep("full", "hashed", "hashed"))
    here.minimise(second, Keep("full", "hashed", "hashed"))
    there.minimise(other, Keep("full", "hashed", "hashed"))
    assert first == second
    assert first["detail"] != other["detail"]
    text = str(first)
    assert "ann/" not in text
    assert "secret" not in text
    assert first["detail"]["list"][0].startswith("[PATH:")  # type: ignore[index]
    here.minimise(first, Keep("full", "hashed", "hashed"))
    assert first == second, "hashed once is hashed for good"


def test_below_the_project_paths_stay_and_others_are_hashed() -> None:
    made = whole()
    Minimiser(b"a" * 32).minimise(made, Keep("full", "below-project", "below-project"))
    detail = made["detail"]
    assert detail["object"] == "{project}/x y"  # type: ignore[index]
    assert "[PATH:" in detail["explain"]  # type: ignore[index]
    assert made["process"]["cwd"] == "{project}"  # type: ignore[index]
    assert made["message"] == "chmod of {project}/x"


@pytest.mark.parametrize(("argv", "kept", "exe"), [("full", ["chmod", "777", "a b"], "/usr/bin/chmod"), ("program", ["chmod"], "chmod"), ("none", [], "")])
def test_arguments_are_kept_as_the_site_says(argv: str, kept: list[str], exe: str) -> None:
    made = whole()
    Minimiser(b"a" * 32).minimise(made, Keep(argv, "full", "none"))
    process = made["process"]
    assert (process["argv"], process["exe"], process["cwd"], process["argc"]) == (kept, exe, "", 3)  # type: ignore[index]


def test_by_default_the_log_has_the_programs_name_and_alerts_have_all() -> None:
    privacy = Privacy()
    assert privacy.measure("files", Severity.LOW) == Keep("program", "full", "none")
    assert privacy.measure("files", Severity.MEDIUM) == Keep("full", "full", "full")
    assert Keep("none", "hashed", "none") == EXEMPT
