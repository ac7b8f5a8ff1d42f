"""Downloads that run: `curl | sh` in its forms, judged when programs start by what flows between them.

A pipeline's programs start in any order, so every start adds what it knows (who writes which pipe, who reads its
program from which) and the one that would complete a way from a download to an interpreter is refused. What is
known stays known: after a refusal a shell tries the next directory of PATH, or another shell.

This is a guard, not a boundary. The kernel reads the program's name and arguments again after the answer, and a
copy of curl under another name is not known for one. docs/controls.md lists what is not seen.
"""

import posix as os

from guard.confine.handlers import paths
from guard.confine.handlers.base import CONTINUE, Call, Supervisor
from guard.kernel import basename

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.confine.handlers.base import Handler

_EACCES = 13
_AT_EMPTY_PATH = 0x1000
_MOST_ARGUMENTS, _MOST_TEXT = 64, 65536
_MOST_KNOWN = 8192

INTERPRETERS = {
    "sh", "bash", "dash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "ash", "busybox", "python", "pypy", "perl",
    "ruby", "node", "nodejs", "bun", "deno", "lua", "luajit", "php", "tclsh", "expect", "julia", "Rscript", "osascript",
    "pwsh", "awk", "gawk", "mawk", "make", "source",
}  # fmt: skip
FETCHERS = {
    "curl", "wget", "wget2", "aria2c", "axel", "fetch", "http", "https", "httpie", "xh", "nc", "ncat", "netcat",
    "socat", "ftp", "lftp", "lynx", "w3m", "links", "elinks", "curlie", "rclone", "gsutil", "s3cmd",
}  # fmt: skip
# Start another program with the rest of their arguments: that one is meant.
_WRAPPERS = {"sudo", "doas", "env", "nohup", "nice", "ionice", "setsid", "stdbuf", "timeout", "time", "xargs", "command",
             "exec", "su", "runuser", "chroot", "unshare", "strace", "flock", "taskset", "numactl"}  # fmt: skip


def handlers(supervisor: "Supervisor") -> "dict[str, Handler]":
    """The calls of this file."""
    flow = Flow()
    return {"execve": flow.execve, "execveat": flow.execveat}


