"""Plans on disk: whose count, which are stale, and that a bad one is made anew and never half believed."""

from __future__ import annotations

import marshal
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from guard.confine.state import PLAN_MAGIC
from tests.conftest import GUARD, LONG, Account
from tests.system.node import Node

HEAD = len(PLAN_MAGIC) + 8
READ = ["sh", "-c", 'cat "$HOME/vault/key"; echo started']
DENY = 'schema = 1\nname = "{}"\nextends = "login-node"\n[files]\ndeny = ["{{home}}/vault"]\n'


@pytest.fixture(scope="module", autouse=True)
def vault(account: Account) -> None:
    account.write(account.home / "vault/key", "kept\n")


@pytest.fixture(autouse=True)
def _empty_cache(account: Account) -> None:
    shutil.rmtree(account.state / "plans", ignore_errors=True)


@pytest.fixture
def policy(account: Account) -> Iterator[Path]:
    """A policy of the user's that denies the vault."""
    folder = account.directory("policies")
    yield account.write(folder / "mine.toml", DENY.format("mine"))
    shutil.rmtree(folder)


def cached(account: Account) -> Path:
    (found,) = (account.state / "plans").glob("*.plan")
    return found


def unpacked(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    plan: dict[str, Any] = marshal.loads(content[HEAD:-4])
    return plan


def sealed(plan: object) -> bytes:
    return checked(marshal.dumps(plan, 2))


def checked(body: bytes) -> bytes:
    content = PLAN_MAGIC + len(body).to_bytes(8, "little") + body
    return content + crc32(content).to_bytes(4, "little")


# A dictionary's beginning, with a tuple of 2**26 places: half a gigabyte for eleven bytes.
GREEDY = b"{i\0\0\0\0(" + (1 << 26).to_bytes(4, "little")


def opened(plan: dict[str, Any]) -> dict[str, Any]:
    """The same plan as somebody would plant it: nothing denied, everything granted."""
    return {**plan, "deny": [], "grants": [*plan["grants"], ("/", 0xFFFF)], "mask": "never"}


def plant(account: Account, path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    account.write(path, content, 0o644)


def confined(account: Account, policy: Path | str, **more: Any) -> bool:
    done = account.guard(READ, policy=str(policy), **more)
    assert done.stdout.endswith("started\n"), done.stderr
    return "kept" not in done.stdout


# A user's own cache -------------------------------------------------------------------------------------


def test_a_plan_is_kept_and_used(account: Account, policy: Path) -> None:
    assert confined(account, policy)
    first = cached(account).stat()
    assert confined(account, policy)
    assert (cached(account).stat().st_ino, cached(account).stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    # What is at hand is what holds: the positive control of every planted plan below.
    plant(account, cached(account), sealed(opened(unpacked(cached(account)))))
    assert not confined(account, policy)


def _write(content: Callable[[bytes], bytes]) -> Callable[[Account, Path], None]:
    return lambda account, path: plant(account, path, content(path.read_bytes()))


def _tamper(change: dict[str, object]) -> Callable[[Account, Path], None]:
    return lambda account, path: plant(account, path, sealed({**opened(unpacked(path)), **change}))


def _loose(account: Account, path: Path) -> None:
    plant(account, path, sealed(opened(unpacked(path))))
    path.chmod(0o666)


def _group_loose(account: Account, path: Path) -> None:
    plant(account, path, sealed(opened(unpacked(path))))
    path.chmod(0o664)


def _linked(account: Account, path: Path) -> None:
    target = account.write(account.home / "planted.plan", sealed(opened(unpacked(path))))
    path.unlink()
    path.symlink_to(target)


def _directory(account: Account, path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(account: Account, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _shelf_loose(account: Account, path: Path) -> None:
    plant(account, path, sealed(opened(unpacked(path))))
    path.parent.chmod(0o777)


def _foreign(account: Account, path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: gives a file to somebody else")
    plant(account, path, sealed(opened(unpacked(path))))
    os.chown(path, 65534, 65534)


BAD: dict[str, Callable[[Account, Path], None]] = {
    "writable-by-others": _loose,
    "writable-by-the-group": _group_loose,
    "of-another-owner": _foreign,
    "a-link": _linked,
    "a-directory": _directory,
    "a-fifo": _fifo,
    "in-a-loose-directory": _shelf_loose,
    "empty": _write(lambda content: b""),
    "truncated": _write(lambda content: content[:-9]),
    "only-a-head": _write(lambda content: content[:HEAD]),
    "garbage": _write(lambda content: bytes(len(content))),
    "one-bit": _write(lambda content: content[:900] + bytes([content[900] ^ 1]) + content[901:]),
    "without-a-checksum": _write(lambda content: sealed(opened(marshal.loads(content[HEAD:-4])))[:-4]),
    "asking-for-gigabytes": _write(lambda content: checked(GREEDY)),
    "no-dictionary": _write(lambda content: sealed([1, 2])),
    "empty-dictionary": _write(lambda content: sealed({})),
    "of-another-version": _tamper({"guard": "0.0.0"}),
    "expired": _tamper({"expires": 1.0}),
    "of-another-source": _tamper({"sources": [("/etc/passwd", 1, 1, 1)]}),
    "sources-of-odd-form": _tamper({"sources": [7]}),
}


@pytest.mark.parametrize("how", sorted(BAD))
def test_a_bad_plan_is_made_anew(account: Account, policy: Path, how: str) -> None:
    assert confined(account, policy)
    path = cached(account)
    BAD[how](account, path)
    assert confined(account, policy)
    if how == "in-a-loose-directory":
        path.parent.chmod(0o755)
    elif how != "a-directory":
        about = path.lstat()
        assert about.st_mode & 0o170022 == 0o100000
        assert about.st_uid == account.uid
        assert unpacked(path)["deny"]


PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=False)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)
"""


def test_a_damaged_plan_takes_no_more_memory_than_a_start(account: Account, policy: Path) -> None:
    """Megabytes at the peak of any process: a start whose plan asks for half a gigabyte, and what that would be."""

    def peak(*argv: str) -> int:
        done = account.command(["/usr/bin/python3", "-c", PEAK, *argv])
        return int(done.stdout.split()[-1])

    start = [GUARD, "run", "--policy", str(policy), "--no-project", "--", "/bin/true"]
    account.command(start)
    plant(account, cached(account), checked(GREEDY))
    assert peak(*start) < 200
    assert unpacked(cached(account))["deny"], "it is made anew"
    load = f"import marshal\ntry: marshal.loads({GREEDY!r})\nexcept EOFError: pass"
    assert peak("/usr/bin/python3", "-c", load) > 400, "without the bound it would not: the test proves nothing"


@pytest.mark.parametrize("at", [4, 5, 8, 9, 10], ids=["uid", "groups", "abi", "errno", "machine"])
def test_a_plan_for_another_request_is_not_taken(account: Account, policy: Path, at: int) -> None:
    assert confined(account, policy)
    path = cached(account)
    plan = opened(unpacked(path))
    request = list(plan["request"])
    request[at] = ("other",)
    plant(account, path, sealed({**plan, "request": tuple(request)}))
    assert confined(account, policy)


def test_a_changed_source_makes_a_plan_stale(account: Account, policy: Path) -> None:
    opening = DENY.format("mine").replace("vault", "elsewhere")
    account.write(policy, opening)
    assert not confined(account, policy)
    account.write(policy, DENY.format("mine"))
    assert confined(account, policy)
    policy.unlink()
    account.write(policy, opening)
    assert not confined(account, policy)
    # One that appears counts as well.
    layer = account.write(account.home / ".config/guard/policy.toml", 'schema = 1\n[files]\ndeny = ["{home}/vault"]\n')
    try:
        assert confined(account, policy)
    finally:
        layer.unlink()
    assert not confined(account, policy)


def test_a_same_sized_change_within_the_second_is_noticed(account: Account, policy: Path) -> None:
    for _ in range(2):
        account.write(policy, DENY.format("mine").replace("vault", "vaulx"))
        assert not confined(account, policy)
        account.write(policy, DENY.format("mine"))
        assert confined(account, policy)


def test_two_projects_without_a_layer_share_a_plan(account: Account, policy: Path) -> None:
    for _ in range(2):
        folder = account.directory("project")
        assert confined(account, policy, cwd=folder)
        shutil.rmtree(folder)
    assert len(list((account.state / "plans").iterdir())) == 1


def test_audit_clears_the_cache(account: Account, policy: Path) -> None:
    assert confined(account, policy)
    path = cached(account)
    plant(account, path, sealed(opened(unpacked(path))))
    done = account.guard(["true"], "--audit", policy=str(policy))
    assert done.returncode == 0, done.stderr
    assert not path.exists()
    assert confined(account, policy)


def test_audit_follows_no_link_out_of_the_state(account: Account, policy: Path) -> None:
    thesis = account.directory("thesis")
    kept = account.write(thesis / "12345678.plan", "mine")
    (account.state / "plans").symlink_to(thesis)
    try:
        assert account.guard(["true"], "--audit", policy=str(policy)).returncode == 0
        assert kept.read_text() == "mine"
    finally:
        (account.state / "plans").unlink()
        shutil.rmtree(thesis)


def test_a_session_cannot_write_plans(account: Account, project: Path) -> None:
    rule = 'schema = 1\nname = "w"\nextends = "login-node"\nreason = "r"\n[files]\nwrite = ["/var/tmp", "{home}"]\n'
    wide = account.write(project / "wide.toml", rule)
    assert account.guard(["true"]).returncode == 0
    path = cached(account)
    act = ["sh", "-c", f"echo planted > {path}; echo x > {path.parent}/new; rm -f {path}; echo started"]
    done = account.guard(act, policy=str(wide))
    assert done.stdout == "started\n"
    assert unpacked(path)["guard"]
    assert not (path.parent / "new").exists()
    # The same words without guard do it.
    account.command(act)
    assert not path.exists()


# State and configuration that others may write ----------------------------------------------------------


def test_a_state_directory_that_others_may_write_is_refused(account: Account) -> None:
    folder = account.directory("state")
    try:
        for mode, code in ((0o700, 0), (0o777, 125), (0o770, 125), (0o755, 0)):
            folder.chmod(mode)
            for start in (
                lambda: account.guard(["echo", "ran"], "--state", str(folder)),
                lambda: account.guard(["echo", "ran"], env={"GUARD_STATE_DIR": str(folder)}),
            ):
                done = start()
                assert (done.returncode, done.stdout) == (code, "" if code else "ran\n"), (oct(mode), done.stderr)
                if code:
                    assert "guard: not started: " in done.stderr
                    assert f"{folder} is writable by others" in done.stderr
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("option", ["--state", "--config"])
def test_parents_are_looked_at_too(account: Account, option: str) -> None:
    parent = account.directory("parent")
    folder = account.directory("inner", parent=parent)
    try:
        parent.chmod(0o777)
        done = account.guard(["echo", "ran"], option, str(folder))
        assert (done.returncode, done.stdout) == (125, "")
        assert f"{parent} is writable by others" in done.stderr
        parent.chmod(0o1777)  # as /tmp: only the owner can rename or remove what lies in it
        assert account.guard(["echo", "ran"], option, str(folder)).stdout == "ran\n"
    finally:
        shutil.rmtree(parent)


@pytest.mark.root
def test_a_state_directory_of_somebody_elses_is_refused(account: Account) -> None:
    folder = account.directory("state")
    os.chown(folder, 65534, 65534)
    try:
        done = account.guard(["echo", "ran"], "--state", str(folder))
        assert (done.returncode, done.stdout) == (125, "")
        assert "belongs to user 65534" in done.stderr
    finally:
        shutil.rmtree(folder)


@pytest.mark.root
def test_somebody_who_takes_the_usual_name_keeps_nobody_from_starting(account: Account) -> None:
    taken = Path(f"/var/tmp/guard-{account.uid}")
    shutil.rmtree(taken, ignore_errors=True)
    (taken / "plans").mkdir(parents=True)
    os.chown(taken, 65534, 65534)
    os.chmod(taken / "plans", 0o777)
    try:
        done = account.guard(READ, env={"GUARD_STATE_DIR": ""})
        assert done.stdout.endswith("started\n"), done.stderr
        assert "belongs to user 65534" in done.stderr
        assert not list((taken / "plans").iterdir())
    finally:
        shutil.rmtree(taken)


# Root's plans -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node_of_module() -> Iterator[Node]:
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts")
    node = Node()
    yield node
    node.close()


@pytest.fixture
def node(node_of_module: Node) -> Iterator[Node]:
    node_of_module.know_accounts()
    node_of_module.write("site.toml", '[files]\ndeny = ["{home}/vault"]\n')
    done = node_of_module.compile()
    assert done.returncode == 0, done.stderr
    yield node_of_module
    node_of_module.clear()


def held(node: Node, account: Account, *options: str, **more: Any) -> bool:
    done = node.guard(account, READ, *options, **more)
    assert done.stdout.endswith("started\n"), done.stderr
    return "kept" not in done.stdout


def test_roots_plans_are_used_for_a_site_policy(node: Node, account: Account) -> None:
    node.hide_compiler()
    assert held(node, account)
    done = node.guard(account, ["true"], "--policy", "read-only")  # needs one made, and nothing makes one
    assert done.returncode == 125
    (node.etc / "assign.toml").write_text("schema = 1\n")
    assert node.guard(account, ["true"]).returncode == 125, "stale: a file appeared"


def test_a_users_own_plan_is_not_accepted_for_a_site_policy(node: Node, account: Account) -> None:
    # Taken where no site decides, it opens the vault; its owner, mode, name and request are right.
    (node.etc / "site.toml").rename(node.etc / "away")
    assert not held(node, account)
    path = cached(account)
    plan = unpacked(path)
    (node.etc / "away").rename(node.etc / "site.toml")
    shutil.rmtree(node.state / "plans")
    assert held(node, account)
    for request in (plan["request"], (*plan["request"][:6], "/etc/guard", *plan["request"][7:])):
        name = f"{crc32(repr(request).encode()):08x}.plan"
        sources: list[object] = []
        plant(account, path.with_name(name), sealed({**opened(plan), "sources": sources, "request": request}))
    assert held(node, account)
    # Nor a whole index beside it.
    done = node.root("cp", "-r", "/var/lib/guard", str(account.state / "copied"))
    assert done.returncode == 0
    assert held(node, account, "--state", str(account.state))


def test_a_plan_in_roots_place_counts_only_if_it_is_roots(node: Node, account: Account) -> None:
    index = node.state / "plans/index"
    plans = list((node.state / "plans").glob("*.plan"))
    good = index.read_bytes()
    for path in plans:
        path.write_bytes(sealed(opened(unpacked(path))))
    assert not held(node, account), "positive control: what root has there holds"
    for change in (
        lambda: [os.chown(path, account.uid, account.gid) for path in plans],
        lambda: [path.chmod(0o666) for path in plans],
        lambda: os.chown(index, account.uid, account.gid),
        lambda: index.chmod(0o664),
        lambda: (node.state / "plans").chmod(0o777),
        lambda: os.chown(node.state / "plans", account.uid, account.gid),
        lambda: node.state.chmod(0o775),
        lambda: index.write_bytes(good[:-1]),
        lambda: index.write_bytes(sealed({**unpacked_of(good), "guard": "0.0.0"})),
        lambda: index.write_bytes(sealed({**unpacked_of(good), "landlock": (3, 0)})),
        lambda: index.write_bytes(sealed({**unpacked_of(good), "machine": "vax"})),
        lambda: index.write_bytes(sealed({**unpacked_of(good), "host": "another"})),
        lambda: index.write_bytes(sealed({**unpacked_of(good), "config": "/etc/other"})),
        lambda: index.unlink(),
    ):
        change()
        assert held(node, account)
        index.unlink(missing_ok=True)
        index.write_bytes(good)
        for path in (index, *plans):
            os.chown(path, 0, 0)
            path.chmod(0o644)
        for path in (node.state, node.state / "plans"):
            os.chown(path, 0, 0)
            path.chmod(0o755)
        assert not held(node, account)


def unpacked_of(content: bytes) -> dict[str, Any]:
    index: dict[str, Any] = marshal.loads(content[HEAD:-4])
    return index


def test_compiling_again_leaves_nothing_old(node: Node) -> None:
    (node.state / "plans/old.plan").write_bytes(b"x")
    before = {path.name for path in (node.state / "plans").iterdir()}
    node.write("site.toml", '[files]\ndeny = ["{home}/other"]\n')
    assert node.compile().returncode == 0
    after = {path.name for path in (node.state / "plans").iterdir()}
    assert before & after == {"index"}
    index = unpacked(node.state / "plans/index")
    assert after == {"index", *index["plans"].values()}


def test_the_same_site_compiles_to_the_same_plans(node: Node) -> None:
    before = {path.name for path in (node.state / "plans").iterdir()}
    assert node.compile().returncode == 0
    assert {path.name for path in (node.state / "plans").iterdir()} == before


def test_root_refuses_to_compile_into_or_from_a_loose_directory(node: Node) -> None:
    for top in (node.etc, node.state):
        top.chmod(0o777)
        done = node.compile()
        assert done.returncode == 3
        assert "writable by others" in done.stderr
        top.chmod(0o755)


# Odd input ----------------------------------------------------------------------------------------------


def test_no_damage_to_a_plan_is_believed(account: Account, policy: Path) -> None:
    assert confined(account, policy)
    path = cached(account)
    good = path.read_bytes()
    chance = random.Random(7)
    for _ in range(60 if LONG else 8):
        content = bytearray(good)
        for _ in range(chance.choice((1, 1, 4, 40))):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        del content[len(content) - chance.choice((0, 0, 1, 500)) :]
        plant(account, path, bytes(content))
        assert confined(account, policy)
        assert unpacked(path)["deny"], "made anew"


def test_a_users_plans_are_private(account: Account, policy: Path) -> None:
    assert confined(account, policy)
    assert cached(account).parent.stat().st_mode & 0o077 == 0
