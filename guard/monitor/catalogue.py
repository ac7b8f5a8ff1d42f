"""Which program is a coding agent: the catalogue, and how an exec is recognised in it.

Looked at are the name under which a file was executed, the file that really runs, and the arguments: never
argv[0], which anybody may set, and never a shell, so that a person's own shell is no agent's.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache

from guard.confine.handlers.commands import family
from guard.errors import UsageError

CONFIDENCES = ("low", "medium", "high")
"""How sure a sign is, the least first."""

LONGEST_NAME = 31
"""Bytes of a name that the kernel's side compares."""

RUNTIMES: Mapping[str, tuple[str, ...]] = {
    "node": ("node", "deno"),
    "python": ("python",),
}
"""What a row calls a runtime → families of interpreters (bun is of deno's)."""

# Options of the runtimes that take the next word, so that the word after them is no script.
_TAKES_VALUE: Mapping[str, tuple[str, ...]] = {
    "node": ("-r", "--require", "--import", "--loader", "--experimental-loader", "-C", "--conditions", "--env-file",
             "--max-old-space-size", "--inspect-port", "--title", "--stack-size"),
    "deno": ("-c", "--config", "--import-map", "-r", "--preload"),
    "python": ("-W", "-X", "--check-hash-based-pycs"),
}  # fmt: skip
_ENDS = {
    "node": ("-e", "--eval", "-p", "--print", "--test", "-c", "--check"),
    "deno": ("eval", "-e", "--eval"),
    "python": ("-c",),
}
_VERBS = ("run", "x", "exec")  # of bun and deno, before the script
_EXTENSION_HOST = "--type=extensionHost"


@dataclass(frozen=True, slots=True)
class Harness:
    """One row of the catalogue.

    Args:
        name: as events name it.
        title: as people name it.
        programs: names of the executed file.
        scripts: names of the script that an interpreter of `runtimes` runs.
        modules: names after `python -m`.
        runtimes: keys of `RUNTIMES`.
        paths: globs on the whole path of program or script; what they match is sure.
        only: first words of which one must stand there; "" stands for none, () for any.
        unless: first words that say it is other software of the same name.
        extension_hosts: globs on the path of an editor's extension host.
        confidence: one of `CONFIDENCES`.
    """

    name: str
    title: str = ""
    programs: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    extension_hosts: tuple[str, ...] = ()
    confidence: str = "medium"


@dataclass(frozen=True, slots=True)
class Match:
    """An exec that is a harness.

    Args:
        harness: the row's name.
        how: program, script, module, path or extension-host.
        confidence: one of `CONFIDENCES`.
    """

    harness: str
    how: str
    confidence: str


@dataclass(frozen=True)
class Command:
    """What an exec runs, taken apart once for all rows.

    Args:
        program: the name under which the file was executed.
        files: the paths that are the program: as executed, as it really is, and the script of an interpreter.
        runtime: key of `RUNTIMES`, "" for a native program.
        script: the script's base name, "" for none.
        module: the module after -m, "" for none.
        words: the program's own arguments, without program, script or module.
    """

    program: str
    files: tuple[str, ...]
    runtime: str
    script: str
    module: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Catalogue:
    """Every known harness; a later row of a name replaces an earlier one.

    Args:
        rows: name → row.
    """

    rows: Mapping[str, Harness]
    _programs: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _scripts: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_programs", _index((name, row.programs) for name, row in self.rows.items()))
        object.__setattr__(
            self, "_scripts", _index((name, (*row.scripts, *row.modules)) for name, row in self.rows.items())
        )

    def with_rows(self, rows: Iterable[Harness]) -> Catalogue:
        """Return a catalogue in which these rows are added, or take the place of those of their names."""
        return Catalogue({**self.rows, **{row.name: row for row in rows}})

    def recognise(self, file: str, exe: str, argv: Sequence[str]) -> Match | None:
        """Say which harness an exec is; None for what is none.

        Args:
            file: the path given to execve (a script's own path, where it has an interpreter line).
            exe: the file that runs, as far as known; "" where it is not.
            argv: the arguments.
        """
        if "/guard/shims/" in file and is_shell(os.path.basename(exe)):
            return None  # a shim of guard's: the agent that it starts is looked at itself, and under guard by then
        command = take_apart(file, exe, argv)
        if command is None:
            return None
        for name, row in self.rows.items():
            if any(_glob(pattern, path) for pattern in row.paths for path in command.files):
                return Match(name, "path", "high")
        for name in self._candidates(command):
            row = self.rows[name]
            how = _named(row, command)
            if how and _fits(row, command.words):
                return Match(name, how, row.confidence)
        if _EXTENSION_HOST in argv:
            for name, row in self.rows.items():
                if any(_glob(pattern, path) for pattern in row.extension_hosts for path in command.files):
                    return Match(name, "extension-host", row.confidence if row.confidence == "low" else "medium")
        return None

    def _candidates(self, command: Command) -> tuple[str, ...]:
        by_name = self._programs.get(command.program, ())
        if not command.runtime:
            return by_name
        return (*by_name, *self._scripts.get(command.script or command.module, ()))


