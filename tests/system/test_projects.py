"""What `{project}` is: where a session may write, and nothing that an agent can talk it into."""

import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import GUARD
from tests.system.mask import masked
from tests.system.stage import NO_MASK

TRY = 'touch "$1" && rm "$1"'
GIT = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----"


@pytest.fixture
def place(account):
    """A directory of the user's outside its home."""
    path = account.directory("place", Path("/var/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def key(account):
    """The user's key."""
    path = account.write(account.home / ".ssh/id_ed25519", KEY, 0o600)
    yield path
    shutil.rmtree(path.parent)


def writes(account, where, *options, cwd, **more):
    """Whether a session may make a file in a directory; without guard it must be possible."""
    target = str(Path(where) / "tried")
    bare = account.command(["sh", "-c", TRY, "-", target], cwd=cwd)
    assert bare.returncode == 0, f"fails without guard too: {bare.stderr}"
    done = account.guard(["sh", "-c", TRY, "-", target], *options, cwd=cwd, **more)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode == 0


def git(account, where, script):
    done = account.command(["bash", "-euc", script], cwd=where, env=GIT)
    assert done.returncode == 0, done.stderr


# --- which directory -----------------------------------------------------------------------------------------


def test_without_git_the_working_directory_is_the_project(account, project):
    inner = account.directory("inner", project)
    assert writes(account, inner, cwd=inner)
    assert not writes(account, project, cwd=inner)


def test_within_a_repository_the_top_level_is_the_project(account, project):
    git(account, project, "git init -q; mkdir -p a/b")
    assert writes(account, project, cwd=project / "a/b")
    assert not writes(account, account.home, cwd=project / "a/b")


def test_a_project_outside_the_home(account, place):
    assert writes(account, place, cwd=place)
    assert not writes(account, account.home, cwd=place)


@pytest.mark.root
def test_a_project_directly_below_the_root_directory(account):
    top = account.directory("guard-project", Path("/"))
    try:
        assert writes(account, top, cwd=top)
        git(account, top, "git init -q; mkdir inner")
        done = account.guard(["bash", "-euc", COMMIT], cwd=top / "inner", env=GIT)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not writes(account, account.home, cwd=top)
    finally:
        shutil.rmtree(top)


def test_a_named_project_is_writable_from_anywhere(account, project, place):
    assert writes(account, project, "--project", str(project), cwd=place)
    assert not writes(account, place, "--project", str(project), cwd=place)


def test_two_projects_at_once(account, project, place):
    options = ["--project", str(project), "--project", str(place)]
    assert writes(account, project, *options, cwd=project)
    assert writes(account, place, *options, cwd=project)
    script = 'echo x > "$1/a" && mv "$1/a" "$2/b" && mkdir "$1/c" && ln "$2/b" "$2/d"'
    done = account.guard(["sh", "-ec", script, "-", str(project), str(place)], *options, cwd=project)
    assert done.returncode == 0, done.stderr
    assert not writes(account, account.home, *options, cwd=project)


def test_both_of_two_projects_have_their_hooks_protected(account, project, place):
    policy = masked(account)
    for top in (project, place):
        git(account, top, "git init -q")
    options = ["--project", str(project), "--project", str(place)]
    for top in (project, place):
        assert not writes(account, top / ".git/hooks", *options, cwd=project, policy=policy)


def test_a_project_reached_by_a_link_is_the_place_it_leads_to(account, project):
    real = account.directory("real", project)
    (project / "link").symlink_to(real)
    assert writes(account, real, "--project", str(project / "link"), cwd=account.home)
    assert not writes(account, project, "--project", str(project / "link"), cwd=account.home)
    command = ["bash", "-c", f'cd -L link && exec {GUARD} run --policy login-node -- sh -c "$0" - "$1"', TRY]
    assert account.command([*command, str(real / "x")], cwd=project).returncode == 0
    assert account.command([*command, str(project / "x")], cwd=project).returncode != 0


@pytest.mark.parametrize("where", ["/", "{home}", "{above}"])
def test_a_place_that_must_not_be_a_project_is_refused_by_name(account, where):
    named = where.format(home=account.home, above=account.home.parent)
    done = account.guard(["true"], "--project", named)
    assert done.returncode == 125
    assert "not started" in done.stderr
    assert named in done.stderr
    assert account.command(["true"]).returncode == 0


def test_a_place_that_holds_guards_state_or_configuration_is_refused(account):
    for named in (account.state, account.state.parent, account.config):
        done = account.guard(["true"], "--project", str(named))
        assert done.returncode == 125, named
        assert "guard's own" in done.stderr


def test_a_place_that_is_everybodys_is_refused(account):
    assert account.guard(["true"], "--project", "/tmp").returncode == 125


def test_a_project_that_is_missing_or_a_file_is_refused(account, project):
    account.write(project / "file")
    for named in (project / "missing", project / "file"):
        done = account.guard(["true"], "--project", str(named))
        assert done.returncode == 125
        assert str(named) in done.stderr


def test_started_in_the_home_only_guard_work_is_writable(account):
    work = account.home / "guard-work"
    work.mkdir(exist_ok=True)
    shutil.chown(work, account.uid, account.gid)
    try:
        assert writes(account, work, cwd=account.home)
        assert not writes(account, account.home, cwd=account.home)
        account.write(account.home / "notes", "read me")
        assert account.guard(["cat", "notes"], cwd=account.home).stdout == "read me"
    finally:
        shutil.rmtree(work)


def test_started_in_the_root_directory_nothing_is_writable_but_the_session_directory(account, project):
    done = account.guard(["sh", "-c", 'touch "$TMPDIR/x" && echo ok'], cwd="/")
    assert done.stdout == "ok\n"
    assert not writes(account, project, cwd="/")


def test_a_repository_at_the_home_does_not_make_the_home_a_project(account, project):
    git(account, account.home, "git init -q")
    try:
        assert writes(account, project, cwd=project)
        assert not writes(account, account.home, cwd=project)
        assert not writes(account, account.home / ".git", cwd=project)
    finally:
        shutil.rmtree(account.home / ".git")


# --- worktrees and submodules ----------------------------------------------------------------------------------


@pytest.fixture
def worktree(account, place):
    """A linked worktree beside its repository; both of the user's."""
    git(
        account,
        place,
        "git init -q main; cd main; echo a > f; git add f; git commit -qm a; git worktree add -q ../tree",
    )
    return place / "tree"


COMMIT = "echo b >> f; git add f; git commit -qm inside; git log --oneline; ls"


def test_a_worktree_commits_although_its_repository_lies_outside(account, worktree):
    done = account.guard(["bash", "-euc", COMMIT], cwd=worktree, env=GIT)
    assert done.returncode == 0, done.stdout + done.stderr
    log = account.command(["git", "log", "--format=%s", "tree"], cwd=worktree.parent / "main")
    assert log.stdout.splitlines()[0] == "inside"


def test_a_worktree_opens_the_git_directory_and_not_the_other_work(account, worktree):
    main = worktree.parent / "main"
    assert writes(account, main / ".git", cwd=worktree)
    assert not writes(account, main, cwd=worktree)


def test_the_hooks_of_a_worktrees_repository_are_protected(account, worktree):
    policy = masked(account)
    assert not writes(account, worktree.parent / "main/.git/hooks", cwd=worktree, policy=policy)


def unmasked(account):
    return str(account.write(account.home / "unmasked.toml", NO_MASK))


WAIT = "for i in $(seq 3000); do [ -e {0} ] || exit 7; sleep 0.01; done"


@pytest.mark.parametrize("how", ["masked", "unmasked"])
@pytest.mark.parametrize("name", ["commondir", "config.worktree", "worktrees/tree/config.worktree"])
def test_a_worktrees_repository_is_not_led_elsewhere(account, worktree, how, name):
    """The same as a project's own: what git reads there outside, at the next command in any of its worktrees."""
    policy = masked(account) if how == "masked" else unmasked(account)
    path = worktree.parent / "main/.git" / name
    script = f"echo mine > {path} || exit 9; {WAIT.format(path)}"
    assert account.guard(["sh", "-c", script], policy=policy, cwd=worktree).returncode == 7
    assert not path.exists()
    assert account.command(["sh", "-c", f"echo mine > {path}"]).returncode == 0


@pytest.mark.parametrize("where", ["main", "tree"])
def test_another_worktree_outside_is_not_led_elsewhere(account, place, worktree, where):
    git(account, place / "main", "git worktree add -q ../other")
    private = place / "main/.git/worktrees/other"
    done = account.guard(["sh", "-c", f"echo /tmp > {private}/commondir"], policy=masked(account), cwd=place / where)
    assert "Read-only file system" in done.stderr
    policy, path = unmasked(account), private / "config.worktree"
    script = f"echo mine > {path} || exit 9; {WAIT.format(path)}"
    assert account.guard(["sh", "-c", script], policy=policy, cwd=place / where).returncode == 7
    assert account.command(["sh", "-c", f"echo mine > {path}"]).returncode == 0


def test_a_worktree_within_the_project_can_be_added_and_removed(account, place, worktree):
    main = place / "main"
    git(account, main, "git worktree add -q before")
    script = "git worktree remove before; git worktree add -q inside; git worktree remove inside; git worktree list"
    done = account.guard(["bash", "-euc", script], policy=masked(account), cwd=main, env=GIT)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2


def test_a_policy_may_forbid_worktrees(account, worktree):
    policy = account.write(
        account.home / "strict.toml",
        'schema = 1\nname = "strict"\nextends = "login-node"\nreason = "r"\n[project]\nworktrees = false\n',
    )
    main = worktree.parent / "main"
    assert not writes(account, main / ".git", cwd=worktree, policy=str(policy))
    assert writes(account, worktree, cwd=worktree, policy=str(policy))


@pytest.mark.parametrize("how", ["no way back", "back to another", "not a worktree's", "by a link", "whole home"])
def test_a_worktree_that_is_not_mutual_opens_nothing(account, place, worktree, how):
    """`.git` of a project is written by agents: it may name any directory as its repository."""
    victim, forged = place / "victim", place / "forged"
    git(account, place, "git init -q victim; mkdir forged; cd victim; echo a > f; git add f; git commit -qm a")
    private = victim / ".git/worktrees/forged"
    if how == "no way back":
        git(account, victim, f"mkdir -p {private}; echo ../.. > {private}/commondir")
    elif how == "back to another":
        git(account, victim, f"git worktree add -q ../elsewhere; cp -r .git/worktrees/elsewhere {private}")
    elif how == "not a worktree's":
        private = victim / ".git"
    elif how == "by a link":
        git(account, victim, f"git worktree add -q ../real; ln -s .. {forged}/up")
        private = forged / "up/victim/.git/worktrees/real"
    else:
        private = account.home
    account.write(forged / ".git", f"gitdir: {private}\n")
    assert not writes(account, victim / ".git", cwd=forged)
    assert not writes(account, account.home, cwd=forged)


def test_a_worktree_file_that_is_a_link_opens_nothing(account, place, worktree):
    forged = account.directory("forged", place)
    (forged / ".git").symlink_to(worktree / ".git")
    assert not writes(account, place / "main/.git", cwd=forged)


def test_a_worktree_made_inside_is_opened_at_the_next_start_only_below_the_project(account, place):
    """An agent that writes both ends of the link itself gains nothing beyond what it could write already."""
    git(account, place, "git init -q project; mkdir -p target/objects target/refs")
    script = """
        mkdir -p fake/worktrees/w; echo ../.. > fake/worktrees/w/commondir; mkdir -p fake/objects fake/refs tree
        echo "$PWD/tree/.git" > fake/worktrees/w/gitdir; echo "gitdir: $PWD/fake/worktrees/w" > tree/.git
        rm -r fake/objects; ln -s ../../target/objects fake/objects
    """
    done = account.guard(["bash", "-euc", script], cwd=place / "project")
    assert done.returncode == 0, done.stderr
    assert not writes(account, place / "target", cwd=place / "project/tree")
    assert not writes(account, place / "target/objects", cwd=place / "project/tree")


def test_a_submodule_commits_and_its_project_is_the_repository_above(account, place):
    git(account, place, "git init -q lib; cd lib; echo a > f; git add f; git commit -qm a")
    script = "git init -q app; cd app; git -c protocol.file.allow=always submodule --quiet add ../lib; git commit -qm a"
    git(account, place, script)
    done = account.guard(["bash", "-euc", COMMIT], cwd=place / "app/lib", env=GIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert writes(account, place / "app", cwd=place / "app/lib")
    assert not writes(account, place, cwd=place / "app/lib")


# --- what an agent leaves behind --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["config", ".git", "sub/deep", ".guard-work"])
def test_a_link_to_the_keys_left_in_the_project_gains_nothing_at_the_next_start(account, project, key, name):
    leave = f'mkdir -p "$(dirname {name})"; ln -sfn {key.parent} {name}'
    assert account.guard(["bash", "-euc", leave], cwd=project).returncode == 0
    assert (project / name).is_symlink()
    for command in (["cat", f"{name}/id_ed25519"], ["ls", f"{name}/"], ["cp", "-rL", name, "copy"]):
        inside = account.guard(command, cwd=project)
        assert KEY not in inside.stdout
        assert inside.returncode != 0 or not inside.stdout.strip(), inside.stdout
    assert not list(project.glob("copy/*"))
    assert account.command(["cat", f"{name}/id_ed25519"], cwd=project).stdout == KEY
    assert account.guard(["touch", f"{name}/authorized_keys"], cwd=project).returncode != 0
    assert account.command(["touch", f"{name}/authorized_keys"], cwd=project).returncode == 0


def test_a_project_replaced_by_a_link_to_the_keys_is_not_a_project(account, project, key):
    inner = project / "inner"
    script = f"mkdir inner; rmdir inner; ln -s {key.parent} inner"
    assert account.guard(["bash", "-euc", script], cwd=project).returncode == 0
    for options, cwd in ((["--project", str(inner)], project), ([], inner)):
        inside = account.guard(["cat", str(key)], *options, cwd=cwd)
        assert KEY not in inside.stdout
    assert account.command(["cat", str(key)]).stdout == KEY


def test_a_project_inside_a_denied_place_opens_nothing_of_it(account, key):
    inside = account.guard(["cat", "id_ed25519"], cwd=key.parent)
    assert KEY not in inside.stdout
    assert "denies" in inside.stderr
    named = account.guard(["cat", str(key)], "--project", str(key.parent), cwd=account.home)
    assert named.returncode == 125
    assert "denies" in named.stderr


def test_a_project_inside_a_protected_place_is_not_writable(account):
    unit = account.write(account.home / ".config/systemd/user/x.service").parent
    try:
        assert not writes(account, unit, cwd=unit)
        named = account.guard(["true"], "--project", str(unit))
        assert named.returncode == 125
        assert "protects" in named.stderr
    finally:
        shutil.rmtree(account.home / ".config")


def test_start_up_files_that_are_links_into_a_project_are_protected_there(account, project):
    """Many keep their dotfiles in a repository, and let agents work on it."""
    policy = masked(account)
    kept = account.write(project / "bashrc", "# mine\n")
    (account.home / ".bash_aliases").symlink_to(kept)
    try:
        refused = account.guard(["sh", "-c", "echo evil >> bashrc"], cwd=project, policy=policy)
        assert refused.returncode != 0
        assert account.guard(["rm", "bashrc"], cwd=project, policy=policy).returncode != 0
        assert kept.read_text() == "# mine\n"
        assert writes(account, project, cwd=project, policy=policy)
        assert account.command(["sh", "-c", "echo fine >> bashrc"], cwd=project).returncode == 0
    finally:
        (account.home / ".bash_aliases").unlink()


# --- HOME tricks ----------------------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.parametrize("trick", ["elsewhere", "unset", "empty", "relative", "a link", "the project"])
def test_another_home_in_the_environment_opens_no_key_of_the_real_one(account, project, key, trick):
    link = project / "link"
    link.symlink_to(account.home)
    values = {
        "elsewhere": "/nonexistent",
        "empty": "",
        "relative": "x/..",
        "a link": str(link),
        "the project": str(project),
    }
    change = "unset HOME" if trick == "unset" else f"export HOME={values[trick]}"
    command = ["bash", "-c", f'{change}; exec {GUARD} run --policy login-node -- cat "$0"', str(key)]
    inside = account.command(command, cwd=project)
    assert KEY not in inside.stdout
    assert account.command(["cat", str(key)]).stdout == KEY


@pytest.mark.root
def test_the_real_home_is_no_project_whatever_home_says(account, place):
    for options, cwd in ((["--project", str(account.home)], place), ([], account.home)):
        command = [GUARD, "run", "--policy", "login-node", *options, "--", "touch", str(account.home / "made")]
        done = account.command(command, cwd=cwd, env={"HOME": str(place)})
        assert done.returncode != 0
        assert not (account.home / "made").exists()


# --- the site ----------------------------------------------------------------------------------------------------


@pytest.fixture
def roots(account):
    """A configuration whose project_roots are two directories."""
    path = account.config / "site.toml"
    tops = [account.directory("root", Path("/var/tmp")), account.directory("root", Path("/var/tmp"))]
    path.write_text(
        'schema = 1\n[site]\ndefault_policy = "login-node"\n'
        f'project_roots = ["{tops[0]}", "{tops[1]}"]\n', encoding="utf-8",
    )  # fmt: skip
    yield tops
    path.unlink()
    for top in tops:
        shutil.rmtree(top, ignore_errors=True)


def test_projects_lie_under_the_sites_project_roots(account, roots, place):
    for top in roots:
        inner = account.directory("project", top)
        assert writes(account, inner, cwd=inner, policy=None)
    assert not writes(account, place, cwd=place, policy=None)
    named = account.guard(["true"], "--project", str(place), policy=None)
    assert named.returncode == 125
    assert "project_roots" in named.stderr


def test_a_link_out_of_the_project_roots_is_no_way_in(account, roots, place):
    (roots[0] / "link").symlink_to(place)
    named = account.guard(["true"], "--project", str(roots[0] / "link"), policy=None)
    assert named.returncode == 125
    assert not writes(account, place, cwd=roots[0] / "link", policy=None)


def test_roots_may_be_a_link_themselves(account, roots, place):
    """As /home -> /export/home is on many machines."""
    link = account.directory("top", Path("/var/tmp")) / "link"
    os.symlink(place, link)
    (account.config / "site.toml").write_text(
        f'schema = 1\n[site]\ndefault_policy = "login-node"\nproject_roots = ["{link}"]\n', encoding="utf-8"
    )
    inner = account.directory("project", place)
    assert writes(account, inner, cwd=link / inner.name, policy=None)
    shutil.rmtree(link.parent)


@pytest.mark.parametrize("how", ["no module", "another's module", "a module of its own"])
def test_a_repository_that_claims_to_be_a_submodule_does_not_become_the_one_above(account, place, how):
    """`.git` of a project is written by agents: what it names must name the project back."""
    git(account, place, "git init -q lib; cd lib; echo a > f; git add f; git commit -qm a")
    script = "git init -q app; cd app; git -c protocol.file.allow=always submodule --quiet add ../lib; git commit -qm a"
    git(account, place, script)
    inner = account.directory("inner", place / "app")
    named = {
        "no module": "../.git/modules/inner",
        "another's module": "../.git/modules/lib",
        "a module of its own": "x/modules/inner",
    }[how]
    if how == "a module of its own":
        account.write(inner / "x/modules/inner/config", "[core]\n\tworktree = ../../..\n")
        account.write(inner / "x/modules/inner/HEAD", "ref: refs/heads/main\n")
    account.write(inner / ".git", f"gitdir: {named}\n")
    assert writes(account, inner, cwd=inner)
    assert not writes(account, place / "app", cwd=inner)


def test_a_submodule_of_a_submodule_is_part_of_the_topmost_repository(account, place):
    allow = "-c protocol.file.allow=always"
    for name, below in (("c", ""), ("b", "c"), ("a", "b")):
        script = f"git init -q {name}; cd {name}; echo a > f; git add f; git commit -qm a"
        if below:
            script += f"; git {allow} submodule --quiet add ../{below}; git commit -qm a"
        git(account, place, script)
    git(account, place / "a", f"git {allow} submodule --quiet update --init --recursive")
    deep = place / "a/b/c"
    assert (deep / ".git").is_file()
    done = account.guard(["bash", "-euc", COMMIT], cwd=deep, env=GIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert writes(account, place / "a", cwd=deep)
