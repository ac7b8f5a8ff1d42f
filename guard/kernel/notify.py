"""Seccomp user notification (seccomp_unotify(2)): a supervisor sees a call before the kernel makes it.

What a notification points to can change while it is judged: everything here copies first, and says
after each copy whether the caller still waits. There is no function that lets a call go on whose
pointers or descriptors were what decided; `CONTINUE` is for calls judged by their registers alone.
"""

import fcntl
import posix as os
import struct
import sys

from guard.kernel import load_filter, syscall

# linux/seccomp.h, the same on x86-64 and aarch64.
RECV, SEND, ID_VALID, ADDFD = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
FLAG_CONTINUE = 1
NEW_LISTENER, WAIT_KILLABLE_RECV = 8, 32

_NOTIFICATION = struct.Struct("@QIIiIQ6Q")  # id, pid, flags, then struct seccomp_data: nr, arch, ip, args
_RESPONSE = struct.Struct("@QqiI")
_PIDFD_THREAD = os.O_EXCL
_PAGE = 4096  # the smallest there is: reading less at once is always right


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
        if error.errno != 22:  # before 5.19 a signal may interrupt what is being answered
            raise
        return load_filter(program, flags | NEW_LISTENER)


class Call:
    """One call that waits for its answer.

    Attributes:
        pid: the calling thread. number: the system call. args: its six registers, unsigned.
    """

    __slots__ = ("_id", "_listener", "_memory", "args", "number", "pid")

    def __init__(self, listener: int, fields: "tuple[int, ...]") -> None:
        self._listener = listener
        self._id = fields[0]
        self.pid = fields[1]
        self.number = fields[3]
        self.args = fields[6:12]
        self._memory = -1

    def check(self) -> None:
        """Make sure that what was read belongs to the caller; raises `Gone`."""
        try:
            fcntl.ioctl(self._listener, ID_VALID, self._id.to_bytes(8, sys.byteorder))
        except OSError:
            raise Gone from None

    def read(self, address: int, length: int) -> bytes:
        """Copy from the caller's memory; what the caller could not read itself raises OSError (EFAULT)."""
        if self._memory < 0:
            try:
                self._memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise Gone from None
            except OSError:
                self.check()
                raise Unreadable from None
            self.check()
        try:
            content = os.pread(self._memory, length, address)
        except (OSError, OverflowError):
            raise OSError(14, "Bad address") from None
        self.check()
        if len(content) < length:
            raise OSError(14, "Bad address")
        return content

    def string(self, address: int, most: int = 4096) -> bytes:
        """Copy a string that ends with NUL; one page at a time, since the next may not be mapped.

        Raises:
            OSError: EFAULT; ENAMETOOLONG where `most` bytes hold no NUL.
        """
        found = b""
        while len(found) < most:
            at = address + len(found)
            part = self.read(at, min(_PAGE - at % _PAGE, most - len(found)))
            head, end, _ = part.partition(b"\0")
            found += head
            if end:
                return found
        raise OSError(36, "File name too long")

    def descriptor(self, number: int) -> int:
        """Take a copy of one of the caller's descriptors (pidfd_getfd(2)); ours to close.

        Raises:
            OSError: EBADF.
        """
        pidfd = self._pidfd()
        try:
            copy = syscall("pidfd_getfd", pidfd, number & 0xFFFFFFFF, 0)
        except OSError as error:
            self.check()
            if error.errno == 1:
                raise Unreadable from None
            raise
        finally:
            os.close(pidfd)
        try:
            self.check()
        except Gone:
            os.close(copy)
            raise
        return copy

    def _pidfd(self) -> int:
        try:
            return syscall("pidfd_open", self.pid, _PIDFD_THREAD)
        except OSError as error:
            if error.errno == 3:
                raise Gone from None
        # Before 6.9: by thread group. A thread that has left its group's descriptors is not told apart.
        return os.pidfd_open(self.status("Tgid"))

    def status(self, field: str, base: int = 10) -> int:
        """A number from the caller's /proc/PID/status."""
        try:
            with open(f"/proc/{self.pid}/status", "rb") as file:
                text = file.read()
        except OSError:
            raise Gone from None
        self.check()
        for line in text.split(b"\n"):
            name, _, value = line.partition(b":")
            if name == field.encode():
                return int(value.split()[0], base)
        raise Gone

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
        request = struct.pack("@QIIII", self._id, 2, fd, 0, flags)
        fcntl.ioctl(self._listener, ADDFD, request)

    def _send(self, response: bytes) -> None:
        try:
            fcntl.ioctl(self._listener, SEND, response)
        except OSError as error:
            if error.errno not in (2, 115):  # ENOENT: gone. EINPROGRESS: answered already by ADDFD
                raise

    def close(self) -> None:
        """Let go of the caller's memory."""
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1


def receive(listener: int) -> "Call | None":
    """Take the next notification; None where its caller died before it was taken."""
    buffer = bytearray(_NOTIFICATION.size)  # the kernel wants it zeroed
    while True:
        try:
            fcntl.ioctl(listener, RECV, buffer, True)
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno == 2:
                return None
            raise
        return Call(listener, _NOTIFICATION.unpack(buffer))
