"""Each control's state on each kind of host, and what is said to be missing."""

import pytest

from guard.policy.keys import CONTROLS, defaults
from guard.policy.model import BindAllow, ConnectRule, Effective, Site
from guard.policy.status import Host, asked, control_modes, port_lists, statuses

FULL = Host(abi=7, mask=True)
NO_LANDLOCK = Host(landlock_reason="Landlock is not enabled at boot")
NOTHING = Host(seccomp=False, seccomp_reason="built without filters", landlock_reason="kernel too old")


def effective(mode="enforce", **changed):
    """Defaults with one port to connect to; keys with `__` for the dot."""
    values = {**defaults(), "network.connect": (ConnectRule(((443, 443),)),)}
    values |= {key.replace("__", "."): value for key, value in changed.items()}
    return Effective(
        "test", values, {}, (), (), "default", mode, "", None, (), (), Site(), "0" * 64, ""
    )  # fmt: skip


def states(host, mask=False, **changed):
    return {control: state for control, (state, _) in statuses(effective(**changed), host, mask).items()}


def missing(control, host, mask=False, **changed):
    return "\n".join(statuses(effective(**changed), host, mask)[control][1])


WHOLE = {
    "files": "enforced",
    "metadata": "partial",
    "world-writable": "enforced",
    "setuid": "partial",
    "bind": "partial",
    "connect": "partial",
    "unix-sockets": "partial",
    "pipe-to-shell": "observe",
    "processes": "partial",
    "kernel-surface": "enforced",
    "limits": "enforced",
}


def test_a_current_kernel():
    assert states(FULL, mask=True) == WHOLE


def test_every_control_is_judged_in_the_order_people_read():
    assert list(statuses(effective(), NOTHING)) == list(CONTROLS)


@pytest.mark.parametrize(
    ("abi", "changes"),
    [
        (0, {"files": "absent", "bind": "absent", "connect": "absent"}),
        (1, {"files": "partial", "bind": "absent", "connect": "absent"}),
        (2, {"files": "partial", "bind": "absent", "connect": "absent"}),
        (3, {"files": "partial", "bind": "absent", "connect": "absent"}),
        (4, {"files": "partial"}),
        (5, {}),
        (6, {}),
        (7, {}),
        (11, {}),
    ],
)
def test_each_landlock_abi(abi, changes):
    assert states(Host(abi=abi)) == {**WHOLE, **changes}


@pytest.mark.parametrize(
    ("control", "needs"), [("files", 5), ("bind", 4), ("connect", 4), ("processes", 6), ("unix-sockets", 6)]
)
def test_an_older_abi_is_named_with_what_it_lacks(control, needs):
    assert f"kernel too old: Landlock ABI {needs - 1}, this needs {needs}" in missing(control, Host(abi=needs - 1))
    assert "kernel too old" not in missing(control, Host(abi=needs))


def test_a_kernel_without_landlock_says_why_for_each_control():
    for control in ("files", "bind", "connect", "processes", "unix-sockets"):
        assert "Landlock is not enabled at boot" in missing(control, NO_LANDLOCK)
    assert states(NO_LANDLOCK)["kernel-surface"] == "enforced"


def test_without_filters_what_they_do_is_absent():
    found = states(NOTHING)
    assert {control for control, state in found.items() if state == "absent"} == {
        "files", "metadata", "world-writable", "setuid", "bind", "connect", "unix-sockets", "processes",
        "kernel-surface",
    }  # fmt: skip
    assert found["limits"] == "enforced"
    for control in ("world-writable", "setuid", "kernel-surface", "metadata"):
        assert "built without filters" in missing(control, NOTHING)


def test_landlock_does_not_speak_for_the_filter_nor_the_filter_for_landlock():
    only_landlock = states(Host(abi=7, seccomp=False))
    assert (only_landlock["files"], only_landlock["kernel-surface"]) == ("partial", "absent")
    assert "btrfs" in missing("files", Host(abi=7, seccomp=False))
    only_filter = states(NO_LANDLOCK)
    assert (only_filter["files"], only_filter["world-writable"]) == ("absent", "enforced")


def test_the_mask_does_not_speak_for_landlock():
    host = Host(abi=0, mask=True, landlock_reason="no Landlock")
    assert states(host, mask=True)["files"] == "partial"
    assert "and nothing else" in missing("files", host, mask=True)


def test_what_only_the_mask_can_do_is_named_without_it():
    denied = {"files__deny": ("{home}/.ssh",), "files__protect": ("{project}/.git/hooks",)}
    assert states(FULL, mask=True, **denied)["files"] == "enforced"
    assert states(FULL, **denied)["files"] == "partial"
    told = missing("files", Host(abi=7, mask_reason="user namespaces are off"), **denied)
    assert "user namespaces are off" in told
    assert "stat" in told
    assert states(FULL)["files"] == "enforced"  # nothing denied, nothing protected: nothing to hide


def test_what_loopback_loses_is_named_and_deny_loses_nothing():
    assert "no TCP bind at all" in missing("bind", FULL)
    assert "no TCP bind at all" not in missing("bind", FULL, network__bind="deny")
    assert "listen without bind" in missing("bind", FULL, network__bind="deny")


