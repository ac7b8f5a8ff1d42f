"""What the kernel tells of a process that starts a program: its arguments, pipes, files, parents, and its own text.

Most of it is read from /proc, as the caller is before it becomes what it starts.
"""

import _socket
import _struct as struct
import posix as os

from guard import kernel
from guard.confine.handlers import commands, flow, paths
from guard.confine.handlers.base import Call
from guard.kernel import basename
from guard.kernel.notify import Gone, Unreadable

_ENAMETOOLONG, _EFAULT = 36, 14
_AT_EMPTY_PATH = 0x1000
_AT_ONCE, _PAGES = 16, 16384  # pointers copied at once, bytes of one argument
_MOST_ARGUMENTS, MOST_TEXT = 96, 65536
RELAYS = {"nc", "ncat", "netcat", "socat", "nc.openbsd", "nc.traditional"}
S_IFMT, S_IFIFO, S_IFREG = 0o170000, 0o010000, 0o100000


def pointers(call: "Call", at: int) -> "list[int]":
    """Copy the beginning of argv: where its strings are."""
    found: list[int] = []
    while at and len(found) < _MOST_ARGUMENTS:
        try:
            block = call.read(at, 8 * _AT_ONCE)
        except OSError as error:
            if error.errno != _EFAULT:
                raise
            block = call.read(at, 8)  # the array ends close to what is not mapped
        at += len(block)
        for pointer in struct.unpack(f"={len(block) // 8}Q", block):
            if not pointer:
                return found
            found.append(pointer)
    return found


def argument(call: "Call", pointer: int) -> str:
    """Copy one argument; of a long one its beginning."""
    try:
        text = call.string(pointer, _PAGES)
    except OSError as error:
        if error.errno != _ENAMETOOLONG:
            raise
        text = call.read(pointer, _PAGES)  # its beginning is enough to judge
    return text.decode("utf-8", "surrogateescape")


def arguments(call: "Call", pointers: "list[int]") -> "list[str]":
    """Copy the arguments; what is longer than is worth judging is cut."""
    found: list[str] = []
    size = 0
    for pointer in pointers:
        found.append(argument(call, pointer))
        size += len(found[-1])
        if size >= MOST_TEXT:
            break
    return found


def link(call: "Call", number: int) -> str:
    """What a descriptor of the caller is, as /proc names it; "" where it is closed."""
    try:
        return os.readlink(f"/proc/{call.pid}/fd/{number}")
    except FileNotFoundError:
        return ""
    except PermissionError:
        call.check()
        raise Unreadable from None
    except ProcessLookupError:
        raise Gone from None


def identity(status: "os.stat_result") -> "tuple[int, int, int]":
    """What tells a file from another that had its number before."""
    return status.st_dev, status.st_ino, status.st_ctime_ns


def glance(call: "Call", start: int, path: bytes) -> "tuple[int, ...]":
    """The identity of a path's regular file and of the link that leads to it, cheaply; () where that cannot be told.

    A hint only: the supervisor's eyes may see another file behind an absolute link, or behind one into /proc.
    """
    if path.startswith((b"/proc/", b"/dev/")) or b"\0" in path:
        return ()
    found: tuple[int, ...] = call.outside(_glance, call, start, path)
    return found


def _glance(call: "Call", start: int, path: bytes) -> "tuple[int, ...]":
    if path.startswith(b"/"):
        seen = b"/proc/%d/root%s" % (call.pid, path)
    elif start == paths.AT_FDCWD:
        seen = b"/proc/%d/cwd/%s" % (call.pid, path)
    else:
        seen = b"/proc/%d/fd/%d/%s" % (call.pid, start, path)
    try:
        link = os.lstat(seen)
        if link.st_mode & S_IFMT == S_IFREG:
            return identity(link)
        target = os.stat(seen)
    except OSError:
        return ()
    return (*identity(link), *identity(target)) if target.st_mode & S_IFMT == S_IFREG else ()


def is_device(path: str) -> bool:
    """Whether a path leads to a device, and not to shared memory, where files are."""
    return path.startswith("/dev/") and not path.startswith("/dev/shm/")  # noqa: S108 - a place that trees may write


def output(link: str) -> str:
    """The key of what a descriptor writes to; "" where nothing is handed on."""
    if link.startswith(("pipe:", "socket:")):
        return link
    if link.startswith("/") and not (link.startswith("/memfd:") or link.endswith(" (deleted)") or is_device(link)):
        return flow.FILE + link
    return ""


def safe(path: str) -> str:
    """Return a path that can be stored as text."""
    return path.encode("utf-8", "backslashreplace").decode()


def fifo(path: str, status: "os.stat_result") -> str:
    """The key of a pipe with a name."""
    return path if path.startswith("pipe:") else f"fifo:{status.st_dev}:{status.st_ino}"


def named_pipe(call: "Call", number: int, link: str) -> str:
    """The key of a descriptor's pipe where that has a name."""
    if not link.startswith("/") or link.startswith("/memfd:") or is_device(link):
        return ""
    try:
        status = call.outside(os.stat, f"/proc/{call.pid}/fd/{number}")
    except OSError:
        return ""
    return fifo(link, status) if status.st_mode & S_IFMT == S_IFIFO else ""


def descriptor_in(path: str) -> int:
    """The number in `/dev/fd/N` and its other names; -1 for an ordinary path."""
    if path == "/dev/stdin":
        return 0
    for prefix in ("/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/"):
        if path.startswith(prefix):
            rest = path[len(prefix) :]
            return int(rest) if rest.isascii() and rest.isdigit() and len(rest) < 8 else -1
    return -1


