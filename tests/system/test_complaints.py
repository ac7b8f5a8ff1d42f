"""One test a public complaint about tools like this one, named after what must hold here instead.

The rows are those about confinement and clusters; where a whole file of tests
keeps the promise already, the row stands here in its smallest form.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Iterator, Sequence
from errno import EACCES, EBUSY, EPERM, EROFS
from pathlib import Path

import pytest

from tests.conftest import FAKEHOST, GUARD
from tests.system.stage import DENY, NO_MASK, PYTHON, UNDONE, Stage, guarded
from tests.system.terminal import Terminal

NESTED = pytest.mark.nested
VENV = Path(GUARD).resolve().parent.parent
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"]


def run(stage: Stage, script: str, policy: str = "login-node", cwd: Path | None = None, **more: object):  # noqa: ANN201
    """A shell script under guard, in the project unless told otherwise."""
    named = ["--project", str(stage.project)] if cwd else []
    return stage.account.guard(
        ["bash", "-euc", f"git() {{ command {' '.join(GIT)} \"$@\"; }}\n{script}"], "--no-project-policy", *named,
        policy=policy, cwd=cwd or stage.project, **more,
    )  # fmt: skip


def bare(stage: Stage, script: str, cwd: Path | None = None):  # noqa: ANN201
    return stage.account.command(
        ["bash", "-euc", f"git() {{ command {' '.join(GIT)} \"$@\"; }}\n{script}"], cwd=cwd or stage.project
    )


@pytest.fixture
def repository(stage: Stage) -> Path:
    assert bare(stage, "git init -q; git add file; git commit -qm one").returncode == 0
    return stage.project


# Repositories ---------------------------------------------------------------------------------------------


@NESTED
def test_a_worktree_can_be_added_listed_and_committed_in(stage: Stage, repository: Path) -> None:
    done = run(stage, "git worktree add -q tree; cd tree; ls; echo x > new; git add new; git commit -qm two; git log --oneline")
    assert done.returncode == 0, done.stderr
    assert "two" in done.stdout


@NESTED
def test_a_worktree_whose_repository_lies_outside_the_project_can_be_committed_in(
    stage: Stage, repository: Path
) -> None:
    tree = stage.home / "tree"
    assert bare(stage, f"git worktree add -q {tree}").returncode == 0
    done = stage.account.guard(
        ["bash", "-euc", f"echo x > new; {' '.join(GIT)} add new; {' '.join(GIT)} commit -qm two"],
        "--no-project-policy", cwd=tree,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plant = ["sh", "-c", f"echo x > {repository}/planted"]
    assert stage.account.guard(plant, "--no-project-policy", cwd=tree).returncode != 0
    assert stage.account.command(plant, cwd=tree).returncode == 0


@NESTED
def test_git_settings_can_be_written_after_a_session(stage: Stage, repository: Path) -> None:
    """No lock is left behind."""
    assert run(stage, "git config x.y z || true; git status").returncode == 0
    done = bare(stage, "git config x.y z; git config x.y")
    assert done.stdout == "z\n", done.stderr


@NESTED
@pytest.mark.parametrize("protected", [True, False])
def test_a_push_that_sets_its_upstream_works_where_settings_are_open_and_names_them_where_not(
    stage: Stage, repository: Path, protected: bool
) -> None:
    assert bare(stage, "git init -q --bare up.git; git remote add origin $PWD/up.git").returncode == 0
    text = (
        'schema=1\nname="open-git"\nextends="base"\nreason="a control"\n'
        '[files]\nread=["{home}"]\nwrite=["{project}"]\n'
    )
    done = run(stage, "git push -q -u origin HEAD", policy="login-node" if protected else stage.policy(text))
    if protected:
        assert ".git/config" in done.stderr
        assert bare(stage, "git config branch.main.remote || git config branch.master.remote").returncode != 0
    else:
        assert done.returncode == 0, done.stderr
    assert not (repository / ".git/config.lock").exists()
    assert bare(stage, "git push -q -u origin HEAD").returncode == 0


@NESTED
def test_a_commit_in_the_project_works(stage: Stage, repository: Path) -> None:
    assert run(stage, "echo y >> file; git commit -qam two; git log --oneline").stdout.count("\n") == 2


@NESTED
def test_a_hook_cannot_be_put_in_place_by_a_move(stage: Stage, repository: Path) -> None:
    done = run(stage, "echo '#!/bin/sh' > x; chmod 755 x; mv x .git/hooks/pre-commit")
    assert done.returncode != 0
    assert not (repository / ".git/hooks/pre-commit").exists()
    assert bare(stage, "mv x .git/hooks/pre-commit").returncode == 0


# Files ----------------------------------------------------------------------------------------------------


@NESTED
def test_files_move_and_link_between_directories(stage: Stage) -> None:
    done = run(stage, "mkdir a b; : > a/x; : > a/y; mv a/x b/x; ln a/y b/y; mv a b/a")
    assert done.returncode == 0, done.stderr


@NESTED
def test_guard_within_guard_renames_into_a_new_directory(stage: Stage) -> None:
    """Each Landlock layer must grant REFER; an inner session is held by both."""
    text = f'schema=1\nname="outer"\nextends="login-node"\nreason="guard itself"\n[files]\nread=["{VENV}"]\n'
    policy = stage.policy(text)
    inner = f"{GUARD} run --policy {policy} --no-project-policy -- sh -euc"
    inner = f"GUARD_STATE_DIR=$TMPDIR/state {inner}"
    stage.account.write(stage.project / "outer.toml", text)
    inner = inner.replace(policy, f"{stage.project}/outer.toml")
    done = run(stage, f"{inner} 'mkdir new; mv full new/full; ln file new/file; ls new'", policy)
    assert done.stdout == "file\nfull\n", done.stderr
    denied = run(stage, f"{inner} 'echo x > {stage.home}/made'", policy)
    assert denied.returncode != 0
    assert not (stage.home / "made").exists()


@NESTED
def test_raw_mode_works_on_a_terminal(stage: Stage) -> None:
    with Terminal(stage.account, [*guarded(stage), "sh", "-ec", "stty raw; stty sane; stty size"], stage.project) as one:
        assert one.wait() == 0, one.output


@NESTED
def test_dev_null_is_read_and_written(stage: Stage) -> None:
    assert run(stage, "cat < /dev/null > /dev/null; echo x > /dev/null; : >> /dev/null").returncode == 0


@NESTED
def test_pipes_and_redirections_work_with_descriptors_3_to_9_open(stage: Stage) -> None:
    opened = " ".join(f"{n}> fd{n}" for n in range(3, 10))
    head = ["/bin/bash", "-c", f'exec "$@" {opened}', "sh"]
    done = stage.account.command([*head, *guarded(stage), "sh", "-ec", "echo a | cat > f; cat f; exec 3> g; echo b >&3"],
                                 cwd=stage.project)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "a\n"), done.stderr
    assert (stage.project / "g").read_text() == "b\n"


@NESTED
def test_hard_links_work(stage: Stage) -> None:
    stage.works("link", "{project}/file", "{project}/full/linked")


def test_npm_installs_a_package_from_a_local_folder(stage: Stage) -> None:
    if not shutil.which("npm"):
        pytest.skip("no npm here")
    done = run(
        stage,
        "mkdir -p pkg app; echo '{\"name\":\"p\",\"version\":\"1.0.0\"}' > pkg/package.json;"
        " echo '{\"name\":\"a\",\"version\":\"1.0.0\"}' > app/package.json; cd app;"
        " npm_config_cache=$TMPDIR/npm npm install --offline --no-audit --no-fund ../pkg; ls node_modules",
    )
    assert done.returncode == 0, done.stderr
    assert "p\n" in done.stdout


@NESTED
def test_tar_unpacks_modes_755_and_644(stage: Stage) -> None:
    done = run(stage, "mkdir t; cp tool t/x; cp file t/y; chmod 755 t/x; chmod 644 t/y; tar cf t.tar t; rm -r t;"
                      " tar xf t.tar; stat -c %a t/x t/y")  # fmt: skip
    assert done.stdout == "755\n644\n", done.stderr


@NESTED
def test_no_file_outside_the_grants_can_be_made_writable_by_all(stage: Stage) -> None:
    stage.refused((UNDONE, EPERM), "chmod", "chmod", "{home}/file", "777")  # EPERM where a supervisor knows the place
    stage.refused(EPERM, "chmod", "chmod", "{home}/other", "777", policy=stage.policy(DENY))


@NESTED
def test_no_file_appears_in_the_home(stage: Stage) -> None:
    before = sorted(os.listdir(stage.account.home))
    run(stage, "true")
    run(stage, "true", policy=stage.policy(NO_MASK))
    assert sorted(os.listdir(stage.account.home)) == before


@NESTED
def test_a_linked_settings_file_does_not_stop_the_start(stage: Stage) -> None:
    real = stage.account.write(stage.account.home / "dotfiles/gitconfig", "[user]\n\tname = Linked\n")
    left = stage.account.home / ".gitconfig"
    os.symlink(real, left)
    try:
        done = stage.account.guard(["git", "config", "user.name"], "--no-project-policy", cwd=stage.project)
        assert done.stdout == "Linked\n", done.stderr
        stage.refused((EACCES, EROFS, EBUSY), "append", str(left))
    finally:
        left.unlink()
        shutil.rmtree(real.parent)


# Programs -------------------------------------------------------------------------------------------------


@NESTED
def test_asyncio_with_a_subprocess_works(stage: Stage) -> None:
    code = (
        "import asyncio\n"
        "async def main():\n"
        "    p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=asyncio.subprocess.PIPE)\n"
        "    print((await p.communicate())[0].decode(), end='')\n"
        "asyncio.run(main())"
    )
    done = stage.account.guard([PYTHON, "-c", code], "--no-project-policy", cwd=stage.project)
    assert done.stdout == "hi\n", done.stderr


@NESTED
def test_node_with_worker_threads_works(stage: Stage) -> None:
    if not shutil.which("node"):
        pytest.skip("no node here")
    code = (
        "const {Worker} = require('worker_threads'); const {spawnSync} = require('child_process');"
        "new Worker(\"require('worker_threads').parentPort.postMessage('from a thread')\", {eval: true})"
        ".on('message', m => console.log(m, spawnSync('echo', ['hi']).stdout.toString().trim()))"
    )
    done = stage.account.guard(["node", "-e", code], "--no-project-policy", cwd=stage.project)
    assert done.stdout == "from a thread hi\n", done.stderr


@NESTED
def test_the_command_s_own_message_and_exit_code_arrive_unchanged(stage: Stage) -> None:
    script = "echo out; echo 'own message' >&2; exit 3"
    plain = stage.account.command(["sh", "-c", script])
    done = stage.account.guard(["sh", "-c", script], "--no-project-policy", cwd=stage.project)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert done.stderr.endswith(plain.stderr)
    assert all(line.startswith("guard: ") for line in done.stderr.splitlines()[:-1])


@NESTED
@pytest.mark.parametrize(("script", "code"), [("kill -TERM $$", -15), ("kill -INT $$", -2), ("exit 42", 42)])
def test_exit_codes_are_those_of_the_command(stage: Stage, script: str, code: int) -> None:
    assert stage.account.guard(["sh", "-c", script], "--no-project-policy", cwd=stage.project).returncode == code


@NESTED
def test_control_c_ends_the_command(stage: Stage) -> None:
    command = [*guarded(stage), "sh", "-c", "trap 'echo caught; exit 5' INT; echo rea\"\"dy; while :; do sleep 0.05; done"]
    with Terminal(stage.account, command, stage.project) as terminal:
        terminal.expect("ready")
        terminal.type("\x03")
        terminal.expect("caught")
        assert terminal.wait() == 5


@NESTED
def test_an_orphan_that_holds_a_pipe_holds_it_no_longer_than_without_guard(stage: Stage) -> None:
    done = stage.account.command(
        ["bash", "-c", " ".join(guarded(stage)) + " sh -c 'sleep 60 > /dev/null 2>&1 & echo hi' | cat"], cwd=stage.project,
        timeout=50,
    )  # fmt: skip
    assert done.stdout == "hi\n"


@pytest.mark.parametrize("tool", ["sudo", "su"])
def test_guard_says_that_privilege_cannot_be_raised_inside(stage: Stage, tool: str) -> None:
    if not shutil.which(tool):
        pytest.skip(f"no {tool} here")
    done = stage.account.guard([tool, "--help"], "--no-project-policy", cwd=stage.project)
    assert re.search(rf"guard: {tool} .*no_new_privs", done.stderr), done.stderr


# Hosts that lack something --------------------------------------------------------------------------------

PLAY = [PYTHON, FAKEHOST]


def on_host(stage: Stage, host: Sequence[str], *options: str, command: Sequence[str] = ("echo", "started")):  # noqa: ANN201
    state = stage.elsewhere / "state"
    stage.bare("mkdir", str(state))
    done = stage.account.command(
        [*PLAY, *host, "--", *guarded(stage, *options), *command], cwd=stage.project,
        env={"GUARD_STATE_DIR": str(state)},
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip(done.stderr)
    return done


def test_without_landlock_nothing_starts_and_the_cause_is_told(stage: Stage) -> None:
    done = on_host(stage, ["--landlock", "EOPNOTSUPP"])
    assert (done.returncode, done.stdout) == (125, "")
    assert "lsm=" in done.stderr
    done = on_host(stage, ["--landlock", "EOPNOTSUPP"], "--require", "files")
    assert (done.returncode, done.stdout) == (125, "")
    assert "not enabled at boot" in done.stderr
    assert on_host(stage, []).stdout == "started\n"


def test_best_effort_is_loud(stage: Stage) -> None:
    text = 'schema=1\nname="loud"\nextends="login-node"\nreason="a control"\n[on_fault]\n' + "".join(
        f'"{control}" = "warn"\n' for control in ("files", "bind", "connect", "unix-sockets", "processes")
    )
    state = stage.elsewhere / "state"
    stage.bare("mkdir", str(state))
    done = stage.account.command(
        [*PLAY, "--landlock", "EOPNOTSUPP", "--", GUARD, "run", "--policy", stage.policy(text), "--no-project-policy",
         "--", "echo", "started"], cwd=stage.project, env={"GUARD_STATE_DIR": str(state)},
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip(done.stderr)
    assert done.returncode in (0, 125), done.stderr
    if done.returncode == 0:
        assert "NOT ENFORCED" in done.stderr
        assert "lsm=" in done.stderr


def test_without_libseccomp_nothing_starts_and_the_cause_is_told(stage: Stage) -> None:
    done = on_host(stage, ["--hide-libseccomp"])
    assert (done.returncode, done.stdout) == (125, "")
    assert "libseccomp" in done.stderr


@pytest.mark.parametrize(
    ("answer", "cause"), [("EOPNOTSUPP", "lsm="), ("ENOSYS", "too old|not built|CONFIG_SECURITY_LANDLOCK")]
)
def test_doctor_tells_why_there_is_no_landlock(stage: Stage, answer: str, cause: str) -> None:
    done = stage.account.command([*PLAY, "--landlock", answer, "--", GUARD, "doctor"], cwd=stage.project)
    if done.returncode == 77:
        pytest.skip(done.stderr)
    assert re.search(cause, done.stdout), done.stdout


# Clusters -------------------------------------------------------------------------------------------------


@pytest.fixture
def trace(stage: Stage) -> Iterator[list[str]]:
    """What a start opens, file by file, up to the command."""
    if not shutil.which("strace"):
        pytest.skip("no strace here")
    run(stage, "true")  # the plan is there
    log = stage.elsewhere / "trace"
    done = stage.account.command(
        ["strace", "-f", "-qq", "-e", "trace=%file", "-o", str(log), *guarded(stage), "true"], cwd=stage.project
    )
    assert done.returncode == 0, done.stderr
    yield log.read_text().splitlines()


def test_a_start_reads_nothing_from_the_home(stage: Stage, trace: list[str]) -> None:
    """A network home would make it slow: what is opened there is places, to be granted or hidden, and no content."""
    home = str(stage.account.home)
    read = [line for line in trace if re.search(rf'open(at|at2)?\(.*"{home}', line) and "O_PATH" not in line
            and "O_DIRECTORY" not in line and "ENOENT" not in line]  # fmt: skip
    assert [line for line in read if f"{stage.project}" not in line] == []
    assert any(".plan" in line for line in trace)


def test_the_devices_of_a_gpu_are_a_documented_overlay(stage: Stage) -> None:
    text = 'schema=1\nname="g"\nextends="login-node"\noverlays=["gpu"]\nreason="a control"\n'
    done = stage.account.cli("policy", "show", "--effective", stage.policy(text), cwd=stage.project)
    assert done.returncode == 0, done.stderr
    assert "/dev/nvidia" in done.stdout


def test_a_site_s_shared_mounts_are_named_in_one_file(stage: Stage) -> None:
    config = stage.elsewhere / "config"
    scratch = stage.account.directory("scratch", stage.account.state.parent)
    stage.account.write(scratch / "file", "secret")
    stage.account.write(config / "site.toml", f'schema = 1\n[variables]\nscratch = "{scratch}"\n')
    state = stage.elsewhere / "state"
    stage.bare("mkdir", str(state))
    assert stage.confined("read", f"{scratch}/file") == EACCES
    found = stage.confined("read", f"{scratch}/file", env={"GUARD_CONFIG_DIR": str(config), "GUARD_STATE_DIR": str(state)})
    shutil.rmtree(scratch)
    assert found == 0



# What needs a supervisor -----------------------------------------------------------------------------------


@NESTED
@pytest.mark.parametrize("kind", ["systemd-run --user", "tmux", "docker"])
def test_no_outside_service_is_reached_by_its_socket(stage: Stage, kind: str) -> None:
    """The smallest form of what each of them does first: connect to the socket of who is to act outside."""
    path = stage.home / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.chmod(0o777)
        server.listen()
        stage.refused((EACCES, EPERM), "unix", str(path))
    path.unlink()


@NESTED
def test_explain_never_says_denied_where_it_is_not(stage: Stage) -> None:
    """A socket that is said to be denied is tried, and so is one that is said to be allowed."""
    path = stage.home / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.chmod(0o777)
        server.listen()
        for policy, said, code in (("login-node", "denied", EACCES), (stage.policy(OPEN.format(path=path)), "allowed", 0)):
            told = stage.account.cli("explain", "--policy", policy, "unix", str(path), cwd=stage.project)
            assert told.stdout.startswith(said), told.stdout + told.stderr
            assert stage.confined("unix", str(path), policy=policy) == code
    path.unlink()


OPEN = 'schema = 1\nname = "open"\nextends = "login-node"\nreason = "a control"\n[unix]\nallow = ["{path}"]\n'


@NESTED
def test_each_denial_is_an_event_with_its_reason_and_what_would_allow_it(stage: Stage) -> None:
    assert stage.confined("times", "{home}/file") == EPERM
    lines = [json.loads(line) for line in (stage.account.state / "events.jsonl").read_text().splitlines()]
    (event,) = [line for line in lines if line["rule"] == "metadata-outside"][-1:]
    assert event["verdict"] == "denied"
    assert {"object", "explain", "allow"} <= set(event["detail"])
    assert event["policy"]["name"] == "login-node"


@NESTED
def test_a_stopped_command_goes_on_in_the_foreground(stage: Stage) -> None:
    with Terminal(stage.account, ["bash", "--norc", "-i"], stage.project) as terminal:
        terminal.type(" ".join(guarded(stage)) + " sh -c 'echo rea\"\"dy; read line; echo got-$line'\n")
        terminal.expect("ready")
        terminal.type("\x1a")
        terminal.expect("Stopped")
        terminal.type("fg\n")
        terminal.expect("read line")
        terminal.type("it\n")
        terminal.expect("got-it")
