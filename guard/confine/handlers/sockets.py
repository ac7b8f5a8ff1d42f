"""Unix sockets: by path an allow-list, and whatever the tree bound itself.

A path is resolved once, the socket there judged, and the connection made to that very file. A file below a
writable place is not enough: a service that the user started outside may listen there, and would act for the
tree outside (a build daemon, git's fsmonitor). So the kernel is asked whose sockets are bound to that file,
and the tree's are known by their marks (`diag`). The same for abstract names.

To bind one is to create a file: a thread that has entered the tree's own Landlock rules does it, from the
caller's directory and under its umask.

What the other side sees: SO_PEERCRED, SO_PEERPIDFD and SCM_CREDENTIALS (of datagrams with an address) name the
supervisor's process, with the caller's user and groups, as for the listener its clients ask about. Servers that
look at the user (munge, PostgreSQL, tmux, nscd) see no difference; those that look a process up (polkit) see
the supervisor. Socket pairs and messages without an address are not touched.
"""

import _socket
import _thread
import posix as os

from guard.confine.handlers import paths
from guard.confine.handlers.base import PENDING, Call, Supervisor
from guard.confine.handlers.inner import within
from guard.confine.handlers.taken import Own, Taken, make, start
from guard.confine.handlers.waiting import EAGAIN, Waiters
from guard.confine.turns import Crowded
from guard.kernel import diag, real_path, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from guard.confine.handlers.inner import Chain, Inner

_EPERM, _EACCES, _ENAMETOOLONG, _ECONNREFUSED = 1, 13, 36, 111
_AF_UNIX = _socket.AF_UNIX
_MOST_PATH = 108  # sizeof(sun_path)
_MOST_NAME = 2 + _MOST_PATH  # sizeof(struct sockaddr_un)
_CLONE_FS = 0x200
_NOBODY, _OWN, _FOREIGN = range(3)
_MOST_MAKERS, _MOST_JOBS = 8, 64


class UnixSockets:
    """The unix sockets of one tree.

    Args:
        supervisor: its setting `unix_allow` names sockets and directories of sockets.
        waiters: wait for listeners whose queue is full.
        inner: the sandboxes within the tree.
    """

    def __init__(self, supervisor: "Supervisor", waiters: "Waiters", inner: "Inner") -> None:
        self._allowed = tuple({path for name in supervisor.setting("unix_allow") for path in (name, real_path(name))})
        self._own = Own(_alive)
        self._waiters, self._inner = waiters, inner
        self._maker = _Maker(lambda: supervisor.ruleset, self._own.add)

    # bind ---------------------------------------------------------------------------------------------

    def bind(self, supervisor: "Supervisor", call: "Call", socket: "Taken", raw: bytes) -> int:
        """Bind for the caller."""
        if not _is_name(raw) or raw[2] == 0:
            call.check()  # an abstract name, one of the kernel's choice, or a mistake
            result = make("bind", socket.fd, raw)
            self._own.add(socket.marks())
            return result
        path = raw[2:].split(b"\0", 1)[0]
        mask, around = call.status("Umask", 8), self._inner.around(call)
        if supervisor.mode("world-writable") == "enforce":
            mask |= 0o002
        parent, slash, base = path.rpartition(b"/")
        where = paths.directory(call, paths.AT_FDCWD)
        try:
            above = paths.resolve(call, paths.AT_FDCWD, parent or b"/") if slash else os.dup(where)
        except OSError:
            os.close(where)
            raise
        marks, fds = socket.marks(), (socket.keep(), where, above)
        self._maker.add(_Making(call, marks, fds, raw, parent + slash, base, mask, around))
        return PENDING

    # connect and sendto -------------------------------------------------------------------------------

    def connect(self, supervisor: "Supervisor", call: "Call", socket: "Taken", raw: bytes) -> int:
        """Connect for the caller; one that means to wait for a full queue waits beside."""
        if int.from_bytes(raw[:2], "little") != _AF_UNIX:
            call.check()
            return start(socket.fd, raw)
        raw, target = self.send_to(supervisor, call, raw)
        try:
            call.check()
            return int(call.outside(start, socket.fd, raw))
        except OSError as error:
            if error.errno != EAGAIN or not socket.blocks():
                raise
            limit, fd = socket.limit(), socket.keep()
            kept = (fd,) if target < 0 else (fd, target)
            try:
                self._waiters.add(call, kept, 0, lambda: start(fd, raw), limit)
            except OSError:
                os.close(fd)
                raise
            target = -1
            return PENDING
        finally:
            if target >= 0:
                os.close(target)

    def send_to(self, supervisor: "Supervisor", call: "Call", raw: bytes) -> "tuple[bytes, int]":
        """Judge an address; returns the one to use, and a descriptor that must stay open until then or -1."""
        if not _is_name(raw):
            return raw, -1  # the kernel's to refuse
        if raw[2] == 0:
            self._judge_abstract(supervisor, call, raw)
            return raw, -1
        target = self._open(supervisor, call, raw)
        return b"\1\0/proc/self/fd/%d\0" % target, target

    def _judge_abstract(self, supervisor: "Supervisor", call: "Call", raw: bytes) -> None:
        if supervisor.setting("unix_abstract") == "allow":
            return
        if self._whose(lambda name, inode, device: name == raw[2:]) == _FOREIGN:
            name = raw[3:].decode("utf-8", "replace")
            # EPERM, as from Landlock, whose scope would refuse it without a supervisor
            supervisor.decide("unix-sockets", "unix-abstract", f"abstract socket @{name}", _EPERM, call)

    def _open(self, supervisor: "Supervisor", call: "Call", raw: bytes) -> int:
        """Open the socket's file, if the tree may connect to it."""
        path = raw[2:].split(b"\0", 1)[0]
        fd = paths.resolve(call, paths.AT_FDCWD, path)
        try:
            self._judge_path(supervisor, call, fd)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _judge_path(self, supervisor: "Supervisor", call: "Call", fd: int) -> None:
        real, about = paths.real(fd), paths.about(call, fd)
        if any(real == name or real.startswith(name + "/") for name in self._allowed):
            return
        if about.st_mode & 0o170000 == 0o140000:
            whose = self._whose(lambda name, inode, device: diag.is_at(about, inode, device))
            if whose == _OWN:
                return
            if whose == _NOBODY and supervisor.may_write(real):
                raise OSError(_ECONNREFUSED, "Connection refused")
        elif supervisor.may_write(real):
            raise OSError(_ECONNREFUSED, "Connection refused")  # no socket at all
        supervisor.decide(
            "unix-sockets", "unix-path", f"connect unix {real}", _EACCES, call, "unix.allow with this socket"
        )

    def _whose(self, matches: "Callable[[bytes, int, int], bool]") -> int:
        """Whose sockets have a name: nobody's, the tree's alone, or also another's."""
        try:
            found = [one[0] for one in diag.unix_sockets() if matches(*one[1:])]
        except OSError:
            return _FOREIGN  # a kernel that does not tell (no CONFIG_UNIX_DIAG): the stricter side
        if not found:
            return _NOBODY
        return _OWN if all(one in self._own for one in found) else _FOREIGN


