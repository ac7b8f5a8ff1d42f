"""The numbers of the calls that a supervisor may be asked about."""

# <asm/unistd.h>; what is above 424 is the same everywhere.
_NUMBERS: "dict[str, dict[str, int]]" = {
    "x86_64": {
        "socket": 41, "clone": 56,
        "sendto": 44, "connect": 42, "sendmsg": 46, "bind": 49, "listen": 50, "execve": 59, "chmod": 90, "fchmod": 91,
        "chown": 92, "fchown": 93, "lchown": 94, "umask": 95, "utime": 132, "setxattr": 188, "lsetxattr": 189,
        "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "utimes": 235, "fchownat": 260,
        "futimesat": 261, "fchmodat": 268, "utimensat": 280, "sendmmsg": 307, "execveat": 322, "setpriority": 141,
        "sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setparam": 142, "sched_setattr": 314,
        "ioprio_set": 251,
    },
    "aarch64": {
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
        "ioprio_set": 30, "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "utimensat": 88,
        "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122, "setpriority": 140, "umask": 166,
        "socket": 198, "clone": 220,
        "bind": 200, "listen": 201, "connect": 203, "sendto": 206, "sendmsg": 211, "execve": 221, "sendmmsg": 269,
        "sched_setattr": 274, "execveat": 281,
    },
}  # fmt: skip
_COMMON = {"fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "landlock_restrict_self": 446}


def numbers(machine: str) -> "dict[str, int]":
    """Return call to number for a machine; a call it does not have is left out."""
    return {**_COMMON, **_NUMBERS.get(machine, {})}
