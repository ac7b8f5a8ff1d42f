"""The kernel's interfaces, one module each, and the one door they all go through: `syscall`.

Standard library only, and of that only what `guard run` can afford before the agent starts: `_ctypes`
instead of `ctypes` saves 2 ms of import, `posix` instead of `os` another one. No policy lives here.
"""

import _ctypes
import marshal
import posix as os
import sys

MACHINE = os.uname().machine

# Numbers from <asm/unistd.h>; from 424 on they are the same on all 64-bit architectures.
_NUMBERS = {
    "x86_64": {
        "capset": 126,
        "fstatfs": 138,
        "prctl": 157,
        "mount": 165,
        "inotify_add_watch": 254,
        "unshare": 272,
        "inotify_init1": 294,
        "prlimit64": 302,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "seccomp": 317,
        "statx": 332,
    },
    "aarch64": {
        "inotify_init1": 26,
        "inotify_add_watch": 27,
        "mount": 40,
        "fstatfs": 44,
        "capset": 91,
        "unshare": 97,
        "prctl": 167,
        "prlimit64": 261,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "seccomp": 277,
        "statx": 291,
    },
}
_COMMON = {
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "close_range": 436,
    "openat2": 437,
    "pidfd_open": 434,
    "pidfd_getfd": 438,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}
NUMBERS: "dict[str, int]" = {**_COMMON, **_NUMBERS.get(MACHINE, {})}

CAP_SYS_PTRACE = 19
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_SET_MODE_FILTER = 1
SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4
CLOSE_RANGE_CLOEXEC = 4
O_PATH = os.O_PATH | os.O_CLOEXEC
_EAGAIN = 11
_RLIMIT_AS, _PAGE, _SPARE = 9, os.sysconf("SC_PAGE_SIZE"), 1 << 26
RESOLVE_NO_SYMLINKS = 0x04
CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 32, 4096, 16384, 1 << 19


_INT = 1 << 31
_ENCODING = sys.getfilesystemencoding()


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "l"


class Char(_ctypes._SimpleCData):  # type: ignore[type-arg]
    """A byte of a buffer that the kernel reads or fills."""

    _type_ = "c"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Long


_this_program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type] # typeshed leaves the main program out
libc_syscall = _Function(_ctypes.dlsym(_this_program, "syscall"))


def encode(text: str) -> bytes:
    """os.fsencode."""
    return text.encode(_ENCODING, "surrogateescape")


def decode(text: bytes) -> str:
    """os.fsdecode."""
    return text.decode(_ENCODING, "surrogateescape")


def dirname(path: str) -> str:
    """The directory of an absolute, normal path."""
    return path.rpartition("/")[0] or "/"


def basename(path: str) -> str:
    """The last component of a path."""
    return path.rpartition("/")[2]


def real_path(path: str) -> str:
    """os.path.realpath: the kernel's own answer where the path can be opened and /proc is there."""
    try:
        fd = os.open(path, O_PATH)
    except (OSError, ValueError):
        fd = -1
    if fd >= 0:
        try:
            found = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            found = ""
        os.close(fd)
        if found.startswith("/") and not found.endswith(" (deleted)"):
            return found
    if path.startswith("/") and path != "/":
        try:
            os.lstat(path)
        except FileNotFoundError:
            above = real_path(dirname(path))
            return f"{above if above != '/' else ''}/{basename(path)}"
        except (OSError, ValueError):
            pass  # a loop, or a component that is no directory: the library's answer
    from os.path import realpath

    return realpath(path)


def syscall(name: str, *args: "int | bytes | None") -> int:
    """Make one system call by name.

    Args:
        name: a key of `NUMBERS`.
        args: integers, byte strings (passed as pointers, never written to) or None (NULL).

    Returns:
        The call's result, not negative.

    Raises:
        OSError: with the call's errno; ENOSYS (38) where this architecture has no number for it.
    """
    number = NUMBERS.get(name)
    if number is None:
        raise OSError(38, "Function not implemented", name)
    # A small integer passes as it is (libffi extends it to a register); only a large one needs its width said.
    result: int = libc_syscall(
        number, *[_Long(arg) if isinstance(arg, int) and not -_INT <= arg < _INT else arg for arg in args]
    )
    if result < 0:
        raise failure(name)
    return result


