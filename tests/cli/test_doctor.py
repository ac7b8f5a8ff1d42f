"""`guard doctor` in fresh processes: on this host, on simulated ones, inside other sandboxes."""

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from guard.confine.acts.table import ACTS
from guard.confine.prove import Claim, judge
from guard.kernel.landlock import abi
from guard.policy.keys import CONTROLS
from tests.conftest import GUARD

FAKEHOST = Path(__file__).parent.parent / "fakehost.py"
GOLDEN = Path(__file__).parent.parent / "golden"
POLICY = """\
schema = 1
name = "tested"
extends = "base"
reason = "a test"
[files]
read = ["{home}"]
write = ["{project}"]
protect = ["{project}/.git/hooks"]
[network]
connect = [443]
"""


class Person:
    """An ordinary user with a policy, a key to hide and a state directory of their own."""

    def __init__(self, account, place):
        self.account, self.place = account, place
        self.policy = str(account.write(place / "policy.toml", POLICY))
        # The checkout may be closed to this user.
        self.fakehost = str(account.write(place / "fakehost.py", FAKEHOST.read_bytes()))
        account.write(account.home / ".ssh" / "id_test", "no key\n")

    def run(self, command):
        state = {"GUARD_STATE_DIR": str(self.place / "state")}
        return self.account.command(command, env=state, cwd=self.place, timeout=110)

    def doctor(self, *args, host=(), inside=(), policy=True):
        simulated = [os.path.realpath(sys.executable), self.fakehost, *host, "--"] if host else []
        named = ["--policy", self.policy] if policy else []
        done = self.run([*simulated, *inside, GUARD, "doctor", *named, *args])
        if done.returncode == 77:
            pytest.skip(done.stderr.strip())
        return done

    def report(self, *args, **where):
        done = self.doctor("--json", *args, **where)
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def person(account):
    place = account.directory("doctor")
    yield Person(account, place)
    shutil.rmtree(place, ignore_errors=True)


needs_landlock_7 = pytest.mark.skipif(
    abi()[0] < 7, reason="simulated is what this kernel's Landlock has more of: it must be ABI 7"
)


# --- the table of acts -----------------------------------------------------------------------------------


def test_every_control_has_a_forbidden_act_and_a_positive_control():
    assert {act.control for act in ACTS if not act.allowed} == set(CONTROLS)
    assert {act.control for act in ACTS if act.allowed} == set(CONTROLS)


def test_no_two_acts_have_the_same_name():
    names = [act.name for act in ACTS]
    assert sorted(names) == sorted(set(names))


FORBIDDEN, ALLOWED, GAP = "chmod 4755", "chmod 2770 on a directory", "chmod 2755 on a file"
HELD = {act.name: (0 if act.allowed else 1) for act in ACTS if act.control == "setuid"}
BARE = dict.fromkeys(HELD, 0)
NAMED = ("chmod of a file to set-group-id passes",)


@pytest.mark.parametrize(
    ("claim", "changes", "status", "mismatch"),
    [
        (Claim("enforced"), {}, "enforced", ""),
        (Claim("enforced"), {FORBIDDEN: 0}, "partial", f"claimed enforced, yet not refused: {FORBIDDEN}"),
        (Claim("partial", NAMED), {GAP: 0}, "partial", ""),
        (Claim("partial", ("something else",)), {GAP: 0}, "partial", f"yet not refused: {GAP}"),
        (Claim("partial", NAMED), {FORBIDDEN: 0}, "partial", f"yet not refused: {FORBIDDEN}"),
        (Claim("partial", NAMED), dict.fromkeys(HELD, 0), "absent", "yet nothing is refused"),
        (Claim("enforced"), dict.fromkeys(HELD, 0), "absent", "yet nothing is refused"),
        (Claim("absent"), dict.fromkeys(HELD, 0), "absent", ""),
        (Claim("absent"), {}, "enforced", "claimed absent, yet refused"),
        (Claim("enforced"), {ALLOWED: 1}, "enforced", f"allowed but refused: {ALLOWED}"),
        (Claim("off"), dict.fromkeys(HELD, 0), "off", ""),
        (Claim("observe"), {}, "observe", ""),
    ],
)
def test_a_claim_that_trying_does_not_bear_out_is_a_mismatch(claim, changes, status, mismatch):
    verdict = judge("setuid", claim, BARE, {**HELD, **changes})
    assert (verdict.status, bool(verdict.mismatch)) == (status, bool(mismatch))
    assert mismatch in verdict.mismatch


