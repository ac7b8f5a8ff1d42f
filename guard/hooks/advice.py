"""What a command would meet under the policy in force: advice before it runs, the kernel's word when it does."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator

Act = tuple[str, tuple[str, ...]]
MOST = 8
"""Acts of one command that are asked about."""

_TARGET = {"cp": -1, "mv": -1, "ln": -1, "install": -1}
_EACH = ("touch", "mkdir", "rm", "rmdir", "tee", "truncate", "shred")
_READS = ("cat", "less", "head", "tail", "source", ".", "base64", "xxd")
_PIPED = re.compile(
    r"\b(?:curl|wget)\b[^|;&]*\|\s*(?:sudo\s+)?(?:ba|z|da|k)?sh\b|\b(?:ba|z|da)?sh\b[^;&|]*<\(\s*(?:curl|wget)\b"
)
_REDIRECT = re.compile(r"(?<![0-9&<>=-])(?:[12&]?>{1,2}\|?)\s*([^\s;&|<>()]+)")


def acts(command: str, cwd: str) -> list[Act]:
    """Return what a command line asks for that a policy speaks of; what is not understood is left out.

    Args:
        command: one command line of a shell.
        cwd: where it runs.
    """
    found: dict[Act, None] = {}
    for target in _REDIRECT.findall(command):
        found[("write", (_path(target.strip("'\""), cwd),))] = None
    for words in _commands(command):
        for act in _of(words, cwd):
            found[act] = None
    return list(found)[:MOST]


def pipes_to_shell(command: str) -> bool:
    """Say whether a download goes straight into a shell."""
    return _PIPED.search(command) is not None


def _commands(command: str) -> Iterator[list[str]]:
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return  # a here-document, an open quote: the shell will know
    part: list[str] = []
    for word in [*words, ";"]:
        if word and set(word) <= set(";|&()"):
            if part:
                yield part
            part = []
        else:
            part.append(word)


def _of(words: list[str], cwd: str) -> Iterator[Act]:
    while words and ("=" in words[0].split("/")[0] or os.path.basename(words[0]) in ("sudo", "env", "time", "nohup")):
        words = words[1:]
    if not words:
        return
    name = os.path.basename(words[0])
    plain = [word for word in words[1:] if not word.startswith("-") and not set(word) & set("<>*?$`")]
    if name == "chmod" and len(plain) > 1:
        for path in plain[1:]:
            yield "chmod", (plain[0], _path(path, cwd))
    elif name in _TARGET and len(plain) > 1:
        yield "write", (_path(plain[-1], cwd),)
    elif name in _EACH:
        for path in plain:
            yield "write", (_path(path, cwd),)
    elif name in _READS:
        for path in plain:
            yield "read", (_path(path, cwd),)


def _path(word: str, cwd: str) -> str:
    return os.path.normpath(os.path.join(cwd, os.path.expanduser(word)))
