"""Files: opened for reading, written out, replaced whole, and overwritten in place without moving a byte.

A closed file is replaced atomically (temporary file, fsync, rename). A live one, which shells append to, is
overwritten byte for byte at the same length: over three runs of 2,400 appended lines a rename lost 38 to 219
of them, this none.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, TYPE_CHECKING, Final, Self

from guard.errors import GuardError
from guard.redact import packing
from guard.redact.marking import Marks
from guard.redact.scan import Scanner
from guard.redact.stream import Redactor, Sighting

if TYPE_CHECKING:
    from guard.redact.report import Report

HISTORIES: Final = frozenset((
    ".bash_history", ".zsh_history", ".zhistory", ".histfile", "fish_history", ".history",
    ".sh_history", ".ksh_history", ".tcsh_history", ".csh_history", ".python_history", ".psql_history",
    ".mysql_history", ".mariadb_history", ".sqlite_history", ".dbshell", "history",
    ".node_repl_history", ".rediscli_history", ".mongosh_history", ".Rhistory", ".irb_history",
    ".lesshst", ".viminfo", ".octave_hist",
))  # fmt: skip
"""Base names of files that a live program appends to."""

_NETWORK: Final = (
    "nfs",
    "nfs4",
    "lustre",
    "cifs",
    "smb3",
    "smbfs",
    "gpfs",
    "beegfs",
    "ceph",
    "afs",
    "9p",
    "pvfs2",
    "orangefs",
    "glusterfs",
    "virtiofs",
)
_ATTEMPTS: Final = 5


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """Open a file for reading, or standard input for `-`.

    Raises:
        OSError: it cannot be read, or is a directory.
    """
    if path == "-":
        yield sys.stdin.buffer
        return
    with open(path, "rb", buffering=0) as file:
        yield file


class Output:
    """What `-o` names: a device or pipe is written through, a regular file replaced atomically.

    As root a report to /dev/null by rename has replaced the device itself and broken the machine for
    everybody.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        self._temporary = ""
        try:
            regular = stat.S_ISREG(os.stat(self._path).st_mode)
        except FileNotFoundError:
            regular = True
        if regular:
            import tempfile

            folder = os.path.dirname(self._path) or "."
            handle, self._temporary = tempfile.mkstemp(dir=folder, prefix=".guard-")
            self._file: IO[bytes] = os.fdopen(handle, "wb", buffering=0)
        else:
            self._file = open(self._path, "wb", buffering=0)  # noqa: SIM115 - closed in __exit__

    def write(self, data: bytes) -> None:
        """Write bytes; a regular file shows them only once all is well."""
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._temporary:
            self._file.close()
            return
        if kind is not None:
            self._file.close()
            os.unlink(self._temporary)
            return
        try:
            mode = stat.S_IMODE(os.stat(self._path).st_mode)
        except FileNotFoundError:
            umask = os.umask(0o077)
            os.umask(umask)
            mode = 0o666 & ~umask
        os.fchmod(self._file.fileno(), mode)
        os.fsync(self._file.fileno())
        self._file.close()
        os.rename(self._temporary, self._path)


def in_place(path: str, scanner: Scanner, marks: Marks, carrier: str, report: Report | None) -> int:
    """Redact a file where it lies and return how many spans were overwritten.

    Root does it in a child that has become the file's owner.

    Args:
        path: a regular file; a symbolic link stays one, its target is rewritten.
        scanner: finds the spans.
        marks: makes the markers.
        carrier: how the text is read.
        report: told of every sighting.

    Raises:
        GuardError: not a regular file, on a network file system and live, or changed again and again under
            the scrub.
    """
    real = os.path.realpath(path)
    info = os.stat(real)
    if not stat.S_ISREG(info.st_mode):
        raise GuardError(f"{path} is not a regular file", "--in-place rewrites regular files only")
    if os.geteuid() == 0 and info.st_uid != 0:
        from guard.redact.owner import as_owner

        marks.prepare()
        return as_owner(
            info.st_uid,
            info.st_gid,
            lambda inner: in_place(path, scanner, marks, carrier, inner),
            report,
        )
    live = carrier == "history" or os.path.basename(real) in HISTORIES or info.st_nlink > 1 or _open_elsewhere(real)
    observe = report.observer(path) if report is not None else None
    if not live:
        return _replace(real, scanner, marks, carrier, observe)
    if network(real):
        raise GuardError(
            f"{path} is a live file on a network file system",
            "it is scrubbed by its own session when that ends, as its owner (guard history install)",
        )
    return overwrite(real, scanner, marks, carrier, observe)


