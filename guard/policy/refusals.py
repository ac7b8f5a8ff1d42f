"""Which system calls a confined tree is refused, one row a reason: the table behind the seccomp filter.

A filter sees a call's number and registers, never what a pointer leads to. What only a path or an address
can decide is Landlock's, the mask's or the supervisor's, and `guard.policy.status` says when none of them
is there. Errnos are those that callers fall back on: ENOSYS where a newer call has an older twin,
EOPNOTSUPP where `cp -a` goes on without.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from guard.kernel.seccomp import RET_KILL_PROCESS, refuse

__all__ = ["FOREIGN", "NOTHING", "RULES", "UNKNOWN", "Rule", "Test", "bits", "none_of", "nonzero", "one_of"]

EPERM = refuse(errno.EPERM)
EACCES = refuse(errno.EACCES)
ENOSYS = refuse(errno.ENOSYS)
EOPNOTSUPP = refuse(errno.EOPNOTSUPP)
EAFNOSUPPORT = refuse(errno.EAFNOSUPPORT)
EPROTONOSUPPORT = refuse(errno.EPROTONOSUPPORT)
ENOPROTOOPT = refuse(errno.ENOPROTOOPT)
NOTHING = refuse(0)
"""The call returns 0 and has done nothing."""

WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Test:
    """A condition on one argument.

    Args:
        arg: its index.
        mask: bits that count. The kernel reads int, mode_t and flag arguments as 32 bits, so a mask never
            goes beyond: what a caller leaves in the high word must not decide (CVE-2019-10063). The one
            exception is `nonzero`, for pointers.
        values: it holds when the masked argument is one of these, or, with `unless`, none of them.
        unless: see `values`.
    """

    __test__ = False  # not one of pytest's

    arg: int
    mask: int
    values: tuple[int, ...]
    unless: bool = False

    def holds(self, args: tuple[int, ...]) -> bool:
        """Whether registers (missing ones are 0) meet the condition."""
        value = args[self.arg] if self.arg < len(args) else 0
        return (value & self.mask in self.values) is not self.unless


def bits(arg: int, mask: int) -> Test:
    """Hold where every bit of the mask is set."""
    return Test(arg, mask, (mask,))


def lacks(arg: int, mask: int) -> Test:
    """Hold where no bit of the mask is set."""
    return Test(arg, mask, (0,))


def one_of(arg: int, *values: int, mask: int = WORD) -> Test:
    """Hold for an argument that is one of these."""
    return Test(arg, mask, values)


def none_of(arg: int, *values: int, mask: int = WORD) -> Test:
    """Hold for an argument that is none of these."""
    return Test(arg, mask, values, unless=True)


def nonzero(arg: int) -> Test:
    """Hold where a pointer is given."""
    return Test(arg, (1 << 64) - 1, (0,), unless=True)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row. Of the rows that hold for a call the first decides.

    Args:
        controls: the controls it serves; it stands in a filter while one of them is enforced.
        calls: names; those that a machine lacks are left out there.
        tests: all must hold; none: the call is refused whole.
        action: how the filter answers.
        reason: why, for `explain` and the reader.
        key: the policy key that decides, "" for none.
        words: it stands in a filter while the key's value is one of these.
        domain: Landlock's domain does the same and does it better (inside the tree yes, outside no): the row
            is left out where there is a domain, unless the key's value asks for it.
    """

    controls: tuple[str, ...]
    calls: tuple[str, ...]
    tests: tuple[Test, ...]
    action: int
    reason: str
    key: str = ""
    words: tuple[str, ...] = ("deny",)
    domain: bool = False


SURFACE = ("kernel-surface",)
SOCKETS = ("kernel-surface", "bind", "connect")
FILTERED = (
    "files", "metadata", "world-writable", "setuid", "bind", "connect", "unix-sockets", "processes",
    "kernel-surface",
)  # fmt: skip
"""Controls that a filter serves: what goes round a filter goes round each of them."""


def _rule(
    controls: tuple[str, ...], calls: str, action: int, reason: str, *tests: Test, key: str = "",
    words: str = "deny", domain: bool = False,
) -> Rule:  # fmt: skip
    return Rule(controls, tuple(calls.split()), tests, action, reason, key, tuple(words.split()), domain)


FOREIGN = _rule(
    FILTERED, "", RET_KILL_PROCESS, "32-bit calls have other numbers: a second way past every rule",
    key="kernel.binary32",
)  # fmt: skip
"""x32 is always killed, and 32-bit ARM: only i386 gets a filter of its own where the key allows it."""
UNKNOWN = _rule(
    FILTERED, "", ENOSYS, "a call newer than this table is unjudged; callers fall back as on an older kernel"
)

