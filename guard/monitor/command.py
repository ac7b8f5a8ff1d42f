"""`guard monitor`: reads its command line without the framework, whose memory a resident service would keep."""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from guard.errors import EXIT_CANNOT, GuardError, MonitorError, UsageError
from guard.monitor import catalogue, service, settings
from guard.monitor.choose import open_source
from guard.monitor.source import BACKENDS, Settings, Source
from guard.policy.source import check_private

STATE = "/var/lib/guard"
CONFIG = "/etc/guard"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"monitor: {message}", "`guard monitor --help` tells more")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="guard monitor", allow_abbrev=False,
        description="Watch every agent's tree on this node, in the foreground, until told to stop (SIGTERM).",
    )  # fmt: skip
    parser.add_argument(
        "--backend", choices=("auto", *BACKENDS), default="auto", help="how the kernel is watched; the best that loads"
    )
    parser.add_argument("--enforce", action="store_true", help="deny what monitor.toml's [enforce] names")
    parser.add_argument(
        "--harness",
        metavar="NAME=BASENAME",
        action="append",
        default=[],
        help="count a program of this name as a harness",
    )
    parser.add_argument(
        "--external",
        metavar="CIDR",
        action="append",
        default=[],
        help="count a network as outside, whatever else it is",
    )
    parser.add_argument(
        "--state", metavar="DIR", default=os.environ.get("GUARD_STATE_DIR", ""), help="node-local state"
    )
    parser.add_argument("--config", metavar="DIR", default=os.environ.get("GUARD_CONFIG_DIR", ""), help="configuration")
    return parser


def main(words: Sequence[str], state: str = "", config: str = "") -> int:
    """Run the monitor.

    Args:
        words: the arguments after `monitor`.
        state, config: directories that were named before it.

    Returns:
        0 stopped, 2 usage, 3 could not watch.
    """
    try:
        told = _parser().parse_args(words)
        _serve(told, state or told.state, config or told.config or CONFIG)
    except GuardError as error:
        _log(str(error), "guard: ")
        return error.exit_code
    except OSError as error:
        if os.environ.get("GUARD_DEBUG"):
            raise
        _log(" ".join(str(error).split()), "guard: ")
        return EXIT_CANNOT
    return 0


def _serve(told: argparse.Namespace, named: str, config: str) -> None:
    rows = tuple(map(catalogue.from_option, told.harness))
    networks = tuple(map(settings.network, told.external))
    if os.geteuid() != 0:
        raise MonitorError("guard monitor watches every user's agents, and needs root", "start it as root")
    named = os.path.abspath(named) if named else ""
    config, state = os.path.abspath(config), named or STATE
    check_private(config)
    check_private(state)
    os.makedirs(state, mode=0o755, exist_ok=True)
    spool = os.path.join(state, "spool")
    options = service.Options(config, state, spool, told.backend, told.enforce, rows, networks, named)
    service.Service(options, _open, _log).run()


def _open(backend: str, told: Settings, pinned: bool) -> Source:
    source = open_source(backend, told, pinned=pinned)
    # The load needed the types of the whole kernel, 20 MB; the allocator would keep them.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return source


def _log(line: str, before: str = "guard monitor: ") -> None:
    try:
        sys.stderr.write(f"{before}{line}\n")
        sys.stderr.flush()
    except OSError:
        return  # nobody reads it any more
