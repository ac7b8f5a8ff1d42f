"""What a sender may say, and what is put in its place: nobody speaks for another host, user or tree.

The service is the authority on `host`, `boot`, `origin` and on whose a tree is. What an ordinary user sends is a
claim about that user alone: it goes through the redactor again, its user is the one the kernel names, its session
and producer are his own or none, and its id is bound to him, so that no claim can take another event's place. A
peer inside a guarded tree tells exposures of its own session and nothing else.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Final

from guard.errors import EventError
from guard.events import peers
from guard.events.mitre import techniques
from guard.events.model import CONTROLS, MESSAGE_MOST, VERDICTS
from guard.events.names import Names
from guard.events.peers import Peer
from guard.events.producer import rfc3339
from guard.events.wire import LINE_MOST, check, parse, table
from guard.redact.scan import Scanner
from guard.redact.stream import redact_bytes

USER_LINE_MOST: Final = 64 << 10
POLICY_MOST: Final = 128
SKEW: Final = 60
"""Seconds that a sender's clock may be ahead."""
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# The same few of each stand in nearly all events; what is kept of the longest lines is 8 MiB.
_is_rule: Final = lru_cache(128)(re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}").fullmatch)
_is_producer: Final = lru_cache(128)(re.compile(r"[a-z][A-Za-z0-9:._@+-]{0,79}").fullmatch)
_is_mitre: Final = lru_cache(128)(re.compile(r"TA?\d{4}(\.\d{3})?").fullmatch)
_HARNESS: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
_KNOWN: Final = frozenset(CONTROLS)


@dataclass(frozen=True)
class Node:
    """The node that accepts.

    Args:
        host, boot: of the node.
        owner: the uid the service runs as; a user's own service takes that user's events only.
        clock: nanoseconds since 1970.
        names: of users.
    """

    host: str
    boot: str
    owner: int
    clock: Callable[[], int]
    names: Names


class Sessions:
    """The sessions that were told of: whose they are, and which harness runs in them.

    The first who names a session has it: its id is 74 random bits that nobody else knows before.

    Args:
        known: session → (uid, harness, root_pid).
        most: of one user; the least recently named of his makes way.

    Attributes:
        changed: sessions that are new or forgotten since somebody emptied it.
    """

    def __init__(self, known: Mapping[str, tuple[int, str, int]] | None = None, most: int = 2000) -> None:
        self.known = dict(known or {})
        self.changed: set[str] = set()
        self._most = most
        self._by_uid: dict[int, OrderedDict[str, None]] = {}
        self._asked: tuple[int, int, tuple[str, str, int]] | None = None
        for session, (uid, _, _) in self.known.items():
            self._by_uid.setdefault(uid, OrderedDict())[session] = None

    def claim(self, session: str, uid: int, harness: str, root_pid: int) -> tuple[str, int] | None:
        """Name a session; returns its harness and root, or None where it is another user's."""
        found = self.known.get(session)
        his = self._by_uid.setdefault(uid, OrderedDict())
        if found is None:
            self._asked = None
            self.known[session] = found = (uid, harness, root_pid)
            self.changed.add(session)
            his[session] = None
            if len(his) > self._most:
                oldest, _ = his.popitem(last=False)
                del self.known[oldest]
                self.changed.add(oldest)
        if found[0] != uid:
            return None
        his.move_to_end(session)
        return found[1], found[2]

    def above(self, pid: int, uid: int) -> tuple[str, str, int]:
        """The session that a process runs in by its ancestors: (session, harness, root_pid), or empty."""
        # One peer asks for each of its lines.
        if self._asked is None or self._asked[:2] != (pid, uid):
            self._asked = pid, uid, self._look(pid, uid)
        return self._asked[2]

    def _look(self, pid: int, uid: int) -> tuple[str, str, int]:
        roots = {self.known[session][2]: session for session in self._by_uid.get(uid, ())}
        for each in peers.ancestors(pid):
            if each in roots:
                return roots[each], self.known[roots[each]][1], each
        return "", "", 0


class Redactor:
    """Passes lines of JSON through the redactor, many at once."""

    def __init__(self) -> None:
        self._scanner = Scanner()
        self._scanner.engine(1 << 20)

    def lines(self, lines: Sequence[bytes]) -> list[bytes]:
        """The same lines without secrets; each stays one line of JSON."""
        if not lines:
            return []
        clean = redact_bytes(b"\n".join(lines) + b"\n", self._scanner, None, "jsonl")
        found = clean.split(b"\n")[:-1]
        if len(found) == len(lines):
            return found
        # A line that swallowed another's end is no event anyway; alone each stays what it is.
        return [redact_bytes(line, self._scanner, None, "jsonl") for line in lines]


