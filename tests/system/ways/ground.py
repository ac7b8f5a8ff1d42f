"""What the ways need: services, processes and things of the user's outside, and places laid out anew for each run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.beds.sshd import client_config, new_key, sshd
from tests.conftest import ROOT_HERE, Account
from tests.system.stage import PYTHON, Stage, address_of_host
from tests.system.ways.table import Way

HERE = Path(__file__).parent
VICTIMS = 13

# One process is every service: it prints what it serves as JSON, and touches each file that a datagram names.
SERVICES = """
import json, os, select, socket, sys
place, project, address, abstract, count = sys.argv[1:]
held = []
def tcp(host, port=0):
    new = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    new.bind((host, port))
    new.listen(512)
    held.append(new)
    return new.getsockname()[1]
def unix(path, kind=socket.SOCK_STREAM):
    new = socket.socket(socket.AF_UNIX, kind)
    new.bind(path)
    if kind != socket.SOCK_DGRAM:
        new.listen(512)
    held.append(new)
port = tcp("127.0.0.1")
tcp("::1", port)
wide = tcp(address) if address else 0
udp = socket.socket(type=socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", 0))
for name in ("service", "bus", "systemd/private", "docker.sock", ".X11-unix/X7"):
    os.makedirs(os.path.dirname(f"{place}/{name}"), exist_ok=True)
    unix(f"{place}/{name}")
unix(f"{place}/packet", socket.SOCK_SEQPACKET)
unix(f"{place}/datagram", socket.SOCK_DGRAM)
unix("\\0" + abstract)
unix("\\0" + abstract + "-packet", socket.SOCK_SEQPACKET)
unix("\\0" + abstract + "-datagram", socket.SOCK_DGRAM)
victims = []
os.chdir(place)
for _ in range(int(count)):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.execv("/bin/sleep", ["sleep", "600"])
    victims.append(pid)
print(json.dumps({"port": port, "wide": wide, "udp": udp.getsockname()[1], "victims": victims}), flush=True)
while True:
    text = udp.recv(4096).decode()
    if "/answers-" in text:
        open(text, "w").close()
"""


class Ground:
    """One run's places, and the services behind them.

    Args:
        account: whose.
        things: what all runs share, as `services` yields it.
    """

    def __init__(self, account: Account, things: dict[str, str]) -> None:
        self.account = account
        self.stage = stage = Stage(account)
        self.values = dict(things)
        write = account.write
        for name in ("chmod", "fchmod", "fchmodat", "fchmodat2", "fchmodat2_empty", "proc", "high_bits", "libc",
                     "suid", "suid2", "traced", "int80"):  # fmt: skip
            write(stage.project / f"mode-{name}")
        for name in ("acl-1", "acl-2", "acl-3"):
            write(stage.project / name)
        write(stage.project / "script", 'touch "$MARK"\n')
        write(stage.project / "a/hook", "#!/bin/sh\n", 0o755)
        write(stage.project / "crontab", "0 0 1 1 * true\n")
        account.command(["git", "init", "-q", str(stage.project)])
        self.second = account.directory("second")
        account.command(["git", "init", "-q", "--template=", str(self.second)])
        (stage.project / "listed").mkdir()
        if ROOT_HERE:
            os.chown(stage.project / "listed", account.uid, account.gid)
        write(Path(things["segment"] + "-spare"), "secret")
        write(stage.project / ".git/hooks/pre-commit.sample", "#!/bin/sh\n")
        for name in ("key", "key.pub"):
            write(stage.project / name, Path(things["services"], name).read_bytes(), 0o600)
        for name in ("deeds.py", "tried.py"):
            write(stage.project / name, (HERE / name).read_bytes())
        self.answers = account.directory("answers")  # by that name SERVICES knows it
        # A service's socket in the project, that somebody outside serves.
        os.link(f"{things['services']}/service", stage.project / "service")
        ssh = account.home / ".ssh"
        for name in ("key", "spare-key"):
            write(ssh / name, "secret", 0o600)
        self.values |= {
            "project": str(stage.project), "second": str(self.second), "home": str(stage.home), "elsewhere": str(stage.elsewhere),
            "user_home": str(account.home), "answers": str(self.answers),
        }  # fmt: skip
        if "port_ssh" in things:
            config = client_config(account, stage.project / "ssh_config", int(things["port_ssh"]), stage.project / "key")
            self.values["ssh_config"] = str(config)
        if ROOT_HERE:
            program = stage.project / "id"
            program.write_bytes(Path("/usr/bin/id").read_bytes())
            program.chmod(0o4755)
            self.values["setuid"] = str(program)

    def possible(self, way: Way) -> str:
        """Why a way cannot be tried here, "" if it can."""
        return "" if not way.needs or self.values.get(way.needs) else f"nothing here: {way.needs}"

    def attempt(self, ways: Sequence[Way], head: Sequence[str] = ()) -> dict[str, int]:
        """Try them all in one session; name to what it came to."""
        handed = os.open(self.stage.home, os.O_RDONLY | os.O_DIRECTORY)
        words = []
        for at, way in enumerate(ways):
            values = self.values | {"new": f"{self.stage.project}/new-{at}", "handed": str(handed)}
            words.append([word.format(**values) for word in way.words])
        listed = self.account.write(self.stage.project / "ways.json", json.dumps(words))
        argv = [PYTHON, "-IS", str(self.stage.project / "tried.py"), str(self.stage.project), str(listed)]
        try:
            done = self.account.command([*head, *argv], cwd=self.stage.project, timeout=600, pass_fds=(handed,))
        finally:
            os.close(handed)
        assert done.stdout.startswith("["), done.stdout + done.stderr
        return dict(zip((way.name for way in ways), json.loads(done.stdout), strict=True))

    def remove(self) -> None:
        self.stage.remove()
        for place in (self.answers, self.second):
            shutil.rmtree(place, ignore_errors=True)

    def projects(self) -> list[str]:
        """The options that name this run's projects."""
        return ["--project", str(self.stage.project), "--project", str(self.second)]


@contextmanager
def services(account: Account) -> Iterator[dict[str, str]]:
    """Everything of the user's that runs or lies outside, shared by the runs."""
    with ExitStack() as stack:
        place = account.directory("sv", account.state.parent)
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        address = address_of_host()
        abstract = f"guard-ways-{os.getpid()}"
        process = _start(stack, account, [PYTHON, "-c", SERVICES, str(place), "-", address, abstract, str(VICTIMS)])
        told = json.loads(process.stdout.readline())  # type: ignore[union-attr]
        for pid in told["victims"]:
            stack.callback(_end, pid)
        values = {f"victim{at}": str(pid) for at, pid in enumerate(told.pop("victims"))}
        values |= {key: str(value) for key, value in told.items()}
        values |= {"services": str(place), "abstract": abstract, "address": address}
        yield values | _things(stack, account, place)


def _start(stack: ExitStack, account: Account, argv: Sequence[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(  # type: ignore[call-overload]
        list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=account.environment(),
        start_new_session=True, cwd=account.home, **account.identity(),
    )  # fmt: skip
    stack.callback(process.stdout.close)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, 9)


def _things(stack: ExitStack, account: Account, place: Path) -> dict[str, str]:
    """What lies outside: keys, memory, files of other programs, a terminal, an agent, a multiplexer, an sshd."""
    import pty

    key = str(0x4777_0000 + os.getpid() % 65536)
    queue = f"guard-ways-{os.getpid()}"
    stage = Stage(account)
    for act, word in (("shared_memory", key), ("semaphore", key), ("messages", key), ("posix_queue", queue)):
        assert stage.bare(act, word) == 0
    stack.callback(account.command, ["sh", "-c", f"ipcrm -M {key} -S {key} -Q {key}"])
    stack.callback(stage.remove)
    stack.callback(stage.bare, "remove_posix_queue", queue)
    segment, tmpfile = f"/dev/shm/guard-ways-{os.getpid()}", f"/tmp/guard-ways-{os.getpid()}"
    vartmpfile = f"/var/tmp/guard-ways-{os.getpid()}"
    shared = place / "shared"
    for path in (segment, tmpfile, vartmpfile):
        account.write(Path(path), "secret")
    for path in (segment, segment + "-spare", tmpfile, tmpfile + "-new", vartmpfile, vartmpfile + "-new"):
        stack.callback(Path(path).unlink, missing_ok=True)
    shared.write_text("x")
    shared.chmod(0o666)
    for path in (".aws/credentials", ".netrc", ".bash_history"):
        account.write(account.home / path, "secret", 0o600)
    master, slave = pty.openpty()
    stack.callback(os.close, master)
    stack.callback(os.close, slave)
    terminal = os.ttyname(slave)
    if ROOT_HERE:
        os.chown(terminal, account.uid, -1)
    found = {"key": key, "queue": queue, "segment": segment, "tmpfile": tmpfile, "vartmpfile": vartmpfile,
             "shared": str(shared), "terminal": terminal}  # fmt: skip
    for program in ("crontab", "at"):
        if shutil.which(program, path="/usr/bin:/usr/sbin:/bin"):
            found[program] = program
    stack.callback(account.command, ["sh", "-c", "crontab -r; for j in $(atq -q g | cut -f1); do atrm $j; done"])
    if shutil.which("sshd", path="/usr/sbin:/usr/bin"):
        found["port_ssh"] = str(stack.enter_context(sshd(account, place)).port)
    else:
        new_key(account, place / "key")
    if shutil.which("tmux"):
        account.command(["tmux", "-S", str(place / "tmux"), "-f", "/dev/null", "new-session", "-d", "sleep 600"])
        stack.callback(account.command, ["tmux", "-S", str(place / "tmux"), "kill-server"])
        found["tmux"] = str(place / "tmux")
    if shutil.which("ssh-agent"):
        _start(stack, account, ["ssh-agent", "-D", "-a", str(place / "agent")]).stdout.readline()  # type: ignore[union-attr]
        _until(place / "agent")
        account.command(["ssh-add", "-q", str(place / "key")], env={"SSH_AUTH_SOCK": str(place / "agent")})
        found["agent"] = str(place / "agent")
    return found


def _until(path: Path) -> None:
    for _ in range(400):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} never came")