def failure(name: str) -> OSError:
    """The error of the call that just returned -1 through `libc_syscall`."""
    code = _ctypes.get_errno()
    return OSError(code, os.strerror(code), name)


def reason(error: OSError) -> str:
    """What a failed call of no file's or interface's means, and what to do where that is known."""
    more = " (is a limit on processes reached?)" if error.errno == _EAGAIN else ""
    return f"{error.strerror or error}{more}"


def prctl(option: int, *args: int) -> int:
    """prctl(2), every unused argument zero as newer options demand."""
    return syscall("prctl", option, *args, *(0,) * (4 - len(args)))


def filter_program(program: bytes) -> "tuple[bytes, object]":
    """`struct sock_fprog` for a classic BPF program, and what it points to, which must outlive its use."""

    class Program(_ctypes.Array):  # type: ignore[type-arg]
        _type_ = Char
        _length_ = len(program)

    held = Program.from_buffer_copy(program)
    # u16 length in instructions, padding to the pointer, pointer.
    return (len(program) // 8).to_bytes(8, sys.byteorder) + _ctypes.addressof(held).to_bytes(8, sys.byteorder), held


def load_filter(program: bytes, flags: int) -> int:
    """Put a classic BPF program in front of every system call of this thread (seccomp(2)).

    Args:
        program: `struct sock_filter` entries, 8 bytes each, native byte order.
        flags: SECCOMP_FILTER_FLAG_* bits; one the kernel does not know is dropped once, SPEC_ALLOW only.

    Returns:
        0, or the listener's descriptor when flags ask for one.
    """
    fprog, _held = filter_program(program)
    try:
        return syscall("seccomp", SECCOMP_SET_MODE_FILTER, flags, fprog)
    except OSError as error:
        # Kernels before 4.17 do not know SPEC_ALLOW; the filter itself is what counts.
        if error.errno != 22 or not flags & SECCOMP_FILTER_FLAG_SPEC_ALLOW:
            raise
        return syscall("seccomp", SECCOMP_SET_MODE_FILTER, flags & ~SECCOMP_FILTER_FLAG_SPEC_ALLOW, fprog)


def mount(source: "bytes | None", target: bytes, kind: "bytes | None", flags: int, data: "bytes | None" = None) -> None:
    """mount(2)."""
    syscall("mount", source, target, kind, flags, data)


def drop_capabilities(keep: int = 0) -> None:
    """Give up every capability but those in `keep`, for this process and all it will start.

    Args:
        keep: bit set of CAP_* numbers. What is kept stays in the bounding set only.

    With no_new_privs set, an exec as uid 0 cannot gain what is not permitted now (kernel:
    cap_bprm_creds_from_file), so clearing the permitted set is enough even where the bounding set
    cannot be changed for want of CAP_SETPCAP.
    """
    for number in range(64) if os.geteuid() == 0 else ():
        if not keep >> number & 1:
            try:
                prctl(PR_CAPBSET_DROP, number)
            except OSError as error:
                if error.errno == 22:  # past the last capability this kernel has
                    break
                if error.errno == 1:  # no CAP_SETPCAP: an ordinary user has none to drop
                    break
                raise
    try:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError as error:
        if error.errno != 22:  # kernels before 4.3 have no ambient set
            raise
    low, high = (keep & 0xFFFFFFFF).to_bytes(4, sys.byteorder), (keep >> 32).to_bytes(4, sys.byteorder)
    header = (0x20080522).to_bytes(4, sys.byteorder) + bytes(4)  # _LINUX_CAPABILITY_VERSION_3, this thread
    none = bytes(4)
    # effective, permitted, inheritable: the low words, then the high words. Nothing is inheritable.
    syscall("capset", header, low + low + none + high + high + none)


def unmarshal(data: bytes) -> object:
    """Undo `marshal.dumps`, of bytes whose sender is trusted and whose wholeness is not.

    A few bytes can ask for a tuple of two thousand million places: what this takes is bounded by the address space
    that the process may have meanwhile (RLIMIT_AS), far above what honest bytes need.

    Raises:
        ValueError: they are nothing that `marshal.dumps` makes.
    """
    before = bytes(16)  # the kernel writes into it: ours alone
    syscall("prlimit64", 0, _RLIMIT_AS, None, before)
    with open("/proc/self/statm", "rb") as file:
        now = int(file.read().split(None, 1)[0]) * _PAGE
    soft, hard = (int.from_bytes(before[at : at + 8], sys.byteorder) for at in (0, 8))
    most = min(soft, now + _SPARE + 64 * len(data))
    try:
        syscall("prlimit64", 0, _RLIMIT_AS, b"".join(n.to_bytes(8, sys.byteorder) for n in (most, hard)), None)
        return marshal.loads(data)  # noqa: S302 - the caller's to check
    except (EOFError, TypeError, MemoryError) as error:
        raise ValueError(str(error) or "it asks for more memory than it is worth") from None
    finally:
        syscall("prlimit64", 0, _RLIMIT_AS, before, None)


def process_fields(pid: int) -> "list[bytes]":
    """What /proc/PID/stat says after the name, which may hold anything: state, parent, group, and so on (proc(5)).

    Raises:
        OSError: there is no such process.
    """
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        text = file.read()
    return text[text.rindex(b")") + 2 :].split()


def permitted() -> int:
    """The capabilities that this process has or may have, as a bit set."""
    with open("/proc/self/status", "rb") as status:
        return int(status.read().partition(b"\nCapPrm:")[2].split(None, 1)[0], 16)


def open_beneath(path: str) -> int:
    """Open a path with no symbolic link followed in any component, O_PATH.

    Raises:
        OSError: ELOOP for a link; otherwise as open(2).
    """
    how = b"".join(value.to_bytes(8, "little") for value in (O_PATH | os.O_NOFOLLOW, 0, RESOLVE_NO_SYMLINKS))
    try:
        fd = syscall("openat2", -100, encode(path), how, len(how))
    except OSError as error:
        # Inside another guard, or before Linux 5.6, openat2 is ENOSYS: walk by hand.
        if error.errno not in (38, 1):
            raise
        fd = os.open("/", O_PATH)
        for part in path.split("/"):
            if part:
                try:
                    below = os.open(part, O_PATH | os.O_NOFOLLOW, dir_fd=fd)
                finally:
                    os.close(fd)
                fd = below
                if os.fstat(fd).st_mode & 0o170000 == 0o120000:
                    os.close(fd)
                    raise OSError(40, "Too many levels of symbolic links", path) from None
        return fd
    if os.fstat(fd).st_mode & 0o170000 == 0o120000:
        os.close(fd)
        raise OSError(40, "Too many levels of symbolic links", path)
    return fd


def enter_mount_namespace(more: int = 0) -> "tuple[bool, int]":
    """Get a mount namespace of our own: as root directly, else with a user namespace around it.

    In the user namespace only one's own user and primary group have a name: a caller with further
    groups sees their files as `nogroup` and cannot chgrp to them.

    Args:
        more: further namespaces (CLONE_NEWIPC) that are welcome; a kernel may have none, or none left.

    Returns:
        Whether there is one (False where this host allows neither, and nothing has changed), and what of `more`.
    """
    uid, gid = os.geteuid(), os.getegid()
    # Root in name only is refused the first way, and goes the second as any user.
    ways = ((CLONE_NEWNS,) if uid == 0 else ()) + (CLONE_NEWUSER | CLONE_NEWNS,)
    for flags, got in [(flags | extra, extra) for flags in ways for extra in dict.fromkeys((more, 0))]:
        try:
            syscall("unshare", flags)
        except OSError:
            continue
        if flags & CLONE_NEWUSER:
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open("/proc/self/" + name, "w") as table:
                    table.write(text)
            # The new namespace made us undumpable, and /proc/self root's.
            prctl(PR_SET_DUMPABLE, 1)
        return True, got
    return False, 0


def own_terminals(terminal: str, queues: bool) -> "tuple[tuple[str, ...], int]":
    """In our own mount namespace: put terminals of our own in the place of those of the whole host.

    Args:
        terminal: the path of the one we stand at, or "". It gets the name /dev/console, where ttyname(3) looks
            last and finds it; its own name leads to a terminal of the new kind, or to none.
        queues: also mount the POSIX message queues of our own IPC namespace. mq_open(3) needs no directory, but
            Landlock asks where a queue lies. A host without /dev/mqueue has them where the terminals then cover them.

    Returns:
        The names that lead to the session's own terminals alone, none where the host has no such directory or
        refuses; and a descriptor of the queues' directory, -1 for none.
    """
    found = -1
    try:
        at_console = bool(terminal) and _bind(terminal, "/dev/console")
        if queues:
            found = _own_queues()
        with _mount_point("/dev/pts") as (name, _):
            if not name:
                return (), found
            mount(b"guard", name, b"devpts", MS_NOSUID | MS_NOEXEC, b"newinstance,ptmxmode=0666,mode=620")
        _bind("/dev/pts/ptmx", "/dev/ptmx")
    except OSError:
        return (), found
    return ("/dev/pts", "/dev/ptmx", "/dev/console")[: 2 + at_console], found


def _own_queues() -> int:
    for place in ("/dev/mqueue", "/dev/pts"):
        with _mount_point(place) as (name, is_directory):
            if is_directory:
                try:
                    mount(b"guard", name, b"mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC)
                    return os.open(place, O_PATH)
                except OSError:
                    continue
    return -1


def _bind(source: str, target: str) -> bool:
    """Mount a file over another; a link in the target's place stays as it is (/dev/ptmx, where it names pts/ptmx)."""
    with _mount_point(source) as (here, _), _mount_point(target) as (there, _):
        if here and there:
            mount(here, there, None, MS_BIND)
        return bool(here and there)


def cover(hidden: "list[str]", anchors: "list[str]", shields: "list[str]", private: "tuple[str, ...]" = ()) -> None:
    """In our own mount namespace: hide places, and make others read-only.

    Args:
        hidden: directories become empty ones, files empty files. Those that vanished are passed over.
        anchors: directories that become mount points, so that none can be renamed with a shield in it.
        shields: stay readable. Every path is opened with no link followed, so that what is covered is
            what was meant.
        private: directories that become empty ones of our own, writable, as /dev/shm.

    Raises:
        OSError: a mount was refused; what was covered before stays so.
    """
    mount(b"none", b"/", None, MS_REC | MS_SLAVE)
    for path in private:
        with _mount_point(path) as (name, is_directory):
            if name and is_directory:
                mount(b"guard", name, b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=1777")
    for path in sorted(hidden, key=len):
        with _mount_point(path) as (name, is_directory):
            if name and is_directory:
                mount(
                    b"guard",
                    name,
                    b"tmpfs",
                    MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
                    b"size=4k,mode=755",
                )
            elif name:
                mount(b"/dev/null", name, None, MS_BIND)
    for path in sorted({*anchors, *shields}, key=len):
        with _mount_point(path) as (name, _):
            if name:
                mount(name, name, None, MS_BIND | MS_REC)
    for path in sorted(shields, key=len):
        with _mount_point(path) as (name, _):
            if name:
                # A user namespace may not clear the flags that the file system came with.
                flags = os.statvfs(name).f_flag
                keep = flags & 0x0C0E | (flags & 0x1000) << 9  # nosuid nodev noexec noatime nodiratime; relatime
                mount(None, name, None, MS_BIND | MS_REMOUNT | MS_RDONLY | keep)


class _mount_point:  # noqa: N801 - a context manager used as a function
    """The name under which an opened path is mounted on, whatever its path means by then."""

    def __init__(self, path: str) -> None:
        try:
            self._fd = open_beneath(path)
        except OSError:
            self._fd = -1

    def __enter__(self) -> "tuple[bytes, bool]":
        if self._fd < 0:
            return b"", False
        return b"/proc/self/fd/%d" % self._fd, os.fstat(self._fd).st_mode & 0o170000 == 0o040000

    def __exit__(self, *exception: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
