"""What people, start-up files and a node's limits do to a shell: the hook holds, and is not felt."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import GUARD, LONG, Account
from tests.history.conftest import Service
from tests.history.shells import PROMPT, SHELLS, Kind, Shell, prepare, ran
from tests.history.test_shells import HERE, each_shell, rng, stored, token, wait_for

__all__ = ["rng"]
BASH = SHELLS["bash"]


@pytest.fixture
def key(rng) -> str:  # type: ignore[no-untyped-def]
    return token(rng)


def settled(home: Path, kind: Kind, key: str) -> str:
    """The history without the secret; what a hang-up stored before the hook is scrubbed behind the shell."""
    end = time.monotonic() + 30
    while key[4:12] in stored(home, kind):
        assert time.monotonic() < end, stored(home, kind)
        time.sleep(0.02)
    return stored(home, kind)


TAKEN = {
    "nothing at the prompt": ("", "unset PROMPT_COMMAND\n"),
    "an empty one": ("", "PROMPT_COMMAND=\n"),
    "another one": ("", "PROMPT_COMMAND='history -a'\n"),
    "no trap": ("", "trap - DEBUG\n"),
    "neither": ("", "trap 'true' DEBUG\nunset PROMPT_COMMAND\n"),
    "read-only": ("readonly PROMPT_COMMAND=''\n", ""),
    "read-only and exported": ("declare -xr PROMPT_COMMAND='history -a'\n", ""),
    "POSIX mode": ("set -o posix\n", ""),
    "all exported": ("set -a\n", ""),
}


@pytest.mark.parametrize("how", ["exit", "HUP"])
@pytest.mark.parametrize("taken", TAKEN)
def test_a_start_up_file_that_takes_the_hooks_place(taken: str, how: str, account: Account, service: Service, key: str) -> None:
    """Of bash's two ways in one stays, or what the shell stores is scrubbed behind it; nothing is said, all runs."""
    home = prepare(account, BASH, *TAKEN[taken])
    account.write(home / ".bash_history", "rec before\n")
    with Shell(account, BASH, home) as shell:
        said = shell.run(f"rec {key} first")
        said += shell.run("rec second")
        said += shell.run(f"# {key}")
        if how == "HUP":
            shell.type(f"rec {key} last waits\r")
            wait_for(home, "last")
        shell.end(how)
    text = settled(home, BASH, key)
    assert "bash: " not in said
    assert ["rec", key, "first"] in ran(home)
    for line in ("rec before\n", "rec __REDACTED_+ first\n", "rec second\n"):
        assert len(re.findall(line, text)) == 1, text


@each_shell
def test_a_guard_that_breaks_down_has_not_said_that_a_line_is_clean(name: str, account: Account, key: str) -> None:
    """An interpreter that does not find its modules ends with 1."""
    kind = SHELLS[name]
    home = prepare(account, kind)
    broken = account.write(home / "broken", "#!/bin/sh\nexit 1\n", 0o755)
    for file in home.glob("guard-hook*"):
        file.write_text(file.read_text().replace(GUARD, str(broken)))
    with Shell(account, kind, home) as shell:
        shell.run(f"rec first {key}")
        shell.run("rec second")
        shown = shell.run(kind.recall)
        shell.end()
    assert ["rec", "first", key] in ran(home)
    assert key[4:12] not in shown + stored(home, kind)
    assert "rec second" in stored(home, kind)


@pytest.mark.parametrize("name", [n for n in HERE if n != "fish" and (n != "bash" or LONG)])
def test_where_no_process_can_be_started_nothing_is_stored_that_nobody_looked_at(
    name: str, account: Account, service: Service, key: str
) -> None:
    """bash tries for 15 s by itself; fish has threads, and comes to a stop."""
    kind = SHELLS[name]
    home = prepare(account, kind)
    with Shell(account, kind, home) as shell:
        shell.run("rec first")
        shell.type(f"{'limit maxproc' if name == 'tcsh' else 'ulimit -u'} 1\r")
        shell.type(f"true {key}\r")
        shell.type("echo ov''er\r")
        shell.expect("over\r\n", 90)
        shell.end("HUP")
    assert "rec first" in settled(home, kind, key)


