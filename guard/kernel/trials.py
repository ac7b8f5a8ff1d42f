"""The trials of `guard.kernel.probe`: each runs in a throw-away child, does a forbidden and an allowed thing.

A trial returns what is worth knowing, raises OSError with the errno that stopped it, or `Failed` when the
kernel took the rule and then did not enforce it, which is the trap that decides credibility. Why one failed
is `guard.kernel.reasons`' to say.
"""

from __future__ import annotations

import array
import errno
import fcntl
import importlib
import os
import signal
import socket
import struct
from collections.abc import Callable

from guard import kernel
from guard.kernel import landlock

# linux/seccomp.h
_GET_ACTION_AVAIL = 2
_NEW_LISTENER, _WAIT_KILLABLE_RECV = 8, 32
_RET_ALLOW, _RET_ERRNO, _RET_USER_NOTIF = 0x7FFF0000, 0x00050000, 0x7FC00000
_NOTIF_RECV, _NOTIF_SEND, _NOTIF_SIZE = 0xC0502100, 0xC0182101, 80
_CREATE_RULESET_ERRATA = 2
_PIDFD_THREAD = os.O_EXCL
_PR_SET_PDEATHSIG = 1


class Failed(Exception):  # noqa: N818 - an outcome, not a programming error
    """What should have been refused was done, or what should work was refused."""


# --- Landlock ------------------------------------------------------------------------------------------


def landlock_errata() -> int:
    """Errata that this kernel has fixed, as a bit set; -1 where it cannot tell (before ABI 7)."""
    try:
        return kernel.syscall("landlock_create_ruleset", None, 0, _CREATE_RULESET_ERRATA)
    except OSError:  # EINVAL: older than the question itself
        return -1


def _enter(fs: int = 0, net: int = 0, scoped: int = 0) -> landlock.Ruleset:
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    return landlock.Ruleset(landlock.abi()[0], fs, net, scoped)


def _refused(what: str, expected: set[int], act: Callable[[], object]) -> None:
    try:
        act()
    except OSError as error:
        if error.errno in expected:
            return
        raise Failed(f"{what}: {errno.errorcode.get(error.errno or 0)} instead of a refusal") from error
    raise Failed(f"{what} was not refused")


def _allowed(what: str, act: Callable[[], object], also: frozenset[int] = frozenset()) -> None:
    try:
        act()
    except OSError as error:
        if error.errno not in also:
            name = errno.errorcode.get(error.errno or 0)
            raise Failed(f"{what} was refused ({name}) although allowed") from error


def _readable(count: int) -> list[str]:
    """Files that anybody can read anywhere; two of them are enough for a denial and a control."""
    found = []
    for path in ("/dev/null", "/etc/passwd", "/proc/self/status", os.__file__, __file__):
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # not here: the next one
            continue
        found.append(path)
    if len(found) < count:
        raise Failed("no readable file to try with")
    return found[:count]


