"""What this kernel really enforces, found by doing it in throw-away children, never from a version.

Each trial does a forbidden thing that must fail and an allowed thing that must work, in a process that
is forked for it and gone afterwards; nothing is left in the caller. A trial's answer is an `Ability`: it
works, or why not and what to do about it. Sysctls and other files are read, for the reader, as `setting`s;
they decide nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from guard.kernel import landlock, reasons, trials
from guard.kernel.reasons import Why
from guard.kernel.trials import Failed

_PATIENCE = 10.0  # seconds for one trial; a hung mount or notification must not hang the caller


@dataclass(frozen=True, slots=True)
class Ability:
    """Whether one thing can be done on this host.

    Args:
        name: `interface.thing`, as `landlock.files`.
        works: it was done, and what it forbids was refused.
        detail: what is worth knowing when it works (`ABI 7, errata 0x7`).
        error: the errno's name, "" if it works or failed otherwise.
        cause: why not, one clause.
        remedy: what the reader can do, one clause, "" for nothing.
    """

    name: str
    works: bool
    detail: str = ""
    error: str = ""
    cause: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Everything that was tried.

    Args:
        abi: Landlock's, 0 for none.
        errata: Landlock's bit set, -1 where the kernel cannot tell (before ABI 7).
        abilities: name → outcome, in the order of `TRIALS`.
        settings: file → its text, None where there is no such file.
    """

    abi: int
    errata: int
    abilities: Mapping[str, Ability] = field(default_factory=dict)
    settings: Mapping[str, str | None] = field(default_factory=dict)

    def works(self, name: str) -> bool:
        """Whether an ability was tried and works."""
        ability = self.abilities.get(name)
        return ability is not None and ability.works


SETTINGS: Mapping[str, str] = {
    "lsm": "/sys/kernel/security/lsm",
    "yama.ptrace_scope": "/proc/sys/kernel/yama/ptrace_scope",
    "legacy_tiocsti": "/proc/sys/dev/tty/legacy_tiocsti",
    "io_uring_disabled": "/proc/sys/kernel/io_uring_disabled",
    "max_user_namespaces": "/proc/sys/user/max_user_namespaces",
    "unprivileged_userns_clone": "/proc/sys/kernel/unprivileged_userns_clone",
    "apparmor_restrict_unprivileged_userns": "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
}
"""Name → the file that tells. Each may be missing: another kernel, or /sys not mounted."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One row: the ability's name, what is done in the child, the lowest Landlock ABI it makes sense for."""

    name: str
    act: Callable[[], str]
    why: Why
    abi: int = 0


TRIALS: tuple[Trial, ...] = (
    Trial("landlock.layer", trials.landlock_layer, reasons.why_landlock, 1),
    Trial("landlock.files", trials.landlock_files, reasons.why_landlock, 1),
    Trial("landlock.refer", trials.landlock_refer, reasons.why_landlock, 2),
    Trial("landlock.ports", trials.landlock_ports, reasons.why_landlock, 4),
    Trial("landlock.scopes", trials.landlock_scopes, reasons.why_landlock, 6),
    Trial("seccomp.filter", trials.seccomp_filter, reasons.why_seccomp),
    Trial("seccomp.spec_allow", trials.seccomp_spec_allow, reasons.why_flag),
    Trial("notify.action", trials.notify_action, reasons.why_notify),
    Trial("notify.listener", trials.notify_listener, reasons.why_notify),
    Trial("notify.wait_killable", trials.notify_wait_killable, reasons.why_notify),
    Trial("pidfd.getfd", trials.pidfd_getfd, reasons.why_call),
    Trial("pidfd.thread", trials.pidfd_thread, reasons.why_flag),
    Trial("close_range.cloexec", trials.close_range_cloexec, reasons.why_call),
    Trial("namespace.user", trials.namespace_user, reasons.why_namespace),
    Trial("namespace.mask", trials.namespace_mask, reasons.why_namespace),
    Trial("library.landlock", trials.library_landlock, reasons.why_library),
    Trial("library.pyseccomp", trials.library_pyseccomp, reasons.why_library),
)


