"""What a backend saw: frozen values, no judgement.

Every fact names the process by pid *and* start time, for it may be gone before anybody looks. Texts that a program
chose are bytes: they are not text, and argv and samples hold secrets. Nothing of this module is ever stored; only
what went through the redactor is.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass

Address = str
"""An IP address as text, v4-mapped ones unfolded to IPv4."""


def boot_time() -> int:
    """Nanoseconds since boot, suspended time included: the clock of every fact, and of bpf_ktime_get_boot_ns()."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Verdict(enum.Enum):
    """What became of the act. The words are those of an event."""

    OBSERVED = "observed"
    DENIED = "denied"
    REWRITTEN = "rewritten"


class Program(enum.Flag):
    """What kind of program an executable is, by its name, its inode or its exact size."""

    NONE = 0
    SHELL = enum.auto()
    PYTHON = enum.auto()
    """Takes code by `-c` and `-m`."""
    INTERPRETER = enum.auto()
    """Takes code by `-e`: perl, ruby, node, lua, R."""
    HARNESS = enum.auto()
    TRUSTED = enum.auto()
    """A fetcher that the policy trusts: what it writes is not taken as data from outside."""
    LAUNCHER = enum.auto()
    """Runs what its argument names: the dynamic linker, busybox."""
    HINT = enum.auto()
    """A word of argv that only the catalogue can judge: `cli.js`, an extension host."""
    SCHEDULER = enum.auto()
    COPIED = enum.auto()
    """Known by its size alone: a copy of an interpreter under another name."""
    RESOLVER = enum.auto()
    """Asks for names and hands on the answer: dig."""


class CodeBy(enum.Enum):
    """How an interpreter is told its code, read from argv."""

    NONE = "none"
    STDIN = "stdin"
    ARGUMENT = "argument"
    FILE = "file"
    DESCRIPTOR = "descriptor"


@dataclass(frozen=True)
class Process:
    """Who did it.

    Args:
        pid: of the process (thread-group id), in the host's pid namespace.
        start: nanoseconds since boot, suspended time included (`start_boottime`). With the pid it is unique.
        ppid: its parent now.
        uid: real user id, in the host's user namespace.
        comm: the kernel's 15 bytes of its name.
        root: pid of its tree's harness process; 0: the process is in no tree.
        root_start: start of that process.
        harness: it is a harness itself, and no descendant.
    """

    pid: int
    start: int
    ppid: int
    uid: int
    comm: bytes
    root: int
    root_start: int
    harness: bool = False


@dataclass(frozen=True)
class Fact:
    """What all facts have.

    Args:
        time: nanoseconds since boot, suspended time included (CLOCK_BOOTTIME).
        who: the process.
    """

    time: int
    who: Process


@dataclass(frozen=True)
class Exec(Fact):
    """A program was started. Of a process in no tree: only where a name of the catalogue stands in it.

    Args:
        path: as it was asked for.
        name: of the file that really runs (of a script: the interpreter), without directories, links resolved.
        argv: as much as was seen, at most 16 KiB; the last word may be cut where `unseen` is not 0.
        unseen: bytes of argv that were not seen.
        program: what it is.
        code_by: how it gets its code, of interpreters.
        fed: whoever called exec had taken in data from outside before: argv may hold it.
        written_by: pid of the process of the tree that wrote the file, 0: nobody that is known.
        sid: session id (setsid) of the process.
        tty: device number of its terminal, 0: none.
    """

    path: bytes
    name: bytes
    argv: tuple[bytes, ...]
    unseen: int = 0
    program: Program = Program.NONE
    code_by: CodeBy = CodeBy.NONE
    fed: bool = False
    written_by: int = 0
    sid: int = 0
    tty: int = 0


@dataclass(frozen=True)
class Fork(Fact):
    """A process of a tree (`who`) made another one.

    Args:
        child: its pid.
        child_start: its start, as in `Process`.
    """

    child: int
    child_start: int


@dataclass(frozen=True)
class Exit(Fact):
    """The last thread of a process of a tree ended.

    Args:
        status: as `wait` gives it.
    """

    status: int


class ModeBy(enum.Enum):
    """How something became writable by anybody."""

    CHMOD = "chmod"
    ACL = "acl"
    DEFAULT_ACL = "default-acl"
    """The default of a directory: what is made in it later."""
    OPEN = "open"
    MKDIR = "mkdir"
    MKNOD = "mknod"
    BIND = "bind"
    """The file of a unix socket."""


@dataclass(frozen=True)
class Mode(Fact):
    """Something other than a symbolic link has, or would have had, the other-write bit.

    Args:
        path: absolute where the kernel could tell, else as the program gave it.
        mode: all of st_mode's bits: type, sticky, permissions; the type is 0 where unknown.
        before: permissions before, -1: not known or new.
        by: how.
        verdict: whether it was done.
        io_uring: asked by a request and not by a system call.
        more: so many others like it, by the same process, stand behind this one (`folding`).
        under: directories that those lie in, the first of them.
    """

    path: bytes
    mode: int
    before: int
    by: ModeBy
    verdict: Verdict = Verdict.OBSERVED
    io_uring: bool = False
    more: int = 0
    under: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class _Socket(Fact):
    address: Address
    port: int
    family: str
    """inet or inet6; dual-stack sockets are inet6."""
    kind: str
    """stream, dgram, seqpacket, raw."""
    protocol: int
    """IPPROTO_*: 6 TCP, 17 UDP, 262 MPTCP."""
    private: bool
    """In a network namespace other than the monitor's: harms nobody."""
    verdict: Verdict = Verdict.OBSERVED


