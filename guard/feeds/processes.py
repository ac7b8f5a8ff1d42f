"""A process a feed, and one that watches them: a feed that hangs, dies or eats memory is nobody else's trouble.

The watching process loads no library of a destination. A feed's process gives signs of life through a pipe; without one
for `watchdog` seconds it is killed and started again, which rebuilds its connection and everything else. It dies with
the watching process, so that a killed service leaves nobody behind who delivers the same events.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from guard.errors import EXIT_CANNOT, GuardError, StateError
from guard.feeds import status as statuses
from guard.feeds.config import Config, Feed
from guard.feeds.runner import Runner, Source, Tell
from guard.feeds.sink import Context, open_sink

PR_SET_PDEATHSIG: Final = 1
_GRACE: Final = 10.0  # seconds in which a told feed ends by itself
_RESTART_MOST: Final = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """What a feed's process needs.

    Args:
        config: the whole configuration.
        folder: of status files and locks.
        source: feed → where its events come from; called in the feed's process.
        render: format → what writes it; called there too.
        tell: feed → what makes a telemetry event of a loss.
        context: what sinks may use; each gets its own signs of life.
        drain: end when all is delivered.
    """

    config: Config
    folder: str
    source: Callable[[Feed], Source]
    render: Callable[[str], Callable[[bytes], bytes]]
    tell: Callable[[Feed], Tell]
    context: Context
    drain: bool = False


@dataclass
class _Child:
    feed: Feed
    pid: int = 0
    pipe: int = -1
    alive: float = 0.0
    started: float = 0.0
    restarts: int = 0
    failures: int = 0
    next_start: float = 0.0
    done: bool = False
    code: int = 0
    killed: bool = False
    last: str = field(default="")


def run(work: Work, feeds: Sequence[Feed], say: Say, *, timeout: float = 0) -> int:
    """Run feeds until told to stop (SIGTERM, SIGINT), or until they have drained.

    Args:
        work: what they need.
        feeds: which of the configuration's.
        say: tells a person one line.
        timeout: to drain, seconds after which it is given up; 0 for never.

    Returns:
        0, or 3 where a feed did not drain.

    Raises:
        StateError: one of them runs already.
    """
    os.makedirs(work.folder, mode=0o700, exist_ok=True)
    locks = _claim(work.folder, feeds)
    stop = threading.Event()
    before = {number: signal.signal(number, lambda _n, _f: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    children = [_Child(feed) for feed in feeds]
    end = time.monotonic() + timeout if timeout else float("inf")
    try:
        while not stop.is_set() and not all(child.done for child in children):
            now = time.monotonic()
            if now > end:
                for child in children:
                    if not child.done:
                        say(f"feed {child.feed.name} has not delivered everything: {_problem(work, child)}")
                        child.code = EXIT_CANNOT
                break
            for child in children:
                if not child.pid and not child.done and now >= child.next_start:
                    _start(work, child, locks)
            _listen(children, 0.2)
            for child in children:
                _watch(work, child, say)
    finally:
        _end(children)
        for number, handler in before.items():
            signal.signal(number, handler)
        for lock in locks.values():
            os.close(lock)
    return max((child.code for child in children), default=0) if work.drain else 0


def _claim(folder: str, feeds: Sequence[Feed]) -> dict[str, int]:
    """Hold a lock a feed, handed on to its process: two runners would deliver everything twice."""
    locks: dict[str, int] = {}
    for feed in feeds:
        path = os.path.join(folder, f"{feed.name}.lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            for other in locks.values():
                os.close(other)
            raise StateError(f"feed {feed.name} runs already", f"stop it first; {path} is held by it") from error
        locks[feed.name] = lock
    return locks


def _start(work: Work, child: _Child, locks: Mapping[str, int]) -> None:
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child.pid = os.fork()
    if child.pid == 0:
        code = EXIT_CANNOT
        try:
            os.close(reader)
            for name, lock in locks.items():
                if name != child.feed.name:
                    os.close(lock)
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                code = _child(work, child, writer)
        except BaseException as error:  # noqa: BLE001
            # Whatever a library raises ends this process alone; the one that watches tells it and starts anew.
            _last_words(writer, error)
        finally:
            os._exit(code)
    os.close(writer)
    child.pipe = reader
    child.alive = child.started = time.monotonic()
    child.killed = False
    child.last = ""


def _child(work: Work, child: _Child, pipe: int) -> int:
    feed = child.feed
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _n, _f: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C reaches the watching process, which tells us
    beaten = 0.0

    def beat() -> None:
        nonlocal beaten
        now = time.monotonic()
        if now - beaten > 0.1:
            beaten = now
            try:
                os.write(pipe, b".")
            except OSError:
                return  # the pipe is full: signs enough

    status = statuses.read(work.folder, feed.name)
    status.pid, status.restarts, status.state = os.getpid(), status.restarts + (1 if child.restarts else 0), "idle"
    runner = Runner(
        feed,
        work.source(feed),
        open_sink(feed, replace(work.context, beat=beat, statuses=work.folder)),
        render=work.render(feed.text("format")),
        status=status,
        report=lambda found: statuses.write(work.folder, found),
        tell=work.tell(feed),
        stop=stop,
        beat=beat,
    )
    runner.run(drain=work.drain)
    return 0


def _last_words(pipe: int, error: BaseException) -> None:
    text = str(error) if isinstance(error, GuardError) else f"{type(error).__name__}: {error}"
    kind = b"!" if isinstance(error, GuardError) else b"?"
    try:
        os.write(pipe, kind + " ".join(text.split()).encode("utf-8", "replace")[:400])
    except OSError:
        return  # nobody listens any more


def _listen(children: Sequence[_Child], wait: float) -> None:
    pipes = {child.pipe: child for child in children if child.pipe >= 0}
    if not pipes:
        time.sleep(wait)
        return
    for pipe in select.select(list(pipes), [], [], wait)[0]:
        child = pipes[pipe]
        try:
            got = os.read(pipe, 65536)
        except BlockingIOError:
            continue
        if not got:
            os.close(pipe)
            child.pipe = -1
            continue
        child.alive = time.monotonic()
        words = got.lstrip(b".")
        if words:
            child.last = words.decode("utf-8", "replace")


def _watch(work: Work, child: _Child, say: Say) -> None:
    """Note what became of a feed's process, and end it when it hangs."""
    if not child.pid:
        return
    now = time.monotonic()
    silent = now - child.alive
    if silent > child.feed.seconds("watchdog") and not child.killed:
        say(f"feed {child.feed.name} has given no sign of life for {silent:.0f} s and is started again")
        child.killed = True
        os.kill(child.pid, signal.SIGKILL)
    if child.pipe >= 0 and not child.killed:
        return
    pid, result = os.waitpid(child.pid, 0 if child.killed else os.WNOHANG)
    if not pid:
        return
    if child.pipe >= 0:
        os.close(child.pipe)
        child.pipe = -1
    child.pid = 0
    code = os.waitstatus_to_exitcode(result)
    if code == 0:
        child.done, child.code = True, 0
        return
    refused = child.last.startswith("!")
    if child.last:
        say(child.last[1:] if refused else f"feed {child.feed.name} died: {child.last[1:]}")
    elif not child.killed:
        say(f"feed {child.feed.name} " + (f"died by signal {-code}" if code < 0 else f"ended with {code}"))
    if refused and work.drain:
        child.done, child.code = True, EXIT_CANNOT
        return
    child.restarts += 1
    child.failures = 0 if now - child.started > _RESTART_MOST else child.failures + 1
    pause = 0.0 if child.killed and child.failures < 3 else min(_RESTART_MOST, 0.25 * 2**child.failures)
    child.next_start = now + pause


def _problem(work: Work, child: _Child) -> str:
    return child.last[1:] or statuses.read(work.folder, child.feed.name).problem or "it is slow"


def _end(children: Sequence[_Child]) -> None:
    """Tell every process to end, and end those that do not."""
    alive = [child for child in children if child.pid]
    for child in alive:
        os.kill(child.pid, signal.SIGTERM)
    end = time.monotonic() + _GRACE
    while alive:
        for child in list(alive):
            if os.waitpid(child.pid, os.WNOHANG)[0]:
                child.pid = 0
                alive.remove(child)
        if alive and time.monotonic() > end:
            for child in alive:
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
                child.pid = 0
            break
        if alive:
            time.sleep(0.02)
    for child in children:
        if child.pipe >= 0:
            os.close(child.pipe)
            child.pipe = -1
