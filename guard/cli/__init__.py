"""The full command line: finds the command, imports its module alone, and turns errors into exit codes.

Each command group is one module of this package with a Typer application `app`. It is imported when its
name is the command given, so that a group that cannot be imported breaks no other.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import typer

from guard import __version__
from guard.errors import EXIT_CANNOT, EXIT_USAGE, GuardError, UsageError

EXIT_PIPE = 128 + 13
"""The reader of stdout went away: what a shell shows for a program that SIGPIPE ended."""


@dataclass(frozen=True)
class Group:
    """A command group.

    Args:
        module: with a Typer application `app`.
        help: one line.
        own: global options that mean something else after this command's name.
    """

    module: str
    help: str
    own: tuple[str, ...] = ()


COMMANDS: Mapping[str, Group] = {
    "policy": Group("guard.cli.policy", "List, show, check, compare and compile policies."),
    "redact": Group("guard.cli.redact", "Replace every secret in a stream or file."),
    "key": Group("guard.cli.key", "Make, install and rotate the site's fingerprint key."),
    "events": Group("guard.cli.events", "Show, follow and check the node's events."),
    "serve": Group("guard.cli.serve", "Run the resident services."),
    "feed": Group("guard.cli.feed", "Send events to where a site wants them.", own=("--config",)),
    "fleet": Group("guard.cli.fleet", "Tell how the nodes of a site are doing."),
    "history": Group("guard.cli.history", "Keep secrets out of shell histories."),
    "hooks": Group("guard.cli.hooks", "Advice before an agent's command, a scrub after it; git's hooks."),
    "shim": Group("guard.cli.shim", "Start agents under guard by their names."),
    "off": Group("guard.cli.off", "Root: start plain programs on this node at once."),
    "on": Group("guard.cli.on", "Root: start programs under guard again."),
    "learn": Group("guard.cli.learn", "Watch a session, propose the narrowest policy for it."),
    "explain": Group("guard.cli.explain", "Tell whether a session may do something, and what would allow it."),
    "monitor": Group("guard.monitor.command", "Watch every agent's tree on this node."),
    "ps": Group("guard.cli.ps", "List the agents' trees of this node."),
    "incidents": Group("guard.cli.incidents", "Exposed keys, from the first sighting to the rotation."),
    "privacy": Group("guard.cli.privacy", "What is stored about an account: show, export, erase, explain."),
    "web": Group("guard.cli.web", "Serve the small page: one's own exposed keys."),
    "report": Group("guard.cli.report", "Reports people read: keys, acts, coverage, changes, losses."),
    "doctor": Group("guard.cli.doctor", "Tell each control's status on this host, found out by trying."),
}
"""Command → where it lives; `run` is the launcher's."""


@dataclass(frozen=True)
class Places:
    """Where state and configuration lie, as the options and the environment say.

    Args:
        config: the configuration directory, absolute.
        state: the node-local state directory, absolute; "" where neither says: the user's own.
    """

    config: str
    state: str


def main(argv: Sequence[str]) -> int:
    """Run a command other than `guard run`.

    Args:
        argv: the arguments after the program's name.

    Returns:
        0 fine, 1 found something, 2 usage, 3 could not do it.
    """
    try:
        code = _run(list(argv))
        sys.stdout.flush()
    except BrokenPipeError:
        return _unread()
    except SystemExit as error:
        # Typer makes a broken pipe an exit with 1, which here means "found something".
        if isinstance(error.__context__, BrokenPipeError):
            return _unread()
        return error.code if isinstance(error.code, int) else EXIT_CANNOT
    except GuardError as error:
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + 2
    except Exception as error:
        # The last resort: one line, unless a developer asks for all.
        if os.environ.get("GUARD_DEBUG"):
            raise
        text = " ".join(str(error).split())
        kind = "" if isinstance(error, OSError) else f"internal error: {type(error).__name__}: "
        _say(f"{kind}{text} (GUARD_DEBUG=1 shows where)")
        _drop_output()
        return EXIT_CANNOT
    return code


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"guard: {text}\n")
    except OSError:
        return  # nobody is left to be told


