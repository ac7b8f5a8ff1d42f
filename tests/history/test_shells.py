"""In real shells at a terminal a secret reaches no history, the command runs unchanged, and no line is lost."""

from __future__ import annotations

import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from guard.history.prefilter import expression
from guard.redact import samples
from tests.conftest import GUARD, LONG, Account
from tests.history.commands import Command, commands
from tests.history.conftest import Service
from tests.history.shells import SHELLS, Kind, Shell, prepare, ran

HERE = [name for name in SHELLS if shutil.which(name)]
each_shell = pytest.mark.parametrize("name", HERE)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.node.name)


def token(rng: random.Random) -> str:
    return samples.fill("ghp_<crc62>", rng)[0]


def stored(home: Path, kind: Kind) -> str:
    path = home / kind.stored
    return path.read_text(errors="surrogateescape") if path.exists() else ""


def leaks(text: str, run: list[Command]) -> list[str]:
    """The secrets of which eight characters in a row are left."""
    return [s for c in run for s in c.secrets if any(s[i : i + 8] in text for i in range(max(1, len(s) - 7)))]


def expected(run: list[Command], home: Path) -> list[list[str]]:
    return [[str(home) if word in ("$HOME", "~") else word for word in command.argv] for command in run]


def wait_for(home: Path, word: str) -> None:
    """Until the recorder has seen this argument."""
    end = time.monotonic() + 20
    while not any(word in argv for argv in ran(home)):
        assert time.monotonic() < end, f"{word} never ran"
        time.sleep(0.01)


@each_shell
def test_without_the_hook_a_secret_is_stored(name: str, account: Account, rng: random.Random) -> None:
    kind = SHELLS[name]
    home = prepare(account, kind, hooked=False)
    key = token(rng)
    with Shell(account, kind, home) as shell:
        shell.run(f"rec {key}")
        shell.end()
    assert key in stored(home, kind)


@each_shell
def test_two_hundred_commands_forty_secrets(name: str, account: Account, service: Service, rng: random.Random) -> None:
    kind = SHELLS[name]
    home = prepare(account, kind)
    run = commands(200, 40, rng)
    assert sum(bool(c.secrets) for c in run) == 40
    with Shell(account, kind, home) as shell:
        for command in run:
            shell.run(command.text)
        shell.run(kind.write)
        shown = shell.run(kind.recall)
        written = stored(home, kind)
        shell.end()
    assert ran(home) == expected(run, home)
    for text in (shown, written, stored(home, kind)):
        assert leaks(text, run) == []
    for text in (shown, stored(home, kind)):
        assert [c.tag for c in run if c.tag not in text] == []
    lines = [line for line in stored(home, kind).split("\n") if "REDACTED" in line]
    assert len(lines) >= 40


EACH_LINE = {"bash": "PROMPT_COMMAND='history -a'\n", "zsh": "setopt inc_append_history\n", "fish": "", "tcsh": ""}
"""What makes a shell store each line by the next prompt; fish does so by itself, and tcsh does under the hook."""
LAST = ("bash", "zsh")
"""Whose last line is in memory alone while it runs: after KILL nobody has it."""


@each_shell
@pytest.mark.parametrize("how", ["HUP", "KILL"])
def test_ended_in_the_middle_of_a_command(name: str, how: str, account: Account, service: Service, rng: random.Random) -> None:
    """Every command ran as typed, and every line is stored: at a hang-up by the shell, before KILL line by line."""
    kind = SHELLS[name]
    home = prepare(account, kind, before=EACH_LINE[name] if how == "KILL" else "")
    run = commands(*((200, 40) if LONG else (20, 8)), rng)
    key = token(rng)
    with Shell(account, kind, home) as shell:
        for command in run:
            shell.run(command.text)
        shell.type(f"rec {key} nlastn waits\r")
        wait_for(home, key)
        shell.end(how)
    text = stored(home, kind)
    assert ran(home) == [*expected(run, home), ["rec", key, "nlastn", "waits"]]
    assert leaks(text, run) == []
    assert key[4:12] not in text
    assert [c.tag for c in run if c.tag not in text] == []
    assert "rec __REDACTED__ nlastn" in text or (how == "KILL" and name in LAST)


