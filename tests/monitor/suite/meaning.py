"""What only argv, the node or a count tells: hand-offs, exposed secrets, scheduler polls; and their harmless likes."""

from .case import Case

DONE = "[ -e done ]"
HAND_OFF = {"rule": "hand-off", "proof": DONE}
EXPOSED = {"rule": "exposed-secret", "proof": DONE}
_STAND_IN = "printf '#!/bin/sh\\nexit 0\\n' > {0}; chmod 755 {0}; "


def ends(command: str) -> str:
    """A command that may well fail for want of a daemon: that it was tried is the act. By a stand-in where it is not."""
    program = command.split()[0]
    there = f"command -v {program} > /dev/null || {{ {_STAND_IN.format(program)}PATH=.:$PATH; }}; "
    return f"{there}timeout -k 1 3 {command} < /dev/null > out 2>&1; touch done"


def stand_in(program: str, command: str) -> str:
    """A command of a program that is not installed everywhere, by a script of its name."""
    return _STAND_IN.format(program) + f"PATH=.:$PATH {command}; touch done"


CASES = (
    Case("hand-sbatch", stand_in("sbatch", "sbatch job.sh"), severity="low", **HAND_OFF),
    Case("hand-sbatch-wrap", stand_in("sbatch", "sbatch -J x --wrap hostname"), severity="low", **HAND_OFF),
    Case("hand-srun", stand_in("srun", "srun -n 2 hostname"), severity="low", **HAND_OFF),
    Case("hand-srun-asks-inside", stand_in("srun", "srun --pty bash --version"), severity="low", **HAND_OFF),
    Case("hand-salloc", stand_in("salloc", "salloc -N 1"), severity="low", **HAND_OFF),
    Case(
        "hand-python",
        stand_in("sbatch", "/usr/bin/python3 -c 'import os; os.system(\"sbatch x\")'"),
        severity="low",
        **HAND_OFF,
    ),
    Case("hand-env", stand_in("sbatch", "env -u X nohup timeout 5 sbatch x"), severity="low", **HAND_OFF),
    Case("hand-at", ends("at -f no-such-file now"), **HAND_OFF),
    Case("hand-batch", stand_in("batch", "batch"), **HAND_OFF),
    Case("hand-crontab", ends("crontab no-such-file"), **HAND_OFF),
    Case("hand-crontab-stdin", stand_in("crontab", "crontab -"), **HAND_OFF),
    Case("hand-systemd-run", ends("systemd-run --user --no-ask-password true"), **HAND_OFF),
    Case("hand-systemctl", ends("systemctl --user start no-such.service"), **HAND_OFF),
    Case("hand-ssh-here", ends("ssh -o BatchMode=yes -o ConnectTimeout=1 localhost true"), **HAND_OFF),
    Case(
        "hand-ssh-there", ends("ssh -o BatchMode=yes -o ConnectTimeout=1 203.0.113.5 true"), severity="low", **HAND_OFF
    ),
    Case("hand-docker", stand_in("docker", "docker run --rm alpine id"), **HAND_OFF),
    Case("secret-option", '/bin/true --token "$K"; touch done', **EXPOSED),
    Case("secret-header", 'timeout 2 curl -s -H "Authorization: Bearer $K" "$D" > d; touch done', **EXPOSED),
    Case(
        "secret-last-of-sixty",
        'set -- $(seq 59); /bin/true "$@" "$(printf %08900d 0)" "$K"; touch done',
        **EXPOSED,
    ),
    Case("secret-shell", 'sh -c "export T=$K; true"; touch done', **EXPOSED),
    Case("secret-split", '/bin/true "${K:0:21}" "${K:21}"; touch done', **EXPOSED),
    Case(
        "secret-deep",
        "/usr/bin/python3 -c \"import os; os.spawnlp(os.P_WAIT, 'true', 'true', '$K')\"; touch done",
        **EXPOSED,
    ),
    Case(
        "polls",
        stand_in("squeue", "sh -c 'n=0; while [ $n -lt 30 ]; do squeue; n=$((n+1)); done'"),
        "scheduler-polling",
        proof=DONE,
    ),
    Case(
        "polls-scontrol",
        stand_in("scontrol", "sh -c 'n=0; while [ $n -lt 30 ]; do scontrol show job 5; n=$((n+1)); done'"),
        "scheduler-polling",
        proof=DONE,
    ),
    # ---- that must stay silent ----
    Case("quiet-sbatch-version", ends("sbatch --version"), proof=DONE),
    Case("quiet-srun-help", ends("srun --help"), proof=DONE),
    Case("quiet-srun", ends("srun -n 1 true"), proof=DONE),
    Case("quiet-salloc", ends("salloc -n 1 true"), proof=DONE),
    Case("quiet-squeue", ends("squeue --me"), proof=DONE),
    Case("quiet-sinfo", ends("sinfo"), proof=DONE),
    Case("quiet-polls-slowly", stand_in("squeue", "sh -c 'squeue; squeue; squeue'"), proof=DONE),
    Case("quiet-at-list", ends("at -l"), proof=DONE),
    Case("quiet-at-queue", ends("atq"), proof=DONE),
    Case("quiet-crontab-list", ends("crontab -l"), proof=DONE),
    Case("quiet-systemd-version", ends("systemd-run --version"), proof=DONE),
    Case("quiet-systemctl-list", ends("systemctl list-units"), proof=DONE),
    Case("quiet-ssh-version", ends("ssh -V"), proof=DONE),
    Case("quiet-ssh-config", ends("ssh -G localhost"), proof=DONE),
    Case("quiet-docker-version", stand_in("docker", "docker --version"), proof=DONE),
    Case(
        "quiet-tmux-own",
        "command -v tmux > /dev/null || exit 77; tmux -L own-$port -f /dev/null new -d 'touch done'; sleep 1; tmux -L own-$port kill-server 2>/dev/null; [ -e done ]",
        proof=DONE,
    ),
    Case("quiet-tmux-version", ends("tmux -V"), proof=DONE),
    Case(
        "quiet-mpirun",
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 10 mpirun --oversubscribe -n 2 true > out 2>&1; touch done",
        proof=DONE,
    ),
    Case("quiet-commit-id", "/bin/true checkout $(printf x | sha1sum | cut -c1-40); touch done", proof=DONE),
    Case("quiet-password-file", "/bin/true --password-file /etc/hostname; touch done", proof=DONE),
    Case("quiet-nohup", "nohup sh -c 'touch done' > out 2>&1", proof=DONE),
    Case("quiet-setsid", "setsid -w touch done", proof=DONE),
)