def _open(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def _grant(ruleset: landlock.Ruleset, path: str, access: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        ruleset.allow_path(descriptor, access)
    finally:
        os.close(descriptor)


def landlock_layer() -> str:
    """Put one more layer on: there are at most 16, each nested guard or sandbox takes one."""
    _enter(landlock.MAKE_BLOCK).restrict()
    return "room for one more layer"


def landlock_files() -> str:
    """Show that a file outside of the grant cannot be opened and one inside can."""
    granted, other = _readable(2)
    ruleset = _enter(landlock.READ_FILE)
    _grant(ruleset, granted, landlock.READ_FILE)
    ruleset.restrict()
    _refused("opening a file outside of the grant", {errno.EACCES}, lambda: _open(other))
    _allowed("opening a granted file", lambda: _open(granted))
    return "a file was refused, a granted one opened"


def landlock_refer() -> str:
    """Grant REFER; ABI 1 refuses every rename and link across directories."""
    ruleset = _enter(landlock.REFER)
    _grant(ruleset, "/", landlock.REFER)
    ruleset.restrict()
    return "renames across directories can be granted"


def landlock_ports() -> str:
    """Show that ports outside of the grant can neither be bound nor connected to, others can."""
    with socket.socket() as held, socket.socket() as other:
        for listener in (held, other):
            listener.bind(("127.0.0.1", 0))
        granted, denied = held.getsockname()[1], other.getsockname()[1]
        ruleset = _enter(0, landlock.BIND_TCP | landlock.CONNECT_TCP)
        ruleset.allow_port(granted, landlock.BIND_TCP | landlock.CONNECT_TCP)
        ruleset.restrict()

        # The hook runs before the address is looked at: any errno but EACCES means that it let pass.
        def bind(port: int) -> None:
            with socket.socket() as new:
                new.bind(("127.0.0.1", port))

        def connect(port: int) -> None:
            with socket.socket() as new:
                new.settimeout(1)
                new.connect(("127.0.0.1", port))

        passed = frozenset({errno.EADDRINUSE, errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.ENETUNREACH})
        _refused("binding a port outside of the grant", {errno.EACCES}, lambda: bind(denied))
        _refused("connecting to a port outside of the grant", {errno.EACCES}, lambda: connect(denied))
        _allowed("binding a granted port", lambda: bind(granted), passed)
        _allowed("connecting to a granted port", lambda: connect(granted), passed)
    return "TCP bind and connect were refused, granted ports passed"


def landlock_scopes() -> str:
    """Show that no signal and no connection to an abstract socket leaves; inside both work."""
    outside = os.getppid()
    _allowed("a signal to the parent, before", lambda: os.kill(outside, 0))
    with socket.socket(socket.AF_UNIX) as older:
        older.bind(f"\0guard-probe-{os.getpid()}-older")
        older.listen(1)
        _enter(0, 0, landlock.SCOPE_ABSTRACT_UNIX | landlock.SCOPE_SIGNAL).restrict()

        def connect(name: str | bytes) -> None:
            with socket.socket(socket.AF_UNIX) as new:
                new.connect(name)

        _refused("a signal out of the domain", {errno.EPERM}, lambda: os.kill(outside, 0))
        _allowed("a signal to oneself", lambda: os.kill(os.getpid(), 0))
        # The socket was made before the domain was entered, so it is an outsider's.
        _refused("an outside abstract socket", {errno.EPERM}, lambda: connect(older.getsockname()))
        with socket.socket(socket.AF_UNIX) as own:
            own.bind(f"\0guard-probe-{os.getpid()}-own")
            own.listen(1)
            _allowed("an abstract socket of one's own", lambda: connect(own.getsockname()))
    return "signals and abstract sockets stay inside"


# --- seccomp -------------------------------------------------------------------------------------------


def _program(action: int) -> bytes:
    """unshare(2) gets `action`, everything else passes. `unshare(0)` does nothing: a harmless act."""

    def op(code: int, true: int, false: int, k: int) -> bytes:
        return struct.pack("=HBBI", code, true, false, k)

    return b"".join(
        (
            op(0x20, 0, 0, 0),  # ld [nr]
            op(0x15, 0, 1, kernel.NUMBERS["unshare"]),  # jeq
            op(0x06, 0, 0, action),
            op(0x06, 0, 0, _RET_ALLOW),
        )
    )


def _act() -> int:
    return kernel.syscall("unshare", 0)


def seccomp_filter() -> str:
    """Load a filter that refuses what it names and nothing else."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.load_filter(_program(_RET_ERRNO | errno.EUSERS), 0)
    _refused("a filtered call", {errno.EUSERS}, _act)
    _allowed("another call", lambda: kernel.prctl(kernel.PR_GET_NO_NEW_PRIVS))
    return "a call was refused, the others pass"


def _flagged(flags: int, action: int) -> int:
    """Load with exactly these flags: `kernel.load_filter` drops what a kernel does not know."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    program = array.array("B", _program(action))
    address, length = program.buffer_info()
    fprog = struct.pack("=H6xQ", length // 8, address)
    return kernel.syscall("seccomp", kernel.SECCOMP_SET_MODE_FILTER, flags, fprog)


def seccomp_spec_allow() -> str:
    """Load with SPEC_ALLOW (4.17): without it kernels before 5.16 slow the whole tree down."""
    _flagged(kernel.SECCOMP_FILTER_FLAG_SPEC_ALLOW, _RET_ERRNO | errno.EUSERS)
    _refused("a filtered call", {errno.EUSERS}, _act)
    return "known"


def notify_action() -> str:
    """Ask SECCOMP_GET_ACTION_AVAIL for USER_NOTIF."""
    kernel.syscall("seccomp", _GET_ACTION_AVAIL, 0, struct.pack("=I", _RET_USER_NOTIF))
    return "known"


def notify_listener() -> str:
    """Answer a call of a grandchild, which gets that answer."""
    listener = _flagged(_NEW_LISTENER, _RET_USER_NOTIF)
    pid = os.fork()
    if pid == 0:
        kernel.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it would wait for ever for an answer
        os.close(listener)
        try:
            _act()
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    request = bytearray(_NOTIF_SIZE)  # must be zero before RECV
    fcntl.ioctl(listener, _NOTIF_RECV, request)
    (ident,) = struct.unpack_from("=Q", request)
    fcntl.ioctl(listener, _NOTIF_SEND, struct.pack("=QqiI", ident, 0, -errno.EUSERS, 0))
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != errno.EUSERS:
        raise Failed("a notified call did not get the answer given")
    return "a call was answered"


def notify_wait_killable() -> str:
    """Load with WAIT_KILLABLE_RECV (5.19): signals do not interrupt a call that is being answered."""
    _flagged(_NEW_LISTENER | _WAIT_KILLABLE_RECV, _RET_USER_NOTIF)
    return "known"


# --- processes -----------------------------------------------------------------------------------------


def pidfd_getfd() -> str:
    """Take a descriptor from a process that we may trace: what a supervisor acts on."""
    reader, writer = os.pipe()
    pidfd = os.pidfd_open(os.getpid())
    taken = kernel.syscall("pidfd_getfd", pidfd, writer, 0)
    os.write(taken, b"x")
    if os.read(reader, 1) != b"x":
        raise Failed("the descriptor taken is another one")
    return "a descriptor was taken"


def pidfd_thread() -> str:
    """Open with PIDFD_THREAD (6.9): a descriptor of one thread, not of its process."""
    os.close(os.pidfd_open(os.getpid(), _PIDFD_THREAD))
    return "known"


def close_range_cloexec() -> str:
    """Mark inherited descriptors in one call, as before an exec."""
    reader, _ = os.pipe()
    os.set_inheritable(reader, True)
    kernel.syscall("close_range", reader, 0xFFFFFFFF, kernel.CLOSE_RANGE_CLOEXEC)
    if os.get_inheritable(reader):
        raise Failed("close_range did not mark the descriptor")
    return "descriptors were marked"


# --- namespaces ----------------------------------------------------------------------------------------


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(descriptor)


def namespace_user() -> str:
    """Make a user namespace with the caller's own ids, and a mount namespace."""
    uid, gid = os.getuid(), os.getgid()
    kernel.syscall("unshare", kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")
    if os.getuid() != uid:
        raise Failed("the user id is another one inside")
    return "made, with the ids kept"


def namespace_mask() -> str:
    """Hide a directory and a file in such a namespace, and make a tree read-only."""
    namespace_user()
    kernel.mount(b"none", b"/", None, kernel.MS_REC | kernel.MS_SLAVE)
    hidden = next((d for d in ("/usr", "/etc", "/var", "/tmp") if _entries(d)), None)  # noqa: S108 - hidden only
    victim = next((f for f in ("/proc/self/status", "/proc/version") if os.path.exists(f)), None)
    if hidden is None or victim is None:
        raise Failed("nothing to hide here to try with")
    path = hidden.encode()
    kernel.mount(path, path, None, kernel.MS_BIND | kernel.MS_REC)
    # What the mount above forbids is locked in a user namespace: leaving a flag out would be EPERM.
    kept = os.statvfs(hidden).f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC)
    kernel.mount(b"none", path, None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kept)
    if not os.statvfs(hidden).f_flag & os.ST_RDONLY:
        raise Failed("a read-only bind is not read-only")
    kernel.mount(
        b"tmpfs", path, b"tmpfs", kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV, b"size=4k,mode=755"
    )
    if _entries(hidden):
        raise Failed("a directory under a tmpfs is still seen")
    kernel.mount(b"/dev/null", victim.encode(), None, kernel.MS_BIND)
    with open(victim, "rb") as file:
        if file.read():
            raise Failed("a file under /dev/null is still read")
    return "a directory and a file were hidden, a tree made read-only"


def _entries(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:  # not there, not ours: it cannot serve as the example
        return []


# --- libraries -----------------------------------------------------------------------------------------


def _import(name: str) -> str:
    module = importlib.import_module(name)
    return os.path.dirname(module.__file__ or "") or name


def library_landlock() -> str:
    """Import the package `landlock`: it serves when a policy is compiled."""
    return _import("landlock")


def library_pyseccomp() -> str:
    """Import the package `pyseccomp`, which looks for libseccomp."""
    return _import("pyseccomp")