def accept(line: bytes, peer: Peer, node: Node, sessions: Sessions, *, adopted: bool = False) -> dict[str, object]:
    """Make of a line the event that the node answers for.

    Args:
        line: as it came; of anybody but root already through the redactor.
        peer: who sent it.
        node: who accepts it.
        sessions: known ones; the line may add its own.
        adopted: whether it was read from the user's own file: it may be of an earlier boot.

    Raises:
        EventError: it is no event, or the peer may not say this.
    """
    if len(line) > (LINE_MOST if peer.is_root else USER_LINE_MOST):
        raise EventError("a line of this length is no event", f"at most {USER_LINE_MOST} bytes")
    whole = parse(line)
    check(whole)
    _check_words(whole)
    whole["host"] = node.host
    if peer.is_root:
        return _of_root(whole, node)
    if node.owner not in (0, peer.uid):
        raise EventError("this service is another user's", "hand it to the node's")
    claimed = str(whole["id"])
    tree = table(whole, "tree")
    if peer.inside:
        if whole["control"] != "exposure" or str(whole["rule"]).startswith("incident-"):
            raise EventError("from inside a session only exposures are taken", "what happens in it is told by others")
        session, harness, root = sessions.above(peer.pid, peer.uid)
        whole["policy"], whole["verdict"] = {"name": "", "digest": ""}, "observed"
        whole["process"] = {"pid": peer.pid, "ppid": 0, "exe": "", "argv": [], "argc": 0, "cwd": ""}
        job = None
    else:
        policy = table(whole, "policy")
        whole["policy"] = {name: str(policy.get(name, ""))[:POLICY_MOST] for name in ("name", "digest")}
        session, harness, root = _own_tree(tree, peer, sessions)
        job = tree.get("slurm_job_id")
    whole["tree"] = {
        "session": session, "harness": harness, "root_pid": root, "uid": peer.uid, "user": node.names.user(peer.uid),
    }  # fmt: skip
    if isinstance(job, int) and 0 < job < 1 << 63:
        whole["tree"] = {**table(whole, "tree"), "slurm_job_id": job}
    whole["producer"] = _own_producer(str(whole.get("producer", "")), session, peer)
    boot = str(whole.get("boot", ""))
    whole["boot"] = boot if adopted and _UUID.fullmatch(boot) else node.boot
    whole["origin"] = "user"
    whole["id"] = bound_id(claimed, node.host, peer.uid)
    _bound_time(whole, node)
    return whole


def _check_words(whole: dict[str, object]) -> None:
    if whole["control"] not in _KNOWN:
        raise EventError(f"no control {str(whole['control'])[:40]!r}", f"known are {', '.join(CONTROLS)}")
    if not _is_rule(str(whole["rule"])):
        raise EventError("the rule's name is no word", "small letters, digits and ._+-")
    if whole.get("verdict", "observed") not in VERDICTS:
        raise EventError(f"no verdict {str(whole['verdict'])[:40]!r}", f"known are {', '.join(VERDICTS)}")
    mitre = whole.get("mitre")
    named = [each for each in mitre if isinstance(each, str) and _is_mitre(each)] if mitre else []  # type: ignore[attr-defined]
    whole["mitre"] = named[:16] or list(techniques(str(whole["control"]), str(whole["rule"])))
    whole["message"] = " ".join(str(whole.get("message", "")).split())[:MESSAGE_MOST]
    whole["schema"] = 1


def _of_root(whole: dict[str, object], node: Node) -> dict[str, object]:
    if whole.get("origin") not in ("kernel", "service", "user"):
        whole["origin"] = "service"
    if not whole.get("boot"):
        whole["boot"] = node.boot
    if not _is_producer(str(whole.get("producer", ""))):
        whole["producer"] = "root"
    _bound_time(whole, node)
    return whole


def _own_tree(tree: Mapping[str, object], peer: Peer, sessions: Sessions) -> tuple[str, str, int]:
    """Of a claimed tree what can be the user's: his session, its harness, a process of his."""
    session, harness = str(tree.get("session", "")), str(tree.get("harness", ""))
    root = tree.get("root_pid")
    root = root if isinstance(root, int) and not isinstance(root, bool) and root > 0 else 0
    if root and peers.owner_of(root) not in (peer.uid, -1):
        root = 0
    harness = harness if _HARNESS.fullmatch(harness) else ""
    if not _UUID.fullmatch(session):
        return "", harness, root
    known = sessions.claim(session, peer.uid, harness, root)
    if known is None:
        return "", "", 0
    return session, known[0], known[1] or root


def _own_producer(claimed: str, session: str, peer: Peer) -> str:
    if not peer.inside and session and claimed == f"run:{session}":
        return claimed
    if claimed == f"redact:{peer.uid}":
        return claimed
    return f"inside:{peer.uid}" if peer.inside else f"user:{peer.uid}"


def bound_id(claimed: str, host: str, uid: int) -> str:
    """The id of a user's claim: its time, and bits that only this user on this node gets for what was claimed.

    The same claim has the same id again, so that it is one event however often it is sent; an id that was seen
    in somebody else's event, or in one of another origin, becomes another.
    """
    digest = sha256(f"{host}\n{uid}\n{claimed}".encode()).hexdigest()
    variant = "89ab"[int(digest[3], 16) & 3]
    return f"{claimed[:13]}-7{digest[:3]}-{variant}{digest[4:7]}-{digest[7:19]}"


def _bound_time(whole: dict[str, object], node: Node) -> None:
    """A time that is none, or that lies ahead, becomes the time of acceptance."""
    text = str(whole["time"])
    now = node.clock()
    if _TIME.fullmatch(text):
        try:
            when = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text).timestamp()
        except ValueError:
            when = -1.0
        if 0 <= when <= now / 1e9 + SKEW:
            if not text.endswith("Z"):
                whole["time"] = rfc3339(int(when * 1e6) * 1000)
            return
    whole["time"] = rfc3339(now)