class Flow:
    """What this tree's programs write to and read their code from."""

    def __init__(self) -> None:
        self._sources: set[str] = set()  # pipes that a fetcher writes
        self._sinks: set[str] = set()  # pipes that an interpreter reads its program from
        self._edges: dict[str, set[str]] = {}  # pipe to the pipes its reader writes
        self._files: set[tuple[int, int]] = set()  # what a fetcher wrote: device, inode
        self._names: set[str] = set()  # what a fetcher was told to write, and was not there yet
        self._fed: set[int] = set()  # processes that read a fetcher's output themselves: $(curl …)

    def execve(self, supervisor: "Supervisor", call: "Call") -> int:
        """execve(path, argv, envp)."""
        path = call.string(call.args[0])
        return self._judge(supervisor, call, paths.AT_FDCWD, path, call.args[1])

    def execveat(self, supervisor: "Supervisor", call: "Call") -> int:
        """execveat(directory, path, argv, envp, flags)."""
        path = call.string(call.args[1])
        start = call.args[0]
        if not path and call.args[4] & _AT_EMPTY_PATH:
            self._judge_descriptor(supervisor, call, start)
            path = b"/proc/self/fd/%d" % (start & 0xFFFFFFFF)
        return self._judge(supervisor, call, start, path, call.args[2])

    def _judge_descriptor(self, supervisor: "Supervisor", call: "Call", number: int) -> None:
        link = _link(call, number & 0xFFFFFFFF)
        if link.startswith("/memfd:"):
            self._refuse(supervisor, call, "memory-exec", f"execution from memory ({link.partition(' ')[0]})")

    def _judge(self, supervisor: "Supervisor", call: "Call", start: int, path: bytes, argv_at: int) -> int:
        if len(self._sources) + len(self._sinks) + len(self._edges) + len(self._files) > _MOST_KNOWN:
            self._forget()
        arguments = _arguments(call, argv_at)
        if path.startswith((b"/proc/self/fd/", b"/dev/fd/")):
            number = path.rpartition(b"/")[2]
            if number.isdigit():
                self._judge_descriptor(supervisor, call, int(number))
        name, arguments = _meant(basename(path.decode("utf-8", "replace")), arguments)
        standard = (_link(call, 0), _link(call, 1))
        reads = standard[0] if _carries(standard[0]) else ""
        writes = standard[1] if _carries(standard[1]) else ""
        if name in FETCHERS:
            self._fetches(supervisor, call, arguments, writes)
        elif _is_interpreter(name):
            self._interprets(supervisor, call, name, arguments, reads, writes)
        else:
            self._runs_file(supervisor, call, start, path)
            if reads and writes:
                self._connects(supervisor, call, reads, writes)
        return CONTINUE

    def _fetches(self, supervisor: "Supervisor", call: "Call", arguments: "list[str]", writes: str) -> None:
        if writes:
            self._sources.add(writes)
            if not self._reachable(writes).isdisjoint(self._sinks):
                self._refuse(supervisor, call, "pipe-to-shell", "a download piped into an interpreter")
            parent = call.status("PPid")
            if _reads_pipe(parent, writes):
                self._fed.add(parent)
        else:
            try:
                status = os.stat(f"/proc/{call.pid}/fd/1")
                if status.st_mode & 0o170000 == 0o100000:
                    self._files.add((status.st_dev, status.st_ino))
            except OSError:
                pass  # closed: nothing is written there
        for target in _outputs(arguments):
            self._names.add(_absolute(call, target))
        for pipe in _substituted(call, arguments):
            self._sources.add(pipe)

    def _interprets(
        self, supervisor: "Supervisor", call: "Call", name: str, arguments: "list[str]", reads: str, writes: str
    ) -> None:
        program = _program_of(arguments[1:])
        if program in ("-", "/dev/stdin", "/proc/self/fd/0", "/dev/fd/0", None):
            sink = reads
        elif program and program.startswith(("/dev/fd/", "/proc/self/fd/")):
            number = program.rpartition("/")[2]
            link = _link(call, int(number)) if number.isdigit() else ""
            sink = link if _carries(link) else ""
            if link.startswith("/memfd:"):
                self._refuse(supervisor, call, "memory-exec", f"{name} runs a program from memory")
        else:
            sink = ""
            if program:
                self._runs_named(supervisor, call, name, program)
            elif program == "" and self._is_fed(call) and _looks_fetched(arguments):
                self._refuse(supervisor, call, "pipe-to-shell", f"a download given to {name} as its argument")
        if sink:
            self._sinks.add(sink)
            if any(sink in self._reachable(source) for source in self._sources):
                self._refuse(supervisor, call, "pipe-to-shell", f"a download piped into {name}")
        elif reads and writes:
            self._connects(supervisor, call, reads, writes)
        if not sink and standard_file(call) in self._files and program in ("-", None):
            self._refuse(supervisor, call, "downloaded-exec", f"{name} runs a file that was just downloaded")

    def _is_fed(self, call: "Call") -> bool:
        return call.pid in self._fed or call.status("PPid") in self._fed or call.status("Tgid") in self._fed

    def _connects(self, supervisor: "Supervisor", call: "Call", reads: str, writes: str) -> None:
        self._edges.setdefault(reads, set()).add(writes)
        if any(reads in self._reachable(source) for source in self._sources) and not self._reachable(writes).isdisjoint(
            self._sinks
        ):
            self._refuse(supervisor, call, "pipe-to-shell", "a download piped through a filter into an interpreter")

    def _runs_named(self, supervisor: "Supervisor", call: "Call", name: str, program: str) -> None:
        where = _absolute(call, program)
        try:
            status = os.stat(where)
        except OSError:
            return
        if where in self._names or (status.st_dev, status.st_ino) in self._files:
            self._refuse(supervisor, call, "downloaded-exec", f"{name} runs {where}, which was just downloaded")

    def _runs_file(self, supervisor: "Supervisor", call: "Call", start: int, path: bytes) -> None:
        if not self._files and not self._names:
            return
        fd = paths.resolve(call, start, path)
        try:
            status, real = os.fstat(fd), paths.real(fd)
        finally:
            os.close(fd)
        if real in self._names or (status.st_dev, status.st_ino) in self._files:
            self._refuse(supervisor, call, "downloaded-exec", f"{real} was just downloaded")

    def _reachable(self, pipe: str) -> "set[str]":
        seen: set[str] = set()
        todo = [pipe]
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo.extend(self._edges.get(at, ()))
        return seen

    def _refuse(self, supervisor: "Supervisor", call: "Call", rule: str, what: str) -> None:
        supervisor.decide(
            "pipe-to-shell", rule, what, _EACCES, call, "download to a file, read it, and let a person run it outside"
        )

    def _forget(self) -> None:
        """Drop what pipes there were: a tree that starts thousands of pipelines must not grow us."""
        for known in (self._sources, self._sinks, self._edges):
            known.clear()


def _arguments(call: "Call", at: int) -> "list[str]":
    found: list[str] = []
    size = 0
    while at and len(found) < _MOST_ARGUMENTS:
        pointer = int.from_bytes(call.read(at + 8 * len(found), 8), "little")
        if not pointer:
            break
        try:
            text = call.string(pointer, 4096)
        except OSError as error:
            if error.errno != 36:
                raise
            text = call.read(pointer, 4096)  # long: its beginning is enough to judge
        size += len(text)
        found.append(text.decode("utf-8", "replace"))
        if size > _MOST_TEXT:
            break
    return found


