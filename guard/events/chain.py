"""The chain over digests: what was stored is neither changed, added nor taken away without being seen.

    commitment  = SHA-256(salt · personal)          one salt a row, forgotten when the row's personal part is erased
    digest      = SHA-256(public · commitment)
    chain       = SHA-256(chain before · digest)

An erased row keeps its commitment instead of the salt, a dropped one its digest: the chain verifies over both. Who
can write the file can also write a new chain; therefore heartbeats carry its head off the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

SALT: Final = 16
START: Final = bytes(32)
"""What the first row of a spool is chained to."""


def commit(salt: bytes, personal: bytes) -> bytes:
    """The commitment to a row's personal part."""
    return sha256(salt + personal).digest()


def commitment(seal: bytes, personal: bytes) -> bytes:
    """The commitment of a stored row: made from its salt, or kept because the personal part was erased."""
    return commit(seal, personal) if len(seal) == SALT else seal


def digest(public: bytes, committed: bytes) -> bytes:
    """A row's digest; the commitment has a fixed length, so that nothing moves from one part into the other."""
    return sha256(public + committed).digest()


def extend(before: bytes, digest: bytes) -> bytes:
    """The chain after a row of this digest."""
    return sha256(before + digest).digest()


def link(before: bytes, public: bytes, committed: bytes) -> bytes:
    """The chain after a row."""
    return sha256(before + sha256(public + committed).digest()).digest()


@dataclass(frozen=True)
class Verdict:
    """What a check of the chain found.

    Args:
        rows: checked.
        erased: of them without their personal part.
        dropped: of them displaced by alerts; each was counted as lost.
        broken: the position of the first row that does not fit or is not there; 0 for none.
        reason: what does not fit.
        head: the chain after the last row, hex.
    """

    rows: int
    erased: int
    dropped: int
    broken: int
    reason: str
    head: str


def verify(
    rows: Iterable[tuple[int, bytes | None, bytes | None, bytes, bytes | None]],
    anchor: bytes,
    first: int,
    last: int,
    step: Callable[[int], object],
) -> Verdict:
    """Check rows against the chain.

    Args:
        rows: (position, public, personal, seal, chain), in order; of a dropped row its digest as seal alone.
        anchor: the chain before the first of them.
        first, last: the positions that the first and the last of them have.
        step: told each position.
    """
    count = erased = dropped = 0
    for position, public, personal, seal, stored in rows:
        if position != first + count:
            return Verdict(count, erased, dropped, first + count, "it is missing", anchor.hex())
        count += 1
        if public is None and stored is None:
            dropped += 1
            inner = seal
        elif isinstance(public, bytes) and isinstance(personal, bytes):
            erased += len(seal) != SALT
            inner = digest(public, commitment(seal, personal))
        else:
            inner = b""  # no type that we store
        anchor = sha256(anchor + inner).digest()
        if stored is not None and anchor != stored:
            return Verdict(count, erased, dropped, position, "its content is not what was stored", anchor.hex())
        step(position)
    missing = first + count <= last
    return Verdict(
        count, erased, dropped, first + count if missing else 0, "it is missing" if missing else "", anchor.hex()
    )