def _unread() -> int:
    """Keep Python from complaining at exit that nobody reads stdout any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_PIPE


def _drop_output() -> None:
    """Keep Python from trying once more, at exit, to write what could not be written."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    places, rest = split_places(words)
    if rest[:1] == ["--version"]:
        sys.stdout.write(f"guard {__version__}\n")
        return 0
    command = next((word for word in rest if not word.startswith("-")), "")
    if command == "run":
        return _launch(rest, places)
    if command == "monitor":
        from guard.monitor.command import main as monitor

        return monitor(rest[rest.index("monitor") + 1 :], places.state, places.config)
    program = typer.main.get_command(application(command))
    try:
        code = program.main(args=rest, prog_name="guard", standalone_mode=False, obj=places)
    except Exception as error:
        # Typer brings its own copy of click's classes in some versions: known by what they can do.
        message = getattr(error, "format_message", None)
        if message is not None:
            context = getattr(error, "ctx", None)
            path = getattr(context, "command_path", "guard")
            if type(error).__name__ == "NoArgsIsHelpError":
                sys.stderr.write(f"{message()}\n")
                return EXIT_USAGE
            before = f"{path.removeprefix('guard ')}: " if path != "guard" else ""
            raise UsageError(f"{before}{str(message()).rstrip('.')}", f"`{path} --help` tells more") from None
        if type(error).__name__ == "Abort":
            return 128 + 2
        raise
    return code if isinstance(code, int) else 0


def _launch(words: list[str], places: Places) -> int:
    from guard.confine.launch import USAGE
    from guard.confine.launch import main as launch

    after = words[words.index("run") + 1 :]
    if after[:1] in (["--help"], ["-h"]):
        sys.stdout.write(f"{USAGE}\n")
        return 0
    options = ["--config", places.config]
    if places.state:
        options += ["--state", places.state]
    return launch([*options, *after], [sys.executable, "-I", "-m", "guard"])


def split_places(words: list[str]) -> tuple[Places, list[str]]:
    """Take `--state DIR` and `--config DIR` out of a command line, wherever they stand before `--`.

    Raises:
        UsageError: one of them has no value.
    """
    found = {
        "--config": os.environ.get("GUARD_CONFIG_DIR", ""),
        "--state": os.environ.get("GUARD_STATE_DIR", ""),
    }
    rest: list[str] = []
    command = ""
    left = iter(words)
    for word in left:
        name, joined, value = word.partition("=")
        own = COMMANDS[command].own if command in COMMANDS else ()
        if word == "--" or command == "run":
            rest += [word, *left]
        elif name in found and name not in own:
            value = value if joined else next(left, "")
            if not value:
                raise UsageError(f"{name} needs a directory")
            found[name] = value
        else:
            rest.append(word)
            command = command or ("" if word.startswith("-") else word)
    state = os.path.abspath(found["--state"]) if found["--state"] else ""
    return Places(os.path.abspath(found["--config"] or "/etc/guard"), state), rest


def application(command: str) -> typer.Typer:
    """Build the command line, with the one group that is asked for.

    Args:
        command: its name; the others are there by name and help alone.
    """
    app = typer.Typer(
        name="guard",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    )

    @app.callback()
    def top(
        version: bool = typer.Option(False, "--version", help="Print guard's version."),
        state: str = typer.Option("", "--state", metavar="DIR", help="Node-local state, on any command."),
        config: str = typer.Option("", "--config", metavar="DIR", help="Configuration, on any command."),
    ) -> None:
        """Kernel-level guardrails beneath coding agents on shared Linux machines."""

    app.command("run", help="Run a command confined: guard run … -- CMD ARG…")(_nothing)
    app.command("shell", help="Be a login shell, or sshd's ForceCommand, with the real shell inside.")(_nothing)
    for name, group in COMMANDS.items():
        if name != command:
            app.command(name, help=group.help)(_nothing)
            continue
        part: typer.Typer = importlib.import_module(group.module).app
        single = _single(part)
        if single is not None:
            app.command(name, help=group.help)(single)
        else:
            app.add_typer(part, name=name, help=group.help)
    return app


def _single(part: typer.Typer) -> Callable[..., object] | None:
    """Return the one command of an application that is no group."""
    if part.registered_callback is not None or part.registered_groups or len(part.registered_commands) != 1:
        return None
    return part.registered_commands[0].callback


def _nothing() -> None:
    """Stand in for a command whose module is not imported."""
