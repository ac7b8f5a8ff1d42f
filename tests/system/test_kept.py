"""Protected names that do not exist when a session starts: nothing stays under them, and nothing is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.mask import masked
from tests.system.stage import NO_MASK, PYTHON, Stage

SCRIPT = """
set -eu
cd {git}
{act}
for i in $(seq 3000); do [ -e {name} ] || exit 7; sleep 0.01; done
"""
MADE = {
    "a file": "echo mine > {name}",
    "a directory": "mkdir {name}",
    "a link": "ln -s ../file {name}",
    "a move": "echo mine > other; mv other {name}",
    "a hard link": "echo mine > other; ln other {name}",
    "a socket": "/usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"{name}\")'",
}


@pytest.fixture
def git(stage: Stage) -> Iterator[Path]:
    stage.account.command(["git", "init", "-q", "--template=", str(stage.project)])
    yield stage.project / ".git"


def run(stage: Stage, git: Path, act: str, name: str, policy: str) -> int:
    script = SCRIPT.format(git=git, act=act.format(name=name), name=name)
    return stage.account.guard(["sh", "-c", script], "--no-project-policy", policy=policy, cwd=stage.project).returncode


@pytest.mark.parametrize("name", ["commondir", "config.worktree", "hooks"])
@pytest.mark.parametrize("how", ["masked", "unmasked"])
def test_what_appears_under_a_protected_name_is_moved_aside(stage: Stage, git: Path, name: str, how: str) -> None:
    policy = masked(stage.account) if how == "masked" else stage.policy(NO_MASK)
    assert run(stage, git, MADE["a file"], name, policy) == 7
    assert not (git / name).exists()
    aside = list(git.glob(f"{name}.guard-refused-*"))
    assert [path.read_text() for path in aside] == ["mine\n"]
    stage.account.command(["sh", "-c", f"echo mine > {git}/{name}"])
    assert (git / name).exists()  # without guard it stays


@pytest.mark.parametrize("act", MADE)
def test_however_it_is_made(stage: Stage, git: Path, act: str) -> None:
    assert run(stage, git, MADE[act], "commondir", masked(stage.account)) == 7
    assert not (git / "commondir").is_symlink()
    assert not (git / "commondir").exists()


def test_it_is_on_record(stage: Stage, git: Path) -> None:
    run(stage, git, MADE["a file"], "commondir", masked(stage.account))
    lines = [json.loads(line) for line in (stage.account.state / "events.jsonl").read_text().splitlines()]
    assert [line["verdict"] for line in lines if line["rule"] == "protected-made"][-1:] == ["denied"]


ANOTHER = {
    "moved away": "mv .git away; mkdir .git; echo mine > .git/commondir",
    "removed": "rm -rf .git; mkdir .git; echo mine > .git/commondir",
    "another in its place": "mkdir made; echo mine > made/commondir; mv .git away; mv made .git",
    "exchanged": "mkdir made; echo mine > made/commondir; {exchange}",
    "another that none may list": "mkdir -m 333 made; echo mine > made/commondir; mv .git away; mv made .git; sleep 1; chmod 755 .git",
    "another that none may enter": "mkdir made; echo mine > made/commondir; chmod 0 made; mv .git away; mv made .git; sleep 1; chmod 755 .git",
    "brought back": "mv .git away; echo mine > away/commondir; mv away .git",
    "a link to one": "mkdir made; echo mine > made/commondir; mv .git away; ln -s made .git",
}
EXCHANGE = "/usr/bin/python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).renameat2(-100, b\"made\", -100, b\".git\", 2) != 0)'"


@pytest.mark.parametrize("act", ANOTHER)
@pytest.mark.parametrize("how", ["masked", "unmasked"])
def test_another_directory_on_the_way_is_watched_as_well(stage: Stage, git: Path, act: str, how: str) -> None:
    script = ANOTHER[act].format(exchange=EXCHANGE)
    policy = masked(stage.account) if how == "masked" else stage.policy(NO_MASK)
    wait = "for i in $(seq 600); do [ -e .git/commondir ] || break; sleep 0.05; done; sleep 0.1; true"
    stage.account.guard(["sh", "-c", f"{script}; {wait}"], "--no-project-policy", policy=policy, cwd=stage.project)
    assert not (git / "commondir").exists()
    stage.account.command(["sh", "-c", f"rm -rf .git* away made; mkdir .git; {script}"], cwd=stage.project)
    assert (git / "commondir").read_text() == "mine\n", "without guard it does not come to be: the test proves nothing"


LINKS = {
    ".git": ("mv .git real; ln -s real .git", "rm .git; mkdir -p .git/hooks; echo mine > .git/hooks/made", ".git/hooks/made"),
    "hooks": ("mkdir own; ln -s ../own .git/hooks", "rm .git/hooks; mkdir .git/hooks; echo mine > .git/hooks/made", ".git/hooks/made"),
    "config": ("mv .git/config own; ln -s ../own .git/config", "rm .git/config; echo mine > .git/config", ".git/config"),
    "by a move": ("mv .git/config own; ln -s ../own .git/config", "echo mine > .git/x; mv .git/x .git/config", ".git/config"),
    "led elsewhere": ("mkdir own; ln -s ../own .git/hooks", "mkdir o; echo mine > o/made; ln -sfn ../o .git/hooks", ".git/hooks/made"),
}


@pytest.mark.parametrize("act", LINKS)
@pytest.mark.parametrize("how", ["masked", "unmasked"])
def test_a_link_to_what_is_protected_gives_way_to_nothing_else(stage: Stage, git: Path, act: str, how: str) -> None:
    before, script, made = LINKS[act]
    policy = masked(stage.account) if how == "masked" else stage.policy(NO_MASK)
    assert stage.account.command(["sh", "-euc", before], cwd=stage.project).returncode == 0
    link = next(path for path in (git, git / "hooks", git / "config") if path.is_symlink())
    leads = link.readlink()
    for _ in range(3):  # guard-exec's start is the last
        done = stage.account.guard(["git", "status"], "--no-project-policy", policy=policy, cwd=stage.project)
        assert done.returncode == 0, done.stderr
        assert link.readlink() == leads
    wait = f"for i in $(seq 3000); do [ -e {made} ] || exit 7; sleep 0.01; done"
    command = ["sh", "-c", f"{script}; {wait}"]
    done = stage.account.guard(command, "--no-project-policy", policy=policy, cwd=stage.project)
    assert done.returncode == 7, done.stderr
    assert not (stage.project / made).exists()
    stage.account.command(["sh", "-c", f"mkdir -p .git; {script}"], cwd=stage.project)
    assert (stage.project / made).read_text() == "mine\n", "without guard it does not come to be: the test proves nothing"


@pytest.mark.parametrize("how", ["always", "never"])
def test_a_project_in_a_writable_place_is_watched_though_it_be_replaced(stage: Stage, how: str) -> None:
    top = stage.account.directory("top")
    project = top / "project"
    stage.account.command(["git", "init", "-q", "--template=", str(project)])
    policy = stage.policy(f'schema = 1\nname = "top"\nextends = "login-node"\n[files]\nmask = "{how}"\nwrite = ["{top}"]\n')
    script = f"cd {top}; mv project away; mkdir -p project/.git; echo mine > project/.git/commondir"
    wait = "for i in $(seq 600); do [ -e project/.git/commondir ] || break; sleep 0.05; done; true"
    done = stage.account.guard(["sh", "-c", f"{script}; {wait}"], "--no-project-policy", policy=policy, cwd=project)
    if "not started" in done.stderr:
        pytest.skip("no mask here")
    assert not (project / ".git/commondir").exists()
    stage.account.command(["sh", "-c", f"cd {top}; rm -rf away; {script}"])
    assert (project / ".git/commondir").exists()
    shutil.rmtree(top)


def test_explain_says_what_becomes_of_it(stage: Stage, git: Path) -> None:
    ask = ["explain", "--json", "write", str(git / "commondir"), "--policy"]
    told = json.loads(stage.account.cli(*ask, stage.policy(NO_MASK), cwd=stage.project).stdout)
    assert told["verdict"] == "denied"
    assert "moved aside" in told["why"]
    alone = json.loads(stage.account.cli(*ask, stage.alone, cwd=stage.project).stdout)
    assert alone["verdict"] == "allowed", "nobody watches without a supervisor"


def test_what_was_there_at_the_start_is_left_alone(stage: Stage, git: Path) -> None:
    stage.account.write(git / "config.worktree", "[core]\n")
    done = stage.account.guard(["sh", "-c", "echo x > .git/other; sleep 0.2"], policy=masked(stage.account), cwd=stage.project)
    assert done.returncode == 0, done.stderr
    assert (git / "config.worktree").read_text() == "[core]\n"


def test_who_goes_on_making_it_is_ended(stage: Stage, git: Path) -> None:
    script = "cd .git; setsid sleep 300 & while :; do echo x > commondir; done"
    done = stage.account.guard(["sh", "-c", script], "--no-project-policy", policy=masked(stage.account), cwd=stage.project)
    assert done.returncode == -9
    assert not (git / "commondir").exists()
    left = stage.account.command(["pgrep", "-u", str(stage.account.uid), "-f", "^sleep 300"])
    assert left.stdout == ""


def test_a_link_in_the_directory_s_place_leads_the_supervisor_nowhere(stage: Stage, git: Path) -> None:
    """It must not move aside what lies elsewhere, where the tree could not: here another repository's hooks."""
    elsewhere = stage.home / "repository"
    stage.account.command(["git", "init", "-q", str(elsewhere)])
    script = f"mv .git away; ln -s {elsewhere}/.git .git; echo x > away/x; sleep 0.3"
    stage.account.guard(["sh", "-c", script], "--no-project-policy", policy=stage.policy(NO_MASK), cwd=stage.project)
    assert (elsewhere / ".git/hooks").is_dir()
    assert list((elsewhere / ".git").glob("*refused*")) == []


