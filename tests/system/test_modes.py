"""Modes: nothing becomes writable by everybody or set-user-id, by any call; ordinary installers go on."""

from __future__ import annotations

import os
import subprocess
from errno import ENOSYS, EOPNOTSUPP, EPERM
from pathlib import Path

import pytest

from tests.system.stage import DENY, UNDONE, UNTRIED, Stage, guarded

CHMODS = ["chmod", "fchmod", "fchmodat", "fchmodat2", "fchmodat2_empty", "proc", "high_bits", "libc"]
MAKES = ["open", "openat", "openat2", "creat", "mknod", "mknodat", "mkfifo", "mkdir", "mkdirat", "socket", "tmpfile"]
pytestmark = pytest.mark.nested


def _known(stage: Stage, *words: str) -> None:
    """Skip where this kernel or architecture has no such call."""
    code = stage.bare(*words)
    if code in (ENOSYS, UNTRIED):
        pytest.skip("no such call here")
    assert code == 0, code


# One bit decides: every call with two modes, two of them with the rest.
@pytest.mark.parametrize(
    ("how", "mode"),
    [(how, mode) for how in CHMODS for mode in ("666", "646")]
    + [(how, mode) for how in ("chmod", "fchmodat2") for mode in ("777", "1777", "002")],
)
def test_chmod_gives_nobody_else_the_right_to_write(stage: Stage, how: str, mode: str) -> None:
    _known(stage, "chmod", how, "{project}/other", "640")
    stage.refused(EPERM, "chmod", how, "{project}/file", mode, policy=stage.policy(DENY))


@pytest.mark.parametrize("how", CHMODS)
def test_where_the_bit_is_stripped_chmod_succeeds_without_it(stage: Stage, how: str) -> None:
    _known(stage, "chmod", how, "{project}/other", "640")
    stage.refused(UNDONE, "chmod", how, "{project}/file", "666")


@pytest.mark.parametrize("how", CHMODS)
def test_chmod_makes_nothing_set_user_id(stage: Stage, how: str) -> None:
    _known(stage, "chmod", how, "{project}/other", "640")
    stage.refused(EPERM, "chmod", how, "{project}/tool", "4755")


@pytest.mark.parametrize("mode", ["644", "755", "600", "664", "775", "0"])
@pytest.mark.parametrize("how", ["chmod", "fchmod", "fchmodat2"])
def test_ordinary_modes_can_be_set(stage: Stage, how: str, mode: str) -> None:
    _known(stage, "chmod", how, "{project}/other", "640")
    stage.works("chmod", how, "{project}/file", mode)


@pytest.mark.parametrize("how", ["chmod", "fchmodat"])
def test_a_directory_can_be_shared_with_the_group(stage: Stage, how: str) -> None:
    stage.works("chmod", how, "{project}/full", "2770")


@pytest.mark.parametrize("how", MAKES)
def test_what_is_made_under_umask_0_is_not_writable_by_others(stage: Stage, how: str) -> None:
    _known(stage, "make", how, "{project}/control", "666")
    expected = (UNDONE, ENOSYS) if how == "openat2" else UNDONE
    stage.refused(expected, "make", how, "{new}", "777" if "mkdir" in how or how == "socket" else "666")


@pytest.mark.parametrize("bit", ["4755", "2755"])
@pytest.mark.parametrize("how", ["open", "openat", "openat2", "creat", "mknod", "mknodat", "tmpfile"])
def test_nothing_is_made_set_user_id(stage: Stage, how: str, bit: str) -> None:
    _known(stage, "make", how, "{project}/control", "644")
    expected = ENOSYS if how == "openat2" else EPERM
    found = stage.confined("make", how, "{project}/made", bit)
    assert found == expected
    path = stage.project / "bare"
    assert stage.bare("make", how, str(path), bit) == 0
    assert path.stat().st_mode & (int(bit, 8) & 0o6000)


def test_umask_0_in_a_shell_leaves_new_files_closed(stage: Stage) -> None:
    stage.refused(UNDONE, "make_in_child_shell", "{new}")


def test_a_start_under_umask_0_leaves_new_files_closed(stage: Stage) -> None:
    head = ["/bin/sh", "-c", 'umask 0; exec "$@"', "sh"]
    make = ["/bin/sh", "-c", "rm -f made; : > made"]
    for between, mode in ((guarded(stage), 0o664), ([], 0o666)):
        assert stage.account.command([*head, *between, *make], cwd=stage.project).returncode == 0
        assert (stage.project / "made").stat().st_mode & 0o777 == mode


def test_set_group_id_by_chmod_passes_and_the_status_says_so(stage: Stage) -> None:
    """What is open: the call does not say whether it is a directory's, and groups share by that bit."""
    stage.works("chmod", "chmod", "{project}/tool", "755", policy=stage.alone)
    done = stage.account.guard(["true"], "--require", "setuid", policy=stage.alone, cwd=stage.project)
    assert done.returncode == 125
    assert "set-group-id" in done.stderr


# Access lists, flags, other metadata ---------------------------------------------------------------------


@pytest.mark.parametrize("how", ["setxattr", "lsetxattr", "fsetxattr", "setxattrat"])
def test_an_access_list_gives_nobody_rights(stage: Stage, how: str) -> None:
    code = stage.bare("acl", how, "{project}/other")
    if code in (ENOSYS, EOPNOTSUPP):
        pytest.skip("no access lists or no such call here")
    assert code == 0
    stage.refused(EOPNOTSUPP, "acl", how, "{project}/file", policy=stage.alone)