def probe(names: Sequence[str] | None = None) -> Kernel:
    """Try this kernel.

    Args:
        names: abilities to try; None: all. A name may be a prefix that ends in a dot (`landlock.`).

    Returns:
        What works here; forks and waits for one child for each trial, at most 10 s each.
    """
    abi, refused = landlock.abi()
    abilities: dict[str, Ability] = {"landlock.abi": _landlock_abi(abi, refused)}
    for trial in TRIALS:
        if names is not None and not any(
            trial.name == name or (name.endswith(".") and trial.name.startswith(name)) for name in names
        ):
            continue
        if trial.abi and not abi:
            above = abilities["landlock.abi"]
            abilities[trial.name] = Ability(trial.name, False, "", above.error, above.cause, above.remedy)
        elif trial.abi > abi:
            cause = f"kernel too old: Landlock ABI {abi}, this needs {trial.abi}"
            abilities[trial.name] = Ability(trial.name, False, "", "", cause, "a newer kernel")
        else:
            abilities[trial.name] = _try(trial)
    settings = {name: _read(path) for name, path in SETTINGS.items()}
    return Kernel(abi, trials.landlock_errata() if abi else -1, abilities, settings)


def _landlock_abi(abi: int, refused: int) -> Ability:
    if abi:
        errata = trials.landlock_errata()
        detail = f"ABI {abi}" + (f", errata {errata:#x}" if errata >= 0 else "")
        return Ability("landlock.abi", True, detail)
    cause, remedy = reasons.why_landlock(refused, "")
    return Ability("landlock.abi", False, "", _errno_name(refused), cause, remedy)


def _try(trial: Trial) -> Ability:
    outcome = in_child(trial.act)
    if outcome.error is None:
        return Ability(trial.name, True, outcome.text)
    cause, remedy = trial.why(outcome.error, outcome.text)
    return Ability(trial.name, False, "", _errno_name(outcome.error), cause, remedy)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a child ended: `error` None: well, with its text; 0: it did what it should not; else an errno."""

    error: int | None
    text: str


def in_child(act: Callable[[], str], patience: float = _PATIENCE) -> Outcome:
    """Run `act` in a forked child and wait for what it returns.

    Args:
        act: returns a text, or raises OSError or `Failed`.
        patience: seconds until the child is killed.

    Returns:
        The text, or the errno with the place that failed.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(act, writer)
    os.close(writer)
    try:
        poll = select.poll()
        poll.register(reader, select.POLLIN | select.POLLHUP)
        answered = bool(poll.poll(patience * 1000))
        if not answered:
            os.kill(pid, signal.SIGKILL)
        answer = os.read(reader, 4096).decode(errors="replace") if answered else ""
    finally:
        os.close(reader)
        _, status = os.waitpid(pid, 0)
    if not answered:
        return Outcome(errno.ETIMEDOUT, f"no answer within {patience:g} s")
    if not answer:
        return Outcome(0, f"the trial died with status {status:#x}")
    code, _, text = answer.partition(" ")
    return Outcome(None if code == "ok" else int(code), text)


def _child(act: Callable[[], str], writer: int) -> None:
    """Never returns: the caller's clean-up handlers and buffers are the caller's alone."""
    try:
        # What a trial says on its way (a library's import) is not the product of the command.
        quiet = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(quiet, descriptor)
        answer = "ok " + act()
    except OSError as error:
        answer = f"{error.errno or errno.EIO} {error.filename or error.strerror}"
    except Failed as failure:
        answer = f"0 {failure}"
    except BaseException as error:  # noqa: BLE001 - whatever it was, the parent must hear of it
        answer = f"{errno.EIO} {type(error).__name__}: {error}"
    with contextlib.suppress(OSError):
        os.write(writer, answer[:4000].encode())
    os._exit(0)


def _errno_name(code: int) -> str:
    if code == errno.EOPNOTSUPP:  # ENOTSUP is the same number on Linux, and not what the man pages say
        return "EOPNOTSUPP"
    return errno.errorcode.get(code, str(code)) if code else ""


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:  # another kernel, or not for us to read: the value is unknown, which None says
        return None
