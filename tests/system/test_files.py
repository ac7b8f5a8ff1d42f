"""Files: what lies outside the grants can be neither read, changed, run nor moved, by any call."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from errno import EACCES, EBADF, EBUSY, ENOENT, EPERM, EROFS, EXDEV
from pathlib import Path

import pytest

from tests.conftest import LAUNCHER, ROOT_HERE, Account, _Accounts
from tests.system.stage import NO_MASK, PYTHON, UNDONE, Stage, guarded


def _mounted(accounts: _Accounts, kind: str) -> Account:
    """A user whose home, projects included, lies on a file system of this kind."""
    account = accounts.new()
    below = account.state.parent / "below"
    shutil.copytree(account.home, below, symlinks=True)
    shutil.rmtree(account.home)
    account.home.mkdir()
    for path in (below, *below.rglob("*"), account.home):
        os.chown(path, account.uid, account.gid)
    if kind == "fuse":
        command = ["bindfs", "-o", "allow_other", str(below), str(account.home)]
    else:
        upper, work = account.state.parent / "upper", account.state.parent / "work"
        for path in (upper, work):
            path.mkdir()
            os.chown(path, account.uid, account.gid)
        options = f"lowerdir={below},upperdir={upper},workdir={work}"
        command = ["mount", "-t", "overlay", "overlay", "-o", options, str(account.home)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no {kind} file system here: {done.stderr.strip()}")
    return account


@pytest.fixture(scope="session")
def homes(request: pytest.FixtureRequest) -> Iterator[dict[str, Account]]:
    if ROOT_HERE:
        request.getfixturevalue("accounts")  # so that the mounts go before the users do
    made: dict[str, Account] = {}
    yield made
    for account in made.values():
        subprocess.run(["umount", "-l", str(account.home)], check=False)


@pytest.fixture(params=["plain", pytest.param("fuse", marks=pytest.mark.root), pytest.param("overlay", marks=pytest.mark.root)])
def stage(request: pytest.FixtureRequest, homes: dict[str, Account]) -> Iterator[Stage]:
    """The file suite runs with the home on the disk, on FUSE and on overlayfs."""
    kind = request.param
    if kind == "plain":
        account = request.getfixturevalue("account")
    else:
        if kind not in homes:
            homes[kind] = _mounted(request.getfixturevalue("accounts"), kind)
        account = homes[kind]
    made = Stage(account)
    made.kind = kind
    yield made
    made.remove()


PLAIN = pytest.mark.parametrize("stage", ["plain"], indirect=True)  # the home's file system plays no part

# (how it is refused, act, its arguments): in a place of no grant, `@`
ELSEWHERE = [
    (EACCES, "read", "@/file"),
    (EACCES, "listing", "@"),
    (EACCES, "execute", "@/tool"),
    (EACCES, "execute_by_descriptor", "@/tool"),
    (EACCES, "load", "@/tool"),
    (EACCES, "change_directory_and_read", "@", "file"),
    (EACCES, "read", "/proc/self/root@/file"),
    (EACCES, "read", "/proc/thread-self/root@/file"),
    (EACCES, "open_path_only_then_proc", "@/file"),
    ((EACCES, ENOENT), "race_link", "{project}", "{project}/tool", "@/file", "10"),
]
# in a place that may be read, and in one of no grant
CHANGES = [
    (EACCES, "write", "@/file"),
    (EACCES, "append", "@/file"),
    (EACCES, "open_both", "@/file"),
    (EACCES, "map_shared", "@/file"),
    (EACCES, "truncate", "@/file"),
    (EACCES, "truncating_open", "@/file"),
    (EACCES, "create", "@/new"),
    (EACCES, "temporary", "@"),
    (EACCES, "mkdir", "@/new"),
    (EACCES, "mkfifo", "@/new"),
    (EACCES, "mksock", "@/new"),
    (EACCES, "symlink", "file", "@/new"),
    (EACCES, "unlink", "@/spare"),
    (EACCES, "rmdir", "@/directory"),
    (EACCES, "write", "/proc/self/root@/file"),
    (EACCES, "open_path_only_then_proc", "@/file"),
    ((EACCES, EXDEV), "rename", "@/file", "{project}/new"),
    ((EACCES, EXDEV), "rename", "{project}/file", "@/new"),
    ((EACCES, EXDEV), "rename", "@/full", "{project}/new"),
    ((EACCES, EXDEV), "rename", "{project}/full", "@/new"),
    ((EACCES, EXDEV), "rename_noreplace", "{project}/file", "@/new"),
    (EACCES, "rename", "@/file", "@/renamed"),
    ((EACCES, EXDEV), "exchange", "@/file", "{project}/file"),
    ((EACCES, EXDEV), "exchange", "{project}/full", "@/full"),
    ((EACCES, EXDEV), "exchange", "{project}/file", "@/full"),
    ((EACCES, EXDEV), "link", "@/file", "{project}/new"),
    ((EACCES, EXDEV), "link", "{project}/file", "@/new"),
    ((EACCES, EXDEV), "link_by_descriptor", "@/file", "{project}/new"),
    ((EACCES, EXDEV), "link_by_empty_path", "@/file", "{project}/new"),
    ((EACCES, EXDEV), "temporary_linked", "{project}", "@/new"),
]
INSIDE = [
    ("read", "@/file"),
    ("listing", "@"),
    ("execute", "@/tool"),
    ("write", "@/file"),
    ("append", "@/file"),
    ("map_shared", "@/file"),
    ("truncate", "@/file"),
    ("truncating_open", "@/file"),
    ("create", "@/new"),
    ("temporary", "@"),
    ("temporary_linked", "@", "@/full/new"),
    ("mkdir", "@/new"),
    ("mkfifo", "@/new"),
    ("mksock", "@/new"),
    ("symlink", "file", "@/new"),
    ("unlink", "@/spare"),
    ("rmdir", "@/directory"),
    ("rename", "@/file", "@/full/file"),
    ("rename", "@/full", "@/directory/full"),
    ("exchange", "@/file", "@/full/inner/file"),
    ("link", "@/file", "@/full/linked"),
]


def _id(row: tuple[object, ...]) -> str:
    return " ".join(word for word in row if isinstance(word, str)).replace("{project}", "project")


def _at(words: tuple[object, ...], place: str) -> list[str]:
    return [str(word).replace("@", "{" + place + "}") for word in words]


_NOT_ON_FUSE = ("temporary", "temporary_linked", "exchange", "rename_noreplace")


def _tried(stage: Stage, words: list[str]) -> None:
    """Leave out what this file system cannot do for anybody: that would prove nothing."""
    if stage.kind == "fuse" and words[0] in _NOT_ON_FUSE and "{elsewhere}" not in "".join(words):
        pytest.skip("bindfs has no such call")
    # Across file systems no one can link or rename.
    first = next((word for word in words if "{elsewhere}" in word), "")
    if first and words[0] in _TWO_PLACES and os.stat(stage.elsewhere).st_dev != os.stat(stage.project).st_dev:
        pytest.skip("the two places lie on different file systems")


_TWO_PLACES = ("rename", "rename_noreplace", "exchange", "link", "link_by_descriptor", "link_by_empty_path", "temporary_linked")


@PLAIN
@pytest.mark.nested
@pytest.mark.parametrize("row", ELSEWHERE, ids=_id)
def test_what_is_not_granted_cannot_be_read_or_run(stage: Stage, row: tuple[object, ...]) -> None:
    stage.refused(row[0], *_at(row[1:], "elsewhere"))


@pytest.mark.nested
@pytest.mark.parametrize("row", CHANGES, ids=_id)
def test_nothing_that_may_be_read_can_be_changed(stage: Stage, row: tuple[object, ...]) -> None:
    words = _at(row[1:], "home")
    _tried(stage, words)
    stage.refused(row[0], *words)


@PLAIN
@pytest.mark.nested
@pytest.mark.parametrize("row", CHANGES, ids=_id)
def test_nothing_that_is_not_granted_can_be_changed(stage: Stage, row: tuple[object, ...]) -> None:
    words = _at(row[1:], "elsewhere")
    _tried(stage, words)
    stage.refused(row[0], *words)


@pytest.mark.nested
@pytest.mark.parametrize("words", INSIDE, ids=_id)
def test_everything_in_the_project_works(stage: Stage, words: tuple[str, ...]) -> None:
    words = _at(words, "project")
    _tried(stage, words)
    stage.works(*words)


@pytest.mark.nested
@pytest.mark.parametrize("words", [("read", "@/file"), ("listing", "@"), ("execute", "@/tool")], ids=_id)
def test_the_home_beside_the_project_can_be_read(stage: Stage, words: tuple[str, ...]) -> None:
    stage.works(*_at(words, "home"))


# Denied places in a readable home -----------------------------------------------------------------------

# With the mask the place is there and empty (UNDONE) or gone from sight; without, the kernel's rules refuse.
DENIED = [
    ("read", "@/file"),
    ("listing", "@"),
    ("read", "/proc/self/root@/file"),
    ("change_directory_and_read", "@", "file"),
    ("write", "@/file"),
    ("create", "@/new"),
    ("unlink", "@/spare"),
    ("truncate", "@/file"),
    ("rename", "@/file", "{project}/stolen"),
    ("rename", "@", "{project}/stolen"),
    ("exchange", "@", "{project}/full"),
    ("link", "@/file", "{project}/stolen"),
    ("execute", "@/tool"),
    ("read_link", "@/file"),
    ("read_link_to_directory", "@", "file"),
]


@pytest.fixture
def ssh(stage: Stage) -> Iterator[Path]:
    """~/.ssh with something in it."""
    yield from _placed(stage, ".ssh")


def _placed(stage: Stage, name: str) -> Iterator[Path]:
    path = stage.account.home / name
    assert not path.exists()
    stage.account.write(path / "placed")
    stage._furnish(path)
    stage.set(denied=path)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.nested
@pytest.mark.parametrize("row", DENIED, ids=_id)
@pytest.mark.parametrize("mask", ["mask", "no-mask"])
def test_a_denied_place_in_a_readable_home_is_closed(
    stage: Stage, ssh: Path, row: tuple[str, ...], mask: str
) -> None:
    words = _at(row, "denied")
    _tried(stage, words)
    if words[0] == "read_link":
        os.symlink(ssh / "file", stage.project / "left")
        words = ["read", "{project}/left"]
    elif words[0] == "read_link_to_directory":
        os.symlink(ssh, stage.project / "left")
        words = ["read", "{project}/left/file"]
    policy = "login-node" if mask == "mask" else stage.policy(NO_MASK)
    stage.refused((EACCES, EXDEV, ENOENT, EROFS, EBUSY, UNDONE), *words, policy=policy)


@PLAIN
@pytest.mark.nested
@pytest.mark.parametrize("policy", ["login-node", NO_MASK], ids=["mask", "no-mask"])
@pytest.mark.parametrize("name", [".netrc", ".config/gh/hosts.yml", ".local/share/keyrings/login", ".bash_history"])
def test_each_credential_is_unreadable_and_its_neighbours_are_not(stage: Stage, name: str, policy: str) -> None:
    path = stage.account.home / name
    stage.account.write(path, "secret")
    neighbour = stage.account.write(path.parent / "neighbour", "plain")
    policy = stage.policy(policy) if "\n" in policy else policy
    try:
        stage.refused((EACCES, UNDONE, ENOENT), "read", str(path), policy=policy)
        if path.parent.name not in ("gh", "keyrings"):
            stage.works("read", str(neighbour), policy=policy)
    finally:
        path.unlink()
        neighbour.unlink()


@pytest.mark.nested
def test_a_denied_place_that_is_a_link_is_denied_where_it_leads(stage: Stage) -> None:
    real = stage.account.home / "dotfiles/ssh"
    stage.account.write(real / "file", "secret")
    stage.account.write(real.parent / "plain", "plain")
    left = stage.account.home / ".ssh"
    os.symlink("dotfiles/ssh", left)
    try:
        for path in (left / "file", real / "file"):
            stage.refused((EACCES, UNDONE, ENOENT), "read", str(path))
            stage.refused((EACCES, UNDONE, ENOENT), "read", str(path), policy=stage.policy(NO_MASK))
        stage.works("read", str(real.parent / "plain"))
    finally:
        left.unlink()
        shutil.rmtree(real.parent)


@PLAIN
@pytest.mark.nested
def test_what_appears_in_a_denied_place_after_the_start_stays_closed(stage: Stage) -> None:
    path = stage.account.home / ".aws/credentials"
    script = f"echo > {stage.project}/started; read go; {PYTHON} -IS {stage.act} read {path}"
    fifo = stage.project / "go"
    stage.bare("mkfifo", str(fifo))
    for policy in ("login-node", stage.policy(NO_MASK)):
        (stage.project / "started").unlink(missing_ok=True)
        with stage.beside(
            [*guarded(stage, "--project", str(stage.project), policy=policy), "sh", "-c",
             f"echo started; exec < {fifo}; read go; {PYTHON} -IS {stage.act} read {path}; echo $?"],
        ) as process:  # fmt: skip
            assert process.said == "started"
            stage.account.write(path, "secret")
            fifo.write_text("go\n")
            assert process.stdout.readline().strip() == str(EACCES), script
            assert stage.bare("read", str(path)) == 0
        shutil.rmtree(path.parent)


@pytest.mark.nested
@pytest.mark.parametrize("policy", ["login-node", NO_MASK], ids=["mask", "no-mask"])
def test_the_home_keeps_no_trace_of_guard(stage: Stage, policy: str) -> None:
    home = stage.account.home

    def look() -> list[tuple[str, int, int]]:
        return sorted(
            (str(path), path.lstat().st_mode, path.lstat().st_ino)
            for path in home.rglob("*")
            if "/project-" not in str(path)
        )

    before = look()
    stage.works("create", "{project}/new", policy=stage.policy(policy) if "\n" in policy else policy)
    assert look() == before


@PLAIN
@pytest.mark.root
@pytest.mark.parametrize("home", ["{user_home}/.ssh", "{elsewhere}", "/", "", "/nonexistent"])
@pytest.mark.parametrize("policy", ["login-node", NO_MASK], ids=["mask", "no-mask"])
def test_no_value_of_home_opens_what_is_denied(stage: Stage, ssh: Path, home: str, policy: str) -> None:
    home = home.format(user_home=stage.account.home, elsewhere=stage.elsewhere)
    policy = stage.policy(policy) if "\n" in policy else policy
    moved = {"HOME": home}
    stage.refused((EACCES, ENOENT, UNDONE), "read", "{denied}/file", policy=policy, env=moved, cwd=stage.home)


# Links that a tree leaves behind ------------------------------------------------------------------------


@PLAIN
@pytest.mark.nested
@pytest.mark.parametrize("policy", ["login-node", NO_MASK], ids=["mask", "no-mask"])
def test_a_link_in_the_home_to_the_root_widens_nothing(stage: Stage, policy: str) -> None:
    left = stage.account.home / "everything"
    os.symlink("/", left)
    policy = stage.policy(policy) if "\n" in policy else policy
    try:
        for path in (f"{left}{stage.elsewhere}/file", "{elsewhere}/file"):
            stage.refused(EACCES, "read", path, policy=policy)
            stage.refused(EACCES, "write", path, policy=policy)
    finally:
        left.unlink()


@pytest.mark.nested
def test_a_project_that_became_a_link_is_not_followed_by_the_grant(stage: Stage) -> None:
    """What a tree swaps beneath the project between two starts decides nothing."""
    shutil.rmtree(stage.project / "full")
    os.symlink(stage.home, stage.project / "full")
    stage.refused(EACCES, "write", "{project}/full/file")


@PLAIN
@pytest.mark.nested
@pytest.mark.parametrize("name", ["{home}", "{x}", "a b", "a\nb", "*", "~", "$(id)", "é"])
def test_a_project_s_name_means_nothing(stage: Stage, name: str) -> None:
    project = stage.account.directory("odd") / name
    stage.account.write(project / "file")
    for words, code in ((["sh", "-c", "echo x > new"], 0), (["sh", "-c", f"echo x > {stage.home}/new 2> /dev/null"], 2)):
        assert stage.account.guard(words, "--no-project-policy", cwd=project).returncode == code
        assert stage.account.command(words, cwd=project).returncode == 0
    shutil.rmtree(project.parent)


@pytest.mark.nested
def test_a_linked_gitconfig_neither_stops_the_start_nor_is_writable(stage: Stage) -> None:
    real = stage.account.write(stage.account.home / "settings/git", "[user]\n\tname = A\n")
    left = stage.account.home / ".gitconfig"
    os.symlink("settings/git", left)
    try:
        stage.works("read", str(left))
        stage.refused((EACCES, EROFS), "write", str(left))
        stage.refused((EACCES, EROFS), "write", str(real))
    finally:
        left.unlink()
        shutil.rmtree(real.parent)


# Protected places in a writable one ---------------------------------------------------------------------


@pytest.fixture
def repository(stage: Stage) -> Path:
    stage.account.command(["git", "init", "-q", str(stage.project)])
    stage.account.write(stage.project / ".git/hooks/pre-commit.sample", "#!/bin/sh\n")
    stage.account.write(stage.project / ".git/config.worktree", "[core]\n\tsparseCheckout = true\n")
    stage.set(git=stage.project / ".git")
    return stage.project / ".git"


PROTECTED = [
    (EROFS, "create", "{git}/hooks/pre-commit"),
    (EROFS, "write", "{git}/config"),
    (EROFS, "truncate", "{git}/config"),
    ((EROFS, EBUSY), "unlink", "{git}/config"),
    (EROFS, "unlink", "{git}/hooks/pre-commit.sample"),
    ((EBUSY, EXDEV), "rename", "{git}", "{project}/x"),
    ((EBUSY, EXDEV), "rename", "{git}/hooks", "{project}/x"),
    ((EBUSY, EXDEV), "rename", "{project}/file", "{git}/config"),
    ((EBUSY, EXDEV), "exchange", "{project}/full", "{git}/hooks"),
    ((EBUSY, EXDEV), "exchange", "{project}/full", "{git}"),
    (EROFS, "append", "{git}/config.worktree"),
    ((EBUSY, EXDEV), "rename", "{project}/file", "{git}/config.worktree"),
    ((EXDEV, EROFS), "link", "{project}/file", "{git}/hooks/pre-commit"),
    (EXDEV, "link", "{git}/config", "{project}/config"),
    ((EXDEV, EROFS), "rename", "{project}/file", "{git}/hooks/pre-commit"),
    (EROFS, "chmod", "libc", "{git}/hooks/pre-commit.sample", "755"),
    (EROFS, "times", "{git}/config"),
    (EROFS, "symlink", "/bin/true", "{git}/hooks/pre-commit"),
    (EROFS, "create", "/proc/self/root{git}/hooks/pre-commit"),
    (EROFS, "create", "/proc/self/cwd/.git/hooks/pre-commit"),
]


@pytest.mark.nested
@pytest.mark.parametrize("row", PROTECTED, ids=_id)
def test_hooks_and_settings_of_the_repository_cannot_be_changed(
    stage: Stage, repository: Path, row: tuple[object, ...]
) -> None:
    words = list(map(str, row[1:]))
    _tried(stage, words)
    stage.refused(row[0], *words)


@PLAIN
@pytest.mark.nested
def test_hooks_and_settings_of_a_bare_repository_cannot_be_changed(stage: Stage) -> None:
    stage.account.command(["git", "init", "-q", "--bare", str(stage.project)])
    stage.refused(EROFS, "create", "{project}/hooks/post-receive")
    stage.refused(EROFS, "append", "{project}/config")
    stage.works("create", "{project}/refs/heads/new")


@PLAIN
@pytest.mark.nested
@pytest.mark.parametrize("how", ["granted above", "named beside"])
def test_a_project_within_a_writable_place_cannot_be_moved_away(stage: Stage, repository: Path, how: str) -> None:
    """Another could be put in its place, with hooks and settings of its own."""
    above = stage.account.home / "guard-work"
    inner = above / "inner"
    stage.account.write(inner / "file")
    try:
        stage.account.command(["git", "init", "-q", str(inner)])
        move = ["sh", "-c", f"cd {above}; mv {inner} {above}/gone"]
        options = ["--project", str(above)] if how == "named beside" else []
        done = stage.account.guard(move, "--no-project-policy", "--project", str(inner), *options, cwd=inner)
        assert done.returncode != 0
        assert (inner / ".git/config").exists()
        assert stage.account.command(move, cwd=inner).returncode == 0
    finally:
        shutil.rmtree(above)


@pytest.mark.nested
def test_a_worktree_cannot_be_made_to_take_its_settings_from_elsewhere(stage: Stage, repository: Path) -> None:
    """Its `.git` is a file that names the directory; that names the repository whose hooks and settings count."""
    tree = stage.home / "tree"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(stage.project)]
    stage.account.command([*git, "commit", "-qm", "one", "--allow-empty"])
    stage.account.command([*git, "worktree", "add", "-q", str(tree)])
    private = (tree / ".git").read_text().partition("gitdir: ")[2].strip()

    def planted(path: str, *, confined: bool) -> bool:
        plant = ["sh", "-c", f"(echo x; cat {path}) > new && mv new {path}"]
        head = stage.account.guard if confined else stage.account.command
        extra = ("--no-project-policy",) if confined else ()
        return head(plant, *extra, cwd=tree).returncode == 0

    for path in (f"{tree}/.git", f"{private}/commondir", f"{private}/gitdir"):
        assert not planted(path, confined=True), path
    for path in (f"{private}/gitdir", f"{private}/commondir", f"{tree}/.git"):
        assert planted(path, confined=False), path


@pytest.mark.nested
@pytest.mark.parametrize("where", [".git/hooks", ".git"])
def test_a_start_from_within_a_protected_place_is_no_way_into_it(stage: Stage, repository: Path, where: str) -> None:
    path = "pre-commit" if where == ".git/hooks" else "hooks/pre-commit"
    stage.refused(EROFS, "create", path, cwd=stage.project / where)


@pytest.mark.nested
def test_a_start_from_within_a_denied_place_is_no_way_into_it(stage: Stage) -> None:
    text = 'schema=1\nname="secret"\nextends="login-node"\n[files]\ndeny=["{project}/full"]\n'
    policy = stage.policy(text)
    gone = (UNDONE, ENOENT, EACCES)
    stage.refused(gone, "read", "inner/file", cwd=stage.project / "full", policy=policy)
    done = stage.account.guard(
        ["cat", "file"], "--project", str(stage.project), policy=policy, cwd=stage.project / "full/inner"
    )
    assert done.returncode in (1, 125)
    assert "secret" not in done.stdout
    assert stage.bare("read", "file", cwd=stage.project / "full/inner") == 0


@pytest.mark.nested
def test_no_descriptor_that_guard_hands_on_leads_around_the_mask(stage: Stage, repository: Path) -> None:
    """A directory opened before the mounts resolves `..` in the namespace without them."""
    found = stage.confined("create_from_any_descriptor", "{git}/hooks/pre-commit")
    assert found in (EROFS, ENOENT)
    fd = os.open(stage.elsewhere, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert stage.bare("create_from_any_descriptor", "{git}/hooks/pre-commit", pass_fds=(fd,)) == 0
    finally:
        os.close(fd)


@pytest.mark.nested
def test_a_repository_can_still_be_worked_in(stage: Stage, repository: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in ([*git, "add", "file"], [*git, "commit", "-qm", "one"], [*git, "gc", "-q"], [*git, "status"]):
        done = stage.account.guard(words, "--no-project-policy", cwd=stage.project)
        assert done.returncode == 0, done.stderr


@pytest.mark.nested
def test_without_the_mask_the_status_says_that_hooks_are_open(stage: Stage, repository: Path) -> None:
    """Landlock cannot take rights away beneath a grant; what is open is told, and --require refuses."""
    policy = stage.policy(NO_MASK)
    stage.works("create", "{git}/hooks/pre-commit", policy=policy)
    done = stage.account.guard(["true"], "--require", "files", policy=policy, cwd=stage.project)
    assert done.returncode == 125
    assert "protected" in done.stderr
    assert ".git/hooks" in done.stderr


# Descriptors --------------------------------------------------------------------------------------------


@PLAIN
@pytest.mark.nested
@pytest.mark.parametrize("row", [("read_at", "file"), ("create_at", "new")], ids=_id)
def test_an_inherited_directory_is_no_way_out(stage: Stage, row: tuple[str, str]) -> None:
    fd = os.open(stage.elsewhere, os.O_RDONLY | os.O_DIRECTORY)
    try:
        stage.refused(EBADF, row[0], str(fd), row[1], pass_fds=(fd,))
    finally:
        os.close(fd)


@PLAIN
@pytest.mark.nested
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_directory_as_a_standard_stream_is_no_way_out(stage: Stage, number: int) -> None:
    """guard's own interpreter does not even start with one."""
    shell = f'exec "$@" 5<&{number} {number}<> /dev/null'
    streams: dict[str, object] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    fd = os.open(stage.elsewhere, os.O_RDONLY | os.O_DIRECTORY)
    streams[("stdin", "stdout", "stderr")[number]] = fd
    try:
        assert stage.confined("create_at", "5", "made", shell=shell, capture_output=False, **streams) in (1, 125)
        assert not (stage.elsewhere / "made").exists()
        assert stage.bare("create_at", "5", "made", shell=shell, capture_output=False, **streams) == 0
    finally:
        os.close(fd)


