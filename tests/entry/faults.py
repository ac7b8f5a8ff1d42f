"""What can be broken at a login node, and a place to break it in: a configuration, a state and a home of its own."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from guard.entry.shim import script
from tests.conftest import GUARD, ROOT_HERE, Account

SAY = "echo in; while read -r line; do case $line in NoNewPrivs*) echo $line; esac; done < /proc/self/status"
"""What a shell or an agent says of itself, with no process of its own."""
REAL = """\
#!/usr/bin/python3 -IS
import os, sys, time
# stands for the account's shell and for an agent: says the same, and goes on with what `exec` names
_, _, command = (sys.argv[2] if sys.argv[1:2] == ['-c'] else '').partition('; exec ')
status = [line for line in open('/proc/self/status') if line.startswith('NoNewPrivs')]
os.write(2 if command else 1, f'in\\n{" ".join(status[0].split())}\\nat {time.monotonic()}\\n'.encode())
if command:
    os.execvp(command.split()[0], command.split())
"""
"""A real shell looks at its working directory, and bash reads ~/.bashrc for scp: where those hang, they hang by
themselves, with guard and without."""
SSH = """\
#!/bin/sh
# stands for ssh and sshd: has a command of scp's run by the login shell, as sshd has it, which says how it runs
while [ "$1" != -- ]; do shift; done
case $3 in sftp) set -- -- "$2" /usr/lib/openssh/sftp-server ;; esac
{variables} exec {around} {login} -c "{{ {say}; }} >&2; exec $3"
"""
PLAIN, CONFINED, REFUSED = "plain", "confined", "refused"


@dataclass
class Place:
    """What a fault breaks, and what of a start it changes.

    Attributes:
        account: who comes in.
        env: further variables.
        around: a command that runs the way in, as `prlimit` does. as_root: whether that needs root.
    """

    account: Account
    env: dict[str, str] = field(default_factory=dict)
    around: tuple[str, ...] = ()
    as_root: bool = False

    def __post_init__(self) -> None:
        self.config = self.account.directory("entry", self.account.state.parent)
        self.state = self.account.directory("state", self.account.state.parent)
        self.state.chmod(0o700)
        self.programs = self.account.directory("programs")
        self.work = self.account.directory("work")
        self.env["SHELL"] = str(self.account.write(self.programs / "real", REAL, 0o755))
        self.account.write(self.programs / "claude", REAL, 0o755)
        self.front(GUARD)

    def front(self, program: str) -> None:
        """The shipped login shell and a shim, in front of this guard and of our configuration."""
        shell = Path(GUARD).with_name("guard-shell").read_text().replace(GUARD, program).replace("/etc/guard", str(self.config))
        keep = f"GUARD_CONFIG_DIR={self.config} GUARD_STATE_DIR={self.state}\nexport GUARD_CONFIG_DIR GUARD_STATE_DIR\n"
        self.login = self.account.write(self.config / "login", shell.replace("unset GUARD_CONFIG_DIR GUARD_STATE_DIR\n", keep), 0o755)
        self.account.write(self.programs / "shims/claude", script("claude", program), 0o755)

    def settings(self, text: str) -> None:
        self.account.write(self.config / "entry.toml", text)

    def variables(self) -> dict[str, str]:
        where = {"GUARD_CONFIG_DIR": str(self.config), "GUARD_STATE_DIR": str(self.state)}
        return {**where, "PATH": f"{self.programs}/shims:{self.programs}:/usr/bin:/bin", **self.env}

    def run(self, *argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        env = self.variables() if env is None else env
        if not self.as_root:
            return self.account.command(list(argv), env=env, cwd=self.work, timeout=60)
        return subprocess.run(
            argv, env=self.account.environment(env), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60, cwd=self.work
        )  # fmt: skip

    def shell(self, command: str) -> subprocess.CompletedProcess[str]:
        """One command through the login shell, as sshd starts it."""
        return self.run(*self.around, str(self.login), "-c", command)


class Came(NamedTuple):
    """What became of a way in: `outcome`, what was `said` on standard error, and the `seconds` to what runs behind it."""

    outcome: str
    said: str
    seconds: float


def login(place: Place) -> Came:
    """Come in by the login shell."""
    began = time.monotonic()
    done = place.shell(SAY)
    return _came(done.returncode, done.stdout, done.stderr, began)


def shim(place: Place) -> Came:
    """Start an agent by its name."""
    began = time.monotonic()
    done = place.run(*place.around, str(place.programs / "shims/claude"))
    return _came(done.returncode, done.stdout, done.stderr, began)


def scp(place: Place, protocol: str) -> Came:
    """Copy a file from the account through its login shell; the client itself is sound."""
    data = os.urandom(70_000)
    far, near = place.account.write(place.programs / "far", data), place.programs / "near"
    near.unlink(missing_ok=True)
    variables = " ".join(f"{name}={value}" for name, value in place.env.items())
    text = SSH.format(variables=variables, around=shlex.join(place.around), login=place.login, say=SAY.replace("$", "\\$"))
    ssh = place.account.write(place.programs / "ssh", text, 0o755)
    began = time.monotonic()
    done = place.run("scp", protocol, "-S", str(ssh), f"here:{far}", str(near), env={**place.variables(), "HOME": str(place.account.home)})
    if near.exists():
        assert near.read_bytes() == data
        assert done.returncode == 0
        return _came(0, done.stderr, done.stderr, began)
    return _came(125, "", done.stderr, began)


def _came(code: int, out: str, said: str, began: float) -> Came:
    there = re.search(r"NoNewPrivs:\s+([01])\n(?:at ([0-9.]+)\n)?", out)
    end = float(there[2]) if there and there[2] else time.monotonic()
    if code == 125 and not out:
        return Came(REFUSED, said, end - began)
    assert code == 0, (code, out, said)
    assert there, (out, said)
    return Came(CONFINED if there[1] == "1" else PLAIN, re.sub("at [0-9.]+\n", "", said), end - began)


WAYS: dict[str, Callable[[Place], Came]] = {"login": login, "scp": lambda p: scp(p, "-s"), "old scp": lambda p: scp(p, "-O"), "shim": shim}


@contextmanager
def no_interpreter(place: Place) -> Iterator[None]:
    """guard's compiled front is there, and the interpreter behind it is not."""
    from tests.exec import written

    front = written.build("guard")
    front.parent.chmod(0o755)
    place.front(str(front))
    yield
    for file in front.parent.iterdir():
        file.unlink()
    front.parent.rmdir()


