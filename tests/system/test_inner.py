"""A sandbox that a program enters within a session (Landlock) holds for what the supervisor does in its stead."""

from __future__ import annotations

import json
from errno import EACCES
from pathlib import Path

import pytest

from guard.kernel import landlock
from tests.conftest import GUARD
from tests.system.stage import NO_MASK, PYTHON, Stage

pytestmark = pytest.mark.skipif(landlock.abi()[0] < 4, reason="this Landlock has no rules for ports")

PRELUDE = """
import ctypes, json, os, resource, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
MAKE_SOCK, BIND, CONNECT = 1 << 9, 1, 2
def enter(*ports, closed=True):
    ruleset = libc.syscall(444, struct.pack("=QQ", MAKE_SOCK, BIND | CONNECT), 16, 0)
    assert ruleset >= 0, ctypes.get_errno()
    for port in ports:
        assert libc.syscall(445, ruleset, 2, struct.pack("=QQ", BIND | CONNECT, port), 0) == 0
    assert libc.syscall(446, ruleset, 0) == 0, ctypes.get_errno()
    if closed:
        os.close(ruleset)
    return ruleset
def code(act, *args):
    try:
        act(*args)
    except OSError as error:
        return error.errno
    return 0
def free():
    with socket.socket() as new:
        new.bind(("127.0.0.1", 0))
        return new.getsockname()[1]
server = socket.create_server(("127.0.0.1", 0), backlog=100)
port = server.getsockname()[1]
def acts(number=0):
    name = f"socket{os.getpid()}-{threading.get_native_id()}-{time.monotonic_ns()}"
    return [
        code(lambda: socket.create_connection(("127.0.0.1", port), 5).close()),
        code(lambda: socket.socket().bind(("127.0.0.1", number))),
        code(lambda: socket.socket().listen()),
        code(lambda: socket.socket(socket.AF_UNIX).bind(name)),
    ]
def child(act):
    read, write = os.pipe()
    if not os.fork():
        try:
            os.write(write, json.dumps(act()).encode())
        finally:
            os._exit(0)
    os.wait()
    return json.loads(os.read(read, 65536))
"""
OPEN, SHUT = [0, 0, 0, 0], [EACCES] * 4


def both(stage: Stage, code: str, policy: str = "login-node", *, listens: bool = True) -> object:
    """What a program sees under guard, which is what it sees without."""
    words = [PYTHON, "-c", PRELUDE + code]
    within = stage.account.guard(words, "--no-project-policy", cwd=stage.project, policy=policy, timeout=120)
    bare = stage.account.command(words, cwd=stage.project, timeout=120)
    assert within.returncode == bare.returncode == 0, (within.stderr, bare.stderr)
    found = json.loads(within.stdout)
    if listens:
        assert found == json.loads(bare.stdout)
    return found


@pytest.mark.parametrize("policy", ["login-node", NO_MASK])
def test_what_a_sandbox_within_refuses_stays_refused(stage: Stage, policy: str) -> None:
    """listen(2) takes a port without asking Landlock; under guard it is a bind, and asks."""
    named = stage.policy(policy) if "\n" in policy else policy
    found = both(stage, "before = acts()\nenter()\nprint(json.dumps([before, acts()]))", named, listens=False)
    assert found == [OPEN, SHUT]


def test_what_it_grants_passes(stage: Stage) -> None:
    code = (
        "number = free()\nenter(port, number)\nfound = acts(number)\nprint(json.dumps([found[0], found[1], found[3]]))"
    )
    assert both(stage, code) == [0, 0, EACCES]


