"""`guard redact`: the filter, its report, files in place, folders followed.

Kept free of the command-line framework, so that the cold path (`python -m guard.redact`) starts quickly.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from guard.errors import EXIT_CANNOT, EXIT_FOUND, EXIT_USAGE, GuardError, UsageError
from guard.redact.carriers import NAMES

if TYPE_CHECKING:
    from guard.redact.marking import Marks
    from guard.redact.report import Report
    from guard.redact.scan import Scanner

USAGE: Final = """\
usage: guard redact [FILE...] [--format auto|text|jsonl|strace|pty|history] [-o FILE] [--in-place]
                    [--check] [--report FILE] [--record [--baseline]] [--known FILE] [--follow DIR]
                    [--no-service] [--install-rules PROGRAM | --rules]
                    [--state DIR] [--config DIR]

Without FILE (or with -) a filter: standard input to standard output.
  --format F     how the text is read; auto looks at every line
  -o FILE        where the output goes
  --in-place     rewrite the files; live history files keep inode, length and lines
  --check        write nothing, exit 1 when a secret was found
  --report FILE  one exposure a line as JSON; *.sarif gives SARIF
  --record       file the exposures as events; --baseline marks them as known before
  --known FILE   a detect-secrets baseline (.secrets.baseline): what it lists is reported as known, and no find
  --follow DIR   scrub the transcripts under DIR as they grow
  --no-service   do not ask the resident service for fingerprints
  --install-rules PROGRAM   ask an installed scanner (kingfisher) for its rules and make them the site's rule pack
  --rules        say how many rules are in force
