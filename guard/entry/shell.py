"""`guard shell`: a login shell, a ForceCommand, a `-c STRING`, with the account's real shell inside.

What makes every client of ssh pass (docs/shells.md): always exec, so that no process of ours stands between sshd and
the command; nothing on stdout, ever; SSH_ORIGINAL_COMMAND is given to the real shell unread; SHELL names the real one.
"""

from __future__ import annotations

import os
import sys

from guard.entry import start
from guard.entry.settings import Settings
from guard.errors import EXIT_REFUSED

SFTP_SERVERS = (
    "/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server",
    "/usr/libexec/sftp-server",
)  # fmt: skip

USAGE = """\
usage: guard shell [-l | -c STRING]

As a login shell: name a script in /etc/shells that says `exec guard shell "$@"`.
As sshd's ForceCommand: `ForceCommand /usr/bin/guard shell`; the client's command runs in the user's shell.
"""


def main(arguments: list[str]) -> int:
    """Become the account's real shell.

    Args:
        arguments: `-c STRING` with further words, `-l`, or nothing.

    Returns:
        An exit code where nothing could be started.
    """
    if arguments[:1] in (["--help"], ["-h"]):
        sys.stderr.write(USAGE)
        return 0
    config = start.config_directory()
    chosen, fault = start.settings(config)
    environment = dict(os.environ)
    original = environment.pop("SSH_ORIGINAL_COMMAND", None)
    program = real_shell(environment.get("SHELL", ""), chosen.real)
    environment["SHELL"] = program
    argv = command(arguments, original, program)
    if not chosen.forward_agent:
        environment.pop("SSH_AUTH_SOCK", None)
    if not chosen.forward_x11:
        environment.pop("DISPLAY", None)
        environment.pop("XAUTHORITY", None)
    uid = os.geteuid()
    switched = start.switched_off(config)
    if uid == 0 or switched or not concerns(chosen, uid):  # root's way in opens nothing else
        return start.become(program, argv, environment)
    if fault:
        return broken(fault, chosen, program, argv, environment)
    # The directory that a login begins in is no project, and what lies in it decides nothing.
    options = ["--no-project", *(["--policy", chosen.policy] if chosen.policy else [])]
    code, why = start.confined(options, program, argv, environment, chosen.deadline)
    return broken(why, chosen, program, argv, environment) if why else code


def broken(why: str, chosen: Settings, program: str, argv: list[str], environment: dict[str, str]) -> int:
    """Do what the site has chosen for when guard cannot confine a shell."""
    plain = chosen.on_fault == "plain"
    start.told(
        "shell-unguarded" if plain else "shell-refused",
        "a login shell runs without guard" if plain else "a login shell was refused",
        {"reason": why},
        "high" if plain else "medium",
    )
    sys.stderr.write(f"guard: {why}; {'this shell runs without guard' if plain else 'no shell: ask the site'}\n")
    return start.become(program, argv, environment) if plain else EXIT_REFUSED


def command(arguments: list[str], original: str | None, program: str) -> list[str]:
    """Return the real shell's arguments.

    Args:
        arguments: guard's own.
        original: what an ssh client asked for; None without ssh, or for an interactive login.
        program: the real shell.
    """
    name = os.path.basename(program)
    if arguments and arguments[0] != "-l":
        return [name, *arguments]
    if original is None:
        return [f"-{name}"]
    words = original.split()
    if words[:1] == ["internal-sftp"]:  # sshd's own, which it does not run for a forced command
        server = next((path for path in SFTP_SERVERS if os.access(path, os.X_OK)), SFTP_SERVERS[0])
        return [name, "-c", " ".join([f"exec {server}", *words[1:]])]
    return [name, "-c", original]


def real_shell(named: str, fallback: str) -> str:
    """Return the account's shell: the one named, unless that is guard itself or cannot be executed."""
    for path in (named, fallback, "/bin/bash"):
        if path.startswith("/") and os.access(path, os.X_OK) and not leads_here(path):
            return path
    return "/bin/sh"


def leads_here(path: str) -> bool:
    """Say whether a program is guard, or a script that hands over to it."""
    real = os.path.realpath(path)
    if os.path.basename(real).startswith("guard") or os.path.basename(path).startswith("guard"):
        return True
    try:
        with open(real, "rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    return head.startswith(b"#!") and b"guard" in head and b"shell" in head


def concerns(chosen: Settings, uid: int) -> bool:
    """Say whether a user's shells are confined; a name service that hangs must not hold the login up."""
    if not chosen.users and not chosen.groups:
        return True
    from guard.entry import deadline

    def look() -> None:
        import grp
        import pwd

        if pwd.getpwuid(uid).pw_name not in chosen.users:
            names = {grp.getgrgid(gid).gr_name for gid in {os.getegid(), *os.getgroups()}}
            if not names & set(chosen.groups):
                raise LookupError("not named")

    try:
        deadline.attempt(look, chosen.deadline / 2)
    except deadline.Late as late:
        return str(late) != "not named"
    return True