@dataclass(frozen=True)
class Bind(_Socket):
    """A socket was given a name that is not loopback. Port 0 only where it is a listener to be."""


@dataclass(frozen=True)
class Listen(_Socket):
    """A socket listens on an address that is not loopback; port 0: the kernel chooses."""


@dataclass(frozen=True)
class Connect(_Socket):
    """A process of a tree, not its harness, connects to an address that is not loopback.

    Args:
        more: so many others of the same process stand behind this one (`folding`).
    """

    more: int = 0


@dataclass(frozen=True)
class Received(Fact):
    """A process got data from outside for the first time since its exec. Trusted fetchers and harnesses never do.

    Args:
        address: of the peer.
        port: of the peer.
        sample: the first bytes, at most 64, where they were seen. Memory only.
    """

    address: Address
    port: int
    sample: bytes = b""


class Through(enum.Enum):
    """What data flowed through."""

    PIPE = "pipe"
    FILE = "file"
    SOCKET = "socket"
    """AF_UNIX."""
    MAPPING = "mapping"
    TERMINAL = "terminal"
    """A pseudo-terminal: what a program in it wrote, read by who holds it (script, expect)."""


@dataclass(frozen=True)
class Taint(Fact):
    """Data from outside was written into something for the first time.

    Args:
        through: into what.
        name: of the file, without directories; empty for a pipe or socket.
        sample: the first bytes written, at most 64, where they were seen. Memory only.
    """

    through: Through
    name: bytes
    sample: bytes = b""


@dataclass(frozen=True)
class TaintRead(Fact):
    """A shell or interpreter read data from outside, not as its code: `x=$(curl …)`, `read`.

    With a text that evaluates it (`eval`), it is code after all.

    Args:
        through: from what.
        name: of the file.
        descriptor: it was read from, -1: unknown.
        writer: the process that put it there, pid.
        writer_comm: its name.
        sample: as in `Taint`.
    """

    through: Through
    name: bytes
    descriptor: int
    writer: int
    writer_comm: bytes
    sample: bytes = b""


class CodeHow(enum.Enum):
    """How data from outside came to be code."""

    STDIN = "stdin"
    DESCRIPTOR = "descriptor"
    SCRIPT = "script"
    """The file is the script."""
    SOURCED = "sourced"
    """A shell opened it beside its own code: `source <(…)`, `. file`."""
    EXECUTED = "executed"
    """The file itself was executed."""
    MAPPED = "mapped"
    """Mapped with the right to execute: a library."""


@dataclass(frozen=True)
class CodeFromOutside(Fact):
    """An interpreter (`who`) takes data from outside as its code, or such a file is executed.

    Args:
        how: the sink.
        through: what it came through.
        name: of the file; empty for a pipe or socket.
        interpreter: what `who` is.
        code_by: how it gets its code.
        writer: pid of the process that wrote it; 0: not known.
        writer_comm: its name: what fetched, or the last stage between.
        verdict: whether it was done.
    """

    how: CodeHow
    through: Through
    name: bytes
    interpreter: Program
    code_by: CodeBy
    writer: int
    writer_comm: bytes
    verdict: Verdict = Verdict.OBSERVED


@dataclass(frozen=True)
class WroteThenRan(Fact):
    """A tree executed a file that it wrote itself (a build does, too).

    Args:
        name: of the file.
        writer: pid.
        writer_comm: its name.
        copied: it has the exact size of a known interpreter.
    """

    name: bytes
    writer: int
    writer_comm: bytes
    copied: Program = Program.NONE


@dataclass(frozen=True)
class RawSyscall(Fact):
    """A system call by an entry that an ordinary program does not use.

    Args:
        entry: `int80` (32-bit calls of a 64-bit or 32-bit program) or `x32`.
        number: as of that entry.
        program32: the whole program is a 32-bit one: no trick, merely old.
    """

    entry: str
    number: int
    program32: bool = False


@dataclass(frozen=True)
class IoUring(Fact):
    """A process of a tree set up a ring, or asked by one for something that matters.

    Args:
        operation: `setup`, or the request: `openat`, `mkdirat`, `setxattr`, `bind`, `listen`, `connect`, …
    """

    operation: str


@dataclass(frozen=True)
class Hold(Fact):
    """A process of a tree took hold of what is not the tree's: of another process, or of a terminal's input.

    Args:
        other: pid of that process, or of one of its threads, as who did it numbers it; 0 of a terminal.
        what: `process` (ptrace, its memory read or written) or `terminal` (TIOCSTI: as if somebody had typed).
    """

    other: int
    what: str = "process"


@dataclass(frozen=True)
class Walk(Fact):
    """A process of a tree asked for the metadata of many files (stat, getdents), said at every thousand.

    Args:
        calls: since its exec.
    """

    calls: int


@dataclass(frozen=True)
class Loss:
    """Facts that were not delivered, since the last Loss of this stage.

    Args:
        time: nanoseconds since boot.
        stage: `alerts` and `telemetry` (ring full), `trees` (no room for a label), `taint` (marks pushed out),
            `argv` (not readable), `decode`.
        count: how many.
    """

    time: int
    stage: str
    count: int


@dataclass(frozen=True)
class Coverage:
    """The backend sees more or less than before.

    Its syscall-wide programs were attached or detached, a program fell off, a pinned one was found gone.

    Args:
        time: nanoseconds since boot.
        full: everything that this backend can see is seen.
        missing: what is not seen, in words.
        blind: nanoseconds from the first label to the attach; 0 where not applicable.
    """

    time: int
    full: bool
    missing: tuple[str, ...] = ()
    blind: int = 0


AnyFact = Fact | Loss | Coverage
