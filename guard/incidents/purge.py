"""Erasing an account's records everywhere guard can reach, what stops that, and which nodes have not done it yet."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import orjson

from guard.errors import StateError
from guard.incidents.ledger import Ledger
from guard.incidents.privacy import Keeper

if TYPE_CHECKING:
    from guard.fleet.store import Store

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
"""A host's name (RFC 1123 2.1): what is no such name is given to no program that runs commands on hosts."""

def hold(ledger: Ledger, user: str, reason: str, who: str) -> None:
    """Forbid that an account's records are erased, until it is released."""
    ledger.database.execute("INSERT OR REPLACE INTO hold VALUES (?, ?, ?, ?)", (user, reason, who, ledger.now()))


def release(ledger: Ledger, user: str) -> bool:
    """Take a hold away; False when there was none."""
    return ledger.database.execute("DELETE FROM hold WHERE user = ?", (user,)).rowcount == 1


def held(ledger: Ledger, user: str) -> str:
    """Return why an account's records must stay; "" when they need not."""
    row = ledger.database.execute("SELECT reason, who FROM hold WHERE user = ?", (user,)).fetchone()
    return f"{row[0]} ({row[1]})" if row else ""


def on_hold(user: str, why: str) -> StateError:
    """Return what is said where a hold stops a purge."""
    return StateError(f"a legal hold is on {user}: {why}", "whoever placed it releases it: guard privacy release")


def purge(ledger: Ledger, keepers: list[Keeper], user: str, uid: int, before: int) -> dict[str, int]:
    """Erase an account's records everywhere guard can reach.

    Args:
        ledger: open; a hold in it stops everything.
        keepers: the places.
        user, uid: the account.
        before: µs since 1970; what happened later stays.

    Returns:
        Place → records erased.

    Raises:
        StateError: a legal hold is on the account; nothing was erased.
    """
    why = held(ledger, user)
    if why:
        raise on_hold(user, why)
    return {keeper.what: keeper.erase(user, uid, before) for keeper in keepers}


def receipt(user: str) -> tuple[str, str]:
    """Return (salt, digest) by which a purge can be proved to who knows the name, and tells nobody else."""
    salt = secrets.token_hex(16)
    return salt, _digest(user, salt)


def is_receipt(detail: object, user: str) -> bool:
    """Say whether an event's detail is the record of an act on this account's records."""
    if not isinstance(detail, dict):
        return False
    return bool(detail.get("account") == _digest(user, str(detail.get("salt"))))


def _digest(user: str, salt: str) -> str:
    return hashlib.sha256(f"{salt}:{user}".encode("utf-8", "surrogateescape")).hexdigest()


def unpurged(ledger: Ledger, store: Store, user: str, since: int) -> list[str]:
    """Return the nodes that have not told that they erased an account's records.

    Args:
        ledger: with all folded that the store has.
        store: the site's, which knows the nodes and has their records.
        user: the account.
        since: µs since 1970; an older record counts for nothing.
    """
    told = ledger.database.execute(
        "SELECT id, host FROM change WHERE rule = 'privacy-purged' AND time >= ?", (since,)
    ).fetchall()
    done = set()
    for id_, host in told:
        line = store.line(id_, host)
        if line is not None and is_receipt(orjson.loads(line).get("detail"), user):
            done.add(host)
    return [node.host for node in store.nodes() if node.host not in done and _NAME.fullmatch(node.host)]


def until_now(clock: Callable[[], float] = time.time) -> int:
    """Return a moment after everything that is stored, µs since 1970."""
    return int(clock() * 1_000_000) + 86_400_000_000