def parent(pid: int) -> int:
    """The parent of a process; 0 where it is gone."""
    try:
        return int(kernel.process_fields(pid)[1])
    except (OSError, ValueError):
        return 0


def children(pid: int) -> "list[int]":
    """The children of a process."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(number) for number in file.read().split()]
    except OSError:
        return []


def exists(pid: int) -> bool:
    """Whether a process is there still."""
    try:
        os.stat(f"/proc/{pid}")
    except OSError:
        return False
    return True


def parent_name(call: "Call") -> str:
    """The program that the caller is, or its parent: of those that connect a shell to the network."""
    pid = call.status("Tgid")
    for each in (pid, parent(pid)):
        try:
            name = basename(os.readlink(f"/proc/{each}/exe"))
        except OSError:
            continue
        if name in RELAYS:
            return name
    return ""


def to_be(call: "Call", path: bytes) -> str:
    """The real path that a file will have when it is made, its directories perhaps with it; "" where too deep."""
    made: list[bytes] = []
    for _ in range(32):
        path, slash, last = path.rpartition(b"/")
        made.insert(0, last)
        try:
            fd = paths.resolve(call, paths.AT_FDCWD, path or (b"/" if slash else b"."))
        except (OSError, ValueError):
            continue
        real = paths.real(fd).rstrip("/")
        os.close(fd)
        return real + "/" + kernel.decode(b"/".join(made))
    return ""


def holds(pid: int, pipe: str) -> bool:
    """Whether a process has a pipe open beyond its standard descriptors: a shell waiting for a substitution."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for number in numbers:
        try:
            if int(number) > 2 and os.readlink(f"/proc/{pid}/fd/{number}") == pipe:
                return True
        except OSError:
            continue
    return False


def standard(pid: int) -> "tuple[str, str]":
    """What descriptors 0 and 1 of a process are."""
    try:
        return os.readlink(f"/proc/{pid}/fd/0"), os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return "", ""


def ends_held(pid: int, right: int) -> "list[str]":
    """The pipes beyond the standard descriptors that a process may read (0o400) or write (0o200)."""
    found = []
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            name = f"/proc/{pid}/fd/{number}"
            if int(number) > 2 and os.lstat(name).st_mode & right:
                link = os.readlink(name)
                if link.startswith("pipe:"):
                    found.append(link)
    except OSError:
        return found
    return found


def script(call: "Call") -> str:
    """The text that the calling shell runs: its `-c` argument or its file; "" where it is typed or piped in."""
    name, words = command_line(call)
    if commands.family(name) not in ("sh", "fish"):
        return ""
    program = commands.program(name, words)
    if program.text is not None or not program.files:
        return program.text or ""
    return text(call, program.files[-1])


def fetches(call: "Call") -> bool:
    """Whether a caller that is no shell fetches by the code in its arguments: `python -c …` and its like."""
    name, words = command_line(call)
    if commands.kind(name) != commands.INTERPRETER or commands.family(name) == "sh":
        return False
    return commands.fetches_in_code(commands.program(name, words).text or "", words)


def command_line(call: "Call") -> "tuple[str, list[str]]":
    """What the caller is now, before it becomes what it starts."""
    try:
        block: bytes = call.outside(_cmdline, call.pid)  # waits while the caller's memory is being arranged
    except OSError:
        return "", []
    words = [word.decode("utf-8", "surrogateescape") for word in block.split(b"\0")[:-1]]
    return commands.meant(basename(words[0]).lstrip("-") if words else "", words)


def _cmdline(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read(MOST_TEXT + 4096)


def text(call: "Call", path: str) -> str:
    """The beginning of an ordinary file."""
    try:
        fd = paths.resolve(call, paths.AT_FDCWD, path.encode("utf-8", "surrogateescape"))
    except (OSError, ValueError):
        return ""
    try:
        beginning: bytes = call.outside(_beginning, fd)
    except OSError:
        return ""
    finally:
        os.close(fd)
    return beginning.decode("utf-8", "surrogateescape")


def _beginning(fd: int) -> bytes:
    if os.fstat(fd).st_mode & S_IFMT != S_IFREG:
        return b""
    with open(f"/proc/self/fd/{fd}", "rb") as file:
        return file.read(MOST_TEXT)


def ends(path: str) -> bytes:
    """The beginning and the end of a program, enough to know a copy by."""
    with open(path, "rb", buffering=0) as file:
        head = file.read(65536)
        file.seek(-65536, 2)
        return head + file.read(65536)


def born(call: "Call", fd: int) -> float:
    """When a file was made; 0 where the file system does not tell (statx(2))."""
    buffer = bytes(256)  # the kernel writes into it: ours alone, never shared
    try:
        call.outside(kernel.syscall, "statx", fd, b"", _AT_EMPTY_PATH, 0x800, buffer)
    except OSError:
        return 0.0
    if not int.from_bytes(buffer[:4], "little") & 0x800:
        return 0.0
    seconds, fraction = struct.unpack_from("@qI", buffer, 80)
    return float(seconds + fraction / 1e9)


def peer_of(call: "Call", number: int, link: str) -> str:
    """The key of what a socket is connected to: `network:` beyond this host's unix sockets (sock_diag(7))."""
    try:
        socket = _socket.socket(fileno=call.descriptor(number))
        family = socket.family
        socket.close()
    except OSError:
        return link
    if family in (_socket.AF_INET, _socket.AF_INET6):
        return "network:" + link
    if family != _socket.AF_UNIX:
        return link
    from guard.kernel import diag  # few programs read a socket: not before the first does

    peer = diag.unix_peer(int(link[8:-1]))
    return f"socket:[{peer}]" if peer else link
