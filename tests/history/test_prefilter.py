"""Every line in which the redactor finds something makes a shell ask, and it is what all four engines can read."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from guard.history.prefilter import alternatives, expression, pattern
from guard.history.render import hook
from guard.redact import samples
from guard.redact.rules.commands import COMMANDS
from guard.redact.rules.formats import FORMATS
from guard.redact.rules.table import CONTEXTS
from guard.redact.scan import Scanner
from guard.redact.stream import redact_bytes

ROWS = {f"{type(row).__name__} {number}": row for number, row in enumerate([*CONTEXTS, *COMMANDS, *FORMATS])}
ORDINARY = (
    "ls -la", "cd ..", "git status", "git commit -m 'fix it'", "npm install", "make -j4", "vim src/main.c", "squeue -u bob", "pwd",
    "grep -rn foo src", "tar xzf foo-1.2.3.tar.gz", "ssh login2", "top", "python train.py --epochs 20 --lr 0.01", "man bash",
)  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_what_the_redactor_finds_makes_a_shell_ask(name: str) -> None:
    rng = random.Random(name)
    scanner = Scanner()
    asked = re.compile(expression(), re.IGNORECASE | re.DOTALL)
    for sample in ROWS[name].samples:
        for form in ("{}", "x {} y", "export FOO={}", "for i in 1; do x {}; done"):
            line = form.format(samples.fill(sample, rng)[0])
            if b"[REDACTED" in redact_bytes(line.encode() + b"\n", scanner):
                assert asked.search(line), line


@pytest.mark.parametrize("line", ORDINARY)
def test_an_ordinary_line_asks_nobody(line: str) -> None:
    assert not re.search(expression(), line, re.IGNORECASE | re.DOTALL)


@pytest.mark.parametrize(
    ("program", "script"),
    [
        ("bash", 'line=$2; [[ ${line,,} =~ $1 ]]'),
        ("zsh", 'setopt nocasematch; [[ $2 =~ $1 ]]'),
        ("fish", 'string match -qir -- $argv[2] $argv[3]'),
        ("sh", 'printf %s "$2" | grep -Eqi -e "$1"'),
    ],
)
def test_every_shell_reads_it_alike(program: str, script: str) -> None:
    for line, hit in (("mysql -pX1y2z3w4 db", True), ("x --PassWord Abc12345", True), *((o, False) for o in ORDINARY)):
        try:
            done = subprocess.run([program, "-c", script, "x", expression(), line], check=False, capture_output=True)
        except FileNotFoundError:
            pytest.skip(f"no {program} here")
        assert (done.returncode, done.stderr) == (0 if hit else 1, b""), line


def test_tcshs_pattern_stops_at_all_that_the_expression_does(tmp_path: Path) -> None:
    """One tcsh reads every sample in every form, as it reads lines at its prompt."""
    if not shutil.which("tcsh"):
        pytest.skip("no tcsh here")
    rng = random.Random(1)
    asked = re.compile(expression(), re.IGNORECASE)
    forms = ("{}", "x {} y", "setenv FOO {}", "\\mysql 'x' {}")
    lines = [form.format(samples.fill(s, rng)[0]) for row in ROWS.values() for s in row.samples for form in forms]
    lines = [line for line in (*ORDINARY, *lines) if "\n" not in line]
    script = tmp_path / "script"
    script.write_text(f"set p = '{pattern()}'\n" + r'''
while (1)
  set l = "$<"
  if ("$l:q" == "") exit
  if ("x $l:gal:q" =~ $p) echo 1
  if (! ("x $l:gal:q" =~ $p)) echo 0
end
''')
    done = subprocess.run(["tcsh", "-f", str(script)], input="\n".join(lines) + "\n\n", capture_output=True, text=True, check=False)
    assert done.stderr == ""
    said = done.stdout.split()
    assert len(said) == len(lines)
    assert [line for line, hit in zip(lines, said, strict=True) if hit == "0" and asked.search(line)] == []
    assert said[: len(ORDINARY)] == ["0"] * len(ORDINARY)


def test_bash_looks_up_what_the_expression_names(tmp_path: Path) -> None:
    """One bash reads every sample in every form with the functions of its hook."""
    rng = random.Random(1)
    asked = re.compile(expression(), re.IGNORECASE)
    forms = ("{}", "x {} y", "export FOO={}", "a|\\mysql 'x' {}", "sudo -u bob x-{}")
    lines = [form.format(samples.fill(s, rng)[0]) for row in ROWS.values() for s in row.samples for form in forms]
    lines = [line for line in (*ORDINARY, *lines, "mysql -pX1y2z3w4", "ls " + "src/a.c " * 30, "mysql -pX1y2z3w4 " + "-v " * 60) if "\n" not in line]
    whole = hook("bash", "/guard", "/hook")[""]
    head = whole[whole.index("  _guard_history_rx=") : whole.index("  _guard_history_seen=")]
    body = whole[whole.index("  _guard_history_asks()") : whole.index("  # Sets `REPLY` to the line")]
    script = tmp_path / "script"
    script.write_text(f'{head}{body}set -f; while IFS= read -r line; do _guard_history_asks "${{line,,}}"; echo $?; done')
    done = subprocess.run(
        ["bash", "--norc", str(script)], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    said = done.stdout.split()
    assert len(said) == len(lines)
    assert [line for line, hit in zip(lines, said, strict=True) if hit == "1" and asked.search(line)] == []
    assert said[: len(ORDINARY)] == ["1"] * len(ORDINARY)


def test_alternatives_match_their_words_and_no_others() -> None:
    words = ["my", "mysql", "mysqldump", "maria", "a.b", "7z"]
    made = re.compile(alternatives(words))
    assert all(made.fullmatch(word) for word in words)
    assert not any(made.fullmatch(word) for word in ("m", "mys", "axb", "7", ""))
