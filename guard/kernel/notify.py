"""Seccomp user notification (seccomp_unotify(2)): a supervisor sees a call before the kernel makes it.

What a notification points to can change while it is judged: everything here copies first, and says
after each copy whether the caller still waits. There is no function that lets a call go on whose
pointers or descriptors were what decided; `CONTINUE` is for calls judged by their registers alone.
"""

import _ctypes
import _struct as struct  # without a file of its own to read
import fcntl
import posix as os
import sys

from guard.kernel import NUMBERS, Char, libc_syscall, load_filter

# linux/seccomp.h, the same on x86-64 and aarch64.
RECV, SEND, ID_VALID, ADDFD = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
FLAG_CONTINUE = 1
NEW_LISTENER, WAIT_KILLABLE_RECV = 8, 32
_PROCESS_VM_READV = NUMBERS.get("process_vm_readv", -1)
_PROCESS_VM_WRITEV = NUMBERS.get("process_vm_writev", -1)
_PIDFD_OPEN, _PIDFD_GETFD = NUMBERS["pidfd_open"], NUMBERS["pidfd_getfd"]

_NOTIFICATION = struct.Struct("@QIIiIQ6Q")  # id, pid, flags, then struct seccomp_data: nr, arch, ip, args
_RESPONSE = struct.Struct("@QqiI")
_PIDFD_THREAD = os.O_EXCL  # since 6.9
_PAGE = 4096  # the smallest there is: reading less at once is always right
_EPERM, _ENOENT, _ESRCH, _EFAULT, _EINVAL, _ENAMETOOLONG, _EINPROGRESS = 1, 2, 3, 14, 22, 36, 115


class Gone(Exception):  # noqa: N818 - a state of the caller, not an error of ours
    """The caller does not wait any more: it was killed, or a signal took it out of the call."""


class Unreadable(Exception):  # noqa: N818 - as above
    """The caller's memory or descriptors are closed to us: it made itself undumpable."""


def load_listener(program: bytes, flags: int) -> int:
    """Put a filter with notifications in front of this thread's calls; returns the listener's descriptor.

    Raises:
        OSError: EBUSY where a filter above already has a listener: there can be one only.
    """
    try:
        return load_filter(program, flags | NEW_LISTENER | WAIT_KILLABLE_RECV)
    except OSError as error:
        if error.errno != _EINVAL:  # before 5.19 a signal may interrupt what is being answered
            raise
        return load_filter(program, flags | NEW_LISTENER)


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Outside(Protocol):
        """Who sees to others while a call is held up: `guard.confine.turns.Turn`."""

        def outside(self, make: "Callable[..., Any]", *args: object) -> "Any":  # noqa: ANN401 - as `Call.outside`
            """Make a call that may be held up."""

        def anyway(self, make: "Callable[..., Any]", *args: object) -> "Any":  # noqa: ANN401 - as above
            """As `outside`, however many are held up already."""


class _Page(_ctypes.Array):  # type: ignore[type-arg]
    _type_ = Char
    _length_ = _PAGE


_VECTOR = struct.Struct("@QQ")  # struct iovec