_SETUID, _SETGID, _OTHERS_WRITE = 0o4000, 0o2000, 0o2
_O_CREAT, _O_TMPFILE = 0o100, 0o20000000
_CHMOD = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}
_OPEN = {"open": 1, "openat": 2}  # the flags; the mode follows
_MAKE = {"creat": 1, "mknod": 1, "mknodat": 2}
_MKDIR = {"mkdir": 1, "mkdirat": 2}


def _modes() -> list[Rule]:
    def setuid(call: str, action: int, reason: str, *tests: Test) -> Rule:
        return _rule(("setuid",), call, action, reason, *tests, key="modes.setuid")

    chmod = "a set-user-id file runs as its owner for everybody"
    umask = "the umask does not take set-user-id and set-group-id from a new file"
    # A directory may have the set-group-id bit, and chmod does not say what it changes: it passes.
    rules = [setuid(call, EPERM, chmod, bits(mode, _SETUID)) for call, mode in _CHMOD.items()]
    for bit in (_SETUID, _SETGID):
        for call, flags in _OPEN.items():
            # Without one of these flags the mode's register holds whatever was in it.
            for flag in (_O_CREAT, _O_TMPFILE):
                rules.append(setuid(call, EPERM, umask, bits(flags, flag), bits(flags + 1, bit)))
        for call, mode in {**_MAKE, **(_MKDIR if bit == _SETUID else {})}.items():
            rules.append(setuid(call, EPERM, umask, bits(mode, bit)))
    rules.append(setuid("openat2", ENOSYS, "its mode is behind a pointer; callers fall back on openat"))
    # strip: the call returns 0 and has done nothing. The answer to umask, below, makes installers believe it
    # is 0, so that they ask for 0666 and 0777 (pip for every package). Refused they give up; this way they
    # go on, and the file stays as it was made.
    for word, action in (("deny", EPERM), ("strip", NOTHING)):
        for call, mode in _CHMOD.items():
            reason = "others would get the right to write"
            test = bits(mode, _OTHERS_WRITE)
            rules.append(_rule(("world-writable",), call, action, reason, test, key="modes.world_writable", words=word))
    return rules


_QUOTA_READS = tuple(
    command << 8 for command in (0x800001, 0x800004, 0x800005, 0x800007, 0x800009, 0x5803, 0x5805, 0x5808, 0x5809)
)
"""QCMD of Q_SYNC, Q_GETFMT, Q_GETINFO, Q_GETQUOTA, Q_GETNEXTQUOTA and XFS's Q_XGETQUOTA, Q_XGETQSTAT,
Q_XGETQSTATV, Q_XGETNEXTQUOTA (linux/quota.h, linux/dqblk_xfs.h), for any type of quota."""

