"""Fake agents installed in every way of the table: what a shim reaches starts under guard, transparently."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard.entry.shim import names, recognise
from guard.monitor.catalogue import shipped
from tests.conftest import GUARD, Account

AGENT = """\
#!/bin/bash
# stands for an agent: says how it runs, then does as it is told
printf '%s\\n' "arg0=$0" "nnp=$(grep -c 'NoNewPrivs.*1' /proc/self/status)" "policy=$GUARD_POLICY" "args=$*"
case $1 in
exit) exit "$2" ;;
read) cat ;;
die) kill -TERM $$ ;;
run) shift; "$@" ;;
esac
"""
NATIVE = b"""\
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int n, char **v)
{
    char line[256]; FILE *f = fopen("/proc/self/status", "r"); int on = 0;
    while (fgets(line, sizeof line, f)) if (!strncmp(line, "NoNewPrivs:\\t1", 13)) on = 1;
    printf("arg0=%s\\nnnp=%d\\npolicy=%s\\nargs=", v[0], on, getenv("GUARD_POLICY") ? getenv("GUARD_POLICY") : "");
    for (int i = 1; i < n; i++) printf("%s%s", v[i], i < n - 1 ? " " : "");
    puts("");
    return 0;
}
"""
NODE = """\
#!/usr/bin/env node
const on = require('fs').readFileSync('/proc/self/status', 'utf8').includes('NoNewPrivs:\\t1') ? 1 : 0
console.log(`arg0=node\\nnnp=${on}\\npolicy=${process.env.GUARD_POLICY || ''}\\nargs=${process.argv.slice(2).join(' ')}`)
"""


class Stage:
    """A home with shims, agents of several kinds, and a project to work in."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.home = account.directory("shims")
        self.config = account.directory("config", account.state.parent)
        self.bin = self.home / "programs"
        self.project = account.directory("project", self.home)
        account.write(self.bin / "claude", AGENT, 0o755)
        account.write(self.bin / "gemini", NODE, 0o755)
        account.write(self.bin / "copilot", AGENT, 0o755)
        source = account.write(self.home / "native.c", NATIVE)
        subprocess.run(["gcc", "-o", str(self.bin / "codex"), str(source)], check=True)
        self.shims = self.home / ".local/share/guard/shims"

    def env(self, more: dict[str, str] | None = None) -> dict[str, str]:
        return {
            "HOME": str(self.home), "GUARD_CONFIG_DIR": str(self.config),
            "PATH": f"{self.shims}:{self.bin}:/usr/local/bin:/usr/bin:/bin", **(more or {}),
        }  # fmt: skip

    def run(self, *argv: str, env: dict[str, str] | None = None, **more: object) -> subprocess.CompletedProcess[str]:
        return self.account.command(list(argv), cwd=self.project, env=self.env(env), **more)  # type: ignore[arg-type]

    def install(self) -> None:
        done = self.account.cli("shim", "install", env=self.env())
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def stage(account: Account) -> Iterator[Stage]:
    made = Stage(account)
    made.install()
    yield made


def told(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini"])
def test_a_name_on_path_starts_under_guard(stage: Stage, agent: str) -> None:
    bare = told(stage.run(str(stage.bin / agent), "one", "two words"))
    assert bare["nnp"] == "0", "an absolute path is not reached: the table says monitor only"
    done = told(stage.run(agent, "one", "two words"))
    assert done["nnp"] == "1"
    assert done["policy"] == "login-node"
    assert done["args"] == "one two words"
    if agent == "codex":
        assert done["arg0"] == "codex"


def test_it_is_transparent(stage: Stage) -> None:
    assert stage.run("claude", "exit", "42").returncode == 42
    assert stage.run("claude", "exit", "125").returncode == 125
    assert stage.run("claude", "die").returncode == -signal.SIGTERM
    every = bytes(range(256)) * 10
    assert stage.run("claude", "read", input=every).stdout.endswith(every)  # type: ignore[arg-type]
    assert stage.run("claude", "exit", "0").stderr == ""


def test_a_signal_reaches_the_agent(stage: Stage) -> None:
    process = subprocess.Popen(
        ["claude", "run", "sleep", "60"], cwd=stage.project, env=stage.account.environment(stage.env()), stdout=subprocess.PIPE,
        **stage.account.identity(),  # type: ignore[call-overload]
    )  # fmt: skip
    assert process.stdout is not None
    while not process.stdout.readline().startswith(b"args="):
        pass
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) != 0


@pytest.mark.parametrize("forged", [{"GUARD_SESSION": "x"}, {"GUARD_POLICY": "login-node"}, {"GUARD_ENTRY": "force"}])
def test_a_forged_variable_changes_nothing(stage: Stage, forged: dict[str, str]) -> None:
    assert told(stage.run("claude", env=forged))["nnp"] == "1"


def test_an_agent_inside_an_agent_goes_on(stage: Stage) -> None:
    done = stage.run("claude", "run", "claude", "inner")
    assert done.stdout.count("nnp=1") == 2, done
    assert done.returncode == 0


def test_other_software_of_the_name_is_left_alone(stage: Stage) -> None:
    """`copilot init` is AWS Copilot's."""
    assert told(stage.run("copilot", "init"))["nnp"] == "0"
    assert told(stage.run("copilot", "-p", "hello"))["nnp"] == "1"


