"""What a program is, from its names and words: the rules of `bpf/lineage.h` for backends that look at /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from guard.monitor.facts import CodeBy, Program

CODE = Program.SHELL | Program.PYTHON | Program.INTERPRETER
_WORDS = 10


def program_of(table: Mapping[str, Program], name: bytes, argv: Sequence[bytes]) -> Program:
    """What a running program is.

    Args:
        table: `Settings.programs`.
        name: of its file.
        argv: its words.
    """
    program = _named(table, name)
    called = _named(table, os.path.basename(argv[0])) if argv else Program.NONE
    program |= called & ~CODE if program & CODE else called
    if not program & (CODE | Program.LAUNCHER | Program.HINT):
        return program
    script = False
    for word in argv[1:_WORDS]:
        named = _named(table, os.path.basename(word))
        program |= named & Program.HINT
        if word == b"-m":
            continue
        if not script and not word.startswith(b"-"):
            script = True
            program |= named & (Program.HARNESS | Program.TRUSTED | Program.HINT)
    return program


def code_by(program: Program, argv: Sequence[bytes]) -> CodeBy:
    """How an interpreter gets its code, roughly: facts of these backends carry no flow."""
    if not program & CODE:
        return CodeBy.NONE
    for word in argv[1:]:
        if not word.startswith(b"-"):
            return CodeBy.FILE
        if word[1:2] in (b"c", b"e", b"m") or (program & Program.SHELL and b"c" in word[1:]):
            return CodeBy.ARGUMENT
    return CodeBy.STDIN


def _named(table: Mapping[str, Program], name: bytes) -> Program:
    return table.get(name.decode(errors="replace"), Program.NONE)
