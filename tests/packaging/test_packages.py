"""The packages: units that may do little, and a package that installs, works and leaves nothing behind."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from guard.cli import COMMANDS
from tests.conftest import LONG, ROOT

UNITS = sorted((ROOT / "packaging/systemd").glob("*.service"))
MOST = {"guard-monitor": 4.0, "guard-events": 3.5, "guard-redact": 2.0, "guard-feed": 2.5, "guard-incidents": 2.5}
"""Exposure by systemd-analyze(1), from 0 to 10, that a unit may have."""


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_runs_a_command_that_there_is(unit: Path) -> None:
    command = re.search(r"^ExecStart=/usr/bin/guard (\S+)", unit.read_text(), re.MULTILINE)
    assert command is not None
    assert command.group(1) in COMMANDS


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_has_the_least_rights(unit: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(unit)], capture_output=True, text=True, check=False
    )
    exposure = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    if exposure is None:
        pytest.skip(f"systemd-analyze cannot tell here: {done.stderr.strip()}")
    assert float(exposure.group(1)) <= MOST[unit.stem]


def test_the_monitor_delays_neither_boot_nor_login() -> None:
    text = (ROOT / "packaging/systemd/guard-monitor.service").read_text()
    assert not re.search(r"^(Before|RequiredBy|Requires)=", text, re.MULTILINE)


def test_there_is_one_description_for_both_packages() -> None:
    text = (ROOT / "packaging/nfpm.yaml").read_text()
    for unit in UNITS:
        assert unit.name in text
    for line in re.findall(r"src: source/([^,}]+)", text):
        assert (ROOT / line.strip()).exists(), line


@contextmanager
def mounted(root: Path, places: Sequence[str]) -> Iterator[None]:
    """Bind places of the host into a chroot."""
    for place in places:
        (root / place).mkdir(exist_ok=True)
        subprocess.run(["mount", "--rbind", f"/{place}", str(root / place)], check=True)
        subprocess.run(["mount", "--make-rslave", str(root / place)], check=True)
    try:
        yield
    finally:
        for place in reversed(places):
            subprocess.run(["umount", "-R", "-l", str(root / place)], check=False)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_package_installs_in_a_fresh_debian_works_and_goes_without_a_trace(tmp_path: Path) -> None:
    if not LONG:
        pytest.skip("GUARD_TEST_LONG=1 builds the packages and a Debian to install one in")
    if shutil.which("debootstrap") is None:
        pytest.skip("no debootstrap here")
    out, root = tmp_path / "out", tmp_path / "root"
    subprocess.run([str(ROOT / "packaging/build-packages"), str(out)], check=True)
    (deb,), (rpm,) = out.glob("*.deb"), out.glob("*.rpm")
    assert rpm.stat().st_size > 1 << 20
    packages = "python3.11,libseccomp2,libbpf1"
    boot = subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(root)], check=False
    )
    if boot.returncode:
        pytest.skip("no mirror of Debian can be reached")
    shutil.copy(deb, root / "root/guard.deb")

    def inside(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["chroot", str(root), *words], capture_output=True, text=True, check=False)

    with mounted(root, ["proc", "sys", "dev"]):
        assert inside("dpkg", "-i", "/root/guard.deb").returncode == 0
        assert inside("guard", "--version").stdout.startswith("guard ")
        assert inside("guard", "run", "--", "true").returncode == 0
        assert inside("guard", "monitor", "--check").returncode == 0
        assert inside("dpkg", "-V", "guard").stdout == ""
        purge = inside("dpkg", "-P", "guard")
        assert purge.returncode == 0
        assert "not empty" not in purge.stderr
    for left in ("usr/lib/guard", "etc/guard", "var/lib/guard", "run/guard", "usr/bin/guard"):
        assert not (root / left).exists(), left
