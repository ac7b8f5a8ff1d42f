"""A start for a container without Python: a plan's rules with the container's paths filled in, for guard-exec alone.

What is inside the container is not known here, so nothing is asked: a place that is not there is passed over, and a
denied place is kept out by granting what lies beside it, whether or not it exists. Without a supervisor, a mask and
events: what these would have held is absent, and `lacks` says so.
"""

from __future__ import annotations

from typing import Any

from guard.confine import Denied, covers, places, written
from guard.kernel import landlock

Plan = dict[str, Any]


def portable(plan: Plan, project: str, home: str) -> bytes:
    """Return the file that `guard-exec --start` takes (guard/confine/written.py describes its form).

    Args:
        plan: as `guard.policy.plan.compile` makes it, of a policy that is enforced.
        project, home: what `{project}` and `{home}` mean in the container, absolute.

    Raises:
        ValueError: the plan has no file, network or scope rules to enforce there, or the form cannot carry them.
    """
    steps = written.Steps()
    steps.add("P")
    steps.add("n", plan["umask"], plan["restrict_flags"], written.LONGEST_NAME)
    steps.add("N", plan["policy"])
    handled = plan["handled_fs"], plan["handled_net"], plan["scoped"]
    if plan["mode"] != "enforce" or not plan["abi"] or not any(handled):
        raise ValueError("the plan enforces nothing there")
    steps.add("t", "/tmp/guard-exec")  # noqa: S108 - a private one is made inside
    steps.add("c", landlock.attribute_size(plan["abi"]), *handled)
    if plan["fs"]:
        variables: dict[str, tuple[str, ...]] = {"project": (project,), "home": (home,), "tmp": ("{tmp}",)}
        denied: Denied = {}
        for pattern in plan["deny"]:
            for path in places.expand(pattern, variables):
                places.plant(denied, path)
        for pattern, access in plan["grants"]:
            for path in places.expand(pattern, variables):
                _grant(steps, path, access, denied)
    for port, access in plan["ports"]:
        steps.add("p", port, access)
    steps.add("d", *plan["env_drop"])
    steps.add("D", *plan["env_keep"])
    steps.add("v", "TMPDIR=", "tmp")
    steps.add("v", "TMUX_TMPDIR=", "tmp")
    steps.add("v", f"GUARD_POLICY={plan['policy']}")
    for number, value in plan["rlimits"]:
        steps.add("l", number, value)
    steps.add("b", plan["seccomp_flags"], plan["bpf"])
    return steps.content()


def lacks(plan: Plan) -> list[str]:
    """Return what the policy asks for and such a start cannot hold, in words: (control: what is missing)."""
    found = []
    for control in plan["asked"]:
        level, missing = plan["status"].get(control, ("absent", []))
        if level != "enforced":
            found.append(f"{control}: {level}: {'; '.join(missing) or 'not on this host'}")
    if plan["protect"]:
        found.append("files: protected places inside the project can be written: a container start has no mask")
    return found


def _grant(steps: written.Steps, path: str, access: int, denied: Denied) -> None:
    parent, _, prefix = path.rpartition("/")
    if path.startswith("/dev/") and path.endswith("*"):
        steps.add("s", parent, access, prefix[:-1])
        return
    path = path.rstrip("/") or "/"
    if covers(denied, path):
        return
    below = places.subtree(denied, path)
    if below:
        _siblings(steps, path, access, below)
    else:
        steps.add("r", path, access)


def _siblings(steps: written.Steps, path: str, access: int, denied: Denied) -> None:
    steps.add("s", path, access, "", *denied)
    for name, below in denied.items():
        if "" not in below:
            _siblings(steps, f"{path.rstrip('/')}/{name}", access, below)
