"""Writing a start down, so that guard-exec can make it again without an interpreter (docs/performance.md).

A start is a function of the command line and of what the host answers. A `Writer` stands between the launcher and
the system: it notes each question about files with its answer, and each step that changes something. guard-exec
(guard/exec/guard-exec.c) asks the questions again and, where every answer is the same, takes the steps again. What
the writer does not know, it does not write down: such a start is the launcher's every time.

The file: a line that names the form, a sum (FNV-1a, 64 bits) of all that follows, and steps. A step is a letter, the
number of its fields, and the fields, each with its length in 4 bytes before and a NUL after. Numbers are decimal.

    k key                                     who asks, where, and with which words, as guard-exec says it
    q kind about answer                       a question; `is_answer` in guard/exec/start.c has the kinds
    z file most                               the event lines, and how large they may be
    n umask restrict most                     bits of the umask, flags of Landlock, the longest program's name
    N policy                                  its name
    t shelf                                   a temporary directory is made in here
    u flags                                   namespaces that are entered
    m source target type flags data           a mount; `@` before a path that is opened with no link followed
    o path                                    what a mount shows is opened, for a rule: another may cover it later
    c size fs net scoped                      the Landlock ruleset
    r path access | s path access prefix name…   rights on a place ({tmp}, {0}: the first `o`), or on what is in it
    p port access
    w text                                    said on stderr
    e, f, x  text hole text…                  event lines: the start, a refusal after it, no execution
    d, D  glob…  | v text hole text…          the environment: dropped, kept, added
    l number value | b flags program          limits, and the filter
    S word… | V settings                      the supervisor's command line, and what it is told (marshal)
    P                                         no questions and no launcher: for a container
    .                                         the end
"""

import errno
import marshal
import posix as os
import sys
import time

from guard import confine, kernel
from guard.confine import launch as launching
from guard.confine import places, state
from guard.kernel import encode, landlock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable
    from types import ModuleType
    from typing import Any, TextIO

    from guard.confine.launch import Launch

MAGIC = b"guard-start 1\n"
MOST = 1 << 20  # bytes, as guard-exec has it
_KEPT = 128  # starts of one user; the oldest goes first
_DAY = 86400  # seconds after which a start is decided anew in any case: what a name service knows has no date
LONGEST_NAME = 64  # characters of a program's name that an event tells
# The environment that decides something: all of it in the key, asked again by guard-exec, or not a question of files.
_VARIABLES = (b"HOME", b"PATH", b"GUARD_STATE_DIR", b"GUARD_CONFIG_DIR", b"SLURM_JOB_ID", b"MAKEFLAGS")
# Calls that ask nothing of the file system that could be answered differently the next time, or that are steps.
_PLAIN = {
    "close", "dup", "fork", "fspath", "fstat", "getcwd", "getegid", "geteuid", "getgroups", "getpid", "getppid",
    "getuid", "kill", "mkdir", "rename", "rmdir", "set_inheritable", "strerror", "umask", "uname", "unlink", "urandom",
    "waitpid", "write", "read", "lseek", "chdir", "statvfs", "terminal_size", "environ", "error", "_exit", "execve",
    "ftruncate", "truncate", "stat_result", "sched_yield",
}  # fmt: skip