RULES: tuple[Rule, ...] = (
    *_modes(),
    # umask(2) cannot fail, so nobody checks: the mask stays, with the bit that the launcher put into it.
    _rule(("world-writable",), "umask", NOTHING, "new files would be writable by others",
          lacks(0, _OTHERS_WRITE), key="modes.world_writable", words="strip deny"),
    _rule(("world-writable",), "shmget semget", EPERM, "the umask does not hold for System V IPC",
          bits(2, 0o1000 | _OTHERS_WRITE), key="modes.world_writable", words="strip deny"),
    _rule(("world-writable",), "msgget", EPERM, "the umask does not hold for System V IPC",
          bits(1, 0o1000 | _OTHERS_WRITE), key="modes.world_writable", words="strip deny"),
    # ipc of i386: the call's number and version, then the arguments.
    _rule(("world-writable",), "ipc", EPERM, "the umask does not hold for System V IPC",
          one_of(0, 2, 23, mask=0xFFFF), bits(3, 0o1000 | _OTHERS_WRITE),
          key="modes.world_writable", words="strip deny"),
    _rule(("world-writable",), "ipc", EPERM, "the umask does not hold for System V IPC",
          one_of(0, 13, mask=0xFFFF), bits(2, 0o1000 | _OTHERS_WRITE),
          key="modes.world_writable", words="strip deny"),
    _rule(("metadata", "world-writable", "kernel-surface"),
          "setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat",
          EOPNOTSUPP, "an access list gives others rights past the mode; the name is behind a pointer",
          key="kernel.xattr"),

    # Metadata of any file that one may open for reading.
    _rule(("metadata", "kernel-surface"), "ioctl", EPERM, "changes a file by a readable descriptor", one_of(
        1,
        0x40086602, 0x40046602,  # FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS
        0x401C5820, 0x401C5821,  # FS_IOC_FSSETXATTR, and the number beside it
        0x40087602, 0x40047602,  # FS_IOC_SETVERSION, FS_IOC32_SETVERSION
        0x40086604, 0x40046604,  # EXT4_IOC_SETVERSION, and from 32-bit
        0x40806685,  # FS_IOC_ENABLE_VERITY: read-only for ever
        0x800C6613,  # FS_IOC_SET_ENCRYPTION_POLICY
        0x40047211,  # FAT_IOCTL_SET_ATTRIBUTES
    )),
    _rule(("metadata", "kernel-surface"), "file_setattr", EPERM, "changes a file's flags by path"),
    # Landlock has no hook in these, and a directory's readable descriptor is enough for them. A snapshot
    # carries denied files to a place where they may be read.
    _rule(("files", "kernel-surface"), "ioctl", EPERM, "makes and removes btrfs subvolumes", one_of(
        1,
        0x9401, 0x9417, 0x940E, 0x9418,  # BTRFS_IOC_SNAP_CREATE, _V2, SUBVOL_CREATE, _V2
        0x940F, 0x943F, 0x941A, 0x9425,  # SNAP_DESTROY, _V2, SUBVOL_SETFLAGS, SET_RECEIVED_SUBVOL
        mask=0xFFFF,  # type and number, whatever the size of the structure
    )),
    _rule(("files", "kernel-surface"), "ioctl", EPERM, "makes, removes, moves Lustre's files by name", one_of(
        1,
        0x66F0, 0x66F2, 0x66F6, 0x66F7,  # LL_IOC_LMV_SETSTRIPE, REMOVE_ENTRY, LMV_SET_DEFAULT_STRIPE, MIGRATE
        mask=0xFFFF,
    )),
    _rule(("files", "kernel-surface"), "open_by_handle_at name_to_handle_at", EPERM, "opens without a path"),
    _rule(("files", "kernel-surface"), "fanotify_init", EPERM, "watches whole file systems"),

    # Other processes.
    _rule(("processes",),
          "ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp process_madvise", EPERM,
          "reaches into other processes", key="kernel.ptrace", domain=True),
    _rule(("processes",), "move_pages migrate_pages get_robust_list", EPERM, "reaches into another process",
          none_of(0, 0), key="kernel.ptrace", domain=True),
    # Landlock has no hook: RLIMIT_CPU=1 on a process outside is a kill past the signal scope. A filter cannot
    # know which process is the caller's own; 0 is the way to say so, and what shells and prlimit(1) say.
    _rule(("processes",), "prlimit64", EPERM, "sets limits of another process (one's own: pid 0)",
          none_of(0, 0), nonzero(2)),
    # How the supervisor knows who is in which sandbox of its own (guard.confine.handlers.inner). Nobody without the
    # right to real-time scheduling notices this limit.
    _rule(("bind", "connect", "unix-sockets"), "prlimit64", NOTHING, "a limit that marks sandboxes within the session",
          one_of(1, 15), nonzero(2)),
    _rule(("bind", "connect", "unix-sockets"), "setrlimit", NOTHING, "a limit that marks sandboxes within the session",
          one_of(0, 15)),
    _rule(("processes",), "setpriority", EPERM, "slows every process of the user", one_of(0, 2)),  # PRIO_USER
    _rule(("processes",), "ioprio_set", EPERM, "slows every process of the user", one_of(0, 3)),  # WHO_USER
    _rule(("processes", "kernel-surface"), "ioctl", EPERM, "types into a terminal, or changes its discipline",
          one_of(1, 0x5412, 0x541C, 0x5423)),  # TIOCSTI, TIOCLINUX, TIOCSETD
    # Found by a number, or by a name that lies in no directory.
    _rule(("processes", "kernel-surface"),
          "shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semctl semtimedop semtimedop_time64 "
          "ipc mq_open mq_unlink", ENOSYS, "shared with the user's other processes", key="kernel.sysv_ipc",
          words="private deny"),

    # The kernel's surface.
    _rule(FILTERED, "io_uring_setup io_uring_enter io_uring_register", ENOSYS,
          "carries out calls that no filter sees", key="kernel.io_uring"),
    _rule(SURFACE, "bpf", EPERM, "loads programs into the kernel", key="kernel.bpf"),
    _rule(SURFACE, "perf_event_open", EPERM, "a long record of faults", key="kernel.perf"),
    _rule(SURFACE, "keyctl add_key request_key", EPERM, "key rings are shared with other sessions",
          key="kernel.keyctl"),
    _rule(SURFACE, "userfaultfd", EPERM, "holds the kernel amid a copy", key="kernel.userfaultfd"),
    _rule(SURFACE, "unshare clone", EPERM, "a namespace brings root's kernel code within reach",
          # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET
          none_of(0, 0, mask=0x7E020000), key="kernel.userns"),
    # CLONE_NEWTIME; in clone this bit belongs to the exit signal.
    _rule(SURFACE, "unshare", EPERM, "a namespace brings root's kernel code within reach", bits(0, 0x80),
          key="kernel.userns"),
    _rule(SURFACE, "clone3", ENOSYS, "its flags are behind a pointer; callers fall back on clone",
          key="kernel.userns"),
    _rule(SURFACE, "setns sethostname setdomainname", EPERM, "enters or names a namespace",
          key="kernel.userns"),
    _rule(("files", "kernel-surface"),
          "mount umount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig "
          "fsmount fspick mount_setattr", EPERM, "changes what a path leads to", key="kernel.mount"),
    _rule(SURFACE, "personality", EPERM, "turns address randomisation off; asking for it is open",
          none_of(0, 0, WORD), key="kernel.personality"),
    _rule(SURFACE,
          "kexec_load kexec_file_load init_module finit_module delete_module create_module reboot swapon "
          "swapoff acct iopl ioperm modify_ldt vm86 vm86old syslog vhangup settimeofday stime clock_settime "
          "clock_settime64 adjtimex clock_adjtime clock_adjtime64", EPERM, "root's business"),
    _rule(SURFACE, "uselib _sysctl nfsservctl sysfs lookup_dcookie query_module get_kernel_syms", ENOSYS,
          "gone from current kernels"),
    _rule(SURFACE, "quotactl", EPERM, "sets quotas; asking is open",
          none_of(0, *_QUOTA_READS, mask=0xFFFFFF00)),
    _rule(SURFACE, "quotactl_fd", EPERM, "sets quotas; asking is open",
          none_of(1, *_QUOTA_READS, mask=0xFFFFFF00)),

    # Sockets by allow-list: a family or protocol that Landlock's TCP rules do not know passes them.
    _rule(("unix-sockets",), "socket socketpair", EACCES,
          # SOCK_RAW makes a datagram socket here, and one end of a pair sends to any name (unix(7)).
          "the address of a datagram is behind a pointer", one_of(0, 1), none_of(1, 1, 5, mask=0xF),
          key="unix.datagram"),
    _rule(SOCKETS, "socket", EAFNOSUPPORT, "a family other than UNIX, INET, INET6 and NETLINK",
          none_of(0, 1, 2, 10, 16), key="kernel.packet_sockets"),
    _rule(SOCKETS, "socket", EAFNOSUPPORT, "SMC has TCP inside, where Landlock does not look", one_of(0, 43)),
    _rule(SOCKETS, "socketpair", EAFNOSUPPORT, "a family other than UNIX", none_of(0, 1),
          key="kernel.packet_sockets"),
    _rule(SOCKETS, "socket", EPROTONOSUPPORT, "netlink other than ROUTE", one_of(0, 16), none_of(2, 0),
          key="kernel.packet_sockets"),
    _rule(SOCKETS, "socket", EPROTONOSUPPORT, "neither stream nor datagram nor raw (SCTP, DCCP)",
          one_of(0, 2, 10), none_of(1, 1, 2, 3, mask=0xF)),
    _rule(SOCKETS, "socket", EPROTONOSUPPORT, "raw packets", one_of(0, 2, 10), one_of(1, 3, mask=0xF),
          key="kernel.packet_sockets"),
    _rule(SOCKETS, "socket", EPROTONOSUPPORT, "a stream other than TCP (MPTCP, SCTP, SMC)",
          one_of(0, 2, 10), one_of(1, 1, mask=0xF), none_of(2, 0, 6)),
    _rule(SOCKETS, "socket", EPROTONOSUPPORT, "datagrams other than UDP and ping (UDP-Lite, L2TP)",
          one_of(0, 2, 10), one_of(1, 2, mask=0xF), none_of(2, 0, 17, 1, 58)),
    _rule((*SOCKETS, "unix-sockets"), "socketcall", ENOSYS, "its arguments are behind a pointer (i386)"),
    # MSG_FASTOPEN. The option TCP_FASTOPEN_CONNECT may stay: it goes through connect(), where Landlock looks.
    _rule(("connect",), "sendto sendmmsg", EPERM, "connects without connect()", bits(3, 0x20000000)),
    _rule(("connect",), "sendmsg", EPERM, "connects without connect()", bits(2, 0x20000000)),
    _rule(SURFACE, "setsockopt", ENOPROTOOPT, "TCP_ULP loads protocol modules; TLS goes on without",
          one_of(1, 6), one_of(2, 31)),
)  # fmt: skip
"""Every row, in the order in which they decide."""
