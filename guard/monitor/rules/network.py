"""Sockets that others can reach."""

from __future__ import annotations

from guard.monitor.facts import AnyFact, Bind, Connect, Listen
from guard.monitor.findings import Context, Example, Outcome, Rule
from guard.monitor.rules.table import AGENT, PLAIN

_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - what is looked for


def _said(fact: Bind | Listen | Connect) -> dict[str, str | int | bool]:
    return {
        "address": fact.address,
        "port": fact.port,
        "family": fact.family,
        "kind": fact.kind,
        "protocol": fact.protocol,
    }


def _reachable(fact: Bind | Listen, context: Context, verb: str) -> Outcome | None:
    if fact.private:
        return None  # in a network namespace of its own, nobody can reach it
    detail = _said(fact)
    where = "every address" if fact.address in _WILDCARDS else fact.address
    object_ = f"{fact.address}:{fact.port}/{fact.kind}"
    if context.allowed_bind:
        return Outcome(
            f"{verb} {where} port {fact.port}, which the policy allows", "info",
            {**detail, "allowed": context.allowed_bind}, object_,
        )  # fmt: skip
    if context.launched:
        return Outcome(
            f"{verb} {where} port {fact.port} within a parallel launcher", "info", {**detail, "launcher": True}, object_
        )
    return Outcome(f"{verb} {where} port {fact.port}: others can reach it", "", detail, object_)


def bind_outside(fact: AnyFact, context: Context) -> Outcome | None:
    """Judge a bind that is not to loopback."""
    assert isinstance(fact, Bind)  # noqa: S101 - the row says so
    return _reachable(fact, context, "bound to")


def listen_outside(fact: AnyFact, context: Context) -> Outcome | None:
    """Judge a listen that is not on loopback; said once, where the bind was told already."""
    assert isinstance(fact, Listen)  # noqa: S101 - the row says so
    return None if context.bound else _reachable(fact, context, "listens on")


def connect_outside(fact: AnyFact, context: Context) -> Outcome | None:
    """Record a connection that leaves the machine: for the log, agents fetch all day."""
    assert isinstance(fact, Connect)  # noqa: S101 - the row says so
    if fact.private or fact.port == 53:
        return None
    detail = {**_said(fact), "more": fact.more} if fact.more else _said(fact)
    return Outcome(f"connected to {fact.address} port {fact.port}", "info", detail, f"{fact.address}:{fact.port}")


def _bind(says: str, address: str, severity: str, *, private: bool = False, context: Context | None = None) -> Example:
    fact = Bind(5, AGENT, address, 8000, "inet6" if ":" in address else "inet", "stream", 6, private)
    return Example(says, fact, context or Context(PLAIN), severity)


def _listen(says: str, port: int, severity: str, context: Context | None = None) -> Example:
    fact = Listen(5, AGENT, _WILDCARDS[0], port, "inet", "stream", 6, False)
    return Example(says, fact, context or Context(PLAIN), severity)


RULES = (
    Rule(
        "bind-outside",
        "bind",
        "medium",
        ("T1571",),
        (Bind,),
        bind_outside,
        "A socket was bound to an address that other machines, or other users, can reach.",
        (
            _bind("python3 -m http.server", "0.0.0.0", "medium"),  # noqa: S104
            _bind("a server on every IPv6 address", "::", "medium"),
            _bind("a server on the cluster's network", "10.1.2.3", "medium"),
            _bind("in a network namespace of its own", "0.0.0.0", "", private=True),  # noqa: S104
            _bind("srun's own ports", "10.1.2.3", "info", context=Context(PLAIN, launched=True)),
            _bind("what the policy allows", "10.1.2.3", "info", context=Context(PLAIN, allowed_bind="SrunPortRange")),
        ),
    ),
    Rule(
        "listen-outside",
        "bind",
        "medium",
        ("T1571",),
        (Listen,),
        listen_outside,
        "A socket listens on an address that other machines can reach, without a bind that was told.",
        (
            _listen("listen without bind: a random port on every address", 40123, "medium"),
            _listen("after a bind that was told", 8000, "", Context(PLAIN, bound=True)),
            _listen("within srun", 60010, "info", Context(PLAIN, launched=True)),
        ),
    ),
    Rule(
        "connect-outside",
        "connect",
        "info",
        (),
        (Connect,),
        connect_outside,
        "A process of the tree, not the harness itself, connected to another machine.",
        (
            Example(
                "curl",
                Connect(5, AGENT, "203.0.113.5", 443, "inet", "stream", 6, False),
                Context(PLAIN),
                "info",
            ),
            Example(
                "a name being looked up",
                Connect(5, AGENT, "10.0.0.53", 53, "inet", "dgram", 17, False),
                Context(PLAIN),
                "",
            ),
        ),
    ),
)