@pytest.mark.parametrize("name", [name for name in HERE if name in LAST])
def test_killed_a_shell_that_stores_at_its_end_has_stored_nothing(name: str, account: Account, rng: random.Random) -> None:
    """As without the hook, which neither loses a line nor stores one earlier than the shell would."""
    kind = SHELLS[name]
    for hooked in (False, True):
        home = prepare(account, kind, hooked=hooked)
        with Shell(account, kind, home) as shell:
            shell.run("rec one")
            shell.run(f"rec {token(rng)}")
            shell.end("KILL")
        assert stored(home, kind) == ""


@each_shell
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_service_gone_or_hanging(
    name: str, number: int, account: Account, service: Service, rng: random.Random
) -> None:
    kind = SHELLS[name]
    home = prepare(account, kind)
    run = commands(10, 5, rng)
    with Shell(account, kind, home) as shell:
        for place, command in enumerate(run):
            if place == 5:
                service.signal(number)
            shell.run(command.text)
        shown = shell.run(kind.recall)
        shell.end()
    assert ran(home) == expected(run, home)
    for text in (shown, stored(home, kind)):
        assert leaks(text, run) == []
        assert [c.tag for c in run if c.tag not in text] == []


@each_shell
def test_guard_itself_gone(name: str, account: Account, rng: random.Random) -> None:
    """The program is away (a package being replaced): the secret goes, with all but the program's name."""
    kind = SHELLS[name]
    home = prepare(account, kind)
    for file in home.glob("guard-hook*"):
        file.write_text(file.read_text().replace(GUARD, "/nonexistent/guard"))
    key = token(rng)
    with Shell(account, kind, home) as shell:
        shell.run(f"rec first {key}")
        shell.run("rec second")
        shown = shell.run(kind.recall)
        shell.end()
    assert ran(home) == [["rec", "first", key], ["rec", "second"]]
    for text in (shown, stored(home, kind)):
        assert key[4:12] not in text
        assert "__REDACTED__" in text
        assert "rec second" in text


@pytest.mark.parametrize("name", [name for name in HERE if name != "tcsh"])
def test_a_command_of_several_lines(name: str, account: Account, service: Service, rng: random.Random) -> None:
    kind = SHELLS[name]
    home = prepare(account, kind)
    key = token(rng)
    with Shell(account, kind, home) as shell:
        shell.run(f"rec 'first\n{key}\nlast'")
        shown = shell.run(kind.recall)
        shell.end()
    assert ran(home) == [["rec", f"first\n{key}\nlast"]]
    for text in (shown, stored(home, kind)):
        assert key[4:12] not in text
        assert "first" in text
        assert "last" in text


@pytest.mark.parametrize("name", [name for name in HERE if name in ("bash", "zsh")])
def test_a_here_document(name: str, account: Account, service: Service, rng: random.Random) -> None:
    kind = SHELLS[name]
    home = prepare(account, kind)
    key = token(rng)
    with Shell(account, kind, home) as shell:
        printed = shell.run(f"cat <<E; rec done\nuser bob\ntoken {key}\nE")
        shown = shell.run(kind.recall)
        shell.end()
    assert f"token {key}" in printed
    for text in (shown, stored(home, kind)):
        assert key[4:12] not in text
        assert "user bob" in text


def test_a_loop_of_tcsh(account: Account, service: Service, rng: random.Random) -> None:
    """Its lines enter the history one by one, and no hook is called for them."""
    if "tcsh" not in HERE:
        pytest.skip("no tcsh here")
    kind = SHELLS["tcsh"]
    home = prepare(account, kind)
    key = token(rng)
    with Shell(account, kind, home) as shell:
        shell.run(f"foreach i (1 2)\nrec $i {key}\nend")
        shown = shell.run(kind.recall)
        shell.end()
    assert ran(home) == [["rec", "1", key], ["rec", "2", key]]
    for text in (shown, stored(home, kind)):
        assert key[4:12] not in text
        assert "rec $i __REDACTED__" in text


@pytest.mark.parametrize("name", [name for name in HERE if name != "tcsh"])
def test_a_pasted_block(name: str, account: Account, service: Service, rng: random.Random) -> None:
    kind = SHELLS[name]
    home = prepare(account, kind, after="bind 'set enable-bracketed-paste on'\n" if name == "bash" else "")
    first, second = token(rng), token(rng)
    with Shell(account, kind, home, {"TERM": "xterm"}) as shell:
        shell.type(f"\x1b[200~rec one {first}\nrec two {second}\x1b[201~\r")
        wait_for(home, second)
        shell.run("rec after")
        shell.end()
    assert ["rec", "one", first] in ran(home)
    text = stored(home, kind)
    assert first[4:12] not in text
    assert second[4:12] not in text
    assert "rec two" in text


