"""Commands that give work to something outside of the tree, and those that only ask it something.

One row a family of programs. What a row takes for asking (a version, a list, a queue) is no hand-off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Words = Sequence[str]


@dataclass(frozen=True)
class HandOff:
    """One family of programs.

    Args:
        name: as events name it.
        programs: names.
        hands: whether these arguments hand work out.
        severity: of the finding.
        mitre: ids of techniques.
        says: what became of the work, after "handed work to".
        outside: only where a server of this kind runs outside of the tree.
    """

    name: str
    programs: tuple[str, ...]
    hands: Callable[[Words], bool]
    severity: str
    mitre: tuple[str, ...]
    says: str
    outside: bool = False


_ASKING = ("--version", "-V", "--help", "-h", "--usage", "-?")


_FLAGS = (
    "--pty", "--parsable", "--exclusive", "--requeue", "--no-requeue", "--hold", "--verbose", "--quiet", "--overlap",
    "--label", "--unbuffered", "--no-kill", "--contiguous", "--overcommit", "--oversubscribe", "--spread-job",
    "--ignore-pbs", "--wait", "--immediate", "--no-shell", "-v", "-vv", "-Q", "-H", "-s", "-O", "-l", "-u", "-W", "-I",
)  # fmt: skip
"""Options without a value: the word behind one is the program's."""


def _submits(words: Words) -> bool:
    """Slurm's, PBS's and LSF's clients: everything but a version, a help page or a trial run."""
    for at, word in enumerate(words):
        if word in (*_ASKING, "--test-only", "--helpstate", "--helpformat"):
            return False
        before = words[at - 1] if at else ""
        if not word.startswith("-") and (not before.startswith("-") or "=" in before or before in _FLAGS):
            break  # what follows are the program's own words
    return True


def _starts(words: Words) -> bool:
    """Anything but a version or a help page."""
    return bool(words) and words[0] not in ("--version", "--help", "-h", "version", "help")


def _at(words: Words) -> bool:
    asks = ("-l", "-V", "-d", "-r", "-c", "--help", "--version")
    return not any(word in asks or (word[:1] == "-" and word[1:2] != "-" and set(word[1:]) & set("lVdrc"))
                   for word in words)  # fmt: skip


def _crontab(words: Words) -> bool:
    rest = list(words)
    while rest[:1] and rest[0] in ("-u", "-c"):
        rest = rest[2:]
    if not rest:
        return True  # reads a table from standard input
    return not any(word in ("-l", "-r", "-V", "-h", "--help", "--version", "-T", "-i") for word in rest)


_UNIT_VERBS = (
    "start", "restart", "try-restart", "reload-or-restart", "enable", "reenable", "link", "edit", "isolate",
    "set-property", "daemon-reload", "import-environment", "set-environment",
)  # fmt: skip


def _verb(words: Words) -> str:
    return next((word for word in words if not word.startswith("-")), "")


def _systemctl(words: Words) -> bool:
    return _verb(words) in _UNIT_VERBS


def _loginctl(words: Words) -> bool:
    return "enable-linger" in words


def _machinectl(words: Words) -> bool:
    return _verb(words) in ("shell", "start", "enable")


def _bus(words: Words) -> bool:
    text = " ".join(words)
    return any(
        method in text for method in ("StartTransientUnit", "StartUnit", "EnableUnitFiles", "StartServiceByName")
    )


_GIT = ("git-upload-pack", "git-receive-pack", "git-upload-archive", "git-lfs-authenticate", "git-lfs-transfer")
_SSH_VALUES = "BbcDEeFIiJLlmOoPpQRSWw"
LOCAL = ("localhost", "127.0.0.1", "::1", "ip6-localhost", "localhost.localdomain")


