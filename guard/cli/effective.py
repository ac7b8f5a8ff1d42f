"""What holds for a person on this host, as `guard run` would find it."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping

from guard.cli import Places
from guard.cli.subject import Person, reader_for
from guard.errors import UsageError
from guard.policy.assign import Config, Request, resolve
from guard.policy.model import Effective
from guard.policy.paths import glob_within
from guard.policy.source import printable
from guard.policy.values import NAME


def _say(text: str) -> None:
    sys.stderr.write(f"guard: {text}\n")


def effective_for(places: Places, person: Person, policy: str, harness: str, project: str) -> Effective:
    """Resolve what a person gets on this host.

    Args:
        places: where the configuration lies.
        person: any account.
        policy: NAME or PATH as of `--policy`, "" for the assigned one.
        harness: its name, "" for none.
        project: a directory, "" for the one that `guard run` would find here; another user has none here.

    Raises:
        GuardError: a file cannot be used, or a name is unknown.
    """
    if harness and not NAME.fullmatch(harness):
        raise UsageError(f"a harness is a name, not {printable(harness)!r}")
    if project and not os.path.isdir(project):
        raise UsageError(f"--project: {printable(project)} is no directory")
    found = os.path.realpath(project) if project else _project_here(places, person)
    skipped: list[str] = []
    config = Config(
        config_dir=places.config,
        user_config_dir=os.path.join(person.home, ".config", "guard") if person.home else None,
        last_good_dir=os.path.join(places.state or "/var/lib/guard", "last-good"),
        reader=reader_for(person, skipped),
    )
    request = Request(
        user=person.name,
        uid=person.uid,
        groups=person.groups,
        host=socket.gethostname(),
        harness=harness,
        policy=policy or None,
        project_dir=found or None,
        now=time.time(),
    )
    resolved = resolve(request, config)
    for path in skipped:
        _say(f"{printable(path)} is not for you to read, and so not in this answer")
    for alert in resolved.alerts:
        _say(alert)
    return resolved


def _project_here(places: Places, person: Person) -> str:
    """Return the project that `guard run` would take in the working directory, "" for none."""
    if not person.is_me:
        return ""
    from guard.confine import homes
    from guard.confine.places import find_project

    try:
        cwd = os.getcwd()
    except OSError:
        return ""  # the directory is gone: no project either
    _, all_homes = homes(dict(os.environb), person.uid)
    own = tuple(
        os.path.realpath(path) for path in (places.config, places.state, "/etc/guard", "/var/lib/guard") if path
    )
    return find_project(cwd, all_homes, own, person.uid) or ""


def dropped(effective: Effective, environment: Mapping[str, str]) -> list[str]:
    """Return the names of an environment's variables that a policy takes away, never a value."""
    drop, keep = effective.words("env.drop"), effective.words("env.keep")
    return sorted(
        printable(name)
        for name in environment
        if any(glob_within(glob, name) for glob in drop) and not any(glob_within(glob, name) for glob in keep)
    )