@pytest.mark.parametrize("name", [name for name in HERE if name in ("bash", "zsh")])
def test_an_interrupted_question(name: str, account: Account, service: Service, key: str) -> None:
    """A person presses ^C while guard is asked: the shell is theirs at once, and the line is not stored as it is."""
    kind = SHELLS[name]
    home = prepare(account, kind)
    slow = account.write(home / "slow", f'#!/bin/sh\n[ -e ~/asked ] || {{ : > ~/asked; sleep 60; }}\nexec {GUARD} "$@"\n', 0o755)
    for file in home.glob("guard-hook*"):
        file.write_text(file.read_text().replace(GUARD, str(slow)))
    with Shell(account, kind, home) as shell:
        shell.type(f"rec {key} first\r")
        end = time.monotonic() + 20
        while not (home / "asked").exists():
            assert time.monotonic() < end, "the hook never asked"
            time.sleep(0.01)
        end = time.monotonic() + 60
        while True:
            assert time.monotonic() < end, shell.output
            shell.type("\x03")
            with suppress(AssertionError):
                shell.expect(PROMPT, 5)
                break
        shell.type("rec second\r")
        wait_for(home, "second")
        shell.type(f"echo sta''rt; {kind.recall}; echo en''d\r")
        shell.expect("start\r\n")
        shown = shell.expect("\nend\r\n")
        shell.end()
    assert "rec second" in shown
    assert key[4:12] not in shown + settled(home, kind, key)


@pytest.mark.parametrize("change", ["fc -s FOO=$X", "history -s rec $X", "FCEDIT='sed -i s/FOO/'$X/ fc -1"])
def test_a_line_that_the_shell_itself_puts_in(change: str, account: Account, service: Service, key: str) -> None:
    home = prepare(account, BASH)
    account.write(home / "key", key)
    with Shell(account, BASH, home) as shell:
        shell.run("X=$(< ~/key)")
        shell.run("rec FOO")
        shell.run(change)
        shown = shell.run("history")
        shell.end()
    for text in (shown.partition("history\r\n")[2], stored(home, BASH)):
        assert key[4:12] not in text
        assert "rec __REDACTED__" in text


def test_a_long_block_of_which_each_line_is_an_entry(account: Account, service: Service, key: str) -> None:
    home = prepare(account, BASH, after="shopt -u cmdhist\n")
    block = ["for i in 1; do", f"rec {key}", *["rec plain"] * 80, "done"]
    with Shell(account, BASH, home) as shell:
        shell.type("\r".join(block) + "\r")
        shell.expect("done\r\n")
        shell.prompt()
        shown = shell.run("history")
        shell.end()
    for text in (shown, stored(home, BASH)):
        assert key[4:12] not in text
        assert text.count("rec plain") == 80


@pytest.mark.parametrize("how", ["exit", "HUP"])
def test_a_line_called_back_edited_and_left_again(how: str, account: Account, service: Service, key: str) -> None:
    """bash keeps the change in its history, and stores it, although the line was never entered."""
    home = prepare(account, BASH)
    with Shell(account, BASH, home, {"TERM": "xterm"}) as shell:
        shell.run("rec first")
        shell.run("rec second")
        shell.type(f"\x1b[A\x1b[A {key}")
        shell.expect(key)
        shell.type("\x1b[B\x1b[B")
        if how == "exit":
            shell.run("rec third")
            shown = shell.run("history")
            assert key[4:12] not in shown.partition("history\r\n")[2]
        else:
            shell.type("rec un''typed")
            shell.expect("typed")
        shell.end(how)
    text = settled(home, BASH, key)
    assert "rec first" in text
    assert "rec second" in text


