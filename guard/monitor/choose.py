"""Which backend: the best that really loads here. Nothing is decided by a version or a configuration of the kernel."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from guard.errors import MonitorError
from guard.monitor.core import CoreSource
from guard.monitor.source import BACKENDS, Settings, Source

PINS = "/sys/fs/bpf/guard"
"""Where links and maps that outlive the daemon stand."""


def open_source(backend: str, settings: Settings, *, pinned: bool = False) -> Source:
    """Load a backend.

    Args:
        backend: one of `BACKENDS`, or `auto`: the first that loads.
        settings: what it is told.
        pinned: what is enforced stays when the process is gone.

    Raises:
        MonitorError: the backend that was named does not load, or none does; why, for each.
    """
    refused: dict[str, str] = {}
    for name in BACKENDS if backend == "auto" else (backend,):
        try:
            return _OPENERS[name](settings, pinned, refused)
        except MonitorError as error:
            refused[name] = error.what
            if backend != "auto":
                raise
    told = "; ".join(f"{name}: {why}" for name, why in refused.items())
    raise MonitorError(f"no backend loads here: {told}", "run it as root")


def _core(name: str) -> Callable[[Settings, bool, Mapping[str, str]], Source]:
    def opener(settings: Settings, pinned: bool, refused: Mapping[str, str]) -> Source:
        pins = PINS if pinned and settings.enforce else ""
        if pins:
            os.makedirs(pins, mode=0o700, exist_ok=True)
        return CoreSource(name, settings, pins, refused)

    return opener


_OPENERS: Mapping[str, Callable[[Settings, bool, Mapping[str, str]], Source]] = {
    **{name: _core(name) for name in ("lsm", "fmod", "tracepoint")},
}
