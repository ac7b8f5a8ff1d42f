"""What the probe found, put as the `Host` that plans are compiled for and statuses are judged by."""

from __future__ import annotations

import os

from guard.kernel.probe import Kernel, probe
from guard.policy.status import Host

_NEEDED = ("landlock.layer", "landlock.files", "seccomp.filter", "namespace.mask")


def discover(kernel: Kernel | None = None) -> Host:
    """Find out by trying what this host enforces.

    Args:
        kernel: what was probed already; None: probe what is needed, four forked children.

    Returns:
        The host; a Landlock that cannot take one more layer, or takes rules and does not enforce them, is
        none, whatever ABI it tells.
    """
    found = kernel or probe(_NEEDED)
    why = [
        found.abilities[name].cause
        for name in ("landlock.abi", "landlock.layer", "landlock.files")
        if name in found.abilities and not found.works(name)
    ]
    return Host(
        machine=os.uname().machine,
        abi=0 if why else found.abi,
        seccomp=found.works("seccomp.filter"),
        mask=found.works("namespace.mask"),
        landlock_reason=why[0] if why else "",
        seccomp_reason=found.abilities["seccomp.filter"].cause,
        mask_reason=found.abilities["namespace.mask"].cause,
    )
