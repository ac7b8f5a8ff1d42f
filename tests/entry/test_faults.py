"""Nobody is locked out: whatever is broken, what the site has chosen happens, within its deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.conftest import GUARD, ROOT_HERE, Account
from tests.entry.conftest import wrapper

DEADLINE = 2.0
SLACK = 6.0
"""What a loud machine may add, in seconds: the deadline is guard's own waiting, not the machine's speed."""


class Place:
    """A configuration of its own, and a way in to try."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.config = account.directory("entry", account.state.parent)
        self.state = account.directory("state", account.state.parent)
        self.state.chmod(0o700)
        self.login = wrapper(account, self.config)
        self.login.write_text(self.login.read_text().replace(str(account.state), str(self.state)))
        self.env: dict[str, str] = {}
        self.cwd: Path = Path("/")

    def settings(self, text: str) -> None:
        self.account.write(self.config / "entry.toml", text)

    def shell(self, command: str) -> subprocess.CompletedProcess[str]:
        """One command through the login shell, as sshd starts it."""
        return self.account.command([str(self.login), "-c", command], env=self.env, cwd=self.cwd, timeout=60)


@pytest.fixture
def place(account: Account) -> Place:
    return Place(account)


@contextmanager
def unreadable_policy(place: Place) -> Iterator[None]:
    place.account.write(place.config / "site.toml", "this is = = no toml\n")
    yield


@contextmanager
def unreadable_settings(place: Place) -> Iterator[None]:
    text = (place.config / "entry.toml").read_text() if (place.config / "entry.toml").exists() else ""
    if "refuse" in text:
        pytest.skip("what does not load cannot say what to do")
    place.settings("on_fault = 7\n")
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
import ctypes, os, struct, sys
# A FUSE file system that is mounted and never answers: what a dead server looks like.
fd = os.open('/dev/fuse', os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
options = f'fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other'
if libc.mount(b'hung', sys.argv[1].encode(), b'fuse.hung', 0, options.encode()):
    sys.exit(f'mount: {os.strerror(ctypes.get_errno())}')
request = os.read(fd, 1 << 17)
unique = struct.unpack('<IIQ', request[:16])[2]
out = struct.pack('<IIIIHHIIHHI', 7, 31, 0, 0, 0, 0, 1 << 16, 1, 0, 0, 0) + bytes(28)
os.write(fd, struct.pack('<IiQ', 16 + len(out), 0, unique) + out)
print('hung', flush=True)
sys.stdin.read()
"""


@contextmanager
def hung(path: Path) -> Iterator[None]:
    """A directory whose file system never answers."""
    if not ROOT_HERE or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and /dev/fuse: mounts a file system that never answers")
    server = subprocess.Popen(["/usr/bin/python3", "-c", HANG, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stderr is not None
        if server.stdout.readline() != "hung\n":
            pytest.skip(f"no file system of ours can be mounted: {server.stderr.read()}")
        yield
    finally:
        server.kill()  # its end of the connection goes, and what waits gets an error
        server.wait()
        subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


@contextmanager
def hung_home(place: Place) -> Iterator[None]:
    home = place.account.directory("hung", place.account.state.parent)
    with hung(home):
        place.env["HOME"] = str(home)
        yield


@contextmanager
def hung_state(place: Place) -> Iterator[None]:
    with hung(place.state):
        yield


@contextmanager
def silent_service(place: Place) -> Iterator[None]:
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


Fault = Callable[[Place], AbstractContextManager[None]]
BREAKING: list[Fault] = [unreadable_policy, unreadable_settings, hung_home, hung_state, state_of_another]
BEARABLE: list[Fault] = [full_disk, silent_service]
"""What breaks a start, and what a start goes on with."""


@pytest.mark.parametrize("fault", BREAKING, ids=lambda f: f.__name__)
@pytest.mark.parametrize("choice", ["plain", "refuse"])
def test_a_login_gets_what_the_site_chose(fault: Fault, choice: str, place: Place) -> None:
    place.settings(f'on_fault = "{choice}"\n')
    sound = place.shell("echo in; grep -c NoNewPrivs.*1 /proc/self/status")
    assert sound.stdout.split() == ["in", "1"], sound.stderr
    with fault(place):
        began = time.monotonic()
        done = place.shell("echo in; grep NoNewPrivs /proc/self/status")
        took = time.monotonic() - began
    assert took < DEADLINE + SLACK, done
    if choice == "plain":
        assert done.stdout.split() == ["in", "NoNewPrivs:", "0"], done
        assert "runs without guard" in done.stderr
        assert done.returncode == 0
    else:
        assert (done.returncode, done.stdout) == (125, ""), done
        assert "no shell" in done.stderr


@pytest.mark.parametrize("fault", BEARABLE, ids=lambda f: f.__name__)
def test_a_login_goes_on_confined_where_that_can_be(fault: Fault, place: Place) -> None:
    place.settings('on_fault = "refuse"\n')
    with fault(place):
        began = time.monotonic()
        done = place.shell("echo in; grep -c NoNewPrivs.*1 /proc/self/status")
        assert time.monotonic() - began < DEADLINE + SLACK
    assert done.stdout.split() == ["in", "1"], done.stderr


@pytest.mark.root
def test_process_limit(place: Place) -> None:
    """No further process can be started: the shell is had without one."""
    place.settings('on_fault = "plain"\n')
    done = place.account.command(
        ["/usr/bin/prlimit", "--nproc=1:1", str(place.login), "-c", "echo in"], timeout=60
    )
    assert done.stdout == "in\n", done.stderr
    assert "no process can be started" in done.stderr


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


def test_over_quota(place: Place) -> None:
    """No file can grow: RLIMIT_FSIZE is what an ordinary user's quota looks like to a program."""
    place.settings('on_fault = "refuse"\n')
    place.shell("true")  # a plan is at hand
    done = place.account.command(["/usr/bin/prlimit", "--fsize=0:0", str(place.login), "-c", "echo in"], timeout=60)
    assert done.stdout == "in\n", done.stderr


def test_a_name_service_that_never_answers(place: Place) -> None:
    """The name service is a socket (nscd's protocol) at which nobody answers; only within a mount namespace of ours."""
    if not ROOT_HERE:
        pytest.skip("needs root: a mount namespace")
    place.settings('on_fault = "plain"\n')
    folder = place.account.directory("nscd", place.account.state.parent)
    script = f"""
mount --make-rprivate /
mkdir -p /run/nscd && mount --bind {folder} /run/nscd
exec /usr/bin/python3 -c 'import os, sys; g, u = map(int, sys.argv[1:3]); os.setgroups([]); os.setgid(g); os.setuid(u)
os.execv(sys.argv[3], sys.argv[3:])' {place.account.gid} {place.account.uid} {place.login} -c 'echo in'
"""
    import socket

    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(str(folder / "socket"))
        os.chmod(folder / "socket", 0o666)
        nobody.listen(64)
        had = os.path.isdir("/run/nscd")
        began = time.monotonic()
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script], env=place.account.environment(), capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL, timeout=60, cwd="/",
        )  # fmt: skip
        took = time.monotonic() - began
        if not had:
            os.rmdir("/run/nscd")
    assert "in\n" in done.stdout, done.stderr
    assert took < DEADLINE + SLACK, done


