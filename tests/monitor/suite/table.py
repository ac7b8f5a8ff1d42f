"""Every case of the suite."""

from . import flow, meaning, modes, raw, sockets

CASES = (*modes.CASES, *sockets.CASES, *flow.CASES, *raw.CASES, *meaning.CASES)
