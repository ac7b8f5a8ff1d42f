"""A plan holds what the policy and the host come to, bit by bit, and only a whole one is read."""

import marshal
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.errors import PlanError
from guard.kernel import landlock, seccomp
from guard.policy import plan
from guard.policy.keys import CONTROLS, defaults
from guard.policy.model import BindAllow, ConnectRule, Effective, Site
from guard.policy.status import Host

BIND, CONNECT = 1, 2
READ = landlock.READ_FILE | landlock.READ_DIR | landlock.EXECUTE


def effective(mode="enforce", sources=(), **changed):
    values = {**defaults(), "network.connect": (ConnectRule(((443, 443),)),)}
    values |= {key.replace("__", "."): value for key, value in changed.items()}
    site = Site(project_roots=("/work",), audit="forbid")
    return Effective(
        "test", values, {}, ("base",), ("e.toml#T1",), "default", mode, "claude", 1.5e9, sources, (), site,
        "ab" * 32, "",
    )  # fmt: skip


def compiled(abi=7, host=None, **changed):
    return plan.compile(effective(**changed), host or Host(abi=abi, mask=True))


def access(path, **changed):
    return dict(compiled(**changed)["grants"])[path]


# Files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("abi", "bits"),
    [(0, 0), (1, 0x1FFF), (2, 0x3FFF), (3, 0x7FFF), (4, 0x7FFF), (5, 0xFFFF), (6, 0xFFFF), (7, 0xFFFF), (9, 0xFFFF)],
)
def test_handled_rights_are_those_of_the_abi(abi, bits):
    assert plan.rights(abi) == bits
    assert compiled(abi=abi)["handled_fs"] == bits
    assert bits == (landlock.handled_fs(abi) if abi else 0)


def test_reading_grants_reading_and_executing():
    assert access("/usr", files__read=("/usr",)) == READ


def test_writing_grants_everything_but_device_nodes_and_their_control():
    held = access("{project}", files__write=("{project}",))
    assert held == 0xFFFF & ~(landlock.MAKE_CHAR | landlock.MAKE_BLOCK | landlock.IOCTL_DEV)
    assert held & landlock.REFER


def test_every_place_that_may_be_written_may_be_moved_from_and_to():
    grants = dict(compiled(files__write=("/a", "{tmp}"), files__read=("/usr",))["grants"])
    assert grants["/a"] & grants["{tmp}"] & landlock.REFER
    assert not grants["/usr"] & landlock.REFER


def test_devices_are_read_written_and_controlled_and_nothing_is_made_beside_them():
    held = access("/dev/tty", files__devices=("/dev/tty",))
    assert held == READ & ~landlock.EXECUTE | landlock.WRITE_FILE | landlock.TRUNCATE | landlock.IOCTL_DEV
    shared = access("/dev/shm", files__devices=("/dev/shm",))
    assert shared & (landlock.MAKE_REG | landlock.REMOVE_FILE | landlock.REFER)
    assert not shared & (landlock.EXECUTE | landlock.MAKE_CHAR | landlock.MAKE_BLOCK)


def test_a_place_that_is_granted_twice_has_both():
    both = access("/dev/shm", files__devices=("/dev/shm",), files__read=("/dev/shm",))
    assert both & landlock.EXECUTE
    assert both & landlock.WRITE_FILE


def test_rights_that_a_grant_needs_are_never_cut_to_the_abi_in_the_plan():
    assert access("/a", abi=1, files__write=("/a",)) & landlock.TRUNCATE


def test_variables_stay_open():
    found = compiled(files__read=("{home}",), files__deny=("{home}/.ssh",), files__protect=("{project}/.git/hooks",))
    assert found["grants"] == [("{home}", READ)]
    assert found["deny"] == ["{home}/.ssh"]
    assert found["protect"] == ["{project}/.git/hooks"]


def test_where_files_is_not_enforced_nothing_of_it_is_handled():
    found = compiled(controls__files="observe")
    assert (found["fs"], found["handled_fs"]) == (False, 0)


# Network ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bind", ["loopback", "deny"])
def test_bound_to_nothing_where_loopback_cannot_be_told(bind):
    found = compiled(network__bind=bind)
    assert found["handled_net"] & BIND
    assert not [port for port, bits in found["ports"] if bits & BIND]


