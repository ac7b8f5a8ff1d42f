"""bind, connect and unix: which addresses and sockets a session has."""

from __future__ import annotations

import os
import re
import socket
import struct
import threading

from guard.confine import places
from guard.confine.explain.answer import ALLOWED, DENIED, REWRITTEN, Answer, UnfitError
from guard.confine.explain.files import _widen
from guard.confine.explain.session import KERNEL, MASKED, ORDINARY, SUPERVISOR, Entry, Session
from guard.confine.handlers.addresses import Address
from guard.policy.model import BindAllow, ConnectRule
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
            return [_address(family, socket.inet_pton(family, host), port)]
        except OSError:
            continue
    return [_address(family, socket.inet_pton(family, name), port) for family, name in _looked_up(host)]


def _address(family: int, host: bytes, port: int) -> Address:
    head = struct.pack("=H", family) + port.to_bytes(2, "big")
    return Address(family, head + host + bytes(8) if len(host) == 4 else head + bytes(4) + host + bytes(4))


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


def name_servers(file: str = "/etc/resolv.conf") -> frozenset[bytes]:
    """Return the addresses of the servers that resolv.conf(5) names; the local one where it names none."""
    try:
        with open(file, encoding="ascii", errors="replace") as lines:
            words = [line.split() for line in lines]
    except OSError:
        words = []
    found = set()
    for name in (each[1].partition("%")[0] for each in words if len(each) > 1 and each[0] == "nameserver"):
        for family in (socket.AF_INET, socket.AF_INET6):
            try:
                found.add(socket.inet_pton(family, name))
            except OSError:
                continue
    return frozenset(found or {b"\x7f\0\0\1", bytes(15) + b"\1"})


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
    if answer.verdict != DENIED and 0 < address.port < session.here.first_port and os.geteuid():
        why = f"guard aside: ports below {session.here.first_port} are root's"
        return Answer(DENIED, "bind", why, ORDINARY, real=real)
    return _at(answer, real)


def _at(answer: Answer, real: str) -> Answer:
    from dataclasses import replace

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
        if not address.is_in(entry.addr) and not (entry.addr == "any" and address.is_wildcard()):
            continue
        if not entry.exec:
            why = "an entry of bind_allow has this address and port"
            return Answer(ALLOWED, "bind", why, entry=session.setting("network.bind_allow", entry))
        others.append(entry)
    unseen = f"except for {others[0].exec}, by bind_allow" if others else ""
    if word == "loopback" and address.is_wildcard():
        four = address.v4() is not None
        why = f"bound to {'127.0.0.1' if four else '::1'} instead of every address"
        return Answer(REWRITTEN, "bind", why, SUPERVISOR, setting, unseen)
    why = "only loopback may be bound" if word == "loopback" else "nothing may be bound"
    return Answer(DENIED, "bind", why, SUPERVISOR, setting, unseen, _bind_widen(address))


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
    return _at(answer, str(address))


def _local(address: Address) -> bool:
    return address.is_loopback() or address.is_wildcard()  # connecting to a wildcard is connecting to loopback


def _matches(rule: ConnectRule, address: Address) -> bool:
    return any(low <= address.port <= high for low, high in rule.ports) and (
        address.is_in(rule.to) or (rule.to == "loopback" and _local(address))
    )


def _left_out(rule: ConnectRule, address: Address) -> str:
    """The name in `except` that takes an address away, "" for none."""
    return next((name for name in rule.except_ if address.is_in(name) or (name == "loopback" and _local(address))), "")


def _connect_supervised(session: Session, address: Address) -> Answer:
    if address.port == _DNS and (address.v4() or address.host) in session.here.name_servers:
        return Answer(ALLOWED, "connect", "it is a name server of this host")
    deciding: Entry = session.setting("network.connect")
    why = "no rule of network.connect has this port"
    for rule in session.effective.connect() or ():
        if not _matches(rule, address):
            continue
        found = session.setting("network.connect", rule)
        left_out = _left_out(rule, address)
        if not left_out:
            return Answer(ALLOWED, "connect", "a rule of network.connect has this address and port", entry=found)
        deciding, why = found, f"the rule for this port leaves out {left_out}"
    unseen = "open to the session if it listens there itself" if _local(address) else ""
    to = "loopback" if _local(address) else _network(address)
    widen: dict[str, object] = {"network.connect": [{"ports": [address.port], "to": to}]} if address.port else {}
    return Answer(DENIED, "connect", why, SUPERVISOR, deciding, unseen, widen)