def test_inside_another_guard_gaps_that_are_named_are_no_mismatch():
    outer = {name: int(name not in (GAP, ALLOWED)) for name in HELD}
    verdict = judge("setuid", Claim("partial", NAMED), outer, outer)
    assert (verdict.status, verdict.mismatch) == ("partial", "")


def test_an_act_that_fails_without_guard_too_proves_nothing():
    verdict = judge("setuid", Claim("enforced"), HELD, HELD)
    assert verdict.found == "untried"
    assert {each.outcome for each in verdict.tried if not each.allowed} == {"untried"}


# --- this host -------------------------------------------------------------------------------------------


@pytest.mark.nested
def test_each_control_is_tried_here_and_is_what_guard_claims(person):
    report = person.report()
    assert list(report["controls"]) == list(CONTROLS)
    for control, told in report["controls"].items():
        assert not told["mismatch"], (control, told["mismatch"])
        assert told["status"] == told["claimed"]
    refused = sum(
        a["outcome"] == "refused" for c in report["controls"].values() for a in c["acts"] if not a["allowed"]
    )
    works = sum(
        a["outcome"] == "done" for c in report["controls"].values() for a in c["acts"] if a["allowed"]
    )
    assert refused > 25
    assert works > 15


def test_the_json_keys_are_these(person):
    report = person.report()
    assert list(report) == ["schema", "policy", "kernel", "path", "refused", "redactor", "ways", "controls", "exit"]
    assert list(report["kernel"]) == ["landlock_abi", "landlock_errata", "abilities", "settings"]
    for told in report["controls"].values():
        keys = ["status", "claimed", "missing", "found", "mismatch", "cause", "remedy", "acts"]
        assert list(told) == keys
        assert told["status"] in ("enforced", "partial", "absent", "observe", "off")
    assert {tuple(a) for c in report["controls"].values() for a in c["acts"]} == {
        ("act", "allowed", "outcome", "bare", "inside", "excused")
    }


def test_nothing_is_left_behind(person):
    def own():
        """What this account has in /tmp; a name that is gone again is nobody's."""
        with os.scandir("/tmp") as entries:
            return {e.name for e in entries if "doctor" in e.name and os.path.lexists(e.path) and e.stat(follow_symlinks=False).st_uid == person.account.uid}

    before = own()
    person.doctor()
    assert own() - before == set()
    assert sorted(os.listdir(person.place)) == ["fakehost.py", "policy.toml", "state"]


def test_a_policy_that_only_observes_is_told_as_such_and_nothing_is_missing(person):
    report = person.report("--policy", "observe", policy=False)
    assert {told["status"] for told in report["controls"].values()} <= {
        "observe",
        "off",
        "enforced",
        "partial",
    }
    assert "observe" in {told["status"] for told in report["controls"].values()}
    assert not any(told["mismatch"] for told in report["controls"].values())


def test_a_policy_that_does_not_exist_is_named(person):
    done = person.doctor("--policy", "no-such-policy", policy=False)
    assert done.returncode in (2, 3)
    assert "no-such-policy" in done.stderr
    assert done.stdout == ""


def test_an_option_that_does_not_exist_is_a_usage_error(person):
    assert person.doctor("--no-such-option").returncode == 2


# --- simulated hosts -------------------------------------------------------------------------------------