@pytest.mark.parametrize("name", [name for name in HERE if name != "fish"])  # which does not take such a line
def test_a_line_that_runs_nothing(name: str, account: Account, service: Service, rng: random.Random) -> None:
    """A syntax error is stored as any line is."""
    kind = SHELLS[name]
    home = prepare(account, kind)
    key = token(rng)
    with Shell(account, kind, home) as shell:
        shell.run(f"rec {key} | | cat" if name != "tcsh" else f"rec {key} ( ( a")
        shell.run("rec after")
        shown = shell.run(kind.recall)
        shell.end()
    for text in (shown, stored(home, kind)):
        assert key[4:12] not in text


@each_shell
def test_status_and_last_argument_reach_the_next_command(name: str, account: Account, service: Service) -> None:
    kind = SHELLS[name]
    home = prepare(account, kind)
    asked = "$status" if name in ("fish", "tcsh") else "$?"
    with Shell(account, kind, home) as shell:
        shell.run("false")
        shell.run(f"rec {asked}")
        shell.run("sh -c 'exit 42' mysql -pAbcDef123x")
        shell.run(f"rec {asked}")
        if name in ("bash", "zsh"):
            shell.run("rec a last")
            shell.run("rec $_")
        shell.end()
    assert ran(home)[:2] == [["rec", "1"], ["rec", "42"]]
    if name in ("bash", "zsh"):
        assert ran(home)[3] == ["rec", "last"]


@pytest.mark.parametrize("where", ["before", "after", "typed"])
def test_a_debug_trap_of_the_users_keeps_working(where: str, account: Account, service: Service, rng: random.Random) -> None:
    """It sees the command, the status before it and the last argument, once a command, whoever came first."""
    trap = "trap 'echo \"$? $_ $BASH_COMMAND\" >> ~/traced' DEBUG\n"
    kind = SHELLS["bash"]
    home = prepare(account, kind, before=trap if where == "before" else "", after=trap if where == "after" else "")
    key = token(rng)
    with Shell(account, kind, home) as shell:
        if where == "typed":
            shell.run(trap.strip())
        shell.run("rec one")
        shell.run("false last")
        shell.run(f"rec {key}")
        shell.end()
    traced = (home / "traced").read_text().splitlines()
    mine = [line for line in traced if "_guard" not in line]
    assert f"1 last rec {key}" in mine
    assert sum(line.endswith(" rec one") for line in mine) == 1
    assert key[4:12] not in stored(home, kind)


def test_a_prompt_command_that_appends_comes_after_ours(account: Account, service: Service, rng: random.Random) -> None:
    """`history -a` at every prompt, set before and behind our hook."""
    kind = SHELLS["bash"]
    setting = "shopt -s histappend\nPROMPT_COMMAND='history -a; echo prompted >> ~/prompted'\n"
    for before, after in ((setting, ""), ("", setting), (setting.replace("='", "=('").replace("prompted'", "prompted')"), "")):
        home = prepare(account, kind, before=before, after=after)
        key = token(rng)
        with Shell(account, kind, home) as shell:
            shell.run("rec one")
            shell.run(f"rec {key}")
            shell.run(f"# {key}")
            shell.end()
        text = stored(home, kind)
        assert key[4:12] not in text
        assert text.count("rec one") == 1
        assert text.count("REDACTED") == 2
        assert (home / "prompted").read_text().count("prompted") >= 3


