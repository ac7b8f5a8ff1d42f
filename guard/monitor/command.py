"""`guard monitor`: reads its command line without the framework, whose memory a resident service would keep."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from guard.errors import EXIT_CANNOT, EXIT_FOUND, GuardError, MonitorError, UsageError
from guard.monitor import answers, catalogue, memory, service, settings
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
    trial = parser.add_mutually_exclusive_group()
    trial.add_argument(
        "--check", action="store_true", help="load, attach, try one harmless example a rule, detach; 0 or 1"
    )
    trial.add_argument(
        "--detach", action="store_true", help="stop the monitor, if one runs, and take away whatever it left attached"
    )
    parser.add_argument("--expect", choices=BACKENDS, default="", help="with --check: this backend, or 1")
    parser.add_argument("--json", action="store_true", help="with --check: for programs")
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
        0 stopped, 1 a check found something, 2 usage, 3 could not watch.
    """
    try:
        told = _parser().parse_args(words)
        if told.expect and not told.check:
            raise UsageError("monitor: --expect goes with --check", "`guard monitor --help` tells more")
        if told.detach:
            return _detach(state or told.state)
        if told.check:
            return _check(told, config or told.config or CONFIG)
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


def _detach(named: str) -> int:
    from guard.monitor.detach import detach

    _as_root()
    pid, links = detach(answers.socket_path(named))
    _log(f"stopped process {pid}" if pid else "no monitor runs")
    _log(f"took away {links} pinned links" if links else "nothing was pinned")
    return 0


def _check(told: argparse.Namespace, config: str) -> int:
    from guard.monitor import check, rules

    _as_root()
    site = settings.load(os.path.abspath(config), rules.NAMES)
    report = check.check(told.backend, service.source_settings(site, told.enforce), told.expect)
    sys.stdout.write(check.as_json(report) if told.json else check.as_text(report))
    return 0 if report.right else EXIT_FOUND


def _as_root() -> None:
    if os.geteuid() != 0:
        raise MonitorError("guard monitor watches every user's agents, and needs root", "start it as root")


def _serve(told: argparse.Namespace, named: str, config: str) -> None:
    rows = tuple(map(catalogue.from_option, told.harness))
    networks = tuple(map(settings.network, told.external))
    _as_root()
    named = os.path.abspath(named) if named else ""
    config, state = os.path.abspath(config), named or STATE
    check_private(config)
    check_private(state)
    os.makedirs(state, mode=0o755, exist_ok=True)
    memory.be_frugal()
    options = service.Options(config, state, told.backend, told.enforce, rows, networks, named)
    service.Service(options, _open, _log).run()


def _open(backend: str, told: Settings, pinned: bool) -> Source:
    source = open_source(backend, told, pinned=pinned)
    memory.give_back(collect=True)  # the load needed the types of the whole kernel, 20 MB
    return source


def _log(line: str, before: str = "guard monitor: ") -> None:
    try:
        sys.stderr.write(f"{before}{line}\n")
        sys.stderr.flush()
    except OSError:
        return  # nobody reads it any more
