"""`guard history`: hooks that keep secrets out of shell histories, and a scrub for what is there already."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import sys
from typing import Annotated

import typer

from guard.errors import EXIT_CANNOT, GuardError, UsageError
from guard.history import install as places
from guard.history import scrub as scrubbing
from guard.history.render import SHELLS, Exceptions
from guard.redact.scan import Scanner

app = typer.Typer(no_args_is_help=True, help="Keep secrets out of shell histories.")

_Shell = Annotated[str, typer.Option("--shell", metavar="SHELL", help="bash, zsh, fish, tcsh or all (those here).")]
_System = Annotated[bool, typer.Option("--system", help="For every user of this node (root).")]
_Root = Annotated[str, typer.Option("--root", metavar="DIR", help="With --system: below this directory, as an image.")]


@app.callback()
def history() -> None:
    """Keep secrets out of shell histories."""


def program() -> str:
    """Return the program that hooks call: the one that runs now, by a name that stays."""
    path = os.path.abspath(sys.argv[0])
    folder, name = os.path.split(path)
    front = os.path.join(os.path.dirname(folder), "bin", name)
    if os.path.basename(folder) == "libexec" and os.access(front, os.X_OK):
        return front  # guard-exec, which executed us
    if os.path.basename(path) == "guard" and os.access(path, os.X_OK):
        return path
    return shutil.which("guard") or path


def target(ctx: typer.Context, system: bool, root: str) -> places.Target:
    """Return whose start-up files are meant.

    Raises:
        UsageError: the options contradict each other, or ask for what only root can do.
    """
    if system:
        if os.geteuid() != 0 and not root:
                raise UsageError("--system edits the node's files", "run it as root, or without --system for yourself")
        return places.node(f"{root}{ctx.obj.config}", root)
    if root:
        raise UsageError("--root goes with --system", "leave it out for your own start-up files")
    return places.user(home(), os.environ)


def home() -> str:
    """Return the user's home.

    Raises:
        UsageError: HOME names none.
    """
    named = os.environ.get("HOME", "")
    if not os.path.isabs(named) or not os.path.isdir(named):
        raise UsageError("HOME does not name a directory", "set it to yours")
    return named


def _numbers(names: list[str], find: str) -> tuple[int, ...]:
    out = []
    for name in names:
        try:
            out.append(pwd.getpwnam(name).pw_uid if find == "user" else grp.getgrnam(name).gr_gid)
        except KeyError:
            where = "passwd" if find == "user" else "group"
            raise UsageError(f"--except-{find}: no {find} {name!r} here", f"see `getent {where}`") from None
    return tuple(out)


@app.command()
def install(
    ctx: typer.Context,
    shell: _Shell = "all",
    system: _System = False,
    except_user: Annotated[
        list[str] | None, typer.Option("--except-user", metavar="USER", help="With --system: leave this user out.")
    ] = None,
    except_group: Annotated[
        list[str] | None, typer.Option("--except-group", metavar="GROUP", help="With --system: leave this group out.")
    ] = None,
    root: _Root = "",
) -> None:
    """Let the shells ask before they store a line; a secret in it is replaced by `__REDACTED__`."""
    where = target(ctx, system, root)
    if (except_user or except_group) and not system:
        raise UsageError("--except-user and --except-group go with --system", "to leave yourself out, do not install")
    exceptions = Exceptions(_numbers(except_user or [], "user"), _numbers(except_group or [], "group"))
    shells = places.shells_here(shell)
    for file in places.install(where, shells, program(), exceptions):
        sys.stderr.write(f"{file}: reads the hook from the next shell on\n")
    if where.home:
        sys.stderr.write("what your histories hold already is left alone; `guard history scrub` takes secrets out\n")


@app.command()
def uninstall(ctx: typer.Context, shell: _Shell = "all", system: _System = False, root: _Root = "") -> None:
    """Take the hooks out of the start-up files again, and leave those as they were."""
    where = target(ctx, system, root)
    shells = SHELLS if shell in ("", "all") else places.shells_here(shell)
    for file in places.uninstall(where, shells):
        sys.stderr.write(f"{file}: as before\n")


@app.command()
def scrub(ctx: typer.Context, shell: _Shell = "", system: _System = False) -> None:
    """Take the secrets out of histories that are there; only ever because somebody asks."""
    if shell in ("", "all"):
        shell = ""
    else:
        places.shells_here(shell)
    if system and os.geteuid() != 0:
        raise UsageError("--system scrubs every user's histories", "run it as root, or without --system for yourself")
    folder = places.node(ctx.obj.config).folder if system else places.user(home(), os.environ).folder
    homes = sorted({e.pw_dir for e in pwd.getpwall() if os.path.isdir(e.pw_dir)}) if system else [home()]
    scrubbing.ask(folder)
    scanner = Scanner()
    failed = False
    for one in homes:
        for file in scrubbing.files(one, shell):
            try:
                count = scrubbing.scrub(file, scanner)
            except (GuardError, OSError) as error:
                sys.stderr.write(f"guard: {file}: {error}\n")
                failed = True
                continue
            sys.stdout.write(f"{count:6d}  {file}\n")
    sys.stderr.write("shells that are open hold the old lines; what they write back is scrubbed when they end\n")
    if failed:
        raise typer.Exit(EXIT_CANNOT)
