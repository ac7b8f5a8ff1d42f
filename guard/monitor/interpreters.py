"""Interpreters by what they are and not by what they are called: inode and exact size.

A link to a shell has its inode, a copy its size. Both are told to the kernel's side, beside the names.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from guard.monitor.facts import Program
from guard.monitor.look import kernel_device

DIRECTORIES = (
    "/bin", "/usr/bin", "/usr/local/bin", "/lib64", "/lib", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
)  # fmt: skip
APT_METHODS = "/usr/lib/apt/methods"
"""apt's own fetchers, `http` and others: by name alone HTTPie would be one of them."""
KINDS = Program.SHELL | Program.PYTHON | Program.INTERPRETER | Program.LAUNCHER
_ELF = b"\x7fELF"


@dataclass(frozen=True)
class Interpreter:
    """A program file of this host.

    Args:
        device: as the kernel numbers it: major << 20 | minor.
        inode: its number.
        size: bytes; 0 where it says nothing.
        program: what it is.
    """

    device: int
    inode: int
    size: int
    program: Program


def find(programs: Mapping[str, Program], directories: Sequence[str] = DIRECTORIES) -> Iterator[Interpreter]:
    """Find the interpreters that a host has under the names of a table; scripts are none.

    A program that is many (busybox, linked as `sh` too) is a launcher and no shell: its applets tell.
    """
    found: dict[tuple[int, int], Interpreter] = {}
    for name, program in programs.items():
        kind = program & KINDS
        if not kind:
            continue
        for directory in directories:
            seen = _look(f"{directory}/{name}", kind)
            if seen is not None:
                key = (seen.device, seen.inode)
                before = found[key].program if key in found else Program.NONE
                both = kind | before
                found[key] = replace(seen, program=Program.LAUNCHER if Program.LAUNCHER in both else both)
    yield from found.values()
    if Program.TRUSTED in programs.get("apt", Program.NONE):
        with suppress(OSError):
            for name in os.listdir(APT_METHODS):
                seen = _look(f"{APT_METHODS}/{name}", Program.TRUSTED)
                if seen is not None:
                    yield replace(seen, size=0)


def _look(path: str, kind: Program) -> Interpreter | None:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or file.read(len(_ELF)) != _ELF:
                return None
    except OSError:
        return None
    return Interpreter(kernel_device(status.st_dev), status.st_ino, status.st_size, kind)
