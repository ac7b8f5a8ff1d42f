"""`guard explain` never says denied where it is not, nor allowed where it is: each answer beside the act itself.

One session for each way of being confined performs every act; `guard explain` is asked about each in a fresh
process of its own. Without guard every act that is said to be denied by guard is done, so each refusal is guard's.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import GUARD, LONG, ROOT, Account
from tests.system.stage import NO_MASK, PYTHON, Stage

HERE = Path(__file__).parent
STRICT = """
schema = 1
name = "strict"
extends = "login-node"
[files]
deny = ["{project}/kept"]
mask = "never"
[network]
bind = "deny"
bind_allow = [
  { addr = "127.0.0.2", ports = ["2000-2009"], reason = "a test" },
  { addr = "loopback", ports = [2010], exec = "/usr/bin/srun", reason = "a test" },
]
connect = "any"
[modes]
world_writable = "deny"
"""
LOOSE = """
schema = 1
name = "loose"
extends = "login-node"
[controls]
files = "off"
bind = "observe"
setuid = "observe"
unix_sockets = "off"
"""

# What is asked about, in every way of being confined. {…} is filled in by the ground below; after `!` what an
# ordinary user may not do without guard either.
FILES = """
read {project}/file
read {project}
read {project}/to-file
read {project}/to-elsewhere
read {project}/to-ssh
read {home}/file
read {home}
read {user_home}
read {user_home}/.ssh/id_explained
read {user_home}/.ssh
read {user_home}/keys/id_explained
read {user_home}/.config/gh/hosts.yml
read {elsewhere}/file
read {elsewhere}
read /etc/passwd
read /etc/shadow
read /proc/self/status
read /proc/{victim}/environ
read /proc/{victim}/status
read /dev/zero
read /dev
read /dev/shm/explained-{victim}
read /run
write {project}/file
write {project}/new
write {project}
write {project}/full/inner/new
write {project}/to-file
write {project}/to-elsewhere
write {project}/to-nothing
write {project}/.git/config
write {project}/.git/hooks/pre-commit
write {project}/.git/hooks/new
write {project}/.git/description
write {project}/closed
write {home}/file
write {home}/new
write {home}
write {user_home}
write {user_home}/.bashrc
write {user_home}/guard-work/new
write {user_home}/.ssh/id_explained
write {user_home}/.ssh/new
write {elsewhere}/file
write {elsewhere}/new
! write /etc/passwd
write /dev/null
write /dev/shm/new-{victim}
write /dev/shm/explained-{victim}
! write /dev/kmsg
write /proc/self/comm
exec /usr/bin/true
exec {project}/tool
exec {project}/file
exec {project}/script
exec {project}/script-elsewhere
exec {home}/tool
exec {elsewhere}/tool
exec {project}/to-tool
"""
KEPT = """
read {project}/kept/secret
read {project}/kept
read {project}/file
write {project}/kept/secret
write {project}/kept/new
write {project}/fresh
write {project}/full/fresh
chmod 0644 {project}/kept/secret
"""
OTHERS = """
chmod 0644 {project}/other
chmod 0666 {project}/other
chmod 0777 {project}/full
chmod 1777 {project}/full
chmod 2775 {project}/full
chmod 0755 {project}/full
chmod 4755 {project}/other
chmod 2755 {project}/other
chmod 0644 {home}/file
chmod 0666 {home}/file
chmod 0644 {elsewhere}/file
chmod 0644 {project}/to-elsewhere
chmod 0600 {project}/.git/config
! chmod 0644 /etc/passwd
bind 127.0.0.1:0
bind 127.0.0.1:{free}
bind 127.0.0.2:2003
bind 127.0.0.1:2010
bind [::1]:0
bind 0.0.0.0:0
bind 0.0.0.0:{free}
bind [::]:0
bind [::ffff:0.0.0.0]:0
bind [::ffff:127.0.0.1]:0
bind 10.99.88.77:{free}
! bind 127.0.0.1:80
connect 127.0.0.1:{port}
connect 127.0.0.1:443
connect 127.0.0.1:6817
connect [::1]:{port}
connect 0.0.0.0:{port}
connect [::ffff:127.0.0.1]:{port}
connect 192.0.2.1:443
connect 192.0.2.1:22
connect 192.0.2.1:25
connect 192.0.2.1:{port}
connect 169.254.169.254:80
connect [fe80::1]:443
unix {elsewhere}/socket
unix {project}/to-socket
unix {project}/socket
unix {user_home}/.ssh/socket
unix {project}/nothing
unix @explained-{victim}
unix @nobody-{victim}
connect 127.0.0.1:{free}
"""

LISTENERS = """
import os, socket, sys, time
held = []
for path in sys.argv[2:]:
    new = socket.socket(socket.AF_UNIX)
    if path.startswith("@"): new.bind("\\0" + path[1:])
    else:
        os.chdir(os.path.dirname(path)); new.bind(os.path.basename(path))
    new.listen(64); held.append(new)
