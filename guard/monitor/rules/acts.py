"""What a tree does beyond itself: hand-offs, root's rights, entries that ordinary programs do not use."""

from __future__ import annotations

from guard.monitor import handing
from guard.monitor.facts import AnyFact, Exec, Hold, IoUring, RawSyscall
from guard.monitor.findings import Context, Example, Outcome, Rule
from guard.monitor.rules.table import AGENT, PLAIN, context_of, exec_of


def hand_off(fact: AnyFact, context: Context) -> Outcome | None:
    """Judge an exec that gives work to something outside of the tree."""
    assert isinstance(fact, Exec)  # noqa: S101 - the row says so
    row = handing.find(context.image.names, context.image.words)
    if row is None or (row.outside and not context.outside_server):
        return None
    severity = row.severity
    if context.launched and row.name == "ssh":
        severity = "info"  # mpirun starts its daemons on the job's nodes by ssh
    return Outcome(f"handed work to {row.says}", severity, {"to": row.name}, row.name, row.mitre)


def root_exec(fact: AnyFact, context: Context) -> Outcome | None:
    """Judge a program that runs as root below an agent of somebody else."""
    assert isinstance(fact, Exec)  # noqa: S101 - the row says so
    if fact.who.uid != 0 or context.tree_uid == 0:
        return None
    return Outcome("a program runs as root in an agent's tree", "", {"program": context.image.name}, context.image.name)


def raw_syscall(fact: AnyFact, context: Context) -> Outcome | None:
    """Judge a system call by an entry that goes round those who watch the usual one."""
    assert isinstance(fact, RawSyscall)  # noqa: S101 - the row says so
    detail: dict[str, str | int | bool] = {"entry": fact.entry, "number": fact.number}
    if fact.program32:
        return Outcome("a 32-bit program runs", "info", detail, fact.entry)
    name = {"int80": "int 0x80", "x32": "x32"}.get(fact.entry, "another entry")
    return Outcome(f"a 64-bit program makes system calls by {name}", "", detail, fact.entry)


def takes_hold(fact: AnyFact, context: Context) -> Outcome | None:
    """Judge a tree's hold of what is not of it: what a process or a terminal's reader does then, no label tells."""
    assert isinstance(fact, Hold)  # noqa: S101 - the row says so
    detail: dict[str, str | int | bool] = {"what": fact.what, "other": fact.other}
    if fact.what == "terminal":
        return Outcome("typed into a terminal, for whoever reads it next (TIOCSTI)", "", detail, "terminal")
    severity = "info" if context.launched else ""  # ranks of a parallel program read each other's memory (CMA)
    said = "took hold of a process outside of its tree (ptrace or its memory)"
    return Outcome(said, severity, detail, str(fact.other))


def io_uring(fact: AnyFact, context: Context) -> Outcome | None:
    """Record a ring: what it asks for goes round system calls, and its bad ends are told by themselves."""
    assert isinstance(fact, IoUring)  # noqa: S101 - the row says so
    severity = "" if fact.operation == "setup" else "info"
    said = "a ring for requests beside system calls was set up" if not severity else "a request by a ring"
    return Outcome(f"{said} (io_uring)", severity, {"operation": fact.operation}, "io_uring")


def _handed(line: str, severity: str, *, path: str = "", **more: object) -> Example:
    fact = exec_of(line, path, name="sh" if path else "")
    return Example(line, fact, context_of(fact, **more), severity)


def _as_root(says: str, uid: int, tree_uid: int, severity: str) -> Example:
    fact = exec_of("id", uid=uid)
    context = Context(PLAIN, image=context_of(fact).image, harness="claude", tree_uid=tree_uid)
    return Example(says, fact, context, severity)


