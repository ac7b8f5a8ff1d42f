"""Downloads that run: `curl | sh` in its forms, judged when programs start by what flows between them.

Every start adds what it knows (who writes which pipe, who takes its program from which, which file a fetcher
writes), and the one that would complete a way from a download to an interpreter is refused.

A guard, not a boundary. The answer to execve can only be "go on", and the kernel then reads the program's name and
arguments again: a thread of the caller may have changed them. docs/pipe-to-shell.md lists what is seen and what is not.
"""

import posix as os
import time

from guard import kernel
from guard.confine.handlers import commands, facts, flow, paths, scripts
from guard.confine.handlers.base import CONTINUE, Call, Supervisor
from guard.kernel import basename
from guard.kernel.notify import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.confine.handlers.base import Handler

_EACCES = 13
_AT_EMPTY_PATH = 0x1000
_MOST_CACHED = 4096
_FORGET_AT = 1024  # pipes known: look which of them are still there
_MOST_PROCESSES, _MOST_AWAITED, _MOST_BESIDE = 4096, 64, 256
_SYSTEM = (b"/usr/", b"/bin/", b"/sbin/", b"/lib/", b"/lib64/", b"/opt/")
_TAKES_FILES = {"cat", "tac", "tee", "head", "tail", "zcat", "gunzip", "base64", "gzip", "dd"}
_NAMES_OUTPUT = {"cp", "install", "openssl", "gpg", "xxd", "iconv"}  # `install /dev/stdin f`
_ALLOW = {
    "pipe-to-shell": "save it, read it, and let a person run it outside guard",
    "downloaded-exec": "read it; let a person run it outside guard, or write what you need into a file of your own",
    "memory-exec": "write the program to a file in the project",
    "caller-unreadable": "start it from a shell or another ordinary program",
}
_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
_COPIED = ("bash", "dash", "zsh", "ksh93", "busybox", "python3", "perl", "node", "ruby", "curl", "wget")


def handlers(supervisor: "Supervisor") -> "dict[str, Handler]":
    """The calls of this file; what is remembered is this supervisor's alone."""
    judge = Pipes(supervisor)
    return {"execve": judge.execve, "execveat": judge.execveat}


class _Start:
    """What is known about one program that is about to start.

    Attributes:
        call: who starts it. name, arguments: of the program that is meant.
        reads, writes: the pipes of 0 and 1. output: what 1 writes, a file's key too.
    """

    __slots__ = ("arguments", "call", "name", "output", "reads", "writes")

    def __init__(self, call: "Call", name: str, arguments: "list[str]") -> None:
        self.call, self.name, self.arguments = call, name, arguments
        self.reads = self.writes = self.output = ""