def ssh_target(words: Words) -> tuple[str, tuple[str, ...]]:
    """Find (host, command) in ssh's arguments; ("", ()) where it only asks something."""
    at = 0
    while at < len(words):
        word = words[at]
        if word in ("-V", "-G") or word.startswith(("-Q", "-O")):
            return "", ()
        if word == "--":
            at += 1
            break
        if not word.startswith("-") or word == "-":
            break
        letters = word[1:]
        taking = next((index for index, letter in enumerate(letters) if letter in _SSH_VALUES), -1)
        at += 2 if taking == len(letters) - 1 else 1
    if at >= len(words):
        return "", ()
    host = words[at]
    if host.startswith("ssh://"):
        host = host[6:].split("/")[0].rpartition(":")[0] or host[6:].split("/")[0]
    rest = list(words[at + 1 :])
    while rest and rest[0].startswith("-"):  # ssh reads options behind the host, too
        if rest[0] == "--":
            rest = rest[1:]
            break
        rest = rest[2 if rest[0][1:] and rest[0][-1] in _SSH_VALUES and len(rest[0]) == 2 else 1 :]
    return host.rpartition("@")[2], tuple(rest)


def is_local(host: str) -> bool:
    """Whether a host's name is this machine's, as far as a name tells."""
    return host.strip("[]").lower() in LOCAL or host.startswith("127.")


def _ssh(words: Words) -> bool:
    host, command = ssh_target(words)
    if not host or is_local(host):
        return False
    if command and any(name in command[0] for name in _GIT):
        return False  # git's own transport: a fetch, not a hand-off
    return not (not command and "-T" in words)  # `ssh -T git@github.com` asks who one is


def _ssh_here(words: Words) -> bool:
    host, _command = ssh_target(words)
    return bool(host) and is_local(host)


_TMUX = (
    "new", "new-session", "neww", "new-window", "splitw", "split-window", "send", "send-keys", "run", "run-shell",
    "if", "if-shell", "respawnp", "respawn-pane", "respawnw", "respawn-window", "pipep", "pipe-pane", "source",
    "source-file", "set-hook", "attach", "attach-session", "a", "at", "bind", "bind-key", "display-popup", "popup",
)  # fmt: skip


def _tmux(words: Words) -> bool:
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if words[at] in ("-V", "-h", "-L", "-S", "-f", "-c", "-T"):
            if words[at] in ("-V", "-h"):
                return False
            if words[at] == "-c":
                return True
            at += 1
        at += 1
    return at >= len(words) or words[at] in _TMUX


def tmux_socket(words: Words, uid: int, directory: str) -> str:
    """Where a tmux client's server listens (tmux(1), -L and -S).

    Args:
        words: its arguments.
        uid: whose it is.
        directory: its TMUX_TMPDIR, "" for none.
    """
    name = "default"
    for at, word in enumerate(words[:-1]):
        if not words[at].startswith("-") and (at == 0 or words[at - 1] not in ("-L", "-S", "-f", "-c", "-T")):
            break
        if word == "-S":
            return words[at + 1]
        if word == "-L":
            name = words[at + 1]
    return f"{directory or '/tmp'}/tmux-{uid}/{name}"  # noqa: S108 - where tmux puts it


def _screen(words: Words) -> bool:
    return not any(word.startswith(("-ls", "-list", "-v", "-wipe", "-h", "--version", "--help")) for word in words)


def _zellij(words: Words) -> bool:
    return "--version" not in words and _verb(words) in ("", "run", "action", "attach", "a", "edit", "ac", "r")


_ENGINE = ("run", "exec", "start", "create", "build", "compose", "up", "apply", "restart", "attach", "buildx", "commit")
_ENGINE_ASKS = ("ps", "ls", "logs", "config", "images", "version", "top", "port", "inspect")


def _engine(words: Words) -> bool:
    rest = [word for word in words if not word.startswith("-")]
    if "--version" in words or "--help" in words:
        return False
    if rest[:1] in (["container"], ["image"], ["service"], ["stack"], ["c"], ["t"], ["task"], ["pod"]):
        rest = rest[1:]
    if rest[:1] == ["compose"] and rest[1:2] and rest[1] in _ENGINE_ASKS:
        return False
    # The first word may be the value of an option (`-H tcp://…`): the verb is among the first three.
    verb = next((word for word in rest[:3] if word in _ENGINE or word in _ENGINE_ASKS), "")
    return verb in _ENGINE


def _rootless(words: Words) -> bool:
    rest = [word for word in words if not word.startswith("-")]
    return "--version" not in words and rest[:1] != [] and rest[0] in (
        "run", "exec", "shell", "start", "create", "build", "instance", "test", "play", "kube", "compose", "restart"
    )  # fmt: skip


def _emacsclient(words: Words) -> bool:
    return any(word.startswith(("-e", "--eval")) for word in words)


