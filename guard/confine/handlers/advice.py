"""What a refusal says of itself: why, and what would allow it, by rule; short enough that an agent can act on it.

Constant sentences without a name of anything, so that they may be stored as they are. Where a shipped overlay
opens just what was refused, it is named; `guard explain` asks the whole policy, and knows more.
"""

import _socket
import posix as os
import select

from guard.confine.handlers.addresses import Address, packed

TYPE_CHECKING = False
if TYPE_CHECKING:
    Advice = tuple[str, str]

ASK = "an exception, see `guard explain`"

# rule → (why, what would allow it)
ADVICE: "dict[str, Advice]" = {
    "bind-wildcard": (
        "only loopback may be bound: bound to loopback instead",
        "reach it at 127.0.0.1 or ::1",
    ),
    "bind-address": ("only loopback may be bound", "bind 127.0.0.1 or ::1; else " + ASK),
    "connect-address": (
        "no rule of network.connect has this port and address",
        "a server of this session's own; else " + ASK,
    ),
    "unix-path": ("unix.allow does not name this socket", "a socket below a writable place; else " + ASK),
    "unix-abstract": ("an abstract socket that this session did not make", "a socket by path in a writable place"),
    "world-writable-mode": ("everybody would get the right to write", "a mode without o+w, as 0775"),
    "world-writable-acl": ("everybody would get the right to write", "an entry for a named user or group"),
    "world-writable-inherited": (
        "the directory's default access list lets everybody write", "setfacl -d -m o::rx on that directory"
    ),
    "setuid-mode": ("it would run as its owner for everybody", "a mode without the set-id bits"),
    "metadata-outside": ("it lies outside the writable places", "a copy in the project; else " + ASK),
    "protected-made": ("a protected name that did not exist was made; it was moved aside", "another name"),
    "protected-unwatched": ("protected names that do not exist cannot be watched", "more inotify instances"),
    "task-outside": ("that process is not of this session", "name a process of this session"),
    "pipe-to-shell": ("a download would run unread", "save it, read it, and let a person run it"),
    "downloaded-exec": ("it was downloaded in this session", "read it, and let a person run it"),
    "memory-exec": ("a program without a file would run", "write the program to a file in the project"),
    "caller-unreadable": ("a program that guard cannot read asked for it", "start it from a shell instead"),
    "callers-held-up": (
        "32 callers of this session wait for a file system that does not answer", "wait for that file server"
    ),
    "supervisor-error": ("guard could not judge the call", "report this to the keepers of guard"),
}

# (first port, last port, overlay, whether it opens loopback too), from policies/overlays; tested against them
_PORTS = (
    (22, 22, "git-ssh", False), (2222, 2222, "git-ssh", False), (7999, 7999, "git-ssh", False),
    (29418, 29418, "git-ssh", False), (88, 88, "kerberos", False), (464, 464, "kerberos", False),
    (749, 749, "kerberos", False), (6817, 6820, "slurm-client", True), (27000, 27050, "licences", False),
    (28518, 28518, "licences", False), (1055, 1055, "licences", False), (2325, 2325, "licences", False),
    (1718, 1718, "licences", False), (1999, 1999, "licences", False), (5053, 5053, "licences", False),
    (22350, 22350, "licences", False), (6001, 6001, "licences", False), (6200, 6200, "licences", False),
    (4085, 4085, "licences", False),
)  # fmt: skip
_SOCKETS = (
    ("/run/munge", "slurm-client"), ("/run/slurm", "slurm-client"), ("/run/slurmctld", "slurm-client"),
    ("/run/slurmdbd", "slurm-client"), ("/run/.heim_org.h5l.kcm-socket", "kerberos"),
    ("/run/gssproxy.sock", "kerberos"), ("/var/lib/gssproxy/default.sock", "kerberos"),
    ("/run/nvidia-persistenced", "gpu"), ("/tmp/nvidia-mps", "gpu"),  # noqa: S108 - an overlay's place
)  # fmt: skip


def why(rule: str) -> str:
    """Why a rule refuses; one sentence without a path."""
    return ADVICE.get(rule, ("the policy does not allow it", ""))[0]


def allow(rule: str, what: str, given: str = "") -> str:
    """What would allow what a rule refused.

    Args:
        rule: as in an event.
        what: the act and its object, as the handler says it: `connect 10.0.0.1:22`.
        given: the handler's own text; an overlay that opens just this goes before it.
    """
    named = overlay(rule, what.rpartition(" ")[2])
    if named:
        return f"the overlay {named} opens it"
    return given or ADVICE.get(rule, ("", ASK))[1]


def overlay(rule: str, target: str) -> str:
    """Name the shipped overlay that opens an address or a socket; empty where none does."""
    if rule == "connect-address":
        address = _address(target)
        if address is None or address.is_link_local() or address.is_metadata():
            return ""
        local = address.is_local()
        return next(
            (name for low, high, name, loopback in _PORTS if low <= address.port <= high and (loopback or not local)),
            "",
        )
    if rule == "unix-path":
        return next((name for path, name in _SOCKETS if target == path or target.startswith(path + "/")), "")
    return ""


def _address(text: str) -> "Address | None":
    """Read an address as `Address` writes it."""
    host, _, port = text.rpartition(":")
    family = _socket.AF_INET6 if host.startswith("[") else _socket.AF_INET
    try:
        return Address(family, packed(_socket.inet_pton(family, host.strip("[]")), int(port)))
    except (OSError, ValueError, OverflowError):
        return None


def tell(fd: int, act: str, why: str, allow: str, count: int = 1) -> None:
    """Say a finding to the person at the session's stderr, who asked for it (`--tell`).

    Args:
        fd: the session's stderr. What it cannot take at once is dropped: nobody's reading holds up the tree.
        act: the verdict, the act and its object.
        why, allow: sentences.
        count: how often.
    """
    often = f" ({count} times)" if count > 1 else ""
    lines = [f"{act}{often}", f"  {why}", *([f"  to go on: {allow}"] if allow else [])]
    text = "".join(f"guard: {_plain(line)}\n" for line in lines).encode("utf-8", "replace")
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    try:
        if poll.poll(0):
            os.write(fd, text[:4096])  # PIPE_BUF: taken whole, or not at all
    except OSError:
        return  # nobody is there any more


def _plain(line: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in line)