def test_a_default_access_list_cannot_be_set(stage: Stage) -> None:
    if stage.bare("acl", "setxattr", "{project}/directory", "default"):
        pytest.skip("no access lists here")
    stage.refused(EOPNOTSUPP, "acl", "setxattr", "{project}/full", "default", policy=stage.alone)


def test_attributes_of_files_outside_cannot_be_set(stage: Stage) -> None:
    stage.refused(EOPNOTSUPP, "user_xattr", "{home}/file", policy=stage.alone)
    stage.refused(EPERM, "user_xattr", "{home}/file")


@pytest.mark.parametrize("high", ["0", "1"])
@pytest.mark.parametrize("place", ["project", "home"])
def test_inode_flags_cannot_be_changed_through_a_readable_file(stage: Stage, place: str, high: str) -> None:
    code = stage.bare("flags", "{project}/other", "0")
    if code:
        pytest.skip("no inode flags on this file system")
    stage.refused(EPERM, "flags", f"{{{place}}}/file", high)


def test_inode_flags_cannot_be_changed_by_path(stage: Stage) -> None:
    code = stage.bare("file_setattr", "{project}/other")
    if code:
        pytest.skip("file_setattr is from Linux 6.17")
    stage.refused((EPERM, ENOSYS), "file_setattr", "{home}/file")


def test_world_writable_is_refused_outside_the_project_too(stage: Stage) -> None:
    stage.refused(EPERM, "chmod", "chmod", "{home}/file", "666", policy=stage.policy(DENY))
    stage.refused(EPERM, "chmod", "chmod", "{elsewhere}/file", "4755")


# Programs that must go on -------------------------------------------------------------------------------


def _runs(stage: Stage, script: str) -> subprocess.CompletedProcess[str]:
    done = stage.account.guard(["sh", "-euc", script], "--no-project-policy", cwd=stage.project)
    assert done.returncode == 0, done.stderr
    return done


def _modes(path: Path) -> dict[str, str]:
    return {p.name: oct(p.stat().st_mode & 0o7777)[2:] for p in path.iterdir()}


def test_mkdir_p_and_install_work(stage: Stage) -> None:
    _runs(stage, "mkdir -p a/b/c; mkdir -m 700 closed; mkdir -m 2770 shared; install -m 755 tool installed; install -d dir/x")
    modes = _modes(stage.project)
    assert (modes["closed"], modes["shared"], modes["installed"]) == ("700", "2770", "755")


def test_cp_a_keeps_modes_and_times(stage: Stage) -> None:
    os.chmod(stage.project / "full/inner/file", 0o640)
    _runs(stage, "cp -a full copied; cp -p tool tool2")
    copied = (stage.project / "copied/inner/file").stat()
    assert copied.st_mode & 0o777 == 0o640
    assert copied.st_mtime == (stage.project / "full/inner/file").stat().st_mtime


def test_tar_unpacks_the_usual_modes(stage: Stage) -> None:
    """An unknown fchmodat2 once made tar fail."""
    _runs(stage, "mkdir t; cp tool t/x; cp file t/y; chmod 755 t/x; chmod 644 t/y; tar cf t.tar t; rm -r t; tar xpf t.tar")
    assert _modes(stage.project / "t") == {"x": "755", "y": "644"}


def test_tar_unpacks_what_would_be_writable_by_all_without_that_bit(stage: Stage) -> None:
    bare = stage.account.command(
        ["sh", "-euc", "mkdir t; cp file t/y; chmod 666 t/y; tar cf t.tar t; rm -r t"], cwd=stage.project
    )
    assert bare.returncode == 0
    _runs(stage, "tar xpf t.tar")
    assert not (stage.project / "t/y").stat().st_mode & 0o002
    (stage.project / "t/y").unlink()
    assert stage.account.command(["tar", "xpf", "t.tar"], cwd=stage.project).returncode == 0
    assert (stage.project / "t/y").stat().st_mode & 0o002


def test_a_set_user_id_archive_member_is_not_unpacked_as_such(stage: Stage) -> None:
    bare = stage.account.command(
        ["sh", "-euc", "mkdir t; cp tool t/y; chmod 4755 t/y; tar cf t.tar t; rm -r t"], cwd=stage.project
    )
    assert bare.returncode == 0
    stage.account.guard(["tar", "xpf", "t.tar"], "--no-project-policy", cwd=stage.project)
    made = stage.project / "t/y"
    assert not made.exists() or not made.stat().st_mode & 0o4000
    assert stage.account.command(["tar", "xpf", "t.tar"], cwd=stage.project).returncode == 0
    assert made.stat().st_mode & 0o4000


def test_rsync_keeps_modes(stage: Stage) -> None:
    _runs(stage, "rsync -a full/ synced/")
    assert (stage.project / "synced/inner/file").exists()



# Open without a supervisor ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [("times", "{home}/file"), ("chmod", "chmod", "{home}/file", "600"), ("give_to_group", "{home}/file")],
    ids=["times", "mode", "group"],
)  # fmt: skip
def test_metadata_of_files_outside_is_open_and_the_status_says_so(stage: Stage, words: tuple[str, ...]) -> None:
    stage.works(*words, policy=stage.alone)
    done = stage.account.guard(["true"], "--require", "metadata", "--no-project-policy", policy=stage.alone, cwd=stage.project)
    assert done.returncode == 125
    assert "modes, owners and times" in done.stderr
