"""The answers of `guard explain` on hosts that this one is not: older kernels, no mask, no supervisor."""

import dataclasses
import os

import pytest

from guard.confine.explain import ACTS, ALLOWED, DENIED, OBSERVED, REWRITTEN, Here, Session, UnfitError, judge
from guard.confine.explain.files import new_mode
from guard.confine.explain.network import addresses
from guard.confine.handlers.names import name_servers
from guard.policy.assign import Config, Request, resolve
from guard.policy.status import Host

NOWHERE = Config("/nonexistent", floor_dir="/nonexistent", last_good_dir=None)
WHOLE = Host(abi=7, seccomp=True, mask=True)


@pytest.fixture
def home(tmp_path):
    """A home with a project, a key and a start-up file."""
    for place in (".ssh", "project/.git/hooks", "beside"):
        (tmp_path / place).mkdir(parents=True)
    for name in (".ssh/id", ".bashrc", "project/file", "project/.git/config", "beside/file"):
        (tmp_path / name).write_text("x")
    return tmp_path


@pytest.fixture
def ask(home):
    """Ask about an act under a policy on a host."""

    def asked(*words, policy="login-node", host=WHOLE, change=None, **more):
        effective = resolve(Request("ada", os.geteuid(), policy=policy), NOWHERE)
        if change:
            effective = dataclasses.replace(effective, values={**effective.values, **change})
        about = {"can_listen": True, "can_mask": host.mask, **more}
        here = Here(
            os.geteuid(), "ada", str(home), (str(home),), (str(home / "project"),), (), (), "", host, **about
        )
        session = Session(effective, here)
        return judge(session, ACTS[words[0]].answers(*(word.format(home=home) for word in words[1:])))[0]

    return asked


NONE = Host(abi=0, seccomp=True, mask=False, landlock_reason="Landlock is not in the kernel's boot parameter lsm=")
OLD = Host(abi=3, seccomp=True, mask=False)


@pytest.mark.parametrize(
    "words",
    [("read", "{home}/.ssh/id"), ("write", "{home}/beside/file"), ("bind", "0.0.0.0:8080"),
     ("connect", "10.0.0.1:25"), ("unix", "{home}/beside/file")],
    ids=" ".join,
)  # fmt: skip
def test_without_landlock_nothing_is_said_to_be_denied_and_the_gap_is_named(ask, words):
    answer = ask(*words, host=NONE, can_listen=False)
    assert answer.verdict == ALLOWED
    assert answer.unseen.startswith("NOT HELD")


@pytest.mark.parametrize("words", [("bind", "0.0.0.0:8080"), ("connect", "10.0.0.1:25")], ids=" ".join)
def test_a_landlock_without_ports_holds_none(ask, words):
    answer = ask(*words, host=OLD, can_listen=False)
    assert (answer.verdict, answer.unseen[:8]) == (ALLOWED, "NOT HELD")
    assert ask(*words, host=OLD).verdict in (DENIED, REWRITTEN), "a supervisor does"


def test_the_mask_alone_still_hides(ask):
    host = dataclasses.replace(NONE, mask=True)
    answer = ask("read", "{home}/.ssh/id", host=host, can_listen=False)
    assert (answer.verdict, answer.layer) == (DENIED, "mask")
    assert ask("write", "{home}/project/.git/config", host=host, can_listen=False).layer == "mask"


def test_without_the_mask_a_protected_place_in_the_project_is_not_said_to_be_denied(ask):
    words = ("write", "{home}/project/.git/hooks/pre-commit")
    assert ask(*words).verdict == DENIED
    answer = ask(*words, host=dataclasses.replace(WHOLE, mask=False))
    assert answer.verdict == ALLOWED
    assert answer.entry.key == "files.protect"
    assert "NOT HELD" in answer.unseen


def test_a_user_of_several_groups_gets_no_mask_by_itself(ask):
    words = ("write", "{home}/project/.git/config")
    assert ask(*words, many_groups=True).verdict == ALLOWED
    assert ask(*words, many_groups=True, change={"files.mask": "always"}).verdict == DENIED


def test_a_protected_place_that_does_not_exist_yet_is_held_by_the_supervisor_alone(ask):
    answer = ask("write", "{home}/project/.git/hooks")
    assert answer.verdict == DENIED
    words, change = ("write", "{home}/project/.mcp.json"), {"files.protect": ("{project}/.mcp.json",)}
    answer = ask(*words, change=change)
    assert (answer.verdict, answer.layer) == (DENIED, "supervisor")
    answer = ask(*words, change=change, can_listen=False)
    assert (answer.verdict, answer.unseen[:8]) == (ALLOWED, "NOT HELD")


@pytest.mark.parametrize(
    ("words", "verdict", "layer"),
    [
        (("bind", "127.0.0.1:8080"), DENIED, "Landlock"),
        (("bind", "0.0.0.0:8080"), DENIED, "Landlock"),
        (("connect", "10.0.0.1:443"), ALLOWED, ""),
        (("connect", "127.0.0.1:443"), ALLOWED, ""),
        (("connect", "10.0.0.1:25"), DENIED, "Landlock"),
        (("connect", "10.0.0.1:53"), ALLOWED, ""),
        (("chmod", "4755", "{home}/project/file"), DENIED, "seccomp filter"),
        (("chmod", "2755", "{home}/project/file"), ALLOWED, ""),
        (("chmod", "0666", "{home}/project/file"), REWRITTEN, "seccomp filter"),
        (("chmod", "0644", "{home}/beside/file"), ALLOWED, ""),
        (("unix", "/run/nowhere/socket"), ALLOWED, ""),
    ],
    ids=str,
)
def test_without_a_supervisor_the_answer_is_what_ports_and_registers_tell(ask, words, verdict, layer):
    answer = ask(*words, can_listen=False)
    assert (answer.verdict, answer.layer) == (verdict, layer)


