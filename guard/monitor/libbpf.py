"""libbpf by ctypes: open, choose, load, attach, pin, maps, rings. No compiler, no third-party package.

libbpf tells why a load failed through a callback that gets a C va_list; what matters, the verifier's last line, is at
the end of up to a megabyte.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from ctypes import CFUNCTYPE, POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

from guard.errors import MonitorError

NAMES = ("libbpf.so.1", "libbpf.so.0")
"""Debian 12 has .1; RHEL 8 ships 0.x under .0."""

BTF_TYPEDEF = 8
BTF_FUNC = 12
_LOG = 1 << 20
_WARN = 0
_STOP = -1
_ONLY_CHANGE = 2  # BPF_EXIST
_OWN_ERRORS = 4000
"""Numbers above are libbpf's own (libbpf.h, enum libbpf_errno)."""

_Sample = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)
_Print = CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)

# Every function used, with its result and arguments: ctypes would cut a pointer to 32 bits by default.
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "libbpf_set_print": (c_void_p, [_Print]),
    "libbpf_num_possible_cpus": (c_int, []),
    "btf__load_vmlinux_btf": (c_void_p, []),
    "btf__parse": (c_void_p, [c_char_p, c_void_p]),
    "btf__find_by_name_kind": (c_int, [c_void_p, c_char_p, c_uint32]),
    "btf__free": (None, [c_void_p]),
    "bpf_object__open_file": (c_void_p, [c_char_p, c_void_p]),
    "bpf_object__load": (c_int, [c_void_p]),
    "bpf_object__close": (None, [c_void_p]),
    "bpf_object__next_program": (c_void_p, [c_void_p, c_void_p]),
    "bpf_object__find_map_by_name": (c_void_p, [c_void_p, c_char_p]),
    "bpf_program__section_name": (c_char_p, [c_void_p]),
    "bpf_program__name": (c_char_p, [c_void_p]),
    "bpf_program__fd": (c_int, [c_void_p]),
    "bpf_program__set_autoload": (c_int, [c_void_p, c_bool]),
    "bpf_program__attach": (c_void_p, [c_void_p]),
    "bpf_program__attach_cgroup": (c_void_p, [c_void_p, c_int]),
    "bpf_program__attach_iter": (c_void_p, [c_void_p, c_void_p]),
    "bpf_iter_create": (c_int, [c_int]),
    "bpf_link__fd": (c_int, [c_void_p]),
    "bpf_link__destroy": (c_int, [c_void_p]),
    "bpf_link__pin": (c_int, [c_void_p, c_char_p]),
    "bpf_map__fd": (c_int, [c_void_p]),
    "bpf_map__key_size": (c_uint32, [c_void_p]),
    "bpf_map__value_size": (c_uint32, [c_void_p]),
    "bpf_map__set_pin_path": (c_int, [c_void_p, c_char_p]),
    "bpf_map_lookup_elem": (c_int, [c_int, c_void_p, c_void_p]),
    "bpf_map_update_elem": (c_int, [c_int, c_void_p, c_void_p, c_uint64]),
    "bpf_map_delete_elem": (c_int, [c_int, c_void_p]),
    "bpf_map_get_next_key": (c_int, [c_int, c_void_p, c_void_p]),
    "bpf_obj_get_info_by_fd": (c_int, [c_int, c_void_p, POINTER(c_uint32)]),
    "bpf_enable_stats": (c_int, [c_int]),
    "ring_buffer__new": (c_void_p, [c_int, _Sample, c_void_p, c_void_p]),
    "ring_buffer__consume": (c_int, [c_void_p]),
    "ring_buffer__epoll_fd": (c_int, [c_void_p]),
    "ring_buffer__free": (None, [c_void_p]),
}


class _ProgInfo(ctypes.Structure):
    """The beginning of struct bpf_prog_info, up to its statistics (include/uapi/linux/bpf.h)."""

    _fields_ = (
        ("before", ctypes.c_ubyte * 192),
        ("run_time_ns", c_uint64),
        ("run_cnt", c_uint64),
        ("recursion_misses", c_uint64),
    )


class Library:
    """libbpf, found and typed.

    Raises:
        MonitorError: it is not installed.
    """

    def __init__(self) -> None:
        self.said: list[str] = []
        for name in NAMES:
            try:
                self._c = ctypes.CDLL(name, use_errno=True)
                break
            except OSError:
                continue
        else:
            raise MonitorError(f"none of {', '.join(NAMES)} is there", "install libbpf (Debian: apt install libbpf1)")
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._c, name, None)
            if function is not None:
                function.restype = result
                function.argtypes = arguments
        libc = ctypes.CDLL(None)
        libc.vsnprintf.argtypes = [c_char_p, c_size_t, c_char_p, c_void_p]

        def hear(level: int, text: bytes, arguments: int) -> int:
            if level == _WARN:
                room = ctypes.create_string_buffer(_LOG)
                libc.vsnprintf(room, _LOG, text, arguments)
                self.said.append(room.value.decode(errors="replace").rstrip())
            return 0

        self._hear = _Print(hear)  # kept: a collected callback is a crash
        self._c.libbpf_set_print(self._hear)

    def call(self, name: str, *arguments: object) -> int:
        """Call a function that returns a number, or a pointer as one (0: it failed, see `reason`)."""
        value = getattr(self._c, name)(*arguments)
        return int(value or 0)

    def text(self, name: str, *arguments: object) -> str:
        """Call a function that returns a string."""
        return bytes(getattr(self._c, name)(*arguments) or b"").decode()

    def has(self, name: str) -> bool:
        """Whether this libbpf has a function."""
        return hasattr(self._c, name)

    def reason(self, code: int = 0) -> str:
        """Why the last call failed, one line: the errno and the verifier's last word, where it spoke."""
        number = abs(code) or ctypes.get_errno()
        if number > _OWN_ERRORS:
            return f"it is not of that format (libbpf {number})"
        word = errno.errorcode.get(number, str(number))
        lines = [line.strip() for said in self.said for line in said.splitlines()]
        telling = [line for line in lines if line and not line.startswith(("libbpf:", "--", "processed ", ";"))]
        self.said.clear()
        return f"{word}: {telling[-1][:160]}" if telling else f"{word} ({os.strerror(number)})"

    def cpus(self) -> int:
        """Possible CPUs: how many values a per-CPU map gives."""
        return self.call("libbpf_num_possible_cpus")


