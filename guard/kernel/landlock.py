"""Landlock (landlock(7)): a process gives up rights on files, TCP ports and IPC, for good.

Deliberately absent: a way to take rights back, or to subtract a path from a grant. The kernel has
neither; what a policy denies inside a grant is arranged by `guard.confine.places`.
"""

import posix as os
import sys

from guard.kernel import NUMBERS, O_PATH, failure, libc_syscall, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

# linux/landlock.h, file system rights.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE = 1 << 4, 1 << 5
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK = 1 << 6, 1 << 7, 1 << 8, 1 << 9
MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = 1 << 10, 1 << 11, 1 << 12
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_UNIX, SCOPE_SIGNAL = 1, 2
LOG_NEW_EXEC_ON = 2

# Rights that mean something on a file; the others are EINVAL in a rule for anything but a directory.
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
# Rights that change something; REFER is granted beside them, or every rename would be EXDEV.
CHANGES = (
    WRITE_FILE
    | REMOVE_DIR
    | REMOVE_FILE
    | MAKE_CHAR
    | MAKE_DIR
    | MAKE_REG
    | MAKE_SOCK
    | MAKE_FIFO
    | MAKE_BLOCK
    | MAKE_SYM
    | TRUNCATE
)

_RULE_PATH_BENEATH, _RULE_NET_PORT = 1, 2
_CREATE_RULESET_VERSION = 1
_ADD_RULE = NUMBERS["landlock_add_rule"]


def abi() -> "tuple[int, int]":
    """Ask the kernel for its Landlock ABI.

    Returns:
        (ABI, 0), or (0, errno): ENOSYS where it is not built in, EOPNOTSUPP where it is built in but
        missing from the boot parameter `lsm=`.
    """
    try:
        return syscall("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION), 0
    except OSError as error:
        return 0, error.errno or 38


def handled_fs(abi: int) -> int:
    """The file system rights that an ABI knows."""
    return (1 << 13) - 1 | (abi >= 2) * REFER | (abi >= 3) * TRUNCATE | (abi >= 5) * IOCTL_DEV


def attribute_size(abi: int) -> int:
    """The bytes of `struct landlock_ruleset_attr` that an ABI knows: file rights, then network, then scopes."""
    return 8 if abi < 4 else 16 if abi < 6 else 24


class Ruleset:
    """One Landlock ruleset, one layer: REFER would be refused by any further layer without it.

    Args:
        abi: the kernel's ABI; the size of the attribute follows from it.
        fs, net, scoped: bits this ruleset handles, already cut to what the ABI knows.
    """

    def __init__(self, abi: int, fs: int, net: int = 0, scoped: int = 0) -> None:
        attribute = b"".join(part.to_bytes(8, sys.byteorder) for part in (fs, net, scoped))
        self._fs = fs
        self._fd = syscall("landlock_create_ruleset", attribute, attribute_size(abi), 0)

    def allow_path(self, fd: int, access: int, is_directory: "bool | None" = None) -> None:
        """Grant rights on and beneath an open file or directory.

        Args:
            fd: a descriptor, O_PATH is enough.
            access: rights; those the ruleset does not handle or the file cannot have are left out.
            is_directory: what the descriptor is; None: it is asked.
        """
        if is_directory is None:
            is_directory = os.fstat(fd).st_mode & 0o170000 == 0o040000
        access &= self._fs if is_directory else self._fs & ON_FILES
        if access:
            rule = access.to_bytes(8, sys.byteorder) + fd.to_bytes(4, sys.byteorder)
            # A home can have thousands of entries: straight to the call.
            if libc_syscall(_ADD_RULE, self._fd, _RULE_PATH_BENEATH, rule, 0) < 0:
                raise failure("landlock_add_rule")

    def allow_entries(self, fd: int, access: int, prefix: str = "", left_out: "Container[str]" = ()) -> None:
        """Grant rights on and beneath what lies in an open directory, as it is now; links are left out.

        Args:
            fd: the directory, O_PATH is enough.
            access: rights, as for `allow_path`.
            prefix: how the names begin.
            left_out: names of entries that get nothing.

        Raises:
            OSError: the directory cannot be read, and nothing was granted.
        """
        listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
        openat, close, allow = os.open, os.close, self.allow_path
        with os.scandir(listing) as entries:
            for entry in entries:
                name = entry.name
                if name in left_out or not name.startswith(prefix) or entry.is_symlink():
                    continue
                try:
                    inner = openat(name, O_PATH | os.O_NOFOLLOW, dir_fd=fd)
                except OSError:
                    continue
                allow(inner, access, entry.is_dir(follow_symlinks=False))
                close(inner)
        close(listing)

    def allow_port(self, port: int, access: int) -> None:
        """Grant BIND_TCP or CONNECT_TCP on one port, whatever the address."""
        rule = access.to_bytes(8, sys.byteorder) + port.to_bytes(8, sys.byteorder)
        syscall("landlock_add_rule", self._fd, _RULE_NET_PORT, rule, 0)

    def duplicate(self) -> int:
        """Return a further descriptor of the ruleset, for processes that enter it one by one."""
        return os.dup(self._fd)

    def restrict(self, flags: int = 0) -> None:
        """Apply to this thread and all it starts; the ruleset is used up."""
        try:
            syscall("landlock_restrict_self", self._fd, flags)
        finally:
            os.close(self._fd)
