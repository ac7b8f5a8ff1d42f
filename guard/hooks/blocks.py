"""A block of ours in a start-up file of somebody else: put in once, taken out with not a byte left.

The block says itself what it changed beyond its own lines (that it made the file, that the last line had no end), so
that taking it out needs no memory of ours.
"""

from __future__ import annotations

import os
import stat
import tempfile

from guard.errors import GuardError

LIMIT = 4 << 20


def _lines(name: str, note: str) -> tuple[bytes, bytes]:
    begin = f"# >>> guard {name}{note} >>> made by `guard {name} install`, removed by `guard {name} uninstall`\n"
    return begin.encode(), f"# <<< guard {name} <<<\n".encode()


def put(path: str, name: str, body: str, own: bool = False) -> bool:
    """Put a block at the end of a file, in place of one that is there; the file is made where there is none.

    Args:
        path: a symbolic link stays one.
        name: the command that owns the block; one block of a name is in a file.
        body: its lines.
        own: whether the file is ours alone, and holds the body and nothing else.

    Returns:
        Whether anything changed.

    Raises:
        GuardError: the file is no regular file, or is too large to be a start-up file.
    """
    if own:
        return renew(path, body.encode())
    before = read(path)
    rest = without(before or b"", name, path)
    kept = rest if rest is not None else b""
    note = " (file)" if before is None or rest is None else " (end)" if kept and not kept.endswith(b"\n") else ""
    begin, end = _lines(name, note)
    after = kept + b"\n" * (note == " (end)") + begin + body.rstrip("\n").encode() + b"\n" + end
    if after == before:
        return False
    write(path, after)
    return True


def take(path: str, name: str, own: bool = False) -> bool:
    """Take a block out again; a file that was made for it and holds nothing else goes, and so does one of our own.

    Args:
        path: as `put`.
        name: as `put`.
        own: as `put`.

    Returns:
        Whether there was one.

    Raises:
        GuardError: as `put`, or the block was damaged.
    """
    if own:
        return remove(path)
    before = read(path)
    if before is None:
        return False
    after = without(before, name, path)
    if after == before:
        return False
    if after is None:
        os.unlink(os.path.realpath(path))
    else:
        write(path, after)
    return True


def has(path: str, name: str) -> bool:
    """Say whether a file holds a block of this name."""
    return f"# >>> guard {name}".encode() in (read(path) or b"")


def without(text: bytes, name: str, path: str) -> bytes | None:
    """Return a text without its block; None when nothing is left of a file that was made for it.

    Raises:
        GuardError: the block has no end.
    """
    start = text.find(f"# >>> guard {name}".encode())
    if start < 0:
        return text
    _, end = _lines(name, "")
    stop = text.find(end, start)
    if stop < 0:
        raise GuardError(
            f"{path}: the block of `guard {name}` has no end", f"remove its lines by hand, from '# >>> guard {name}' on"
        )
    head = text[start : text.find(b"\n", start)]
    before, after = text[:start], text[stop + len(end) :]
    note = next((n for n in (b" (end)", b" (file)") if n in head), b"")
    if note and after.startswith(b"# >>> guard "):
        # Another block of ours follows, and now stands where this one stood.
        return before + _noted(after, note)
    if note == b" (end)" and not after:
        before = before.removesuffix(b"\n")
    if note == b" (file)" and not before + after:
        return None
    return before + after


def _noted(text: bytes, note: bytes) -> bytes:
    """Put what a block in front of this one had changed into this one's first line."""
    line, _, rest = text.partition(b"\n")
    if b" (end) " not in line and b" (file) " not in line:
        line = line.replace(b" >>> made", note + b" >>> made")
    return line + b"\n" + rest


def read(path: str) -> bytes | None:
    """Return a file's bytes, None where there is none.

    Raises:
        GuardError: it is no regular file, or too large.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise GuardError(f"{path} is not a regular file", "move it away, or leave this one out")
        if info.st_size > LIMIT:
            raise GuardError(f"{path} is over {LIMIT >> 20} MiB", "that is no start-up file; look what it is")
        return file.read()


def write(path: str, data: bytes, mode: int = 0o644) -> None:
    """Replace a file atomically; mode and owner stay, a symbolic link stays one; its folders are made."""
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    os.makedirs(folder, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".guard-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            try:
                info = os.stat(real)
            except FileNotFoundError:
                os.fchmod(handle, mode)
            else:
                os.fchmod(handle, stat.S_IMODE(info.st_mode))
                if (info.st_uid, info.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(handle, info.st_uid, info.st_gid)
            os.fsync(handle)
        os.rename(temporary, real)
    except BaseException:
        os.unlink(temporary)
        raise


def renew(path: str, data: bytes, mode: int = 0o644) -> bool:
    """Let a file of ours hold these bytes, and say whether it did not before."""
    if read(path) == data:
        return False
    write(path, data, mode)
    return True


def remove(path: str) -> bool:
    """Take a file of ours away, and say whether there was one."""
    if not os.path.lexists(path):
        return False
    os.unlink(path)
    return True
