"""The keys of a policy: one table, one row a key.

`KEYS` is what the loader, the layers, the JSON Schema, `policy show` and the reference page are
driven by. A new key is a row here, and nothing else knows its name but the code that enforces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

CONTROLS = (
    "files",
    "metadata",
    "world-writable",
    "setuid",
    "bind",
    "connect",
    "unix-sockets",
    "pipe-to-shell",
    "processes",
    "kernel-surface",
    "limits",
)
"""Every enforceable promise of `guard run`, in the order in which people read about them."""

OPEN_VARIABLES = ("home", "project", "tmp", "user", "uid")
"""Variables that stay in the plan: the launcher puts them in for each session."""

PLACE_VARIABLES = ("home", "project", "tmp")
"""The open variables that are places, so that a path may begin with them."""

SITE_VARIABLES = ("cluster", "scratch", "work", "data", "software", "licences")
"""Names a site may give a value to in `site.toml`. While one has none, the entries that use it are left
out and said to be; any other name must be defined before a policy uses it."""

HARNESSES = ("claude", "codex", "cursor", "copilot", "gemini")
"""Harnesses whose overlay is added by itself; a site adds names with `[site] harnesses`."""

MODES = ("off", "observe", "enforce")
"""Modes of a control, and of a whole assignment, from the widest to the tightest."""


class Kind(Enum):
    """What a key's value is made of."""

    PATHS = "paths"
    DEVICES = "devices"
    SOCKETS = "sockets"
    GLOBS = "globs"
    CONNECT = "connect"
    BIND_ALLOW = "bind_allow"
    WORD = "word"
    NUMBER = "number"
    FLAG = "flag"

    @property
    def is_list(self) -> bool:
        """Whether the value is a list of entries, each with an origin of its own."""
        return self not in (Kind.WORD, Kind.NUMBER, Kind.FLAG)


class Tighten(Enum):
    """How a lower layer's value joins an upper layer's."""

    SUBSET = "subset"  # lists of grants: only what both allow is left
    UNION = "union"  # lists of refusals: everything that either names
    MAX = "max"  # words: the one further right in `words`
    MIN = "min"  # numbers: the smaller
    ALL = "all"  # flags: true only if both are


@dataclass(frozen=True, slots=True)
class Key:
    """One row of the table.

    Args:
        name: dotted, as `files.read`.
        kind: what the value is made of.
        default: the value when no file sets the key, as in `Effective.values`.
        tighten: how a lower layer's value joins an upper one's.
        doc: one sentence for people.
        control: the control it bears on, "" for none.
        words: of a word: every choice, from the widest to the tightest.
        covers: a key whose grants include this one's (what may be written may be read).
    """

    name: str
    kind: Kind
    default: object
    tighten: Tighten
    doc: str
    control: str = ""
    words: tuple[str, ...] = ()
    covers: str = ""


def _word(name: str, words: str, default: str, control: str, doc: str) -> Key:
    return Key(name, Kind.WORD, default, Tighten.MAX, doc, control, tuple(words.split(" < ")))


def _limit(name: str, default: int | None, doc: str) -> Key:
    return Key(f"limits.{name}", Kind.NUMBER, default, Tighten.MIN, doc, "limits")


def _grant(name: str, kind: Kind, control: str, doc: str, covers: str = "") -> Key:
    return Key(name, kind, (), Tighten.SUBSET, doc, control, covers=covers)


def _refuse(name: str, kind: Kind, control: str, doc: str) -> Key:
    return Key(name, kind, (), Tighten.UNION, doc, control)


_SURFACE = (
    (
        "ptrace",
        "allow",
        "processes",
        "ptrace, process_vm and pidfd_getfd of one's own tree (debuggers, CMA).",
    ),
    ("keyctl", "deny", "kernel-surface", "The kernel's key rings (Kerberos keeps tickets there)."),
    ("userns", "deny", "kernel-surface", "New user namespaces (nested sandboxes, rootless containers)."),
    ("mount", "deny", "kernel-surface", "mount and the new mount interface."),
    ("io_uring", "deny", "kernel-surface", "io_uring, which goes round the system calls that are judged."),
    ("perf", "deny", "kernel-surface", "perf_event_open."),
    ("bpf", "deny", "kernel-surface", "bpf."),
    ("userfaultfd", "deny", "kernel-surface", "userfaultfd, a part of many kernel exploits."),
    ("personality", "deny", "kernel-surface", "personality other than the common ones (setarch -R)."),
    ("packet_sockets", "deny", "kernel-surface", "Packet, raw and other rare socket families."),
    ("xattr", "deny", "metadata", "Extended attributes beyond user.* (file ACLs, capabilities)."),
    ("binary32", "deny", "kernel-surface", "32-bit programs: int 0x80 and the x32 calls."),
)

