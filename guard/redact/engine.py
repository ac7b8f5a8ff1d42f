"""The prefilter: one pass that says where a confirmer has to look.

`hyperscan` runs all patterns at once at 1 to 2 GB/s. Where it has no wheel, where the CPU refuses it, and
for texts so small that loading a database costs more than it saves, the same patterns run one by one through
`re`, each only when its literal occurs at all. Both lead to the same spans: the result never depends on the
engine.

Every pattern ends where the confirmer anchors. Patterns are of fixed width or end in a separator that they
cannot contain: a vector matcher reports ends, and starts would cost a factor of four.
"""

from __future__ import annotations

import os
import re
import sys
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn, Protocol

SMALL: Final = 65536
"""Below this size, in bytes, the plain engine answers when no database is loaded yet."""


_REACH: Final = 512
"""How far behind a pattern's literals its tail may stand, in bytes (`commands.REACH`)."""

NUMBER_BITS: Final = 12
"""A hit is one integer: the offset of its end above these bits, the pattern's number in them."""


class Pattern(NamedTuple):
    """One pattern of the prefilter.

    `regex` must mean the same to Python and to hyperscan (no look-around). `literals` are lower-case bytes
    of which one must occur for the pattern to match at all; empty means always try. `fixed` patterns may
    overlap themselves. `tail` is what the pattern ends in where its beginning may lie far back: `re` looks
    for that alone, which gives more hits, and the confirmer asks for the rest.
    """

    regex: bytes
    literals: tuple[bytes, ...]
    fixed: bool
    nocase: bool
    tail: bytes = b""


class Engine(Protocol):
    """What finds hits: `end << NUMBER_BITS | pattern number`, ordered."""

    name: str

    def scan(self, data: bytes) -> list[int]:
        """Return every hit in `data`."""
        ...


class PlainEngine:
    """The prefilter over `re`, compiled lazily; 3 to 30 MB/s."""

    name = "re"

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns
        self._compiled: dict[int, re.Pattern[bytes]] = {}

    def scan(self, data: bytes) -> list[int]:
        """Return every hit in `data`, ordered by end."""
        hits: list[int] = []
        lowered = data.lower()
        for number, pattern in enumerate(self._patterns):
            if pattern.literals and not any(literal in lowered for literal in pattern.literals):
                continue
            compiled = self._compiled.get(number)
            if compiled is None:
                source = (
                    b"(?=(%s))" % (pattern.tail or pattern.regex) if pattern.fixed or pattern.tail else pattern.regex
                )
                compiled = re.compile(source, re.DOTALL | (re.IGNORECASE if pattern.nocase else 0))
                self._compiled[number] = compiled
            if pattern.tail:
                # A tail is short and frequent; a literal must stand before it, as near as a confirmer looks.
                for match in compiled.finditer(data):
                    end = match.end(1)
                    if any(lowered.rfind(literal, max(0, end - _REACH), end) >= 0 for literal in pattern.literals):
                        hits.append(end << NUMBER_BITS | number)
            elif pattern.fixed:
                hits.extend(match.end(1) << NUMBER_BITS | number for match in compiled.finditer(data))
            else:
                hits.extend(match.end() << NUMBER_BITS | number for match in compiled.finditer(data))
        hits.sort()
        return hits


