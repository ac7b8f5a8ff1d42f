"""detect-secrets as a second opinion, where incidents are graded and nowhere else.

Its plugin classes are called directly: `scan_line` switches eager search on and changes global settings,
and its `secret_value` is often a mere prefix (Yelp/detect-secrets#858), so only the fact that a plugin
answered is taken.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

_LEAVE_OUT = frozenset(("Base64HighEntropyString", "HexHighEntropyString", "IPPublicDetector"))


@lru_cache(maxsize=1)
def _plugins() -> tuple[Any, ...] | None:
    try:
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
        from detect_secrets.settings import default_settings
    except ImportError:
        return None
    with default_settings():
        kinds: Any = get_mapping_from_secret_type_to_class().values()
        return tuple(kind() for kind in kinds if kind.__name__ not in _LEAVE_OUT)


def second_opinion(line: bytes) -> list[str] | None:
    """Return the types that detect-secrets sees in a line that already hit; None where it is not installed.

    Args:
        line: the line, cut to a few kilobytes: several plugins take quadratic time.
    """
    plugins = _plugins()
    if plugins is None:
        return None
    text = line[:2048].decode("utf-8", "replace")
    seen: set[str] = set()
    for plugin in plugins:
        if any(True for _ in plugin.analyze_line(filename="line", line=text)):
            seen.add(str(plugin.secret_type))
    return sorted(seen)


def read_baseline(path: str) -> frozenset[str]:
    """Read the SHA-1 digests of a detect-secrets baseline (`.secrets.baseline`).

    Raises:
        OSError: it cannot be read.
        ValueError: it is no baseline.
    """
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    return frozenset(str(entry["hashed_secret"]) for entries in data["results"].values() for entry in entries)


def in_baseline(value: bytes, baseline: frozenset[str]) -> bool:
    """Say whether a value is one that a baseline knows."""
    return hashlib.sha1(value, usedforsecurity=False).hexdigest() in baseline
