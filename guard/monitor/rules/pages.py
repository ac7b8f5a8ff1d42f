"""The pages of the rules, docs/rules: written from the table, so that they say what the rules do.

python -m guard.monitor.rules.pages docs/rules
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from guard.monitor.findings import Rule
from guard.monitor.rules import TABLE
from guard.monitor.rules.service import SAYINGS

ADVICE: Mapping[str, tuple[str, str]] = {
    "world-writable": (
        "On a shared machine whoever can write a file that somebody else runs or reads becomes them. Agents reach for "
        "`chmod 777` when an access is denied.",
        "Take the bit back (`chmod o-w`), and give a group or a named user the access that is meant "
        "(`setfacl -m u:NAME:rw`).",
    ),
    "bind-outside": (
        "A server on a login node is open to every user of the cluster, mostly without a password.",
        "Bind it to 127.0.0.1 and reach it by `ssh -L`. What must be reachable (SrunPortRange, a licence daemon) goes "
        "into the policy's `bind_allow`, or `[[bind_allow]]` of monitor.toml.",
    ),
    "listen-outside": (
        "A listen without a bind takes a random port on every address; one that was bound to port 0 is told here, too.",
        "As for bind-outside.",
    ),
    "connect-outside": ("For the log: it is what an incident is reconstructed from.", "Nothing."),
    "code-from-outside": (
        "`curl … | sh` in any spelling: what ran was chosen by a server, unseen by whoever is "
        "responsible. The rule goes by "
        "what flowed: pipes, files however copied, sockets, descriptors, terminals; a download that nobody runs is "
        "silent. A program that fetched something, then writes a script and has it run is told, too: whether the "
        "script is what it fetched, the kernel cannot tell.",
        "Look at what the address served and what the tree did afterwards. Package managers that a site "
        "trusts are named in "
        "`[fetchers]`.",
    ),
    "evaluated-from-outside": (
        "The kernel sees a shell that reads fetched data, whether it keeps them in a variable or "
        "evaluates them; the shell's "
        "own text tells. A script file's text is not looked at: there it stays at info.",
        "As for code-from-outside.",
    ),
    "code-in-argument": (
        '`bash -c "$(curl …)"` and `xargs sh -c`: the first bytes that were fetched stand where a command '
        "stands. Without "
        "those bytes it is low; a value that is quoted in a one-liner is data.",
        "As for code-from-outside.",
    ),
    "evaluates-what-it-fetches": (
        "`exec(urlopen(…).read())`: no pipe, no file. The text both fetches and evaluates, and the "
        "process received data.",
        "As for code-from-outside.",
    ),
    "wrote-then-ran": (
        "A build runs what it has just written, all day. A copy of a shell under another name is a way "
        "round rules that "
        "know programs by name.",
        "Of a copied interpreter: ask what it was for.",
    ),
    "hand-off": (
        "A job, a timer, a server or another host runs the work outside of the agent's tree, where "
        "neither its limits nor "
        "this monitor's label follow. Asking for a version, a list or a queue is none. Slurm and ssh are "
        "low, since they are "
        "a login node's work; what stays behind after the session (cron, at, systemd, a foreign tmux) is medium.",
        "Raise or lower it in `[severity]`; `[hand_off]` of the policy says what sessions of `guard run` may.",
    ),
    "root-exec": (
        "An agent that becomes root is bound by nothing here.",
        "Find out by which right: sudoers, a set-user-id program.",
    ),
    "raw-syscall": (
        "The numbers of `int 0x80` and x32 mean other calls, and go round those who watch the usual entry.",
        "No compiler makes them for a 64-bit program: look at the program.",
    ),
    "takes-hold": (
        "Whoever may trace the user's own shell, editor or server can have it do the work, outside of the tree and "
        "its label; so can who types into the terminal that the shell reads next. A tracer of what the tree itself "
        "started (strace, gdb) is none.",
        "Find out what it did there. `kernel.yama.ptrace_scope=1` leaves users their own descendants alone, and "
        "`dev.tty.legacy_tiocsti=0` (from 6.2) ends the other.",
    ),
    "io-uring": (
        "Requests of a ring are no system calls. What they open, bind or change is told by its own rule "
        "where the backend "
        "sees it.",
        "Databases and servers use it; an agent's tools do not. `kernel.io_uring_disabled=1` takes it from users.",
    ),
    "scheduler-polling": (
        "`squeue` in a loop loads the controller that everybody waits for.",
        "Use `--mail-type`, `sbatch --wait`, or a long pause. The limits are `[limits] scheduler_polls` "
        "and `polls_per_job`.",
    ),
    "commands": ("A loop that went wild.", "The limit is `[limits] commands`."),
    "metadata-walk": (
        "`find` or `rg` over a parallel file system asks its one metadata server for millions of files.",
        "Search a project and not the file system. The limit is `[limits] metadata_calls`.",
    ),
}
"""Rule → (why it matters, what to do)."""


def page(rule: Rule) -> str:
    """Write one rule's page."""
    why, advice = ADVICE[rule.name]
    mitre = ", ".join(f"[{each}](https://attack.mitre.org/techniques/{each.replace('.', '/')}/)" for each in rule.mitre)
    found = [f"| {_cell(example.says)} | {example.severity} |" for example in rule.examples if example.severity]
    silent = [f"- {example.says}" for example in rule.examples if not example.severity]
    lines = [
        f"# {rule.name}",
        "",
        rule.says,
        "",
        f"Control `{rule.control}`, severity {rule.severity} unless an example says otherwise"
        + (f", MITRE ATT&CK {mitre}." if mitre else "."),
        "",
        "## Why",
        "",
        why,
        "",
        "## What to do",
        "",
        advice,
        "",
        "## Found",
        "",
        "| example | severity |",
        "|---|---|",
        *dict.fromkeys(found),
    ]
    if silent:
        lines += ["", "## Left alone", "", *dict.fromkeys(silent)]
    lines += [
        "",
        f'A site changes the severity, or turns the rule off, in monitor.toml: `[severity]`, `{rule.name} = "off"`.',
        "",
    ]
    return "\n".join(lines)


def index() -> str:
    """Write the list of all rules."""
    rows = [
        f"| [{rule.name}]({rule.name}.md) | {rule.control} | {rule.severity} | {_cell(rule.says)} |" for rule in TABLE
    ]
    more = [f"| {name} | {row.control} | {row.severity} | {_cell(row.says)} |" for name, row in SAYINGS.items()]
    return "\n".join(
        [
            "# The monitor's rules", "", "Over what the kernel saw of agents' trees:", "",
            "| rule | control | severity | finds |", "|---|---|---|---|", *rows, "",
            "Of trees, exposures and of the monitor itself:", "",
            "| rule | control | severity | says |", "|---|---|---|---|", *more, "",
        ]
    )  # fmt: skip


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def pages() -> dict[str, str]:
    """Return file name → text of every page."""
    return {"README.md": index(), **{f"{rule.name}.md": page(rule) for rule in TABLE}}


def main(directory: str) -> None:
    """Write every page."""
    os.makedirs(directory, exist_ok=True)
    for name, text in pages().items():
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main(sys.argv[1])