def _link(call: "Call", number: int) -> str:
    try:
        return os.readlink(f"/proc/{call.pid}/fd/{number}")
    except FileNotFoundError:
        return ""


def standard_file(call: "Call") -> "tuple[int, int]":
    """Device and inode of the caller's standard input; (0, 0) where it has none."""
    try:
        status = os.stat(f"/proc/{call.pid}/fd/0")
    except OSError:
        return (0, 0)
    return (status.st_dev, status.st_ino)


def _carries(link: str) -> bool:
    return link.startswith(("pipe:", "socket:")) or "/fifo" in link


def _is_interpreter(name: str) -> bool:
    return name in INTERPRETERS or name.rstrip("0123456789.") in INTERPRETERS


def _meant(name: str, arguments: "list[str]") -> "tuple[str, list[str]]":
    """The program that `env`, `sudo` and their like will start, with its arguments."""
    rest = arguments
    for _ in range(8):
        if name == "busybox" and len(rest) > 1:
            rest = rest[1:]
            name = basename(rest[0])
            continue
        if name not in _WRAPPERS:
            break
        at = 1
        while at < len(rest) and (rest[at].startswith("-") or "=" in rest[at] or rest[at][:1].isdigit()):
            at += 1
        if at >= len(rest):
            break
        rest = rest[at:]
        name = basename(rest[0])
    return name, rest


def _program_of(arguments: "list[str]") -> "str | None":
    """Where an interpreter reads its program: a path, `-` or None for standard input, "" for its arguments."""
    words = iter(arguments)
    for word in words:
        if word == "--":
            return next(words, None)
        if word == "-":
            return "-"
        if word[:1] in ("-", "+"):
            if word in ("-o", "+o", "-O", "+O", "-W", "-X", "-r", "--require", "-I", "-M", "--rcfile", "--init-file"):
                next(words, None)
                continue
            if word == "-s" or (word[0] == "-" and word[1:2] != "-" and word.endswith("s") and word[1:].isalpha()):
                return "-"
            if word in ("--eval", "--print", "--command", "--version", "--help") or word.startswith(("--eval=",)):
                return ""
            if word[1:2] != "-" and any(letter in word[1:] for letter in "cemE"):
                return ""
            continue
        return word
    return None


def _looks_fetched(arguments: "list[str]") -> bool:
    """Whether an argument is a script rather than a command: it has lines, or begins as one."""
    return any("\n" in word.strip() or word.startswith("#!") for word in arguments[1:])


def _outputs(arguments: "list[str]") -> "list[str]":
    """The files that a fetcher's arguments name for what it fetches."""
    found: list[str] = []
    remote = False
    urls = [word for word in arguments[1:] if "://" in word or (not word.startswith("-") and "/" in word)]
    for at, word in enumerate(arguments[1:], 1):
        following = arguments[at + 1] if at + 1 < len(arguments) else ""
        short = word[1:2] != "-" and word[:1] == "-"
        if word in ("--output", "--output-document", "--out", "-o") or (short and word.endswith("o") and len(word) > 1):
            found.append(following)
        elif word == "-O" and basename(arguments[0]).startswith("wget"):
            found.append(following)
        elif word.startswith(("--output=", "--output-document=", "--out=")):
            found.append(word.partition("=")[2])
        elif word in ("--remote-name", "--remote-name-all") or (short and "O" in word):
            remote = True
        elif short and word[1:2] == "o" and len(word) > 2:
            found.append(word[2:])
    if remote or (not found and basename(arguments[0] if arguments else "").startswith(("wget", "aria2c", "axel"))):
        found += [basename(url.partition("?")[0]) for url in urls if basename(url)]
    return [name for name in found if name and name != "-"]


def _absolute(call: "Call", path: str) -> str:
    if not path.startswith("/"):
        try:
            path = os.readlink(f"/proc/{call.pid}/cwd") + "/" + path
        except OSError:
            return path
    from os.path import realpath

    return realpath(path)


def _substituted(call: "Call", arguments: "list[str]") -> "list[str]":
    """Pipes that a fetcher is told to write to by name: `curl -o >(sh)`."""
    links = []
    for word in arguments[1:]:
        if word.startswith(("/dev/fd/", "/proc/self/fd/")) and word.rpartition("/")[2].isdigit():
            link = _link(call, int(word.rpartition("/")[2]))
            if _carries(link):
                links.append(link)
    return links


def _reads_pipe(pid: int, pipe: str) -> bool:
    """Whether a process itself holds a pipe open: a shell that waits for a substitution's output."""
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                if int(name) > 2 and os.readlink(f"/proc/{pid}/fd/{name}") == pipe:
                    return True
            except OSError:
                continue
    except OSError:
        return False
    return False