def _connect_by_port(session: Session, address: Address) -> Answer:
    if address.port == _DNS:
        return Answer(ALLOWED, "connect", "the port of name servers is open")
    for rule, ports in connect_ports(session.effective):
        if address.port in ports:
            narrow = rule.to != "any" or rule.except_
            unseen = "NOT HELD here: the rule's addresses need the supervisor" if narrow else ""
            found = session.setting("network.connect", rule)
            return Answer(ALLOWED, "connect", "a rule of network.connect has this port", "", found, unseen)
    widen: dict[str, object] = {"network.connect": [{"ports": [address.port], "to": "any"}]} if address.port else {}
    why = "no rule of network.connect has this port"
    return Answer(DENIED, "connect", why, KERNEL, session.setting("network.connect"), "", widen)


# unix ---------------------------------------------------------------------------------------------------

_FREE = "NOT HELD here: to judge sockets by path needs the supervisor"


def unix(session: Session, path: str) -> Answer:
    """Connect to a unix stream socket by path, or by `@name` to an abstract one."""
    if path.startswith("@"):
        return _abstract(session, path)
    real = os.path.realpath(path)
    if session.files and session.hidden(real):
        denies = session.entry("files.deny", real)
        widen = _widen(session, real, "files.read", denies)
        return Answer(DENIED, "files", "the policy denies this place", MASKED, denies, "", widen, real)
    named = session.entry("unix.allow", real)
    on = session.modes["unix-sockets"] == "enforce"
    if on and "connect" in session.calls and not named and not session.may_write(real):
        unseen = "its name and what may be read beside it are not hidden" if not session.masked else ""
        why = "unix.allow does not name it, and the session could not have made it"
        setting, widen = session.setting("unix.allow"), {"unix.allow": [_pattern(session, real)]}
        return Answer(DENIED, "unix-sockets", why, SUPERVISOR, setting, unseen, widen, real)
    if os.path.lexists(real) and not os.access(real, os.W_OK):
        return Answer(DENIED, "unix-sockets", "guard allows it; its mode does not", ORDINARY, named, real=real)
    if not on:
        why = f"the control unix-sockets is {session.modes['unix-sockets']}"
        return Answer(ALLOWED, "unix-sockets", why, entry=session.setting("controls.unix_sockets"), real=real)
    unseen = _FREE if not named and "connect" not in session.calls and not session.may_write(real) else ""
    why = "unix.allow names it" if named else "it lies in a writable place" if not unseen else "nothing holds it here"
    return Answer(ALLOWED, "unix-sockets", why, "", named, unseen, real=real)


def _pattern(session: Session, real: str) -> str:
    home = session.here.home
    return "{home}" + real[len(home) :] if home and places.is_below(real, home) else real


def _abstract(session: Session, name: str) -> Answer:
    if session.modes["unix-sockets"] != "enforce":
        why = f"the control unix-sockets is {session.modes['unix-sockets']}"
        return Answer(ALLOWED, "unix-sockets", why, entry=session.setting("controls.unix_sockets"), real=name)
    setting = session.setting("unix.abstract")
    layer = SUPERVISOR if "connect" in session.calls else KERNEL if session.abstract else ""
    if not layer:
        unseen = "" if setting.value == "allow" else "NOT HELD here: this kernel does not tell abstract sockets apart"
        return Answer(ALLOWED, "unix-sockets", "nothing holds it here", "", setting, unseen, real=name)
    unseen = "one that the session made itself is open to it"
    widen = {"unix.abstract": "allow"}
    return Answer(DENIED, "unix-sockets", "a socket made outside of the session", layer, setting, unseen, widen, name)