@pytest.mark.parametrize(
    ("entry", "closed"),
    [
        (BindAllow("any", ((8080, 8080),), reason="x"), False),
        (BindAllow("10.0.0.0/8", ((8080, 8080),), reason="x"), True),
        (BindAllow("any", ((8080, 8080),), "/usr/bin/srun", "x"), True),
        (BindAllow("any", ((1, 5000),), reason="x"), True),
    ],
)
def test_an_exception_to_bind_that_a_port_rule_cannot_say_stays_closed_and_is_named(entry, closed):
    assert ("stays closed" in missing("bind", FULL, network__bind_allow=(entry,))) is closed


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (ConnectRule(((443, 443),)), ""),
        (ConnectRule(((443, 443),), "loopback"), "open to every address"),
        (ConnectRule(((443, 443),), "any", ("link-local",)), "open to every address"),
        (ConnectRule(((1, 2000),)), "beyond 1024 ports, stays closed"),
    ],
)
def test_what_a_port_rule_cannot_tell_of_a_connection_is_named(rule, words):
    told = missing("connect", FULL, network__connect=(rule,))
    assert (str(rule) in told) is bool(words)
    assert words in told


def test_devices_that_need_no_socket_are_named():
    assert "InfiniBand" in missing("connect", FULL, files__devices=("/dev/infiniband/uverbs*",))
    assert "InfiniBand" not in missing("connect", FULL)


def test_families_without_ports_are_named_where_the_policy_opens_them():
    for control in ("bind", "connect"):
        assert "vsock" in missing(control, FULL, kernel__packet_sockets="allow")
        assert "vsock" not in missing(control, FULL)


def test_limits_are_what_the_kernel_makes_of_them():
    assert states(FULL, limits__core=0, limits__open_files=100)["limits"] == "enforced"
    assert states(FULL, limits__memory=1 << 30)["limits"] == "partial"
    assert "not over the tree" in missing("limits", FULL, limits__processes=100)


def test_a_ring_goes_round_the_filter_and_is_named_for_each_control_it_serves():
    for control in ("world-writable", "setuid", "bind", "processes", "kernel-surface"):
        assert "kernel.io_uring = allow" in missing(control, FULL, kernel__io_uring="allow")
    assert states(FULL, kernel__io_uring="allow")["world-writable"] == "partial"


def test_32_bit_calls_that_are_let_in_are_named_where_the_supervisor_is_not_asked_about_them():
    found = statuses(effective(kernel__binary32="allow"), FULL, True, supervisor=True)
    for control in ("metadata", "world-writable", "setuid", "processes"):
        assert "kernel.binary32 = allow" in "\n".join(found[control][1])
    assert "binary32" not in "\n".join(found["unix-sockets"][1]), "of these calls nothing is left"


def test_access_lists_that_are_allowed_make_world_writable_partial():
    assert "access list" in missing("world-writable", FULL, kernel__xattr="allow")


def test_pipe_to_shell_needs_the_supervisor():
    assert states(FULL, pipe_to_shell__action="deny")["pipe-to-shell"] == "absent"


def test_unix_sockets_with_nothing_of_it_left_is_absent():
    found = states(FULL, unix__abstract="allow", unix__datagram="allow")
    assert found["unix-sockets"] == "absent"
    assert states(Host(abi=7, seccomp=False))["unix-sockets"] == "partial"


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_the_mode_of_the_whole_is_the_strongest_any_control_has(mode):
    found = states(FULL, mode=mode, controls__limits="off")
    assert set(found.values()) == {mode, "off"}
    assert asked(effective(mode=mode)) == []


@pytest.mark.parametrize("control", CONTROLS)
def test_a_controls_own_mode(control):
    switch = {f"controls__{control.replace('-', '_')}": "off", "pipe_to_shell__action": "deny"}
    assert states(FULL, **switch)[control] == "off"
    assert control not in asked(effective(**switch))
    assert control in asked(effective(pipe_to_shell__action="deny"))


@pytest.mark.parametrize(
    ("key", "value", "control", "mode"),
    [
        ("modes__world_writable", "off", "world-writable", "off"),
        ("modes__world_writable", "observe", "world-writable", "observe"),
        ("modes__world_writable", "strip", "world-writable", "enforce"),
        ("modes__setuid", "observe", "setuid", "observe"),
        ("pipe_to_shell__action", "deny", "pipe-to-shell", "enforce"),
        ("network__bind", "any", "bind", "off"),
        ("network__connect", None, "connect", "off"),
        ("network__connect", (), "connect", "enforce"),
    ],
)
def test_settings_that_ask_for_nothing_weaken_a_controls_mode(key, value, control, mode):
    assert control_modes(effective(**{key: value}).values)[control] == mode


def test_ranges_are_spelled_out_while_there_is_room_for_all_of_one():
    assert port_lists([((1, 3), (7, 7)), ()]) == [[1, 2, 3, 7], []]
    assert port_lists([((1, 1000),), ((2001, 2025),), ((3001, 3024),)])[1:] == [None, list(range(3001, 3025))]
