"""A loaded object's maps, and its ring buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from ctypes import byref, c_uint32, c_uint64

from guard.errors import MonitorError
from guard.monitor.libbpf import Library, Sample

_STOP = -1
_ONLY_CHANGE = 2  # BPF_EXIST


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

        self._sample = Sample(sample)  # kept, as above
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