def test_a_preexec_that_reads_the_history_sees_the_redacted_line(account: Account, service: Service, rng: random.Random) -> None:
    """As bash-preexec does, on which atuin and others stand: it takes the DEBUG trap at the first prompt."""
    library = """\
preexec_started() {
  [[ -n $COMP_LINE || -z $at_prompt ]] && return
  at_prompt=
  builtin history 1 >> ~/preexec
}
preexec_prompt() { at_prompt=1; }
preexec_install() {
  PROMPT_COMMAND="${PROMPT_COMMAND/preexec_install/:}"
  prior=$(trap -p DEBUG)
  trap 'preexec_started "$_"' DEBUG
  PROMPT_COMMAND+=$'\\npreexec_prompt'
  at_prompt=1
}
PROMPT_COMMAND+=${PROMPT_COMMAND:+;}preexec_install
"""
    kind = SHELLS["bash"]
    home = prepare(account, kind, after=library)
    key = token(rng)
    with Shell(account, kind, home) as shell:
        shell.run("rec one")
        shell.run(f"rec {key}")
        shell.end()
    seen = (home / "preexec").read_text()
    assert "rec one" in seen
    assert "__REDACTED__" in seen
    assert key[4:12] not in seen + stored(home, kind)


def test_aliases_of_the_users_run_beside_ours_in_tcsh(account: Account, service: Service, rng: random.Random) -> None:
    if "tcsh" not in HERE:
        pytest.skip("no tcsh here")
    kind = SHELLS["tcsh"]
    home = prepare(account, kind, before="alias precmd 'echo pre >> ~/pre'\nalias postcmd 'echo post >> ~/post'\n")
    key = token(rng)
    with Shell(account, kind, home) as shell:
        shell.run("rec one")
        shell.run(f"rec {key}")
        shell.end()
    assert (home / "pre").read_text().count("pre") >= 3
    assert (home / "post").read_text().count("post") >= 2
    assert key[4:12] not in stored(home, kind)


def test_hooks_of_the_users_run_beside_ours_in_zsh_and_fish(account: Account, service: Service, rng: random.Random) -> None:
    theirs = {
        "zsh": "preexec() { print -r -- \"$1\" >> ~/before }\nzshaddhistory() { [[ $1 != *unwanted* ]] }\n",
        "fish": "function mine --on-event fish_preexec; echo $argv[1] >> ~/before; end\n",
    }
    for name in theirs:
        if name not in HERE:
            continue
        kind = SHELLS[name]
        home = prepare(account, kind, before=theirs[name])
        key = token(rng)
        with Shell(account, kind, home) as shell:
            shell.run("rec one")
            shell.run(f"rec {key}")
            shell.run("rec unwanted")
            shell.end()
        assert "rec one" in (home / "before").read_text()
        assert key[4:12] not in stored(home, kind)
        assert ("unwanted" in stored(home, kind)) == (name == "fish")


@each_shell
def test_a_hang_up_while_the_hook_works(name: str, account: Account, service: Service, rng: random.Random) -> None:
    """The shell dies before guard has answered for the last line: the others are stored, and its secret is not."""
    kind = SHELLS[name]
    home = prepare(account, kind)
    slow = account.write(
        home / "slow", f'#!/bin/sh\n[ -e ~/waits ] && {{ rm ~/waits; : > ~/asked; sleep 5; }}\nexec {GUARD} "$@"\n', 0o755
    )
    for file in home.glob("guard-hook*"):
        file.write_text(file.read_text().replace(GUARD, str(slow)))
    key = token(rng)
    with Shell(account, kind, home) as shell:
        shell.run(f"rec {token(rng)} first")
        account.write(home / "waits")
        shell.type(f"rec {key} last\r")
        end = time.monotonic() + 20
        while not (home / "asked").exists():
            assert time.monotonic() < end, "the hook never asked"
            time.sleep(0.01)
        shell.end("HUP")
    text = stored(home, kind)
    assert key[4:12] not in text
    assert "rec __REDACTED__ first" in text


@each_shell
def test_a_line_that_only_looks_like_a_secret_is_stored_once_and_in_its_place(name: str, account: Account, service: Service) -> None:
    kind = SHELLS[name]
    home = prepare(account, kind)
    lines = ["rec one", "rec --password-file=/etc/token", "rec two", "rec api_key=$KEY", "rec three"]
    assert all(re.search(expression(), line.lower()) for line in (lines[1], lines[3])), "nobody would ask"
    with Shell(account, kind, home) as shell:
        for line in lines:
            shell.run(line)
        shown = shell.run(kind.recall)
        shell.end()
    for text in (shown, stored(home, kind)):
        places = [[m.start() for m in re.finditer(re.escape(line), text)] for line in lines]
        assert [len(each) for each in places] == [1] * len(lines), text
    assert stored(home, kind).index(lines[1]) < stored(home, kind).index(lines[3]), "in the order in which they ran"
