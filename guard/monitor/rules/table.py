"""How the rows of the rules are written short: facts of examples, from words."""

from __future__ import annotations

from guard.monitor.facts import CodeBy, Exec, Process, Program
from guard.monitor.findings import Context, Image
from guard.monitor.settings import MonitorSettings

AGENT = Process(pid=200, start=1, ppid=100, uid=1000, comm=b"sh", root=100, root_start=1)
"""A process of an agent's tree, for examples."""

PLAIN = MonitorSettings()


def exec_of(line: str, path: str = "", *, uid: int = 1000, fed: bool = False, code_by: CodeBy = CodeBy.NONE,
            name: str = "") -> Exec:  # fmt: skip
    """Return the exec of a command line, split at blanks, as a fact."""
    words = line.split(" ")
    path = path or f"/usr/bin/{words[0]}"
    who = Process(AGENT.pid, 1, AGENT.ppid, uid, b"x", AGENT.root, 1)
    return exec_words(tuple(words), path, who, fed=fed, code_by=code_by, name=name)


def exec_words(
    words: tuple[str, ...], path: str, who: Process = AGENT, *, fed: bool = False, code_by: CodeBy = CodeBy.NONE,
    name: str = "",
) -> Exec:  # fmt: skip
    """Return the exec of an argument list as a fact."""
    return Exec(
        5, who, path.encode(), (name or path.rpartition("/")[2]).encode(), tuple(map(str.encode, words)), 0,
        Program.NONE, code_by, fed,
    )  # fmt: skip


def context_of(fact: Exec, **more: object) -> Context:
    """Return the context in which a process has just been started by that exec."""
    return Context(PLAIN, image=Image.of(fact), harness="claude", tree_uid=1000, **more)  # type: ignore[arg-type]
