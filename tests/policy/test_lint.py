"""lint finds what is wrong or dangerous in a file or a checkout, off the node."""

import calendar
import os

import pytest

from guard.policy.assign import shipped_dir
from guard.policy.lint import lint

NOW = float(calendar.timegm((2026, 6, 15, 12, 0, 0)))


@pytest.fixture
def checkout(tmp_path):
    """A checkout of a site's configuration; `run` lints it and gives (path below it, line, level, message)."""

    class Checkout:
        root = tmp_path / "site"

        def write(self, name, text):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"schema = 1\n{text}")
            return path

        def run(self, target=""):
            found = lint(str(self.root / target), shipped_dir(), NOW)
            return [(os.path.relpath(each.file, self.root), each.line, each.level, each.message) for each in found]

    return Checkout()


def test_a_clean_checkout_gives_nothing(checkout):
    checkout.write("site.toml", '[variables]\nscratch = "/scratch"\n[files]\nwrite = ["{project}", "{scratch}"]')
    checkout.write("assign.toml", '[[assign]]\ngroup = "lab"\npolicy = "ours"\noverlays = ["gpu"]')
    checkout.write("policies/ours.toml", 'extends = "login-node"\nreason = "lab"\n[files]\nwrite = ["{scratch}"]')
    checkout.write(
        "exceptions.d/a.toml",
        '[[exception]]\nuser = "a"\ncontrol = "files"\nwiden = { "files.write" = ["/data"] }\n'
        'reason = "r"\nticket = "T"\nuntil = 2026-06-15',
    )
    (checkout.root / "README.md").write_text("notes")
    assert checkout.run() == []


def test_every_file_that_does_not_load_is_told_once(checkout):
    checkout.write("site.toml", "[sit]")
    checkout.write("assign.toml", "[[assign]]\nx = 1")
    checkout.write("policies/a.toml", "[files]\nread = ['x']")
    checkout.write("policies/overlays/b.toml", "")
    checkout.write("exceptions.d/c.toml", "[[exception]]")
    found = checkout.run()
    assert {file for file, _, level, _ in found if level == "error"} == {
        "site.toml",
        "assign.toml",
        "policies/a.toml",
        "policies/overlays/b.toml",
        "exceptions.d/c.toml",
    }
    assert len(found) == 5


def test_a_policy_of_the_checkout_may_use_its_variables(checkout):
    checkout.write("site.toml", '[variables]\narchive = "/archive"')
    checkout.write("policies/a.toml", 'reason = "r"\n[files]\nread = ["{archive}"]')
    assert checkout.run() == []
    assert checkout.run("policies/a.toml") == []


def test_widening_without_a_reason_is_told(checkout):
    checkout.write(
        "policies/a.toml",
        'extends = "login-node"\n[files]\nread = ["/srv/a", "/srv/b", "/usr/lib"]\ndeny = ["/x"]\n'
        '[kernel]\nkeyctl = "allow"\n[network]\nbind = "deny"\n',
    )
    assert [(line, message) for _, line, _, message in checkout.run()] == [
        (4, "files.read: /srv/a and 1 more widens without a reason"),
        (7, "kernel.keyctl = allow widens without a reason"),
    ]


def test_a_mode_that_enforces_less_wants_a_reason(checkout):
    checkout.write("assign.toml", '[[assign]]\ngroup = "a"\nmode = "off"\n[[assign]]\nmode = "observe"\nreason = "x"')
    assert checkout.run() == [("assign.toml", 2, "warning", "mode = off widens without a reason")]


def test_an_exception_that_has_ended_is_told(checkout):
    row = (
        '[[exception]]\nuser = "a"\ncontrol = "files"\nwiden = {{ "files.write" = ["/data"] }}\n'
        'reason = "r"\nuntil = {}\n'
    )
    checkout.write("exceptions.d/a.toml", row.format("2026-06-14") + row.format("2026-06-15"))
    assert checkout.run() == [("exceptions.d/a.toml", 2, "warning", "has ended and is ignored; remove it")]


UNREACHABLE = (
    ('[[assign]]\n[[assign]]\nuser = "a"', True),
    ('[[assign]]\nuser = ["a", "b"]\n[[assign]]\nuser = "a"\ngroup = "g"', True),
    ('[[assign]]\nuser = "a"\n[[assign]]\nuser = ["a", "b"]', False),
    ('[[assign]]\nuser = "a"\nharness = "claude"\n[[assign]]\nuser = "a"', False),
    ('[[assign]]\ngroup = "a"\n[[assign]]\nuser = "a"', False),
    ('[[assign]]\nhost = "login*"\n[[assign]]\nhost = "login*"\nuser = "x"', True),
)


@pytest.mark.parametrize(("text", "told"), UNREACHABLE)
def test_a_row_that_no_session_reaches_is_told(checkout, text, told):
    checkout.write("assign.toml", text)
    assert any("never reached: line 2" in message for *_, message in checkout.run()) is told


