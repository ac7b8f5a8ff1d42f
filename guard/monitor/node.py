"""What the watch asks of this node: /proc, the name service, and each user's policy; every answer is kept for a while.

Whatever may never answer is asked with a deadline: the name service, files of others, and their memory, which the
arguments and the environment in /proc are read from.
"""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from guard.errors import GuardError
from guard.events.names import Names
from guard.monitor import proc
from guard.monitor.patience import Patience
from guard.policy import addresses
from guard.policy.model import BindAllow

_KEPT = 60.0
"""Seconds for which an answer is remembered."""
_SERVERS_KEPT = 1.0
_MOST = 4096
K = TypeVar("K")
T = TypeVar("T")


class Node:
    """Answers what `guard.monitor.asking.Look` asks.

    Args:
        config_dir: the configuration directory.
        allow: the site's own allowances for every user.
        clock: seconds, monotonic.
    """

    def __init__(
        self, config_dir: str, allow: tuple[BindAllow, ...] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config_dir = config_dir
        self._clock = clock
        self._host = os.uname().nodename
        self._users = Names()
        self.patience = Patience()
        self.configure(allow)

    def configure(self, allow: tuple[BindAllow, ...]) -> None:
        """Take other allowances, and forget what was worked out."""
        self._allow = allow
        self._policies: dict[tuple[int, str], tuple[float, tuple[BindAllow, ...]]] = {}
        self._installed: dict[str, tuple[float, bool]] = {}
        self._servers: dict[tuple[tuple[str, ...], int], tuple[float, tuple[int, ...]]] = {}

    status = staticmethod(proc.status)
    processes = staticmethod(proc.processes)
    link = staticmethod(proc.link)
    owner = staticmethod(proc.owner)
    confined = staticmethod(proc.confined)
    login = staticmethod(proc.login)
    slurm_job = staticmethod(proc.slurm_job)
    listens_at = staticmethod(proc.listens_at)

    def arguments(self, pid: int) -> tuple[bytes, ...]:
        """A process's arguments, at most 16 KiB."""
        return self.patience.ask(lambda: proc.arguments(pid), ())

    def variable(self, pid: int, name: bytes) -> str:
        """A variable that a process was started with."""
        return self.patience.ask(lambda: proc.variable(pid, name), "")

    def servers(self, comms: tuple[str, ...], uid: int) -> Iterable[int]:
        """A user's processes of these names."""
        return self._kept(self._servers, (comms, uid), _SERVERS_KEPT, lambda: tuple(proc.servers(comms, uid)))

    def root_installed(self, path: str) -> bool:
        """Whether a program is root's."""
        return self._kept(
            self._installed, path, _KEPT, lambda: self.patience.ask(lambda: proc.root_installed(path), False)
        )

    def user_name(self, uid: int) -> str:
        """A user's name, "" where the number has none, or the name service does not answer in time."""
        return self._users.user(uid)

    def groups(self, uid: int) -> frozenset[str]:
        """The names of a user's groups, as far as the name service tells them in time."""
        return self._users.groups(uid)

    def allowed_bind(self, uid: int, harness: str, address: str, port: int, exe: str) -> str:
        """Why a user's policy, or the site's monitor.toml, lets an address be bound; "" where neither does."""
        policy = self._kept(self._policies, (uid, harness), _KEPT, lambda: self._resolve(uid, harness))
        for entry in (*self._allow, *policy):
            if entry.exec and entry.exec != exe:
                continue
            if any(low <= port <= high for low, high in entry.ports) and _holds(entry.addr, address):
                return entry.reason or "the policy allows it"
        return ""

    def _kept(self, answers: dict[K, tuple[float, T]], question: K, seconds: float, ask: Callable[[], T]) -> T:
        """Return what is known, asked anew after so many seconds."""
        now = self._clock()
        known = answers.get(question)
        if known is None or now - known[0] > seconds:
            if len(answers) >= _MOST:
                answers.clear()
            known = answers[question] = (now, ask())
        return known[1]

    def _resolve(self, uid: int, harness: str) -> tuple[BindAllow, ...]:
        # Where nobody binds, a resident service is spared two megabytes.
        from guard.policy.assign import Config, Request, resolve

        user, groups = self._users.user(uid), tuple(self._users.groups(uid))
        request = Request(user, uid, groups, self._host, harness, use_project_layer=False, now=time.time())
        try:
            effective = resolve(request, Config(self._config_dir, floor_dir=self._config_dir))
        except GuardError:
            return ()  # `guard policy lint` tells; a broken policy allows nothing here
        entries = effective.values["network.bind_allow"]
        if effective.values["network.bind"] == "any":
            return (BindAllow("any", addresses.EVERY_PORT, "", "the policy lets any address be bound"),)
        return tuple(entry for entry in entries if isinstance(entry, BindAllow)) if isinstance(entries, tuple) else ()


def _holds(name: str, address: str) -> bool:
    try:
        at = ipaddress.ip_address(address)
        return any(at in net for net in addresses.networks(name) if net.version == at.version)
    except ValueError:
        return False  # `{cluster}`, which this site has given no value