@pytest.mark.parametrize("name", [name for name in HERE if name in ("bash", "zsh")])
@pytest.mark.parametrize("line", ["(rec {} waits)", "while true; do (rec {} waits); done"])
def test_hung_up_on_in_a_subshell(line: str, name: str, account: Account, service: Service, key: str) -> None:
    """For which bash calls no trap."""
    kind = SHELLS[name]
    home = prepare(account, kind)
    with Shell(account, kind, home) as shell:
        shell.run("rec first")
        shell.type(line.format(key) + "\r")
        wait_for(home, key)
        shell.end("HUP")
    text = settled(home, kind, key)
    assert "rec first" in text
    assert "REDACTED" in text


def test_what_bash_keeps_for_the_next_line_is_there(account: Account, service: Service, key: str) -> None:
    home = prepare(account, BASH)
    with Shell(account, BASH, home) as shell:
        for line in (
            "[[ foo123 =~ ([0-9]+) ]]", f"rec {key} matched ${{BASH_REMATCH[1]}}", "false | true | (exit 4)",
            "rec statuses ${PIPESTATUS[@]}", "set -e", "! true", "rec alive $?", "set +e", "set -u", "unset HISTFILE",
        ):  # fmt: skip
            shell.run(line)
        shell.type("(exit 9)\rexit\r")
        assert shell.wait() == 9
        assert b"unbound" not in shell.output
    assert ran(home) == [["rec", key, "matched", "123"], ["rec", "statuses", "1", "0", "4"], ["rec", "alive", "1"]]


@pytest.mark.parametrize("name", [name for name in HERE if name == "zsh"])
def test_what_zsh_keeps_for_the_next_line_is_there(name: str, account: Account, service: Service, key: str) -> None:
    home = prepare(account, SHELLS[name])
    with Shell(account, SHELLS[name], home) as shell:
        for line in ("[[ foo123 =~ '([0-9]+)' ]]", f"rec {key} matched $MATCH $match[1]"):
            shell.run(line)
        shell.run("setopt nounset")
        shell.type("unset HISTFILE\r(exit 9)\rexit\r")
        assert shell.wait() == 9
        assert b"not set" not in shell.output
    assert ran(home) == [["rec", key, "matched", "123", "123"]]


def test_a_shell_without_the_hook_inherits_nothing_of_it(account: Account, service: Service) -> None:
    """PROMPT_COMMAND is exported in many start-up files."""
    home = prepare(account, BASH, after="export PS1 PROMPT_COMMAND\n")
    with Shell(account, BASH, home) as shell:
        said = shell.run("bash --norc")
        said += shell.run("PROMPT_COMMAND+=';echo status $?'")
        said += shell.run("(exit 5)")
        shell.end("HUP")
    assert "status 5\r\n" in said
    assert "not found" not in said


def test_a_shell_below_one_that_exports_all_has_its_own_hook(account: Account, service: Service, key: str) -> None:
    home = prepare(account, BASH, before="set -a\n")
    with Shell(account, BASH, home) as shell:
        shell.run("bash")
        shell.run(f"rec {key} inner")
        shell.type("exit\r")
        shell.prompt()
        shell.end()
    assert ran(home) == [["rec", key, "inner"]]
    assert "rec __REDACTED__ inner" in stored(home, BASH)
    assert key[4:12] not in stored(home, BASH)


@each_shell
@pytest.mark.parametrize("tail", [" ", "   ", "\\\\ "])
def test_a_line_that_ends_in_blanks(tail: str, name: str, account: Account, service: Service, key: str) -> None:
    """As completion leaves it; fish stores it without them."""
    kind = SHELLS[name]
    home = prepare(account, kind)
    with Shell(account, kind, home) as shell:
        shell.run(f"rec first {key}{tail}")
        shell.run("rec second")
        shown = shell.run(kind.recall)
        shell.end()
    assert ran(home)[0][2].startswith(key)
    for text in (shown, stored(home, kind)):
        assert key[4:12] not in text
        assert "rec second" in text
        assert "REDACTED" in text