tcp = socket.socket(); tcp.bind(("127.0.0.1", 0)); tcp.listen(64)
six = socket.socket(socket.AF_INET6); six.bind(("::1", tcp.getsockname()[1])); six.listen(64)
print(tcp.getsockname()[1], flush=True); time.sleep(600)
"""
# Holds a listener of its own, so that guard cannot have one: no supervisor.
OCCUPIED = """
import ctypes, fcntl, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
instruction = (ctypes.c_char * 8)(*b"\\x06\\0\\0\\0\\0\\0\\xff\\x7f")
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
program = Program(1, ctypes.addressof(instruction))
number = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
listener = libc.syscall(number, 1, 8, ctypes.byref(program))
assert listener >= 0, ctypes.get_errno()
os.set_inheritable(listener, True)
os.execv(sys.argv[1], sys.argv[1:])
"""
WAYS = {
    "masked": ("login-node", (), FILES + KEPT + OTHERS),
    "unmasked": (NO_MASK, (), FILES),
    "unsupervised": ("login-node", (PYTHON, "-IS", "-c", OCCUPIED), OTHERS),
    "strict": (STRICT, (), KEPT + OTHERS),
    "loose": (LOOSE, (), OTHERS),
}
DENIED, DONE = "denied", {"allowed": "done", "observed": "done", "denied": "refused", "rewritten": "rewritten"}


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


class Ground:
    """What all acts are done to, and what came of them in each way of being confined."""

    def __init__(self, account: Account) -> None:
        self.stage = stage = Stage(account)
        self.account = account
        write, home = account.write, account.home
        for path in (home / ".ssh/id_explained", home / ".config/gh/hosts.yml", stage.project / ".git/config",
                     stage.project / ".git/hooks/pre-commit", stage.project / ".git/description",
                     home / "guard-work/.keep"):  # fmt: skip
            write(path, "secret")
        if not (home / ".bashrc").exists():
            write(home / ".bashrc", "# start")
        write(stage.project / "kept/secret", "secret")
        write(stage.project / "closed", "secret", 0o444)
        write(stage.project / "script", "#!/bin/sh\nexit 0\n", 0o755)
        write(stage.project / "script-elsewhere", f"#!{stage.elsewhere}/tool\n", 0o755)
        write(stage.project / "deed.py", (HERE / "deed.py").read_bytes())
        for link, target in (
            (stage.project / "to-file", "file"), (stage.project / "to-elsewhere", stage.elsewhere / "file"),
            (stage.project / "to-ssh", home / ".ssh/id_explained"), (stage.project / "to-tool", "/usr/bin/true"),
            (stage.project / "to-nothing", stage.elsewhere / "nothing"), (home / "keys", ".ssh"),
            (stage.project / "to-socket", stage.elsewhere / "socket"),
        ):  # fmt: skip
            link.unlink(missing_ok=True)
            link.symlink_to(target)

    def cases(self, text: str) -> list[list[str]]:
        return [line.removeprefix("! ").format(**self.stage._values).split() for line in _lines(text)]

    def perform(self, text: str, head: list[str]) -> dict[str, str]:
        """Do everything, under what a command line's head makes of it."""
        cases = self.cases(text)
        given = self.account.write(self.stage.project / "cases.json", json.dumps(cases))
        done = self.account.command(
            [*head, PYTHON, "-IS", str(self.stage.project / "deed.py"), str(given)], cwd=self.stage.project, timeout=100
        )
        assert done.returncode == 0, done.stderr
        assert "not started" not in done.stderr
        return dict(zip(map(" ".join, cases), json.loads(done.stdout), strict=True))


@pytest.fixture(scope="module")
def ground(account: Account) -> Iterator[Ground]:
    made = Ground(account)
    stage = made.stage
    sockets = [str(stage.elsewhere / "socket"), str(stage.project / "socket"), str(account.home / ".ssh/socket")]
    with stage.beside([PYTHON, "-IS", "-c", "import time; print('up', flush=True); time.sleep(600)"]) as victim:
        stage.set(victim=victim.pid)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            stage.set(free=probe.getsockname()[1])
        shared = account.write(Path(f"/dev/shm/explained-{victim.pid}"), "secret")
        with stage.beside([PYTHON, "-IS", "-c", LISTENERS, "x", *sockets, f"@explained-{victim.pid}"]) as listener:
            stage.set(port=listener.said)
            yield made
        shared.unlink()
    (account.home / "keys").unlink()
    shutil.copyfile("/etc/skel/.bashrc", account.home / ".bashrc")  # the acts without guard wrote in it
    shutil.rmtree(account.home / ".ssh")
    shutil.rmtree(account.home / "guard-work")
    stage.remove()


@pytest.fixture(scope="module")
def bare(ground: Ground) -> dict[str, str]:
    return ground.perform(FILES + KEPT + OTHERS, [])


@pytest.fixture(scope="module")
def ways(ground: Ground) -> dict[str, tuple[dict[str, str], dict[str, subprocess.CompletedProcess[str]]]]:
    """Way → what happened, and what was said; filled when first asked."""
    return {}


