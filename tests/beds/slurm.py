"""A cluster of one node: slurmctld, slurmd and munged of Debian, on this host's own address and the usual ports."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PORTS = (6817, 6818)
SRUN_PORTS = "60001-60040"
_CONF = """\
ClusterName=guardtest
SlurmctldHost={host}({address})
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SrunPortRange={srun}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1
AccountingStorageType=accounting_storage/none
PluginDir={plugins}
NodeName=n1 NodeHostname={host} NodeAddr={address} CPUs=2 RealMemory=500 State=UNKNOWN
PartitionName=normal Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be no cluster here, "" if there can."""
    if os.geteuid() != 0:
        return "needs root: slurmd"
    for program in ("slurmctld", "slurmd", "munged", "srun"):
        if not shutil.which(program, path="/usr/sbin:/usr/bin"):
            return f"not installed: {program}"
    return ""


@contextmanager
def slurm(address: str) -> Iterator[Path]:
    """Run it; skips the test where it cannot be.

    Args:
        address: of this host, and not loopback: what srun is called back on.

    Yields:
        Its slurm.conf.
    """
    if missing():
        pytest.skip(missing())
    for port in PORTS:
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if held.connect_ex((address, port)) == 0:
                pytest.skip(f"another cluster is here: {address}:{port}")
    place = Path(subprocess.run(["mktemp", "-d", "/var/tmp/guard-slurm-XXXXXX"], capture_output=True, text=True,
                                check=True).stdout.strip())  # fmt: skip
    place.chmod(0o755)
    started: list[subprocess.Popen[bytes]] = []
    try:
        _munge(place, started)
        conf = place / "slurm.conf"
        plugins = f"/usr/lib/{platform.machine()}-linux-gnu/slurm-wlm"
        conf.write_text(
            _CONF.format(host=socket.gethostname().partition(".")[0], address=address, ports=PORTS, srun=SRUN_PORTS,
                         place=place, plugins=plugins)
        )  # fmt: skip
        for name in ("state", "spool"):
            (place / name).mkdir()
        env = {**os.environ, "SLURM_CONF": str(conf)}
        for argv in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"]):
            started.append(_start(argv, place, env))
        for _ in range(300):
            state = subprocess.run(["sinfo", "-h", "-o", "%t"], env=env, capture_output=True, text=True, check=False)
            if "idle" in state.stdout:
                break
            time.sleep(0.1)
        else:
            raise AssertionError((place / "slurmctld.log").read_text()[-2000:] + (place / "slurmd.log").read_text()[-2000:])
        yield conf
    finally:
        for server in reversed(started):
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(15)
            server.kill()
            server.wait()
        shutil.rmtree(place, ignore_errors=True)


def _start(argv: list[str], place: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    log = open(place / f"{argv[0]}.out", "wb")  # noqa: SIM115 - its own from here on
    try:
        program = shutil.which(argv[0], path="/usr/sbin:/usr/bin") or argv[0]
        return subprocess.Popen([program, *argv[1:]], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                start_new_session=True)  # fmt: skip
    finally:
        log.close()


def _munge(place: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """Its socket's path is compiled into Slurm's plugin: one that runs is used, else one is started."""
    if _munge_works():
        return
    run, key = Path("/run/munge"), place / "munge.key"
    run.mkdir(mode=0o755, exist_ok=True)
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    started.append(
        _start(["munged", "-F", "--force", f"--key-file={key}", f"--log-file={place}/munged.log",
                f"--pid-file={place}/munged.pid", f"--seed-file={place}/munged.seed"], place, dict(os.environ))
    )  # fmt: skip
    for _ in range(200):
        if _munge_works():
            return
        time.sleep(0.05)
    raise AssertionError((place / "munged.out").read_text())


def _munge_works() -> bool:
    return subprocess.run("munge -n | unmunge", shell=True, capture_output=True, check=False).returncode == 0
