"""What `guard doctor` tells about the redactor on this node: the site's key, the service, the engine, the lists."""

from __future__ import annotations

import importlib.util
import os
from typing import NamedTuple

from guard.errors import GuardError
from guard.redact import fingerprint, lists, pack
from guard.redact.client import Client


class Health(NamedTuple):
    """The redactor's state.

    Attributes:
        key_id: of the site's key in force, as root reads it or the service tells it; "" for none.
        service: whether the resident service answers.
        faults: what is missing or wrong, each a sentence that ends in what to do.
        pack: how many rules the site's rule pack adds.
    """

    key_id: str
    service: bool
    faults: tuple[str, ...]
    pack: int = 0


NOTHING = Health("", False, ())
"""A node that has no key, needs none and lacks nothing."""


def examine(config: str, client: Client | None = None) -> Health:
    """Look at the node; nothing is made or changed.

    Args:
        config: the configuration directory.
        client: the service's; None for the usual one.
    """
    faults: list[str] = []
    path = os.path.join(config, "fingerprint.key")
    key_id = ""
    asked = client or Client()
    status = asked.status()
    asked.close()
    service = bool(status)
    try:
        key_id = fingerprint.load(path, "site")[0].key_id
    except OSError:
        key_id = str(status.get("key_id") or "")
    except GuardError as error:
        faults.append(f"the site's fingerprint key: {error}")
    asked_for = service or os.path.isfile(os.path.join(config, "site.toml"))
    if not key_id and asked_for and not faults:
        faults.append("no site key on this node: exposures here match none elsewhere -> guard key install FILE")
    if status.get("engine") == "re" or importlib.util.find_spec("hyperscan") is None:
        faults.append("the slow engine is in use: hyperscan does not load here -> pip install hyperscan")
    try:
        lists.load(config)
    except GuardError as error:
        faults.append(str(error))
    rules = 0
    try:
        rules = len(pack.load(config).rules)
    except GuardError as error:
        faults.append(str(error))
    return Health(key_id, service, tuple(faults), rules)
