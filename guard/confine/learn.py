"""`guard learn`: watch a real session, then propose the narrowest policy under which it runs again.

The session is not unconfined while it is watched: what every policy denies or protects stays so, and the rest of
the file system is open. Calls that name a path or an address are noted and let go; the proposal is made from what
was there in the end, grouped by directory, with the reasons left for a person to fill in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from guard.confine import places
from guard.confine.handlers import paths
from guard.confine.handlers.addresses import Address
from guard.confine.keep import Keeper
from guard.kernel.notify import Call, Gone, Unreadable
from guard.policy import filter as filters
from guard.policy import supervised
from guard.policy.model import Effective, quote
from guard.policy.refusals import Test
from guard.policy.source import printable

WATCHING = """\
schema = 1
name = "learn"
extends = "base"
reason = "guard learn: what is denied and protected stays so, the rest is open while it is watched"
[files]
read = ["/"]
write = ["{home}", "{project}", "/tmp", "/var/tmp", "/scratch", "/work", "/data", "/mnt", "/media", "/srv"]
devices = ["/dev/ptmx", "/dev/pts"]
mask = "auto"
[network]
bind = "any"
connect = "any"
[unix]
abstract = "allow"
[pipe_to_shell]
action = "observe"
[controls]
bind = "off"
connect = "off"
unix_sockets = "off"
metadata = "off"
pipe_to_shell = "off"
[on_fault]
files = "warn"
"""
"""The policy that holds while a session is watched."""

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# call: (argument of the directory or None, argument of the path, argument of the flags or None, writes)
_PATHS: Mapping[str, tuple[int | None, int, int | None, bool]] = {
    "open": (None, 0, 1, False),
    "openat": (0, 1, 2, False),
    "creat": (None, 0, None, True),
    "truncate": (None, 0, None, True),
    "mkdir": (None, 0, None, True),
    "mkdirat": (0, 1, None, True),
    "mknod": (None, 0, None, True),
    "mknodat": (0, 1, None, True),
    "rmdir": (None, 0, None, True),
    "unlink": (None, 0, None, True),
    "unlinkat": (0, 1, None, True),
    "symlink": (None, 1, None, True),
    "symlinkat": (1, 2, None, True),
    "chmod": (None, 0, None, True),
    "fchmodat": (0, 1, None, True),
    "chown": (None, 0, None, True),
    "utimensat": (0, 1, None, True),
    "execve": (None, 0, None, False),
}
# Both ends are written: (directory, path) twice.
_PAIRS: Mapping[str, tuple[tuple[int | None, int], tuple[int | None, int]]] = {
    "rename": ((None, 0), (None, 1)),
    "renameat": ((0, 1), (2, 3)),
    "renameat2": ((0, 1), (2, 3)),
    "link": ((None, 0), (None, 1)),
    "linkat": ((0, 1), (2, 3)),
}
_ADDRESSES = ("bind", "connect")


@dataclass
class Seen:
    """What a session did; paths are real as far as they existed."""

    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    binds: set[str] = field(default_factory=set)
    connects: set[str] = field(default_factory=set)
    sockets: set[str] = field(default_factory=set)

    def to_json(self) -> str:
        """One line, for the process that writes the proposal."""
        return json.dumps({name: sorted(getattr(self, name)) for name in self.__dataclass_fields__})

    @staticmethod
    def from_json(text: str) -> Seen:
        """Undo `to_json`."""
        return Seen(**{name: set(values) for name, values in json.loads(text).items()})


def head(machine: str) -> bytes:
    """The head of the filter that asks about every call watched here."""
    known = _numbers(machine)
    asked: dict[str, tuple[Test, ...]] = dict.fromkeys(known, ())
    return supervised.head(asked, known, machine)


def _numbers(machine: str) -> dict[str, int]:
    """The calls that are watched, with the numbers that a machine has for them."""
    names = (*_PATHS, *_PAIRS, *_ADDRESSES)
    return {name: nr for name in names if (nr := filters.number(name, machine)) is not None}


class Watcher:
    """Stands where a `Supervisor` stands, and lets every call go after a look at it.

    Args:
        machine: as uname(2) has it.
        report: a descriptor that gets the result once the command has ended.
    """

    def __init__(self, machine: str, report: int) -> None:
        self.keeper: Keeper | None = None  # nothing is refused here
        self.ruleset = -1
        self.seen = Seen()
        self._report = report
        self._names = {nr: name for name, nr in _numbers(machine).items()}

    def begin(self, command: int) -> None:
        """The session is about to start."""

    def settle(self, beside: object) -> None:
        """Nothing takes longer here."""

    def command_ended(self, status: int) -> None:
        """Hand over what was seen."""
        with open(self._report, "w", closefd=False) as file:
            file.write(self.seen.to_json() + "\n")

    def end(self) -> None:
        """Nothing is left to do."""

    def answer(self, call: Call) -> None:
        """Look, and let go: nothing is decided here, so nothing can be raced."""
        # What cannot be read the kernel will tell the caller about; one that is gone needs no answer.
        with suppress(Gone, Unreadable, OSError, ValueError):
            self._look(self._names[call.number], call)
        call.let_go()

    def _look(self, name: str, call: Call) -> None:
        if name in _ADDRESSES:
            self._look_at_address(name, call)
        elif name in _PAIRS:
            for start, path in _PAIRS[name]:
                self._note(call, start, path, True, False)
        else:
            start, path, flags, writes = _PATHS[name]
            if flags is not None:
                writes = bool(call.args[flags] & _WRITE_FLAGS)
            self._note(call, start, path, writes, name not in ("unlink", "unlinkat", "symlink", "symlinkat"))

    def _note(self, call: Call, start: int | None, path_at: int, writes: bool, follow: bool) -> None:
        start_fd = paths.AT_FDCWD if start is None else call.args[start]
        path = call.string(call.args[path_at])
        if not path:
            return
        try:
            fd = paths.resolve(call, start_fd, path, follow)
        except FileNotFoundError:
            if writes:
                parent, _, name = path.rpartition(b"/")
                top = paths.resolve(call, start_fd, parent or (b"/" if path.startswith(b"/") else b"."))
                try:
                    self.seen.writes.add(f"{paths.real(top).rstrip('/')}/{os.fsdecode(name)}")
                finally:
                    os.close(top)
            return
        try:
            (self.seen.writes if writes else self.seen.reads).add(paths.real(fd))
        finally:
            os.close(fd)

    def _look_at_address(self, name: str, call: Call) -> None:
        raw = call.read(call.args[1], min(call.args[2] & 0xFFFFFFFF, 128))
        family = int.from_bytes(raw[:2], "little")
        if family == 1 and len(raw) > 2 and raw[2] and name == "connect":
            fd = paths.resolve(call, paths.AT_FDCWD, raw[2:].split(b"\0", 1)[0])
            try:
                self.seen.sockets.add(paths.real(fd))
            finally:
                os.close(fd)
        elif family in (2, 10):
            address = Address(family, raw)
            kind = "loopback" if address.is_local() else "any"
            if name == "bind":
                self.seen.binds.add(str(address))
            else:
                self.seen.connects.add(f"{kind} {address.port}")


# The proposal: pure --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Here:
    """Where the session ran.

    Args:
        home: the home. projects: the projects. tmp: the session's private directory.
        kind: says what a path is: "directory", "file" or "" for nothing.
    """

    home: str
    projects: tuple[str, ...]
    tmp: str
    kind: Callable[[str], str]


def propose(name: str, seen: Seen, base: Effective, here: Here) -> str:
    """Write the narrowest policy for what was seen.

    Args:
        name: of the policy.
        seen: what the session did.
        base: the effective policy `base`: what it grants is not repeated, what it denies is never proposed.
        here: where it ran.

    Returns:
        A policy file. Reasons begin with "FILL IN".
    """
    variables = {"home": (here.home,), "project": here.projects, "tmp": (here.tmp,)}
    granted = _expanded(base, ("files.read", "files.devices"), variables)
    denied = _expanded(base, ("files.deny",), variables)
    writes = {place for path in seen.writes if (place := _write_place(path, here))}
    own = (*here.projects, here.tmp)
    writes = {path for path in writes if not _within(path, (*own, *granted)) and not _within(path, denied)}
    reads = {place for path in seen.reads if (place := _read_place(path, here))}
    covered = (*own, *granted, *writes)
    reads = {path for path in reads if not _within(path, covered) and not _within(path, denied)}
    unsaid = sorted(path for path in (*reads, *writes) if not _sayable(path))
    reads, writes = set(filter(_sayable, reads)), set(filter(_sayable, writes))
    lines = [
        "# Proposed by `guard learn`: what one session needed, and no more. Read it, fill in the reasons,",
        "# try it with `guard run --policy PATH`.",
        "schema = 1",
        f"name = {quote(name)}",
        'extends = "base"',
        'reason = "FILL IN: what this work is"',
        "",
        "[files]",
        *_list("read", _outermost(reads), here),
        *_list("write", [*(["{project}"] if here.projects else []), *_outermost(writes)], here),
        *_devices(seen, base, variables),
    ]
    refused = sorted(path for path in seen.reads | seen.writes if _within(path, denied))
    lines += [_remark(f"Asked for and denied by base, so not proposed: {_named(path, here)}") for path in refused]
    lines += [_remark(f"Not proposed, a policy cannot name it: {path}") for path in unsaid]
    lines += ["", "[network]", *_network(seen)]
    lines += _sockets(seen, base, variables, (*writes, *own))
    return "\n".join(lines) + "\n"


def _expanded(
    policy: Effective, keys: Iterable[str], variables: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    found = [path for key in keys for pattern in policy.words(key) for path in places.expand(pattern, dict(variables))]
    return tuple(path.rstrip("*") for path in found)


def _within(path: str, tops: Iterable[str]) -> bool:
    return any(places.is_below(path, top) for top in tops)


def _sayable(path: str) -> bool:
    """Whether a path can stand in a policy: braces and stars mean something there, and a person reads it."""
    return path.isprintable() and not any(char in path for char in "{}*")


def _remark(text: str) -> str:
    """A comment line of the proposal; names are the session's own, and must not get out of it."""
    return "# " + printable(text)


