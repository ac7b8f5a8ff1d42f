"""The bcc backend: for kernels with headers and without BTF. Compiled on the node; small on purpose.

bcc is the distribution's (Debian: python3-bpfcc, RHEL: python3-bcc); the package of that name on PyPI is a
crystal-lattice library and is never imported for it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import stat
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from guard.errors import MonitorError
from guard.monitor import procfs, reach, wire
from guard.monitor.facts import AnyFact, Coverage, Mode, boot_time
from guard.monitor.libbpf import Library
from guard.monitor.look import Looker
from guard.monitor.source import Label, Settings, Stats, Status, newly_lost

SOURCES = os.path.join(os.path.dirname(__file__), "bpf")
PLACES = ("/usr/lib/python3/dist-packages/bcc", "/usr/lib/python3/site-packages/bcc",
          "/usr/lib64/python3/site-packages/bcc")  # fmt: skip
"""Where distributions put it: a virtual environment does not see it."""

_ALWAYS = {"sched_process_exec": "process_exec", "sched_process_fork": "process_fork",
           "sched_process_exit": "process_exit"}  # fmt: skip
_INTERVAL = 0.1
_QUIET = 10.0
_NAME_ROOM = 32
_HARNESS = 1


def module() -> ModuleType:
    """Import the BPF compiler collection.

    Raises:
        MonitorError: it is not installed, or something else of that name is.
    """
    for place in ("", *PLACES):
        spec = importlib.util.find_spec("bcc") if not place else _spec(place)
        if spec is None or spec.loader is None:
            continue
        before = sys.modules.get("bcc")
        loaded = importlib.util.module_from_spec(spec)
        sys.modules["bcc"] = loaded
        try:
            spec.loader.exec_module(loaded)
        except (ImportError, OSError):
            loaded = ModuleType("bcc")
        if hasattr(loaded, "BPF"):
            return loaded
        if before is not None:
            sys.modules["bcc"] = before
        else:
            del sys.modules["bcc"]
    raise MonitorError("bcc is not there", "install it: Debian python3-bpfcc, RHEL python3-bcc; never from PyPI")


def _spec(place: str) -> importlib.machinery.ModuleSpec | None:
    path = os.path.join(place, "__init__.py")
    if not os.path.exists(path):
        return None
    return importlib.util.spec_from_file_location("bcc", path, submodule_search_locations=[place])


def text() -> str:
    """The program: the records' layout, then the probes."""
    out = []
    for name in ("wire.h", "bcc.c"):
        with open(os.path.join(SOURCES, name), encoding="utf-8") as file:
            out.append(file.read().replace("#pragma once", ""))
    return "\n".join(out)


