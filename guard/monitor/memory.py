"""How little a resident monitor holds: what was needed once is given back to the node, not kept for another time."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Final

_TRIM_THRESHOLD: Final = (-1, 128 << 10)
_MMAP_THRESHOLD: Final = (-3, 128 << 10)
_ARENA_MAX: Final = (-8, 1)
"""Parameters of mallopt(3), glibc's numbers, and the values that they have before glibc adapts them by itself: each
large piece that is freed raises both thresholds for good, and each thread gets a heap of its own."""


_FIPS: Final = "/proc/sys/crypto/fips_enabled"


def be_frugal() -> None:
    """Have the allocator keep nothing large in store, and Python compute its digests itself.

    Of another C library than glibc nothing is asked. To be called before anything computes a digest.
    """
    _spare_openssl()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in (_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX):
            mallopt(parameter, value)


def give_back(*, collect: bool = False) -> None:
    """Return freed memory to the kernel: a millisecond.

    Args:
        collect: look for cycles first: tens of milliseconds.
    """
    if collect:
        gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _spare_openssl() -> None:
    """Leave OpenSSL's library, four megabytes, out of this process: SHA-256 and HMAC are Python's own then.

    Not where the node is to use validated cryptography alone, nor where this Python cannot do without (RHEL's).
    """
    try:
        with open(_FIPS, "rb") as file:
            if file.read(1) == b"1":
                return
    except OSError:
        pass  # a kernel without the switch
    if "_hashlib" in sys.modules:
        return
    modules: dict[str, object] = sys.modules  # type: ignore[assignment]
    modules["_hashlib"] = None  # what is None there cannot be imported (The import system, 5.3.1)
    try:
        import hashlib  # noqa: F401 - whether it can be
        import hmac  # noqa: F401
    except (ImportError, AttributeError):
        for name in ("_hashlib", "hashlib", "hmac"):
            sys.modules.pop(name, None)
