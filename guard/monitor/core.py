"""The CO-RE backends: one object loaded through libbpf, its programs attached as they are needed.

Ancestry is always attached; whatever costs other processes only while there is a tree, unless it enforces.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

from guard.errors import MonitorError
from guard.monitor import cgroup, objects, pins, proc, procfs, reach, wire
from guard.monitor.configuring import KEY, configure, name_row
from guard.monitor.facts import AnyFact, CodeBy, Coverage, Exec, Hold, Mode, Program, boot_time
from guard.monitor.labelling import Labelling
from guard.monitor.libbpf import Btf, Library
from guard.monitor.loading import Iterate, Link, Object
from guard.monitor.loading import Program as Loaded
from guard.monitor.look import Looker
from guard.monitor.maps import Map, Ring
from guard.monitor.source import Label, Settings, Stats, Status, newly_lost

_ITER_ROW = struct.Struct("=QII")
_MARKS = 32768
_SCRIPTED = Program.PYTHON | Program.INTERPRETER
_QUIET = 10.0
"""Seconds without a tree before what costs others is detached: sessions follow each other, and each attach is a blind
moment."""
_INTERVAL = 0.2
_MEASURE_EVERY = 5.0


class CoreSource:
    """A loaded object as a `Source`.

    Args:
        backend: lsm, fmod or tracepoint.
        settings: what it is told.
        pinned: directory in bpffs; "": nothing outlives the process, and what another start pinned is taken away.
        refused: better backend → why it was not taken, for the status.

    Raises:
        MonitorError: it cannot be loaded or attached; nothing is left attached.
    """

    def __init__(
        self, backend: str, settings: Settings, pinned: str = "", refused: Mapping[str, str] | None = None
    ) -> None:
        begun = time.monotonic()
        self._began = boot_time()
        self._backend = backend
        self._pinned = pinned
        self._generation = pins.begin(pinned) if pinned else ""
        self._pins_made = 0
        self._links: dict[str, Link] = {}
        self._maps: dict[str, Map] = {}
        self._rings: list[Ring] = []
        self._ready: deque[AnyFact] = deque()
        self._lost: dict[str, int] = dict.fromkeys((*wire.LOST.values(), "taint", "decode"), 0)
        self._undecoded = 0
        self._allowed = True
        self._following = False
        self._idle_since = 0.0
        self._checked = 0.0
        self._opened = time.monotonic()
        self._measuring = -1
        self._measured = 0.0
        self._measured_since = 0.0
        self._cgroup = -1
        self._looker = Looker()
        self._epoll = select.epoll()
        self._iterator: Iterate | None = None
        self._library = Library()
        self._object = Object(self._library, objects.path(backend))
        try:
            skipped = self._load()
            self._labels = Labelling(self._map("procs"), self._map("counters"), self.processes)
            self._decoder = wire.Decoder(self._labels.start_of)
            self._settings = settings
            self.configure(settings)
            skipped.update(self._attach_first())
            if self._always_on():
                self._follow(True)
        except BaseException:
            self.close()
            raise
        self._status = Status(
            backend,
            tuple(sorted(program.section for program in self._loaded)),
            skipped,
            dict(refused or {}),
            reach.of(backend, skipped),
            time.monotonic() - begun,
        )

    # -- opening --------------------------------------------------------------------------------------------------

    def _load(self) -> dict[str, str]:
        btf = Btf(self._library)
        skipped: dict[str, str] = {}
        self._loaded: list[Loaded] = []
        sections = {program.section for program in self._object.programs if not program.wants(btf)}
        for program in self._object.programs:
            why = objects.superseded(program.section, sections) or program.wants(btf)
            self._object.want(program, not why)
            if why:
                skipped[program.section] = why
            else:
                self._loaded.append(program)
        btf.close()
        missing = [section for section in objects.ALWAYS if section in skipped]
        if missing:
            raise MonitorError(f"{missing[0]}: {skipped[missing[0]]}")
        if self._pinned:
            for name in pins.MAPS:
                self._object.keep_map(name, f"{self._pinned}/{name}")
        self._object.load()
        return skipped

    def _attach_first(self) -> dict[str, str]:
        """Attach ancestry and the bind hooks, open the rings. Without cgroup2 the bind hooks are skipped."""
        skipped: dict[str, str] = {}
        for name in ("alerts", "telemetry"):
            ring = Ring(self._library, self._map(name), self._take)
            self._rings.append(ring)
            self._epoll.register(ring.fd, select.EPOLLIN)
        try:
            self._cgroup = cgroup.root()
        except MonitorError as error:
            skipped.update(dict.fromkeys(objects.BIND, error.what))
        for program in self._loaded:
            if program.section in objects.ALWAYS or (program.section in objects.BIND and self._cgroup >= 0):
                self._attach(program)
        return skipped

    def _attach(self, program: Loaded) -> None:
        link = self._object.attach(program, self._cgroup)
        self._links[program.name] = link
        if self._generation and (program.section in objects.ALWAYS or self._enforces(program)):
            link.pin(f"{self._generation}/{program.name}")
            self._pins_made += 1

    def _enforces(self, program: Loaded) -> bool:
        rule = "bind" if program.section in objects.BIND else objects.RULE_OF.get(objects.target(program.section), "")
        return rule in self._settings.enforce

    def _on_demand(self) -> Iterator[Loaded]:
        for program in self._loaded:
            if program.section not in (*objects.ALWAYS, *objects.BIND, objects.LISTING):
                yield program

    def _always_on(self) -> bool:
        """Enforcement that waited for a tree would let its first act through."""
        return any(self._enforces(program) for program in self._on_demand())

    # -- following ------------------------------------------------------------------------------------------------

    def _follow(self, on: bool) -> None:
        begun = boot_time()
        if on:
            missing = []
            for program in self._on_demand():
                try:
                    if program.name not in self._links:
                        self._attach(program)
                except MonitorError as error:
                    missing.append(error.what)
            self._following = True
            # Of what ran before the monitor did, all is blind.
            first = min((one.start for one in self.labels() if one.harness and one.start > self._began), default=0)
            self._ready.append(Coverage(boot_time(), not missing, tuple(missing), boot_time() - first if first else 0))
            self._look_once()
            return
        for program in self._on_demand():
            link = self._links.pop(program.name, None)
            if link is not None:
                link.close()
        self._following = False
        if not self._allowed:
            self._ready.append(Coverage(begun, False, reach.without_following(self._backend)))

    def _look_once(self) -> None:
        """What was begun while nobody looked and lasts: sockets that listen."""
        for label in list(self.labels()):
            for listener in procfs.listening(label.pid):
                who = procfs.process(label.pid)
                if who is not None:
                    self._ready.append(procfs.listen_fact(boot_time(), who, label, listener))

    def follow(self, on: bool) -> tuple[str, ...]:
        """Allow or forbid what costs every process; what enforces stays."""
        if not on and self._always_on():
            return ()
        self._allowed = on
        if on:
            return ()
        if self._following:
            self._follow(False)
        return reach.without_following(self._backend)

    def _keep_up(self) -> None:
        """Attach when the first label appears, detach some time after the last is gone."""
        labelled = self._labels.count()
        if labelled and self._allowed and not self._following:
            self._follow(True)
        if labelled or self._always_on():
            self._idle_since = 0.0
        elif self._following:
            now = time.monotonic()
            self._idle_since = self._idle_since or now
            if now - self._idle_since > _QUIET:
                self._follow(False)

    # -- Source ---------------------------------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """What was loaded."""
        return self._status

    @property
    def generation(self) -> str:
        """The directory of this start's pins; "" for none."""
        return self._generation

    def fileno(self) -> int:
        """Readable when a ring holds something."""
        return self._epoll.fileno()

    @property
    def interval(self) -> float:
        """Seconds between two looks at the counters."""
        return _INTERVAL

    def poll(self, timeout: float, limit: int = 4096) -> Iterator[AnyFact]:
        """Take facts of both rings; see `Source`."""
        if not self._ready:
            self._epoll.poll(timeout)
        # What is younger than this stays for the next round. The rings are read one after the other: without it an
        # alert could come after the exit, or before the exec, of its own process.
        horizon = boot_time()
        for ring in self._rings:  # half for each: a flood of alerts must not keep the exec behind one waiting
            ring.take(max(1, (limit - len(self._ready)) // 2))
        self._keep_up()
        now = time.monotonic()
        if now - self._checked >= _INTERVAL:
            self._checked = now
            self._ready.extend(newly_lost(self._lost, self._losses()))
            self._watch_pins()
            self._measure(now)
        ripe = [fact for fact in self._ready if fact.time <= horizon] or list(self._ready)
        later = [fact for fact in self._ready if fact.time > horizon] if len(ripe) < len(self._ready) else []
        self._ready = deque(later)
        return iter(ripe)

    def _take(self, record: bytes) -> None:
        try:
            fact = self._decoder.fact(record)
            if isinstance(fact, Exec) and fact.who.root:
                fact = self._script(fact)
            if isinstance(fact, Hold) and fact.other and self._labels.is_of(fact.who.root, proc.group(fact.other)):
                return  # one of its own threads
            if isinstance(fact, Mode):
                looked = self._looker.settle(fact, wire.unsure(record))
                if looked is None:
                    return
                fact = looked
        except (ValueError, struct.error, IndexError, KeyError):
            self._undecoded += 1
            return
        self._ready.append(fact)

    def _script(self, fact: Exec) -> Exec:
        """Look at an interpreter's script, where its name decides something; gives the fact as it then is.

        The kernel knows files by the name they have: it is told what a link leads to. And a harness inside of a tree
        that is a script (`node …/claude`) is exempt like any harness, unless the tree wrote that script itself.
        A shell's script is known without (any file that it opens beside its own is code).
        """
        if fact.code_by is not CodeBy.FILE or fact.program & Program.SHELL or not fact.program & _SCRIPTED:
            return fact
        script = next((word for word in fact.argv[1:] if word and not word.startswith(b"-")), b"")
        behind = self._looker.behind(fact.who.pid, script) if script else None
        if behind is None:
            return fact
        if behind.name != os.path.basename(script):
            alias = fact.who.start.to_bytes(8, "little") + name_row(behind.name)
            self._map("aliases").set(fact.who.pid.to_bytes(4, "little"), alias)
        nested = Program.HARNESS in fact.program and not fact.who.harness and not fact.written_by
        if not nested or Program.COPIED in fact.program:
            return fact
        own = self._map("authors").get(KEY.pack(behind.inode, behind.device, 0)) is not None
        named = Program.HARNESS in self._settings.programs.get(behind.name.decode(errors="replace"), Program.NONE)
        if own or (behind.uid == 0 and not named) or not self._labels.exempt(fact.who.pid):
            return fact
        return replace(fact, who=replace(fact.who, harness=True))

    def _measure(self, now: float) -> None:
        """Let the kernel take the time of its programs for one interval of many: taking it costs, too."""
        if self._measuring >= 0:
            os.close(self._measuring)
            self._measuring = -1
            self._measured += now - self._measured_since
        elif now - self._measured_since > _MEASURE_EVERY and self._library.has("bpf_enable_stats"):
            self._measuring = self._library.call("bpf_enable_stats", 0)
            self._measured_since = now

    def _watch_pins(self) -> None:
        """Enforcement whose pins are gone ends with this process: that is said, once."""
        if self._generation and pins.held(self._generation) < self._pins_made:
            self._pins_made = 0
            gone = f"the pins in {self._pinned} are gone: what is enforced ends with the monitor"
            self._ready.append(Coverage(boot_time(), False, (gone,)))

    def _losses(self) -> dict[str, int]:
        counters = self._map("counters")
        now = {stage: counters.sum(index) for index, stage in wire.LOST.items()}
        return now | {"taint": max(0, counters.sum(wire.COUNT_MARKS) - _MARKS), "decode": self._undecoded}

    def label(self, pid: int, root: int, *, harness: bool = False) -> bool:
        """Put a process and its descendants into a tree; see `Source`."""
        there = self._labels.label(pid, root, harness=harness)
        self._keep_up()
        return there

    def recount(self) -> None:
        """Count the labels anew, after another start's programs have gone."""
        self._labels.recount()

    def unlabel(self, pid: int) -> None:
        """Take one process out of its tree."""
        self._labels.unlabel(pid)

    def labels(self) -> Iterator[Label]:
        """Every process in a tree."""
        return self._labels.all()

    def processes(self) -> dict[int, tuple[int, int]]:
        """Every process now: pid → start (ns since boot), parent."""
        if self._iterator is None:
            program = next((p for p in self._loaded if p.section == objects.LISTING), None)
            if program is None:
                return {p.pid: (p.start, p.ppid) for p in procfs.processes()}
            self._iterator = self._object.attach_iterator(program)
        rows = self._iterator.read()
        return {pid: (start, ppid) for start, pid, ppid in _ITER_ROW.iter_unpack(rows)}

    def configure(self, settings: Settings) -> None:
        """Take other settings; see `Source`."""
        self._settings = settings
        configure(self._map, settings)
        if self._rings and self._always_on() and not self._following:
            self._follow(True)

    def stats(self) -> Stats:
        """The counters, now."""
        counters = self._map("counters")
        # Measured now and then, told for all of the time.
        scale = (time.monotonic() - self._opened) / self._measured if self._measured else 0.0
        ran = {program.name: self._object.ran(program) for program in self._loaded}
        return Stats(
            {kind: counters.sum(index) for index, kind in enumerate(wire.KINDS) if kind},
            self._losses(),
            counters.sum(wire.COUNT_EXECS),
            counters.sum(wire.COUNT_SCHEDULER),
            self._labels.count(),
            {name: int(ns * scale) for name, (ns, _) in ran.items()},
            {name: int(runs * scale) for name, (_, runs) in ran.items()},
        )

    def close(self) -> None:
        """Detach and free; see `Source`."""
        for ring in self._rings:
            ring.close()
        self._rings.clear()
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._object.close()
        if self._measuring >= 0:
            os.close(self._measuring)
            self._measuring = -1
        self._epoll.close()
        self._looker.close()
        if self._cgroup >= 0:
            os.close(self._cgroup)
            self._cgroup = -1

    def _map(self, name: str) -> Map:
        if name not in self._maps:
            self._maps[name] = self._object.map(name)
        return self._maps[name]
