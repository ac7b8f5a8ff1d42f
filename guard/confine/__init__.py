"""Starting a process tree under the kernel's limits, as the user, without privileges.

This file is what a start takes over from its caller: environment, home, descriptors, signals.
"""

import _signal  # type: ignore[import-not-found] # `signal` would load `enum`
import posix as os
import pwd
import sys

from guard import kernel
from guard.kernel import decode, encode, real_path


def environment_block() -> "dict[bytes, bytes]":
    """The environment this process was started with; Python changes its own copy (PEP 538 sets LC_CTYPE)."""
    try:
        with open("/proc/self/environ", "rb") as block:
            return _parse_environment(block.read())
    except OSError:
        return {**os.environ}


def _parse_environment(block: bytes) -> "dict[bytes, bytes]":
    pairs = (entry.partition(b"=") for entry in block.split(b"\0") if entry)
    environment: dict[bytes, bytes] = {}
    for name, equals, value in pairs:
        if equals and name:
            environment.setdefault(name, value)  # getenv(3) finds the first
    return environment


def environment_from(fd: int) -> "dict[bytes, bytes]":
    """Read the environment that a start before this one left behind a descriptor."""
    try:
        with open(fd, "rb") as block:
            return _parse_environment(block.read())
    except OSError as error:
        from guard.errors import UsageError

        raise UsageError(f"--environment-fd: {error.strerror}") from None


def homes(environment: "dict[bytes, bytes]", uid: int, managed: bool = False) -> "tuple[str, tuple[str, ...]]":
    """The home that `{home}` means, and every home whose denied and protected places hold.

    `HOME` is believed where it names a directory of the user's own that does not hold the home of the
    password database; both count for what is denied. Where a site decides, only the listed home is granted
    anything: there the environment widens nothing.
    """
    try:
        listed = real_path(pwd.getpwuid(uid).pw_dir)
    except KeyError:
        listed = ""
    named = decode(environment.get(b"HOME", b""))
    real = real_path(named) if named.startswith("/") else ""
    usable = []
    for path in dict.fromkeys((real, listed)):
        if not path or path == "/":
            continue
        try:
            status = os.stat(path)
        except OSError:
            continue
        if status.st_mode & 0o170000 != 0o040000 or (path == real and status.st_uid != uid):
            continue
        if path == real and path != listed and listed and listed.startswith(path + "/"):
            continue
        usable.append(path)
    if managed and listed in usable:
        return listed, tuple(usable)
    return (usable[0] if usable else ""), tuple(usable)


def find_program(name: str, path: bytes) -> str:
    """The file that execvp(3) would start, found before confinement can hide a directory of PATH.

    Raises:
        SystemExit: 127 where there is none, 126 where it is not executable, said as a shell says it.
    """
    candidates = [name] if "/" in name else [f"{decode(part) or '.'}/{name}" for part in path.split(b":")]
    found, why = "", "Permission denied"
    for candidate in candidates:
        try:
            kind = os.stat(candidate).st_mode & 0o170000
        except OSError:
            continue
        if kind == 0o100000:
            if os.access(candidate, os.X_OK):
                return candidate
            found = found or candidate
        elif "/" in name:
            found, why = candidate, "Is a directory" if kind == 0o040000 else why
    if found:
        sys.stderr.write(f"guard: {name}: {why}\n")
        raise SystemExit(126)
    sys.stderr.write(f"guard: {name}: command not found\n")
    raise SystemExit(127)


def keep_pipes(command: "list[str]", environment: "dict[bytes, bytes]") -> None:
    """Close every inherited descriptor at exec but 0 to 2 and the pipes that the command was handed by name.

    An open directory or socket is a way out of the sandbox; a pipe of the shell's (`<(…)`) or of make's
    job server leads where stdin leads.
    """
    try:
        kernel.syscall("close_range", 3, 0xFFFFFFFF, kernel.CLOSE_RANGE_CLOEXEC)
    except OSError:
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                try:
                    os.set_inheritable(int(name), False)
                except OSError:
                    continue
    named = [word.rpartition("/")[2] for word in command if word.startswith(("/dev/fd/", "/proc/self/fd/"))]
    for word in environment.get(b"MAKEFLAGS", b"").split():
        if word.startswith((b"--jobserver-auth=", b"--jobserver-fds=")):
            named += decode(word.partition(b"=")[2]).split(",")
    for text in named:
        if text.isdigit() and int(text) > 2:
            try:
                if os.fstat(int(text)).st_mode & 0o170000 == 0o010000:
                    os.set_inheritable(int(text), True)
            except OSError:
                continue


class Globs:
    """Globs whose only special character is `*`, asked of many names.

    Args:
        globs: as a policy writes them.
    """

    def __init__(self, globs: "list[str]") -> None:
        encoded = [encode(glob) for glob in globs]
        self._exact = {glob for glob in encoded if b"*" not in glob}
        self._starts = tuple(glob[:-1] for glob in encoded if glob.find(b"*") == len(glob) - 1)
        self._others = [glob for glob in encoded if -1 < glob.find(b"*") < len(glob) - 1]

    def match(self, name: bytes) -> bool:
        """Whether a name fits one of the globs."""
        return name in self._exact or name.startswith(self._starts) or any(_fits(glob, name) for glob in self._others)


def _fits(glob: bytes, name: bytes) -> bool:
    first, *middle, last = glob.split(b"*")
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    at = len(first)
    for part in middle:
        found = name.find(part, at, len(name) - len(last))
        if found < 0:
            return False
        at = found + len(part)
    return True


Denied = dict[str, "Denied"]  # a tree of path components; the key "" marks a denied place


def covers(tree: "Denied", path: str) -> bool:
    """Whether the path or one above it is denied."""
    for part in path.split("/"):
        if part:
            below = tree.get(part)
            if below is None:
                return False
            if "" in below:
                return True
            tree = below
    return False


def end_by_interrupt() -> int:
    """End as a program ends that SIGINT found unprepared, so that the shell sees it."""
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    os.kill(os.getpid(), _signal.SIGINT)
    return 130


def default_signals() -> None:
    """Undo what the interpreter ignores for itself; a child that inherited it would never see SIGPIPE."""
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
