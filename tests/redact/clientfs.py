"""A client of a file server, as a FUSE file system: it shows a directory, and keeps what it has read as clients do.

    python clientfs.py BACKING MOUNTPOINT [SECONDS]

Attributes and names are believed for a while, and what is read stays in this client's cache until the file is opened
anew: two mounts of one directory are two machines that see each other's changes late.
"""

import errno
import os
import sys

import mfusepy

LATE = 5.0
"""Seconds for which attributes are believed unless told otherwise; NFS has 3 to 60."""


class Client(mfusepy.Operations):
    use_ns = True

    def __init__(self, backing: str) -> None:
        self._backing = backing

    def _at(self, path: str) -> str:
        return self._backing + path

    def access(self, path: str, amode: int) -> int:
        if not os.access(self._at(path), amode):
            raise mfusepy.FuseOSError(errno.EACCES)
        return 0

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        try:
            info = os.lstat(self._at(path))
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno) from None
        names = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size")
        times = {f"st_{each}time": getattr(info, f"st_{each}time_ns") for each in "amc"}
        return {name: getattr(info, name) for name in names} | times

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._at(path))]

    def open(self, path: str, flags: int) -> int:
        return os.open(self._at(path), flags & ~os.O_NOFOLLOW)

    def create(self, path: str, mode: int, fi: object = None) -> int:
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self._at(path), length)
        return 0

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._at(path), mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        os.chown(self._at(path), uid, gid)
        return 0

    def mknod(self, path: str, mode: int, dev: int) -> int:
        os.mknod(self._at(path), mode, dev)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        os.utime(self._at(path), ns=times)
        return 0

    def rename(self, old: str, new: str) -> int:
        os.rename(self._at(old), self._at(new))
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._at(path))
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        os.fsync(fh)
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0


if __name__ == "__main__":
    late = float(sys.argv[3]) if len(sys.argv) > 3 else LATE
    others = {"allow_other": True} if os.geteuid() == 0 else {}
    mfusepy.FUSE(
        Client(sys.argv[1]), sys.argv[2], foreground=True, nothreads=True, attr_timeout=late, entry_timeout=late, **others
    )
