"""What a session would be here under a policy: the layers that hold, and what its places give one path."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from guard.confine import Denied, places
from guard.kernel import O_PATH, landlock
from guard.policy import filter as filters
from guard.policy import plan, supervised
from guard.policy.model import Effective, Origin
from guard.policy.refusals import Rule
from guard.policy.status import NEWEST_ABI, Host, asked, control_modes

MASKED, KERNEL, FILTER, SUPERVISOR, ORDINARY = "mask", "Landlock", "seccomp filter", "supervisor", "host"
"""Layers, as answers name them; the last is the host's own, without guard."""

SHARED = "/dev/shm"  # noqa: S108 - the kernel's place for shared memory


@dataclass(frozen=True)
class Here:
    """Who asks and where, as the launcher finds it out.

    Args:
        uid, user, home, homes, projects, commons, own: as of `guard.confine.places`.
        tmp: the session's own directory, "" where there is no session yet.
        host: what this host enforces.
        can_listen: whether a supervisor can stand beside a session; inside one: whether it does.
        can_mask: whether places can be covered by mounts; inside a session: whether they are.
        many_groups: whether the user has further groups, which a mask would unname.
        name_servers: addresses of resolv.conf's servers, 4 or 16 bytes.
        first_port: the first that an ordinary user may bind.
        inside: whether the answer is for the session that it is asked in.
    """

    uid: int
    user: str
    home: str
    homes: tuple[str, ...]
    projects: tuple[str, ...]
    commons: tuple[str, ...]
    own: tuple[str, ...]
    tmp: str
    host: Host
    can_listen: bool
    can_mask: bool
    many_groups: bool = False
    name_servers: frozenset[bytes] = frozenset()
    first_port: int = 1024
    inside: bool = False

    def variables(self) -> dict[str, tuple[str, ...]]:
        """Return what the open variables of patterns stand for."""
        return places.session_variables(self.home, self.projects, self.tmp, self.user, self.uid)


@dataclass(frozen=True)
class Entry:
    """One entry of a policy that speaks of a path or an address.

    Args:
        key, value: as `files.deny` and `{home}/.ssh`.
        origin: where it is written.
        place: what it stands for here, "" for no path.
    """

    key: str
    value: str
    origin: Origin
    place: str = ""


