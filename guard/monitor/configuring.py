"""A site's settings as the maps of a loaded object: names, inodes and sizes of programs, networks, what is enforced."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Mapping

from guard.errors import MonitorError
from guard.monitor import interpreters
from guard.monitor.maps import Map
from guard.monitor.source import Settings

NAME_ROOM = 32
"""Bytes of a name in the kernel, with its NUL."""
KEY = struct.Struct("=QII")
"""struct key (bpf/state.h): inode number, device, generation."""
_CONFIG = struct.Struct("=QIIIIII")
_BIND_ACTS = {"deny": 1, "rewrite": 2}
_SO_NETNS_COOKIE = 71


def configure(maps: Callable[[str], Map], settings: Settings) -> None:
    """Tell the kernel's side.

    Args:
        maps: gives a map by its name.
        settings: the site's.

    Raises:
        MonitorError: there is no room for so many names or networks.
    """
    namespace = os.stat("/proc/self/ns/net").st_ino
    with socket.socket() as probe:
        try:
            cookie = int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), "little")
        except OSError:
            cookie = 0  # before 5.14: a private namespace is then not told from the host's
    enforce = settings.enforce
    config = _CONFIG.pack(
        cookie, namespace & 0xFFFFFFFF, 1, "world-writable" in enforce, "listen" in enforce,
        "code-from-outside" in enforce, _BIND_ACTS.get(enforce.get("bind", ""), 0),
    )  # fmt: skip
    maps("settings").set(bytes(4), config)
    found = list(interpreters.find(settings.programs))
    tables: dict[str, dict[bytes, bytes]] = {
        "names": {name_row(name.encode()): _number(kind.value) for name, kind in settings.programs.items()},
        "inodes": {KEY.pack(each.inode, each.device, 0): _number(each.program.value) for each in found},
        "sizes": {each.size.to_bytes(8, "little"): _number(each.program.value) for each in found if each.size},
        "proxies": {_number(port): _number(1) for port in settings.proxies},
    }
    for version, name in ((4, "outside4"), (6, "outside6")):
        networks = [ipaddress.ip_network(each) for each in settings.external if each.version == version]
        tables[name] = {_number(each.prefixlen) + each.network_address.packed: _number(1) for each in networks}
    for name, rows in tables.items():
        _replace(maps(name), name, rows)


def _replace(table: Map, name: str, rows: Mapping[bytes, bytes]) -> None:
    """Make a map hold these rows: first those that are new, then without those that are old."""
    for key, value in rows.items():
        if not table.set(key, value):
            raise MonitorError(f"no room for {len(rows)} entries in {name}", "name fewer programs or networks")
    for key in list(table.keys()):
        if key not in rows:
            table.drop(key)


def name_row(name: bytes) -> bytes:
    """A name as a key or value of the kernel's."""
    return name[: NAME_ROOM - 1].ljust(NAME_ROOM, b"\0")


def _number(value: int) -> bytes:
    return value.to_bytes(4, "little")
