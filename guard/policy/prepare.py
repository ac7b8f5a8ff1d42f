"""Making one plan for `guard run`, in a process of its own: marshal in, plan bytes out.

The launcher reads no TOML and imports no third-party package; it asks this module when no fresh plan
is at hand. Everything a plan depends on besides files is in the request, and the plan keeps it.
"""

import grp
import marshal
import pwd
import sys
import time
from dataclasses import replace
from hashlib import sha256
from typing import Any

from guard.errors import EXIT_REFUSED, GuardError
from guard.policy import plan
from guard.policy.assign import CONFIG_DIR, LAST_GOOD, Config, Request, resolve
from guard.policy.host import discover


def prepare(request: tuple[Any, ...]) -> bytes:
    """Compile the plan for one start.

    Args:
        request: as `guard.confine.launch` makes it: policy, harness, project, home, uid, groups, config
            directory, state directory, Landlock ABI and errno, machine, host name, whether for --audit.

    Returns:
        The bytes of a plan file, and behind them the policy's text.

    Raises:
        GuardError: the policy cannot be used, or the plan not compiled.
    """
    policy, harness, project, home, uid, groups, config_dir, state_dir, *_, host, audit = request
    since = time.time()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = ""
    names = []
    for gid in groups:
        try:
            names.append(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue
    config = Config(
        config_dir,
        user_config_dir=home + "/.config/guard" if home else None,
        last_good_dir=LAST_GOOD if config_dir == CONFIG_DIR else state_dir + "/last-good",
    )
    effective = resolve(
        Request(
            user=user,
            uid=uid,
            groups=tuple(names),
            host=host,
            harness=harness,
            policy=policy or None,
            project_dir=project or None,
            use_project_layer=bool(project),
            now=since,
        ),
        config,
    )
    if audit:
        # Nothing will be enforced, and nothing that enforcing needs may be missed.
        effective = replace(effective, mode="observe")
    compiled = plan.compile(effective, discover(), since)
    compiled["alerts"] = list(effective.alerts)
    compiled["plan_digest"] = sha256(plan.dumps(compiled)).hexdigest()
    compiled["request"] = request
    return plan.dumps(compiled) + effective.text.encode("utf-8", "replace")


def main() -> int:
    """Read a request from stdin, write the plan to stdout; 125 and one sentence on stderr without one."""
    try:
        content = prepare(marshal.loads(sys.stdin.buffer.read()))  # noqa: S302 - the launcher's own words
    except (GuardError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_REFUSED
    sys.stdout.buffer.write(content)
    return 0
