"""Every case of the kernel's side."""

from . import flow, modes, raw, sockets

CASES = (*modes.CASES, *sockets.CASES, *flow.CASES, *raw.CASES)
