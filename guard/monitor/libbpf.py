"""libbpf by ctypes: the library, typed, and a kernel's types. No compiler, no third-party package.

libbpf tells why a load failed through a callback that gets a C va_list; what matters, the verifier's last line, is at
the end of up to a megabyte.
"""

from __future__ import annotations

import ctypes
import errno
import os
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

from guard.errors import MonitorError

NAMES = ("libbpf.so.1", "libbpf.so.0")
"""Debian 12 has .1; RHEL 8 ships 0.x under .0."""

BTF_TYPEDEF = 8
BTF_FUNC = 12
_LOG = 1 << 20
_WARN = 0
_OWN_ERRORS = 4000
"""Numbers above are libbpf's own (libbpf.h, enum libbpf_errno)."""

Sample = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)
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
    "ring_buffer__new": (c_void_p, [c_int, Sample, c_void_p, c_void_p]),
    "ring_buffer__consume": (c_int, [c_void_p]),
    "ring_buffer__epoll_fd": (c_int, [c_void_p]),
    "ring_buffer__free": (None, [c_void_p]),
}


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