def _tried(ground: Ground, way: str) -> tuple[dict[str, str], dict[str, subprocess.CompletedProcess[str]]]:
    policy, head, text = WAYS[way]
    named = _named(ground, policy)
    happened = ground.perform(text, [*head, GUARD, "run", "--no-project-policy", "--policy", named, "--"])

    def ask(line: str) -> tuple[str, subprocess.CompletedProcess[str]]:
        words = ground.cases(line)[0]
        command = [*head, GUARD, "explain", "--json", "--policy", named, *words]
        return line, ground.account.command(command, cwd=ground.stage.project)

    with ThreadPoolExecutor(2) as pool:
        return happened, dict(pool.map(ask, [line for other, line in ROWS if other == way]))


def _named(ground: Ground, policy: str) -> str:
    return policy if policy == "login-node" else ground.stage.policy(policy)


ROWS = [
    (way, line)
    for way, (_, _, text) in WAYS.items()
    for at, line in enumerate(_lines(text))
    if LONG or way == "masked" or at % 6 == 0
]


def test_there_are_at_least_sixty_acts() -> None:
    assert len(_lines(FILES + OTHERS)) >= 60


@pytest.mark.parametrize(("way", "line"), ROWS, ids=[f"{way}: {line}" for way, line in ROWS])
def test_what_explain_says_is_what_happens(ground, bare, ways, way, line) -> None:
    if way not in ways:
        ways[way] = _tried(ground, way)
    words = " ".join(ground.cases(line)[0])
    happened, asked = ways[way][0][words], ways[way][1][line]
    assert asked.returncode in (0, 1), asked.stderr
    said = json.loads(asked.stdout)
    if said["layer"] == "mask" and happened in ("ENOENT", "ENOTDIR"):
        happened = "refused"  # what a mask covers is not there
    assert happened == DONE[said["verdict"]], f"{happened}: {said}"
    assert asked.returncode == (said["verdict"] == DENIED)
    if said["verdict"] == DENIED and said["layer"] != "host" and not line.startswith("!"):
        assert bare[words] == "done", "without guard it is not done either: the test proves nothing"
    assert said["verdict"] != DENIED or said["layer"], "somebody holds it"


INSIDE = """
schema = 1
name = "inside"
extends = "login-node"
[files]
read = [{readable}]
"""


def _inside(ground: Ground, mask: str) -> str:
    """The path of a policy under which guard itself can be read."""
    readable = ", ".join(f'"{place}"' for place in {str(ROOT / ".venv"), str((ROOT / ".venv").resolve())})
    text = INSIDE.format(readable=readable) + f'mask = "{mask}"\n'
    return str(ground.account.write(ground.stage.project / f"inside-{mask}.toml", text))


@pytest.mark.parametrize("mask", ["auto", "never"])
def test_inside_a_session_it_says_the_same(ground: Ground, mask: str) -> None:
    named = _inside(ground, mask)
    lines = [
        "read {user_home}/.ssh/id_explained", "read {home}/file", "write {home}/file", "write {project}/file",
        "write {project}/.git/config", "read {elsewhere}/file", "chmod 0666 {project}/file", "bind 0.0.0.0:0",
        "connect 127.0.0.1:443", "connect 192.0.2.1:443", "unix {elsewhere}/socket", "read {user_home}",
    ]  # fmt: skip
    for line in lines:
        words = ["explain", "--json", "--policy", named, *ground.cases(line)[0]]
        outside = json.loads(ground.account.cli(*words, cwd=ground.stage.project).stdout)
        head = [GUARD, "run", "--no-project-policy", "--policy", named, "--"]
        within = ground.account.command([*head, GUARD, *words], cwd=ground.stage.project)
        assert within.returncode in (0, 1), within.stderr
        found = json.loads(within.stdout)
        assert found["inside"]
        same = ("verdict", "control", "layer", "rule")
        assert {key: found[key] for key in same} == {key: outside[key] for key in same}, line


SERVING = """
import socket, subprocess, sys
with socket.create_server(("127.0.0.1", 0)) as own:
    sys.exit(subprocess.run([*sys.argv[1:], "127.0.0.1:%d" % own.getsockname()[1]], check=False).returncode)
"""


def test_inside_a_session_what_it_serves_itself_is_said_to_be_open_and_nothing_else(ground: Ground) -> None:
    named = _inside(ground, "auto")
    asking = [GUARD, "explain", "--json", "--policy", named, "connect"]
    head = [GUARD, "run", "--no-project-policy", "--policy", named, "--"]
    own, other = (
        ground.account.command([*head, *words], cwd=ground.stage.project)
        for words in ([PYTHON, "-IS", "-c", SERVING, *asking], [*asking, f"127.0.0.1:{ground.stage._values['port']}"])
    )
    assert json.loads(own.stdout)["verdict"] == "allowed", own.stdout + own.stderr
    assert json.loads(other.stdout)["verdict"] == DENIED, other.stdout + other.stderr
