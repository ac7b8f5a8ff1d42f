"""Modes and metadata under a supervisor: inside exactly as without guard, outside nothing, and no right for all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LONG, ROOT_HERE, Account
from tests.system.stage import NO_MASK, PYTHON, Stage

HERE = Path(__file__).parent
OBSERVE = NO_MASK + '[modes]\nworld_writable = "observe"\nsetuid = "observe"\n'
DENY = NO_MASK + '[modes]\nworld_writable = "deny"\n'
TRIES = 10_000 if LONG else 400
ALL_MAY_WRITE = 0o002


@pytest.fixture
def stage(account: Account) -> Iterator[Stage]:
    made = Stage(account)
    for name in ("calls.py", "outside.py"):
        account.write(made.project / name, (HERE / name).read_bytes())
    yield made
    for place in (made.project, made.home, made.elsewhere):
        shutil.rmtree(place, ignore_errors=True)


def _both(stage: Stage, script: str, policy: str = NO_MASK, **more: object) -> tuple[str, str]:
    """What a shell script prints without guard and under it, each in a directory of its own."""
    found = []
    for name, run in (("bare", stage.account.command), ("guarded", stage.account.guard)):
        place = stage.account.directory(name, stage.project)
        named = {"policy": stage.policy(policy)} if run == stage.account.guard else {}
        done = run(["/bin/bash", "-c", script], cwd=place, **named, **more)  # type: ignore[arg-type]
        assert done.returncode == 0, (name, done.stdout, done.stderr)
        found.append(done.stdout)
    return found[0], found[1]


def _events(stage: Stage) -> list[dict[str, object]]:
    lines = (stage.account.state / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def _world_writable(place: Path) -> list[Path]:
    found = (path for path in place.rglob("*") if not path.is_symlink())
    return [path for path in found if path.stat().st_mode & ALL_MAY_WRITE]


# Inside --------------------------------------------------------------------------------------------------


def test_every_call_answers_as_without_guard(stage: Stage) -> None:
    calls = [PYTHON, "-IS", str(stage.project / "calls.py")]
    bare = stage.account.command([*calls, "bare"], cwd=stage.project)
    guarded = stage.account.guard([*calls, "guarded"], policy=stage.policy(NO_MASK), cwd=stage.project)
    assert (bare.returncode, guarded.returncode) == (0, 0), bare.stderr + guarded.stderr
    expected, found = json.loads(bare.stdout), json.loads(guarded.stdout)
    assert set(expected) == set(found)
    assert len(expected) > 700
    different = {
        name: (expected[name], found[name])
        for name in expected
        # /proc's own entries and their times lie outside; what they lead to is compared.
        if expected[name] != found[name] and "/proc" not in name and not name.startswith("in the end")
    }
    # A descriptor AT_FDCWD is the working directory to fsetxattr since Linux 6.13, and EBADF before.
    assert set(different) <= {"fsetxattr cwd"}, different
    through = {
        name: (expected[name], found[name])
        for name in expected
        if "/proc" in name and name.startswith(("chmod", "fchmod", "utimensat")) and expected[name] != found[name]
    }
    assert all(answer[0] == errno.EPERM for _, answer in through.values()), through
    assert len(through) < 6, through
    for name in expected:
        if name.startswith("in the end") and name != "in the end xattrs":
            assert expected[name][:3] == found[name][:3], name
    assert expected["in the end xattrs"] == found["in the end xattrs"]


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("tar", "tar xpf ../all.tar"),
        ("unzip", f"{PYTHON} -c 'import zipfile as z; f = z.ZipInfo(\"a\"); f.external_attr = 0o100777 << 16;"
                  " z.ZipFile(\"a.zip\", \"w\").writestr(f, \"x\")'; unzip -q a.zip"),
        ("rsync", "mkdir s; printf x > s/a; chmod 666 s/a; rsync -a s/ t/"),
        ("cp", "printf x > a; chmod 666 a; cp -a a b; cp -p a c"),
        ("install", "printf x > a; install -m 777 a b; install -d -m 1777 d"),
        ("mkdir", "mkdir -m 777 a; mkdir -p -m 1777 b/c"),
        ("umask", "umask 0; printf x > a; mkdir b; touch c"),
        ("setfacl", "printf x > a; setfacl -m o::rw a"),
        ("git", "git init -q r; cd r; printf x > a; chmod 777 a; git add a; git -c user.name=a -c user.email=a@b"
                " commit -qm a; git -c core.sharedRepository=0666 init -q ../s"),
        ("python", f"{PYTHON} -c 'import os; os.umask(0); open(\"a\", \"w\"); os.chmod(\"a\", 0o666);"
                   " os.makedirs(\"b\", 0o777)'"),
    ],
)  # fmt: skip
def test_archives_and_installers_end_well_and_nothing_is_writable_by_all(
    stage: Stage, name: str, script: str
) -> None:
    if name not in ("umask", "python") and not shutil.which(name):
        pytest.skip(f"no {name} here")
    bare, guarded = stage.account.directory("bare", stage.project), stage.account.directory("guarded", stage.project)
    pack = "mkdir d; printf x > d/a; chmod 777 d/a; chmod 1777 d; tar cf all.tar d"
    assert stage.account.command(["/bin/sh", "-ec", pack], cwd=stage.project).returncode == 0
    done = stage.account.command(["/bin/bash", "-ec", script], cwd=bare)
    assert done.returncode == 0, done.stderr
    assert _world_writable(bare), "the control made nothing writable"
    done = stage.account.guard(["/bin/bash", "-ec", script], cwd=guarded, policy=stage.policy(NO_MASK))
    assert done.returncode == 0, done.stderr
    assert _world_writable(guarded) == []
    for made in sorted(bare.rglob("*")):
        twin = guarded / made.relative_to(bare)
        if ".git/objects" in str(made) or made.is_symlink() or "logs" in str(made):
            continue
        # umask(0) leaves the mask as it was, 022 here: who then creates with a mode and does not chmod gets less.
        less = ALL_MAY_WRITE | (0o020 if name in ("umask", "python", "tar") else 0)
        assert made.stat().st_mode & ~less == twin.stat().st_mode & ~less, twin


def test_a_wheel_with_a_program_keeps_its_x_bit(stage: Stage) -> None:
    wheel = stage.project / "tool-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text, mode in (
            ("tool-1.data/scripts/tool", "#!/bin/sh\necho ran\n", 0o777),
            ("tool-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tool\nVersion: 1\n", 0o666),
            ("tool-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n", 0o666),
            ("tool-1.dist-info/RECORD", "", 0o666),
        ):  # fmt: skip
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(info, text)
    pip = Path(sysconfig.get_path("purelib"))
    packages = next((p for p in (pip, Path("/usr/lib/python3/dist-packages")) if (p / "pip").is_dir()), None)
    if packages is None:
        pytest.skip("no pip here")
    shutil.copytree(packages / "pip", stage.project / "lib/pip")
    script = f"PYTHONPATH=lib {PYTHON} -m pip install -q --no-index --no-deps --target out {wheel.name} && out/bin/tool"
    done = stage.account.guard(["/bin/sh", "-c", script], cwd=stage.project)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("ran")
    assert _world_writable(stage.project / "out") == []


def test_the_umask_is_told_as_it_is(stage: Stage) -> None:
    script = (
        "import os; a = os.umask(0o077); b = os.umask(0); c = os.umask(0); d = os.umask(0o022); e = os.umask(0o022);"
        " print(oct(a), oct(b), oct(c), oct(d), oct(e))"
    )
    done = stage.account.guard([PYTHON, "-c", script], cwd=stage.project)
    assert done.stdout.split() == ["0o22", "0o77", "0o77", "0o77", "0o22"]


def test_group_sharing_goes_on(stage: Stage) -> None:
    script = "mkdir d; chmod 2775 d; chmod g+s .; printf x > d/a; chmod 664 d/a; stat -c %a d d/a ."
    bare, guarded = _both(stage, script)
    assert bare == guarded == "2775\n664\n2755\n"


def test_entries_for_named_users_pass_and_those_for_others_do_not(stage: Stage) -> None:
    if not shutil.which("setfacl"):
        pytest.skip("no setfacl here")
    script = (
        "printf x > a; mkdir d; setfacl -m u:daemon:rw,g:daemon:rw a && setfacl -d -m u:daemon:rwx,o::rwx d &&"
        " printf x > d/b; getfacl -cpn a d d/b"
    )
    bare, guarded = _both(stage, script)
    assert "default:other::rwx" in bare
    assert guarded == bare.replace("other::rwx", "other::r-x").replace("other::rw-", "other::r--")
    assert "user:1:rw-" in guarded


# Outside -------------------------------------------------------------------------------------------------


def test_nothing_outside_changes_by_any_call_on_any_road(stage: Stage) -> None:
    for place, run in ((stage.elsewhere, None), (stage.home, "login-node"), (stage.home, stage.policy(NO_MASK))):
        target = place / "file"
        subprocess.run(["setfattr", "-n", "user.there", "-v", "1", target], check=True)
        target.chmod(0o640)
        for name in ("to-outside", "to-directory"):
            (stage.project / name).unlink(missing_ok=True)
        before = target.stat()
        words = [PYTHON, str(stage.project / "outside.py"), "ways", str(place)]
        if run is None:
            done = stage.account.command(words, cwd=stage.project)
            answers = json.loads(done.stdout)
            assert {*answers.values()} <= {0, errno.ENODATA}, answers
            assert len(answers) > 80
            continue
        done = stage.account.guard(words, cwd=stage.project, policy=run)
        answers = json.loads(done.stdout)
        assert {*answers.values()} == {errno.EPERM}, answers
        assert target.stat()[:10] == before[:10]
        assert target.stat().st_ctime_ns == before.st_ctime_ns


def test_what_the_shell_opened_for_the_command_is_outside_too(stage: Stage) -> None:
    log = stage.home / "log"
    words = [PYTHON, "-c", "import os; os.fchmod(1, 0o666)"]
    for run, mode in ((stage.account.command, 0o666), (stage.account.guard, 0o600)):
        stage.account.write(log, mode=0o600)
        with log.open("r+") as out:
            done = run(words, cwd=stage.project, capture_output=False, stdout=out, stderr=subprocess.PIPE)
        assert (done.returncode == 0) is (mode == 0o666)
        assert log.stat().st_mode & 0o777 == mode


def test_a_denied_place_within_a_writable_one_keeps_its_modes(stage: Stage) -> None:
    secret = stage.account.write(stage.project / "secrets/key", "k", 0o600)
    policy = stage.policy(NO_MASK.replace("[files]", '[files]\ndeny = ["{project}/secrets"]'))
    words = ["chmod", "644", "secrets/key"]
    assert stage.account.guard(words, cwd=stage.project, policy=policy).returncode == 1
    assert secret.stat().st_mode & 0o777 == 0o600
    assert stage.account.guard(words, cwd=stage.project, policy=stage.policy(NO_MASK)).returncode == 0
    assert secret.stat().st_mode & 0o777 == 0o644


def test_files_without_a_place_are_the_trees_own(stage: Stage) -> None:
    script = (
        "import os, socket, tempfile; os.fchmod(os.memfd_create('a'), 0o600); os.fchmod(os.pipe()[0], 0o600);"
        " a, b = socket.socketpair(); os.fchmod(a.fileno(), 0o600); t = tempfile.TemporaryFile();"
        " os.fchmod(t.fileno(), 0o640)"
    )
    assert stage.account.guard([PYTHON, "-c", script], cwd=stage.project).returncode == 0


def test_shared_memory_and_devices_behave(stage: Stage) -> None:
    script = (
        "import os; name = f'/dev/shm/guard-test-{os.getpid()}'; fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600);"
        " os.fchmod(fd, 0o640); os.chmod(name, 0o660); os.utime(name); os.unlink(name); os.utime('/dev/null')"
    )
    for policy in ("login-node", stage.policy(NO_MASK)):
        done = stage.account.guard([PYTHON, "-c", script], cwd=stage.project, policy=policy)
        assert done.returncode == 0, done.stderr


def test_a_process_that_hides_itself_gets_nothing_more(stage: Stage) -> None:
    """In a mask the supervisor reads it all the same and strips the bit; without one it is refused."""
    script = (
        "import ctypes, os; ctypes.CDLL(None).prctl(4, 0)\n"
        "for name, act in (('file', os.chmod), (os.open('full', os.O_RDONLY), os.fchmod)):\n"
        " try: act(name, 0o666); print(oct(os.stat(name).st_mode & 0o777))\n"
        " except PermissionError as e: print(e.errno)"
    )
    assert stage.account.command([PYTHON, "-c", script], cwd=stage.project).stdout == "0o666\n0o666\n"
    for name in ("file", "full"):
        (stage.project / name).chmod(0o700)
    told = stage.account.guard([PYTHON, "-c", script], cwd=stage.project).stdout.split()
    assert set(told) <= {"0o664", "13"}
    assert len(told) == 2


# Who may write -------------------------------------------------------------------------------------------


def test_the_bit_is_stripped_and_the_finding_told(stage: Stage) -> None:
    script = "chmod 666 file; chmod 1777 full; stat -c %a file full"
    done = stage.account.guard(["/bin/sh", "-c", script], cwd=stage.project)
    assert (done.returncode, done.stdout) == (0, "664\n1775\n")
    rules = [(event["rule"], event["verdict"]) for event in _events(stage)]
    assert ("world-writable-mode", "rewritten") in rules


def test_where_the_policy_denies_the_call_fails_and_the_file_stays(stage: Stage) -> None:
    done = stage.account.guard(["chmod", "666", "file"], cwd=stage.project, policy=stage.policy(DENY))
    assert done.returncode == 1
    assert "Operation not permitted" in done.stderr
    assert (stage.project / "file").stat().st_mode & 0o777 == 0o644


def test_where_the_policy_observes_the_call_is_done_and_the_finding_told(stage: Stage) -> None:
    script = "chmod 666 file; chmod 4755 tool; stat -c %a file tool"
    done = stage.account.guard(["/bin/sh", "-c", script], cwd=stage.project, policy=stage.policy(OBSERVE))
    assert done.stdout == "666\n4755\n"
    verdicts = {event["rule"]: event["verdict"] for event in _events(stage)}
    assert verdicts["world-writable-mode"] == verdicts["setuid-mode"] == "would_deny"


@pytest.mark.parametrize("mode", ["4755", "2755", "6711"])
def test_no_program_becomes_set_id(stage: Stage, mode: str) -> None:
    done = stage.account.guard(["chmod", mode, "tool"], cwd=stage.project)
    assert done.returncode == 1
    assert (stage.project / "tool").stat().st_mode & 0o7777 == 0o755
    assert stage.account.command(["chmod", mode, "tool"], cwd=stage.project).returncode == 0


# Races ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["memory", "link", "descriptor"])
def test_no_race_reaches_a_file_outside(stage: Stage, how: str) -> None:
    target = stage.home / "file"
    target.chmod(0o640)
    words = [PYTHON, str(stage.project / "outside.py"), "race", how, str(stage.home)]
    done = stage.account.guard([*words, str(TRIES)], cwd=stage.project, timeout=300)
    assert json.loads(done.stdout) == {"won": 0}, done.stderr
    assert target.stat().st_mode & 0o777 == 0o640
    if how != "memory":
        assert (stage.project / "a/file").stat().st_mode & 0o777 == 0o611, "the calls never reached the inside file"
    for name in ("link", "inner-link", "outer-link", "next"):
        (stage.project / name).unlink(missing_ok=True)
    control = stage.account.command([*words, "300000"], cwd=stage.project)
    assert json.loads(control.stdout)["won"] > 0


# Whose tasks ---------------------------------------------------------------------------------------------

TASKS = """
import ctypes, os, signal, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {"x86_64": (203, 141, 251, 144), "aarch64": (122, 140, 30, 119)}[os.uname().machine]
def call(number, *args):
    ctypes.set_errno(0)
    failed = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, args[:2]), *args[2:]) < 0
    return ctypes.get_errno() if failed else 0
