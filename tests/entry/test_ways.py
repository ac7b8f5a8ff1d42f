"""Agents started in every way of the table in docs/shells.md: what reaches them, and what is said of those not reached."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.conftest import GUARD, Account
from tests.entry.conftest import wrapper
from tests.entry.test_shims import Stage
from tests.monitor.running import running

WAITS = "#!/bin/bash\necho in $$\nread x\n"
WAITS_NODE = "#!/usr/bin/env node\nconsole.log(`in ${process.pid}`)\nrequire('fs').readSync(0, Buffer.alloc(1))\n"
WAITS_PYTHON = "#!/usr/bin/python3\nimport os, sys\nprint('in', os.getpid(), flush=True)\nsys.stdin.readline()\n"
HOST = """\
// stands for an editor's extension host: a program of node's that starts what an extension brings along
require('child_process').spawn(process.argv[2], [], { stdio: 'inherit' })
"""
UVX = '#!/bin/sh\n# stands for uvx, which starts a program of its cache by its path\nexec "$HOME/.cache/uv/archive-v0/x/bin/$1"\n'


@pytest.fixture(scope="module")
def stage(account: Account) -> Stage:
    made = Stage(account)
    account.write(made.bin / "claude", WAITS, 0o755)
    account.write(made.project / "node_modules/gemini-x/cli.js", WAITS_NODE, 0o755)
    account.write(made.project / "node_modules/.bin/gemini", WAITS_NODE, 0o755)
    account.write(made.home / ".cache/uv/archive-v0/x/bin/aider", WAITS_PYTHON, 0o755)
    account.write(made.bin / "uvx", UVX, 0o755)
    account.write(made.home / ".vscode-server/extensions/anthropic.claude-code-2.0.1/resources/native-binary/claude", WAITS, 0o755)
    account.write(made.home / ".vscode-server/host.js", HOST)
    made.install()
    return made


def ways(stage: Stage) -> dict[str, tuple[list[str], str, bool]]:
    """Way → words, the harness, and whether the table says that guard is around it."""
    login = wrapper(stage.account, stage.config)
    extension = next(stage.home.glob(".vscode-server/extensions/*/resources/native-binary/claude"))
    return {
        "its name": (["sh", "-c", "exec claude"], "claude", True),
        "a path": ([f"{stage.bin}/claude"], "claude", False),
        "npx": (["npx", "--offline", "gemini"], "gemini", False),
        "uvx": (["uvx", "aider"], "aider", False),
        "an editor": (["node", str(stage.home / ".vscode-server/host.js"), str(extension)], "claude", False),
        "a path in a fenced account": ([str(login), "-c", f"exec {stage.bin}/claude"], "claude", True),
        "an editor in a fenced account": (
            [str(login), "-c", f"exec node {stage.home}/.vscode-server/host.js {extension}"], "claude", True,
        ),
    }  # fmt: skip


@contextmanager
def started(stage: Stage, words: list[str]) -> Iterator[int]:
    """An agent that waits; its process."""
    process = subprocess.Popen(
        words, cwd=stage.project, env=stage.account.environment(stage.env()), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, **stage.account.identity(),  # type: ignore[call-overload]
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b"in "):
                yield int(line.split()[1])
                break
        else:
            raise AssertionError(f"{words} did not start")
    finally:
        process.communicate(b"\n", timeout=30)


def line_of(pid: int) -> list[int]:
    """A process and those that started it: the tree's first process may be guard's own, which became the supervisor."""
    found = []
    while pid > 1:
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    return found


@pytest.mark.root
def test_every_way_is_seen_and_told_from_the_others(stage: Stage) -> None:
    if not shutil.which("clang"):
        pytest.skip("not installed: clang")
    with running() as monitor, ExitStack() as stack:
        found = {}
        for way, (words, harness, guarded) in ways(stage).items():
            if not shutil.which(words[0], path=stage.env()["PATH"]):
                continue  # no node here
            found[stack.enter_context(started(stage, words))] = (way, harness, guarded)
        end = time.monotonic() + 30
        while True:
            done = subprocess.run([GUARD, "--state", str(monitor.state), "ps", "--json"], capture_output=True, text=True, check=True)
            rows = {row["pid"]: row for row in json.loads(done.stdout)["trees"]}
            trees = {pid: next((rows[each] for each in line_of(pid) if each in rows), None) for pid in found}
            if all(trees.values()):
                break
            assert time.monotonic() < end, (found, [(row["pid"], row["harness"], row["user"]) for row in rows.values()])
            time.sleep(0.2)
        assert {pid: (found[pid][0], tree["harness"], tree["guarded"]) for pid, tree in trees.items() if tree} == found
        done = subprocess.run([GUARD, "--state", str(monitor.state), "doctor", "--json"], capture_output=True, text=True, check=False)
        told = json.loads(done.stdout)["ways"]
        for harness in ("claude", "gemini", "aider"):
            bare = sum(each == harness and not guarded for _, each, guarded in found.values())
            assert told["unwrapped"].get(harness, 0) >= bare, "others may run on this node, too"
        assert told["running"] >= len(found)
        assert any("npx" in way for way in told["monitor_only"])


def doctor(stage: Stage, path: str) -> dict[str, str]:
    """What doctor says of the agents on a PATH: name → state."""
    done = stage.account.cli("doctor", "--json", env=stage.env({"PATH": path}), cwd=stage.project)
    return {each["name"]: each["state"] for each in json.loads(done.stdout)["ways"]["agents"]}


def test_doctor_tells_shims_that_are_missing_or_behind_another_folder(stage: Stage) -> None:
    """nvm and `module load` put their folders first; other agents are installed later."""
    system = "/usr/local/bin:/usr/bin:/bin"
    node = stage.account.write(stage.home / "nvm/bin/codex", WAITS_NODE, 0o755).parent
    assert doctor(stage, f"{stage.shims}:{stage.bin}:{system}")["claude"] == "shim"
    told = doctor(stage, f"{node}:{stage.shims}:{stage.bin}:{system}")
    assert (told["claude"], told["codex"]) == ("shim", "shadowed")
    (stage.shims / "gemini").rename(stage.shims / "gemini.away")
    try:
        told = doctor(stage, f"{stage.shims}:{stage.project}/node_modules/.bin:{system}")
    finally:
        (stage.shims / "gemini.away").rename(stage.shims / "gemini")
    assert told == {"gemini": "missing"}


def test_doctor_says_it_to_people(stage: Stage) -> None:
    said = stage.account.cli("doctor", env=stage.env({"PATH": f"{stage.bin}:{stage.shims}:/usr/bin:/bin"}), cwd=stage.project).stdout
    text = " ".join(said.split())
    assert "NOT under guard: claude" in text
    assert "another folder stands before" in text
    assert "monitor only" in text
    assert "no monitor answers" in text
    assert max(map(len, said.splitlines())) < 80
