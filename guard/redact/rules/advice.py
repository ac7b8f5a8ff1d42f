"""What to do about an exposed secret, by kind."""

from __future__ import annotations

from functools import lru_cache

_CONTEXT = "change it where it is used, and hand it to programs by file, descriptor or keyring instead of by name"
_BY_KIND = {
    "private-key": "make a new key pair and take the old public key out of every place that trusts it",
    "pgp-private-key": "revoke the key with its revocation certificate, and make a new one",
    "putty-key": "make a new key pair and take the old public key out of every place that trusts it",
    "unscanned": "the time for this line did not suffice; it was withheld whole",
    "cookie": "log out of that session, which ends it at the server",
}


@lru_cache(maxsize=256)
def advice_for(kind: str) -> str:
    """Return the advice for a kind, one sentence."""
    from guard.redact.rules.formats import FORMATS

    return _BY_KIND.get(kind) or next((row.advice for row in FORMATS if row.kind == kind), _CONTEXT)