def test_git_goes_on_as_usual(stage: Stage, git: Path) -> None:
    script = """
    set -e; git config user.name >/dev/null || export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    for n in 1 2 3; do echo $n > f; git add f; git commit -qm $n; done; git gc -q; git branch b; git checkout -q b; git status --short
    """
    done = stage.account.guard(["bash", "-c", script], "--no-project-policy", policy=masked(stage.account), cwd=stage.project)
    assert done.returncode == 0, done.stderr
    assert list(git.glob("*refused*")) == []


@pytest.mark.root
def test_without_a_watch_to_be_had_the_session_starts_and_it_is_on_record(stage: Stage, git: Path) -> None:
    """Each session takes one of the user's inotify instances; whoever has used them up is told."""
    hold = "import ctypes, time; libc = ctypes.CDLL(None)\nwhile libc.inotify_init1(0) >= 0: pass\nprint('held', flush=True); time.sleep(60)"
    with stage.beside(["/usr/bin/python3", "-c", f"import resource; resource.setrlimit(7, (4096, 4096))\n{hold}"]) as held:
        assert held.said == "held"
        done = stage.account.guard(["echo", "went on"], "--no-project-policy", policy=stage.policy(NO_MASK), cwd=stage.project)
        assert done.stdout == "went on\n", done.stderr
    lines = [json.loads(line) for line in (stage.account.state / "events.jsonl").read_text().splitlines()]
    assert "protected-unwatched" in {line["rule"] for line in lines}


CLOSED = """
import os, sys, time
os.chdir(sys.argv[1])
open("commondir", "w").close()
os.chmod(".", 0o555)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end and os.path.exists("commondir"):
    time.sleep(0.01)
there = os.path.exists("commondir")
print("there" if there else "gone", oct(os.stat(".").st_mode & 0o777))
os.chmod(".", 0o755)
"""


def test_a_directory_closed_at_once_keeps_nothing(stage: Stage, git: Path) -> None:
    done = stage.account.guard([PYTHON, "-c", CLOSED, str(git), "30"], "--no-project-policy", policy=masked(stage.account),
                               cwd=stage.project)  # fmt: skip
    assert done.stdout == "gone 0o555\n", done.stderr
    bare = stage.account.command([PYTHON, "-c", CLOSED, str(git), "0.2"], cwd=stage.project)
    assert bare.stdout == "there 0o555\n"
