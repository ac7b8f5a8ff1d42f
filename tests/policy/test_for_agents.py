"""The text for an AGENTS.md: short, true to the policy, and no guide to getting round it."""

import dataclasses
import re

import pytest

from guard.policy.assign import Config, Request, resolve
from guard.policy.for_agents import text
from guard.policy.library import Library

NAMES = [name for name, _ in Library((Config().shipped_dir,)).names("policy")]
OVERLAYS = [name for name, _ in Library((Config().shipped_dir,)).names("overlay")]
NOWHERE = Config("/nonexistent", floor_dir="/nonexistent", last_good_dir=None)


def _effective(policy, *overlays):
    return resolve(Request("ada", 1000, policy=policy, overlays=overlays), NOWHERE)


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("overlay", ["", *OVERLAYS])
def test_it_is_short_and_fits_the_page(policy, overlay):
    lines = text(_effective(policy, *([overlay] if overlay else [])))
    assert len(lines) < 40
    assert all(len(line) < 80 for line in lines)
    assert lines[0].startswith("## ")


@pytest.mark.parametrize("policy", NAMES)
def test_it_shows_no_way_round(policy):
    told = "\n".join(text(_effective(policy))).lower()
    for word in ("--audit", "bypass", "disable", "turn off", "work around", "workaround", "--no-project-policy",
                 "retry", "unset", "another policy", "guard off"):  # fmt: skip
        assert word not in told
    assert "{" not in told, "a variable that nobody outside of guard knows"


def test_it_says_where_one_may_write_and_where_temporary_files_go():
    told = " ".join(" ".join(text(_effective("login-node"))).split())
    assert "Write only in the project, `$TMPDIR`, `~/guard-work`" in told
    assert "temporary files into `$TMPDIR`" in told
    assert "`~/.ssh`" in told
    assert "`.git/hooks`, `.git/config`" in told


def test_it_says_what_to_do_when_something_is_refused():
    told = "\n".join(text(_effective("login-node")))
    after = told[told.index("When something is refused") :]
    assert re.findall(r"^\d\.", after, re.MULTILINE) == ["1.", "2.", "3."]
    assert "guard explain" in after
    assert "tell the person" in after


@pytest.mark.parametrize(
    ("policy", "says", "does_not"),
    [
        ("login-node", "443", "No server"),
        ("login-node", "set without that bit", "are refused. Share"),
        ("read-only", "No server", "bound to loopback"),
        ("read-only", "Do not hand work to Slurm", "is recorded"),
        ("base", "No connections", "Connect to ports"),
        ("base", "777 and 666 are refused", "set without that bit"),
        ("observe", "watched", "Write only"),
    ],
)
def test_it_says_what_this_policy_holds(policy, says, does_not):
    told = " ".join(" ".join(text(_effective(policy))).split())
    assert says in told
    assert does_not not in told


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_a_mode_that_holds_nothing_promises_nothing(mode):
    lines = text(dataclasses.replace(_effective("login-node"), mode=mode))
    assert len(lines) < 5
    assert "Write only" not in " ".join(lines)


def test_a_control_that_is_off_is_not_told_as_a_limit():
    told = " ".join(text(_effective("login-node", "containers")))
    assert "Write only" not in told
    assert "Connect to ports" in told


def test_the_command_line_gives_the_same(account, project):
    done = account.cli("policy", "show", "--for-agents", "login-node", cwd=project)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == text(_effective("login-node"))