def test_the_interpreter_is_gone(place: Place) -> None:
    """The wrapper that ships looks before it hands over."""
    script = place.account.write(
        place.config / "guard-shell", Path(GUARD).with_name("guard-shell").read_text().replace(GUARD, "/nonexistent/guard"), 0o755
    )  # fmt: skip
    done = place.account.command([str(script), "-c", "echo in $0"])
    assert done.stdout == "in /bin/bash\n", done.stderr
    sound = place.account.command([str(Path(GUARD).with_name("guard-shell")), "-c", "echo in; grep -c NoNewPrivs.*1 /proc/self/status"])
    assert sound.stdout.split() == ["in", "1"], sound.stderr


@pytest.mark.root
def test_roots_way_in_opens_nothing_of_guards(place: Place) -> None:
    place.settings("on_fault = 7\n")
    done = subprocess.run([str(place.login), "-c", "echo in; id -u"], capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}, cwd="/")
    assert (done.stdout, done.stderr) == ("in\n0\n", "")


def test_groups_that_are_not_named_get_a_plain_shell(place: Place) -> None:
    place.settings('users = ["somebody-else"]\n')
    assert place.shell("grep -c NoNewPrivs.*0 /proc/self/status").stdout == "1\n"
    place.settings(f'users = ["{place.account.name}"]\n')
    done = place.shell("grep -c NoNewPrivs.*1 /proc/self/status")
    assert done.stdout == "1\n", done.stderr


def test_the_switch(place: Place) -> None:
    """Off: plain at once, whatever is broken. On again, or past its end: confined."""
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


@pytest.mark.parametrize("fault", [unreadable_policy, hung_home, hung_state, state_of_another], ids=lambda f: f.__name__)
@pytest.mark.parametrize("choice", ["plain", "refuse"])
def test_a_shim_does_what_the_site_chose(fault: Fault, choice: str, place: Place) -> None:
    place.settings(f'on_fault_agent = "{choice}"\n')
    home = place.account.directory("agent")
    place.account.write(home / "claude", "#!/bin/bash\necho in; grep NoNewPrivs /proc/self/status\n", 0o755)
    place.cwd = place.account.directory("project")
    where = {"GUARD_CONFIG_DIR": str(place.config), "GUARD_STATE_DIR": str(place.state), "PATH": f"{home}:/usr/bin:/bin"}
    with fault(place):
        began = time.monotonic()
        done = place.account.command([GUARD, "shim", "exec", "claude"], env={**where, **place.env}, cwd=place.cwd)
        took = time.monotonic() - began
    assert took < DEADLINE + SLACK
    if choice == "plain":
        assert done.stdout.split() == ["in", "NoNewPrivs:", "0"], done
    else:
        assert (done.returncode, done.stdout) == (125, ""), done
    assert done.stderr


def test_a_shim_in_a_project_that_hangs(place: Place) -> None:
    """The working directory itself never answers: the agent is refused in time, and no terminal is lost."""
    home = place.account.directory("agent")
    place.account.write(home / "claude", "#!/bin/bash\necho in\n", 0o755)
    project = place.account.directory("hungproject")
    where = {"GUARD_CONFIG_DIR": str(place.config), "GUARD_STATE_DIR": str(place.state), "PATH": f"{home}:/usr/bin:/bin"}
    with hung(project):
        began = time.monotonic()
        done = place.account.command(
            [GUARD, "run", "--help"], env=where, cwd="/", timeout=60
        )
        assert done.returncode == 0
        done = place.account.command(
            ["/usr/bin/python3", "-c", f"import os; os.environ.update({where!r}); os.environ['HOME'] = {str(project)!r}; os.execv({GUARD!r}, [{GUARD!r}, 'shim', 'exec', 'claude'])"],
            cwd="/", timeout=60,
        )  # fmt: skip
        took = time.monotonic() - began
    assert took < DEADLINE + SLACK
    assert done.returncode == 125