_NO_PLACES = ("/proc/", "/dev/", "/sys/", "/memfd:")  # what lies here is granted otherwise, or not at all


def _write_place(path: str, here: Here) -> str:
    """The directory to grant for a written path: one that is there, as deep as makes sense."""
    if not path.startswith("/") or path.startswith(_NO_PLACES):
        return ""
    at = path if here.kind(path) == "directory" else os.path.dirname(path)
    if here.home and places.is_below(path, here.home):
        return _under_home(path, here)
    while at != "/" and here.kind(at) != "directory":
        at = os.path.dirname(at)
    return at if at.count("/") > 1 else ""


def _read_place(path: str, here: Here) -> str:
    if not path.startswith("/") or path.startswith(_NO_PLACES):
        return ""
    if here.home and places.is_below(path, here.home):
        return _under_home(path, here)
    return path if here.kind(path) == "directory" else os.path.dirname(path)


_SHELVES = (".config", ".cache", ".local/share", ".local/state", ".local/lib")


def _under_home(path: str, here: Here) -> str:
    """A place below the home by its program: two levels in the shared shelves, one elsewhere."""
    rest = path[len(here.home) + 1 :]
    if not rest or rest in (*_SHELVES, ".local"):
        return ""
    for shelf in _SHELVES:
        if rest.startswith(shelf + "/"):
            name = rest[len(shelf) + 1 :].partition("/")[0]
            return f"{here.home}/{shelf}/{name}"
    first = rest.partition("/")[0]
    return f"{here.home}/{first}"