@pytest.mark.parametrize(
    "words",
    [("connect", "127.0.0.1:443"), ("chmod", "2755", "{home}/project/file"), ("chmod", "0644", "{home}/beside/file"),
     ("unix", "/run/nowhere/socket")],
    ids=" ".join,
)  # fmt: skip
def test_what_only_a_supervisor_could_hold_is_said_not_to_be_held(ask, words):
    assert ask(*words, can_listen=False).unseen.startswith("NOT HELD here")


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="reads 64-bit programs")
def test_a_program_whose_loader_may_not_run_is_not_said_to_run(ask):
    assert ask("exec", "/usr/bin/env").verdict == ALLOWED
    answer = ask("exec", "/usr/bin/env", change={"files.read": ("/usr/bin",)})
    assert (answer.verdict, answer.layer) == (DENIED, "Landlock")
    assert "/ld-" in answer.real


def test_a_policy_without_a_supervisor_has_none(ask):
    never = {"supervisor.use": "never"}
    assert ask("bind", "127.0.0.1:8080", change=never).layer == "Landlock"
    assert ask("bind", "127.0.0.1:8080").verdict == ALLOWED


def test_a_name_server_is_open_on_the_port_of_names_alone(ask):
    known = {"name_servers": frozenset({b"\x0a\0\0\x35"})}
    assert ask("connect", "10.0.0.53:53", **known).verdict == ALLOWED
    assert ask("connect", "[::ffff:10.0.0.53]:53", **known).verdict == ALLOWED
    assert ask("connect", "10.0.0.53:25", **known).verdict == DENIED
    assert ask("connect", "10.0.0.54:53", **known).verdict == DENIED


def test_name_servers_are_read_from_the_file(tmp_path):
    file = tmp_path / "resolv.conf"
    file.write_text("# one\nnameserver 10.0.0.53\nnameserver fe80::1%eth0\nsearch x\n")
    assert name_servers(str(file)) == {b"\x0a\0\0\x35", b"\xfe\x80" + bytes(13) + b"\1"}
    assert name_servers(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("words", "control"),
    [(("write", "{home}/beside/file"), "files"), (("bind", "10.0.0.1:8080"), "bind"),
     (("connect", "10.0.0.1:25"), "connect"), (("chmod", "4755", "{home}/project/file"), "setuid"),
     (("chmod", "0666", "{home}/project/file"), "world-writable")],
    ids=str,
)  # fmt: skip
def test_an_observing_policy_observes(ask, words, control):
    answer = ask(*words, policy="observe")
    assert (answer.verdict, answer.control) == (OBSERVED, control)
    one = {f"controls.{control.replace('-', '_')}": "observe"}
    assert ask(*words, change=one).verdict == OBSERVED
    off = {f"controls.{control.replace('-', '_')}": "off"}
    assert ask(*words, change=off).verdict == ALLOWED


def test_what_is_allowed_anyway_is_not_called_observed(ask):
    assert ask("write", "{home}/project/file", policy="observe").verdict == ALLOWED


@pytest.mark.parametrize(
    ("text", "present", "mode"),
    [
        ("644", 0o100600, 0o644), ("4755", 0o100600, 0o4755), ("0", 0o100600, 0), ("o+w", 0o100644, 0o646),
        ("a+w", 0o100644, 0o666), ("+x", 0o100644, 0o755), ("u=rw,go=", 0o100755, 0o600), ("g+s", 0o40755, 0o2755),
        ("+t", 0o40755, 0o1755), ("a+X", 0o100644, 0o644), ("a+X", 0o40644, 0o755), ("u+s", 0o100755, 0o4755),
        ("go-w", 0o100666, 0o644), ("a=rwx", 0o100600, 0o777),
    ],
)  # fmt: skip
def test_a_mode_is_read_as_chmod_does(text, present, mode):
    assert new_mode(text, present) == mode


@pytest.mark.parametrize("text", ["", "9", "77777", "u+q", "rwxrwxrwx", "+", "u", "0x1ff"])
def test_what_is_no_mode_is_refused(text):
    if text in ("+",):
        assert new_mode(text, 0o100644) == 0o644  # as chmod: nothing is added
        return
    with pytest.raises(UnfitError):
        new_mode(text, 0o100644)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("127.0.0.1:80", "127.0.0.1:80"), ("[::1]:80", "[::1]:80"), (":80", "0.0.0.0:80"), ("*:0", "0.0.0.0:0"),
     ("[::ffff:10.0.0.1]:5", "[::ffff:10.0.0.1]:5"), ("[fe80::1%eth0]:5", "[fe80::1]:5")],
)  # fmt: skip
def test_an_address_is_read(text, shown):
    assert [str(each) for each in addresses(text)] == [shown]


@pytest.mark.parametrize("text", ["", "80", "127.0.0.1", "::1:80", "1.2.3.4:65536", "a b:1", "[::1]", "1.2.3.4:-1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(UnfitError):
        addresses(text)