@contextmanager
def not_installed(place: Place) -> Iterator[None]:
    place.front("/nonexistent/guard")
    yield


@contextmanager
def unreadable_policy(place: Place) -> Iterator[None]:
    place.account.write(place.config / "site.toml", "this is = = no toml\n")
    yield


@contextmanager
def unreadable_settings(place: Place) -> Iterator[None]:
    """One line of entry.toml is broken; what stands in the others still counts."""
    place.settings((place.config / "entry.toml").read_text() + "deadline = = 2\n")
    yield


@contextmanager
def full_disk(place: Place) -> Iterator[None]:
    """The state's file system has no room: nothing can be recorded, nor a plan kept."""
    if not ROOT_HERE:
        pytest.skip("needs root: mounts")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size=16k,mode=700,uid={place.account.uid}", "none", str(place.state)], check=True)
    try:
        with open(place.state / "filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass
        yield
    finally:
        subprocess.run(["umount", "-l", str(place.state)], check=True)


HANG = """
import ctypes, os, select, struct, sys
# A FUSE file system whose server answers for its root until it is told to stop, and then never: a server that died.
fd = os.open('/dev/fuse', os.O_RDWR | os.O_NONBLOCK)
stop, stopped = (os.open(path, os.O_RDWR) for path in sys.argv[2:])
libc = ctypes.CDLL(None, use_errno=True)
options = f'fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other'
if libc.mount(b'hung', sys.argv[1].encode(), b'fuse.hung', 0, options.encode()):
    sys.exit(f'mount: {os.strerror(ctypes.get_errno())}')
INIT, GETATTR = 26, 3
while True:
    if stop in select.select([stop, fd], [], [])[0]:
        os.write(stopped, os.read(stop, 1))
        sys.stdin.read()
        break
    request = os.read(fd, 1 << 17)
    opcode, unique = struct.unpack('<4xIQ', request[:16])
    out, error = b'', 0
    if opcode == INIT:
        out = struct.pack('<IIIIHHIIHHI', 7, 31, 0, 0, 0, 0, 1 << 16, 1, 0, 0, 0) + bytes(28)
    elif opcode == GETATTR:
        out = struct.pack('<QIIQQQQQQIIIIIIIII4x', 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40777, 2, 0, 0, 0, 4096)
    else:
        error = -38
    os.write(fd, struct.pack('<IiQ', 16 + len(out), error, unique) + out)
    if opcode == INIT:
        print('mounted', flush=True)
"""
STOP = """
import os, sys
# Enter a directory, have its file system hang, and go on with a command.
where, stop, stopped, *command = sys.argv[1:]
os.chdir(where)
os.write(os.open(stop, os.O_WRONLY), b'x')
os.read(os.open(stopped, os.O_RDONLY), 1)
os.execvp(command[0], command)
"""


@contextmanager
def hanging(place: Place, path: Path) -> Iterator[tuple[str, ...]]:
    """A directory whose file system hangs once the command that this gives was run in front of another."""
    if not ROOT_HERE or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and /dev/fuse: mounts a file system that never answers")
    pipes = [place.programs / name for name in ("stop", "stopped")]
    for pipe in pipes:
        os.mkfifo(pipe)
        pipe.chmod(0o666)
    words = [str(path), *map(str, pipes)]
    server = subprocess.Popen(["/usr/bin/python3", "-c", HANG, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stderr is not None
        if server.stdout.readline() != "mounted\n":
            pytest.skip(f"no file system of ours can be mounted: {server.stderr.read()}")
        yield ("/usr/bin/python3", "-IS", "-c", STOP, *words)
    finally:
        server.kill()  # its end of the connection goes, and what waits gets an error
        server.communicate()
        subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


@contextmanager
def hung(place: Place, path: Path) -> Iterator[None]:
    """A directory whose file system never answers."""
    with hanging(place, path) as stop:
        subprocess.run([*stop, "/bin/true"], check=True, cwd="/")
        yield


@contextmanager
def hung_home(place: Place) -> Iterator[None]:
    home = place.account.directory("hung", place.account.state.parent)
    with hung(place, home):
        place.env["HOME"] = str(home)
        yield


@contextmanager
def hung_state(place: Place) -> Iterator[None]:
    with hung(place, place.state):
        yield


@contextmanager
def hung_project(place: Place) -> Iterator[None]:
    """The working directory: it is entered while all is well, and answers nothing from then on."""
    with hanging(place, place.account.directory("project", place.account.state.parent)) as stop:
        place.around = stop
        yield


@contextmanager
def hung_installation(place: Place) -> Iterator[None]:
    """guard itself lies on a file system that never answers."""
    installed = place.account.directory("installed", place.account.state.parent)
    with hung(place, installed):
        place.front(str(installed / "guard"))
        yield


@contextmanager
def stopped_service(place: Place) -> Iterator[None]:
    """The resident service was stopped (SIGSTOP): its socket takes connections, and nobody answers."""
    server = subprocess.Popen(
        [GUARD, "serve", "redact"], env=place.account.environment({"GUARD_STATE_DIR": str(place.state)}),
        stdin=subprocess.DEVNULL, **place.account.identity(),  # type: ignore[call-overload]
    )  # fmt: skip
    try:
        end = time.monotonic() + 30
        while not (place.state / "redact.sock").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        server.send_signal(signal.SIGSTOP)
        yield
    finally:
        server.send_signal(signal.SIGCONT)
        server.kill()
        server.wait()


@contextmanager
def state_of_another(place: Place) -> Iterator[None]:
    place.state.chmod(0o777)
    yield


@contextmanager
def over_quota(place: Place) -> Iterator[None]:
    """No file can grow: RLIMIT_FSIZE is what an ordinary user's quota looks like to a program."""
    place.around = ("/usr/bin/prlimit", "--fsize=0:0")
    yield


@contextmanager
def process_limit(place: Place) -> Iterator[None]:
    if not ROOT_HERE:
        pytest.skip("needs root: an account without other processes")
    place.around = ("/usr/bin/prlimit", "--nproc=1:1")
    yield


@contextmanager
def process_limit_of_bash(place: Place) -> Iterator[None]:
    """The same where /bin/sh is bash, as on RHEL: at the limit it would try for 15 s by itself."""
    (place.programs / "sh").symlink_to("/bin/bash")
    for file in (place.login, place.programs / "shims/claude"):
        file.write_text(file.read_text().replace("#!/bin/sh", f"#!{place.programs}/sh", 1))
    with process_limit(place):
        yield


@contextmanager
def silent_names(place: Place) -> Iterator[None]:
    """The name service is a socket (nscd's protocol) at which nobody answers; only within a mount namespace of ours."""
    if not ROOT_HERE:
        pytest.skip("needs root: a mount namespace")
    folder = place.account.directory("nscd", place.account.state.parent)
    become = f"""
mount --make-rprivate / && mount --bind {folder} /run/nscd
exec /usr/bin/python3 -c 'import os, sys; os.setgroups([]); os.setgid({place.account.gid}); os.setuid({place.account.uid})
os.execvp(sys.argv[1], sys.argv[1:])' "$@"
"""
    had = os.path.isdir("/run/nscd")
    os.makedirs("/run/nscd", exist_ok=True)
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(str(folder / "socket"))
        os.chmod(folder / "socket", 0o666)
        nobody.listen(64)
        place.around, place.as_root = ("unshare", "-m", "sh", "-c", become, "sh"), True
        yield
    if not had:
        os.rmdir("/run/nscd")


Fault = Callable[[Place], AbstractContextManager[None]]