OLD, BOOT = "kernel too old", "not enabled at boot"
LSM, NEWER, V5 = "add landlock to lsm=", "a newer kernel", "a kernel of 5.13 or later"
HOSTS = {
    "--abi 1": [("files", "partial", "between directories fail", NEWER), ("bind", "absent", OLD, NEWER)],
    "--abi 2": [("files", "partial", "truncate(2)", ""), ("connect", "absent", OLD, NEWER)],
    "--abi 3": [("bind", "absent", OLD, NEWER), ("connect", "absent", OLD, NEWER)],
    "--abi 4": [("files", "partial", "ioctls on devices", ""), ("bind", "partial", "loopback", "")],
    "--abi 5": [("processes", "partial", "signals", NEWER), ("unix-sockets", "partial", "abstract", NEWER)],
    "--abi 6": [("files", "enforced", "", ""), ("processes", "partial", "command lines", "")],
    "--abi 7": [("files", "enforced", "", ""), ("connect", "partial", "UDP", "")],
    "--like rhel8": [
        ("files", "partial", OLD, V5),
        ("bind", "absent", OLD, V5),
        ("setuid", "partial", "set-group-id", ""),
        ("world-writable", "enforced", "", ""),
    ],
    "--like rhel8 --no-userns": [("files", "absent", OLD, V5), ("processes", "partial", "signals", V5)],
    "--like rhel9": [("files", "enforced", "", "")],
    "--like sles15": [("connect", "absent", BOOT, LSM)],
    "--landlock EOPNOTSUPP": [("files", "partial", BOOT, LSM), ("kernel-surface", "enforced", "", "")],
    "--landlock ENOSYS": [("files", "partial", "not built into", "CONFIG_SECURITY_LANDLOCK")],
    "--layers 16": [("files", "absent", "16 Landlock layers", "less deeply nested")],
    "--layers 15": [("files", "partial", "without the mask", "outside"), ("connect", "enforced", "", "")],
    "--no-userns": [("files", "partial", "without the mask", "outside")],
}


@needs_landlock_7
@pytest.mark.parametrize("host", HOSTS)
def test_on_another_host_each_control_is_tried_and_what_is_missing_has_cause_and_remedy(person, host):
    report = person.report(host=host.split())
    controls = report["controls"]
    assert {name: told["mismatch"] for name, told in controls.items() if told["mismatch"]} == {}
    for control, status, missing, remedy in HOSTS[host]:
        told = controls[control]
        assert told["status"] == status, told
        assert missing in "; ".join(told["missing"])
        assert remedy in told["remedy"]
    assert report["exit"] == int(any(told["status"] == "absent" for told in controls.values()))


@needs_landlock_7
def test_a_kernel_that_takes_the_rules_and_enforces_nothing_is_found_out(person):
    done = person.doctor(host=("--fail", "landlock_restrict_self=OK"))
    assert done.returncode == 1
    assert re.search(r"^files +(absent|partial)", done.stdout, re.MULTILINE)
    assert "was not refused" in " ".join(done.stdout.split())


def test_without_libseccomp_and_without_a_plan_nothing_starts_and_the_table_says_why(person):
    done = person.doctor(host=("--hide-libseccomp",))
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert "library missing: libseccomp" in text
    assert "libseccomp2" in text
    assert "NOT STARTED" in text


def test_with_a_plan_at_hand_a_missing_libseccomp_changes_no_control(person):
    here = person.report()
    hidden = person.report(host=("--hide-libseccomp",))
    assert not hidden["refused"]
    # A user namespace hides the library from an ordinary user, and no further one is refused by it.
    assert {c: t["status"] for c, t in hidden["controls"].items()} == {
        c: t["status"] for c, t in here["controls"].items()
    }
    assert hidden["kernel"]["abilities"]["library.pyseccomp"]["cause"] == "library missing: libseccomp"


@needs_landlock_7
def test_the_table_for_people_stays_under_80_columns(person):
    for host in ((), ("--landlock", "EOPNOTSUPP", "--no-userns"), ("--abi", "1")):
        done = person.doctor(host=host)
        assert max(map(len, done.stdout.splitlines())) < 80, done.stdout


# --- inside other sandboxes, by golden tables ------------------------------------------------------------


