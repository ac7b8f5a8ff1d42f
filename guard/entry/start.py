"""From a way in to a running program: off, plain, or confined; and what happens when guard itself is broken."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from guard.confine.launch import Launch, explain, fill_streams
from guard.entry import deadline, off
from guard.entry.settings import Settings, legible, load
from guard.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_REFUSED, GuardError

SITE = "/etc/guard"


def config_directory() -> str:
    """Return where the configuration lies: root's, unless there is none and the caller names another."""
    given = os.environ.get("GUARD_CONFIG_DIR", "")
    if given and not any(os.path.lexists(f"{SITE}/{name}") for name in ("site.toml", "assign.toml", "entry.toml")):
        return os.path.abspath(given)
    return SITE


def settings(config: str) -> tuple[Settings, str]:
    """Return a site's settings, and why they do not load: then what is legible in them holds, and the defaults."""
    try:
        return load(config), ""
    except (GuardError, OSError) as error:
        return legible(config), str(error)


def switched_off(config: str) -> off.Off | None:
    """Return root's switch; away from /etc/guard the caller's own counts, too."""
    return off.read(config, owner=0 if config == SITE else os.geteuid())


def become(program: str, argv: Sequence[str], environment: dict[str, str]) -> int:
    """Become a program as a shell would start it, without guard; returns only when it cannot be.

    The interpreter ignores SIGPIPE and SIGXFSZ, and what is ignored stays ignored over exec.
    """
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(program, list(argv), environment)  # noqa: S606 - what a shell does
    except FileNotFoundError:
        code, why = EXIT_NOT_FOUND, "not found"
    except OSError as error:
        if error.errno == 8:  # ENOEXEC: a script without an interpreter line, as execvp(3) starts it
            os.execve("/bin/sh", ["/bin/sh", program, *argv[1:]], environment)  # noqa: S606
        code, why = EXIT_NOT_EXECUTABLE, error.strerror or "cannot be executed"
    sys.stderr.write(f"guard: {program}: {why}\n")
    return code


def confined(
    options: Sequence[str], program: str, argv: Sequence[str], environment: dict[str, str], seconds: float
) -> tuple[int, str]:
    """Become a program under guard, or stay beside it as its supervisor.

    Args:
        options: of `guard run`.
        program: absolute.
        argv: its arguments, the name first.
        environment: the program's.
        seconds: what all waiting together may take.

    Returns:
        The exit code of what ran, and why nothing was started: "" where something was.
    """
    words = [*options, "--argv0", argv[0], "--", program, *argv[1:]]
    start = [sys.executable, "-I", "-S", os.path.abspath(sys.argv[0])]
    block = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}

    def trial() -> None:
        attempted = Launch(start)
        attempted.environment = block
        attempted.rehearse(words)

    try:
        deadline.attempt(trial, seconds)
    except deadline.Late as late:
        return EXIT_REFUSED, str(late)
    fill_streams()
    session = Launch(start)
    session.environment = block
    try:
        return session.run(words), ""
    except Exception as error:  # noqa: BLE001 - whatever it is, nobody may be locked out by it
        why = explain(error) if isinstance(error, OSError) else str(error) or type(error).__name__
        session.refused(why, getattr(error, "control", ""))
        return EXIT_REFUSED, why


def told(rule: str, message: str, detail: dict[str, object], severity: str = "medium") -> None:
    """Put on record what was started without guard; where that cannot be, the start goes on all the same."""

    def write() -> None:
        session = Launch([sys.executable])
        session.options.parse(["--", "guard"])
        session._open_spool()
        session.record(rule, severity, "observed", message, detail)
        if session.fault:
            raise OSError(session.fault)

    try:
        deadline.attempt(write, 0.5)
    except deadline.Late as late:
        sys.stderr.write(f"guard: this could not be recorded: {late}\n")
