"""Shells as people set them up: whatever the options, no secret is stored, and no line is lost that was kept before."""

from __future__ import annotations

import random
import shutil

import pytest

from guard.redact import samples
from tests.conftest import Account
from tests.history.conftest import Service
from tests.history.shells import SHELLS, Shell, prepare, ran
from tests.history.test_shells import stored

SETTINGS = {
    "bash": (
        "set -u", "shopt -s extdebug", "HISTCONTROL=ignoreboth:erasedups", "HISTSIZE=4", "shopt -u cmdhist", "shopt -s cmdhist lithist",
        "HISTTIMEFORMAT='%F %T '; readonly HISTTIMEFORMAT", "set -o functrace", "set -o posix", "shopt -s histappend; PROMPT_COMMAND='history -a; history -n'",
        "shopt -s nocasematch", "IFS=,", "alias history='echo no' printf='echo no'; printf() { echo no; }; history() { echo no; }", "HISTFILE=~/other",
        "export LC_ALL=C", "set -o vi", "shopt -s histverify histreedit",
    ),
    "zsh": (
        "setopt sharehistory", "setopt incappendhistory extendedhistory", "setopt histignorealldups histreduceblanks", "setopt nounset", "setopt ksharrays",
        "setopt noglob", "setopt shwordsplit", "setopt rematchpcre", "setopt bashrematch ignorebraces", "bindkey -v", "export LC_ALL=C", "setopt histfcntllock histsavebycopy",
    ),
    "fish": ("fish_vi_key_bindings", "set -g fish_history work", "set -gx LC_ALL C"),
    "tcsh": ("set histdup=erase", "set savehist=(100 merge lock)", "set noclobber", "set history=(100 '%h %R\\n')", "set implicitcd", "set histfile=~/other",
             "set noglob", "set backslash_quote", "set histlit", "set nonomatch symlinks=chase", "set printexitvalue", "set history=3"),
}  # fmt: skip
ROWS = [(name, setting) for name, settings in SETTINGS.items() for setting in settings if shutil.which(name)]


@pytest.mark.parametrize(("name", "setting"), ROWS)
def test_no_setting_lets_a_secret_through(name: str, setting: str, account: Account, service: Service) -> None:
    kind = SHELLS[name]
    home = prepare(account, kind, after=setting + "\n")
    key = samples.fill("ghp_<crc62>", random.Random())[0]
    password = samples.password(random.Random(f"{name} {setting}"), "")
    with Shell(account, kind, home) as shell:
        shell.run("rec before")
        shell.run(f"rec {key}")
        shell.run(f"mysql -u root -p{password} db")
        shell.run("rec after")
        shown = shell.run(kind.recall)
        shell.run(kind.write)
        shell.end()
    assert [argv for argv in ran(home) if argv[0] in ("rec", "mysql")] == [
        ["rec", "before"], ["rec", key], ["mysql", "-u", "root", f"-p{password}", "db"], ["rec", "after"]
    ]  # fmt: skip
    files = [p for p in home.rglob("*") if p.is_file() and p.name != "ran"]
    text = "".join(p.read_text(errors="replace") for p in files)
    assert key[4:12] not in text + shown
    assert password not in text + shown
    assert "rec after" in text + stored(home, kind)


@pytest.mark.parametrize("setting", ["", "set noglob", "set printexitvalue", "set noclobber", "set echo_style=none backslash_quote"])
@pytest.mark.parametrize("closed", ["", "file", "folder"])
def test_tcsh_prints_nothing_of_its_own_and_keeps_the_users_aliases(
    closed: str, setting: str, account: Account, service: Service
) -> None:
    """Whatever is set, and where the history cannot be written: tcsh takes an alias away in which a command fails."""
    if not shutil.which("tcsh"):
        pytest.skip("no tcsh here")
    kind = SHELLS["tcsh"]
    said = {}
    for hooked in (False, True):
        where = account.directory("stored")
        theirs = f"alias precmd 'rec pre'\nset histfile={where}/history\n{setting}\n"
        home = prepare(account, kind, before=theirs, hooked=hooked)
        if closed == "file":
            account.write(where / "history", "", 0o400)
        elif closed:
            where.chmod(0o500)
        with Shell(account, kind, home) as shell:
            said[hooked] = [shell.run(line) for line in ("rec one", "mysql -u root -pAbcDef123x db", "", "false", "rec two")]
            shown = shell.run("history")
            shell.end()
        assert ran(home).count(["rec", "pre"]) >= 7
        assert ["rec", "two"] in ran(home)
        (home / "ran").unlink()
    assert said[True] == said[False]
    assert "AbcDef123x" not in shown


@pytest.mark.parametrize("name", [name for name in ("bash", "zsh", "fish") if shutil.which(name)])
def test_a_line_that_the_shell_is_told_to_forget_stays_forgotten(name: str, account: Account, service: Service) -> None:
    """A blank in front: bash with ignorespace, zsh with histignorespace, fish always."""
    kind = SHELLS[name]
    setting = {"bash": "HISTCONTROL=ignorespace\n", "zsh": "setopt histignorespace\n", "fish": ""}[name]
    home = prepare(account, kind, after=setting)
    key = samples.fill("ghp_<crc62>", random.Random())[0]
    with Shell(account, kind, home) as shell:
        shell.run("rec before")
        shell.run(f" rec hidden {key}")
        shell.run("rec after")
        shell.end()
    assert ["rec", "hidden", key] in ran(home)
    assert "hidden" not in stored(home, kind)
    assert key[4:12] not in stored(home, kind)
    assert "rec before" in stored(home, kind)
