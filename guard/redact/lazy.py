"""Regular expressions that are compiled when they are first used.

The tables hold some two hundred of them; a hook that asks about one command needs five, and has 80 ms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator


class Lazy:
    """A pattern over bytes with the methods of `re.Pattern` that the rules use."""

    __slots__ = ("_compiled", "_flags", "_source", "finditer", "fullmatch", "match", "search")

    match: Callable[..., re.Match[bytes] | None]
    search: Callable[..., re.Match[bytes] | None]
    fullmatch: Callable[..., re.Match[bytes] | None]
    finditer: Callable[..., Iterator[re.Match[bytes]]]

    def __init__(self, source: bytes | Callable[[], bytes], flags: int = 0) -> None:
        self._source = source
        self._flags = flags

    def __getattr__(self, name: str) -> object:
        # Reached once: compiling fills the slots, and a filled slot is found without this.
        if name not in ("match", "search", "fullmatch", "finditer", "_compiled"):
            raise AttributeError(name)
        source = self._source if isinstance(self._source, bytes) else self._source()
        compiled = re.compile(source, self._flags)
        self._compiled = compiled
        self.match, self.search, self.fullmatch, self.finditer = (
            compiled.match,
            compiled.search,
            compiled.fullmatch,
            compiled.finditer,
        )
        return getattr(self, name)

    def sub(self, repl: bytes | Callable[[re.Match[bytes]], bytes], data: bytes) -> bytes:
        """Replace as `re.Pattern.sub`."""
        out: bytes = self._compiled.sub(repl, data)
        return out

    def findall(self, data: bytes) -> list[bytes]:
        """Find as `re.Pattern.findall`."""
        out: list[bytes] = self._compiled.findall(data)
        return out

    def split(self, data: bytes) -> list[bytes]:
        """Split as `re.Pattern.split`."""
        out: list[bytes] = self._compiled.split(data)
        return out
