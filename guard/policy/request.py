"""For whom a policy is asked, and where policies lie."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from guard.policy.source import Reader, read_file

CONFIG_DIR = "/etc/guard"
LAST_GOOD = "/var/lib/guard/last-good"
DEFAULT_POLICY = "login-node"
USER_FILE = "policy.toml"


def shipped_dir() -> str:
    """Return where the policies that ship lie: in an installed package, or beside it in a checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "shipped", "policies")
    return installed if os.path.isdir(installed) else os.path.join(os.path.dirname(package), "policies")


@dataclass(frozen=True)
class Request:
    """For whom a policy is asked.

    Args:
        user, uid: the account; `user` may be "" where it has no name.
        groups: names of the Unix groups it is in.
        host: the node's name.
        harness: the name of the harness that is started, or "".
        policy: NAME, or a PATH (it contains `/`), of `--policy`; None for the assigned one.
        project_dir: the project, absolute; None for none.
        use_project_layer: whether its `.guard.toml` counts.
        overlays: NAMEs added by the caller; only where no site decides.
        now: seconds since the epoch.
    """

    user: str
    uid: int
    groups: tuple[str, ...] = ()
    host: str = ""
    harness: str = ""
    policy: str | None = None
    project_dir: str | None = None
    use_project_layer: bool = True
    overlays: tuple[str, ...] = ()
    now: float = 0.0


@dataclass(frozen=True)
class Config:
    """Where policies lie.

    Args:
        config_dir: the site's configuration.
        user_config_dir: the user's, None for none.
        shipped_dir: the policies that ship.
        floor_dir: root's own; where it has a site.toml, another `config_dir` can only tighten it.
        last_good_dir: the site's files as they were when they last loaded, None for none.
        reader: how files that are the user's are read.
    """

    config_dir: str = CONFIG_DIR
    user_config_dir: str | None = None
    shipped_dir: str = field(default_factory=shipped_dir)
    floor_dir: str = CONFIG_DIR
    last_good_dir: str | None = LAST_GOOD
    reader: Reader = read_file