class HyperscanEngine:
    """The prefilter over hyperscan (Vectorscan 5.4, PyPI `hyperscan`).

    Args:
        patterns: the table; the database is compiled in 80 ms, or loaded from `cache` in under one.
        cache: a directory only its owner can write, or None.

    Raises:
        ImportError: when there is no wheel for this machine.
    """

    name = "hyperscan"

    def __init__(self, patterns: Sequence[Pattern], cache: str | None = None) -> None:
        import hyperscan

        self._hyperscan: Any = hyperscan
        self._database = self._load(patterns, cache)

    def _load(self, patterns: Sequence[Pattern], cache: str | None) -> Any:  # noqa: ANN401 - hyperscan ships no types
        hyperscan = self._hyperscan
        path = _cache_path(patterns, cache, str(hyperscan.__version__))
        if path is not None:
            try:
                with open(path, "rb") as file:
                    stat = os.fstat(file.fileno())
                    # One that another user can write is read as if it were damaged.
                    trusted = stat.st_uid in (0, os.geteuid()) and not stat.st_mode & 0o022
                    database = hyperscan.loadb(file.read() if trusted else b"", hyperscan.HS_MODE_BLOCK)
                database.scratch = hyperscan.Scratch(database)
            except (OSError, hyperscan.HyperscanError):
                pass  # absent, foreign, damaged or of another version: compiled anew below
            else:
                return database
        if not hyperscan_runs():
            _refuse()
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        flags = [hyperscan.HS_FLAG_DOTALL | (hyperscan.HS_FLAG_CASELESS if p.nocase else 0) for p in patterns]
        database.compile(
            expressions=[p.regex for p in patterns],
            ids=list(range(len(patterns))),
            elements=len(patterns),
            flags=flags,
        )
        if path is not None:
            _store(path, hyperscan.dumpb(database))
        return database

    def scan(self, data: bytes) -> list[int]:
        """Return every hit in `data`, ordered by end."""
        # Packed: a hostile megabyte has half a million hits, and tuples would cost a hundred bytes each.
        hits = array("Q")
        append = hits.append

        def found(number: int, _start: int, end: int, _flags: int, _context: object) -> None:
            append(end << NUMBER_BITS | number)

        self._database.scan(data, match_event_handler=found)
        return sorted(hits)


def _refuse() -> NoReturn:
    raise ImportError("hyperscan does not run on this CPU")


def _cache_path(patterns: Sequence[Pattern], cache: str | None, version: str) -> str | None:
    if cache is None:
        return None
    import hashlib

    digest = hashlib.sha256(repr((patterns, version, _cpu_features())).encode()).hexdigest()[:32]
    return os.path.join(cache, f"rules-{digest}.hsdb")


def _cpu_features() -> str:
    """Return the CPU's feature line: a database is for one, and homes are shared between machines."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        return ""


def _store(path: str, database: bytes) -> None:
    """Keep a compiled database; a cache that cannot be written costs the compiling at each start."""
    import tempfile

    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        stat = os.stat(folder)
        if stat.st_uid != os.geteuid() or stat.st_mode & 0o022:
            return
        handle, temporary = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(database)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)  # a full home would get another one at each start
            raise
        # Each version of the rules leaves a megabyte behind; a shared home needs the last few.
        old = sorted((p for p in os.scandir(folder) if p.name.endswith(".hsdb")), key=lambda p: p.stat().st_mtime)
        for entry in old[:-4]:
            os.unlink(entry.path)
    except OSError:
        return


def cache_folder() -> str | None:
    """Return the user's own folder for compiled databases; None where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "guard") if os.path.isabs(base) else None


@lru_cache(maxsize=1)
def hyperscan_runs() -> bool:
    """Try hyperscan in a throw-away process: it has died of SIGILL on old CPUs (vectorscan#213)."""
    import subprocess

    program = (
        "import hyperscan as h;d=h.Database(mode=h.HS_MODE_BLOCK);"
        "d.compile(expressions=[b'a{3}b'],ids=[0],elements=1,flags=[0]);d.scan(b'xaaab'*99,match_event_handler=lambda*a:None)"
    )
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=20, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def best_engine(patterns: Sequence[Pattern], make: Callable[[], Engine] | None = None) -> Engine:
    """Return hyperscan where it loads, else the plain engine.

    Args:
        patterns: the table.
        make: what makes the fast engine; for tests.
    """
    try:
        return make() if make else HyperscanEngine(patterns, cache_folder())
    except ImportError:
        return PlainEngine(patterns)
