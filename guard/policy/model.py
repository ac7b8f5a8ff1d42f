"""What a policy is made of, from one file (`Policy`) to what holds for one session (`Effective`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from guard.errors import PolicyError
from guard.policy.keys import CONTROLS, HARNESSES, KEYS, MODES, Key, Kind, Tighten
from guard.policy.source import Document

__all__ = [
    "CONTROLS",
    "DEFAULT_ORIGIN",
    "HARNESSES",
    "KEYS",
    "MODES",
    "BindAllow",
    "ConnectRule",
    "Effective",
    "Item",
    "Key",
    "Kind",
    "Origin",
    "Policy",
    "Setting",
    "Site",
    "Tighten",
    "Value",
]


@dataclass(frozen=True, slots=True)
class ConnectRule:
    """Addresses and TCP ports that may be connected to.

    Args:
        ports: inclusive ranges, sorted, not touching.
        to: `any`, `loopback`, or a CIDR in its canonical form.
        except_: sorted names (`loopback`, `link-local`, `metadata`) and CIDRs taken away from `to`.
    """

    ports: tuple[tuple[int, int], ...]
    to: str = "any"
    except_: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"ports = {ports_text(self.ports)}", f'to = "{self.to}"']
        if self.except_:
            parts.append("except = [" + ", ".join(f'"{name}"' for name in self.except_) + "]")
        return "{ " + ", ".join(parts) + " }"


@dataclass(frozen=True, slots=True)
class BindAllow:
    """An address that may be bound although `network.bind` refuses it.

    Args:
        addr: `any`, `loopback`, or a CIDR.
        ports: inclusive ranges, sorted, not touching.
        exec: the one program that may, "" for every program.
        reason: why.
    """

    addr: str
    ports: tuple[tuple[int, int], ...]
    exec: str = ""
    reason: str = field(default="", compare=False)

    def __str__(self) -> str:
        parts = [f'addr = "{self.addr}"', f"ports = {ports_text(self.ports)}"]
        if self.exec:
            parts.append(f"exec = {quote(self.exec)}")
        return "{ " + ", ".join(parts) + " }"


def quote(text: str) -> str:
    """Write a string as a TOML basic string (TOML 1.0, "String")."""
    out = []
    for char in text:
        if char in '"\\':
            out.append("\\" + char)
        elif char < " " or char == "\x7f":
            out.append(f"\\u{ord(char):04X}")
        else:
            out.append(char)
    return '"' + "".join(out) + '"'


def ports_text(ports: tuple[tuple[int, int], ...]) -> str:
    """Write port ranges as the TOML list a person would write."""
    return "[" + ", ".join(str(low) if low == high else f'"{low}-{high}"' for low, high in ports) + "]"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written, and why.

    Args:
        file: the path of the file, or "default".
        line: counted from 1, 0 for a default.
        reason: the nearest reason: the entry's, else its table's, else the file's.
        column: counted from 1 in characters.
    """

    file: str
    line: int
    reason: str = ""
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


DEFAULT_ORIGIN = Origin("default", 0)

Value = str | int | bool | ConnectRule | BindAllow
"""One entry of a list, or the whole of a scalar."""


@dataclass(frozen=True, slots=True)
class Item:
    """A value and where it came from."""

    value: Value
    origin: Origin


