"""Why something cannot be done on this host, and what to do about it: an errno becomes a cause and a remedy.

The same errno has several causes, and the reader needs the right one: ENOSYS is an old kernel, a kernel
built without the feature, or a filter above us; EOPNOTSUPP of Landlock is a boot parameter.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from guard import kernel

Why = Callable[[int, str], tuple[str, str]]
"""(errno, or 0 for a rule that was taken and not enforced; where) → (cause, remedy)."""

# A call of 5.15, two releases after Landlock's: who has it and not Landlock was built without.
kernel.NUMBERS.update(process_mrelease=448)


def why_landlock(code: int, where: str) -> tuple[str, str]:
    """Tell the reasons apart for which Landlock is not there."""
    if code == errno.EOPNOTSUPP:
        return (
            "Landlock is not enabled at boot",
            "add landlock to lsm= on the kernel command line and reboot",
        )
    if code == errno.E2BIG:
        return "16 Landlock layers are on already", "start guard from a less deeply nested sandbox"
    if code == errno.ENOSYS:
        above = "; a seccomp filter is above us and may hide it" if filters_above() else ""
        if _answers("process_mrelease"):
            return f"Landlock is not built into this kernel{above}", "a kernel with CONFIG_SECURITY_LANDLOCK"
        return f"kernel too old for Landlock, or not built in{above}", "a kernel of 5.13 or later"
    if code == errno.EACCES:
        return "a Landlock layer above us refuses it already: nothing to be tried", ""
    if code == errno.EPERM:
        return "a seccomp filter above us refuses Landlock", "allow the landlock_* calls in the container"
    return _otherwise(code, where)


def why_seccomp(code: int, where: str) -> tuple[str, str]:
    """Why no filter can be loaded."""
    if code in (errno.EINVAL, errno.ENOSYS):
        return "seccomp filters are not built into this kernel", "a kernel with CONFIG_SECCOMP_FILTER"
    if code in (errno.EPERM, errno.EACCES):
        return "a filter above us refuses further filters", "allow seccomp in the container"
    return _otherwise(code, where)


def why_notify(code: int, where: str) -> tuple[str, str]:
    """Why no supervisor can be asked."""
    if code == errno.EBUSY:
        return (
            "a supervisor above us holds the only listener",
            "what needs one is decided by the outer guard; nothing to do here",
        )
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return "kernel too old for this part of seccomp user notification", "a newer kernel"
    return why_seccomp(code, where)


def why_call(code: int, where: str) -> tuple[str, str]:
    """Why a system call cannot be used."""
    if code == errno.ENOSYS:
        return "kernel too old for this system call", "a newer kernel"
    return _otherwise(code, where)


def why_flag(code: int, where: str) -> tuple[str, str]:
    """Why a flag cannot be used."""
    if code in (errno.EINVAL, errno.ENOSYS):
        return "kernel too old for this flag", "a newer kernel; guard works without it"
    return _otherwise(code, where)


def why_namespace(code: int, where: str) -> tuple[str, str]:
    """Why there is no user namespace; what the settings say is worth more than the errno alone."""
    if _setting("/proc/sys/user/max_user_namespaces") == "0":
        return "user namespaces are switched off", "sysctl user.max_user_namespaces above 0"
    if _setting("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "user namespaces are root's alone", "sysctl kernel.unprivileged_userns_clone=1"
    if _setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" and os.getuid():
        return (
            "AppArmor keeps user namespaces from this program",
            "an AppArmor profile with `userns,` for guard",
        )
    if code in (errno.ENOSPC, errno.EUSERS):
        return "the limit of user namespaces is reached", "a higher sysctl user.max_user_namespaces"
    if code == errno.EINVAL:
        return "user namespaces are not built into this kernel", "a kernel with CONFIG_USER_NS"
    if code in (errno.EPERM, errno.EACCES):
        at = f" ({where})" if where else ""
        return f"a sandbox, container or LSM above us refuses it{at}", "start guard outside of it"
    return _otherwise(code, where)


def why_library(code: int, where: str) -> tuple[str, str]:
    """Which library is missing; needed to compile a policy, not to run a compiled one."""
    if "libseccomp" in where:
        return "library missing: libseccomp", "apt install libseccomp2, or dnf install libseccomp"
    if "No module named" in where:
        name = where.rpartition("'")[0].rpartition("'")[2]
        return f"library missing: Python package {name}", f"pip install {name}, or install guard again"
    return f"library does not load: {where}", "install guard again"


def filters_above() -> bool:
    """Whether a seccomp filter judges this process already (proc(5), Seccomp)."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return any(line.split() == ["Seccomp:", "2"] for line in status)
    except OSError:  # without /proc nobody can tell; the cause is then worded without it
        return False


def _answers(name: str) -> bool:
    """Whether the kernel has a system call at all; every argument is senseless, so it does nothing."""
    try:
        kernel.syscall(name, -1, 0xFFFFFFFF, 0)
    except OSError as error:
        return error.errno != errno.ENOSYS
    return True


def _setting(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:  # no such switch on this kernel
        return ""


def _otherwise(code: int, where: str) -> tuple[str, str]:
    if code == errno.ETIMEDOUT:
        return f"the trial hung: {where}", "report this, with the kernel's log"
    if code:
        return os.strerror(code) + (f" ({where})" if where else ""), "report this, with the kernel's log"
    return where, "report this: the kernel takes the rule and does not enforce it"
