"""A CO-RE object: opened, its programs chosen, loaded, attached, pinned."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref, c_uint32, c_uint64

from guard.errors import MonitorError
from guard.monitor.libbpf import Btf, Library
from guard.monitor.maps import Map


class _ProgInfo(ctypes.Structure):
    """The beginning of struct bpf_prog_info, up to its statistics (include/uapi/linux/bpf.h)."""

    _fields_ = (
        ("before", ctypes.c_ubyte * 192),
        ("run_time_ns", c_uint64),
        ("run_cnt", c_uint64),
        ("recursion_misses", c_uint64),
    )


class Program:
    """One program of an object.

    Args:
        at: libbpf's pointer.
        section: as `tp_btf/sys_exit`.
    """

    def __init__(self, library: Library, at: int) -> None:
        self.at = at
        self.section = library.text("bpf_program__section_name", at).lstrip("?")
        self.name = library.text("bpf_program__name", at)

    def wants(self, btf: Btf) -> str:
        """What the kernel lacks for it; "": nothing that BTF can tell.

        A program whose target is missing fails the whole object, so this is asked before the load.
        """
        kind, _, target = self.section.partition("/")
        if kind == "lsm":
            there = btf.has_function("bpf_lsm_" + target)
        elif kind in ("fmod_ret", "fentry", "fexit"):
            there = btf.has_function(target)
        else:
            there = kind != "tp_btf" or btf.has_tracepoint(target)
        return "" if there else f"this kernel has no {target}"


class Object:
    """A CO-RE object: opened, its programs chosen, loaded.

    Args:
        library: libbpf.
        path: the object.

    Raises:
        MonitorError: it cannot be opened.
    """

    def __init__(self, library: Library, path: str) -> None:
        self._library = library
        library.said.clear()
        self._at = library.call("bpf_object__open_file", path.encode(), None)
        if self._at <= 0:
            raise MonitorError(f"{path}: {library.reason()}", "run `make setup` where clang is installed")
        self.programs = tuple(self._programs())

    def _programs(self) -> Iterator[Program]:
        at = self._library.call("bpf_object__next_program", self._at, None)
        while at:
            yield Program(self._library, at)
            at = self._library.call("bpf_object__next_program", self._at, at)

    def want(self, program: Program, wanted: bool) -> None:
        """Load it with the rest, or leave it out."""
        self._library.call("bpf_program__set_autoload", program.at, wanted)

    def load(self) -> None:
        """Load what is wanted.

        Raises:
            MonitorError: the kernel refuses; with its last word.
        """
        code = self._library.call("bpf_object__load", self._at)
        if code:
            raise MonitorError(self._library.reason(code))

    def map(self, name: str) -> Map:
        """A map by its name."""
        return Map(self._library, self._library.call("bpf_object__find_map_by_name", self._at, name.encode()))

    def attach(self, program: Program, cgroup: int = -1) -> Link:
        """Attach a loaded program.

        Args:
            cgroup: a descriptor of the cgroup's directory, for cgroup programs.

        Raises:
            MonitorError: the kernel refuses.
        """
        if program.section.startswith("cgroup/"):
            at = self._library.call("bpf_program__attach_cgroup", program.at, cgroup)
        else:
            at = self._library.call("bpf_program__attach", program.at)
        if at <= 0:
            raise MonitorError(f"{program.section}: {self._library.reason()}")
        return Link(self._library, at)

    def attach_iterator(self, program: Program) -> Iterate:
        """Make an iterator program readable.

        Raises:
            MonitorError: the kernel refuses.
        """
        at = self._library.call("bpf_program__attach_iter", program.at, None)
        if at <= 0:
            raise MonitorError(f"{program.section}: {self._library.reason()}")
        return Iterate(self._library, at)

    def keep_map(self, name: str, path: str) -> None:
        """Before the load: take a map from its pin where there is one, pin it where there is none."""
        at = self._library.call("bpf_object__find_map_by_name", self._at, name.encode())
        self._library.call("bpf_map__set_pin_path", at, path.encode())

    def ran(self, program: Program) -> tuple[int, int]:
        """Nanoseconds spent in a program, and its runs, while the kernel's bpf_stats are on."""
        info = _ProgInfo()
        size = c_uint32(ctypes.sizeof(info))
        fd = self._library.call("bpf_program__fd", program.at)
        if fd < 0 or self._library.call("bpf_obj_get_info_by_fd", fd, byref(info), byref(size)):
            return 0, 0
        return int(info.run_time_ns), int(info.run_cnt)

    def close(self) -> None:
        """Free it, with its maps and programs as far as nothing else holds them."""
        if self._at:
            self._library.call("bpf_object__close", self._at)
            self._at = 0


class Link:
    """An attached program; it is attached as long as this lives, or as its pin does."""

    def __init__(self, library: Library, at: int) -> None:
        self._library = library
        self._at = at

    def pin(self, path: str) -> None:
        """Let it outlive the process.

        Raises:
            MonitorError: bpffs refuses.
        """
        code = self._library.call("bpf_link__pin", self._at, path.encode())
        if code:
            raise MonitorError(f"{path}: {self._library.reason(code)}", "mount bpffs: mount -t bpf bpf /sys/fs/bpf")

    def close(self) -> None:
        """Detach, unless it is pinned."""
        if self._at:
            self._library.call("bpf_link__destroy", self._at)
            self._at = 0


class Iterate(Link):
    """An iterator: what its program writes, read anew each time."""

    def read(self) -> bytes:
        """Run it over everything.

        Raises:
            MonitorError: the kernel refuses.
        """
        fd = self._library.call("bpf_iter_create", self._library.call("bpf_link__fd", self._at))
        if fd < 0:
            raise MonitorError(f"an iterator: {self._library.reason()}")
        with open(fd, "rb", buffering=0) as file:
            return file.readall()