class Pipes:
    """Judges the starts of one tree.

    Args:
        supervisor: whose.
    """

    def __init__(self, supervisor: "Supervisor") -> None:
        self._supervisor = supervisor
        self._flow = flow.Flow()
        self._downloads = flow.Downloads()
        self._awaited: dict[str, int] = {}  # paths that a fetcher has yet to make, and the fetcher
        self._fed: dict[int, float] = {}  # shells that wait for a fetcher's output themselves: `$(curl …)`
        self._fifos: dict[str, int] = {}  # named pipes that a fetcher writes, and the fetcher
        self._looked = 0.0  # when the named pipes were looked at
        self._peers: dict[str, str] = {}  # unix sockets and what they are connected to
        self._programs: dict[bytes, tuple[str, str]] = {}  # system paths: name, kind
        self._files: dict[tuple[int, ...], str] = {}  # other programs by identity: name
        self._sizes: dict[int, list[str]] | None = None
        self._forget_at = _FORGET_AT
        tops = [(top.rstrip("/") + "/").encode("utf-8", "surrogateescape") for top in supervisor.writable]
        writable = any(top == b"/" or top.startswith(_SYSTEM) for top in tops)
        self._system = () if writable else _SYSTEM  # what lies here, the tree neither fetched nor copied

    def execve(self, supervisor: "Supervisor", call: "Call") -> int:
        """execve(path, argv, envp)."""
        try:
            path = call.string(call.args[0])
            self._judge(call, paths.AT_FDCWD, path, call.args[1])
        except Unreadable:
            self._refuse(call, "caller-unreadable", "a program started by one that cannot be read")
        return CONTINUE

    def execveat(self, supervisor: "Supervisor", call: "Call") -> int:
        """execveat(directory, path, argv, envp, flags)."""
        try:
            path = call.string(call.args[1])
            start = call.args[0] & 0xFFFFFFFF
            if not path and call.args[4] & _AT_EMPTY_PATH:
                path = b"/proc/self/fd/%d" % start
            self._judge(call, start, path, call.args[2])
        except Unreadable:
            self._refuse(call, "caller-unreadable", "a program started by one that cannot be read")
        return CONTINUE

    # Which program it is --------------------------------------------------------------------------------

    def _judge(self, call: "Call", start: int, path: bytes, argv: int) -> None:
        if self._awaited or self._fifos:
            self._look_again(call)
        if path.startswith(self._system) and b".." not in path:
            known = self._programs.get(path)
            if known is None:
                name = basename(path.decode("utf-8", "replace"))
                known = name, commands.kind(name)
                if len(self._programs) < _MOST_CACHED:
                    self._programs[path] = known
            name, kind = known
        else:
            name = self._identify(call, start, path)
            kind = commands.kind(name)
        plain = kind == commands.OTHER
        if kind == commands.COPIER and not self._downloads and name not in _TAKES_FILES:
            plain = name not in _NAMES_OUTPUT or not facts.link(call, 0).startswith(("pipe:", "socket:"))
        if plain:
            self._passes_on(call)
        else:
            self._consider(call, name, kind, argv)

    def _passes_on(self, call: "Call") -> None:
        """Most starts: a program whose arguments do not matter, and that hands something on if it writes a pipe."""
        if self._fed:
            self._starve(call)
        writes = facts.output(facts.link(call, 1))
        if writes:
            reads = self._reader(call, 0)
            if reads:
                self._filter(call, reads, writes)

    def _consider(self, call: "Call", name: str, kind: str, argv: int) -> None:
        pointers = facts.pointers(call, argv)
        shell = kind == commands.INTERPRETER and commands.family(name) == "sh"
        if shell and len(pointers) > 2 and not self._fed and self._is_plain_shell(call, pointers):
            self._passes_on(call)
            return
        arguments = facts.arguments(call, pointers)
        loader = name.startswith("ld")
        if kind == commands.WRAPPER:
            name, arguments = commands.meant(name, arguments)
            kind = commands.kind(name)
        start = _Start(call, name, arguments)
        start.reads, start.writes = self._reader(call, 0), self._writer(call, 1)
        start.output = start.writes or facts.output(facts.link(call, 1))
        if loader and arguments and "/" in arguments[0]:
            self._takes_path(start, arguments[0])  # the loader runs what is not executed by itself
        if len(self._flow) > self._forget_at:
            self._forget(call, start)
        if kind == commands.FETCHER:
            self._fetches(start)
            return
        fed = bool(self._fed) and self._is_fed(call)
        if kind == commands.INTERPRETER:
            self._interprets(start, fed)
            return
        if kind == commands.WRAPPER and commands.from_list(name, arguments) and start.reads:
            self._takes_code(start, start.reads)
        elif kind == commands.COPIER:
            self._copies(start)
        if start.reads and start.output:
            self._filter(call, start.reads, start.output)

    def _is_plain_shell(self, call: "Call", pointers: "list[int]") -> bool:
        """Whether it is `sh -c TEXT` that runs nothing fetched: make and configure start thousands of these."""
        if facts.argument(call, pointers[1]) != "-c":
            return False
        return not self._downloads or not scripts.sourced(facts.argument(call, pointers[2]))

    def _identify(self, call: "Call", start: int, path: bytes) -> str:
        """Name a program outside the system's directories by what it is: links followed, copies of shells known.

        Downloads and what lies in memory are refused here.
        """
        key = facts.glance(call, start, path)
        known = self._files.get(key) if key else None
        if known is not None and not self._downloads.may_be(known, key[-3], key[-2]):
            return known
        try:
            fd = paths.resolve(call, start, path)
        except OSError:
            return basename(path.decode("utf-8", "surrogateescape"))  # the kernel will say so too
        try:
            status, real = paths.about(call, fd), paths.real(fd)
            if real.startswith("/memfd:"):
                self._refuse(call, "memory-exec", f"a program run from memory ({facts.safe(real.partition(' ')[0])})")
            name = basename(real.removesuffix(" (deleted)"))
            if self._is_download(call, real, fd, status):
                self._refuse(call, "downloaded-exec", f"{facts.safe(real)} was downloaded in this session")
            if commands.kind(name) == commands.OTHER:
                name = self._copy_of(call, fd, status) or name
            if key and key[-3:] == facts.identity(status):
                if len(self._files) >= _MOST_CACHED:
                    self._files.clear()
                self._files[key] = name
            return name
        finally:
            os.close(fd)

    def _copy_of(self, call: "Call", fd: int, status: "os.stat_result") -> str:
        """The well-known program that a file is a copy of; "" for none."""
        if self._sizes is None:
            self._sizes = {}
            for name in _COPIED:
                for directory in ("/usr/bin/", "/bin/", "/usr/local/bin/"):
                    try:
                        self._sizes.setdefault(os.stat(directory + name).st_size, []).append(directory + name)
                    except OSError:
                        continue
        for original in self._sizes.get(status.st_size, ()):
            try:
                if call.outside(facts.ends, f"/proc/self/fd/{fd}") == facts.ends(original):
                    return basename(original)
            except OSError:
                continue
        return ""

    # What it means --------------------------------------------------------------------------------------

    def _fetches(self, start: "_Start") -> None:
        call = start.call
        names, stdout = commands.outputs(start.name, start.arguments)
        self._check_text(call, start.arguments, names)
        now = time.time()
        if self._flow.has_sinks:
            self._connect_beside(call)
        if stdout and start.writes:
            if start.writes.startswith("fifo:"):
                self._fifos[start.writes] = call.pid
            self._source(call, start.writes)
            self._feed(call, start.writes)
        elif stdout:
            self._remember_descriptor(call, 1, now)
        for name in names:
            self._remember_name(call, name, now)

    def _source(self, call: "Call", pipe: str) -> None:
        complete = self._flow.add_source(pipe)
        self._take_files(call)
        if complete:
            self._refuse(call, "pipe-to-shell", "a download piped into an interpreter")

    def _check_text(self, call: "Call", arguments: "list[str]", names: "list[str]") -> None:
        """Look into the shell that starts a fetcher: what it evaluates itself starts no program."""
        text = facts.script(call)
        if text and basename(arguments[0] if arguments else "") in text:
            form = scripts.runs_fetched(text, arguments, names)
            if form:
                self._refuse(call, "pipe-to-shell", f"a download run by {form}")

    def _interprets(self, start: "_Start", fed: bool) -> None:
        call = start.call
        program = commands.program(start.name, start.arguments)
        took = False
        for path in program.files:
            took = self._takes_file(start, path) or took
        own = program.files and start.writes and commands.family(start.name) != "sh"
        if own and commands.fetches_in_code(facts.text(call, program.files[-1]), start.arguments):
            self._source(call, start.writes)  # a program that fetches and prints is a fetcher
        if self._downloads and commands.family(start.name) == "make" and not program.files:
            for path in _MAKEFILES:
                self._takes_file(start, path)
        if program.stdin:
            took = self._takes_standard_input(start) or took
            kin = commands.family(start.name)
            code = scripts.documents(facts.script(call), kin) if kin not in (None, "sh") else ""
            if code:  # `python3 - << END`
                self._code_fetches(start, code)
        elif program.text:
            self._takes_text(start, program.text, fed)
        if not took and start.reads and start.output:
            self._filter(call, start.reads, start.output)

    def _takes_standard_input(self, start: "_Start") -> bool:
        call = start.call
        if start.reads:
            self._takes_code(start, start.reads)
            return True
        link = facts.link(call, 0)
        if link.startswith("/memfd:"):
            self._refuse(call, "memory-exec", f"{start.name} given a program from memory")
        if self._downloads and link.startswith("/") and not facts.is_device(link):
            self._check_descriptor(start, 0)
        if link and facts.parent_name(call) in facts.RELAYS:
            self._refuse(call, "pipe-to-shell", f"{start.name} driven from the network")
        return False

    def _takes_code(self, start: "_Start", pipe: str) -> None:
        """An interpreter takes its program from a pipe."""
        call = start.call
        if pipe.startswith("network:"):
            self._refuse(call, "pipe-to-shell", f"{start.name} driven from the network")
            return
        tainted = self._flow.add_sink(pipe)
        if not tainted:
            self._connect_beside(call)  # shells between that start no program: `curl … | while read … | sh`
            tainted = self._flow.is_tainted(pipe)
        if tainted:
            self._refuse(call, "pipe-to-shell", f"a download piped into {start.name}")
        elif facts.parent_name(call) in facts.RELAYS:
            self._refuse(call, "pipe-to-shell", f"{start.name} driven from the network")
        elif facts.fetches(call):
            self._refuse(call, "pipe-to-shell", f"a download that its fetcher hands to {start.name}")

    def _takes_file(self, start: "_Start", path: str) -> bool:
        """An interpreter runs a file, or a descriptor by name; returns whether it is a pipe."""
        call = start.call
        number = facts.descriptor_in(path)
        if number >= 0:
            link = facts.link(call, number)
            if link.startswith("/memfd:"):
                self._refuse(call, "memory-exec", f"{start.name} given a program from memory")
            pipe = self._reader(call, number)
            if pipe:
                self._takes_code(start, pipe)
            elif link and self._downloads:
                self._check_descriptor(start, number)
            return bool(pipe)
        return self._takes_path(start, path)

    def _takes_path(self, start: "_Start", path: str) -> bool:
        pipe, downloaded = self._look_at(start.call, path)
        if pipe.startswith("/memfd:"):
            self._refuse(start.call, "memory-exec", f"{start.name} given a program from memory")
        elif pipe:
            self._takes_code(start, pipe)
        elif downloaded:
            what = f"{start.name} runs {facts.safe(path)}, downloaded in this session"
            self._refuse(start.call, "downloaded-exec", what)
        return bool(pipe)

    def _takes_text(self, start: "_Start", text: str, fed: bool) -> None:
        """An interpreter's program stands in its arguments."""
        call = start.call
        if fed and (text.startswith("#!") or text.strip().count("\n") > 1) and not facts.script(call):
            # What the shell read just now, and nothing is known of what was typed at it.
            self._refuse(call, "pipe-to-shell", f"a download given to {start.name} as its argument")
        if commands.family(start.name) == "sh":
            for path in scripts.sourced(text) if self._downloads else ():
                self._takes_file(start, path)
            return
        self._code_fetches(start, text)

    def _code_fetches(self, start: "_Start", text: str) -> None:
        """An interpreter's code stands in its arguments or its shell's: if it fetches, what it writes is a download."""
        call = start.call
        if not commands.fetches_in_code(text, start.arguments):
            return
        if commands.evaluates_what_it_fetches(text, start.arguments):
            self._refuse(call, "pipe-to-shell", f"a download that {start.name} fetches and runs itself")
        now = time.time()
        if start.writes:
            self._source(call, start.writes)
        else:
            self._remember_descriptor(call, 1, now)
        for name in commands.names_in_code(text):
            self._remember_name(call, name, now)

    def _copies(self, start: "_Start") -> None:
        """A program whose output is its input: what it makes of a download is one."""
        call = start.call
        sources, targets = commands.copies(start.name, start.arguments)
        now = time.time()
        fetched = bool(start.reads) and self._flow.is_tainted(start.reads)
        for path in sources[:16]:
            pipe, downloaded = self._look_at(call, path)
            if pipe and start.output and not pipe.startswith("/"):
                self._filter(call, pipe, start.output)
            fetched = fetched or downloaded or bool(pipe and self._flow.is_tainted(pipe))
        if not fetched and self._downloads and not sources:
            fetched = self._descriptor_is_download(call, 0)
        if start.name == "cp" and self._downloads:
            self._copies_tree(call, sources[:16], targets[:16], now)
        for path in targets[:16]:
            number = facts.descriptor_in(path)
            pipe = self._writer(call, number) if number >= 0 else self._look_at(call, path)[0]
            if pipe and start.reads:
                self._filter(call, start.reads, pipe)
            if fetched and not pipe:
                self._remember_name(call, path, now)
            elif start.reads and not pipe:
                real = facts.to_be(call, path.encode("utf-8", "surrogateescape"))
                if real:
                    self._filter(call, start.reads, flow.FILE + real)
        if fetched and (not targets or start.name == "tee"):
            if start.writes:
                self._source(call, start.writes)
            else:
                self._remember_descriptor(call, 1, now)

    def _copies_tree(self, call: "Call", sources: "list[str]", targets: "list[str]", now: float) -> None:
        """`cp -r`: what was downloaded into a directory is in the other one, too."""
        for path in sources:
            try:
                fd = paths.resolve(call, paths.AT_FDCWD, path.encode("utf-8", "surrogateescape"))
            except (OSError, ValueError):
                continue
            real = paths.real(fd)
            os.close(fd)
            for below in self._downloads.below(real):
                for target in targets:
                    self._remember_name(call, f"{target}/{below}", now)

    def _look_at(self, call: "Call", path: str) -> "tuple[str, bool]":
        """A named file: the pipe (or memory) that it is, or whether it is a download."""
        number = facts.descriptor_in(path)
        if number >= 0:
            return self._reader(call, number), False
        if facts.is_device(path):
            return "", False
        encoded = path.encode("utf-8", "surrogateescape")
        key = facts.glance(call, paths.AT_FDCWD, encoded)
        if key and not self._downloads.may_be(basename(path), key[-3], key[-2]):
            return "", False  # an ordinary file that nobody fetched
        try:
            fd = paths.resolve(call, paths.AT_FDCWD, encoded)
        except (OSError, ValueError):
            return "", False
        try:
            status, real = paths.about(call, fd), paths.real(fd)
            if status.st_mode & facts.S_IFMT == facts.S_IFIFO:
                return facts.fifo(real, status), False
            if real.startswith("/memfd:"):
                return real, False
            return "", self._is_download(call, real, fd, status)
        finally:
            os.close(fd)

    def _filter(self, call: "Call", reads: str, writes: str) -> None:
        if reads.startswith("network:"):  # `cat < /dev/tcp/…`
            self._source(call, writes)
        else:
            complete = self._flow.add_filter(reads, writes)
            self._take_files(call)
            if complete:
                self._refuse(call, "pipe-to-shell", "a download piped through a filter into an interpreter")
        if len(self._flow) > self._forget_at:
            self._forget(call, None)

    def _refuse(self, call: "Call", rule: str, what: str) -> None:
        self._supervisor.decide("pipe-to-shell", rule, what, _EACCES, call, _ALLOW[rule])

    # What is remembered ---------------------------------------------------------------------------------

    def _remember_name(self, call: "Call", path: str, now: float) -> None:
        """A fetcher was told to write a file by name."""
        number = facts.descriptor_in(path)
        if number >= 0 or path in ("/dev/stdout", "/dev/stderr", "/dev/null"):
            pipe = self._writer(call, number) if number > 2 else ""
            if pipe:
                self._source(call, pipe)
            return
        encoded = path.encode("utf-8", "surrogateescape")
        try:
            fd = paths.resolve(call, paths.AT_FDCWD, encoded)
        except (OSError, ValueError):
            real = facts.to_be(call, encoded)
            if not real:
                return
            self._downloads.add_name(real, now)
            if len(self._awaited) < _MOST_AWAITED:
                self._awaited[real] = call.pid
            return
        try:
            status, real = paths.about(call, fd), paths.real(fd)
            if status.st_mode & facts.S_IFMT == facts.S_IFIFO:
                pipe = facts.fifo(real, status)
                self._fifos[pipe] = call.pid
                self._source(call, pipe)
            elif status.st_mode & facts.S_IFMT == facts.S_IFREG:
                self._downloads.add_name(real, now)
                self._downloads.add_inode(status.st_dev, status.st_ino, facts.born(call, fd), now)
        finally:
            os.close(fd)

    def _take_files(self, call: "Call") -> None:
        """Remember what a download has come to through pipes."""
        for path in self._flow.take_files():
            self._downloads.add_name(path, time.time())
            if len(self._awaited) < _MOST_AWAITED:
                self._awaited[path] = call.pid

    def _remember_descriptor(self, call: "Call", number: int, now: float) -> None:
        """A fetcher's output goes to a file that is open already."""
        try:
            fd = call.outside(os.open, f"/proc/{call.pid}/fd/{number}", kernel.O_PATH)
        except OSError:
            return
        try:
            status, real = paths.about(call, fd), paths.real(fd)
            if status.st_mode & facts.S_IFMT == facts.S_IFREG:
                self._downloads.add_inode(status.st_dev, status.st_ino, facts.born(call, fd), now)
                if real.startswith("/") and not real.endswith(" (deleted)"):
                    self._downloads.add_name(real, now)
        finally:
            os.close(fd)

    def _look_again(self, call: "Call") -> None:
        """Learn the inodes of what fetchers have made since, and forget named pipes that nobody holds."""
        for path in list(self._awaited):
            # Taken out meanwhile: should its file system hold this caller up, it holds up no other.
            pid = self._awaited.pop(path, 0)
            if not pid:
                continue
            try:
                fd = call.outside(os.open, path, kernel.O_PATH | os.O_NOFOLLOW)
            except OSError:
                if facts.exists(pid):
                    self._awaited[path] = pid
            else:
                status = paths.about(call, fd)
                self._downloads.add_inode(status.st_dev, status.st_ino, facts.born(call, fd), time.time())
                os.close(fd)
        if self._fifos and time.monotonic() - self._looked > 0.02:
            self._looked = time.monotonic()
            if any(not facts.exists(pid) for pid in self._fifos.values()):
                held = call.outside(self._held)
                for pipe, pid in list(self._fifos.items()):
                    if pipe not in held and not facts.exists(pid):
                        del self._fifos[pipe]
                        self._flow.drop(pipe)

    def _is_download(self, call: "Call", real: str, fd: int, status: "os.stat_result") -> bool:
        if not self._downloads or not self._downloads.may_be(basename(real), status.st_dev, status.st_ino):
            return False
        return self._downloads.has(real, status.st_dev, status.st_ino, status.st_ctime, lambda: facts.born(call, fd))

    def _descriptor_is_download(self, call: "Call", number: int) -> bool:
        try:
            fd = call.outside(os.open, f"/proc/{call.pid}/fd/{number}", kernel.O_PATH)
        except OSError:
            return False
        try:
            return self._is_download(call, paths.real(fd), fd, paths.about(call, fd))
        finally:
            os.close(fd)

    def _check_descriptor(self, start: "_Start", number: int) -> None:
        if self._descriptor_is_download(start.call, number):
            self._refuse(start.call, "downloaded-exec", f"{start.name} runs a file downloaded in this session")

    def _feed(self, call: "Call", pipe: str) -> None:
        """Note the shells that wait for a fetcher's output themselves."""
        pid = call.status("Tgid")
        for _ in range(2):
            pid = facts.parent(pid)
            if pid > 1 and facts.holds(pid, pipe):
                if len(self._fed) > 256:
                    self._fed.clear()
                self._fed[pid] = time.monotonic()

    def _is_fed(self, call: "Call") -> bool:
        """Whether a shell read a download last; whatever it starts next uses that up."""
        pid = call.status("Tgid")
        parent = facts.parent(pid)
        found = [shell for shell in (pid, parent) if self._fed.pop(shell, None) is not None]
        return bool(found)

    def _starve(self, call: "Call") -> None:
        self._fed.pop(facts.parent(call.status("Tgid")), None)

    # Pipes and sockets ----------------------------------------------------------------------------------

    def _writer(self, call: "Call", number: int) -> str:
        """The key of the pipe that a descriptor writes to; "" for what is none."""
        link = facts.link(call, number)
        if link.startswith(("pipe:", "socket:")):
            return link
        return facts.named_pipe(call, number, link)

    def _reader(self, call: "Call", number: int) -> str:
        """The key of the pipe that a descriptor reads from: of a socket, its peer's."""
        link = facts.link(call, number)
        if link.startswith("pipe:"):
            return link
        if link.startswith("socket:"):
            return self._peer(call, number, link)
        return facts.named_pipe(call, number, link)

    def _peer(self, call: "Call", number: int, link: str) -> str:
        known = self._peers.get(link)
        if known is None:
            known = facts.peer_of(call, number, link)
            if len(self._peers) >= _MOST_CACHED:
                self._peers.clear()
            self._peers[link] = known
        return known

    def _connect_beside(self, call: "Call") -> None:
        """Add what the caller's parent and its other children connect without having started a program."""
        parent = facts.parent(call.status("Tgid"))
        standard = facts.standard(parent)
        for pid in [parent, *facts.children(parent)[-_MOST_BESIDE:]]:
            found = facts.standard(pid)
            if pid != parent and pid != call.pid and found == standard:
                # Forked, and its pipes not yet moved into their places: whatever it holds may become them.
                for reads in facts.ends_held(pid, 0o400):
                    for writes in facts.ends_held(pid, 0o200):
                        self._flow.add_filter(reads, writes)
            elif found[0].startswith("pipe:") and found[1].startswith("pipe:"):
                self._flow.add_filter(*found)

    def _forget(self, call: "Call", start: "_Start | None") -> None:
        alive: set[str] = set(call.outside(self._held))
        if start is not None:
            alive |= {start.reads, start.writes}
        self._flow.forget(alive | {self._peers.get(link, "") for link in alive if link.startswith("socket:")})
        self._forget_at = max(_FORGET_AT, 2 * len(self._flow))

    def _held(self) -> "set[str]":
        """Every pipe that a process of the tree has open."""
        found: set[str] = set()
        todo, seen = [os.getpid()], 0
        while todo and seen < _MOST_PROCESSES:
            pid = todo.pop()
            seen += 1
            todo.extend(facts.children(pid))
            try:
                numbers = os.listdir(f"/proc/{pid}/fd")
            except OSError:
                continue
            for number in numbers:
                try:
                    link = os.readlink(f"/proc/{pid}/fd/{number}")
                    if link.startswith("/") and self._fifos and not facts.is_device(link):
                        status = os.stat(f"/proc/{pid}/fd/{number}")
                        link = facts.fifo(link, status) if status.st_mode & facts.S_IFMT == facts.S_IFIFO else ""
                except OSError:
                    continue
                found.add(link)
        return found
