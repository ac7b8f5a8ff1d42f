"""What the watch asks and tells, as protocols: /proc and the policy on one side, the kernel's labels on the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from guard.monitor.proc import Status


class Look(Protocol):
    """What is asked of /proc and the name service; `guard.monitor.proc` with a policy beside it."""

    def status(self, pid: int) -> Status | None:
        """A process's state."""

    def processes(self) -> Iterable[Status]:
        """Every process."""

    def arguments(self, pid: int) -> tuple[bytes, ...]:
        """A process's arguments."""

    def link(self, pid: int, name: str) -> str:
        """Its `exe` or `cwd`."""

    def owner(self, pid: int) -> int:
        """Its uid."""

    def confined(self, pid: int) -> bool:
        """Whether the kernel confines it."""

    def login(self, pid: int) -> int:
        """Its login session."""

    def slurm_job(self, pid: int) -> int | None:
        """Its Slurm job."""

    def variable(self, pid: int, name: bytes) -> str:
        """A variable it was started with."""

    def servers(self, comms: tuple[str, ...], uid: int) -> Iterable[int]:
        """A user's processes of these names."""

    def listens_at(self, pid: int, path: str) -> bool:
        """Whether a process listens on that unix socket."""

    def root_installed(self, path: str) -> bool:
        """Whether a program is root's."""

    def user_name(self, uid: int) -> str:
        """A user's name."""

    def allowed_bind(self, uid: int, harness: str, address: str, port: int, exe: str) -> str:
        """Why the user's policy allows a bind, "" where it does not."""


class Labels(Protocol):
    """Of a source, what changes trees."""

    def label(self, pid: int, root: int, *, harness: bool = False) -> bool:
        """Put a process into a tree."""

    def unlabel(self, pid: int) -> None:
        """Take one out."""