"""


class Options(NamedTuple):
    """What the command line asks for."""

    files: tuple[str, ...] = ()
    format: str = "auto"
    output: str = ""
    in_place: bool = False
    check: bool = False
    report: str = ""
    record: bool = False
    baseline: bool = False
    known: str = ""
    follow: str = ""
    service: bool = True
    state: str = ""
    config: str = ""
    once: bool = False
    install_rules: str = ""
    rules: bool = False


_FLAGS: Final = {
    "--in-place": "in_place",
    "-i": "in_place",
    "--check": "check",
    "--record": "record",
    "--baseline": "baseline",
    "--once": "once",
    "--rules": "rules",
}
_VALUES: Final = {
    "--format": "format",
    "-o": "output",
    "--output": "output",
    "--report": "report",
    "--known": "known",
    "--follow": "follow",
    "--install-rules": "install_rules",
    "--state": "state",
    "--config": "config",
}


def parse(arguments: list[str]) -> Options:
    """Read the command line.

    Raises:
        UsageError: an option is unknown, lacks its value, or contradicts another.
    """
    values: dict[str, object] = {}
    files: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word == "--":
            files += rest
            break
        name, equals, value = word.partition("=")
        if word in _FLAGS:
            values[_FLAGS[word]] = True
        elif word == "--no-service":
            values["service"] = False
        elif name in _VALUES and (equals or name.startswith("-")):
            text = value if equals and name.startswith("--") else next(rest, None)
            if text is None:
                raise UsageError(f"{name} needs a value", "see guard redact --help")
            values[_VALUES[name]] = text
        elif word.startswith("-o") and len(word) > 2 and not word.startswith("--"):
            values["output"] = word[2:]
        elif word.startswith("-") and word != "-":
            raise UsageError(f"unknown option {name}", "see guard redact --help")
        else:
            files.append(word)
    options = Options(files=tuple(files), **values)  # type: ignore[arg-type]
    check_options(options)
    return options


def check_options(options: Options) -> None:
    """Refuse combinations that mean nothing.

    Raises:
        UsageError: says which options contradict each other.
    """
    if options.format not in NAMES:
        raise UsageError(f"unknown format {options.format!r}", f"one of {', '.join(NAMES)}")
    if options.in_place and (options.output or not options.files or "-" in options.files):
        raise UsageError("--in-place needs files and no -o", "name the files to rewrite")
    if options.output and len(options.files) > 1:
        raise UsageError("-o takes the output of one file", "run once a file, or use --in-place")
    if options.baseline and not options.record:
        raise UsageError("--baseline goes with --record", "add --record")
    if options.follow and (options.files or options.output or options.in_place):
        raise UsageError("--follow takes a folder and nothing else to read", "drop the other files")
    if (options.rules or options.install_rules) and (options.files or options.follow or options.output):
        raise UsageError("--rules and --install-rules read no file", "run them alone")


def main(arguments: list[str]) -> int:
    """Run `guard redact` and return its exit code; errors are told on standard error."""
    if any(word in ("-h", "--help") for word in arguments):
        sys.stdout.write(USAGE)
        return 0
    try:
        return run(parse(arguments))
    except UsageError as error:
        sys.stderr.write(f"guard redact: {error}\n")
        return EXIT_USAGE
    except GuardError as error:
        sys.stderr.write(f"guard redact: {error}\n")
        return error.exit_code
    except BrokenPipeError:
        # The reader went away; nothing is left to say, and Python must not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_CANNOT
    except OSError as error:
        place = error.filename or "input or output"
        sys.stderr.write(f"guard redact: {place}: {error.strerror or error}; check the path and its permissions\n")
        return EXIT_CANNOT
    except KeyboardInterrupt:
        return 130


def run(options: Options) -> int:
    """Do what the options ask for and return the exit code."""
    from guard.redact import marking
    from guard.redact.scan import Scanner

    for name, value in (("GUARD_STATE_DIR", options.state), ("GUARD_CONFIG_DIR", options.config)):
        if value:
            os.environ[name] = value
    if options.install_rules:
        _install(options.install_rules)
    scanner = Scanner()
    if scanner.pack_error:
        sys.stderr.write(f"guard redact: {scanner.pack_error}\n")
    if options.rules or options.install_rules:
        return _count(scanner.pack_error)
    marks = marking.Marks(service=options.service)
    with ExitStack() as stack:
        report = None
        if options.report or options.record or options.check:
            from guard.redact.report import Report

            report = stack.enter_context(
                Report(options.report, options.record, options.baseline, marks, scanner=scanner, known=options.known)
            )
        if options.follow:
            from guard.redact.follow import follow

            follow(options.follow, scanner, marks, report, options.format, once=options.once)
        elif options.in_place:
            from guard.redact.files import in_place

            for path in options.files:
                in_place(path, scanner, marks, options.format, report)
        else:
            _filter(options, scanner, marks, report, stack)
        found = report.count if report is not None else 0
    return EXIT_FOUND if options.check and found else 0


def _install(program: str) -> None:
    from guard.redact import conversion

    made = conversion.install(program)
    for reason, count in sorted(made.left_out.items(), key=lambda each: -each[1]):
        sys.stdout.write(f"{count:5} left out: {reason}\n")


def _count(error: str) -> int:
    from guard.redact import pack
    from guard.redact.rules.commands import COMMANDS
    from guard.redact.rules.formats import FORMATS
    from guard.redact.rules.table import CONTEXTS

    sys.stdout.write(f"{len(FORMATS) + len(CONTEXTS) + len(COMMANDS):5} built-in rules\n")
    if error:
        return EXIT_CANNOT
    site = pack.load()
    told = f"from {site.source} in {pack.path()}" if site.rules else "none: see guard redact --install-rules"
    sys.stdout.write(f"{len(site.rules):5} of the site's pack, {told}\n")
    return 0


def _filter(options: Options, scanner: Scanner, marks: Marks, report: Report | None, stack: ExitStack) -> None:
    from guard.redact import packing
    from guard.redact.files import Output, opened
    from guard.redact.owner import as_owner, other_owner
    from guard.redact.stream import Redactor

    write: Callable[[bytes], object]
    if options.check:
        write = len
    elif options.output:
        write = stack.enter_context(Output(options.output)).write
    else:
        write = _stdout_write
    def look(path: str, told: Report | None) -> int:
        observe = told.observer(path) if told is not None else None
        redactor = Redactor(scanner, marks.mark, options.format, observe)
        with opened(path) as source:
            packing.pump(chunks(source, None if path == "-" else path), redactor, write)
        return 0

    for path in options.files or ("-",):
        owner = other_owner(path) if options.check else None
        if owner is None:
            look(path, report)
        else:
            marks.prepare()
            as_owner(*owner, functools.partial(look, path), report)


def _stdout_write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def chunks(source: IO[bytes], path: str | None) -> Iterator[bytes]:
    """Read what is there without waiting for a full block; show progress on long files."""
    size = 1 << 19
    total = 0
    handle = source.fileno()
    whole = 0
    if path is not None and sys.stderr.isatty():
        try:
            info = os.stat(path)
            whole = info.st_size if stat.S_ISREG(info.st_mode) and info.st_size > 64 << 20 else 0
        except OSError:
            whole = 0
    while True:
        data = os.read(handle, size)
        if not data:
            break
        total += len(data)
        yield data
        if whole:
            done = min(1.0, total / whole)
            bar = "#" * int(done * 40)
            sys.stderr.write(f"\r[{bar:<40}] {done:4.0%} {total / 1e6:.0f} MB")
    if whole:
        sys.stderr.write("\r" + " " * 64 + "\r")
