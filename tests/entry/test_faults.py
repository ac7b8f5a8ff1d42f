"""Nobody is locked out: whatever is broken, what the site has chosen happens, within its deadline."""

from __future__ import annotations

import subprocess
import time
from contextlib import nullcontext

import pytest

from tests.conftest import Account
from tests.entry import faults
from tests.entry.faults import CONFINED, PLAIN, REFUSED, WAYS, Fault, Place

DEADLINE = 2.0
SLACK = 20.0
"""What a loud machine may add, in seconds: the deadline is guard's own waiting, not the machine's speed. What hangs here
does so for good, and `Place.run` gives up after a minute."""


@pytest.fixture
def place(account: Account) -> Place:
    return Place(account)


BREAKING: list[Fault] = [
    faults.not_installed, faults.no_interpreter, faults.unreadable_policy, faults.unreadable_settings, faults.state_of_another,
    faults.hung_installation, faults.hung_home, faults.hung_state, faults.silent_names, faults.process_limit,
    faults.process_limit_of_bash,
]  # fmt: skip
BEARABLE: list[Fault] = [faults.full_disk, faults.over_quota, faults.stopped_service]
"""What breaks a start, and what a start goes on with."""
PROJECT = faults.hung_project
"""An agent starts in a project; a login looks at none, and sshd starts scp in the home."""


def rows(faulty: list[Fault], project: list[str]) -> list[object]:
    found = [(fault, way) for fault in faulty for way in WAYS] + [(PROJECT, way) for way in project]
    return [pytest.param(fault, way, id=f"{way}-{fault.__name__}") for fault, way in found]


@pytest.mark.parametrize("way", WAYS)
def test_where_nothing_is_broken_every_way_in_is_confined(way: str, place: Place) -> None:
    assert WAYS[way](place)[:2] == (CONFINED, "" if "scp" not in way else "in\nNoNewPrivs: 1\n")


@pytest.mark.parametrize("choice", ["plain", "refuse"])
@pytest.mark.parametrize(("fault", "way"), rows(BREAKING, ["shim"]))
def test_broken_what_the_site_chose_happens(fault: Fault, choice: str, way: str, place: Place) -> None:
    place.settings(f'{"on_fault_agent" if way == "shim" else "on_fault"} = "{choice}"\n')
    with fault(place):
        outcome, said, took = WAYS[way](place)
    assert outcome == (PLAIN if choice == "plain" else REFUSED), said
    assert "guard: " in said, "and who comes in is told"
    assert took < DEADLINE + SLACK, said


@pytest.mark.parametrize(("fault", "way"), rows(BEARABLE, ["login"]))
def test_what_can_be_borne_is_and_the_way_in_is_confined(fault: Fault, way: str, place: Place) -> None:
    place.settings('on_fault = "refuse"\n')
    WAYS[way](place)  # a plan is at hand
    with fault(place):
        outcome, said, took = WAYS[way](place)
    assert outcome == CONFINED, said
    assert took < DEADLINE + SLACK, said


def test_settings_of_which_no_line_is_sound_give_a_login_and_refuse_an_agent(place: Place) -> None:
    place.settings("on_fault = 7\non_fault_agent = plain\n\xff")
    assert WAYS["login"](place)[0] == PLAIN
    assert WAYS["shim"](place)[0] == REFUSED


def test_a_busy_node_is_not_a_hanging_one() -> None:
    """What computes gets more time than what waits, and what it started is not left behind."""
    from guard.entry.deadline import Late, attempt

    def compute() -> None:
        end = time.process_time() + 0.4
        while time.process_time() < end:
            pass

    attempt(compute, 0.2, 100)
    attempt(lambda: subprocess.run(["/usr/bin/python3", "-c", "import time\nwhile time.process_time() < 0.4: pass"], check=True), 0.2, 100)
    began = time.monotonic()
    with pytest.raises(Late, match=r"no answer within 0\.2 s"):
        attempt(lambda: subprocess.run(["sleep", "77"], check=True), 0.2)
    assert time.monotonic() - began < SLACK
    left = subprocess.run(["pgrep", "-fx", "sleep 77"], capture_output=True, check=False)
    assert left.stdout == b""