def test_bind_anywhere_is_not_handled():
    assert compiled(network__bind="any")["handled_net"] == CONNECT


def test_connections_to_listed_ports_and_name_service_only():
    found = compiled(network__connect=(ConnectRule(((22, 22), (8000, 8002))), ConnectRule(((443, 443),), "loopback")))
    assert found["ports"] == [(22, CONNECT), (53, CONNECT), (443, CONNECT)] + [
        (port, CONNECT) for port in (8000, 8001, 8002)
    ]


def test_connect_to_nowhere_leaves_name_service():
    assert compiled(network__connect=())["ports"] == [(53, CONNECT)]


def test_connect_anywhere_is_not_handled():
    found = compiled(network__connect=None)
    assert (found["handled_net"], found["ports"]) == (BIND, [])


def test_a_range_too_long_to_list_stays_closed():
    assert compiled(network__connect=(ConnectRule(((1, 1025),)),))["ports"] == [(53, CONNECT)]
    assert len(compiled(network__connect=(ConnectRule(((1, 1024),)),))["ports"]) == 1024


def test_all_ranges_together_are_at_most_1024_ports_and_the_status_names_what_stays_closed():
    found = compiled(network__connect=(ConnectRule(((1, 600),)), ConnectRule(((1001, 1600),))))
    assert len(found["ports"]) == 600
    assert any("1001-1600" in text and "stays closed" in text for text in found["status"]["connect"][1])


def test_a_port_rule_opens_a_bind_exception_only_where_it_says_exactly_the_same():
    exact = BindAllow("any", ((8888, 8888),), reason="x")
    coarse = (BindAllow("10.0.0.0/8", ((9999, 9999),), reason="x"), BindAllow("any", ((7777, 7777),), "/bin/x", "x"))
    found = compiled(network__bind_allow=(exact, *coarse), network__connect=None)
    assert found["ports"] == [(8888, BIND)]


def test_one_port_may_be_bound_and_connected_to():
    found = compiled(network__bind_allow=(BindAllow("any", ((443, 443),), reason="x"),))
    assert dict(found["ports"])[443] == BIND | CONNECT


@pytest.mark.parametrize("abi", [0, 1, 2, 3])
def test_before_abi_4_no_port_is_handled(abi):
    assert (compiled(abi=abi)["handled_net"], compiled(abi=abi)["ports"]) == (0, [])


# Scopes, flags, limits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("abi", "scoped", "flags"), [(0, 0, 0), (5, 0, 0), (6, 3, 0), (7, 3, 2), (9, 3, 2)])
def test_scopes_and_flags_are_those_of_the_abi(abi, scoped, flags):
    assert (compiled(abi=abi)["scoped"], compiled(abi=abi)["restrict_flags"]) == (scoped, flags)


def test_scopes_follow_their_controls():
    assert compiled(controls__processes="off")["scoped"] == landlock.SCOPE_ABSTRACT_UNIX
    assert compiled(unix__abstract="allow")["scoped"] == landlock.SCOPE_SIGNAL
    assert compiled(controls__unix_sockets="observe")["scoped"] == landlock.SCOPE_SIGNAL


def test_an_abi_newer_than_known_is_used_as_the_newest_known():
    assert compiled(abi=12)["abi"] == 7


def test_limits_are_numbers_of_the_kernel():
    found = compiled(limits__open_files=1000, limits__memory=1 << 34, limits__cpu_seconds=60)
    assert found["rlimits"] == [(0, 60), (4, 0), (7, 1000), (9, 1 << 34)]
    assert compiled(controls__limits="off")["rlimits"] == []


def test_the_limits_have_the_numbers_that_python_has_for_them():
    import resource

    assert plan.RLIMITS == {
        "limits.cpu_seconds": resource.RLIMIT_CPU,
        "limits.file_size": resource.RLIMIT_FSIZE,
        "limits.core": resource.RLIMIT_CORE,
        "limits.processes": resource.RLIMIT_NPROC,
        "limits.open_files": resource.RLIMIT_NOFILE,
        "limits.memory": resource.RLIMIT_AS,
    }


def test_the_umask_keeps_others_from_writing_while_that_is_enforced():
    assert compiled()["umask"] == 0o002
    assert compiled(modes__world_writable="observe")["umask"] == 0


