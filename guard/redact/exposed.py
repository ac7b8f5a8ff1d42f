"""What an exposure says beyond its place: who could read it, since when, and which line of the file it was.

Found out where the secret stands, by who may look there: the ledger of incidents is elsewhere and can only guess.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from collections import Counter
from contextlib import suppress
from typing import Final

from guard.kernel.mounts import TABLE, mounts
from guard.redact.scan import Scanner
from guard.redact.stream import Sighting, redact_bytes

OWNER, GROUP, UNKNOWN, NODE, OFF_SITE, PUSHED = "owner", "group", "unknown", "node", "off-site", "pushed"

_HOSTED: Final = ("/.claude/", "/.codex/", "/.cursor/", "/.copilot/", "/.gemini/", "/.config/github-copilot/")
"""Folders in which agents of hosted models keep transcripts: what stands there was sent."""

_BASH: Final = re.compile(rb"#(\d{9,11})")
_ZSH: Final = re.compile(rb": (\d{9,11}):\d+;")
_STAMP: Final = re.compile(
    rb'"(?:timestamp|time|ts|created_at)"\s*:\s*"?(\d{4}-\d\d-\d\d[T ][0-9:.]{5,15}(?:Z|[+-]\d\d:?\d\d)?)"?'
)
_GIT_WAIT: Final = 3.0
"""Seconds that git has to say what the upstream branch holds; then it is not known."""


class Surroundings:
    """Tells of each sighting of one run who could read it, when it was put there, and which place it is.

    Args:
        scanner: that of the run; lines are redacted once more before a digest of them is made.
    """

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._seen: Counter[tuple[str, str, str]] = Counter()
        self._audiences: dict[str, str] = {}
        self._upstream: dict[str, bytes] = {}

    def about(self, path: str, sighting: Sighting, identity: str) -> dict[str, object]:
        """Return `audience`, `context`, the owner's `uid`, and if it can be told `happened` (RFC 3339 or seconds).

        Args:
            path: the file, absolute; anything else (a stream) has no audience that could be found.
            sighting: as the stream tells it.
            identity: the secret's fingerprint, "" for none.
        """
        row: dict[str, object] = {
            "audience": self._audience(path, sighting),
            "context": self._context(path, sighting, identity),
        }
        happened = self._happened(path, sighting)
        if happened:
            row["happened"] = happened
        with suppress(OSError):
            row["uid"] = os.stat(path).st_uid if path.startswith("/") else os.geteuid()
        return row

    def _context(self, path: str, sighting: Sighting, identity: str) -> str:
        """Name the line so that it is known again wherever it has moved to: its redacted text, and the how-manieth."""
        line = redact_bytes(sighting.text, self._scanner)
        from hashlib import sha256  # with OpenSSL's library, which a monitor that asks for no file is spared

        digest = sha256(line.strip()).hexdigest()[:16]
        key = (path, identity, digest)
        self._seen[key] += 1
        return f"{digest}-{self._seen[key]}"

    def _happened(self, path: str, sighting: Sighting) -> str | float:
        for pattern, text in ((_ZSH, sighting.text), (_BASH, sighting.before)):
            found = pattern.match(text)
            if found is not None:
                return float(found[1])
        stamp = _STAMP.search(sighting.text)
        if stamp is not None:
            return stamp[1].decode("ascii")
        with suppress(OSError):
            return os.stat(path).st_mtime if path.startswith("/") else ""
        return ""

    def _audience(self, path: str, sighting: Sighting) -> str:
        if not path.startswith("/"):
            return UNKNOWN
        known = self._audiences.get(path)
        if known is None:
            known = self._audiences[path] = OFF_SITE if any(part in path for part in _HOSTED) else readers(path)
        if self._pushed(path, sighting):
            return PUSHED
        return known

    def _pushed(self, path: str, sighting: Sighting) -> bool:
        """Whether the branch's upstream holds the secret in this very file, as git knows it here."""
        value = sighting.span.value
        if len(value) < 8:
            return False
        held = self._upstream.get(path)
        if held is None:
            held = self._upstream[path] = _upstream(path)
        return value in held


def of_arguments(table: str = TABLE) -> str:
    """Return who could read a program's arguments: everybody on the node, unless /proc hides other users' processes.

    `hidepid` of 1 or more (proc(5)) counts where the mount at /proc itself has it.
    """
    try:
        options = [mount.options for mount in mounts(table) if (mount.point, mount.kind) == ("/proc", "proc")]
    except OSError:
        return UNKNOWN
    if not options:
        return UNKNOWN
    return OWNER if re.search(r"hidepid=(?!0|off)", options[-1]) else NODE


def readers(path: str) -> str:
    """Return who may read a file, by the modes of it and of every directory above: owner, group, node or unknown.

    Access lists count by their mask, which the group's bits show (acl(5)): the wider answer where both could be.
    """
    try:
        file = os.stat(path)
        above = []
        folder = os.path.dirname(os.path.realpath(path))
        while True:
            above.append(os.stat(folder))
            if folder == "/":
                break
            folder = os.path.dirname(folder)
    except OSError:
        return UNKNOWN
    if file.st_mode & stat.S_IROTH and all(each.st_mode & stat.S_IXOTH for each in above):
        return NODE
    reachable = all(each.st_mode & (stat.S_IXOTH | stat.S_IXGRP) for each in above)
    if file.st_mode & stat.S_IRGRP and reachable and not _is_private(file.st_gid, file.st_uid):
        return GROUP
    return OWNER


def _is_private(gid: int, uid: int) -> bool:
    """Whether a group has no member but one user, as the group that a login was made with."""
    try:
        entry, account = grp.getgrgid(gid), pwd.getpwuid(uid)
    except KeyError:
        return False
    return not set(entry.gr_mem) - {account.pw_name} and account.pw_gid == gid


def _upstream(path: str) -> bytes:
    """Return what the upstream branch holds under a file's name; nothing where there is none, or git is another's.

    Only in a repository of our own: a repository's configuration names programs, and git starts them.
    """
    folder, name = os.path.split(path)
    top = folder
    while not os.path.exists(os.path.join(top, ".git")):
        if top == "/":
            return b""
        top = os.path.dirname(top)
    try:
        if os.stat(os.path.join(top, ".git")).st_uid != os.geteuid() or os.geteuid() == 0:
            return b""
    except OSError:
        return b""
    import subprocess  # what asks for no file's upstream is spared it

    try:
        done = subprocess.run(  # noqa: S603 - fixed words, and a name that cannot be an option
            ["/usr/bin/git", "-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null", "--no-optional-locks",
             "cat-file", "blob", f"@{{upstream}}:./{name}"],
            cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_WAIT, check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return b""
    return done.stdout if done.returncode == 0 else b""