def _named(row: Harness, command: Command) -> str:
    if command.program in row.programs:
        return "program"
    if not command.runtime or command.runtime not in row.runtimes:
        return ""
    if command.script and command.script in row.scripts:
        return "script"
    return "module" if command.module and command.module in row.modules else ""


def _fits(row: Harness, words: tuple[str, ...]) -> bool:
    first = words[0] if words else ""
    if row.only and first not in row.only:
        return False
    return first not in row.unless


def _index(names: Iterable[tuple[str, tuple[str, ...]]]) -> dict[str, tuple[str, ...]]:
    out: dict[str, tuple[str, ...]] = {}
    for row, words in names:
        for word in words:
            out[word] = (*out.get(word, ()), row)
    return out


@lru_cache(maxsize=65536)
def _glob(pattern: str, path: str) -> bool:
    return fnmatchcase(path, pattern)


def is_shell(name: str) -> bool:
    """Whether a program's name is a shell's: those are never a harness."""
    return family(name) in ("sh", "fish", "pwsh")


def take_apart(file: str, exe: str, argv: Sequence[str]) -> Command | None:
    """Find program, script and own words of an exec; None for a shell, which is no harness whatever it runs.

    Args:
        file, exe, argv: as `Catalogue.recognise`.
    """
    program = unwrapped(os.path.basename(file))
    really = os.path.basename(exe) or program
    if is_shell(program):
        return None
    runtime = _runtime(program) or _runtime(really)
    paths = tuple(dict.fromkeys(path for path in (file, exe) if path))
    if not runtime or (not _runtime(program) and not argv[1:]):
        return Command(program, paths, "", "", "", tuple(argv[1:]))
    script, module, words = _script(runtime, argv)
    if script:
        paths = (*paths, script)
    return Command(program, paths, runtime, os.path.basename(script), module, words)


def wrapped(name: str) -> str:
    """The name that Nix gives a program for which it puts a wrapper (nixpkgs, makeWrapper)."""
    return f".{name}-wrapped"


def unwrapped(name: str) -> str:
    """The name of a program without what Nix puts around it."""
    return name[1 : -len("-wrapped")] if name.startswith(".") and name.endswith("-wrapped") else name


def _runtime(name: str) -> str:
    kin = family(name)
    return next((runtime for runtime, families in RUNTIMES.items() if kin in families), "")


def _script(runtime: str, argv: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """Find (script, module, own words) in an interpreter's arguments."""
    at = 1
    values = (*_TAKES_VALUE[runtime], *(_TAKES_VALUE["deno"] if runtime == "node" else ()))
    while at < len(argv):
        word = argv[at]
        if runtime == "python" and word == "-m":
            return "", argv[at + 1] if at + 1 < len(argv) else "", tuple(argv[at + 2 :])
        if word in _ENDS[runtime]:
            break
        if word == "--":
            at += 1
            break
        if not word.startswith("-"):
            if runtime == "node" and word in _VERBS and at == 1:
                at += 1
                continue
            break
        at += 2 if word in values else 1
    if at >= len(argv) or argv[at].startswith("-"):
        return "", "", tuple(argv[at:])
    return argv[at], "", tuple(argv[at + 1 :])


def shipped() -> Catalogue:
    """Return the catalogue that comes with guard."""
    with open(os.path.join(os.path.dirname(__file__), "harnesses.toml"), "rb") as stream:
        data = tomllib.load(stream)
    return Catalogue({name: row_from(name, table) for name, table in data.items()})


def row_from(name: str, table: Mapping[str, object]) -> Harness:
    """Make a row of a table whose types have been checked."""
    values = {key: tuple(map(str, value)) if isinstance(value, list) else value for key, value in table.items()}
    return Harness(name=name, **values)  # type: ignore[arg-type]


def from_option(text: str) -> Harness:
    """Read `--harness NAME=BASENAME`: a program of that name, or a script of that name in any runtime, is NAME.

    Raises:
        UsageError: it is not written so, or names a shell.
    """
    name, equals, program = text.partition("=")
    if not equals or not name or not program or "/" in program or not all(c.isalnum() or c in "._-" for c in name):
        raise UsageError(f"--harness {text!r} is not NAME=BASENAME", "write --harness mine=my-agent")
    if len(program.encode()) > LONGEST_NAME:
        raise UsageError(
            f"--harness {text!r} has a program's name of over {LONGEST_NAME} bytes",
            "the kernel's side compares no more",
        )
    if is_shell(program):
        raise UsageError(
            f"--harness {text!r} names a shell", "a person's shell is never an agent's; name the agent's own program"
        )
    return Harness(name, programs=(program,), scripts=(program,), runtimes=tuple(RUNTIMES), confidence="high")