def _outermost(found: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for path in sorted(found):
        if not _within(path, kept):
            kept.append(path)
    return kept


def _named(path: str, here: Here) -> str:
    for name, tops in (("{tmp}", (here.tmp,)), ("{project}", here.projects), ("{home}", (here.home,))):
        for top in tops:
            if top and places.is_below(path, top):
                return name + path[len(top) :]
    return path


def _list(key: str, found: Iterable[str], here: Here) -> list[str]:
    places_ = [quote(_named(path, here)) for path in found if path != "{project}"]
    entries = [f'  {{ path = {place}, reason = "FILL IN" }},' for place in places_]
    if "{project}" in found:
        entries.insert(0, '  "{project}",')
    return [f"{key} = [", *entries, "]"] if entries else []


def _devices(seen: Seen, base: Effective, variables: Mapping[str, tuple[str, ...]]) -> list[str]:
    granted = _expanded(base, ("files.devices",), variables)
    found = {path for path in seen.reads | seen.writes if path.startswith("/dev/") and not _within(path, granted)}
    found = set(filter(_sayable, found))
    if any(path.startswith("/dev/pts/") for path in found):
        found = {path for path in found if not path.startswith("/dev/pts/")} | {"/dev/pts", "/dev/ptmx"}
    if not found:
        return []
    return [
        "devices = [",
        *(f'  {{ path = {quote(path)}, reason = "FILL IN" }},' for path in sorted(found)),
        "]",
    ]


def _network(seen: Seen) -> list[str]:
    own = {text.rpartition(":")[2] for text in seen.binds}
    remote = sorted({int(port) for kind, port in map(str.split, seen.connects) if kind == "any"})
    local = sorted({int(port) for kind, port in map(str.split, seen.connects) if kind != "any" and port not in own})
    rules = []
    if remote:
        rules.append(f'  {{ ports = {remote}, to = "any", except = ["loopback", "link-local", "metadata"] }},')
    if local:
        rules.append(f'  {{ ports = {local}, to = "loopback" }},')
    lines = ["connect = [", *rules, "]"] if rules else ["connect = []"]
    lines.insert(0, f'bind = "{"loopback" if seen.binds else "deny"}"')
    inside = ("127.", "[::1]", "0.0.0.0", "[::]", "[::ffff:127.")  # noqa: S104 - spellings, nothing is bound
    outside = sorted(text for text in seen.binds if not text.startswith(inside))
    lines += [_remark(f"It bound {text}: needs network.bind_allow, if that is wanted.") for text in outside]
    return lines


def _sockets(
    seen: Seen, base: Effective, variables: Mapping[str, tuple[str, ...]], writable: Iterable[str]
) -> list[str]:
    allowed = _expanded(base, ("unix.allow",), variables)
    denied = _expanded(base, ("files.deny",), variables)
    found = sorted(path for path in seen.sockets if not _within(path, (*allowed, *writable)))
    proposed = [path for path in found if not _within(path, denied) and _sayable(path)]
    left = [path for path in found if path not in proposed]
    lines = [_remark(f"Not proposed, base denies it or no policy can name it: {path}") for path in left]
    if proposed:
        lines += ["", "[unix]", "allow = ["]
        lines += [f'  {{ path = {quote(path)}, reason = "FILL IN" }},' for path in proposed]
        lines.append("]")
    return lines
