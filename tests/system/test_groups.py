"""Groups share a project by mode 2770, the setgid bit and umask 002; guard takes none of it away."""

import grp
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from tests.conftest import GUARD
from tests.system.mask import masked

pytestmark = pytest.mark.root

GIT = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


@pytest.fixture(scope="module")
def group():
    return f"gtg{os.getpid() % 100000}"


@pytest.fixture(scope="module")
def member(accounts, group):
    return accounts.new(groups=[group])


@pytest.fixture(scope="module")
def colleague(accounts, group):
    return accounts.new(groups=[group])


@pytest.fixture
def shared(member, group):
    """A project of the group's: 2770, of the member's making."""
    top = Path(tempfile.mkdtemp(prefix="guard-group-", dir="/var/tmp"))
    top.chmod(0o755)
    project = top / "project"
    project.mkdir()
    os.chown(project, member.uid, grp.getgrnam(group).gr_gid)
    project.chmod(0o2770)
    yield project
    shutil.rmtree(top)


def run(account, shared, script, *options, policy="login-node"):
    """Run a script under guard with umask 002, as a shared account's login sets it."""
    command = [GUARD, "run", "--policy", policy, *options, "--", "bash", "-euc", script]
    return account.command(["bash", "-c", 'umask 002; exec "$@"', "-", *command], cwd=shared, env=GIT)


def needs(name):
    """Skip a row of a program that is not part of every machine."""
    program = name.split()[0]
    if program in ("rsync", "setfacl") and not shutil.which(program):
        pytest.skip(f"not installed: {program}")


def kept(shared, group):
    """What is wrong with the modes and groups below a shared project."""
    gid, wrong = grp.getgrnam(group).gr_gid, []
    for path in shared.rglob("*"):
        status = path.lstat()
        if path.is_symlink():
            continue
        if status.st_gid != gid:
            wrong.append(f"{path.name}: group {status.st_gid}")
        if stat.S_ISDIR(status.st_mode) and not status.st_mode & stat.S_ISGID:
            wrong.append(f"{path.name}: no setgid bit: {status.st_mode:o}")
        if status.st_mode & 0o002:
            wrong.append(f"{path.name}: world-writable: {status.st_mode:o}")
    return wrong


def test_the_member_has_the_group_inside_as_outside(member, shared):
    assert run(member, shared, "id -G").stdout == member.command(["id", "-G"]).stdout
    assert run(member, shared, "id -Gn").stdout == member.command(["id", "-Gn"]).stdout