def compare(name, text):
    """Compare with the golden table; GUARD_UPDATE_GOLDEN=1 writes it."""
    text = re.sub(r"errata 0x[0-9a-f]+", "errata *", text)
    text = re.sub(r"(?m)^agents  .*\n(?: {9}.*\n)*", "", text)  # whose agents are installed: tests/entry/test_ways.py
    if os.environ.get("GUARD_UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(text)
    golden = (GOLDEN / name).read_text()
    assert text == golden, "\n" + "".join(
        difflib.unified_diff(golden.splitlines(True), text.splitlines(True))
    )


BWRAP = ["bwrap", "--unshare-all", "--die-with-parent"]
SANDBOXES = {
    "plain": [],
    "unshare": ["unshare", "-Ur"],
    "bwrap": [*BWRAP, "--dev-bind", "/", "/"],
    "container": [
        *(*BWRAP, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
        *("--tmpfs", "/tmp", "--tmpfs", "/var/tmp", "--bind", "{place}", "{place}"),
        *("--ro-bind", "{guard}", "{guard}"),  # a clone in /tmp is under the tmpfs
    ],
}


@needs_landlock_7
@pytest.mark.parametrize("name", SANDBOXES)
def test_inside_another_sandbox_the_table_is_the_golden_one(person, name):
    installed = Path(GUARD).parent.parent
    inside = [word.format(place=person.place, guard=installed) for word in SANDBOXES[name]]
    if inside and shutil.which(inside[0]) is None:
        pytest.skip(f"{inside[0]} is not installed")
    if inside and person.run([*inside, "true"]).returncode != 0:
        pytest.skip(f"{inside[0]} does not work here: no user namespaces")
    done = person.doctor(inside=inside)
    assert done.returncode in (0, 1), done.stderr
    compare(f"doctor-{name}.txt", done.stdout)


# --- --path ----------------------------------------------------------------------------------------------

ON_FILES = ["files", "metadata", "world-writable", "setuid"]


def prove(person, path):
    report = person.report("--path", str(path), policy=False)
    assert list(report["controls"]) == ON_FILES
    assert {c: t["mismatch"] for c, t in report["controls"].items() if t["mismatch"]} == {}
    return report


def test_the_file_controls_are_proved_on_the_file_system_of_a_path(person):
    report = prove(person, person.place)
    outcomes = {a["act"]: a["outcome"] for a in report["controls"]["files"]["acts"]}
    for act in ("read a file", "write a file", "truncate a file", "make a file", "rename a file"):
        assert outcomes[f"{act} outside"] == "refused"
        assert outcomes[f"{act} in the project"] == "done"
    assert outcomes["hard-link a file into the project"] == "refused"
    assert report["path"]["path"] == str(person.place)
    assert [name for name in os.listdir(person.place) if "doctor" in name] == []


def mount(person, kind):
    """Mount a file system of this kind that the person may write; returns the places to unmount."""
    owner = person.account.uid
    place, lower, upper = (
        person.account.directory(name, person.place) for name in ("place", "lower", "upper")
    )
    options = f"mode=755,uid={owner}"
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(place)]
    if kind == "noexec":
        command[4] += ",noexec"
    elif kind == "fuse":
        command = ["bindfs", "-o", "allow_other", str(lower), str(place)]
    elif kind == "overlay":
        # The upper directory of an overlay must not be one itself, as /var/tmp may be in a container.
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(upper)], check=True)
        for name in ("up", "work"):
            (upper / name).mkdir()
            os.chown(upper / name, owner, -1)
        layers = f"lowerdir={lower},upperdir={upper}/up,workdir={upper}/work"
        command = ["mount", "-t", "overlay", "-o", layers, "none", str(place)]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no {kind} here: {done.stderr.strip()}")
    return place, upper


@pytest.mark.root
@pytest.mark.parametrize("kind", ["tmpfs", "overlay", "fuse", "noexec"])
def test_the_file_controls_are_proved_on_other_file_systems(person, kind):
    mounted = ()
    try:
        mounted = mount(person, kind)
        report = prove(person, mounted[0])
        assert report["path"]["file_system"] == {"noexec": "tmpfs"}.get(kind, kind)
        outcomes = {a["act"]: a["outcome"] for a in report["controls"]["files"]["acts"]}
        assert outcomes["write a file outside"] == "refused"
        assert outcomes["write a file in the project"] == "done"
        # Where nothing can be executed anyway guard's refusal is not proved, and not claimed to be.
        assert outcomes["execute a file outside"] == ("untried" if kind == "noexec" else "refused")
    finally:
        for place in mounted:
            subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


def test_a_path_that_may_not_be_written_or_is_no_directory_is_said_to_be(person):
    assert person.doctor("--path", person.policy, policy=False).returncode == 2
    done = person.doctor("--path", "/proc", policy=False)
    assert done.returncode == 3
    assert "/proc" in done.stderr
    assert done.stdout == ""