class Btf:
    """A kernel's types: the running one's, or a file's.

    Args:
        library: libbpf.
        path: a raw BTF file or an ELF with .BTF; "": the running kernel.

    Raises:
        MonitorError: no BTF there.
    """

    def __init__(self, library: Library, path: str = "") -> None:
        self._library = library
        self._at = library.call("btf__parse", path.encode(), None) if path else library.call("btf__load_vmlinux_btf")
        # Before 1.0 a failure is a small negative number in a pointer.
        if self._at <= 0:
            why = library.reason()
            raise MonitorError(
                f"no BTF in {path}: {why}" if path else f"this kernel has no BTF: {why}",
                "give a file of BTF, as /sys/kernel/btf/vmlinux of the other machine is" if path else "",
            )

    def has_function(self, name: str) -> bool:
        """Whether the kernel has a function of that name, not inlined."""
        return self._library.call("btf__find_by_name_kind", self._at, name.encode(), BTF_FUNC) > 0

    def has_tracepoint(self, name: str) -> bool:
        """Whether the kernel has a tracepoint."""
        return self._library.call("btf__find_by_name_kind", self._at, b"btf_trace_" + name.encode(), BTF_TYPEDEF) > 0

    def close(self) -> None:
        """Free it."""
        self._library.call("btf__free", self._at)


class Map:
    """One map of a loaded object."""

    def __init__(self, library: Library, at: int) -> None:
        self._library = library
        self.at = at
        self.fd = library.call("bpf_map__fd", at)
        self.key_size = library.call("bpf_map__key_size", at)
        self.value_size = library.call("bpf_map__value_size", at)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, None: it has none."""
        room = ctypes.create_string_buffer(self.value_size)
        if self._library.call("bpf_map_lookup_elem", self.fd, key, room):
            return None
        return room.raw

    def sum(self, index: int) -> int:
        """The sum of a per-CPU counter, modulo 2^64."""
        room = (c_uint64 * self._library.cpus())()
        if self._library.call("bpf_map_lookup_elem", self.fd, byref(c_uint32(index)), room):
            return 0
        return sum(room) & (1 << 64) - 1

    def set(self, key: bytes, value: bytes) -> bool:
        """Put a value; False: there is no room."""
        return not self._library.call("bpf_map_update_elem", self.fd, key, value, 0)

    def change(self, key: bytes, value: bytes) -> bool:
        """Put another value where there is one; False: the key is gone."""
        return not self._library.call("bpf_map_update_elem", self.fd, key, value, _ONLY_CHANGE)

    def drop(self, key: bytes) -> None:
        """Take a key out, if it is there."""
        self._library.call("bpf_map_delete_elem", self.fd, key)

    def keys(self) -> Iterator[bytes]:
        """Every key; one that goes meanwhile may end the walk early or start it anew."""
        previous: bytes | None = None
        room = ctypes.create_string_buffer(self.key_size)
        seen = 0
        while not self._library.call("bpf_map_get_next_key", self.fd, previous, room) and seen < 1 << 20:
            previous = room.raw
            seen += 1
            yield previous


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


class Ring:
    """One ring buffer.

    Args:
        take: gets each record as bytes; an exception in it would be swallowed, so it must not raise.
    """

    def __init__(self, library: Library, at: Map, take: Callable[[bytes], None]) -> None:
        self._library = library
        self._left = 0

        def sample(_context: int, data: int, size: int) -> int:
            take(ctypes.string_at(data, size))
            self._left -= 1
            # A negative number ends the round after this record, which counts as taken.
            return 0 if self._left > 0 else _STOP

        self._sample = _Sample(sample)  # kept, as above
        self._at = library.call("ring_buffer__new", at.fd, self._sample, None, None)
        if self._at <= 0:
            raise MonitorError(f"no ring buffer: {library.reason()}", "kernels before 5.8 have none")
        self.fd = library.call("ring_buffer__epoll_fd", self._at)

    def take(self, limit: int) -> None:
        """Take at most `limit` records, without waiting."""
        self._left = limit
        self._library.call("ring_buffer__consume", self._at)

    def close(self) -> None:
        """Unmap it."""
        if self._at:
            self._library.call("ring_buffer__free", self._at)
            self._at = 0
