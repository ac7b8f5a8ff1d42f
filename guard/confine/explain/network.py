"""bind, connect and unix: which addresses and sockets a session has."""

from __future__ import annotations

import os
import re
import socket
import stat
import threading
from dataclasses import replace

from guard.confine.explain.answer import ALLOWED, DENIED, REWRITTEN, Answer, UnfitError
from guard.confine.explain.files import pattern, widen
from guard.confine.explain.session import KERNEL, MASKED, ORDINARY, SUPERVISOR, Entry, Session
from guard.confine.handlers.addresses import Address, packed
from guard.confine.handlers.network import in_network
from guard.kernel import diag
from guard.policy.model import BindAllow
from guard.policy.status import bind_ports, connect_ports

_DNS = 53
_PATIENCE = 3.0  # seconds for a name: a name service may not answer


def addresses(text: str) -> list[Address]:
    """Read ADDR:PORT; a name stands for all its addresses.

    Args:
        text: `127.0.0.1:80`, `[::1]:80`, `localhost:80`; `:80` and `*:80` are every address of the host.

    Raises:
        UnfitError: it is none, or the name is not known.
    """
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]*)\]|([^:\s]*)):(\d{1,5})", text)
    if not found or int(found[3]) > 65535:
        raise UnfitError(f"{text!r} is no ADDR:PORT; write one such as 127.0.0.1:8080 or [::1]:8080")
    host, port = found[1] or found[2] or "0.0.0.0", int(found[3])  # noqa: S104 - asked about, not bound
    host = "0.0.0.0" if host == "*" else host.partition("%")[0]  # noqa: S104 - the same
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return [Address(family, packed(socket.inet_pton(family, host), port))]
        except OSError:
            continue
    return [Address(family, packed(socket.inet_pton(family, name), port)) for family, name in _looked_up(host)]


def _looked_up(host: str) -> list[tuple[int, str]]:
    """Ask the name service, for so long."""
    found: list[tuple[int, str]] = []

    def ask() -> None:
        try:
            for family, _, _, _, name in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
                if family in (socket.AF_INET, socket.AF_INET6):
                    found.append((family, str(name[0]).partition("%")[0]))
        except (OSError, UnicodeError):
            return  # said below

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_PATIENCE)
    if not found:
        raise UnfitError(f"{host} has no address here; write a number such as 127.0.0.1")
    return list(dict.fromkeys(found))


def _own(session: Session, inode: int) -> bool:
    """Whether a socket is the session's: inside one, /proc shows descriptors of its own processes alone."""
    if not session.here.inside:
        return False
    wanted = f"socket:[{inode}]"
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            held = os.listdir(f"/proc/{process}/fd")
        except OSError:
            continue
        for fd in held:
            try:
                if os.readlink(f"/proc/{process}/fd/{fd}") == wanted:
                    return True
            except OSError:
                continue
    return False


# bind ---------------------------------------------------------------------------------------------------


def bind(session: Session, address: Address) -> Answer:
    """Bind a TCP socket and listen on it."""
    real = str(address)
    if "bind" in session.calls and session.modes["bind"] == "enforce":
        answer = _bind_supervised(session, address)
    elif session.net["bind"]:
        answer = _bind_by_port(session, address)
    elif session.modes["bind"] != "enforce":
        answer = Answer(ALLOWED, "bind", "the policy lets any address be bound", entry=session.setting("network.bind"))
    else:
        unseen = f"NOT HELD here: {session.here.host.landlock_reason or 'this kernel has no rules for ports'}"
        answer = Answer(ALLOWED, "bind", "nothing holds it here", unseen=unseen)
    if answer.verdict != DENIED and 0 < address.port < session.here.first_port:
        why = f"guard aside: ports below {session.here.first_port} take a right that no session has"
        return Answer(DENIED, "bind", why, ORDINARY, real=real)
    return replace(answer, real=real)


def _bind_supervised(session: Session, address: Address) -> Answer:
    word = session.effective.word("network.bind")
    setting = session.setting("network.bind")
    if word == "loopback" and address.is_loopback():
        return Answer(ALLOWED, "bind", "loopback may be bound", entry=setting)
    others: list[BindAllow] = []
    for entry in session.effective.bind_allow():
        if not any(low <= address.port <= high for low, high in entry.ports):
            continue
        host = _within(address, entry.addr)
        if host is None:
            continue
        if not entry.exec:
            found = session.setting("network.bind_allow", entry)
            if host:
                return Answer(REWRITTEN, "bind", f"bound to {host} instead of every address", SUPERVISOR, found)
            return Answer(ALLOWED, "bind", "an entry of bind_allow has this address and port", entry=found)
        others.append(entry)
    unseen = f"except for {others[0].exec}, by bind_allow" if others else ""
    if word == "loopback" and address.is_wildcard():
        why = "bound to loopback instead of every address"
        return Answer(REWRITTEN, "bind", why, SUPERVISOR, setting, unseen)
    why = "only loopback may be bound" if word == "loopback" else "nothing may be bound"
    return Answer(DENIED, "bind", why, SUPERVISOR, setting, unseen, _bind_widen(address))