SCRIPTS = {
    "git init --shared=group, commits": """
        git init -q --shared=group
        for n in 1 2 3; do echo $n > f; git add f; git commit -qm $n; done
        git gc -q
        test "$(git log --oneline | wc -l)" = 3
    """,
    "git clone --bare and push": """
        git init -q --bare --shared=group all.git; git clone -q all.git mine 2>/dev/null; cd mine
        echo x > f; git add f; git commit -qm x; git push -q origin HEAD
    """,
    "cp -a": "mkdir a; echo x > a/f; chmod 664 a/f; cp -a a b; cmp a/f b/f",
    "rsync -a": "mkdir a; echo x > a/f; rsync -a a/ b/; cmp a/f b/f",
    "tar -p": "mkdir -m 2770 a; echo x > a/f; tar cpf a.tar a; rm -r a; tar xpf a.tar; cat a/f",
    "mkdir -m 2770": "mkdir -m 2770 a; echo x > a/f",
    "mkdir -p, install -d -m 2775": "mkdir -p a/b/c; install -d -m 2775 d; echo x > a/b/c/f",
    "chmod g+ws": "mkdir a; chmod g-s a; chmod g+ws a; echo x > a/f; chmod g+w a/f",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_shared_project_keeps_its_groups_and_setgid_bits(member, shared, group, name):
    needs(name)
    done = run(member, shared, SCRIPTS[name])
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(shared.iterdir())
    assert kept(shared, group) == []


def test_a_colleague_goes_on_with_the_work_under_guard(member, colleague, shared, group):
    safe = "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*';"
    first = run(member, shared, "git init -q --shared=group; echo a > f; git add f; git commit -qm a; mkdir -m 2770 d")
    assert first.returncode == 0, first.stderr
    then = run(colleague, shared, f"{safe} echo b >> f; git commit -qam b; echo c > d/c; git log --oneline")
    assert then.returncode == 0, then.stdout + then.stderr
    again = run(member, shared, "echo c >> f; git commit -qam c; rm d/c")
    assert again.returncode == 0, again.stdout + again.stderr
    assert kept(shared, group) == []


def test_a_user_who_is_not_in_the_group_is_kept_out_by_the_modes(account, member, shared):
    run(member, shared, "echo x > f")
    assert account.command(["cat", str(shared / "f")]).returncode != 0
    assert account.guard(["cat", str(shared / "f")]).returncode != 0


WIDE = {
    "chmod 666": "echo x > f; chmod 666 f",
    "mkdir -m 2777": "mkdir -m 2777 d",
    "chmod 2777": "mkdir d; chmod 2777 d",
    "chmod o+w under umask 0": "umask 0; mkdir e; chmod o+w e",
    "umask 0": "umask 0; echo x > f; mkdir d",
    "git init --shared=0666": "umask 0; git init -q --shared=0666",
}


@pytest.mark.parametrize("name", WIDE)
def test_the_world_gets_nothing_from_a_shared_project(member, shared, name):
    def open_to_all():
        return [path.name for path in shared.rglob("*") if not path.is_symlink() and path.lstat().st_mode & 0o002]

    run(member, shared, f"{WIDE[name]} || :")
    assert open_to_all() == []
    member.command(["bash", "-euc", f"rm -rf * .git; {WIDE[name]}"], cwd=shared)
    assert open_to_all() != [], "the act does nothing without guard either"


def test_a_group_named_as_primary_has_the_mask_and_keeps_its_groups(accounts, member, shared, group):
    """With one group only, denied places are hidden by a mount namespace; the group ids must come through it."""
    gid = grp.getgrnam(group).gr_gid
    script = (
        "umask 002; git init -q --shared=group; echo a > f; git add f; git commit -qm a; cp -a f g; mkdir -m 2770 d"
    )
    command = [GUARD, "run", "--policy", "login-node", "--", "bash", "-euc", script]
    done = member.command(command, cwd=shared, env=GIT, group=gid, extra_groups=[gid])
    assert done.returncode == 0, done.stdout + done.stderr
    assert kept(shared, group) == []


# Why `files.mask = "auto"` leaves the mask out for a member of several groups (docs/controls.md). Each ends with 0
# outside; were a kernel to let it do so in a user namespace, the mask could be had for everybody.
UNNAMED = {
    "id -Gn": 'id -Gn | grep -qw "$GROUP"',
    "ls -l": 'ls -ld . | grep -qw "$GROUP"',
    "find -group": 'touch f; find . -name f -group "$GROUP" | grep -q f',
    "chgrp": 'touch ~/own; chgrp "$GROUP" ~/own',
    "install -g": 'install -m 640 -g "$GROUP" /etc/hostname f',
    "setfacl": 'touch f; setfacl -m "g:$GROUP:r" f',
    "cp -a from another group's directory": 'mkdir ~/copies; echo x > f; cp -a f ~/copies; test "$(stat -c %G ~/copies/f)" = "$GROUP"',
}


@pytest.mark.parametrize("name", UNNAMED)
def test_a_mask_takes_the_names_of_further_groups_away(member, shared, group, name):
    needs(name)
    home = tempfile.mkdtemp(dir=shared.parent)
    os.chown(home, member.uid, member.gid)
    script = f"export GROUP={group} HOME={home}; cd {shared}; {UNNAMED[name]}"
    policy = wide(member, home)
    inside = member.command([GUARD, "run", "--policy", policy, "--", "bash", "-euc", script], cwd=shared)
    assert "not started" not in inside.stderr
    assert inside.returncode != 0, "it works: has the mask to be left out?"
    shutil.rmtree(home)
    os.mkdir(home)
    os.chown(home, member.uid, member.gid)
    assert member.command(["bash", "-euc", script], cwd=shared).returncode == 0


def wide(member, home):
    """A policy with the mask that lets a second place, of the member's own group, be written."""
    masked(member)
    text = f'schema = 1\nname = "wide"\nextends = "login-node"\n[files]\nmask = "always"\nwrite = ["{home}"]\n'
    return str(member.write(member.state.parent / "wide.toml", text))


@pytest.mark.parametrize("name", SCRIPTS)
def test_with_the_mask_a_shared_project_keeps_its_groups_all_the_same(member, shared, group, name):
    """Permissions go by the kernel's own numbers: what the groups give, they give without their names."""
    needs(name)
    done = run(member, shared, SCRIPTS[name], policy=masked(member))
    assert done.returncode == 0, done.stdout + done.stderr
    assert kept(shared, group) == []


def test_each_may_choose_the_mask_with_what_it_costs(member, shared):
    layer = member.write(member.home / ".config/guard/policy.toml", 'schema = 1\n[files]\nmask = "always"\n')
    script = "readlink /proc/self/ns/user"
    try:
        chosen = run(member, shared, script)
        assert chosen.returncode == 0, chosen.stderr
        assert chosen.stdout != member.command(["bash", "-c", script]).stdout
    finally:
        layer.unlink()
    assert run(member, shared, script).stdout == member.command(["bash", "-c", script]).stdout, "auto goes without"
