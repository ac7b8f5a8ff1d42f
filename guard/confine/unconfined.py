"""Starting a command without any limit: `--audit`, or a site's `observe` and `off`."""

import sys

from guard.confine import default_signals, state, wait
from guard.confine.launch import CONTROLS
from guard.errors import ControlError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.confine.launch import Launch


def run(launch: "Launch", program: str) -> int:
    """Audit, or root's observe and off: nothing is enforced, and nobody can overlook it."""
    mode = "audit" if launch.options.audit else launch.plan["mode"]
    statuses = {control: (mode, ["nothing is enforced"]) for control in CONTROLS}
    sys.stderr.write(f"guard: {mode.upper()}: nothing is enforced in this session\n")
    if launch.options.required:
        raise ControlError(f"--require {','.join(launch.options.required)}: nothing is enforced in mode {mode}")
    launch.record_start(statuses, "high" if launch.options.audit else "medium")
    default_signals()
    if not launch.options.audit:
        return launch.execute(program, launch.environment)
    code = wait.run(program, launch.options.command, launch.environment)
    state.forget_plans(launch.options.state)  # what ran unconfined may have written there
    launch.record("session-stop", "info", "observed", f"audited session ended, exit {code}", {"exit": code})
    return wait.end_as(code)