def _within(address: Address, network: str) -> str | None:
    """Return "" where an address lies in a network, one of the host's where a wildcard is cut down to it, else None."""
    raw = in_network(address, network, True)
    if not raw:
        return None
    return "" if raw == address.raw() else str(Address(address.family, raw)).rpartition(":")[0]


def _bind_widen(address: Address) -> dict[str, object]:
    if not address.port:
        return {}
    where = "loopback" if address.is_loopback() else "any" if address.is_wildcard() else _network(address)
    return {"network.bind_allow": [{"addr": where, "ports": [address.port], "reason": "REASON"}]}


def _network(address: Address) -> str:
    four = address.v4()
    if four is not None:
        return f"{socket.inet_ntop(socket.AF_INET, four)}/32"
    return f"{socket.inet_ntop(socket.AF_INET6, address.host)}/128"


def _bind_by_port(session: Session, address: Address) -> Answer:
    for entry, ports in bind_ports(session.effective):
        if address.port in ports:
            found = session.setting("network.bind_allow", entry)
            return Answer(ALLOWED, "bind", "an entry of bind_allow has this port", entry=found)
    word = session.effective.word("network.bind")
    unseen = "without a supervisor loopback is not told from other addresses" if word == "loopback" else ""
    why = "no TCP port may be bound"
    return Answer(DENIED, "bind", why, KERNEL, session.setting("network.bind"), unseen, _bind_widen(address))


# connect ------------------------------------------------------------------------------------------------


def connect(session: Session, address: Address) -> Answer:
    """Connect a TCP socket."""
    if session.effective.connect() is None or session.modes["connect"] != "enforce":
        why = "the policy lets any address be connected to"
        return Answer(ALLOWED, "connect", why, entry=session.setting("network.connect", "any"), real=str(address))
    if "connect" in session.calls:
        answer = _connect_supervised(session, address)
    elif session.net["connect"]:
        answer = _connect_by_port(session, address)
    else:
        unseen = f"NOT HELD here: {session.here.host.landlock_reason or 'this kernel has no rules for ports'}"
        answer = Answer(ALLOWED, "connect", "nothing holds it here", unseen=unseen)
    return replace(answer, real=str(address))


def _connect_supervised(session: Session, address: Address) -> Answer:
    if address.port == _DNS and address.destination() in session.here.name_servers:
        return Answer(ALLOWED, "connect", "it is a name server of this host")
    deciding: Entry = session.setting("network.connect")
    why = "no rule of network.connect has this port"
    for rule in session.effective.connect() or ():
        if not any(low <= address.port <= high for low, high in rule.ports) or not address.arrives_in(rule.to):
            continue
        found = session.setting("network.connect", rule)
        left_out = next(filter(address.arrives_in, rule.except_), "")
        if not left_out:
            return Answer(ALLOWED, "connect", "a rule of network.connect has this address and port", entry=found)
        deciding, why = found, f"the rule for this port leaves out {left_out}"
    unseen, to = "", _network(address)
    if address.is_local():
        unseen, to = "open to the session where it listens itself", "loopback"
        if not _others(session, address):
            why = "of loopback, what the session serves is open to it; nobody else listens there"
            return Answer(ALLOWED, "connect", why, entry=deciding)
    return Answer(DENIED, "connect", why, SUPERVISOR, deciding, unseen, _connect_widen(address, to))


def _others(session: Session, address: Address) -> bool:
    """Whether somebody outside of the session would answer at a loopback address."""
    host = address.destination()
    if not address.port:
        return False
    # Inside, descriptors in /proc tell inodes, and no cookies.
    bound = diag.bound_by_proc if session.here.inside else diag.bound
    found = diag.receivers(bound(socket.SOCK_STREAM, address.port), host)
    return any(not _own(session, -one[1]) for one in found)


def _connect_widen(address: Address, to: str) -> dict[str, object]:
    if not address.port or address.is_link_local() or address.is_metadata():
        return {}  # nobody's business
    return {"network.connect": [{"ports": [address.port], "to": to}]}