TABLE: tuple[HandOff, ...] = (
    HandOff("slurm", ("sbatch", "srun", "salloc", "sattach", "strigger"), _submits, "low", ("T1053",), "Slurm"),
    HandOff("batch-system", ("qsub", "bsub", "condor_submit", "qrsh", "oarsub", "flux-batch"), _submits, "low",
            ("T1053",), "the batch system"),
    HandOff("at", ("at", "batch"), _at, "medium", ("T1053.002",), "at, which runs it later"),
    HandOff("cron", ("crontab",), _crontab, "medium", ("T1053.003",), "cron, which runs it again and again"),
    HandOff("systemd", ("systemd-run", "run0", "systemd-cat"), _starts, "medium", ("T1543.002",), "systemd"),
    HandOff("systemd", ("systemctl",), _systemctl, "medium", ("T1543.002",), "systemd"),
    HandOff("systemd", ("loginctl",), _loginctl, "medium", ("T1543.002",), "systemd, beyond the login"),
    HandOff("systemd", ("machinectl",), _machinectl, "medium", ("T1543.002",), "systemd"),
    HandOff("systemd", ("busctl", "dbus-send", "gdbus", "qdbus"), _bus, "medium", ("T1543.002",), "systemd, by D-Bus"),
    HandOff("ssh-here", ("ssh", "autossh"), _ssh_here, "medium", ("T1021.004",), "this machine, by ssh"),
    HandOff("ssh", ("ssh", "autossh"), _ssh, "low", ("T1021.004",), "another machine, by ssh"),
    HandOff("ssh", ("mosh", "rsh", "rlogin", "pdsh", "clush", "pssh", "parallel-ssh"), _starts, "low", ("T1021.004",),
            "other machines"),
    HandOff("tmux", ("tmux",), _tmux, "medium", ("T1564",), "a tmux server outside of the tree", outside=True),
    HandOff("tmux", ("screen",), _screen, "medium", ("T1564",), "a screen outside of the tree", outside=True),
    HandOff("tmux", ("zellij",), _zellij, "medium", ("T1564",), "a zellij server outside of the tree", outside=True),
    HandOff("container", ("docker", "nerdctl", "ctr", "crictl", "kubectl", "docker-compose"), _engine, "medium",
            ("T1610",), "a container engine"),
    HandOff("container-in-tree", ("podman", "apptainer", "singularity", "charliecloud", "ch-run", "enroot", "buildah"),
            _rootless, "info", ("T1610",), "a container that stays in the tree"),
    HandOff("editor", ("emacsclient",), _emacsclient, "low", ("T1559",), "an editor's server"),
)  # fmt: skip
"""In order: the first row that knows the program and the arguments speaks."""

_BY_PROGRAM: dict[str, tuple[HandOff, ...]] = {}
for _row in TABLE:
    for _program in _row.programs:
        _BY_PROGRAM[_program] = (*_BY_PROGRAM.get(_program, ()), _row)

SERVERS = {"tmux": ("tmux: server",), "screen": ("screen", "SCREEN"), "zellij": ("zellij",)}
"""Client → the kernel's name of its server's process."""


def find(names: Sequence[str], words: Words) -> HandOff | None:
    """Return what an exec hands out work to; None for what hands out nothing.

    Args:
        names: of the program.
        words: its own arguments.
    """
    for name in names:
        for row in _BY_PROGRAM.get(name, ()):
            if row.hands(words):
                return row
    return None


POLLS = ("squeue", "sacct", "sinfo", "sstat", "sprio", "sshare", "sdiag", "qstat", "bjobs", "condor_q", "sreport")
SUBMITS = ("sbatch", "srun", "salloc", "qsub", "bsub", "condor_submit")


def scheduler(names: Sequence[str], words: Words) -> str:
    """Tell what an exec asks of a scheduler: `poll`, `submit`, `cancel`, or "" for nothing."""
    first = words[0] if words else ""
    if first in _ASKING:
        return ""
    for name in names:
        if name in POLLS or (name == "scontrol" and first in ("show", "ping")):
            return "poll"
        if name in SUBMITS and _submits(words):
            return "submit"
        if name in ("scancel", "qdel", "bkill"):
            return "cancel"
    return ""