# The filter -----------------------------------------------------------------------------------------------------


def ptrace(program):
    return seccomp.describe(seccomp.run(program, 101, seccomp.AUDIT_ARCH_X86_64))


def test_two_filters_one_beside_a_domain_and_one_alone():
    found = compiled()
    assert (ptrace(found["bpf"]), ptrace(found["bpf_alone"])) == ("allow", "EPERM")


def test_without_anything_for_a_domain_to_hold_both_are_alone():
    nothing = {f"controls__{control.replace('-', '_')}": "off" for control in ("files", "bind", "connect")}
    assert ptrace(compiled(abi=5, **nothing)["bpf"]) == "EPERM"
    assert ptrace(compiled(abi=6, **nothing)["bpf"]) == "allow"  # the signal scope is a domain
    assert ptrace(compiled(abi=0)["bpf"]) == "EPERM"


def test_a_plan_for_another_machine_is_made_here():
    found = plan.compile(effective(), Host(machine="aarch64", abi=7))
    assert seccomp.describe(seccomp.run(found["bpf"], 53, seccomp.AUDIT_ARCH_AARCH64, (0, 0, 0o666))) == "EPERM"


def test_a_missing_libseccomp_makes_no_plan():
    source = (
        "import sys; sys.modules['pyseccomp'] = None\n"
        "from guard.errors import PlanError\n"
        "from guard.policy import plan\n"
        f"sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "try:\n import test_plan; test_plan.compiled()\n"
        "except PlanError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", source], capture_output=True, check=True, text=True)
    assert "library missing: libseccomp (Debian: libseccomp2, RHEL: libseccomp)" in said.stdout


# Modes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_where_the_whole_only_observes_the_plan_enforces_nothing(mode):
    found = compiled(mode=mode)
    assert (found["mode"], found["asked"]) == (mode, [])
    assert (found["bpf"], found["handled_fs"], found["handled_net"], found["scoped"]) == (b"", 0, 0, 0)
    assert (found["rlimits"], found["umask"]) == ([], 0)


def test_asked_are_the_controls_that_are_enforced():
    found = compiled(controls__limits="off", pipe_to_shell__action="observe")
    assert found["asked"] == [control for control in CONTROLS if control not in ("limits", "pipe-to-shell")]


def test_the_status_with_the_mask_is_its_own():
    found = compiled(files__deny=("{home}/.ssh",))
    assert (found["status"]["files"][0], found["status_mask"]["files"][0]) == ("partial", "enforced")
    without = plan.compile(effective(files__deny=("{home}/.ssh",)), Host(abi=7))
    # Whether there is one shows at the start, not when the plan was made.
    assert without["status_mask"]["files"] == found["status_mask"]["files"]


def test_what_only_the_supervisor_decides_is_carried():
    rule = ConnectRule(((80, 80),), "10.0.0.0/8", ("metadata",))
    found = compiled(network__connect=(rule,), unix__allow=("/run/munge",))["supervisor"]
    assert found["connect"] == [([[80, 80]], "10.0.0.0/8", ["metadata"])]
    assert found["unix_allow"] == ["/run/munge"]


# Freshness ------------------------------------------------------------------------------------------------------


def test_a_stamp_tells_a_file_that_changed_appeared_or_went(tmp_path):
    path = str(tmp_path / "site.toml")
    absent = plan.stamp([path])
    assert absent == [(path, 0, 0, 0)]
    (tmp_path / "site.toml").write_text("a")
    there = plan.stamp([path])
    assert there != absent
    assert there == plan.stamp([path])
    os.utime(path, ns=(1, 1))
    assert plan.stamp([path]) != there


def test_a_file_that_is_replaced_by_another_of_the_same_age_and_size_is_told(tmp_path):
    path, other = tmp_path / "a", tmp_path / "b"
    for file in (path, other):
        file.write_text("x")
        os.utime(file, ns=(5, 5))
    before = plan.stamp([str(path)])
    os.replace(other, path)
    assert plan.stamp([str(path)]) != before


def test_a_file_that_changed_while_it_was_read_is_never_fresh(tmp_path):
    path = tmp_path / "a"
    path.write_text("x")
    os.utime(path, (2000, 2000))
    assert plan.stamp([str(path)], since=2000.0)[0][1] == -1
    assert plan.stamp([str(path)], since=2000.5)[0][1] == 2000 * 10**9