def sum_of(content: bytes) -> int:
    """The file's sum: FNV-1a of 64 bits."""
    total = 0xCBF29CE484222325
    for byte in content:
        total = (total ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return total


class Steps:
    """A file in the making."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, letter: str, *fields: "str | bytes | int") -> None:
        """Append a step.

        Raises:
            ValueError: a field that the form cannot carry.
        """
        if len(fields) > 255:
            raise ValueError("too many fields")
        part = letter.encode() + bytes([len(fields)])
        for field in fields:
            data = field if isinstance(field, bytes) else encode(str(field))
            part += len(data).to_bytes(4, sys.byteorder) + data + b"\0"
        self._parts.append(part)

    def content(self, more: "Steps | None" = None) -> bytes:
        """The whole file.

        Args:
            more: further steps, which come behind.
        """
        body = b"".join((*self._parts, *(more._parts if more else ()), b".\0"))
        return MAGIC + sum_of(body).to_bytes(8, sys.byteorder) + body


class _Witness:
    """Stands in for `posix` in the launcher's modules and notes what is asked.

    Args:
        note: takes a question: (kind, about, answer).
        spoil: takes the reason why this start cannot be written down.
        opened: takes the path and the descriptor of what was opened to be named by it alone (O_PATH).
    """

    def __init__(
        self,
        note: "Callable[[str, str, str | bytes], None]",
        spoil: "Callable[[str], None]",
        opened: "Callable[[str, int], None]",
    ) -> None:
        self._note, self._spoil, self._opened = note, spoil, opened

    def __getattr__(self, name: str) -> "Any":  # noqa: ANN401 - whatever posix has
        if name not in _PLAIN and not name.isupper() and not name.startswith("W"):
            self._spoil(f"posix.{name}")
        return getattr(os, name)

    def lstat(self, path: str) -> "os.stat_result":
        return self._status("l", path, os.lstat)

    def stat(self, path: "str | int") -> "os.stat_result":
        return os.stat(path) if isinstance(path, int) else self._status("s", path, os.stat)

    def _status(self, kind: str, path: str, ask: "Callable[[str], os.stat_result]") -> "os.stat_result":
        try:
            status = ask(path)
        except OSError as error:
            self._note(kind, path, f"-{error.errno}")
            raise
        self._note(kind, path, f"{status.st_mode:o} {status.st_uid}")
        return status

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: "int | None" = None) -> int:
        acts = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and not flags & os.O_PATH
        if acts or flags & os.O_DIRECTORY:
            return os.open(path, flags, mode, dir_fd=dir_fd)
        if dir_fd is not None:
            self._spoil(f"{path} beneath a descriptor")
        kind = "p" if flags & os.O_PATH else "f"
        try:
            fd = os.open(path, flags, mode, dir_fd=dir_fd)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP):
                self._spoil(f"{path}: {error.strerror}")
            self._note(kind, path, f"-{error.errno}")
            raise
        status = os.fstat(fd)
        if kind == "f":
            self._note("l", path, f"{status.st_mode:o} {status.st_uid}")  # whose word it is
        if kind == "p":
            real = os.readlink(f"/proc/self/fd/{fd}")
            self._note(kind, path, f"{status.st_mode:o} {status.st_uid} {real}")
            self._opened(path, fd)
        elif status.st_mode & 0o170000 != 0o100000:
            self._note(kind, path, "no file")
        else:
            begin = os.pread(fd, 4097, 0)
            if len(begin) > 4096:
                self._note("n", path, _stamp(status))
            else:
                self._note(kind, path, begin)
        return fd

    def readlink(self, path: str) -> str:
        target = os.readlink(path)
        if path == "/proc/self":
            self._note("i", path, str(int(target == str(os.getpid()))))
        elif not path.startswith("/proc/self/fd/"):
            self._spoil(f"readlink {path}")
        return target

    def listdir(self, path: str) -> "list[str]":
        try:
            names = os.listdir(path)
        except OSError as error:
            self._note("d", path, f"-{error.errno}")
            raise
        self._note("d", path, str(sum(sum_of(encode(name)) for name in names) & 0xFFFFFFFFFFFFFFFF))
        return names

    def access(self, path: str, mode: int) -> bool:
        self._spoil(f"access {path}")
        return os.access(path, mode)

    def ttyname(self, fd: int) -> str:
        try:
            name = os.ttyname(fd)
        except OSError:
            self._note("y", str(fd), "")
            raise
        self._note("y", str(fd), name)
        return name


def _own_modules() -> "list[ModuleType]":
    return [module for name, module in sys.modules.items() if name == "guard" or name.startswith("guard.")]


def _stamp(status: "os.stat_result") -> str:
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"


class _Environment(dict[bytes, bytes]):
    """The caller's environment, which tells of the variables that were asked for by name."""

    def __init__(self, content: "dict[bytes, bytes]", spoil: "Callable[[str], None]") -> None:
        super().__init__(content)
        self._spoil = spoil

    def get(self, name: bytes, default: "Any" = None) -> "Any":  # noqa: ANN401
        if name not in _VARIABLES:
            self._spoil(f"variable {name!r}")
        return super().get(name, default)


class _Said:
    """Stands in for stderr: what is said belongs to the start."""

    def __init__(self, stream: "TextIO", steps: Steps) -> None:
        self._stream, self._steps = stream, steps

    def write(self, text: str) -> int:
        self._steps.add("w", text)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()


class _Unwritten(state.Spool):
    """Makes events' lines and keeps them."""

    def __init__(self, spool: state.Spool, producer: str, seq: int) -> None:
        self.path, self.lost_path, self.seq = spool.path, spool.lost_path, seq
        self._producer = producer
        self.lines: list[bytes] = []

    def write(self, record: "dict[str, object]") -> None:
        self.lines.append(self.line(record))

    def lost(self) -> int:
        return 0


class Writer:
    """Notes one start from here on, and keeps it.

    Args:
        launch: the start, its words read.
        program: the file that will be executed, of which nothing is noted: another command finds its own.
    """

    def __init__(self, launch: "Launch", program: str) -> None:
        self._launch, self._program = launch, program
        self._faults: list[str] = []
        self._questions: dict[tuple[str, str], str | bytes] = {}
        self._taken = Steps()  # steps with an effect, in order
        self._is_masked = False
        self._mounted: list[str] = []  # where the session's own mounts are
        self._held: dict[int, tuple[int, int, int]] = {}  # descriptor to number, device, inode of an `o` step
        self._opened_count = 0
        self._has_ruleset = False
        fd = launch.options.write_start
        try:
            name_and_key = os.pread(fd, 1 << 16, 0)
            os.close(fd)
        except OSError:
            name_and_key = b""
        self._name, self._key = name_and_key[:16].decode("ascii", "replace"), name_and_key[16:]
        if len(self._name) != 16 or self._name.strip("0123456789abcdef"):
            self.spoil("no name")
        self._stand_in()
        for path in ("/proc/self/uid_map", "/proc/sys/kernel/random/boot_id"):
            with open(path, "rb") as file:
                self._note("f", path, file.read(4096))
        # Another guard, or another interpreter, decides anew.
        for path in ("/etc/passwd", sys.executable, *(module.__file__ or "" for module in _own_modules())):
            self._note("n", path, _stamp(os.stat(path)))

    def spoil(self, why: str) -> None:
        """Take note that the start cannot be written down."""
        self._faults.append(why)

    def _note(self, kind: str, about: str, answer: "str | bytes") -> None:
        tmp = self._launch.tmp
        if any(places.is_below(path, top) for top in self._mounted for path in (about, str(answer).rpartition(" ")[2])):
            return  # by our own mounts, and so the next time
        if self._is_masked and kind in "lsp" and isinstance(answer, str) and not answer.startswith("-"):
            # In a user namespace root's files are nobody's; guard-exec asks before it enters one.
            mode, _, rest = answer.partition(" ")
            if kind == "p" and answer.endswith(f" {about}"):
                return  # the step that grants it asks the same
            kind, answer = kind.upper(), " ".join((mode, *rest.split(" ", 1)[1:]))
        if about == self._program or (tmp and (places.is_below(about, tmp.path) or (kind, about) == ("d", tmp.shelf))):
            return  # of the command, the session's own, or for the sweep
        if self._questions.setdefault((kind, about), answer) != answer:
            self.spoil(f"{about} changed meanwhile")

    def _note_sources(self, plan: "dict[str, Any]") -> None:
        if plan["expires"]:
            self._note("t", str(int(plan["expires"])), "before")
        for path, changed, size, inode in plan["sources"]:
            if changed < 0:
                self.spoil(f"{path} has just changed")
            self._note("n", path, f"{changed} {size} {inode}")

    def _stand_in(self) -> None:
        """Put witnesses where the launcher's modules look for the system."""
        writer, witness = self, _Witness(self._note, self.spoil, self._hold)

        class Ruleset(landlock.Ruleset):
            _is_listing = False

            def __init__(self, abi: int, fs: int, net: int = 0, scoped: int = 0) -> None:
                super().__init__(abi, fs, net, scoped)
                writer._has_ruleset = True
                writer._step("c", landlock.attribute_size(abi), fs, net, scoped)

            def allow_path(self, fd: int, access: int, is_directory: "bool | None" = None) -> None:
                super().allow_path(fd, access, is_directory)
                if not self._is_listing:
                    writer._step("r", writer._place(fd), access)

            def allow_entries(
                self, fd: int, access: int, prefix: str = "", left_out: "Container[str]" = ()
            ) -> None:
                self._is_listing = True
                super().allow_entries(fd, access, prefix, left_out)
                self._is_listing = False
                names: Iterable[str] = left_out  # type: ignore[assignment] # a dictionary or a tuple, here
                writer._step("s", writer._place(fd), access, prefix, *filter(None, names))

            def allow_port(self, port: int, access: int) -> None:
                super().allow_port(port, access)
                writer._step("p", port, access)

        def mount(
            source: "bytes | None", target: bytes, kind: "bytes | None", flags: int, data: "bytes | None" = None
        ) -> None:
            fields = (writer._opened(source), writer._opened(target), kind or b"", flags, data or b"")
            kernel_mount(source, target, kind, flags, data)
            writer._step("m", *fields)
            if fields[1].startswith(b"@") and kind:
                writer._mounted.append(kernel.decode(fields[1][1:]))

        def syscall(name: str, *args: "int | bytes | None") -> int:
            result = kernel_syscall(name, *args)
            if name == "unshare":
                if writer._is_masked:
                    writer.spoil("unshare twice")
                writer._is_masked = True
                writer._step("u", int(args[0] or 0))
            return result

        def is_fresh(plan: "dict[str, Any]") -> bool:
            """A plan, or the index of root's, which holds for as long as what it was made from."""
            fresh = plan_is_fresh(plan)
            if fresh:
                writer._note_sources(plan)
            return fresh

        def new_plan(request: "state.Request", kept: str) -> "tuple[dict[str, Any], bytes]":
            if state.is_site(writer._launch.options.config):
                writer.spoil("where a site decides only root's plans count")
            return plan_made_now(request, kept)

        def name_of(kind: str, number: int) -> str:
            writer.spoil(f"the name of {kind} {number}, which the name service may change")
            return name_of_number(kind, number)

        kernel_mount, kernel_syscall = kernel.mount, kernel.syscall
        plan_is_fresh, plan_made_now, name_of_number = state.is_fresh, state._new_plan, state._name_of
        self._replaced: list[tuple[Any, str, Any]] = []
        for module, name, other in (
            *((module, "os", witness) for module in (confine, kernel, places, state, launching)),
            (landlock, "Ruleset", Ruleset), (kernel, "mount", mount), (kernel, "syscall", syscall),
            (state, "is_fresh", is_fresh), (state, "_new_plan", new_plan), (state, "_name_of", name_of),
            (sys, "stderr", _Said(sys.stderr, self._taken)),
        ):  # fmt: skip
            self._replaced.append((module, name, getattr(module, name)))
            setattr(module, name, other)
        self._environment = self._launch.environment
        self._launch.environment = _Environment(self._environment, self.spoil)

    def _step_back(self) -> None:
        for module, name, former in self._replaced:
            setattr(module, name, former)
        self._launch.environment = self._environment

    def _step(self, letter: str, *fields: "str | bytes | int") -> None:
        try:
            self._taken.add(letter, *fields)
        except ValueError as error:
            self.spoil(str(error))

    def _place(self, fd: int) -> str:
        real = os.readlink(f"/proc/self/fd/{fd}")
        tmp = self._launch.tmp
        if tmp and real == tmp.path:
            return "{tmp}"
        number, *inode = self._held.get(fd, (-1, 0, 0))
        status = os.fstat(fd)
        if inode == [status.st_dev, status.st_ino]:
            return f"{{{number}}}"
        shown = os.stat(real)
        if (shown.st_dev, shown.st_ino) != (status.st_dev, status.st_ino):
            self.spoil(f"a grant of {real}, which is covered")
        if not real.startswith("/") or real.endswith(" (deleted)"):
            self.spoil(f"a grant of {real}")
        return real

    def _hold(self, path: str, fd: int) -> None:
        """What one of the session's own mounts shows is held open from here on, under a number."""
        self._held.pop(fd, None)
        if path in self._mounted:
            status = os.fstat(fd)
            self._held[fd] = self._opened_count, status.st_dev, status.st_ino
            self._opened_count += 1
            self._step("o", path)

    def _opened(self, name: "bytes | None") -> bytes:
        """How a mount's source or target is written: the place that it was opened at."""
        if not name or not name.startswith(b"/proc/self/fd/"):
            return name or b""
        return b"@" + encode(os.readlink(name.decode()))

    def keep(self, held: places.Places, supervised: bool, record_start: "Callable[[], None]") -> None:
        """Write the start down, if it can be made again; never fails.

        Args:
            held: its places.
            supervised: whether a supervisor is to stand beside it.
            record_start: puts the start on record.
        """
        self._step_back()
        launch = self._launch
        if not self._fits():
            self._say()
            return
        try:
            content = self._content(held, supervised, record_start)
        except ValueError as error:
            self.spoil(str(error))
        if self._faults or len(content) > MOST:
            self._say()
            return
        shelf = f"{launch.options.state}/starts"
        state.keep(shelf, self._name, content)
        _forget_oldest(shelf)

    def _say(self) -> None:
        if b"GUARD_DEBUG" in os.environ:
            sys.stderr.write(f"guard: this start is not written down: {'; '.join(self._faults)}\n")

    def _fits(self) -> bool:
        """Whether what holds beside the questions lets guard-exec make this start."""
        launch, plan = self._launch, self._launch.plan
        for fault, why in (
            (not self._has_ruleset, "no Landlock"),
            (launch.fault or not launch.spool or launch.spool.lost(), "events"),
            (plan["mode"] != "enforce" or plan["alerts"] or launch.options.audit, "the mode"),
            (launching.sandboxed() or os.getuid() != launch.uid, "another sandbox"),
            (kernel._ENCODING != "utf-8", "the encoding"),
            (launch.options.state_named and launch.options.state != kernel.decode(self._environment.get(
                b"GUARD_STATE_DIR", b"")), "--state"),
        ):  # fmt: skip
            if fault:
                self.spoil(why)
        return not self._faults

    def _content(self, held: places.Places, supervised: bool, record_start: "Callable[[], None]") -> bytes:
        launch, plan = self._launch, self._launch.plan
        spool, tmp = launch.spool, launch.tmp
        if spool is None or tmp is None:
            raise ValueError("no state")
        self._note("t", str(int(time.time() + _DAY)), "before")
        self._note("a", "", str(landlock.abi()[0]))
        self._note("h", "", os.uname().nodename)
        self._note("z", spool.lost_path, "0")
        self._questions["l", tmp.shelf] = f"40700 {launch.uid}"
        self._note_sources(plan)
        steps = Steps()
        steps.add("k", self._key)
        for (kind, about), answer in self._questions.items():
            steps.add("q", kind, about, answer)
        steps.add("z", spool.path, state.SPOOL_LIMIT)
        steps.add("n", plan["umask"], plan["restrict_flags"], LONGEST_NAME)
        steps.add("N", plan["policy"])
        steps.add("t", tmp.shelf)
        self._add_lines(steps, record_start)
        steps.add("d", *map(encode, plan["env_drop"]))
        steps.add("D", *map(encode, plan["env_keep"]))
        steps.add("v", "TMPDIR=", "tmp")
        steps.add("v", "TMUX_TMPDIR=", "tmp")
        steps.add("v", "GUARD_SESSION=", "session")
        steps.add("v", f"GUARD_POLICY={plan['policy']}")
        for number, value in plan["rlimits"]:
            steps.add("l", number, value)
        steps.add("b", plan["seccomp_flags"], launch.own_ipc + plan["bpf_supervised" if supervised else "bpf"])
        if supervised:
            from guard.confine import beside

            steps.add("S", sys.executable, "-I", "-S", *self._entry())
            steps.add("V", marshal.dumps(beside.told(launch, held), 2))
        return steps.content(self._taken)

    def _entry(self) -> "list[str]":
        """The interpreter's words for a supervisor: the bundle, where it is as new as the modules."""
        library, _, _ = __file__.rpartition("/guard/")
        bundle = f"{library}/guard/supervisor.pyc"
        try:
            made = os.stat(bundle).st_mtime_ns
            newest = max(os.stat(module.__file__ or "").st_mtime_ns for module in _own_modules())
        except OSError:
            made, newest = 0, 1
        if made >= newest:
            return [bundle]
        code = f"import sys; sys.path.insert(0, {library!r}); from guard.confine.beside import main; main()"
        return ["-c", code]

    def _add_lines(self, steps: Steps, record_start: "Callable[[], None]") -> None:
        """The lines of the events that guard-exec may have to write, made as ours are."""
        launch = self._launch
        spool = launch.spool
        if spool is None:
            raise ValueError("no state")
        producer = f"run:{launch.id}"
        try:
            for letter, seq in (("e", 0), ("f", 1), ("x", 1)):
                launch.spool = made = _Unwritten(spool, producer, seq)
                if letter == "e":
                    record_start()
                elif letter == "f":
                    launch.record_refused("", "")
                else:
                    launch.record_unexecuted(126)
                steps.add(letter, *_with_holes(made.lines[0].decode(), launch, letter == "e"))
        finally:
            launch.spool = spool


def _with_holes(line: str, launch: "Launch", is_start: bool) -> "list[str]":
    """An event's line as texts with the names of holes between them; each hole where it is expected, and once."""
    import json

    event = json.loads(line)
    exe = event["process"]["exe"]
    holes = [
        ("event", f'"id":"{event["id"]}"', event["id"]),
        ("time", f'"time":"{event["time"]}"', event["time"]),
        ("session", f'"producer":"run:{launch.id}"', launch.id),
        ("session", f'"session":"{launch.id}"', launch.id),
        ("root", f'"root_pid":{event["tree"]["root_pid"]},', str(event["tree"]["root_pid"])),
        ("pid", f'"pid":{event["process"]["pid"]},', str(event["process"]["pid"])),
        ("ppid", f'"ppid":{event["process"]["ppid"]},', str(event["process"]["ppid"])),
        ("argc", f'"argc":{event["process"]["argc"]},', str(event["process"]["argc"])),
        ("exe", f'"exe":"{exe}"', exe),
        ("exe", f'"argv":["{exe}"]', exe),
    ]
    if is_start:
        holes.append(("exe", f'"message":"{exe} started under ', exe))
    places_: list[tuple[int, int, str]] = []
    for name, around, value in holes:
        if line.count(around) != 1:
            raise ValueError(f"no place for {name} in the event")
        at = line.index(around) + around.rindex(value)
        places_.append((at, at + len(value), name))
    if is_start and len(event["message"]) + LONGEST_NAME - len(exe) > 99:
        raise ValueError("a long message")
    texts: list[str] = []
    done = 0
    for begin, end, name in sorted(places_):
        texts += [line[done:begin], name]
        done = end
    return [*texts, line[done:]]


def _forget_oldest(shelf: str) -> None:
    """Keep no more starts than `_KEPT`."""
    try:
        names = os.listdir(shelf)
        if len(names) <= _KEPT:
            return
        for name in sorted(names, key=lambda name: os.lstat(f"{shelf}/{name}").st_mtime_ns)[:-_KEPT]:
            os.unlink(f"{shelf}/{name}")
    except OSError:
        return  # another start of the user's has just done so
