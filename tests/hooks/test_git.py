"""A commit or a push with a secret in it is refused; an ordinary one is not."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from guard.hooks.git import added
from guard.redact import samples
from tests.conftest import GUARD, Account


class Repository:
    def __init__(self, account: Account) -> None:
        self.account = account
        self.home = account.directory("git")
        self.remote, self.work = self.home / "r.git", self.home / "work"
        self.run("git", "init", "-q", "--bare", "-b", "main", str(self.remote), cwd=self.home)
        self.run("git", "clone", "-q", str(self.remote), str(self.work), cwd=self.home)
        self.run("git", "checkout", "-qb", "main")

    def run(self, *argv: str, cwd: Path | None = None, good: bool = True) -> subprocess.CompletedProcess[str]:
        done = self.account.command(list(argv), cwd=cwd or self.work, env={
            "HOME": str(self.home), "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
        })  # fmt: skip
        assert not good or done.returncode == 0, done.stderr
        return done

    def commit(self, text: str, *options: str, name: str = "f") -> subprocess.CompletedProcess[str]:
        self.account.write(self.work / name, text)
        self.run("git", "add", "-A")
        return self.run("git", "commit", "-qm", "x", *options, good=False)


@pytest.fixture
def repository(account: Account) -> Repository:
    return Repository(account)


@pytest.fixture
def key() -> str:
    return samples.fill("ghp_<crc62>", random.Random())[0]


def test_a_commit_with_a_secret_is_refused(repository: Repository, key: str) -> None:
    assert repository.commit("first\n").returncode == 0
    repository.run(GUARD, "hooks", "install", "git")
    assert repository.commit("first\nsecond\n").returncode == 0
    done = repository.commit(f"first\nsecond\ntoken = {key}\n", name="conf äö")
    assert done.returncode == 1
    assert ":3: " in done.stderr
    assert key[4:12] not in done.stderr
    assert "would be committed" in done.stderr
    repository.run("git", "reset", "-q", "--hard")
    assert repository.commit(f"token = {key}  # guard:allow-secret\n").returncode == 0


def test_what_is_there_already_stops_nobody(repository: Repository, key: str) -> None:
    assert repository.commit(f"a = 1\ntoken = {key}\nb = 2\n").returncode == 0
    repository.run(GUARD, "hooks", "install", "git")
    assert repository.commit(f"a = 1\ntoken = {key}\nb = 3\n").returncode == 0
    assert repository.commit("a = 1\nb = 3\n").returncode == 0, "taking it out"


def test_a_push_with_a_secret_is_refused(repository: Repository, key: str) -> None:
    assert repository.commit("first\n").returncode == 0
    repository.run(GUARD, "hooks", "install", "git")
    repository.run("git", "push", "-q", "origin", "main")
    assert repository.commit(f"token = {key}\n", "--no-verify").returncode == 0
    assert repository.commit("taken out again\n", "--no-verify").returncode == 0
    done = repository.run("git", "push", "-q", "origin", "main", good=False)
    assert done.returncode == 1
    assert "would be pushed" in done.stderr
    repository.run("git", "reset", "-q", "--hard", "origin/main")
    assert repository.commit("another\n").returncode == 0
    repository.run("git", "push", "-q", "origin", "main", "main:other")
    repository.run("git", "push", "-q", "origin", ":other")


@pytest.mark.parametrize("text", [None, "#!/bin/sh\ncat > \"$0.seen\"\nexit 0\n"])
def test_hooks_that_are_there_go_on_and_come_back(text: str | None, repository: Repository) -> None:
    folder = repository.work / ".git/hooks"
    if text:
        for name in ("pre-commit", "pre-push"):
            repository.account.write(folder / name, text, 0o755)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    for _ in range(2):
        repository.run(GUARD, "hooks", "install", "git")
    assert repository.commit("x\n").returncode == 0
    repository.run("git", "push", "-q", "origin", "main")
    if text:
        assert "refs/heads/main" in (folder / "pre-push.seen").read_text()
        for seen in folder.glob("*.seen"):
            seen.unlink()
    for _ in range(2):
        repository.run(GUARD, "hooks", "uninstall", "git")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_hook_in_another_language_is_left_alone(repository: Repository) -> None:
    path = repository.account.write(repository.work / ".git/hooks/pre-commit", "#!/usr/bin/python3\n", 0o755)
    done = repository.run(GUARD, "hooks", "install", "git", good=False)
    assert done.returncode == 3
    assert path.read_text() == "#!/usr/bin/python3\n"


def test_as_a_hook_of_the_pre_commit_framework(repository: Repository, key: str) -> None:
    """The framework calls the entry of .pre-commit-hooks.yaml, with what it pushes in the environment."""
    root = Path(__file__).resolve().parent.parent.parent
    assert "entry: guard hooks git pre-commit" in (root / ".pre-commit-hooks.yaml").read_text()
    repository.commit("first\n")
    repository.account.write(repository.work / "f", f"token = {key}\n")
    repository.run("git", "add", "f")
    assert repository.run(GUARD, "hooks", "git", "pre-commit", good=False).returncode == 1
    repository.run("git", "commit", "-qm", "x")
    asked = ["env", "PRE_COMMIT_FROM_REF=" + repository.run("git", "rev-parse", "HEAD~").stdout.strip(), "PRE_COMMIT_TO_REF=HEAD"]
    assert repository.run(*asked, GUARD, "hooks", "git", "pre-push", good=False).returncode == 1
    assert shutil.which("git")


def test_lines_that_a_diff_adds() -> None:
    diff = b"+++ b/a b\n@@ -0,0 +3,2 @@\n+x\n++y\n@@ -9 +11 @@\n-z\n+w\n+++ b/c\n@@ -1 +1 @@\n+v\n"
    assert added(diff) == [("a b", 3, b"x"), ("a b", 4, b"+y"), ("a b", 11, b"w"), ("c", 1, b"v")]