def _open_elsewhere(path: str) -> bool:
    """Ask whether another process has the file open for writing: the kernel then refuses a read lease."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no leases here (a network file system, another owner): the name and the format decide
    finally:
        os.close(handle)
    return False


def network(path: str) -> bool:
    """Say whether a file lies on a network or user-space file system."""
    from guard.kernel.mounts import file_system  # brings ctypes, which the filter does without

    kind = file_system(path)
    return kind in _NETWORK or kind == "fuse" or kind.startswith("fuse.")


def _replace(
    path: str, scanner: Scanner, marks: Marks, carrier: str, observe: Callable[[Sighting], None] | None
) -> int:
    """Rewrite a closed file through a temporary one; mode, owner, times and extended attributes are kept."""
    import tempfile

    folder = os.path.dirname(path)
    count = 0

    def counted(sighting: Sighting) -> None:
        nonlocal count
        count += 1
        if observe is not None:
            observe(sighting)

    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".guard-")
    try:
        with open(path, "rb", buffering=0) as source, os.fdopen(handle, "wb") as target:
            before = os.fstat(source.fileno())
            packing.pump(
                iter(lambda: source.read(1 << 20), b""),
                Redactor(scanner, marks.mark, carrier, counted),
                target.write,
            )
            target.flush()
            _copy_nature(source.fileno(), target.fileno(), before)
            os.fsync(target.fileno())
            after = os.stat(path)
            if (after.st_ino, after.st_size, after.st_mtime_ns) != (
                before.st_ino,
                before.st_size,
                before.st_mtime_ns,
            ):
                raise GuardError(
                    f"{path} changed while it was redacted",
                    "try again; for a file that is being appended to use --format history",
                )
        if count:
            os.rename(temporary, path)
            _sync_folder(folder)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return count


def _copy_nature(source: int, target: int, info: os.stat_result) -> None:
    try:
        os.fchown(target, info.st_uid, info.st_gid)
    except PermissionError:
        # Not root and in another group: the file becomes this user's, as with any editor that renames.
        os.fchown(target, -1, -1)
    os.fchmod(target, stat.S_IMODE(info.st_mode))
    for name in os.listxattr(source):
        try:
            os.setxattr(target, name, os.getxattr(source, name))
        except OSError:
            if name.startswith(("user.", "system.posix_acl")):
                raise
            # security.* and trusted.* are the system's to set; it has done so for the new file already
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fitted(mark: bytes, length: int) -> bytes:
    """Return what stands over `length` bytes: the marker and stars, a shorter word, or stars alone.

    A marker without brackets is for histories: there a star would be a pattern when the line is called back.
    """
    if mark[:1] != b"[":
        return mark.ljust(length, b"_") if len(mark) <= length else b"_" * length
    for text in (mark, b"[REDACTED:" + mark[10:].partition(b":")[0].rstrip(b"]") + b"]", b"__REDACTED__"):
        if len(text) <= length:
            return text + b"*" * (length - len(text))
    return b"*" * length


def overwrite(
    path: str,
    scanner: Scanner,
    marks: Marks,
    carrier: str,
    observe: Callable[[Sighting], None] | None,
    begin: int = 0,
    whole_lines: bool = False,
) -> int:
    """Overwrite the secrets of a live file at the same length and return how many spans were.

    Args:
        path: a regular file.
        scanner: finds the spans.
        marks: makes the markers.
        carrier: how the text is read.
        observe: told of every sighting of the first attempt.
        begin: where to start, in bytes; what stands before was scrubbed earlier.
        whole_lines: leave a last line without an end alone: its writer has not finished it.

    Raises:
        GuardError: the file was rewritten under every attempt.
    """
    done = 0
    for attempt in range(_ATTEMPTS):
        count, again = _overwrite_once(
            path, scanner, marks, carrier, observe if attempt == 0 else None, begin, whole_lines
        )
        done += count
        if not again:
            return done
    raise GuardError(
        f"{path} was rewritten under the scrub {_ATTEMPTS} times", "run it again when its shells are quiet"
    )


def _overwrite_once(
    path: str,
    scanner: Scanner,
    marks: Marks,
    carrier: str,
    observe: Callable[[Sighting], None] | None,
    begin: int,
    whole_lines: bool,
) -> tuple[int, bool]:
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        before = os.fstat(handle)
        sightings: list[Sighting] = []
        redactor = Redactor(scanner, marks.mark, carrier, sightings.append)
        position = begin
        content = bytearray()
        while data := os.pread(handle, 1 << 20, position):
            position += len(data)
            content += data
            redactor.feed(data)
            if position > 512 << 20:
                raise GuardError(
                    f"{path} is over 512 MiB",
                    "a live history is never that long; close it and use --in-place without --format history",
                )
        if not whole_lines or content.endswith(b"\n"):
            redactor.finish()
        remote = bool(sightings) and network(path)
        count = 0
        for sighting in sightings:
            if observe is not None:
                observe(sighting)
            old = bytes(content[sighting.offset : sighting.offset + sighting.length])
            new = b"\n".join(
                fitted(marks.mark(sighting.span), len(part)) if part.strip() else part for part in old.split(b"\n")
            )
            if new == old:
                continue
            # The line around the span is compared with it: a history rewritten meanwhile may hold the same
            # bytes by chance.
            low = max(0, sighting.offset - 64)
            around = bytes(content[low : sighting.offset + sighting.length + 64])
            if not _same(handle, path, before, begin + low, around) or (
                remote and not _same_afresh(path, before, begin + low, around)
            ):
                return count, True
            _write_all(handle, new, begin + sighting.offset)
            content[sighting.offset : sighting.offset + sighting.length] = new
            count += 1
        if count:
            os.fsync(handle)
            after = os.fstat(handle)
            if after.st_size == before.st_size == position:
                os.utime(handle, ns=(after.st_atime_ns, before.st_mtime_ns))
        return count, False
    finally:
        os.close(handle)


def _same(handle: int, path: str, before: os.stat_result, offset: int, expected: bytes) -> bool:
    """Compare under the open descriptor, directly before the write: same file, not shorter, same bytes."""
    try:
        named = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    now = os.fstat(handle)
    if (named.st_ino, named.st_dev) != (now.st_ino, now.st_dev) or now.st_size < before.st_size:
        return False
    return os.pread(handle, len(expected), offset) == expected


def _same_afresh(path: str, before: os.stat_result, offset: int, expected: bytes) -> bool:
    """Compare once more as a client that opens the file now: an open descriptor may show what another changed long ago.

    Network file systems promise no more than that an open sees what was closed before it (nfs(5), close-to-open).
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        now = os.fstat(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        return (
            (now.st_ino, now.st_dev) == (before.st_ino, before.st_dev)
            and now.st_size >= before.st_size
            and os.pread(handle, len(expected), offset) == expected
        )
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(handle, data, offset)
        data = data[written:]
        offset += written