@pytest.mark.parametrize("fault", [None, faults.not_installed])
def test_a_path_of_the_accounts_lends_the_login_shell_no_program(fault: Fault | None, place: Place) -> None:
    """guard-shell calls a few programs before the account is fenced; the account's own PATH reaches the shell."""
    mine = place.account.directory("mine")
    for name in ("timeout", "id", "sed", "grep", "logger", "date", "nproc", "tail", "tr"):
        place.account.write(mine / name, f"#!/bin/sh\n: > {mine}/escaped\nexec /usr/bin/{name} \"$@\"\n", 0o755)
    place.env |= {"PATH": f"{mine}:/usr/bin:/bin", "SHELL": "/bin/bash"}
    place.settings('on_fault = "plain"\ngroups = []\n')
    with fault(place) if fault else nullcontext():
        done = place.shell("echo $PATH")
    assert done.stdout == f"{mine}:/usr/bin:/bin\n", done.stderr
    assert not (mine / "escaped").exists()


def test_a_function_in_a_variable_is_no_program_of_the_login_shells(place: Place) -> None:
    """Where /bin/sh is bash, it takes functions from the environment before the account is fenced."""
    (place.programs / "sh").symlink_to("/bin/bash")
    place.login.write_text(place.login.read_text().replace("#!/bin/sh", f"#!{place.programs}/sh", 1))
    mine = place.account.directory("mine")
    for name in ("timeout", "id", "sed", "grep", "read", "echo"):
        place.env[f"BASH_FUNC_{name}%%"] = f"() {{ : > {mine}/escaped; }}"
    place.env["SHELL"] = "/bin/sh"
    done = place.shell("grep -c NoNewPrivs.*1 /proc/self/status")
    assert done.stdout == "1\n", done.stderr
    assert not (mine / "escaped").exists()


@pytest.mark.root
def test_roots_way_in_opens_nothing_of_guards(place: Place) -> None:
    place.settings("on_fault = 7\n")
    done = subprocess.run([str(place.login), "-c", "echo in; id -u"], capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}, cwd="/")
    assert (done.stdout, done.stderr) == ("in\n0\n", "")


def test_groups_that_are_not_named_get_a_plain_shell(place: Place) -> None:
    place.env["SHELL"] = "/bin/bash"
    place.settings('users = ["somebody-else"]\n')
    assert place.shell("grep -c NoNewPrivs.*0 /proc/self/status").stdout == "1\n"
    place.settings(f'users = ["{place.account.name}"]\n')
    done = place.shell("grep -c NoNewPrivs.*1 /proc/self/status")
    assert done.stdout == "1\n", done.stderr


def test_the_switch(place: Place) -> None:
    """Off: plain at once, whatever is broken. On again, or past its end: confined."""
    place.env["SHELL"] = "/bin/bash"
    place.settings("on_fault = 7\n")
    account, env = place.account, {"GUARD_CONFIG_DIR": str(place.config), "GUARD_STATE_DIR": str(place.state)}
    plain = "echo in; grep -c NoNewPrivs.*0 /proc/self/status"
    assert account.cli("off", env=env).returncode == 2, "a reason is asked for"
    assert account.cli("off", "--reason", "x", "--until", "yesterday", env=env).returncode == 2
    done = account.cli("off", "--reason", "maintenance", "--until", "8h", env=env)
    assert done.returncode == 0, done.stderr
    assert (place.config / "off").read_text().startswith('reason = "maintenance"\nuntil = ')
    shown = place.shell(plain)
    assert (shown.stdout, shown.stderr) == ("in\n1\n", "")
    (place.config / "entry.toml").unlink()
    assert account.cli("on", env=env).returncode == 0
    shown = place.shell(plain)
    assert shown.stdout.split() == ["in", "0"], shown.stderr
    account.write(place.config / "off", "until = 2001-01-01T00:00:00Z\n")
    assert place.shell(plain).stdout.split() == ["in", "0"], "its end is past"
    account.write(place.config / "off", "\xff\xfe no sense")
    assert place.shell(plain).stdout.split() == ["in", "1"], "the file's presence is the switch"
    (place.config / "off").chmod(0o666)
    assert place.shell(plain).stdout.split() == ["in", "0"], "anybody could have written it"
