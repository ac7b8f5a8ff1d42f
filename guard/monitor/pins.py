"""What outlives the daemon: links and maps pinned in bpffs, one directory a start.

Enforcement that is to survive a restart is held by its pins. A new start pins its own first and then takes the older
ones away, so that there is no moment without; the labels stand in one map that both use. Removing the directory
removes all of it, without a daemon.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from guard.errors import MonitorError
from guard.monitor.facts import boot_time

BPFFS = "/sys/fs/bpf"
DIRECTORY = f"{BPFFS}/guard"
MAPS = ("procs", "marks", "authors")
"""Maps that a new start takes over: its trees, and what was marked."""
_GENERATION = "links-"


def begin(directory: str = DIRECTORY) -> str:
    """Make a directory for the links of this start.

    Raises:
        MonitorError: bpffs is not mounted.
    """
    made = os.path.join(directory, f"{_GENERATION}{boot_time()}")
    try:
        os.makedirs(made, mode=0o700)
    except OSError as error:
        raise MonitorError(f"{made}: {error.strerror}", f"mount bpffs: mount -t bpf bpf {BPFFS}") from None
    return made


def generations(directory: str = DIRECTORY) -> Iterator[str]:
    """The directories of links, of every start that left any."""
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in sorted(names):
        if name.startswith(_GENERATION):
            yield os.path.join(directory, name)


def held(generation: str) -> int:
    """How many links a start has pinned."""
    try:
        return len(os.listdir(generation))
    except OSError:
        return 0


def keep_only(generation: str, directory: str = DIRECTORY) -> None:
    """Take away what other starts pinned; with generation "", everything, maps too."""
    others = [each for each in generations(directory) if each != generation]
    if not others and (generation or not os.path.exists(directory)):
        return
    import shutil  # half a megabyte, for what is seldom there

    for other in others:
        shutil.rmtree(other, ignore_errors=True)
    if not generation:
        shutil.rmtree(directory, ignore_errors=True)
