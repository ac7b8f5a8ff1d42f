"""`guard policy compile` by root: the site's plans, and an alert where one of its files is not in force."""

from __future__ import annotations

import os
import sys
import time

from guard.cli import Places
from guard.confine import state
from guard.errors import EXIT_CANNOT
from guard.policy.site import MOST, Compiled, compile_site
from guard.redact import withhold


def compile_all(places: Places) -> int:
    """Compile the plans of this node's assignments, and say and record what is not in force.

    Args:
        places: where the site's files lie, and root's state.

    Returns:
        0, or 3 when a file does not load.

    Raises:
        GuardError: nothing could be compiled.
    """
    where = places.state or state.ROOT_STATE
    os.umask(0o022)  # plans are for every user to read
    state.prepare_state(where, os.geteuid())
    compiled = compile_site(places.config, where, time.time())
    _say(f"{compiled.plans} plans compiled for this node")
    if compiled.left_out:
        _say(f"{compiled.left_out} further combinations of groups are compiled at each start: {MOST} are kept")
    if not compiled.alerts:
        return 0
    for alert in compiled.alerts:
        _say(alert)
    _record(where, compiled)
    return EXIT_CANNOT


def _say(text: str) -> None:
    sys.stderr.write(f"guard: {text}\n")


def _record(where: str, compiled: Compiled) -> None:
    try:
        spool = state.Spool(where, f"policy:{state.new_id()}")
        spool.write(
            {
                "control": "telemetry",
                "rule": "site-files-broken",
                "severity": "high",
                "verdict": "observed",
                "tree": {"session": "", "harness": "", "root_pid": os.getpid(), "uid": os.geteuid()},
                "process": state.process(["guard"], os.getcwd()),
                "policy": {"name": "", "digest": ""},
                "detail": {"alerts": [withhold(alert) for alert in compiled.alerts], "plans": compiled.plans},
                "mitre": [],
                "message": "a site file does not load: its last good form stays in force where there is one",
            }
        )
    except OSError as error:
        state.count_lost(where)
        _say(f"this could not be recorded: {error.strerror}")