def test_it_holds_for_children_programs_and_daemons_and_for_nobody_else(stage: Stage) -> None:
    code = """
def daemon():
    read, write = os.pipe()
    if not os.fork():
        os.setsid()
        if not os.fork():
            while os.getppid() == parent:
                time.sleep(0.01)
            os.write(write, json.dumps(acts()).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(read, 65536))
def executed():
    import subprocess
    program = "import socket\\ntry: socket.create_connection(('127.0.0.1', %d), 5)\\nexcept OSError as e: print(e.errno)"
    return int(subprocess.run([sys.executable, "-c", program % port], capture_output=True, text=True).stdout or 0)
def inside():
    global parent
    enter()
    parent = os.getpid()
    return [acts(), child(acts), daemon(), executed()]
print(json.dumps([child(inside), acts(), child(acts), executed()]))
"""
    found = both(stage, code, listens=False)
    assert found == [[SHUT, SHUT, SHUT, EACCES], OPEN, OPEN, 0]


def test_one_within_another_keeps_both(stage: Stage) -> None:
    code = """
first, second = free(), free()
def bound(number):
    return code(lambda: socket.socket().bind(("127.0.0.1", number)))
enter(first, second)
inner = child(lambda: [enter(second), bound(first), bound(second)][1:])
print(json.dumps([inner, bound(first), bound(second), bound(0)]))
"""
    assert both(stage, code) == [[EACCES, 0], 0, 0, EACCES]


def test_the_threads_of_a_program_may_enter_the_same_one_after_another(stage: Stage) -> None:
    """More of them than there may be layers."""
    code = """
number = free()
ruleset = enter(number, closed=False)
answers = []
def serve():
    answers.append(libc.syscall(446, ruleset, 0))
    answers.append(code(lambda: socket.socket().bind(("127.0.0.1", 0))))
for _ in range(20):
    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
print(json.dumps([sorted(set(answers)), code(lambda: socket.socket().bind(("127.0.0.1", number)))]))
"""
    assert both(stage, code) == [[0, EACCES], 0]


def test_hundreds_of_sandboxes_are_forgotten_and_the_first_still_holds(stage: Stage) -> None:
    code = """
read, write = os.pipe()
back, told = os.pipe()
if not os.fork():
    enter()
    os.read(read, 1)
    os.write(told, json.dumps(acts()).encode())
    os._exit(0)
refused = 0
for _ in range(300):
    refused += child(lambda: [enter(), code(lambda: socket.socket().bind(("127.0.0.1", 0)))])[1] != 0
os.write(write, b"x")
first = json.loads(os.read(back, 1000))
print(json.dumps([refused, first, acts()]))
"""
    assert both(stage, code, listens=False) == [300, SHUT, OPEN]


def test_the_mark_cannot_be_taken_off(stage: Stage) -> None:
    code = """
enter()
before = resource.getrlimit(resource.RLIMIT_RTTIME)
resource.setrlimit(resource.RLIMIT_RTTIME, (5, 5))
libc.prlimit(0, 15, struct.pack("=QQ", 7, 7), None)
print(json.dumps([resource.getrlimit(resource.RLIMIT_RTTIME) == before, acts()]))
"""
    assert both(stage, code, listens=False) == [True, SHUT]


def test_guard_within_guard_keeps_the_inner_policy(stage: Stage) -> None:
    text = 'schema = 1\nname = "inner"\nextends = "login-node"\n[network]\nbind = "deny"\n'
    inner = stage.account.write(stage.project / "inner.toml", text)
    program = "import socket; socket.socket().bind(('127.0.0.1', 0)); print('bound')"
    control = stage.account.guard([PYTHON, "-c", program], cwd=stage.project)
    assert control.stdout == "bound\n"
    words = ["sh", "-c", f'exec {GUARD} run --state "$TMPDIR/inner" --project "$PWD" --policy {inner} -- "$@"', "sh"]
    venv = Path(GUARD).parent.parent
    outer = f'schema = 1\nname = "outer"\nextends = "login-node"\nreason = "guard itself"\n[files]\nread = ["{venv}"]\n'
    done = stage.account.guard(
        [*words, PYTHON, "-c", program], "--no-project-policy", policy=stage.policy(outer), cwd=stage.project
    )
    assert done.returncode == 1, done.stderr
    assert "PermissionError" in done.stderr, done.stderr