class Call:
    """One call that waits for its answer.

    Attributes:
        pid: the calling thread. number: the system call. args: its six registers, unsigned.
        turn: sees to others while this one is held up; None where nobody does.
    """

    __slots__ = ("_id", "_listener", "args", "number", "pid", "turn")

    def __init__(self, listener: int, fields: "tuple[int, ...]") -> None:
        self._listener = listener
        self._id = fields[0]
        self.pid = fields[1]
        self.number = fields[3]
        self.args = fields[6:12]
        self.turn: Outside | None = None

    def outside(self, make: "Callable[..., Any]", *args: object) -> "Any":  # noqa: ANN401 - what `make` returns
        """Do what a file system may hold up, and let others be answered meanwhile.

        Args:
            make: touches nothing that those others are judged by.
            args: its arguments.
        """
        return make(*args) if self.turn is None else self.turn.outside(make, *args)

    def check(self) -> None:
        """Make sure that what was read belongs to the caller; raises `Gone`."""
        if not self.waits():
            raise Gone

    def waits(self) -> bool:
        """Whether the caller still waits for an answer."""
        return not _ask(self._listener, ID_VALID, self._id.to_bytes(8, sys.byteorder))

    def read(self, address: int, length: int) -> bytes:
        """Copy from the caller's memory; what the caller could not read itself raises OSError (EFAULT)."""
        content = self._copied(address, length)
        self.check()
        if len(content) < length:
            raise OSError(_EFAULT, "Bad address")
        return content

    def string(self, address: int, most: int = 4096) -> bytes:
        """Copy a string that ends with NUL; one page at a time, since the next may not be mapped.

        Raises:
            OSError: EFAULT; ENAMETOOLONG where `most` bytes hold no NUL.
        """
        found = b""
        while len(found) < most:
            at = address + len(found)
            wanted = min(_PAGE - at % _PAGE, most - len(found))
            part = self._copied(at, wanted)
            self.check()
            head, end, _ = part.partition(b"\0")
            found += head
            if end:
                return found
            if len(part) < wanted:
                raise OSError(_EFAULT, "Bad address")
        raise OSError(_ENAMETOOLONG, "File name too long")

    def _copied(self, address: int, length: int) -> bytes:
        # It may lie in a page of a file that has yet to be read.
        if self.turn is None:
            return self._copy(address, length)
        copied: bytes = self.turn.anyway(self._copy, address, length)
        return copied

    def _copy(self, address: int, length: int) -> bytes:
        """Return what there is of this memory, not yet checked whose it was."""
        if length <= _PAGE:
            page = bytearray(_PAGE)
            ours = _VECTOR.pack(_ctypes.addressof(_Page.from_buffer(page)), length)
            theirs = _VECTOR.pack(address, length)
            # None is a zero of full width: the sixth argument lies on the stack, where a small one leaves half unset.
            count = libc_syscall(_PROCESS_VM_READV, self.pid, ours, 1, theirs, 1, None)
            if count >= 0:
                return bytes(page[:count])
            code = _ctypes.get_errno()
            if code == _EFAULT:
                raise OSError(_EFAULT, "Bad address")
            if code == _ESRCH:
                raise Gone
            # ENOSYS, or EPERM by a filter around us: by the file below, which needs no call of its own.
        try:
            memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Gone from None
        except OSError:
            self.check()
            raise Unreadable from None
        try:
            return os.pread(memory, length, address)
        except (OSError, OverflowError):
            raise OSError(_EFAULT, "Bad address") from None
        finally:
            os.close(memory)

    def write(self, address: int, content: bytes) -> None:
        """Put an answer into the caller's memory, at most a page; raises OSError (EFAULT) where it cannot have one."""
        page = bytearray(content.ljust(_PAGE, b"\0"))
        ours = _VECTOR.pack(_ctypes.addressof(_Page.from_buffer(page)), len(content))
        self.check()
        if libc_syscall(_PROCESS_VM_WRITEV, self.pid, ours, 1, _VECTOR.pack(address, len(content)), 1, None) < 0:
            self._write_through_file(address, content)

    def _write_through_file(self, address: int, content: bytes) -> None:
        try:
            memory = os.open(f"/proc/{self.pid}/mem", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            self.check()
            raise Unreadable from None
        try:
            os.pwrite(memory, content, address)
        except (OSError, OverflowError):
            raise OSError(_EFAULT, "Bad address") from None
        finally:
            os.close(memory)

    def descriptor(self, number: int) -> int:
        """Take a copy of one of the caller's descriptors (pidfd_getfd(2)); ours to close.

        Raises:
            OSError: EBADF.
        """
        pidfd = self._pidfd()
        copy: int = libc_syscall(_PIDFD_GETFD, pidfd, number & 0xFFFFFFFF, 0)
        code = _ctypes.get_errno() if copy < 0 else 0
        os.close(pidfd)
        try:
            self.check()
        except Gone:
            if not code:
                os.close(copy)
            raise
        if code == _EPERM:
            raise Unreadable
        if code:
            raise OSError(code, os.strerror(code))
        return copy

    def _pidfd(self) -> int:
        pidfd: int = libc_syscall(_PIDFD_OPEN, self.pid, _PIDFD_THREAD)
        if pidfd >= 0:
            return pidfd
        if _ctypes.get_errno() != _EINVAL:
            raise Gone
        try:
            # Before 6.9: by thread group. A thread that has left its group's descriptors is not told apart.
            return os.pidfd_open(self.status("Tgid"))
        except OSError:
            raise Gone from None

    def status(self, field: str, base: int = 10) -> int:
        """A number from the caller's /proc/PID/status."""
        try:
            fd = os.open(f"/proc/{self.pid}/status", os.O_RDONLY | os.O_CLOEXEC)
            try:
                text = os.read(fd, 8192)
            finally:
                os.close(fd)
        except OSError:
            raise Gone from None
        self.check()
        _, found, rest = text.partition(b"\n%s:" % field.encode())
        if not found:
            raise Gone
        return int(rest.split(None, 1)[0], base)

    def answer(self, value: int = 0, error: int = 0) -> None:
        """Give the call its result, or make it fail with an errno; a caller that is gone needs none."""
        self._send(_RESPONSE.pack(self._id, value, -error, 0))

    def let_go(self) -> None:
        """Let the kernel make the call as it stands now: only where registers alone decided."""
        self._send(_RESPONSE.pack(self._id, 0, 0, FLAG_CONTINUE))

    def install(self, fd: int, flags: int = 0) -> None:
        """Give the caller a copy of our descriptor as the call's result (SECCOMP_ADDFD_FLAG_SEND, 5.14).

        Args:
            fd: ours.
            flags: O_CLOEXEC or 0.
        """
        code = _ask(self._listener, ADDFD, struct.pack("@QIIII", self._id, 2, fd, 0, flags))
        if code:
            raise OSError(code, os.strerror(code))

    def replace(self, number: int, fd: int, flags: int = 0) -> None:
        """Put a copy of our descriptor in the place of one of the caller's; the call still waits for its answer.

        Args:
            number: the caller's.
            fd: ours.
            flags: O_CLOEXEC or 0.
        """
        code = _ask(self._listener, ADDFD, struct.pack("@QIIII", self._id, 1, fd, number, flags))
        if code:
            raise OSError(code, os.strerror(code))

    def _send(self, response: bytes) -> None:
        code = _ask(self._listener, SEND, response)
        if code not in (0, _ENOENT, _EINPROGRESS):  # gone; answered already by ADDFD
            raise OSError(code, os.strerror(code))


def _ask(listener: int, request: int, argument: bytes) -> int:
    """One ioctl on the listener; returns 0 or its errno.

    Each takes the listener's lock, and a signal of ours (a child's end) may come while it waits for it.
    """
    while True:
        try:
            fcntl.ioctl(listener, request, argument)
        except InterruptedError:
            continue
        except OSError as error:
            return error.errno or _EINVAL
        return 0


def receive(listener: int) -> "Call | None":
    """Take the next notification; None where its caller died before it was taken."""
    while True:
        buffer = bytearray(_NOTIFICATION.size)  # the kernel wants it zeroed
        try:
            fcntl.ioctl(listener, RECV, buffer, True)
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno == _ENOENT:
                return None
            raise
        return Call(listener, _NOTIFICATION.unpack(buffer))
