"""Every act, and the program that tries them."""

from __future__ import annotations

import json
import os
import signal
import sys

from . import CRASHED, KILLED, UNTRIED, Act, Stage, Untried
from .files import FILES
from .modes import METADATA, SETUID, WORLD
from .network import BIND, CONNECT, UNIX
from .processes import LIMITS, PIPE, PROCESSES
from .surface import SURFACE

ACTS: tuple[Act, ...] = (
    *FILES,
    *METADATA,
    *WORLD,
    *SETUID,
    *BIND,
    *CONNECT,
    *UNIX,
    *PIPE,
    *PROCESSES,
    *SURFACE,
    *LIMITS,
)
"""Every act, in the order of the controls."""


def try_one(act: Act, stage: Stage) -> int:
    """Do one act in a child: 0 done, an errno, `UNTRIED`, `CRASHED` or `KILLED`."""
    child = os.fork()
    if child == 0:
        _child(act, stage)
    _, status = os.waitpid(child, 0)
    return KILLED if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def _child(act: Act, stage: Stage) -> None:
    code = CRASHED
    try:
        signal.alarm(10)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        act.run(stage)
        code = 0
    except Untried:
        code = UNTRIED
    except OSError as error:
        code = error.errno or CRASHED
    finally:
        os._exit(code)


def main(argument: str) -> None:
    """Try the acts of the controls that the stage names; one JSON object on standard output."""
    stage: Stage = json.loads(argument)
    controls = stage["controls"]
    if not isinstance(controls, list):
        raise TypeError("controls")
    results = {act.name: try_one(act, stage) for act in ACTS if act.control in controls}
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
