"""The account map: who is whose PI, and where mail goes. A CSV file the site keeps: user, mail, pi, pi_mail, group."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from guard.errors import PolicyError

_ADDRESS: Final = re.compile(r"[A-Za-z0-9._%+'-]{1,64}@[A-Za-z0-9.-]{1,190}")
_LOGIN: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Account(NamedTuple):
    """An account holder; empty fields are not known."""

    user: str
    mail: str = ""
    pi: str = ""
    pi_mail: str = ""
    group: str = ""


def load(path: str) -> dict[str, Account]:
    """Read an account map.

    Args:
        path: a CSV file with a header line; "" for none.

    Raises:
        PolicyError: it cannot be read, or a line is wrong; it says which.
    """
    if not path:
        return {}
    found: dict[str, Account] = {}
    try:
        with open(path, encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                account = Account(*(str(row.get(name) or "").strip() for name in Account._fields))
                if not account.user:
                    raise PolicyError(f"{path}:{number}: no user", f"the columns are {','.join(Account._fields)}")
                for address in (account.mail, account.pi_mail):
                    if address and not _ADDRESS.fullmatch(address):
                        raise PolicyError(f"{path}:{number}: {address!r} is no mail address", "correct it there")
                found[account.user] = account
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise PolicyError(f"{path}: cannot be read as an account map: {reason}", "a CSV file in UTF-8") from None
    return found


def address_of(user: str, accounts: Mapping[str, Account], domain: str) -> str:
    """Return where mail for an account goes; "" where that is not known."""
    account = accounts.get(user)
    if account is not None and account.mail:
        return account.mail
    return f"{user}@{domain}" if domain and _LOGIN.fullmatch(user) else ""