everywhere, zero = ctypes.byref(ctypes.c_long(-1)), ctypes.byref(ctypes.c_int(0))
def all_of(pid):
    return [call(NUMBERS[0], pid, 8, everywhere), call(NUMBERS[1], 0, pid, ctypes.c_long(5)),
            call(NUMBERS[2], 1, pid, ctypes.c_long(2 << 13 | 7)), call(NUMBERS[3], pid, 0, zero)]
if sys.argv[1] == "outside":
    print(all_of(int(sys.argv[2])))
else:
    go, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (go.set(), done.wait()))
    thread.start(); go.wait()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os.setsid(); os.write(write, str(os.getpid()).encode()); signal.pause()
        os._exit(0)
    os.waitpid(child, 0)
    orphan = int(os.read(read, 20))
    print(all_of(thread.native_id) + all_of(os.getpid()) + all_of(orphan))
    os.kill(orphan, signal.SIGKILL)
    done.set()
"""


def test_a_tree_schedules_its_own_tasks_and_nobody_elses(stage: Stage) -> None:
    identity = stage.account.identity()
    with subprocess.Popen(["sleep", "60"], **identity) as outside:  # type: ignore[call-overload]
        try:
            words = [PYTHON, "-c", TASKS, "outside", str(outside.pid)]
            assert stage.account.command(words, cwd=stage.project).stdout == "[0, 0, 0, 0]\n"
            assert stage.account.guard(words, cwd=stage.project).stdout == f"{[errno.EPERM] * 4}\n"
        finally:
            outside.kill()
    group = (
        "import os; os.setpriority(os.PRIO_PGRP, 0, 3) if not os.fork() else os._exit(os.wait()[1] >> 8)",
        "import os; os.setpgid(0, 0); os.setpriority(os.PRIO_PGRP, 0, 3); os.setpriority(os.PRIO_PGRP, os.getpid(), 4)",
        "import os; os.setpriority(os.PRIO_USER, 0, 19)",
    )
    for script, code in zip(group, (1, 0, 1), strict=True):  # guard itself is in the group that it was started in
        words, alone = [PYTHON, "-c", script], {"cwd": stage.project, "process_group": 0}
        assert stage.account.guard(words, **alone).returncode == code, script  # type: ignore[arg-type]
        if "PRIO_USER" not in script or ROOT_HERE:  # else it would be all that the tester runs
            assert stage.account.command(words, **alone).returncode == 0, script  # type: ignore[arg-type]
    words = [PYTHON, "-c", TASKS, "inside"]
    for run in (stage.account.command, stage.account.guard):
        done = run(words, cwd=stage.project, capture_output=True)
        assert done.stdout == f"{[0] * 12}\n", done.stderr


def test_a_flood_of_findings_is_counted_not_repeated(stage: Stage) -> None:
    before = len(_events(stage)) if (stage.account.state / "events.jsonl").exists() else 0
    script = "import os\nfor n in range(1000): open(f'f{n}', 'w'); os.chmod(f'f{n}', 0o666)"
    assert stage.account.guard([PYTHON, "-c", script], cwd=stage.project).returncode == 0
    found = [event for event in _events(stage)[before:] if event["rule"] == "world-writable-mode"]
    assert 50 < len(found) < 80
    assert sum(event["detail"]["count"] for event in found) == 1000  # type: ignore[index]
    assert os.stat(stage.project / "f999").st_mode & ALL_MAY_WRITE == 0