class Session:
    """A policy on a host, asked by the acts of `guard.confine.explain`.

    Args:
        effective: the policy.
        here: who and where.

    Attributes:
        modes: control → `enforce`, `observe` or `off`.
        rules: the rows that the filter has.
        calls: the calls that the supervisor answers; none without one.
        masked, supervised, domain: which layers stand.
        handled: Landlock's file rights that are judged.
    """

    def __init__(self, effective: Effective, here: Here) -> None:
        self.effective, self.here = effective, here
        on = set(asked(effective))
        self.modes = control_modes(effective.values)
        if effective.mode != "enforce":
            self.modes = {
                control: effective.mode if mode == "enforce" else mode for control, mode in self.modes.items()
            }
        abi = min(here.host.abi, NEWEST_ABI)
        self.files = "files" in on
        self.handled = plan.rights(abi) if self.files else 0
        self.net = {control: abi >= 4 and control in on for control in ("bind", "connect")}
        self.abstract = "unix-sockets" in on and effective.word("unix.abstract") == "deny" and abi >= 6
        self.domain = bool(self.handled or any(self.net.values()) or self.abstract or ("processes" in on and abi >= 6))
        values = effective.values
        enforcing = effective.mode == "enforce"
        self.rules: tuple[Rule, ...] = filters.active(values, self.domain) if enforcing and here.host.seccomp else ()
        stands = enforcing and self.domain and here.can_listen and effective.word("supervisor.use") != "never"
        calls = supervised.calls(values) if stands else {}
        self.calls = frozenset(calls)
        self.supervised = bool(calls)
        self.grants = plan.grants(effective)
        self._held = self._places(here.variables())
        if self._held.refused:  # a project that lies in a denied place is none
            projects = tuple(each for each in here.projects if each not in self._held.refused)
            self.here = here = replace(here, projects=projects)
            self._held = self._places(here.variables())
        word = effective.word("files.mask")
        wanted = word != "never" and not (word == "auto" and here.many_groups)
        # Shared memory is covered too, by a directory of the session's own, unless its TMPDIR lies there.
        tmp = here.tmp or os.path.realpath(effective.site.tmp)
        self.shared = any(place == SHARED for place, _ in self.grants) and not places.is_below(tmp, SHARED)
        covers = self._held.hidden or self._held.shields or self.shared
        self.masked = bool(self.files and wanted and here.can_mask and covers)
        self._tops = self._held.writable()

    def _places(self, variables: dict[str, tuple[str, ...]]) -> _Toward:
        effective, here = self.effective, self.here
        return _Toward(
            self.grants,
            list(effective.words("files.deny")) if self.files else [],
            list(effective.words("files.protect")) if self.files else [],
            variables,
            here.homes,
            here.own if self.files else (),
            here.commons if effective.flag("project.worktrees") else (),
        )

    def enforced(self) -> Session:
        """Return the same session with all that is only observed enforced."""
        values = {
            key: {"observe": "enforce" if key.startswith("controls.") else "deny"}.get(str(value), value)
            if key.startswith(("controls.", "modes."))
            else value
            for key, value in self.effective.values.items()
        }
        mode = "enforce" if self.effective.mode == "observe" else self.effective.mode
        return Session(replace(self.effective, values=values, mode=mode), self.here)

    def rights(self, real: str) -> int:
        """Return the rights that Landlock's rules would give on a real path."""
        seen = _Seen(real)
        # With terminals of its own a session may list /dev, and has the one it stands at as /dev/console
        # (kernel.own_terminals); without, the latter is granted by its name.
        own = places.own_terminal()
        self._held.terminals = (own or "/dev/pts",) if self.masked and real in ("/dev", own) else ()
        self._held.aim(real)
        self._held.grant(seen, self.masked)
        return seen.rights

    def hidden(self, real: str) -> bool:
        """Whether a mount covers the place, or one above it."""
        return self.masked and any(places.is_below(real, top) for top in self._held.hidden)

    def shielded(self, real: str) -> bool:
        """Whether a read-only mount holds the place, or one above it."""
        return self.masked and any(places.is_below(real, top) for top in self._held.shields)

    def kept(self, real: str) -> bool:
        """Whether it is a protected name that does not exist, or would lie below one: the supervisor watches those."""
        return self.supervised and self.files and any(places.is_below(real, name) for name in self._held.absent)

    def may_write(self, real: str) -> bool:
        """Whether the supervisor takes the place for one that the session may write."""
        return any(places.is_below(real, top) for top in self._tops) and not self._held.denies(real)

    def entry(self, key: str, real: str) -> Entry | None:
        """Return the narrowest entry of a list of places that a real path lies at or below."""
        everywhere = {**self.here.variables(), "home": self.here.homes}
        found: Entry | None = None
        if real == places.own_terminal():
            real = "/dev/tty"  # granted with it
        for value in self.effective.words(key):
            for place in places.expand(value, everywhere):
                stem = place.removesuffix("*")
                tops = {place, os.path.realpath(place)}
                if any(places.is_below(real, top) for top in tops) or (stem != place and real.startswith(stem)):
                    origin = self.effective.origins[key].get(value, Origin("default", 0))
                    if found is None or len(place) > len(found.place):
                        found = Entry(key, value, origin, place)
        return found

    def setting(self, key: str, value: object = None) -> Entry:
        """Return a setting, or one entry of a list, with where it is written; of a list without it the last line."""
        origins = self.effective.origins[key]
        text = "" if value is None else str(value)
        if text in origins:
            return Entry(key, text, origins[text])
        shown = self.effective.values[key]
        # A list that lacks something is named by the policy's own line of it, else by the last.
        own = [origin for origin in origins.values() if os.path.basename(origin.file) == f"{self.effective.name}.toml"]
        origin = [Origin("default", 0), *origins.values(), *own[:1]][-1]
        return Entry(key, "" if isinstance(shown, tuple) else str(shown), origin)


class _Toward(places.Places):
    """Places that grant only what lies on the way to one path: a session may not list the names beside it."""

    _target = "/"

    def aim(self, target: str) -> None:
        """Set the real path that grants are asked about."""
        self._target = target

    def _siblings(
        self,
        fd: int,
        path: str,
        denied: Denied,
        own: Denied,
        access: int,
        masked: bool,
        ruleset: landlock.Ruleset,
    ) -> None:
        try:
            if masked:
                ruleset.allow_path(fd, access & landlock.READ_DIR, True)
            if self._target == path or not places.is_below(self._target, path):
                return
            name = self._target[len(path.rstrip("/")) + 1 :].partition("/")[0]
            below, kept = denied.get(name), own.get(name)
            if (below and "" in below) or (kept and "" in kept):
                return
            try:
                inner = os.open(name, O_PATH | os.O_NOFOLLOW, dir_fd=fd)
            except OSError:
                return  # not there at the start, so not granted
        finally:
            os.close(fd)
        kind = os.fstat(inner).st_mode & 0o170000
        if (below or kept) and kind == 0o040000:
            self._siblings(inner, f"{path.rstrip('/')}/{name}", below or {}, kept or {}, access, masked, ruleset)
            return
        if kind != 0o120000:
            ruleset.allow_path(inner, access, kind == 0o040000)
        os.close(inner)


class _Seen(landlock.Ruleset):
    """Stands in for a ruleset and adds up what its rules give one path: Landlock asks every directory above.

    Args:
        target: a real path.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self.rights = 0

    def allow_path(self, fd: int, access: int, is_directory: bool | None = None) -> None:
        """Take note of a rule."""
        if places.is_below(self._target, os.readlink(f"/proc/self/fd/{fd}")):
            if is_directory is None:
                is_directory = os.fstat(fd).st_mode & 0o170000 == 0o040000
            self.rights |= access if is_directory else access & landlock.ON_FILES
