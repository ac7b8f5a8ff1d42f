"""Commands that give work to something outside of the tree, and those that only ask it something.

One row a family of programs. What a row takes for asking (a version, a list, a queue) is no hand-off.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
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


def _letters(words: Words, values: str) -> Iterator[str]:
    """Give the option letters of a command line, as getopt(3) reads it, and long options whole.

    Args:
        values: letters that take a value.
    """
    rest = iter(words)
    for word in rest:
        if word == "--":
            return
        if word.startswith("--"):
            yield word
        elif word.startswith("-"):
            for at, letter in enumerate(word[1:], 2):
                yield letter
                if letter in values:
                    if at == len(word):
                        next(rest, "")
                    break


def _at(words: Words) -> bool:
    return set(_letters(words, "qftu")).isdisjoint({*"lVdrch", "--help", "--version"})


def _crontab(words: Words) -> bool:
    return set(_letters(words, "ucs")).isdisjoint({*"lrVhT", "--help", "--version"})


_UNIT_VERBS = (
    "start", "restart", "try-restart", "reload", "reload-or-restart", "try-reload-or-restart", "enable", "reenable",
    "preset", "preset-all", "link", "edit", "isolate", "add-wants", "add-requires", "set-property", "set-default",
    "daemon-reload", "daemon-reexec", "import-environment", "set-environment",
)  # fmt: skip


def _verb(words: Words) -> str:
    return next((word for word in words if not word.startswith("-")), "")


def _systemctl(words: Words) -> bool:
    # The first word may be the value of an option (`-H host`): the verb is among the first two.
    return any(word in _UNIT_VERBS for word in [word for word in words if not word.startswith("-")][:2])


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
    name, own = host.strip("[]").lower(), os.uname().nodename.lower()
    return name in LOCAL or name.startswith("127.") or name == own or name == own.partition(".")[0]


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
    "neww", "new-session", "new-window", "splitw", "split-window", "send-keys", "run-shell", "if-shell", "respawnp",
    "respawn-pane", "respawnw", "respawn-window", "pipep", "pipe-pane", "source-file", "set-hook", "attach-session",
    "bind-key", "display-popup", "popup", "display-menu", "menu", "command-prompt", "confirm-before", "pasteb",
    "paste-buffer", "choose-tree", "choose-client", "choose-buffer", "customize-mode",
)  # fmt: skip
"""Commands that have the server run something; tmux takes any beginning of a name."""
_TMUX_ASKS = ("list-", "ls", "has", "kill", "show", "display-message", "info", "capture", "rename", "server-", "select")


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
    return at >= len(words) or any(map(_tmux_runs, _tmux_commands(words[at:])))


def _tmux_commands(words: Words) -> Iterator[Words]:
    """Give the commands of a sequence: a word that ends in `;` ends one."""
    command: list[str] = []
    for word in words:
        command.append(word.rstrip(";"))
        if word.endswith(";"):
            yield command
            command = []
    yield command


def _tmux_runs(command: Words) -> bool:
    name = command[0] if command else ""
    if any("#(" in word for word in command):  # a format: the server runs what stands in it
        return True
    if name.startswith("set") and not name.startswith("set-h"):
        return any(word.startswith("default-") for word in command)  # default-command, default-shell
    if not name or name == "display" or name.startswith(_TMUX_ASKS):
        return False
    return any(each.startswith(name) for each in _TMUX)


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


_ENGINE = (
    "run", "exec", "launch", "shell", "start", "create", "build", "compose", "up", "apply", "restart", "attach",
    "buildx", "commit",
)  # fmt: skip
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


def _remote(words: Words) -> bool:
    """Vim and nvim, asked to have another one do it."""
    return any(word.startswith("--remote") for word in words)


def _dtach(words: Words) -> bool:
    return not set(_letters(words, "eErR")).isdisjoint("paA")


def _kitty(words: Words) -> bool:
    return any(word in ("launch", "send-text", "run", "new-window") for word in words) and "@" in words


def _wezterm(words: Words) -> bool:
    return words[:1] == ["cli"] and any(word in ("spawn", "split-pane", "send-text") for word in words)


TABLE: tuple[HandOff, ...] = (
    HandOff("slurm", ("sbatch", "srun", "salloc", "sattach", "strigger"), _submits, "low", ("T1053",), "Slurm"),
    HandOff("batch-system", ("qsub", "bsub", "condor_submit", "qrsh", "oarsub", "flux-batch"), _submits, "low",
            ("T1053",), "the batch system"),
    HandOff("at", ("at", "batch"), _at, "medium", ("T1053.002",), "at, which runs it later"),
    HandOff("cron", ("crontab", "scrontab", "fcrontab", "incrontab"), _crontab, "medium", ("T1053.003",),
            "cron, which runs it again and again"),
    HandOff("systemd", ("systemd-run", "run0", "systemd-cat"), _starts, "medium", ("T1543.002",), "systemd"),
    HandOff("systemd", ("systemctl",), _systemctl, "medium", ("T1543.002",), "systemd"),
    HandOff("systemd", ("loginctl",), _loginctl, "medium", ("T1543.002",), "systemd, beyond the login"),
    HandOff("systemd", ("machinectl",), _machinectl, "medium", ("T1543.002",), "systemd"),
    HandOff("systemd", ("busctl", "dbus-send", "gdbus", "qdbus"), _bus, "medium", ("T1543.002",), "systemd, by D-Bus"),
    HandOff("ssh-here", ("ssh", "autossh", "dbclient"), _ssh_here, "medium", ("T1021.004",), "this machine, by ssh"),
    HandOff("ssh", ("ssh", "autossh", "dbclient"), _ssh, "low", ("T1021.004",), "another machine, by ssh"),
    HandOff("ssh", ("mosh", "rsh", "rlogin", "pdsh", "clush", "pssh", "parallel-ssh"), _starts, "low", ("T1021.004",),
            "other machines"),
    HandOff("tmux", ("tmux",), _tmux, "medium", ("T1564",), "a tmux server outside of the tree", outside=True),
    HandOff("tmux", ("screen",), _screen, "medium", ("T1564",), "a screen outside of the tree", outside=True),
    HandOff("tmux", ("zellij",), _zellij, "medium", ("T1564",), "a zellij server outside of the tree", outside=True),
    HandOff("container", ("docker", "nerdctl", "ctr", "crictl", "kubectl", "docker-compose", "podman-remote", "lxc",
            "incus"), _engine, "medium", ("T1610",), "a container engine"),
    HandOff("host-of-container", ("flatpak-spawn", "host-spawn", "distrobox-host-exec"), _starts, "medium",
            ("T1611",), "the host that its container runs on"),
    HandOff("container-in-tree", ("podman", "apptainer", "singularity", "charliecloud", "ch-run", "enroot", "buildah"),
            _rootless, "info", ("T1610",), "a container that stays in the tree"),
    HandOff("editor", ("emacsclient",), _emacsclient, "low", ("T1559",), "an editor's server"),
    HandOff("editor", ("vim", "gvim", "nvim", "vimx"), _remote, "low", ("T1559",), "an editor's server"),
    HandOff("terminal", ("dtach", "abduco"), _dtach, "medium", ("T1564",), "a terminal that somebody else holds"),
    HandOff("terminal", ("kitty", "kitten"), _kitty, "medium", ("T1564",), "a terminal's own process"),
    HandOff("terminal", ("wezterm",), _wezterm, "medium", ("T1564",), "a terminal's own process"),
    HandOff("terminal", ("gnome-terminal", "kgx", "ptyxis"), _starts, "medium", ("T1564",), "a terminal's server"),
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
    if names and names[0] in _AT_ASKS and all(map(_AT_ASKING.fullmatch, words)):
        return None  # links to `at`, which goes by the name that it is called with
    for name in names:
        for row in _BY_PROGRAM.get(name, ()):
            if row.hands(words):
                return row
    return None


_AT_ASKS = ("atq", "atrm")
_AT_ASKING = re.compile(r"-[qVvo]+|-q.|[a-zA-Z=]|\d+")
"""Of their words: options, a queue, numbers of jobs; neither a file nor a time."""
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