@PLAIN
@pytest.mark.nested
def test_every_inherited_descriptor_is_closed(stage: Stage) -> None:
    fds = tuple(os.open(stage.elsewhere / "file", os.O_RDWR) for _ in range(5))
    try:
        stage.refused(EBADF, "descriptors", "0,1,2,3", pass_fds=fds)
    finally:
        for fd in fds:
            os.close(fd)


@PLAIN
@pytest.mark.nested
def test_standard_output_to_a_file_outside_cannot_be_opened_anew(stage: Stage) -> None:
    log = stage.account.write(stage.elsewhere / "log")
    with open(log, "w") as out:
        stage.refused(EACCES, "reopen_standard", "1", stdout=out, capture_output=False)


# Devices ------------------------------------------------------------------------------------------------


@PLAIN
@pytest.mark.nested
@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/dev/full"])
def test_the_harmless_devices_can_be_read_and_written(stage: Stage, path: str) -> None:
    stage.works("open_both", path)


def own_terminals(stage: Stage) -> bool:
    """Whether a session's /dev/pts is another than ours."""
    look = ["stat", "-c", "%d", "/dev/pts"]
    return stage.account.guard(look).stdout != stage.account.command(look).stdout


@PLAIN
@pytest.mark.nested
@pytest.mark.parametrize("path", ["/dev/ptmx", "/dev/fuse"])
def test_other_devices_cannot_be_opened(stage: Stage, path: str) -> None:
    if stage.bare("open_both", path):
        pytest.skip(f"{path} is not for ordinary users here")
    if path == "/dev/ptmx" and own_terminals(stage):
        pytest.skip("a masked session has terminals of its own")
    stage.refused(EACCES, "open_both", path)


