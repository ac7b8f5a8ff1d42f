"""Fingerprints: HMAC-SHA256 of the canonical secret under the site's key, or the user's own.

The site's key is made once (`guard key init`), installed on every node, readable by root alone. Without it
a user's own key serves, and what it makes is marked local: only fingerprints of one `key_id` may be compared.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import time
from contextlib import suppress
from typing import Final, NamedTuple

from guard.errors import StateError, UsageError
from guard.redact import words
from guard.redact.site import config_dir
from guard.redact.spans import Span

KEY_BYTES: Final = 32
_HEADER: Final = "guard-fingerprint-key 1"
_LOW_ENTROPY: Final = frozenset(
    ("password", "url-password", "basic-auth", "unscanned", "cookie", "signature", "crypt-hash")
)
LOW_BITS: Final = 64
"""Below so many bits a fingerprint could be guessed, and none is made."""


class Key(NamedTuple):
    """A key with its public id, `site-…` or `local-…`; `until` ends the overlap of a rotated one."""

    key_id: str
    secret: bytes
    until: float = 0.0

    def of(self, value: bytes) -> str:
        """Return the fingerprint of a canonical secret as 64 hex digits."""
        return hmac.digest(self.secret, value, "sha256").hex()


def bits(value: bytes) -> float:
    """Estimate how many bits a guesser must find; what reads like words counts little."""
    lower, upper = value.lower(), value.upper()
    hexadecimal = not value.translate(None, b"0123456789abcdefABCDEF")
    alphabet = 10 if words.digits_in(value) else 0
    alphabet += 0 if value == upper else 6 if hexadecimal else 26
    alphabet += 0 if value == lower else 6 if hexadecimal else 26
    alphabet += 0 if value.isalnum() else 8
    if alphabet < 2:
        return 0.0
    free = len(value) * (1 - words.wordiness(value) * 0.8)
    return free * min(alphabet.bit_length() - 0.5, max(0.5, words.entropy(value) + 1))


def fingerprinted(span: Span) -> bool:
    """Say whether a sighting gets a fingerprint: whole, of a kind that cannot be guessed, dense enough."""
    if span.partial or span.kind in _LOW_ENTROPY or not span.value:
        return False
    if span.named and len(span.value) >= 32:
        return True  # a format's own body: the rules have seen that it is dense
    if not span.named and not words.looks_random(span.value, 16):
        return False
    return bits(span.value) >= LOW_BITS


# --- where keys lie
# --------------------------------------------------------------------------------------------------


def state_dir() -> str:
    """Return the state directory of who runs this: root's, or the user's own, on the node as `guard run`'s is.

    It is granted in no plan, so a session cannot read the key in it, and the events service adopts what is filed there.
    """
    given = os.environ.get("GUARD_STATE_DIR")
    if given:
        return given
    if os.geteuid() == 0:
        return "/var/lib/guard"
    return f"/var/tmp/guard-{os.geteuid()}"  # noqa: S108 - `own_folder` asks whose it is


def own_folder(path: str) -> str:
    """Make a directory of this user's alone, or check the one that is there; return it.

    Raises:
        StateError: somebody else was there first, or others may write in it.
        OSError: it cannot be made.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise StateError(f"{path} is not this user's alone", "have its owner remove it, or name another with --state")
    return path


def site_path() -> str:
    """Return where the site's key is installed."""
    return os.path.join(config_dir(), "fingerprint.key")


def user_path(state: str = "") -> str:
    """Return where a user's own key lies, in the state directory that is named or the usual one."""
    return os.path.join(state or state_dir(), f"fingerprint-{os.geteuid()}.key")


def key_id(secret: bytes, scope: str) -> str:
    """Return a key's public name: twelve digits that say nothing about it."""
    return f"{scope}-{hmac.digest(secret, b'guard key id', 'sha256').hex()[:12]}"


def parse(text: str, scope: str) -> list[Key]:
    """Read a key file: a header, then one key a line, old ones with the end of their overlap.

    Raises:
        StateError: the file is none.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    keys: list[Key] = []
    if lines and lines[0] == _HEADER:
        for line in lines[1:]:
            parts = line.split()
            try:
                secret = bytes.fromhex(parts[0])
                until = float(parts[1]) if len(parts) > 1 else 0.0
            except ValueError:
                break
            if len(secret) != KEY_BYTES:
                break
            keys.append(Key(key_id(secret, scope), secret, until))
    if not keys:
        raise StateError(
            "this is no fingerprint key",
            "make one with `guard key init` on one node and install it with `guard key install FILE`",
        )
    return keys


def dump(keys: list[Key]) -> str:
    """Write keys as `parse` reads them."""
    return (
        "\n".join([_HEADER, *(f"{k.secret.hex()} {k.until:.0f}" if k.until else k.secret.hex() for k in keys)]) + "\n"
    )


def load(path: str, scope: str, now: float | None = None) -> list[Key]:
    """Load a key file: the current key first, then those whose overlap has not ended.

    Raises:
        OSError: there is none, or it may not be read.
        StateError: it is damaged, or others may read or write it.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, encoding="ascii", errors="replace") as file:
        info = os.fstat(file.fileno())
        if info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o077 or not stat.S_ISREG(info.st_mode):
            raise StateError(
                f"{path} can be read or written by others",
                "chmod 600 it, and rotate the key: it may be known",
            )
        keys = parse(file.read(65536), scope)
    clock = time.time() if now is None else now
    return [keys[0], *(k for k in keys[1:] if k.until > clock)]


def store(path: str, keys: list[Key], replace: bool) -> None:
    """Write a key file with mode 0600, atomically.

    Raises:
        StateError: one is there already and `replace` is not set.
    """
    folder = os.path.dirname(path)
    # Root's folder holds the site's policies, too: one that users cannot enter would refuse every start of theirs.
    os.makedirs(folder, mode=0o755 if os.geteuid() == 0 else 0o700, exist_ok=True)
    temporary = f"{path}.{os.getpid()}.{secrets.token_hex(4)}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(dump(keys))
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.rename(temporary, path)
        else:
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise StateError(
                    f"{path} is there already", "one site has one key; `guard key rotate` makes the next"
                ) from None
            finally:
                os.unlink(temporary)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def new_key(scope: str) -> Key:
    """Make a key."""
    secret = secrets.token_bytes(KEY_BYTES)
    return Key(key_id(secret, scope), secret)


def user_keys() -> list[Key]:
    """Load the user's own key, made on first use."""
    path = user_path()
    try:
        return load(path, "local")
    except FileNotFoundError:
        own_folder(os.path.dirname(path))
        with suppress(StateError):  # another process of this user was faster; its key is loaded below
            store(path, [new_key("local")], replace=False)
        return load(path, "local")


def site_keys() -> list[Key] | None:
    """Load the site's keys where this process may read them; None where it may not or there are none."""
    try:
        return load(site_path(), "site")
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return None


def rotate(keys: list[Key], scope: str, overlap_days: float, now: float) -> list[Key]:
    """Return the keys after a rotation: a new one, and the old ones for the overlap.

    Raises:
        UsageError: the overlap is negative.
    """
    if overlap_days < 0:
        raise UsageError("an overlap cannot be negative", "give days, as in --overlap 30")
    until = now + overlap_days * 86400
    old = [keys[0]._replace(until=until)] + [k for k in keys[1:] if k.until > now]
    return [new_key(scope), *old]