@dataclass(frozen=True, slots=True)
class Setting:
    """What one file says of one key.

    Args:
        items: the entries of a list; exactly one for a scalar, none for an unset number.
        origin: where the key stands.
        everything: `connect = "any"`: a list without bounds.
    """

    items: tuple[Item, ...]
    origin: Origin
    everything: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """One file, read and checked: a layer that holds only what the file sets.

    Args:
        name: of the head, else the file's stem.
        kind: `policy`, `overlay`, `site`, `project` or `user`.
        file: the path it was read from.
        description, reason, opens, tried: sentences of the head, "" when not given.
        extends: the name of the policy it adds to, with its place.
        overlays: names with their places.
        settings: key → what is said of it.
        doc: the document, to show a place of it in an error.
    """

    name: str
    kind: str
    file: str
    description: str = ""
    reason: str = ""
    opens: str = ""
    tried: str = ""
    extends: Item | None = None
    overlays: tuple[Item, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    doc: Document | None = field(default=None, compare=False, repr=False)

    def error(self, origin: Origin, sentence: str) -> PolicyError:
        """Return the error that names, and where it can shows, a place of this file."""
        if self.doc is None or origin.file != self.doc.file:
            return PolicyError(f"{origin}: {sentence}")
        return self.doc.error_at(origin.line, origin.column, sentence)


@dataclass(frozen=True, slots=True)
class Site:
    """What root decides for the whole node beyond a policy.

    Args:
        audit: `allow` or `forbid` (`--audit` and `learn` are refused).
        default_policy: who no assignment names gets this one.
        project_roots: `{project}` must lie below one of them; none: anywhere that is not refused anyway.
        tmp: below which the private TMPDIR of a session is made.
        variables: name → one or several values; already put into every value of an `Effective`.
        harnesses: names beyond `HARNESSES` whose overlay is added by itself.
        file: the site.toml read, "" on a host without one.
    """

    audit: str = "allow"
    default_policy: str = "login-node"
    project_roots: tuple[str, ...] = ()
    tmp: str = "/tmp"  # noqa: S108 - the default place below which a private directory is made
    variables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    harnesses: tuple[str, ...] = ()
    file: str = ""


@dataclass(frozen=True, slots=True)
class Effective:
    """The policy of one user, harness and project on one host, every key given: what is compiled.

    Args:
        name: of the policy at the base.
        values: every key of `KEYS` → its value (list kinds: tuples; `network.connect`: None is anywhere;
            words: str; numbers: int or None; flags: bool). Site variables are already put in.
        origins: key → text of the value or entry → where it came from.
        layers: files in the order in which they were applied.
        exceptions: `file#ticket` of those in force.
        assigned_by: `assign.toml:12`, `site.toml`, `--policy` or `default`.
        mode: `enforce`, `observe` or `off`, of the whole.
        harness: its name, or "".
        expires: when the first exception in force ends, seconds since the epoch; None: never.
        sources: every file read or looked for, for freshness.
        notes: what was narrowed away or left out, for `policy show` and lint.
        site: what the site decides.
        digest: hex SHA-256 of the canonical JSON of name, values and mode.
        text: canonical TOML, a policy file that gives the same values and digest again.
        alerts: what an administrator must hear of (a site file that does not load).
    """

    name: str
    values: Mapping[str, object]
    origins: Mapping[str, Mapping[str, Origin]]
    layers: tuple[str, ...]
    exceptions: tuple[str, ...]
    assigned_by: str
    mode: str
    harness: str
    expires: float | None
    sources: tuple[str, ...]
    notes: tuple[str, ...]
    site: Site
    digest: str
    text: str
    alerts: tuple[str, ...] = ()

    def words(self, key: str) -> tuple[str, ...]:
        """Return the paths or globs of a list key."""
        value = self.values[key]
        if not isinstance(value, tuple):
            raise TypeError(key)
        return tuple(str(entry) for entry in value)

    def word(self, key: str) -> str:
        """Return the word of a scalar key."""
        value = self.values[key]
        if not isinstance(value, str):
            raise TypeError(key)
        return value

    def number(self, key: str) -> int | None:
        """Return a limit, None where the policy leaves it untouched."""
        value = self.values[key]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(key)
        return value

    def flag(self, key: str) -> bool:
        """Return a truth value."""
        value = self.values[key]
        if not isinstance(value, bool):
            raise TypeError(key)
        return value

    def connect(self) -> tuple[ConnectRule, ...] | None:
        """Return the rules of `network.connect`, None for anywhere."""
        value = self.values["network.connect"]
        if value is None:
            return None
        if not isinstance(value, tuple):
            raise TypeError("network.connect")
        return tuple(entry for entry in value if isinstance(entry, ConnectRule))

    def bind_allow(self) -> tuple[BindAllow, ...]:
        """Return the entries of `network.bind_allow`."""
        value = self.values["network.bind_allow"]
        if not isinstance(value, tuple):
            raise TypeError("network.bind_allow")
        return tuple(entry for entry in value if isinstance(entry, BindAllow))