_ROWS = (
    _grant("files.read", Kind.PATHS, "files", "Places that may be read and executed from.", covers="files.write"),
    _grant("files.write", Kind.PATHS, "files", "Places where files may be read, run, written, made and removed."),
    _grant(
        "files.devices",
        Kind.DEVICES,
        "files",
        "Devices below /dev that may be read, written and controlled; the last part may end in `*`.",
    ),
    _refuse("files.deny", Kind.PATHS, "files", "Places neither readable nor writable, whatever grants them."),
    _refuse("files.protect", Kind.PATHS, "files", "Places that may be read but not written."),
    _word(
        "files.mask",
        "never < auto < always",
        "auto",
        "files",
        "Whether a mount namespace also hides the denied places.",
    ),
    _word("network.bind", "any < loopback < deny", "loopback", "bind", "Addresses that sockets may be bound to."),
    _grant(
        "network.bind_allow",
        Kind.BIND_ALLOW,
        "bind",
        "Addresses that may be bound all the same.",
        covers="network.bind",
    ),
    Key(
        "network.connect",
        Kind.CONNECT,
        None,
        Tighten.SUBSET,
        "Where TCP connections may go: `any`, or a list of ports and rules.",
        "connect",
    ),
    _grant("unix.allow", Kind.SOCKETS, "unix-sockets", "Sockets, or directories of them, to connect to."),
    _word("unix.abstract", "allow < deny", "deny", "unix-sockets", "Abstract sockets made outside of the tree."),
    _word("unix.datagram", "allow < deny", "deny", "unix-sockets", "Unix datagram sockets."),
    _word(
        "modes.world_writable",
        "off < observe < strip < deny",
        "deny",
        "world-writable",
        "Giving others the right to write: refused, or done without that bit (strip).",
    ),
    _word(
        "modes.setuid",
        "off < observe < deny",
        "deny",
        "setuid",
        "The set-user-id bit, and the set-group-id bit on regular files.",
    ),
    _word(
        "pipe_to_shell.action",
        "observe < deny",
        "observe",
        "pipe-to-shell",
        "A shell or interpreter fed from the network.",
    ),
    *(
        _word(f"hand_off.{what}", "observe < deny", "observe", "", doc)
        for what, doc in (
            ("slurm", "Work handed to Slurm (sbatch, srun, salloc): a job is outside of the tree."),
            ("at", "Work handed to at and cron."),
            ("ssh", "Work handed to another host, or to this one, by ssh."),
            ("tmux", "Work handed to a tmux or screen server."),
            ("systemd", "Work handed to systemd (systemd-run, user units)."),
        )
    ),
    _refuse("env.drop", Kind.GLOBS, "", "Environment variables taken from the command, by name or `*` glob."),
    _grant("env.keep", Kind.GLOBS, "", "Environment variables that are exempt from `env.drop`."),
    *(_word(f"kernel.{name}", "allow < deny", default, control, doc) for name, default, control, doc in _SURFACE),
    _word(
        "kernel.sysv_ipc",
        "allow < private < deny",
        "deny",
        "kernel-surface",
        "System V and POSIX queues, semaphores, shared memory; `private`: the session's with the mask, else refused.",
    ),
    _limit("core", 0, "Size of core dumps, in bytes."),
    _limit("processes", None, "Processes and threads of the user (RLIMIT_NPROC)."),
    _limit("open_files", None, "Open descriptors of each process."),
    _limit("memory", None, "Address space of each process, in bytes."),
    _limit("file_size", None, "Size of any file written, in bytes."),
    _limit("cpu_seconds", None, "CPU time of each process, in seconds."),
    *(
        _word(
            f"controls.{control.replace('-', '_')}",
            " < ".join(MODES),
            "enforce",
            control,
            f"Mode of the control {control}.",
        )
        for control in CONTROLS
    ),
    *(
        _word(
            f"on_fault.{control.replace('-', '_')}",
            "warn < default < refuse",
            "default",
            control,
            f"When {control} cannot be enforced whole: default refuses if absent and warns if partial.",
        )
        for control in CONTROLS
    ),
    _word("on_fault.events", "warn < refuse", "warn", "", "When the start of a session cannot be put on record."),
    _word(
        "supervisor.use",
        "never < auto < always",
        "auto",
        "",
        "Whether a supervisor decides what only an address, a path or a pipe can tell; auto: where one can be had.",
    ),
    Key(
        "project.worktrees",
        Kind.FLAG,
        True,
        Tighten.ALL,
        "Whether the git directory outside of a worktree is granted with it.",
        "files",
    ),
    _word(
        "harness.overlays",
        "auto < off",
        "auto",
        "",
        "Whether running a known harness adds the overlay of its name.",
    ),
)

KEYS: Mapping[str, Key] = {row.name: row for row in _ROWS}
"""Every key by its dotted name, in the order of the reference."""

TABLES: Mapping[str, tuple[str, ...]] = {
    table: tuple(name for name in KEYS if name.startswith(f"{table}."))
    for table in dict.fromkeys(name.split(".")[0] for name in KEYS)
}
"""TOML table → its keys."""


def defaults() -> dict[str, object]:
    """Return the values in force where no file says anything."""
    return {name: key.default for name, key in KEYS.items()}
