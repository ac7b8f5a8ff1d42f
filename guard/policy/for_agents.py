"""A policy told to the agents that work under it: what may be done, and what to do when something is refused.

For an AGENTS.md. It says nothing of how a limit could be got round, and nothing that a session could not see.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable

from guard.policy.keys import CONTROLS
from guard.policy.model import Effective
from guard.policy.source import printable
from guard.policy.status import control_modes

_WIDTH = 79
_MOST = 6
"""Places named of one list; the rest is counted."""

# Named first where a policy denies them: what an agent may come across.
_KNOWN = ("{home}/.ssh", "{home}/.aws", "{home}/.config/gh", "{home}/.netrc", "{home}/.git-credentials",
          "{home}/.gnupg", "{home}/.bash_history")  # fmt: skip
_SHOWN = (("{project}", "the project"), ("{tmp}", "`$TMPDIR`"))


def text(effective: Effective) -> list[str]:
    """Return the lines of the text, Markdown, fewer than forty.

    Args:
        effective: the policy in effect.
    """
    out = [f"## Limits of this session (guard, policy {printable(effective.name)})", ""]
    modes = control_modes(effective.values)
    if effective.mode != "enforce" or all(modes[control] != "enforce" for control in CONTROLS if control != "limits"):
        out += _wrapped(_NOTHING.get(effective.mode, _NOTHING["observe"]), "")
        return out
    out += _wrapped(
        "Commands run here under limits that the kernel enforces. No setting, flag or other tool changes them,"
        " so plan within them.", ""
    )  # fmt: skip
    out.append("")
    for control, say in _ROWS:
        line = say(effective) if not control or modes[control] == "enforce" else ""
        if line:
            out += _wrapped(printable(line), "- ")
    out += ["", "When something is refused (`Permission denied`, `Operation not permitted`):", ""]
    for number, line in enumerate(_REFUSED, 1):
        out += _wrapped(line, f"{number}. ")
    return out


_NOTHING = {
    "observe": "This session is watched: what a policy would refuse is done, and recorded.",
    "off": "guard holds nothing in this session.",
}
_REFUSED = (
    "Ask why: `guard explain write PATH`, or read, exec, chmod MODE PATH, bind ADDR:PORT, connect ADDR:PORT,"
    " unix PATH. It names the rule, and what would allow it.",
    "Do the work in a way that stays within the limits: in the project, with temporary files in `$TMPDIR`.",
    "If it cannot be done so, stop, and tell the person what was refused and what `guard explain` said."
    " Only they, or the site, can decide on more.",
)


def _wrapped(line: str, lead: str) -> list[str]:
    return textwrap.wrap(
        line, _WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _place(pattern: str) -> str:
    for start, word in _SHOWN:
        if pattern == start:
            return word
        if pattern.startswith(start + "/"):
            pattern = pattern.replace(start + "/", "$TMPDIR/" if start == "{tmp}" else "")
    return f"`{pattern.replace('{home}', '~').replace('{uid}', '$UID').replace('{', '$').replace('}', '')}`"


def _listed(patterns: Iterable[str], first: Iterable[str] = ()) -> str:
    every = list(patterns)
    known = [pattern for pattern in first if pattern in every]
    named = [*known, *(pattern for pattern in every if pattern not in known)]
    more = len(named) - _MOST
    shown = ", ".join(map(_place, named[:_MOST] if more > 1 else named))
    return f"{shown} and {more} more" if more > 1 else shown


def _write(effective: Effective) -> str:
    patterns = sorted(effective.words("files.write"), key=lambda each: (each != "{project}", each != "{tmp}"))
    if not patterns:
        return "Write nothing: no place is writable."
    others = "" if {"/tmp", "{home}"} & set(patterns) else ", `/tmp` and the rest of the home included"  # noqa: S108
    return f"Write only in {_listed(patterns)}. Nothing else is writable{others}."


def _read(effective: Effective) -> str:
    granted = {*effective.words("files.read"), *effective.words("files.write")}
    places = [name for pattern, name in (("{home}", "the home"), ("{project}", "the project")) if pattern in granted]
    return f"Read {', '.join([*places, 'the system'])}: programs, libraries, settings."


def _deny(effective: Effective) -> str:
    denied = effective.words("files.deny")
    if not denied:
        return ""
    return f"Never readable are keys, credentials and histories: {_listed(denied, _KNOWN)}."


def _protect(effective: Effective) -> str:
    protected = [each for each in effective.words("files.protect") if each.startswith("{project}/")]
    if not protected:
        return ""
    names = ", ".join(f"`{each.removeprefix('{project}/')}`" for each in protected[:_MOST])
    return f"Of the project, leave as they are: {names}; people's programs run them outside."


def _temporary(effective: Effective) -> str:
    return "Put temporary files into `$TMPDIR`; they are gone after the session." if _has_tmp(effective) else ""


def _has_tmp(effective: Effective) -> bool:
    return "{tmp}" in effective.words("files.write")


_BIND = {
    "loopback": "Servers listen on 127.0.0.1 or ::1; one on every address is bound to loopback instead.",
    "deny": "No server: no address may be bound.",
}


def _bind(effective: Effective) -> str:
    line = _BIND.get(effective.word("network.bind"), "")
    programs = sorted({entry.exec for entry in effective.bind_allow() if entry.exec})
    return f"{line} Exempt: {', '.join(f'`{each}`' for each in programs)}." if line and programs else line


def _connect(effective: Effective) -> str:
    rules = effective.connect()
    if rules is None:
        return ""
    ports = [f"{low}" if low == high else f"{low}-{high}" for rule in rules for low, high in rule.ports]
    if not ports:
        return "No connections, but to servers that you started here."
    narrow = any(rule.to != "any" or rule.except_ for rule in rules)
    few = " (not every address; loopback only where you listen yourself)" if narrow else ""
    return f"Connect to ports {', '.join(dict.fromkeys(ports))}{few}. No others."


def _sockets(effective: Effective) -> str:
    return "Reach no background services of the user: session bus, tmux, ssh agent, Docker."


def _world_writable(effective: Effective) -> str:
    word = effective.word("modes.world_writable")
    if word == "strip":
        return "Modes that let everybody write (777, 666) are set without that bit. Share by group: 2775, 664."
    return "Do not let everybody write: 777 and 666 are refused. Share by group: 2775, 664."


def _setuid(effective: Effective) -> str:
    return "No set-user-id bit. Nothing raises privilege here, `sudo` included."


def _pipe(effective: Effective) -> str:
    return "Do not run downloads (`curl … | sh`): save them, read them, and let a person run them."


_HANDED = {"slurm": "Slurm", "at": "at and cron", "ssh": "ssh", "tmux": "tmux and screen", "systemd": "systemd"}


def _hand_off(effective: Effective) -> str:
    denied = [shown for name, shown in _HANDED.items() if effective.word(f"hand_off.{name}") == "deny"]
    return f"Do not hand work to {', '.join(denied)}." if denied else "Work handed to jobs or other hosts is recorded."


def _surface(effective: Effective) -> str:
    words = (("userns", "containers and nested sandboxes"), ("io_uring", "io_uring"), ("sysv_ipc", "System V IPC"))
    closed = [shown for name, shown in words if effective.word(f"kernel.{name}") == "deny"]
    return f"Not here: {', '.join(closed)}." if closed else ""


_LIMITS = (("processes", "processes"), ("open_files", "open files"), ("cpu_seconds", "s of CPU time each"))


def _limits(effective: Effective) -> str:
    given = [f"{effective.number(f'limits.{name}')} {what}" for name, what in _LIMITS
             if effective.number(f"limits.{name}") is not None]  # fmt: skip
    return f"At most {', '.join(given)}." if given else ""


_ROWS: tuple[tuple[str, Callable[[Effective], str]], ...] = (
    ("files", _write),
    ("files", _temporary),
    ("files", _read),
    ("files", _deny),
    ("files", _protect),
    ("bind", _bind),
    ("connect", _connect),
    ("unix-sockets", _sockets),
    ("world-writable", _world_writable),
    ("setuid", _setuid),
    ("pipe-to-shell", _pipe),
    ("kernel-surface", _surface),
    ("limits", _limits),
    ("", _hand_off),
)
"""(control, "" for none; what it says); a control that is not enforced says nothing."""
