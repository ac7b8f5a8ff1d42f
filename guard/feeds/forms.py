"""The forms in which a feed may send; each is imported where a feed asks for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from guard.events.model import Event
from guard.feeds.sink import FeedError


def renderer(form: str) -> Callable[[bytes], bytes]:
    """Return what turns an event's line into a body of that form.

    Args:
        form: one of `options.FORMATS`.

    Raises:
        FeedError: this guard does not have it.
    """
    if form == "event":
        return _as_it_is
    try:
        render = importlib.import_module(f"guard.events.forms.{form}").render
    except ImportError as error:
        what = f"the format {form} cannot be loaded: {error}"
        raise FeedError(what, "install guard with its dependencies") from error

    def made(line: bytes) -> bytes:
        return bytes(render(Event.from_json(line)))

    return made


def _as_it_is(line: bytes) -> bytes:
    return line
