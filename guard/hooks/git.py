"""git's hooks: a commit or a push with a secret in it is refused, by the engine that scrubs everything else.

Only what a commit adds is looked at, so that what is in a repository already stops nobody.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

from guard.errors import EXIT_CANNOT, EXIT_FOUND, GuardError
from guard.hooks import blocks

NAMES = ("pre-commit", "pre-push")
ALLOW = b"guard:allow-secret"
"""A line with this word in it passes: a test's fixture, a documented sample."""
_FORM = ("-U0", "--no-color", "--no-ext-diff", "--src-prefix=a/", "--dst-prefix=b/")
_SHELLS = (b"#!/bin/sh", b"#!/bin/bash", b"#!/usr/bin/env bash", b"#!/usr/bin/env sh")


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], capture_output=True, check=False)  # noqa: S603, S607 - git, in its own hook
    if done.returncode:
        raise GuardError(f"git {words[0]}: {done.stderr.decode('utf-8', 'replace').strip()}", "nothing was checked")
    return done.stdout


def added(diff: bytes) -> list[tuple[str, int, bytes]]:
    """Return the lines that a diff adds: (file, line, text).

    Args:
        diff: as `git diff -U0` gives it.
    """
    out = []
    file, number = "", 0
    for line in diff.split(b"\n"):
        if line.startswith(b"+++ "):
            name = line[4:].decode("utf-8", "surrogateescape").strip('"')
            file = name[2:] if name[:2] in ("b/", "w/", "i/") else name
        elif found := re.match(rb"@@ -\S+ \+(\d+)", line):
            number = int(found.group(1))
        elif line.startswith(b"+") and file:
            out.append((file, number, line[1:]))
            number += 1
    return out


def findings(lines: Sequence[tuple[str, int, bytes]]) -> list[tuple[str, int, str]]:
    """Return where secrets stand: (file, line, kind); what may be a placeholder is no incident and passes."""
    from guard.redact.scan import Scanner
    from guard.redact.stream import Sighting, redact_bytes

    scanner = Scanner()
    found = []
    by_file: dict[str, list[tuple[int, bytes]]] = {}
    for file, number, text in lines:
        by_file.setdefault(file, []).append((number, text))
    for file, rows in by_file.items():
        seen: list[Sighting] = []
        redact_bytes(b"".join(text + b"\n" for _, text in rows), scanner, None, "text", seen.append)
        for sighting in seen:
            number, text = rows[min(sighting.line, len(rows)) - 1]
            if ALLOW not in text:
                found.append((file, number, sighting.span.kind))
    return found


def staged() -> bytes:
    """Return what the next commit adds."""
    return _git("diff", "--cached", *_FORM, "--diff-filter=d")


def pushed(updates: bytes, remote: str) -> bytes:
    """Return what a push adds that the remote does not have.

    Args:
        updates: what git gives a pre-push hook: local ref, local id, remote ref, remote id, a line each.
        remote: its name.
    """
    out = []
    for line in updates.decode().splitlines():
        words = line.split()
        if len(words) != 4 or set(words[1]) == {"0"}:
            continue  # a deletion
        known = [f"^{words[3]}"] if set(words[3]) != {"0"} and _has(words[3]) else ["--not", f"--remotes={remote}"]
        for commit in _git("rev-list", words[1], *known).decode().split():
            out.append(_git("show", "--format=", *_FORM, "-m", "--first-parent", commit))
    return b"\n".join(out)


def _has(commit: str) -> bool:
    return subprocess.run(["git", "cat-file", "-e", commit], capture_output=True, check=False).returncode == 0  # noqa: S603, S607


def main(arguments: list[str]) -> int:
    """Run `guard hooks git pre-commit|pre-push [REMOTE URL]`.

    Returns:
        0 nothing found, 1 a secret is about to go in, 3 it could not be looked at: git then refuses, too.
    """
    name = arguments[0] if arguments else ""
    try:
        ends = os.environ.get("PRE_COMMIT_FROM_REF"), os.environ.get("PRE_COMMIT_TO_REF")
        if ends[0] and ends[1]:  # the pre-commit framework at a push
            diff = pushed(f"x {ends[1]} x {ends[0]}\n".encode(), os.environ.get("PRE_COMMIT_REMOTE_NAME", "origin"))
        elif name == "pre-push":
            diff = pushed(sys.stdin.buffer.read(), arguments[1] if len(arguments) > 1 else "origin")
        else:
            diff = staged()
        found = findings(added(diff))
    except (GuardError, OSError) as error:
        sys.stderr.write(f"guard: {error}\n")
        return EXIT_CANNOT
    for file, number, kind in found[:20]:
        sys.stderr.write(f"guard: {file}:{number}: {kind}\n")
    if found:
        verb = "pushed" if name == "pre-push" else "committed"
        sys.stderr.write(
            f"guard: {len(found)} secret{'s' * (len(found) > 1)} would be {verb}. Take it out, and change it where it"
            f" is used if it was real; a line that only looks like one gets `{ALLOW.decode()}` behind it\n"
        )
    return EXIT_FOUND if found else 0


def _folder(project: str) -> str:
    done = subprocess.run(  # noqa: S603 - git, in the user's own project
        ["git", "-C", project, "rev-parse", "--path-format=absolute", "--git-path", "hooks"],  # noqa: S607
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise GuardError(f"{project} is in no git repository", "change to one")
    return done.stdout.strip()


def install(project: str, guard: str) -> list[str]:
    """Put our line into a repository's hooks, behind what is there, and return those that changed."""
    changed = []
    folder = _folder(project)
    for name in NAMES:
        path = os.path.join(folder, name)
        there = blocks.read(path)
        if there is not None and not there.startswith(_SHELLS):
            raise GuardError(f"{path} is no shell script", f"call `{guard} hooks git {name} \"$@\"` from it")
        if there is None:
            text = f'#!/bin/sh\n# made by `guard hooks install git`\nexec {guard} hooks git {name} "$@"\n'
            blocks.write(path, text.encode(), 0o755)
            changed.append(path)
        elif b"hooks git " + name.encode() not in there:
            # In front: what is there may end in `exec`. A pre-push hook's input is read once, so both get a copy.
            first, _, rest = there.partition(b"\n")
            blocks.write(path, first + b"\n" + _lines(guard, name) + rest)
            changed.append(path)
    return changed


def _lines(guard: str, name: str) -> bytes:
    call = f'{guard} hooks git {name} "$@"'
    body = f"{call} || exit $?\n"
    if name == "pre-push":
        body = (
            f"guard_updates=$(cat)\nprintf '%s\\n' \"$guard_updates\" | {call} || exit $?\n"
            'if [ -n "$guard_updates" ]; then exec <<guard_end\n$guard_updates\nguard_end\nfi\n'
        )
    return f"# >>> guard git >>>\n{body}# <<< guard git <<<\n".encode()


def uninstall(project: str) -> list[str]:
    """Take our lines out again and return the hooks that changed."""
    changed = []
    folder = _folder(project)
    for name in NAMES:
        path = os.path.join(folder, name)
        there = blocks.read(path)
        if there is None:
            continue
        if b"# made by `guard hooks install git`\n" in there:
            os.unlink(path)
            changed.append(path)
        elif b"# >>> guard git >>>\n" in there:
            blocks.write(path, re.sub(rb"(?s)# >>> guard git >>>\n.*?# <<< guard git <<<\n", b"", there))
            changed.append(path)
    return changed