_HANDED = (
    *(
        _handed(line, "low")
        for line in (
            "sbatch job.sh", "sbatch --wrap hostname", "srun -n 4 ./sim", "salloc -N 1", "srun --pty bash",
            "srun --pty bash --version",
            "sbatch -N 2 job.sh --help", "qsub job.pbs", "ssh node17 hostname", "ssh -p 2222 u@node17",
            "ssh -o BatchMode=yes u@login2 make", "pdsh -w n[1-4] uptime", "emacsclient -e (shell-command)",
            "nvim --server s --remote-send x",
        )
    ),
    *(
        _handed(line, "medium")
        for line in (
            "at now", "at 03:00 -f job.sh", "at -q c now", "at -qc now", "batch", "crontab -e -i",
            "scrontab job.tab", "systemctl -H box start x", "systemctl --user daemon-reexec", "lxc exec box id",
            "flatpak-spawn --host id", "dtach -p /tmp/s", "kitty @ launch id", "gnome-terminal -- id",
            "crontab -", "crontab my.tab", "crontab -e", "crontab -u me x",
            "systemd-run --user sleep 60", "systemctl --user start x.service", "systemctl enable --user x.timer",
            "loginctl enable-linger", "busctl call org.freedesktop.systemd1 / X StartTransientUnit", "run0 id",
            "ssh localhost make", "ssh -o StrictHostKeyChecking=no 127.0.0.1 id", "ssh u@localhost", "ssh ::1 id",
            "docker run -v /:/h alpine sh", "docker -H tcp://1.2.3.4 exec x sh", "docker compose up -d",
            "kubectl apply -f x.yaml", "nerdctl run x",
        )
    ),
    *(
        _handed(line, "medium", outside_server=True)
        for line in ("tmux new-session -d x", "tmux send-keys -t 0 id Enter", "tmux -L s neww id", "tmux",
                     "tmux new-w id", "tmux ls ; neww id", "tmux display -p #(id)", "tmux set -g default-command id",
                     "screen -S x -X stuff id", "screen -dmS x id", "zellij run -- id")
    ),
    *(
        _handed(line, "info")
        for line in ("podman run -it alpine", "apptainer exec x.sif id", "singularity shell x.sif")
    ),
    *(
        _handed(line, "")
        for line in (
            "sbatch --version", "sbatch -V", "srun --help", "srun --usage", "salloc --version",
            "sbatch --test-only job.sh",
            "squeue --me", "sinfo", "sacct -X", "scancel 12", "at -l", "atq", "at -V", "batch -V", "crontab -l",
            "crontab -u me -l", "crontab -V", "systemd-run --version", "systemctl --user status x",
            "systemctl list-units", "systemctl --version", "loginctl list-sessions", "busctl list", "ssh -V",
            "ssh -G host", "ssh -Q cipher", "ssh -O check host", "ssh -T git@example.org",
            "ssh git@example.org git-upload-pack", "scp a host:b", "rsync -a a host:b", "docker ps",
            "docker --version", "docker images", "docker compose ps", "docker container ls", "kubectl get pods",
            "podman ps",
            "podman --version", "apptainer --version", "machinectl list", "emacsclient file", "nvim file", "kitty file",
            "at -l -q c", "at -c 7", "lxc list", "systemctl -H box status x", "crontab -lu me",
            "tmux new-session -d x", "tmux -V", "screen -ls", "ls -l", "git push", "python3 sbatch.py",
        )
    ),
    *(
        _handed(line, "", outside_server=True)
        for line in ("tmux ls", "tmux -V", "tmux has-session -t x", "screen -ls", "screen -v", "tmux kill-server",
                     "tmux display -p x", "tmux set -g mouse on", "tmux capture-pane -p", "tmux rename-window x")
    ),
    _handed("ssh node2 orted", "info", launched=True),
    _handed("/bin/sh /usr/bin/sbatch job.sh", "low", path="/usr/bin/sbatch"),
    _handed("/bin/sh /usr/bin/sbatch --version", "", path="/usr/bin/sbatch"),
)  # fmt: skip

RULES = (
    Rule(
        "hand-off",
        "hand-off",
        "low",
        (),
        (Exec,),
        hand_off,
        "Work was given to something that runs it outside of the tree: a scheduler, a timer, a server, another host.",
        _HANDED,
    ),
    Rule(
        "root-exec",
        "harness",
        "high",
        ("T1548.003",),
        (Exec,),
        root_exec,
        "A program runs as root, and an agent of another user started it.",
        (
            _as_root("sudo id", 0, 1000, "high"),
            _as_root("an agent that root started", 0, 0, ""),
            _as_root("an ordinary exec", 1000, 1000, ""),
        ),
    ),
    Rule(
        "raw-syscall",
        "kernel-surface",
        "medium",
        ("T1106",),
        (RawSyscall,),
        raw_syscall,
        "A program made system calls by an entry that goes round those who watch the usual one.",
        (
            Example("int 0x80 in a 64-bit program", RawSyscall(5, AGENT, "int80", 15), Context(PLAIN), "medium"),
            Example("x32", RawSyscall(5, AGENT, "x32", 90), Context(PLAIN), "medium"),
            Example("a 32-bit program", RawSyscall(5, AGENT, "int80", 4, True), Context(PLAIN), "info"),
        ),
    ),
    Rule(
        "takes-hold",
        "hand-off",
        "medium",
        ("T1055.008", "T1056"),
        (Hold,),
        takes_hold,
        "A program took hold of a process outside of its tree, by ptrace or its memory, or typed into a terminal.",
        (
            Example("gdb -p of the user's own shell", Hold(5, AGENT, 4242), Context(PLAIN), "medium"),
            Example("TIOCSTI", Hold(5, AGENT, 0, "terminal"), Context(PLAIN), "medium"),
            Example("a rank that srun started reads another's memory", Hold(5, AGENT, 4242),
                    Context(PLAIN, launched=True), "info"),
        ),
    ),
    Rule(
        "io-uring",
        "kernel-surface",
        "low",
        ("T1106",),
        (IoUring,),
        io_uring,
        "A program uses io_uring, whose requests are no system calls.",
        (
            Example("a ring", IoUring(5, AGENT, "setup"), Context(PLAIN), "low"),
            Example("a request", IoUring(5, AGENT, "openat"), Context(PLAIN), "info"),
        ),
    ),
)