def _is_name(raw: bytes) -> bool:
    """Whether the kernel would take it for a name (unix_validate_addr)."""
    return 2 < len(raw) <= _MOST_NAME and int.from_bytes(raw[:2], "little") == _AF_UNIX


def _alive() -> "set[int]":
    try:
        return {found[0] for found in diag.unix_sockets()}
    except OSError:
        return set()  # without the kernel's table nobody asks either


class _Making:
    """A socket's file to be made: by whom, from where, under which mask, in which sandboxes."""

    __slots__ = ("above", "around", "base", "call", "fd", "marks", "mask", "parent", "raw", "where")

    def __init__(
        self,
        call: "Call",
        marks: "tuple[int, int]",
        fds: "tuple[int, int, int]",
        raw: bytes,
        parent: bytes,
        base: bytes,
        mask: int,
        around: "Chain",
    ) -> None:
        self.call, self.marks, self.raw = call, marks, raw
        self.fd, self.where, self.above = fds
        self.parent, self.base, self.mask, self.around = parent, base, mask, around

    def close(self) -> None:
        for fd in (self.fd, self.where, self.above):
            os.close(fd)


class _Maker:
    """Threads under the tree's Landlock rules, each with a working directory and a umask of its own.

    One does the work, unless a file system holds it up.

    Args:
        ruleset: gives the descriptor of the tree's Landlock ruleset, which is there when the tree is; -1 for none.
        made: told the marks of each socket that was bound.
    """

    def __init__(self, ruleset: "Callable[[], int]", made: "Callable[[tuple[int, int]], None]") -> None:
        self._ruleset = ruleset
        self._made = made
        self._jobs: list[_Making] = []
        self._lock = _thread.allocate_lock()
        self._work = _thread.allocate_lock()
        self._work.acquire()
        self._threads = self._busy = 0

    def add(self, job: "_Making") -> None:
        """Make it, and answer its caller."""
        if self._busy + len(self._jobs) >= self._threads and self._threads < _MOST_MAKERS:
            try:
                _thread.start_new_thread(self._serve, ())
                self._threads += 1
            except RuntimeError:  # the user has as many processes as may be
                if not self._threads:
                    job.close()
                    raise OSError(EAGAIN, "Resource temporarily unavailable") from None
        elif len(self._jobs) >= _MOST_JOBS:
            job.close()
            raise Crowded
        self._jobs.append(job)
        self._wake()

    def _wake(self) -> None:
        try:
            self._work.release()
        except RuntimeError:
            return  # somebody is about to look

    def _serve(self) -> None:
        ready = False
        try:
            syscall("unshare", _CLONE_FS)
            ruleset = self._ruleset()
            if ruleset >= 0:
                syscall("landlock_restrict_self", ruleset, 0)
            ready = True
        except OSError:
            pass  # then every job is refused
        while True:
            self._work.acquire()
            while (job := self._take()) is not None:
                code = _EACCES
                try:
                    if ready:
                        within(job.around, self._make, job)
                        code = 0
                except OSError as error:
                    code = error.errno or _EACCES
                except Exception:  # noqa: BLE001 - a defect of ours refuses, and the thread goes on
                    code = _EACCES
                finally:
                    with self._lock:
                        self._busy -= 1
                    job.close()
                    job.call.answer(0, code)

    def _take(self) -> "_Making | None":
        with self._lock:
            if not self._jobs:
                return None
            self._busy += 1
            job = self._jobs.pop(0)
        if self._jobs:
            self._wake()  # another may do that one
        return job

    def _make(self, job: "_Making") -> int:
        os.fchdir(job.where)
        os.umask(job.mask)
        name = job.raw
        if not _is_same(job.above, job.parent or b"."):
            # /proc/self, /dev/fd or another root: not to us what it is to the caller.
            path = b"/proc/self/fd/%d/%s" % (job.above, job.base)
            if len(path) >= _MOST_PATH:
                raise OSError(_ENAMETOOLONG, "File name too long")
            name = job.raw[:2] + path + b"\0"
        job.call.check()
        made = make("bind", job.fd, name)
        self._made(job.marks)
        return made


def _is_same(fd: int, path: bytes) -> bool:
    try:
        there, here = os.stat(path), os.fstat(fd)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