class BccSource:
    """bcc as a `Source`.

    Args:
        settings: names of programs.
        refused: better backend → why it was not taken.

    Raises:
        MonitorError: bcc, the kernel's headers or the kernel refuse.
    """

    def __init__(self, settings: Settings, refused: Mapping[str, str]) -> None:
        begun = time.monotonic()
        bcc = module()
        self._ready: deque[AnyFact] = deque()
        self._decoder = wire.Decoder(self._start_of)
        self._looker = Looker()
        self._undecoded = 0
        self._own_labels = 0
        self._lost: dict[str, int] = dict.fromkeys((*wire.LOST.values(), "decode"), 0)
        self._allowed = True
        self._following = False
        self._idle_since = 0.0
        self._checked = 0.0
        # Kernels before 5.5 call it real_start_time.
        network = os.stat("/proc/self/ns/net").st_ino
        flags = ["-DGUARD_START=start_boottime", f"-DGUARD_NET={network & 0xFFFFFFFF}u", "-w"]
        try:
            self._bpf: Any = bcc.BPF(text=text().encode(), cflags=flags)
            self.configure(settings)
            for name in ("alerts", "telemetry"):
                self._bpf[name].open_ring_buffer(self._sample)
            self._fileno = _descriptor(self._bpf)
            self._rows = {name: self._bpf.load_func(name, bcc.BPF.RAW_TRACEPOINT) for name in _ALWAYS.values()}
            for point, name in _ALWAYS.items():
                self._bpf.attach_raw_tracepoint(point, name)
        except Exception as error:  # noqa: BLE001 - bcc raises bare Exception
            raise MonitorError(f"bcc: {_first_line(error)}", "kernel headers of this very kernel are needed") from None
        self._status = Status(
            "bcc", (*_ALWAYS, "sys_exit"), {}, dict(refused), reach.of("bcc", {}), time.monotonic() - begun
        )

    @property
    def status(self) -> Status:
        """What was loaded."""
        return self._status

    def fileno(self) -> int:
        """Readable when a ring holds something; -1 where this bcc does not show it."""
        return self._fileno

    @property
    def interval(self) -> float:
        """Seconds between two rounds."""
        return _INTERVAL

    def _sample(self, _context: int, data: int, size: int) -> int:
        import ctypes

        try:
            record = ctypes.string_at(data, size)
            fact: AnyFact | None = self._decoder.fact(record)
            if isinstance(fact, Mode):
                fact = self._looker.settle(_absolute(fact), wire.unsure(record), keep=True)
                # Gone before it was looked at: a sticky bit is a directory's, nearly always.
                if fact is not None and not stat.S_IFMT(fact.mode) and fact.mode & stat.S_ISVTX:
                    fact = replace(fact, mode=fact.mode | stat.S_IFDIR)
            if fact is not None:
                self._ready.append(fact)
        except Exception:  # noqa: BLE001 - an exception in a callback would be swallowed: it is counted
            self._undecoded += 1
        return 0

    def poll(self, timeout: float, limit: int = 4096) -> Iterator[AnyFact]:
        """Take what is there."""
        self._bpf.ring_buffer_poll(int(timeout * 1000)) if timeout else self._bpf.ring_buffer_consume()
        self._keep_up()
        now = time.monotonic()
        if now - self._checked >= _INTERVAL:
            self._checked = now
            self._ready.extend(newly_lost(self._lost, self._losses()))
        out = list(self._ready)
        self._ready.clear()
        return iter(out)

    def _keep_up(self) -> None:
        labelled = self._labelled()
        if labelled and self._allowed and not self._following:
            self._bpf.attach_raw_tracepoint("sys_exit", "call_done")
            self._following = True
            self._ready.append(Coverage(boot_time(), True))
        elif not labelled and self._following:
            now = time.monotonic()
            self._idle_since = self._idle_since or now
            if now - self._idle_since > _QUIET:
                self._unfollow()
        if labelled:
            self._idle_since = 0.0

    def _unfollow(self) -> None:
        self._bpf.detach_raw_tracepoint("sys_exit")
        self._following = False

    def follow(self, on: bool) -> tuple[str, ...]:
        """Allow or forbid the program of all system calls."""
        self._allowed = on
        if on:
            return ()
        missing = ("modes", "binds", "listens")
        if self._following:
            self._unfollow()
            self._ready.append(Coverage(boot_time(), False, missing))
        return missing

    def _counter(self, index: int) -> int:
        table = self._bpf["counters"]
        return int(sum(table.getvalue(table.Key(index)))) & (1 << 64) - 1

    def _losses(self) -> dict[str, int]:
        return {stage: self._counter(index) for index, stage in wire.LOST.items()} | {"decode": self._undecoded}

    def _labelled(self) -> int:
        kernel = self._counter(wire.COUNT_LABELLED)
        return max(0, (kernel - (1 << 64) if kernel >= 1 << 63 else kernel) + self._own_labels)

    def configure(self, settings: Settings) -> None:
        """Take other names."""
        table = self._bpf["names"]
        wanted = {}
        for name, program in settings.programs.items():
            wanted[name.encode()[: _NAME_ROOM - 1].ljust(_NAME_ROOM, b"\0")] = program.value
        for raw, value in wanted.items():
            table[table.Key.from_buffer_copy(raw)] = table.Leaf(value)
        for key in list(table.keys()):
            if bytes(key) not in wanted:
                del table[key]

    def _start_of(self, pid: int) -> int:
        table = self._bpf["procs"]
        key = table.Key(pid)
        return int(table[key].start) if key in table else 0

    def label(self, pid: int, root: int, *, harness: bool = False) -> bool:
        """Put a process and its descendants into a tree. Starts are /proc's, in steps of 10 ms."""
        table = self._bpf["procs"]
        inside: set[int] = set()
        more = {pid}
        known = {seen.pid: seen for seen in procfs.processes()}
        if pid not in known:
            return False
        root_start = known[root].start if root in known else 0
        while more:
            for member in more:
                key = table.Key(member)
                if member == pid or key not in table:
                    self._own_labels += key not in table
                    flags = _HARNESS if harness and member == pid else 0
                    table[key] = table.Leaf(known[member].start, root_start, root, flags)
            inside |= more
            known = {seen.pid: seen for seen in procfs.processes()}
            more = {p for p, seen in known.items() if seen.ppid in inside and p not in inside}
        self._keep_up()
        return True

    def unlabel(self, pid: int) -> None:
        """Take one process out of its tree."""
        table = self._bpf["procs"]
        key = table.Key(pid)
        if key in table:
            del table[key]
            self._own_labels -= 1

    def labels(self) -> Iterator[Label]:
        """Every process in a tree."""
        for key, row in list(self._bpf["procs"].items()):
            yield Label(key.value, row.start, row.root, row.root_start, bool(row.flags & _HARNESS))

    def stats(self) -> Stats:
        """The counters, now."""
        emitted = {kind: self._counter(index) for index, kind in enumerate(wire.KINDS) if kind}
        return Stats(emitted, self._losses(), self._counter(wire.COUNT_EXECS), self._counter(wire.COUNT_SCHEDULER),
                     self._labelled(), {}, {})  # fmt: skip

    def close(self) -> None:
        """Detach and free."""
        self._looker.close()
        self._bpf.cleanup()


def _descriptor(bpf: object) -> int:
    """The epoll descriptor of bcc's rings: its manager is libbpf's ring_buffer."""
    manager = getattr(bpf, "_ringbuf_manager", None)
    try:
        library = Library()
    except MonitorError:
        return -1
    return library.call("ring_buffer__epoll_fd", manager) if manager else -1


def _absolute(fact: Mode) -> Mode:
    """The kernel's side does not look up what a path is relative to."""
    if not fact.path.startswith(b".../"):
        return fact
    try:
        return replace(fact, path=os.path.join(os.readlink(f"/proc/{fact.who.pid}/cwd".encode()), fact.path[4:]))
    except OSError:
        return fact  # gone


def _first_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error))[:160] or type(error).__name__