def test_what_is_not_installed_is_not_found(stage: Stage) -> None:
    done = stage.run("opencode")
    assert (done.returncode, done.stdout) == (127, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_path_changes_are_survived(stage: Stage, shell: str) -> None:
    """nvm and `module load` put a folder first; at the next prompt the shims are first again."""
    from tests.history.shells import SHELLS, Shell

    kind = SHELLS[shell]
    stage.account.write(stage.home / kind.startup, kind.setting)
    stage.install()
    change = {
        "fish": f"set -gx PATH {stage.bin} $PATH",
        "tcsh": f"set path = ({stage.bin} $path)",
    }.get(shell, f"export PATH={stage.bin}:$PATH")
    try:
        with Shell(stage.account, kind, stage.home, stage.env()) as session:
            session.run(f"cd {stage.project}")
            session.run(change)
            assert "nnp=1" in session.run("claude first")
            session.run(change)
            assert "nnp=1" in session.run("claude again")
            session.end()
    except FileNotFoundError:
        pytest.skip(f"no {shell} here")


def test_around_it_with_a_reason_is_an_event(stage: Stage) -> None:
    state = stage.account.directory("state", stage.account.state.parent)
    state.chmod(0o700)
    env = {"GUARD_BYPASS": "debugging the sandbox", "GUARD_STATE_DIR": str(state)}
    assert told(stage.run("claude", env=env))["nnp"] == "0"
    events = b"".join(p.read_bytes() for p in state.rglob("*") if p.is_file() and "event" in p.name + str(p.parent))
    assert b'"bypass"' in events
    settings = stage.account.write(stage.config / "entry.toml", 'bypass = "deny"\n')
    done = stage.run("claude", env=env)
    settings.unlink()
    assert told(done)["nnp"] == "1"
    assert "allows no way around" in done.stderr
    inner = stage.run("claude", "run", "sh", "-c", "GUARD_BYPASS=x claude inner")
    assert inner.stdout.count("nnp=1") == 2, "an agent cannot take that way"


@pytest.mark.parametrize(("choice", "code"), [("refuse", 125), ("plain", 0)])
def test_broken_the_site_decides(stage: Stage, choice: str, code: int) -> None:
    settings = stage.account.write(stage.config / "entry.toml", f'on_fault_agent = "{choice}"\n')
    policy = stage.account.write(stage.config / "site.toml", "no = = toml\n")
    done = stage.run("claude", "one")
    settings.unlink()
    policy.unlink()
    assert done.returncode == code
    assert ("nnp=0" in done.stdout) == (choice == "plain")
    assert done.stderr


def test_switched_off_it_starts_plain(stage: Stage) -> None:
    switch = stage.account.write(stage.config / "off", 'reason = "x"\n')
    done = stage.run("claude")
    switch.unlink()
    assert (told(done)["nnp"], done.stderr) == ("0", "")


def test_the_interpreter_is_gone_and_the_agent_does_not_start_unguarded(stage: Stage) -> None:
    broken = stage.account.write(stage.home / "broken/claude", (stage.shims / "claude").read_text().replace(GUARD, "/nonexistent/guard"), 0o755)
    done = stage.run(str(broken), "one")
    assert (done.returncode, done.stdout) == (125, "")
    assert "cannot be started" in done.stderr


def test_list_says_what_path_leads_to(stage: Stage) -> None:
    done = stage.account.cli("shim", "list", env=stage.env())
    assert f"claude         under guard   {stage.bin}/claude" in done.stdout
    other = stage.account.cli("shim", "list", env=stage.env({"PATH": f"{stage.bin}:{stage.shims}:/usr/bin:/bin"}))
    assert "NOT under guard" in other.stdout


def test_install_and_uninstall_leave_the_files_as_they_were(account: Account) -> None:
    home = account.directory("home")
    for name in (".bashrc", ".zshrc", ".tcshrc"):
        account.write(home / name, "alias x=y")
    before = {p: p.read_bytes() for p in home.rglob("*") if p.is_file()}
    env = {"HOME": str(home)}
    for _ in range(2):
        assert account.cli("shim", "install", env=env).returncode == 0
    assert account.cli("history", "install", env=env).returncode == 0
    for _ in range(2):
        assert account.cli("shim", "uninstall", env=env).returncode == 0
    assert "guard history" in (home / ".bashrc").read_text()
    assert account.cli("history", "uninstall", env=env).returncode == 0
    assert {p: p.read_bytes() for p in home.rglob("*") if p.is_file()} == before


def test_the_names_are_the_catalogues() -> None:
    found = names(shipped())
    assert {"claude", "codex", "cursor-agent", "gemini", "copilot", "aider", "opencode"} <= set(found)
    assert not {"bash", "python", "node", "npx", "sh"} & set(found)


def test_a_script_is_known_by_its_interpreter(tmp_path: Path) -> None:
    for line, known in (("#!/usr/bin/env node", True), ("#!/usr/bin/env -S node --x", True), ("#!/usr/bin/python3", False)):
        path = tmp_path / "gemini"
        path.write_text(line + "\n")
        path.chmod(0o755)
        assert (recognise(str(path), []) is not None) == known, line


def test_whether_one_is_guarded_is_asked_of_the_kernel(stage: Stage) -> None:
    from guard.entry import guarded

    ask = Path(guarded.__file__).read_text() + "\nprint(guarded())\n"
    python = ["/usr/bin/python3", "-c", ask]
    env = {"GUARD_SESSION": "x", "GUARD_POLICY": "x"}
    assert stage.run(*python, env=env).stdout == "False\n"
    assert stage.run("setpriv", "--no-new-privs", *python, env=env).stdout == "False\n"
    assert stage.run(GUARD, "run", "--", *python).stdout == "True\n"
    assert os.environ.get("GUARD_SESSION") is None
