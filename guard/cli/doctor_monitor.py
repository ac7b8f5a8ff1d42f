"""`guard doctor --monitor` and `--btf FILE`: what the monitor can see and refuse here, and on another kernel."""

from __future__ import annotations

import json
import os
import textwrap
from dataclasses import asdict

from guard.errors import EXIT_FOUND, MonitorError
from guard.monitor import reach
from guard.monitor.source import Settings, Status

_WIDTH = 79


def here(as_json: bool) -> tuple[str, int]:
    """Load the best backend, tell of it, and take it off again.

    Returns:
        the text, and the exit code: 1 where only /proc is left.

    Raises:
        MonitorError: not root, or nothing loads.
    """
    from guard.monitor.choose import open_source

    if os.geteuid() != 0:
        raise MonitorError("only root can load the monitor's programs", "run `guard doctor --monitor` as root")
    source = open_source("auto", Settings(), replace_pins=False)
    status = source.status
    source.close()
    code = EXIT_FOUND if status.backend == "poll" else 0
    if as_json:
        value = {
            "backend": status.backend, "programs": status.programs, "skipped": dict(status.skipped),
            "refused": dict(status.refused), "rules": {rule: asdict(can) for rule, can in status.can.items()},
            "costs": dict(reach.COSTS.get(status.backend, {})),
        }  # fmt: skip
        return json.dumps(value) + "\n", code
    return _text(status), code


def _text(status: Status) -> str:
    lines = [f"monitor: backend {status.backend}, {len(status.programs)} programs, {status.seconds:.2f} s to load"]
    lines += [_wrapped(f"not {name}: {why}", "  ") for name, why in status.refused.items()]
    lines += [_wrapped(f"without {name}: {why}", "  ") for name, why in status.skipped.items()]
    lines.append(f"{'rule':20}{'seen':8}can be")
    for rule, can in status.can.items():
        lines.append(f"{rule:20}{can.see:8}{', '.join(can.act) or '-'}")
        lines += [_wrapped(miss, "    ") for miss in can.misses]
    costs = reach.COSTS.get(status.backend, {})
    if costs:
        lines.append("what a process outside pays while an agent works on the node (bench/monitor.py):")
        lines += [f"    {work:24}{cost}" for work, cost in costs.items()]
    return "\n".join(lines) + "\n"


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")


def elsewhere(path: str, as_json: bool) -> tuple[str, int]:
    """Tell what another kernel would load, from its BTF.

    Returns:
        the text, and the exit code: 1 where none of the compiled backends would.

    Raises:
        MonitorError: the file is no kernel's BTF.
    """
    from guard.monitor import elsewhere

    rows = elsewhere.outlook(path)
    code = 0 if any(row.loads for row in rows) else EXIT_FOUND
    if as_json:
        value = {"btf": path, "backends": [{**asdict(row), "missing": dict(row.missing)} for row in rows],
                 "cannot_tell": elsewhere.CANNOT_TELL}  # fmt: skip
        return json.dumps(value) + "\n", code
    return elsewhere.as_text(path, rows), code
