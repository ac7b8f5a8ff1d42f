"""What a site says about its ways in: `entry.toml` in the configuration directory.

Every login and every start of an agent reads it: a dataclass would cost it 20 ms of imports.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from guard.errors import PolicyError

NAME = "entry.toml"

CHOICES = {
    "on_fault": ("plain", "refuse"),
    "on_fault_agent": ("plain", "refuse"),
    "bypass": ("allow", "deny"),
}


class Settings(NamedTuple):
    """The ways in.

    Args:
        real: the shell of accounts whose shell is guard.
        policy: what login shells run under; "" takes the assigned one.
        users, groups: whose login shells are confined; nobody named means all that come in by `guard shell`.
        on_fault: what happens when guard cannot start a login shell: `plain` starts it without, `refuse` does not.
        on_fault_agent: the same for an agent behind a shim.
        bypass: whether a shim may be gone around with a reason.
        deadline: seconds for all that guard waits for together.
        forward_agent, forward_x11: whether a forwarded key agent or display reaches the shell.
    """

    real: str = "/bin/bash"
    policy: str = "shell"
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    on_fault: str = "plain"
    on_fault_agent: str = "refuse"
    bypass: str = "allow"
    deadline: float = 2.0
    forward_agent: bool = True
    forward_x11: bool = True


def load(config: str) -> Settings:
    """Read the settings; the defaults where there is no file.

    Raises:
        PolicyError: the file does not load; says where.
        OSError: it cannot be read.
    """
    path = os.path.join(config, NAME)
    try:
        with open(path, "rb") as file:
            data = file.read(1 << 16)
    except FileNotFoundError:
        return Settings()
    import tomllib

    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PolicyError(f"{path}: {error}", "mend the line") from None
    table.pop("schema", None)
    return Settings(**{name: _value(path, name, value) for name, value in table.items()})  # type: ignore[arg-type]


def legible(config: str) -> Settings:
    """Return what a file that does not load says all the same: the lines that are sound each by itself."""
    import tomllib

    try:
        with open(os.path.join(config, NAME), "rb") as file:
            lines = file.read(1 << 16).decode("utf-8", "replace").splitlines()
    except OSError:
        return Settings()
    values: dict[str, object] = {}
    for line in lines:
        try:
            values |= {name: _value("", name, value) for name, value in tomllib.loads(line).items()}
        except (tomllib.TOMLDecodeError, PolicyError):
            continue
    return Settings(**values)  # type: ignore[arg-type]


def _value(path: str, name: str, value: object) -> object:
    defaults = Settings()
    if name not in Settings._fields:
        raise PolicyError(f"{path}: no key {name!r}", f"one of {', '.join(sorted(Settings._fields))}")
    default = getattr(defaults, name)
    if isinstance(default, tuple) and isinstance(value, list) and all(isinstance(word, str) for word in value):
        return tuple(value)
    if isinstance(default, float) and isinstance(value, int | float) and not isinstance(value, bool):
        return min(60.0, max(0.1, float(value)))
    if type(value) is type(default) and value in CHOICES.get(name, (value,)):
        return value
    wanted = " or ".join(CHOICES.get(name, (type(default).__name__.replace("tuple", "a list of names"),)))
    raise PolicyError(f"{path}: {name} = {value!r}", f"it must be {wanted}")
