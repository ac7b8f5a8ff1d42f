"""Real shells at a terminal: started with guard's history hook, given lines to run, asked what they stored."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from guard.history.install import source
from guard.history.render import hook
from tests.conftest import GUARD, Account
from tests.system.terminal import Terminal

PROMPT = "@@>"

RECORDER = """\
#!/bin/sh
# stands for any program: writes down its arguments as they came
{ printf '%s\\0' "${0##*/}" "$@"; printf '\\n\\0'; } >> "$HOME/ran"
# In the place of what was started: a shell that starts another program as it is hung up on may wait for that one.
case " $* " in *" waits ") exec sleep 60 ;; esac
"""


@dataclass(frozen=True)
class Kind:
    """A shell: what starts it, its start-up file, where its history lies, what shows the history in memory."""

    name: str
    argv: tuple[str, ...]
    startup: str
    setting: str
    stored: str
    recall: str
    write: str


SHELLS: Mapping[str, Kind] = {
    "bash": Kind("bash", ("bash",), ".bashrc", "PS1='@@>'\nHISTSIZE=5000\nbind 'set enable-bracketed-paste off'\n",
                 ".bash_history", "history", "history -w"),
    "zsh": Kind("zsh", ("zsh",), ".zshrc", "PS1='@@>'\nHISTFILE=~/.zsh_history\nHISTSIZE=5000\nSAVEHIST=5000\nunsetopt promptsp promptcr beep\nunset zle_bracketed_paste\n",
                ".zsh_history", "fc -l 1", "fc -W"),
    "fish": Kind("fish", ("fish",), ".config/fish/config.fish", "set -g n 0\nfunction counted --on-event fish_prompt; set -g n (math $n + 1); end\nfunction fish_prompt; echo -n \"@@$n>\"; end\nfunction fish_right_prompt; end\nset -g fish_greeting ''\nset -g fish_autosuggestion_enabled 0\n",
                 ".local/share/fish/fish_history", "history search | cat", "history save"),
    "tcsh": Kind("tcsh", ("tcsh",), ".tcshrc", "set prompt='@@>'\nset history=5000\nset savehist=5000\nunset autologout\nunset correct\n",
                 ".history", "history", "history -S"),
}  # fmt: skip


def prepare(account: Account, kind: Kind, before: str = "", after: str = "", hooked: bool = True) -> Path:
    """A home of the account's for one shell; the hook stands where an installer puts it."""
    home = account.directory(f"home-{kind.name}")
    at = home / "guard-hook"
    for suffix, text in hook(kind.name, GUARD, str(at)).items():
        account.write(home / f"guard-hook{suffix}", text)
    line = f"{source(kind.name, str(at))}\n" if hooked and kind.name != "fish" else f"source {at}\n" if hooked else ""
    account.write(home / kind.startup, before + kind.setting + line + after)
    account.write(home / ".hushlogin")
    account.write(home / ".local/share/fish/generated_completions/.keep")
    for program in ("rec", "mysql", "curl", "docker", "sshpass", "kinit", "psql", "vault", "git", "redis-cli"):
        account.write(home / "bin" / program, RECORDER, 0o755)
    return home


class Shell(Terminal):
    """An interactive shell on a terminal, wide enough that no line wraps.

    Args:
        account: who runs it.
        kind: which.
        home: its HOME.
        env: further variables.
    """

    def __init__(self, account: Account, kind: Kind, home: Path, env: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._prompts = 0
        path = f"{home}/bin:/usr/local/bin:/usr/bin:/bin"
        variables = {"HOME": str(home), "TERM": "dumb", "PATH": path, **(env or {})}
        super().__init__(account, kind.argv, home, variables, (50, 4000))
        self.prompt()

    def prompt(self) -> str:
        """Wait for the next prompt; what was printed before it. fish draws one again and again, so its are numbered."""
        self._prompts += 1
        return self.expect(f"@@{self._prompts}>" if self.kind.name == "fish" else PROMPT, 30)

    def run(self, line: str) -> str:
        """Type a line and wait for the next prompt; what it printed."""
        lines = line.split("\n")
        self.type("\r".join(lines) + "\r")
        return self.prompt()

    def end(self, how: str = "exit") -> None:
        """End it: `exit`, `HUP` (the terminal hangs up) or `KILL`."""
        if how == "exit":
            self.type("exit\r")
        elif how == "HUP":
            self.hang_up()
        else:
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def __enter__(self) -> Shell:
        return self


def ran(home: Path) -> list[list[str]]:
    """The commands that ran: program and arguments of each."""
    path = home / "ran"
    if not path.exists():
        return []
    return [entry.split("\0")[:-1] for entry in path.read_bytes().decode().split("\n\0") if entry]
