"""Every case of the kernel's side, and which of them a backend promises."""

from collections.abc import Sequence

from . import flow, meaning, modes, raw, sockets
from .case import Case

CASES = (*modes.CASES, *sockets.CASES, *flow.CASES, *raw.CASES, *meaning.CASES)

BCC_MISSES = {
    "acl-other", "acl-directory", "acl-raw", "acl-raw-descriptor", "acl-default", "acl-inherited-file",
    "acl-inherited-directory", "ring-open", "ring-mkdir", "ring-acl", "int80-chmod", "int80-creat",
    "umask-unix-socket", "chmod-sticky-file", "bind-ring", "bind-int80",
}  # fmt: skip
"""What `doctor` says that the bcc backend does not see."""


def promised(backend: str) -> Sequence[Case]:
    """The cases that a backend is held to."""
    if backend == "bcc":
        return [case for case in (*modes.CASES, *sockets.CASES) if case.name not in BCC_MISSES]
    return CASES
