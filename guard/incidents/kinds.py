"""What a mail may say of a kind of key: its public prefix, and what to look at after the rotation."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.-]{2,16}")

_AFTER: Final = (
    ("aws", "look through CloudTrail for calls of this key id since the day it was seen"),
    ("gcp", "look through the project's audit logs for calls of this account since then"),
    ("google", "look through the project's audit logs for calls of this key since then"),
    ("azure", "look through the sign-in and activity logs since then"),
    ("github", "look through the security log of the account or organisation since then, and at new deploy keys"),
    ("gitlab", "look through the audit events of the account since then, and at new tokens and deploy keys"),
    ("slack", "look through the workspace's access logs since then"),
    ("openai", "look at the usage page for requests that are not yours, and set a limit"),
    ("anthropic", "look at the usage page for requests that are not yours, and set a limit"),
    ("private-key", "look through the auth log of each host that trusted it for logins that are not yours"),
    ("npm", "look at the published versions and the access list of your packages"),
    ("pypi", "look at the published versions and the collaborators of your projects"),
)


@lru_cache(maxsize=256)
def prefix(kind: str) -> str:
    """Return the beginning that every key of a kind has, a constant of its format; "" where it has none."""
    from guard.redact.rules.formats import FORMATS

    for row in FORMATS:
        if row.kind == kind and len(row.starts) == 1:
            start = row.starts[0].decode("latin-1").replace("\\-", "-").replace("\\.", ".")
            return start if _PLAIN.fullmatch(start) else ""
    return ""


def after(kind: str) -> str:
    """Return what to check once the key is revoked, one sentence."""
    for start, advice in _AFTER:
        if kind.startswith(start):
            return advice
    return "look at where it gave access, from the day it was seen, for use that is not yours"
