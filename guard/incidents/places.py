"""Which places still hold a secret: each file read as its owner, the bytes judged here.

The child that reads has become the owner and holds no key of the site's; it hands over bytes and nothing else.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote
from typing import Final

from guard.incidents.ledger import Secret, Sighting
from guard.redact.marking import Marks
from guard.redact.scan import Scanner
from guard.redact.stream import READ, Redactor
from guard.redact.stream import Sighting as Seen

DEADLINE: Final = 30.0
"""Seconds for one file: a network file system that hangs holds up one answer, not all."""
LIMIT: Final = 2 << 30


@dataclass(frozen=True, slots=True)
class Place:
    """One place and what was found there.

    Args:
        sighting: the place as the ledger has it.
        state: `holds`, `clean`, `gone`, `unreadable`, `elsewhere` (another host), `ended` (a command's arguments).
        lines: where the secret stands now.
        scrub: the command that takes it out, run by the owner; "" where none is needed.
    """

    sighting: Sighting
    state: str
    lines: tuple[int, ...]
    scrub: str


def of(secret: Secret, host: str, *, check: bool) -> list[Place]:
    """Return the places of a secret, one a file.

    Args:
        secret: as the ledger has it.
        host: this host's name.
        check: whether the files of this host are read again.
    """
    marks = Marks()
    if check:
        marks.prepare()
    found: dict[tuple[str, str, int], Place] = {}
    for sighting in secret.sightings:
        key = (sighting.host, sighting.path, sighting.uid)
        if key in found:
            continue
        if sighting.source == "argv":
            found[key] = Place(sighting, "ended", (), "")
            continue
        scrub = f"guard redact --in-place {quote(sighting.path)}"
        if sighting.host != host:
            found[key] = Place(sighting, "elsewhere", (), scrub)
        elif not check:
            found[key] = Place(sighting, "unchecked", (), scrub)
        else:
            state, lines = _look(sighting, secret, marks)
            found[key] = Place(sighting, state, lines, scrub if state == "holds" else "")
    return list(found.values())


def _look(sighting: Sighting, secret: Secret, marks: Marks) -> tuple[str, tuple[int, ...]]:
    names = {value for key, value in secret.names if key}
    lines: list[int] = []

    def observe(seen: Seen) -> None:
        identity = marks.identity(seen.span)
        values = (identity.fingerprint, *(value for _, value in identity.former)) if identity is not None else ()
        # A holder knows the first digits alone, which are whole for who keeps the ledger.
        same = any(value.startswith(name) for value in values for name in names)
        # Without a fingerprint the kind is all there is to go by: it may be another password of the same owner.
        if same or (not names and seen.span.kind == sighting.kind):
            lines.append(seen.line)

    redactor = Redactor(Scanner(), None, "auto", observe)
    try:
        for part in _read_as(sighting.uid, sighting.path):
            redactor.feed(part)
    except FileNotFoundError:
        return "gone", ()
    except OSError:
        return "unreadable", ()
    redactor.finish()
    return ("holds" if lines else "clean"), tuple(lines)


def _read_as(uid: int, path: str) -> Iterator[bytes]:
    """Read a file as its owner, at most `LIMIT` bytes within `DEADLINE`.

    Raises:
        FileNotFoundError: it is no more.
        OSError: the owner cannot read it, or it took too long.
    """
    if uid < 0:
        raise PermissionError("whose it is is not known")  # never with root's rights instead
    identity: dict[str, object] = {}
    if os.geteuid() == 0 and uid > 0:
        try:
            account = pwd.getpwuid(uid)
        except KeyError:
            raise PermissionError(f"no account {uid}") from None
        groups = os.getgrouplist(account.pw_name, account.pw_gid)
        identity = {"user": uid, "group": account.pw_gid, "extra_groups": groups}
    # `head` opens one file and copies it: no code of ours runs with the owner's rights.
    child = subprocess.Popen(  # noqa: S603 - a fixed program, a path behind --
        ["/usr/bin/head", "-c", str(LIMIT), "--", path],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", env={"LC_ALL": "C"},
        start_new_session=True, **identity,
    )  # type: ignore[call-overload]  # fmt: skip
    try:
        yield from _parts(child)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        child.stderr.close()


def _parts(child: subprocess.Popen[bytes]) -> Iterator[bytes]:
    import selectors
    import time

    assert child.stdout is not None  # noqa: S101 - both are pipes
    assert child.stderr is not None  # noqa: S101
    end = time.monotonic() + DEADLINE
    complaint = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        selector.register(child.stderr, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("it took too long to read")
            for key, _ in ready:
                part = os.read(key.fd, READ)
                if not part:
                    selector.unregister(key.fileobj)
                elif key.fileobj is child.stdout:
                    yield part
                else:
                    complaint = (complaint + part)[:4096]
    if complaint:
        kind = FileNotFoundError if b"No such file" in complaint else PermissionError
        raise kind(complaint.decode("utf-8", "replace").strip())