# The file -------------------------------------------------------------------------------------------------------


def test_a_plan_is_read_back_as_it_was_written():
    found = compiled(files__read=("/usr",), network__connect=None)
    assert plan.loads(plan.dumps(found)) == found


def test_equal_plans_give_equal_bytes_however_their_objects_are_shared():
    once = plan.dumps(compiled(files__read=("/usr", "/opt")))
    again = plan.dumps(compiled(files__read=tuple("".join([part]) for part in ("/usr", "/opt"))))
    assert once == again
    assert plan.dumps(plan.loads(once)) == once


def test_a_path_that_is_no_unicode_is_carried():
    found = compiled(files__read=("/data/\udcff",))
    assert plan.loads(plan.dumps(found))["grants"][0][0] == "/data/\udcff"


def test_reading_a_plan_loads_no_package():
    source = "import sys; before = set(sys.modules)\nfrom guard.policy import plan\nprint(*set(sys.modules) - before)"
    source = f"import sys; sys.path.insert(0, {os.getcwd()!r})\n{source}"
    bare = [sys.executable, "-I", "-S", "-c", source]
    said = subprocess.run(bare, capture_output=True, check=True, text=True)
    loaded = set(said.stdout.split())
    assert "guard.policy.plan" in loaded
    dear = {"typing", "dataclasses", "enum", "re", "landlock", "pyseccomp", "ctypes", "guard.policy.model"}
    assert not loaded & dear


WHOLE = plan.dumps(compiled(files__read=("/usr",)))


@settings(max_examples=60, deadline=None)
@given(length=st.integers(0, len(WHOLE) - 1))
def test_a_plan_cut_short_anywhere_is_refused(length):
    with pytest.raises(PlanError):
        plan.loads(WHOLE[:length])


@pytest.mark.parametrize(
    "data",
    [b"", b"guard-plan 1\n" + WHOLE[13:], WHOLE + b"x", b"#!/bin/sh\n", WHOLE[:13] + b"\xff" * 8 + WHOLE[21:]],
)
def test_what_is_no_plan_is_refused_and_says_what_to_do(data):
    with pytest.raises(PlanError, match="remove it"):
        plan.loads(data)


def spoiled(key, value):
    broken = compiled(files__read=("/usr",))
    broken[key] = value
    return plan.dumps(broken)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mode", "maybe"), ("mask", ""), ("audit", None), ("events", "later"), ("guard", 1), ("policy", b"x"),
        ("deny", "{home}"), ("deny", [1]), ("env_drop", [b"x"]), ("abi", -1), ("abi", "7"), ("abi", True),
        ("handled_fs", 1 << 64), ("fs", 1), ("expires", 5), ("sources", [("/a", 0, 0)]), ("sources", [["/a", 0, 0, 0]]),
        ("grants", [("/a", "rw")]), ("grants", [("/a", 0)]), ("grants", [("/a", 1 << 16)]), ("grants", None),
        ("ports", [(65536, 1)]), ("ports", [(80, 4)]), ("ports", [(80, 0)]), ("bpf", b"1234567"), ("bpf", "x"),
        ("bpf_alone", bytes(8 * 4097)), ("rlimits", [(4, -1)]), ("rlimits", [(4,)]), ("on_fault", {"files": "no"}),
        ("status", {"files": ("fine", [])}), ("status", {"files": ("enforced",)}), ("status_mask", []),
        ("asked", ["files", 3]), ("supervisor", None), ("unheard-of", 1),
    ],
)  # fmt: skip
def test_a_plan_of_the_wrong_form_is_refused(key, value):
    with pytest.raises(PlanError, match=key):
        plan.loads(spoiled(key, value))


def test_a_plan_that_lacks_a_key_is_refused_by_its_name():
    broken = compiled()
    del broken["umask"]
    with pytest.raises(PlanError, match="umask"):
        plan.loads(plan.dumps(broken))


def test_what_the_launcher_adds_is_taken():
    held = compiled() | {"plan_digest": "00", "request": ("", 1000)}
    assert plan.loads(plan.dumps(held)) == held


def test_the_dictionary_is_what_marshal_reads():
    assert marshal.loads(WHOLE[21:]) == plan.loads(WHOLE)