def test_names_that_lead_nowhere_are_errors(checkout):
    checkout.write("site.toml", '[site]\ndefault_policy = "nothing"\nharnesses = ["aider"]')
    checkout.write("assign.toml", '[[assign]]\npolicy = "none"\n[[assign]]\noverlays = ["nil"]')
    checkout.write("policies/a.toml", 'extends = "noo"')
    messages = "\n".join(message for *_, message in checkout.run())
    for name in ("policy 'nothing'", "policy 'none'", "overlay 'nil'", "policy 'noo'", "harness aider"):
        assert name in messages


DANGEROUS = (
    ('[files]\nwrite = ["/"]', "dotfiles"),
    ('[files]\nwrite = ["{home}"]', "dotfiles"),
    ('[files]\nwrite = [{ path = "{home}", reason = "so" }]', "dotfiles"),
    ('[files]\nread = ["{home}/.ssh/config"]', "credentials"),
    ('[files]\nread = ["/"]', "credentials"),
    ('[files]\nread = ["{home}"]', "credentials"),
    ('[files]\nwrite = ["/etc"]', "system's own"),
    ('[files]\nwrite = ["/usr/local"]', "system's own"),
    ('[files]\nwrite = ["{home}/.config"]', "guard's own state"),
    ('[files]\nwrite = ["/var/lib"]', "guard's own state"),
    ('[files]\nwrite = ["/etc/guard/policies"]', "own"),
    ('[files]\nwrite = ["/tmp"]', "other programs"),
    ('[files]\nwrite = ["{home}/.local"]', "found by PATH"),
    ('[files]\ndevices = ["/dev/sda"]', "whole disks"),
    ('[files]\ndevices = ["/dev/*"]', "memory"),
    ('[unix]\nallow = ["/run/docker.sock"]', "Docker"),
    ('[unix]\nallow = ["/run"]', "Docker"),
    ('[unix]\nallow = ["/run/munge"]', "munge"),
    ('[unix]\nallow = ["/run/user/{uid}"]', "outside of the tree"),
)


@pytest.mark.parametrize(("text", "why"), DANGEROUS)
def test_a_dangerous_grant_is_told_even_with_a_reason_for_the_file(checkout, text, why):
    checkout.write("policies/a.toml", f'reason = "we want it"\n{text}')
    found = checkout.run()
    assert len(found) == 1, found
    assert found[0][2] == "warning"
    assert why in found[0][3]


HARMLESS = (
    '[files]\nread = ["/usr", "/etc"]\nwrite = ["{project}", "{tmp}", "/scratch", "{home}/guard-work"]',
    '[files]\nread = ["{home}/src"]\ndevices = ["/dev/null", "/dev/nvidia*"]',
    '[unix]\nallow = ["/run/nscd", { path = "/run/munge", reason = "jobs are wanted here" }]',
    '[files]\nwrite = [{ path = "/tmp", reason = "a program that cannot be told otherwise" }]',
)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_usual_or_answered_for_is_not_told(checkout, text):
    checkout.write("policies/a.toml", f'reason = "r"\n{text}')
    assert checkout.run() == []


def test_a_readable_home_with_its_secrets_denied_is_fine(checkout):
    checkout.write("policies/a.toml", 'extends = "base"\nreason = "r"\n[files]\nread = ["{home}"]')
    assert checkout.run() == []


def test_a_directory_of_policies_and_a_single_file_are_linted_too(checkout):
    checkout.write("p/a.toml", "[files]\nread = ['x']")
    checkout.write("p/overlays/b.toml", "")
    assert [file for file, *_ in checkout.run("p")] == ["p/a.toml", "p/overlays/b.toml"]
    assert [file for file, *_ in checkout.run("p/a.toml")] == ["p/a.toml"]
    assert [file for file, *_ in checkout.run("p/overlays/b.toml")] == ["p/overlays/b.toml"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.toml", "[[assign]]\nmode = 'on'"),
        ("x.toml", "[[exception]]"),
        ("x.toml", "[site]\naudit = 1"),
        (".guard.toml", "[files]\nread = ['{home}']"),
        ("guard/policy.toml", "[files]\nread = ['x']"),
    ],
)
def test_a_single_file_is_taken_for_what_it_is(checkout, name, text):
    checkout.write(name, text)
    found = checkout.run(name)
    assert [level for _, _, level, _ in found] == ["error"]


def test_a_misspelt_file_is_told(checkout):
    checkout.write("site.toml", "")
    checkout.write("asign.toml", "")
    checkout.write("feeds.toml", "")
    assert checkout.run() == [("asign.toml", 0, "warning", "is read by nobody; did you mean assign.toml?")]


def test_what_is_not_there_is_an_error(checkout):
    assert checkout.run("nothing")[0][2:] == ("error", "cannot be read: No such file or directory")


def test_a_fifo_among_the_policies_does_not_hold_lint_up(checkout):
    checkout.write("site.toml", "")
    (checkout.root / "policies").mkdir()
    os.mkfifo(checkout.root / "policies" / "a.toml")
    assert "is a FIFO" in checkout.run()[0][3]


def test_the_shipped_policies_load_without_an_error():
    assert [str(each) for each in lint(shipped_dir(), shipped_dir(), NOW) if each.level == "error"] == []