@PLAIN
@pytest.mark.nested
def test_a_device_that_may_only_be_read_takes_no_commands(stage: Stage) -> None:
    if own_terminals(stage):
        pytest.skip("a masked session has terminals of its own")
    text = 'schema=1\nname="d"\nextends="login-node"\nreason="a control"\n[files]\n{}=["/dev/ptmx"]\n'
    stage.refused(EACCES, "ioctl_device", "/dev/ptmx", policy=stage.policy(text.format("read")))
    stage.works("ioctl_device", "/dev/ptmx", policy=stage.policy(text.format("devices")))


@PLAIN
@pytest.mark.nested
def test_files_cannot_be_opened_by_handle(stage: Stage) -> None:
    stage.refused(EPERM, "handle", "{elsewhere}/file")


# guard's own places --------------------------------------------------------------------------------------


@PLAIN
@pytest.mark.nested
def test_state_and_plans_cannot_be_changed_from_inside(stage: Stage) -> None:
    stage.works("read", "{project}/file")
    state = stage.account.state
    for words in (("create", f"{state}/plans/planted"), ("append", f"{state}/events.jsonl")):
        stage.refused(EACCES, *words)
    (state / "events.jsonl").unlink()  # the control has written in it


@PLAIN
@pytest.mark.nested
def test_the_state_is_closed_also_when_the_policy_grants_its_parent(stage: Stage) -> None:
    text = f'schema=1\nname="wide"\nextends="login-node"\nreason="x"\n[files]\nwrite=["{stage.account.state.parent}"]\n'
    policy = stage.policy(text)
    stage.works("create", "{elsewhere}/made", policy=policy)
    stage.refused(EACCES, "create", f"{stage.account.state}/plans/granted", policy=policy)
    config = stage.elsewhere / "config"
    stage.bare("mkdir", str(config))
    moved = ("--config", str(config))
    assert stage.confined("create", f"{config}/planted.toml", policy=policy, options=moved) == EACCES
    assert stage.bare("create", f"{config}/planted.toml") == 0


@PLAIN
@pytest.mark.nested
def test_guard_s_own_code_cannot_be_changed_where_it_lies_in_the_project(stage: Stage) -> None:
    """What it loads at the next start would run outside."""
    venv = Path(LAUNCHER).parent.parent
    (package,) = venv.glob("lib/python*/site-packages/guard")
    copy = stage.project / "env" / package.relative_to(venv)
    shutil.copytree(package, copy)
    for other in package.parent.iterdir():
        if other != package:
            (copy.parent / other.name).symlink_to(other)
    entry = stage.account.write(stage.project / "env/bin/guard", Path(LAUNCHER).read_text().replace(
        str(package.parent), str(copy.parent)), 0o755)  # fmt: skip
    if ROOT_HERE:
        for path in (stage.project / "env").rglob("*"):
            os.chown(path, stage.account.uid, stage.account.gid, follow_symlinks=False)
    for path in (f"{copy}/confine/launch.py", str(entry)):
        words = [str(entry), "run", "--no-project-policy", "--policy", "login-node", "--", *stage.words(["append", path])]
        assert stage.account.command(words, cwd=stage.project).returncode == EROFS
    for path in (f"{copy}/confine/launch.py", str(entry)):
        assert stage.bare("append", path) == 0
