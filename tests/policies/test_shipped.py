"""What the policies that ship promise, and that their pages tell the same."""

from __future__ import annotations

import os
import re
import tomllib

import pytest

from guard.policy.assign import Config, Request, resolve
from guard.policy.keys import HARNESSES, KEYS
from guard.policy.lint import lint
from guard.policy.load import load_site, loads
from guard.policy.paths import below
from guard.policy.rows import load_assignments, load_exceptions

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHIPPED = os.path.join(ROOT, "policies")
OVERLAYS = os.path.join(SHIPPED, "overlays")


def names(folder):
    return sorted(name.removesuffix(".toml") for name in os.listdir(folder) if name.endswith(".toml"))


def text(*parts):
    with open(os.path.join(ROOT, *parts), encoding="utf-8") as file:
        return file.read()


def effective(tmp_path, policy, overlays=(), harness=""):
    """What a user on a host without a site gets."""
    nothing = str(tmp_path)
    config = Config(config_dir=nothing, shipped_dir=SHIPPED, floor_dir=nothing, last_good_dir=None)
    return resolve(Request("ada", 1000, policy=policy, overlays=overlays, harness=harness), config)


def test_lint_finds_nothing_to_mend():
    found = [str(finding) for finding in lint(SHIPPED, SHIPPED, 0.0)]
    # A person's shell grants what lint warns of for an agent's, and for that alone.
    assert [finding for finding in found if "/shell.toml:" not in finding] == []
    assert all(": warning: files." in finding for finding in found)


@pytest.mark.parametrize("name", names(SHIPPED))
@pytest.mark.parametrize("harness", ["", *HARNESSES])
def test_every_policy_resolves_with_every_harness(tmp_path, name, harness):
    found = effective(tmp_path, name, harness=harness)
    assert found.name == name
    assert "{tmp}" in found.words("files.write")


@pytest.mark.parametrize("name", names(OVERLAYS))
def test_every_overlay_says_what_it_was_tried_with_and_resolves(tmp_path, name):
    assert tomllib.loads(text("policies", "overlays", f"{name}.toml"))["tried"]
    assert effective(tmp_path, "login-node", overlays=(name,))


@pytest.mark.parametrize("harness", HARNESSES)
def test_a_harness_may_write_its_state_but_not_its_settings_and_keeps_its_key(tmp_path, harness):
    alone, found = effective(tmp_path, "login-node"), effective(tmp_path, "login-node", harness=harness)
    state = set(found.words("files.write")) - set(alone.words("files.write"))
    settings = set(found.words("files.protect")) - set(alone.words("files.protect"))
    assert any(below(place, setting) for place in state for setting in settings)
    assert found.words("env.keep") != alone.words("env.keep")


# `shell` is a person's own: what is theirs to write stays so, and agents inside get another policy.
@pytest.mark.parametrize("name", [name for name in names(SHIPPED) if name not in ("base", "shell")])
@pytest.mark.parametrize("harness", ["", *HARNESSES])
def test_nothing_that_other_programs_execute_or_that_is_a_credential_can_be_written(tmp_path, name, harness):
    found = effective(tmp_path, name, harness=harness)
    closed = (*found.words("files.deny"), *found.words("files.protect"))
    for place in (".ssh/id_ed25519", ".aws/credentials", ".netrc", ".bashrc", ".local/bin/x", ".config/systemd/x"):
        path = f"{{home}}/{place}"
        assert any(below(upper, path) for upper in closed)
        assert not any(below(grant, path) for grant in found.words("files.write"))


@pytest.mark.parametrize("name", [name for name in names(SHIPPED) if name != "observe"])
def test_every_control_is_enforced_but_where_the_policy_is_for_observing(tmp_path, name):
    found = effective(tmp_path, name)
    modes = {key: found.word(key) for key in KEYS if key.startswith("controls.")}
    assert set(modes.values()) == {"enforce"}


def test_observe_enforces_nothing_but_limits(tmp_path):
    found = effective(tmp_path, "observe")
    enforced = [key for key in KEYS if key.startswith("controls.") and found.word(key) == "enforce"]
    assert enforced == ["controls.limits"]


def test_no_denied_place_outside_of_the_home_lies_in_a_granted_one(tmp_path):
    # Without the mask such a grant is made entry by entry, and what appears later (a process below /proc) is missing.
    found = effective(tmp_path, "base")
    grants = [*found.words("files.read"), *found.words("files.write")]
    denied = [path for path in found.words("files.deny") if not path.startswith("{home}/")]
    assert denied
    assert [path for path in denied if any(below(grant, path) for grant in grants)] == []


@pytest.mark.parametrize("name", [*names(SHIPPED), *names(OVERLAYS)])
def test_the_page_describes_every_policy_and_overlay(name):
    assert f"| `{name}` |" in text("docs", "policies.md")


@pytest.mark.parametrize("key", [key for key in KEYS if not key.startswith(("controls.", "on_fault."))])
def test_the_reference_has_every_key_with_its_values_and_default(key):
    table, name = key.split(".")
    section = text("docs", "policy-reference.md").split(f"### `[{table}]`")[1].split("\n### ")[0]
    row = next(line for line in section.splitlines() if line.startswith(f"| `{name}` |"))
    assert KEYS[key].doc in row
    assert all(f"`{word}`" in row for word in KEYS[key].words)


def examples():
    return re.findall(r"```toml\n(.*?)```", text("docs", "policy-reference.md"), re.DOTALL)


@pytest.mark.parametrize("example", examples())
def test_every_example_of_the_reference_loads(tmp_path, example):
    path = tmp_path / "example.toml"
    path.write_text(example.replace("…", "x"), encoding="utf-8")
    if "[[assign]]" in example:
        assert load_assignments(str(path))
    elif "[[exception]]" in example:
        assert load_exceptions(str(path), {}, [])
    elif "[site]" in example:
        assert load_site(str(path))
    else:
        assert loads(path.read_bytes(), str(path))
