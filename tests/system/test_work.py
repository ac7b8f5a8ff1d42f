"""Ordinary work under login-node, unedited: every step of the demo's session, each in a session of its own."""

import shutil

import pytest

from tests.conftest import ROOT
from tests.demo.work import CLONE, STEPS

GITCONFIG = "[user]\nname = Somebody\nemail = somebody@example.org\n"


@pytest.fixture(scope="module")
def home(account):
    """The user's home as work finds it: settings by a link, npm used before, a repository to clone."""
    source = account.directory("source")
    shutil.copytree(ROOT / "tests/demo/app", source, dirs_exist_ok=True)
    account.write(account.home / "dotfiles/gitconfig", GITCONFIG)
    done = account.command(
        [
            "sh", "-ec",
            'ln -s dotfiles/gitconfig .gitconfig; mkdir -p .npm/_cacache .npm/_logs; cp -r "$0" origin; cd origin;'
            " git init -q; git add .; git commit -qm A; cd ..; git clone -q --bare origin origin.git; rm -rf origin",
            str(source),
        ]
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    yield account.home
    for left in (".gitconfig", "dotfiles", ".npm", "origin.git", source.name):
        account.command(["rm", "-rf", left])


def need(*programs):
    missing = [program for program in programs if not shutil.which(program, path="/usr/local/bin:/usr/bin:/bin")]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def in_clone(script):
    return ["bash", "-euo", "pipefail", "-c", f"{CLONE.script}\ncd app\n{script}"]


def names_in(home):
    return sorted(path.name for path in home.iterdir())


@pytest.mark.parametrize("step", STEPS, ids=[step.name for step in STEPS])
def test_work_succeeds_and_leaves_nothing_in_the_home(account, home, project, step):
    need(*step.needs)
    before = names_in(home)
    done = account.guard(in_clone(step.script), cwd=project, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert names_in(home) == before


def test_a_session_in_a_clone_commits_branches_and_merges(account, home, project):
    assert account.command(["git", "clone", "-q", str(home / "origin.git"), "app"], cwd=project).returncode == 0
    script = """
        git switch -q -c topic; echo x >> c/main.c; git commit -qam Topic; git tag v1
        git switch -q -; git merge -q topic; git rebase -q HEAD~1; git stash list; git fsck
        git worktree add -q wt; cd wt; ls; echo y >> c/main.c; git commit -qam 'In the worktree'
    """
    done = account.guard(["bash", "-euc", script], cwd=project / "app")
    assert done.returncode == 0, done.stdout + done.stderr
    log = account.command(["git", "log", "--all", "--format=%s"], cwd=project / "app").stdout
    assert "In the worktree" in log
    assert "Topic" in log


def test_git_config_works_after_a_session_that_was_refused_it(account, home, project):
    account.command(["git", "init", "-q"], cwd=project)
    account.guard(["git", "config", "x.y", "z"], cwd=project)
    assert not (project / ".git/config.lock").exists()
    after = account.command(["git", "config", "x.y", "z"], cwd=project)
    assert after.returncode == 0, after.stderr


def test_git_fetches_from_and_is_refused_to_write_a_repository_outside(account, home, project):
    account.command(["git", "clone", "-q", str(home / "origin.git"), "app"], cwd=project)
    app = project / "app"
    assert account.guard(["git", "fetch", "-q", "origin"], cwd=app).returncode == 0
    refused = account.guard(["git", "push", "-q", "origin", "HEAD:refs/heads/inside"], cwd=app)
    assert refused.returncode != 0
    done = account.command(["git", "push", "-q", "origin", "HEAD:refs/heads/bare"], cwd=app)
    assert done.returncode == 0, done.stderr


def test_npm_installs_a_folder_and_runs_its_scripts(account, home, project):
    need("npm", "node")
    shutil.copytree(ROOT / "tests/demo/app/node", project / "node")
    account.write(
        project / "node/package.json",
        '{"name": "app", "version": "1.0.0", "scripts": {"test": "node -p 1+1", "prepare": "node -e 0"},'
        ' "dependencies": {"greet": "file:./greet"}}',
    )
    if account.identity():
        for path in (project / "node", *(project / "node").rglob("*")):
            shutil.chown(path, account.uid, account.gid)
    script = "npm install --no-audit --no-fund && npm test -s && npm ci -s --no-audit --no-fund && npm ls"
    done = account.guard(["sh", "-ec", script], cwd=project / "node", timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2\n" in done.stdout


EVERYDAY = {
    "strace of one's own child": (["strace"], "strace -o trace true; test -s trace"),
    "process substitution and background jobs": ([], "diff <(echo a) <(echo a); sleep 0 & wait; cat <<< x"),
    "names of users and groups": ([], "id; getent passwd root; ls -l /usr"),
    "ps, nproc, top": (["ps", "top"], "ps -ef > ps; nproc; cat /proc/self/status > status; top -bn1 > top"),
    "a named pipe": ([], 'mkfifo p; (echo x > p &); read -r y < p; test "$y" = x'),
    "a temporary directory": ([], 'at=$(mktemp -d); echo x > "$at/y"; test "$(stat -c %a "$at")" = 700; rm -r "$at"'),
    "find, xargs, sort, sed -i": ([], "echo a > f; sed -i s/a/b/ f; find . -type f | xargs sort > sorted"),
    "cp with all attributes, touch, ln": ([], "echo a > f; cp -a f g; cp --reflink=auto f h; touch -r f g; ln f i"),
    "rsync -a": (["rsync"], "mkdir a; echo x > a/f; rsync -a a/ b/; cmp a/f b/f"),
    "ssh-keygen in the project": (["ssh-keygen"], "ssh-keygen -q -t ed25519 -N '' -f key"),
    "a script made here": ([], """printf '#!/bin/sh\\necho ok\\n' > x; chmod 755 x; test "$(./x)" = ok"""),
}


@pytest.mark.parametrize("name", EVERYDAY)
def test_everyday_programs_work(account, home, project, name):
    programs, script = EVERYDAY[name]
    need(*programs)
    words = ["bash", "-euo", "pipefail", "-c", script]
    done = account.guard(words, cwd=project)
    bare = account.command(words, cwd=account.directory("bare", project))
    assert bare.returncode == 0, f"fails without guard too: {bare.stderr}"
    assert done.returncode == 0, done.stdout + done.stderr


# A supervisor tells the umask truly. Without one umask(0) is answered by 0 and changes nothing, and a chmod that would
# let others write is answered by success and does nothing: docs/policies.md says what that costs.
NEEDS_UMASK = {
    "chmod +w": ([], "echo a > f; chmod 444 f; chmod +w f; echo b >> f"),
    "shutil.copy of a 777 script": ([], """python3 -c 'import shutil; shutil.copy("../../all", "mine")'; ./mine"""),
    "a program linked as npm does": (["node"], """
        printf '#!/bin/sh\\n' > program
        node -e 'fs.chmodSync("program", 0o777 & ~process.umask())'; ./program"""),
}  # fmt: skip


@pytest.mark.parametrize("name", NEEDS_UMASK)
def test_modes_worked_out_from_the_umask_are_set(account, home, project, name):
    programs, script = NEEDS_UMASK[name]
    need(*programs)
    account.write(home / "all", "#!/bin/sh\n", 0o777)
    words = ["bash", "-euc", script]
    bare = account.command(words, cwd=account.directory("bare", project))
    if bare.returncode:
        pytest.skip(f"fails without guard too: {bare.stderr}")
    done = account.guard(words, cwd=account.directory("inside", project))
    assert done.returncode == 0, done.stdout + done.stderr
