"""Which backend: the best that really loads here. Nothing is decided by a version or a configuration of the kernel."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from guard.errors import MonitorError
from guard.monitor import pins
from guard.monitor.core import CoreSource
from guard.monitor.polling import PollSource
from guard.monitor.source import BACKENDS, Settings, Source

_Opener = Callable[[Settings, bool, Mapping[str, str]], Source]


def open_source(backend: str, settings: Settings, pinned: bool = False, *, replace_pins: bool = True) -> Source:
    """Load a backend.

    Args:
        backend: one of `BACKENDS`, or `auto`: the first that loads.
        settings: what it is told.
        pinned: what is enforced stays when the process is gone.
        replace_pins: take away what an earlier start pinned, once this one is attached; not for a mere trial.

    Raises:
        MonitorError: the backend that was named does not load, or none does; why, for each.
    """
    refused: dict[str, str] = {}
    for name in BACKENDS if backend == "auto" else (backend,):
        try:
            source = _OPENERS[name](settings, pinned, refused)
        except MonitorError as error:
            refused[name] = error.what
            if backend != "auto":
                raise
            continue
        if replace_pins:
            pins.keep_only(source.generation if isinstance(source, CoreSource) else "")
        return source
    told = "; ".join(f"{name}: {why}" for name, why in refused.items())
    raise MonitorError(f"no backend loads here: {told}", "run it as root")


def _core(name: str) -> _Opener:
    def opener(settings: Settings, pinned: bool, refused: Mapping[str, str]) -> Source:
        if not (pinned and settings.enforce):
            return CoreSource(name, settings, refused=refused)
        try:
            source = CoreSource(name, settings, pins.DIRECTORY, refused)
        except MonitorError:
            # Maps of another version cannot be taken over: its labels and marks are lost, its links stay until the
            # new ones are there.
            for kept in pins.MAPS:
                with suppress(OSError):
                    os.unlink(f"{pins.DIRECTORY}/{kept}")
            source = CoreSource(name, settings, pins.DIRECTORY, refused)
        pins.keep_only(source.generation)  # before the count: the earlier start's programs change labels, too
        source.recount()
        return source

    return opener


def _plain(make: Callable[[Settings, Mapping[str, str]], Source]) -> _Opener:
    def opener(settings: Settings, pinned: bool, refused: Mapping[str, str]) -> Source:
        return make(settings, refused)

    return opener


def _bcc(settings: Settings, refused: Mapping[str, str]) -> Source:
    from guard.monitor.bcc_backend import BccSource

    return BccSource(settings, refused)


_OPENERS: Mapping[str, _Opener] = {
    **{name: _core(name) for name in ("lsm", "fmod", "tracepoint")},
    "bcc": _plain(_bcc),
    "poll": _plain(PollSource),
}
