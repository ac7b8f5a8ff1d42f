"""What the probe says of this kernel and of simulated ones, each in a fresh process."""

import json
import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FAKEHOST = os.path.join(ROOT, "tests", "fakehost.py")
SHOW = """
import dataclasses, json, sys
from guard.kernel.probe import probe
found = probe(sys.argv[1:] or None)
print(json.dumps({"abi": found.abi, "errata": found.errata, "settings": dict(found.settings),
                  "abilities": {n: dataclasses.asdict(a) for n, a in found.abilities.items()}}))
"""


def probe(*host: str, names: tuple[str, ...] = ()) -> dict[str, object]:
    """Probe in a fresh process, on the host that the options of fakehost.py describe."""
    command = [sys.executable, "-c", SHOW, *names]
    if host:
        command = [sys.executable, FAKEHOST, *host, "--", *command]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_works_here_is_found_by_a_denial_and_a_control():
    abilities = probe()["abilities"]
    assert abilities["seccomp.filter"]["detail"] == "a call was refused, the others pass"
    assert next(iter(abilities)) == "landlock.abi"
    for ability in abilities.values():
        assert ability["works"] != bool(ability["cause"]), ability
        assert ability["works"] == bool(ability["detail"]), ability


@pytest.mark.parametrize("abi", range(1, 8))
def test_each_landlock_abi_gives_what_it_has_and_names_what_it_lacks(abi):
    found = probe("--abi", str(abi), names=("landlock.",))
    assert found["abi"] == abi
    assert (found["errata"] >= 0) == (abi >= 7)
    for name, needs in {"files": 1, "refer": 2, "ports": 4, "scopes": 6}.items():
        ability = found["abilities"][f"landlock.{name}"]
        assert ability["works"] == (abi >= needs), ability
        if abi < needs:
            assert ability["cause"] == f"kernel too old: Landlock ABI {abi}, this needs {needs}"


@pytest.mark.parametrize(
    ("host", "name", "error", "cause", "remedy"),
    [
        (
            ("--landlock", "EOPNOTSUPP"),
            "landlock.files",
            "EOPNOTSUPP",
            "not enabled at boot",
            "add landlock to lsm=",
        ),
        (("--landlock", "ENOSYS"), "landlock.files", "ENOSYS", "not built into", "CONFIG_SECURITY_LANDLOCK"),
        (("--landlock", "ENOSYS"), "landlock.files", "ENOSYS", "a seccomp filter is above us", ""),
        (("--landlock", "EPERM"), "landlock.files", "EPERM", "seccomp filter above us", "in the container"),
        (("--like", "rhel8"), "landlock.files", "ENOSYS", "kernel too old", "5.13"),
        (("--layers", "16"), "landlock.layer", "E2BIG", "16 Landlock layers", "less deeply nested"),
        (("--landlock", "E2BIG"), "landlock.abi", "E2BIG", "16 Landlock layers", "less deeply nested"),
        (("--like", "rhel8"), "notify.listener", "EINVAL", "kernel too old", "newer"),
        (("--like", "rhel8"), "close_range.cloexec", "ENOSYS", "kernel too old", "newer"),
        (("--no-wait-killable",), "notify.wait_killable", "EINVAL", "kernel too old", "newer"),
        (("--no-pidfd-thread",), "pidfd.thread", "EINVAL", "kernel too old", "newer"),
        (("--abi", "7"), "notify.listener", "EBUSY", "holds the only listener", "outer guard"),
        (("--no-seccomp",), "seccomp.filter", "EINVAL", "not built into", "CONFIG_SECCOMP_FILTER"),
        (("--no-userns",), "namespace.mask", "EPERM", "sandbox, container or LSM", "outside"),
        (("--fail", "mount=EPERM"), "namespace.mask", "EPERM", "(mount)", "outside"),
        (("--hide-libseccomp",), "library.pyseccomp", "EIO", "library missing: libseccomp", "libseccomp2"),
    ],
)
def test_the_cause_of_what_is_missing_is_told_apart_with_its_remedy(host, name, error, cause, remedy):
    ability = probe(*host, names=(name,))["abilities"][name]
    assert not ability["works"]
    assert ability["error"] == error
    assert cause in ability["cause"]
    assert remedy in ability["remedy"]


def test_a_host_without_notification_still_filters():
    abilities = probe("--like", "rhel8", names=("seccomp.",))["abilities"]
    assert abilities["seccomp.filter"]["works"]
    assert abilities["seccomp.spec_allow"]["works"]


def test_nothing_of_a_trial_is_left_in_the_caller(tmp_path):
    code = """
import os
from guard.kernel.probe import probe
def state():
    status = open("/proc/self/status").read().split("NoNewPrivs")[1][:40]
    spaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("user", "mnt")]
    return os.listdir("/proc/self/fd"), status, spaces
before = state()
probe()
assert before == state()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child left")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "no child left\n", done.stderr


def test_a_trial_that_hangs_is_killed_and_said_to_hang():
    code = """
import time
from guard.kernel.probe import in_child
outcome = in_child(lambda: time.sleep(600) or "", patience=0.2)
print(outcome.error, outcome.text)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "110 no answer within 0.2 s\n", done.stderr


def test_a_rule_taken_but_not_enforced_is_no_success():
    code = """
from guard.kernel import reasons, trials
from guard.kernel.probe import Trial, _try
import os
trials.landlock.Ruleset.restrict = lambda self, flags=0: None
print(_try(Trial("landlock.files", trials.landlock_files, reasons.why_landlock)).cause)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "was not refused" in done.stdout, done.stderr
