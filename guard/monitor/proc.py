"""What /proc tells of a process: asked where the kernel's facts do not say it, and never trusted to still be the same.

A pid alone names nobody: what is read is kept only if the start time before and after is that of the fact.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

TICK: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_ENVIRONMENT_MOST: Final = 1 << 20
_NO_LOGIN: Final = 2**32 - 1
"""loginuid and sessionid of what no login started (audit(7))."""


@dataclass(frozen=True, slots=True)
class Status:
    """A running process.

    Args:
        pid, ppid: as the kernel has them.
        start: nanoseconds since boot, in steps of a clock tick (proc_pid_stat(5), field 22).
        comm: the kernel's name of it.
        sid, tty: session and terminal.
    """

    pid: int
    ppid: int
    start: int
    comm: str
    sid: int
    tty: int


def stat_line(pid: int) -> tuple[bytes, list[bytes]] | None:
    """Read a process's name and the fields after it (proc_pid_stat(5), from field 3 on); None where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            head, _, rest = stream.read().rpartition(b")")
    except OSError:
        return None
    words = rest.split()
    return (head.partition(b"(")[2], words) if len(words) >= 20 else None


def status(pid: int) -> Status | None:
    """Read a process's state; None where there is none (or it is a zombie)."""
    found = stat_line(pid)
    if found is None or found[1][0] in (b"Z", b"X"):
        return None
    comm, words = found
    return Status(
        pid, int(words[1]), int(words[19]) * TICK, comm.decode("utf-8", "replace"), int(words[3]), int(words[4])
    )


def same(pid: int, start: int) -> bool:
    """Whether a pid is still the process that started then (to a clock tick; 0 is any)."""
    now = status(pid)
    return now is not None and (not start or abs(now.start - start) <= 2 * TICK)


def processes() -> Iterator[Status]:
    """Give every process that runs, parents mostly before their children."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    for pid in pids:
        found = status(pid)
        if found is not None:
            yield found


def arguments(pid: int, most: int = 16 << 10) -> tuple[bytes, ...]:
    """Read a process's arguments, at most so many bytes; () where it is gone."""
    raw = _read(pid, "cmdline", most)
    return tuple(raw.removesuffix(b"\0").split(b"\0")) if raw else ()


def link(pid: int, name: str) -> str:
    """Follow `exe` or `cwd`; "" where it cannot be told."""
    try:
        return os.readlink(f"/proc/{pid}/{name}").removesuffix(" (deleted)")
    except OSError:
        return ""


def owner(pid: int) -> int:
    """The real uid of a process, -1 where it is gone."""
    for line in _read(pid, "status", 4096).splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return -1


def group(thread: int) -> int:
    """The process that a thread belongs to; the number itself where it is gone."""
    for line in _read(thread, "status", 4096).splitlines():
        if line.startswith(b"Tgid:"):
            return int(line.split()[1])
    return thread


def confined(pid: int) -> bool:
    """Whether the kernel holds a process under a filter, with no way to gain rights: what `guard run` does first."""
    found = dict(
        line.split(b":", 1) for line in _read(pid, "status", 8192).splitlines() if b":" in line
    )  # fmt: skip
    return found.get(b"Seccomp", b"0").strip() == b"2" and found.get(b"NoNewPrivs", b"0").strip() == b"1"


def login(pid: int) -> int:
    """The id of the login session that a process descends from (pam_loginuid, audit); 0 for none."""
    try:
        number = int(_read(pid, "sessionid", 32) or b"0")
    except ValueError:
        return 0
    return 0 if number == _NO_LOGIN else number


def slurm_job(pid: int) -> int | None:
    """The Slurm job of a process: by its control group, which it cannot choose; None for none.

    Slurm names them `…/job_ID/step_…` (cgroup v1 and v2: slurm.schedmd.com/cgroup_v2.html).
    """
    for line in _read(pid, "cgroup", 16384).splitlines():
        for part in line.split(b"/"):
            if part.startswith(b"job_") and part[4:].isdigit() and len(part) < 24:
                return int(part[4:])
    return None


def variable(pid: int, name: bytes) -> str:
    """A variable of the environment with which a process was started: a claim, which it could choose."""
    raw = _read(pid, "environ", _ENVIRONMENT_MOST)
    for part in raw.split(b"\0"):
        key, equals, value = part.partition(b"=")
        if equals and key == name:
            return value.decode("utf-8", "replace")
    return ""


def servers(comms: tuple[str, ...], uid: int) -> Iterator[int]:
    """Give the pids of a user's processes whose kernel's name is one of these."""
    for found in processes():
        if found.comm in comms and owner(found.pid) == uid:
            yield found.pid


def listens_at(pid: int, path: str) -> bool:
    """Whether a process listens on the unix socket of that path."""
    inodes = set()
    for line in _read(pid, "net/unix", 16 << 20).splitlines()[1:]:
        words = line.split(None, 7)
        if len(words) == 8 and words[7] == path.encode("utf-8", "surrogateescape"):
            inodes.add(int(words[6]))
    return bool(inodes and inodes & sockets(pid))


def sockets(pid: int) -> set[int]:
    """Inodes of a process's sockets."""
    out = set()
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if link.startswith("socket:["):
                out.add(int(link[8:-1]))
    except OSError:
        pass  # gone meanwhile
    return out


def root_installed(path: str) -> bool:
    """Whether a program is root's, and nothing on the way, links included, lets another replace it.

    From the top down, so that nothing is looked at below a directory that another may write: what lies there may be a
    file system of his own.
    """
    if not path.startswith("/") or not _roots(os.path.normpath(path)):
        return False
    real = os.path.realpath(path)
    return _roots(real)


def _roots(path: str) -> bool:
    at = "/"
    for part in ("", *path.strip("/").split("/")):
        at = os.path.join(at, part) if part else at
        try:
            found = os.lstat(at)
        except OSError:
            return False
        if stat.S_ISLNK(found.st_mode):
            if found.st_uid != 0:
                return False
            # A link of root's on the way (/bin): what it leads to is judged as the real path.
            return _roots(os.path.realpath(at)) if at != path.rstrip("/") else True
        if found.st_uid != 0 or found.st_mode & 0o022:
            return False
    return True


def _read(pid: int, name: str, most: int) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as stream:
            parts = []
            while most > 0 and (part := stream.read(most)):
                parts.append(part)
                most -= len(part)
            return b"".join(parts)
    except OSError:
        return b""
