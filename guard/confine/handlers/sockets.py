"""Unix sockets: by path an allow-list, abstract ones only those that the tree bound itself.

A path is resolved once, the socket there judged, and the connection made to that very file. To bind one is to
create a file: a helper does it from the caller's directory, under its umask and the tree's own Landlock rules.
"""

import posix as os

from guard.confine.handlers import paths
from guard.confine.handlers.base import Call, Supervisor
from guard.kernel import real_path, syscall

_AF_UNIX = 1
_EACCES, _ECONNREFUSED, _EINVAL = 13, 111, 22


class UnixSockets:
    """The unix sockets of one tree.

    Args:
        supervisor: its setting `unix_allow` names sockets and directories of sockets.
    """

    def __init__(self, supervisor: "Supervisor") -> None:
        self._allowed = tuple({path for name in supervisor.setting("unix_allow") for path in (name, real_path(name))})
        self._abstract: set[bytes] = set()

    def bind(self, supervisor: "Supervisor", call: "Call", fd: int, raw: bytes) -> int:
        """Bind for the caller."""
        if len(raw) <= 2:  # autobind: an abstract name of the kernel's choice
            call.check()
            return self._bound(fd, syscall("bind", fd, raw, len(raw)))
        if raw[2] == 0:
            call.check()
            result = syscall("bind", fd, raw, len(raw))
            self._abstract.add(raw[2:])
            return result
        return self._create(supervisor, call, fd, raw)

    def _bound(self, fd: int, result: int) -> int:
        import _socket

        socket = _socket.socket(fileno=os.dup(fd))
        try:
            name = socket.getsockname()
        finally:
            socket.close()
        if isinstance(name, bytes):
            self._abstract.add(name)
        return result

    def _create(self, supervisor: "Supervisor", call: "Call", fd: int, raw: bytes) -> int:
        where, mask = paths.directory(call, paths.AT_FDCWD), call.status("Umask", 8)
        call.check()
        child = os.fork()
        if child == 0:
            code = _EACCES
            try:
                os.fchdir(where)
                os.umask(mask | 0o002 if supervisor.mode("world-writable") == "enforce" else mask)
                if supervisor.ruleset >= 0:
                    syscall("landlock_restrict_self", supervisor.ruleset, 0)
                syscall("bind", fd, raw, len(raw))
                code = 0
            except OSError as error:
                code = error.errno or _EACCES
            finally:
                os._exit(code & 0xFF)
        os.close(where)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code:
            raise OSError(code if code > 0 else _EACCES, "bind")
        return 0

    def connect(self, supervisor: "Supervisor", call: "Call", fd: int, raw: bytes) -> int:
        """Connect for the caller."""
        if int.from_bytes(raw[:2], "little") != _AF_UNIX:
            call.check()
            return syscall("connect", fd, raw, len(raw))
        if len(raw) > 2 and raw[2] == 0:
            self._judge_abstract(supervisor, call, raw)
            call.check()
            return syscall("connect", fd, raw, len(raw))
        target = self._open(supervisor, call, raw)
        try:
            call.check()
            name = b"\1\0/proc/self/fd/%d\0" % target
            return syscall("connect", fd, name, len(name))
        finally:
            os.close(target)

    def send_to(self, supervisor: "Supervisor", call: "Call", raw: bytes) -> "tuple[bytes, int]":
        """Judge a datagram's address; returns the address to send to, and a descriptor it needs until then or -1."""
        if len(raw) > 2 and raw[2] == 0:
            self._judge_abstract(supervisor, call, raw)
            return raw, -1
        target = self._open(supervisor, call, raw)
        return b"\1\0/proc/self/fd/%d\0" % target, target

    def _judge_abstract(self, supervisor: "Supervisor", call: "Call", raw: bytes) -> None:
        if raw[2:] not in self._abstract:
            name = raw[3:].decode("utf-8", "replace")
            supervisor.decide("unix-sockets", "unix-abstract", f"abstract socket @{name}", _EACCES, call)

    def _open(self, supervisor: "Supervisor", call: "Call", raw: bytes) -> int:
        """Open the socket's file, if the tree may connect to it."""
        path = raw[2:].split(b"\0", 1)[0]
        fd = paths.resolve(call, paths.AT_FDCWD, path)
        real = paths.real(fd)
        allowed = any(real == name or real.startswith(name + "/") for name in self._allowed)
        if not allowed and not supervisor.may_write(real):
            try:
                supervisor.decide(
                    "unix-sockets", "unix-path", f"connect unix {real}", _EACCES, call, "unix.allow with this socket"
                )
            except OSError:
                os.close(fd)
                raise
        return fd