def _connect_by_port(session: Session, address: Address) -> Answer:
    if address.port == _DNS:
        return Answer(ALLOWED, "connect", "the port of name servers is open")
    for rule, ports in connect_ports(session.effective):
        if address.port in ports:
            narrow = rule.to != "any" or rule.except_
            unseen = "NOT HELD here: the rule's addresses need the supervisor" if narrow else ""
            found = session.setting("network.connect", rule)
            return Answer(ALLOWED, "connect", "a rule of network.connect has this port", "", found, unseen)
    why, more = "no rule of network.connect has this port", _connect_widen(address, "any")
    return Answer(DENIED, "connect", why, KERNEL, session.setting("network.connect"), "", more)


# unix ---------------------------------------------------------------------------------------------------

_FREE = "NOT HELD here: to judge sockets by path needs the supervisor"


def unix(session: Session, path: str) -> Answer:
    """Connect to a unix stream socket by path, or by `@name` to an abstract one."""
    if path.startswith("@"):
        return _abstract(session, path)
    real = os.path.realpath(path)
    if session.files and session.hidden(real):
        denies = session.entry("files.deny", real)
        more = widen(session, real, "files.read", denies)
        return Answer(DENIED, "files", "the policy denies this place", MASKED, denies, "", more, real)
    named = session.entry("unix.allow", real)
    on = session.modes["unix-sockets"] == "enforce"
    if on and "connect" in session.calls and not named:
        refused = _foreign(session, real)
        if refused:
            unseen = "it can still be seen to exist (stat)" if not session.masked else ""
            setting, more = session.setting("unix.allow"), {"unix.allow": [pattern(session, real)]}
            return Answer(DENIED, "unix-sockets", refused, SUPERVISOR, setting, unseen, more, real)
    if os.path.lexists(real) and not os.access(real, os.W_OK):
        return Answer(DENIED, "unix-sockets", "guard allows it; its mode does not", ORDINARY, named, real=real)
    if not on:
        why = f"the control unix-sockets is {session.modes['unix-sockets']}"
        return Answer(ALLOWED, "unix-sockets", why, entry=session.setting("controls.unix_sockets"), real=real)
    unseen = _FREE if not named and "connect" not in session.calls else ""
    why = "unix.allow names it" if named else "only the session itself can listen there"
    why = "nothing holds it here" if unseen else why
    return Answer(ALLOWED, "unix-sockets", why, "", named, unseen, real=real)


def _foreign(session: Session, real: str) -> str:
    """Why the supervisor refuses a socket that no policy names, "" if it does not."""
    outside = "" if session.may_write(real) else "unix.allow does not name it, and the session could not have made it"
    try:
        about = os.stat(real)
    except OSError:
        return outside  # there is nothing yet: what the session makes there is its own
    if not stat.S_ISSOCK(about.st_mode):
        return outside
    listeners = _listeners(session, real, about)
    if not listeners:
        return outside
    mine = all(_own(session, inode) for inode in listeners)
    return "" if mine else "unix.allow does not name it, and somebody outside listens there"


def _listeners(session: Session, real: str, about: os.stat_result) -> list[int]:
    """Return the sockets that are bound to a file; inside a session by name, for no more can be seen there."""
    if not session.here.inside:
        return [mark for mark, _, inode, device in diag.unix_sockets() if diag.is_at(about, inode, device)]
    return [inode for inode, name in _named() if os.path.join(os.path.dirname(real), name) == real]


def _named() -> list[tuple[int, str]]:
    """Return (inode, name) of every unix socket that has one (proc(5), net/unix)."""
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as table:
        rows = [line.rstrip("\n").split(maxsplit=7) for line in table][1:]
    return [(int(row[6]), row[7]) for row in rows if len(row) == 8]


def _abstract(session: Session, name: str) -> Answer:
    if session.modes["unix-sockets"] != "enforce":
        why = f"the control unix-sockets is {session.modes['unix-sockets']}"
        return Answer(ALLOWED, "unix-sockets", why, entry=session.setting("controls.unix_sockets"), real=name)
    setting = session.setting("unix.abstract")
    layer = SUPERVISOR if "connect" in session.calls else KERNEL if session.abstract else ""
    if not layer:
        unseen = "" if setting.value == "allow" else "NOT HELD here: this kernel does not tell abstract sockets apart"
        return Answer(ALLOWED, "unix-sockets", "nothing holds it here", "", setting, unseen, real=name)
    others = [inode for inode, each in _named() if each == name and not _own(session, inode)]
    if not others:
        why = "of abstract sockets the session has its own; nobody else listens there"
        return Answer(ALLOWED, "unix-sockets", why, entry=setting, real=name)
    unseen = "one that the session made itself is open to it"
    more = {"unix.abstract": "allow"}
    return Answer(DENIED, "unix-sockets", "a socket made outside of the session", layer, setting, unseen, more, name)
