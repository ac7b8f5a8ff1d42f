"""What a site decides about the monitor: `monitor.toml` of the configuration directory.

Every key has a default, so that a node without the file is watched all the same. A file that does not load keeps the
settings in force, and is an alert.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from guard.errors import UsageError
from guard.events.model import Severity
from guard.monitor.catalogue import CONFIDENCES, LONGEST_NAME, RUNTIMES, Catalogue, Harness, is_shell, row_from, shipped
from guard.monitor.programs import TRUSTED
from guard.policy import addresses
from guard.policy.addresses import Network
from guard.policy.load import check_schema
from guard.policy.model import BindAllow
from guard.policy.source import Document, read_document
from guard.policy.values import Reading, describe

FILE = "monitor.toml"
SEVERITIES = ("off", *(each.label for each in Severity))

LAUNCHERS = (
    "srun", "salloc", "mpirun", "mpiexec", "mpiexec.hydra", "mpiexec.slurm", "orterun", "prterun", "orted", "prted",
    "prte", "hydra_pmi_proxy", "hydra_bstrap_proxy", "hydra_nameserver", "pmi_proxy", "aprun", "jsrun", "flux", "ibrun",
)  # fmt: skip
"""What starts parallel programs, which bind to the cluster's addresses: no finding of theirs asks for attention."""


@dataclass(frozen=True)
class Limits:
    """What a tree may do before it is told; 0 is no limit.

    Args:
        window: seconds over which is counted.
        commands, scheduler_polls, metadata_calls: in that time.
        polls_per_job: scheduler commands for each job that the tree has submitted, over its whole life.
    """

    window: int = 60
    commands: int = 30_000
    scheduler_polls: int = 20
    metadata_calls: int = 3_000_000
    polls_per_job: int = 200


@dataclass(frozen=True)
class MonitorSettings:
    """What a site decides.

    Args:
        catalogue: the harnesses.
        least: the least confidence at which a process is labelled.
        unwrapped: severity of an agent that runs without `guard run`, or `off`.
        severities: rule → severity or `off`, where it is not the rule's own.
        enforce: rule of the kernel's side → `deny` or `rewrite`.
        trusted: names of fetchers.
        launchers: names of what starts parallel programs.
        bind_allow: addresses that may be bound on this node.
        external: networks that count as outside.
        proxies: loopback ports behind which is the outside.
        limits: of rates.
        uids: uids whose trees are watched, () for all; `exempt`: those that are not.
        record_argv: whether a finding tells the arguments, redacted.
        max_cost: share of one processor above which the syscall-wide programs are detached; 0 is no cap.
        metrics_port: loopback port of the metrics, 0 for none beside the unix socket.
        fail_closed: whether enforcement stays when the monitor ends.
    """

    catalogue: Catalogue = field(default_factory=shipped)
    least: str = "medium"
    unwrapped: str = "low"
    severities: Mapping[str, str] = field(default_factory=dict)
    enforce: Mapping[str, str] = field(default_factory=dict)
    trusted: tuple[str, ...] = TRUSTED
    launchers: tuple[str, ...] = LAUNCHERS
    bind_allow: tuple[BindAllow, ...] = ()
    external: tuple[Network, ...] = ()
    proxies: tuple[int, ...] = ()
    limits: Limits = Limits()
    uids: tuple[int, ...] = ()
    exempt: tuple[int, ...] = ()
    record_argv: bool = True
    max_cost: float = 0.0
    metrics_port: int = 0
    fail_closed: bool = False

    def watches(self, uid: int) -> bool:
        """Whether trees of a user are watched: the one place that decides it."""
        return uid not in self.exempt and (not self.uids or uid in self.uids)

    def sure_enough(self, confidence: str) -> bool:
        """Whether a sign of that confidence labels."""
        return CONFIDENCES.index(confidence) >= CONFIDENCES.index(self.least)

    def with_options(self, harnesses: Iterable[Harness], external: Iterable[Network]) -> MonitorSettings:
        """Return them with what the command line adds."""
        return replace(
            self, catalogue=self.catalogue.with_rows(harnesses), external=(*self.external, *external)
        )  # fmt: skip


def network(text: str) -> Network:
    """Read a CIDR of the command line.

    Raises:
        UsageError: it is none.
    """
    try:
        return ipaddress.ip_network(addresses.address(text, ()))
    except ValueError as error:
        raise UsageError(f"--external: {error}") from None


def load(config_dir: str, rules: Iterable[str]) -> MonitorSettings:
    """Read the site's monitor.toml; the defaults where there is none.

    Args:
        config_dir: the configuration directory.
        rules: names of the rules, which `[severity]` may name.

    Raises:
        PolicyError: the file is there and cannot be used; the sentence shows the place.
    """
    doc = read_document(os.path.join(config_dir, FILE))
    return MonitorSettings() if doc is None else from_document(doc, rules)


_ENFORCED = {
    "world-writable": ("deny",),
    "bind": ("deny", "rewrite"),
    "listen": ("deny",),
    "code-from-outside": ("deny",),
}
_MONITOR = (
    "unwrapped", "least_confidence", "external", "proxies", "users", "exempt_users", "record_argv", "max_cost",
    "metrics_port", "fail_closed",
)  # fmt: skip
_ROW = (
    "title",
    "programs",
    "scripts",
    "modules",
    "runtimes",
    "paths",
    "only",
    "unless",
    "extension_hosts",
    "confidence",
)


def from_document(doc: Document, rules: Iterable[str]) -> MonitorSettings:
    """Check a document; arguments, result and errors as `load`."""
    reading = Reading(doc, frozenset())
    check_schema(reading)
    known = ("schema", "monitor", "severity", "enforce", "fetchers", "launchers", "bind_allow", "limits", "harness")
    for name in doc.data:
        if name not in known:
            reading.unknown((name,), name, known, "table")
    out = _monitor(reading, MonitorSettings())
    severities = reading.table(doc.data.get("severity", {}), ("severity",), tuple(rules), "[severity]")
    enforce = reading.table(doc.data.get("enforce", {}), ("enforce",), tuple(_ENFORCED), "[enforce]")
    return replace(
        out,
        severities={name: _word(reading, ("severity", name), value, SEVERITIES) for name, value in severities.items()},
        enforce={
            name: _word(reading, ("enforce", name), value, ("off", *_ENFORCED[name]))
            for name, value in enforce.items()
            if value != "off"
        },
        trusted=_names(reading, "fetchers", TRUSTED),
        launchers=_names(reading, "launchers", LAUNCHERS),
        bind_allow=_bind_allow(reading),
        limits=_limits(reading),
        catalogue=_catalogue(reading, out.catalogue),
    )


def _monitor(reading: Reading, out: MonitorSettings) -> MonitorSettings:
    table = reading.table(reading.doc.data.get("monitor", {}), ("monitor",), _MONITOR, "[monitor]")

    def numbers(key: str, most: int) -> tuple[int, ...]:
        listed = reading.array(table.get(key, []), ("monitor", key), key)
        return tuple(_number(reading, ("monitor", key, at), value, most) for at, value in enumerate(listed))

    external = tuple(
        ipaddress.ip_network(reading.address(value, ("monitor", "external", at), "a network", ()))
        for at, value in enumerate(reading.array(table.get("external", []), ("monitor", "external"), "external"))
    )
    cost = table.get("max_cost", out.max_cost)
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost <= 1:
        reading.fail(("monitor", "max_cost"), "max_cost is a share of one processor, from 0 (no cap) to 1")
    flags = {}
    for key in ("record_argv", "fail_closed"):
        flags[key] = table.get(key, getattr(out, key))
        if not isinstance(flags[key], bool):
            reading.fail(("monitor", key), f"{key} is true or false, not {describe(flags[key])}")
    return replace(
        out,
        unwrapped=_word(reading, ("monitor", "unwrapped"), table.get("unwrapped", out.unwrapped), SEVERITIES),
        least=_word(
            reading, ("monitor", "least_confidence"), table.get("least_confidence", out.least), CONFIDENCES
        ),
        external=external,
        proxies=numbers("proxies", addresses.LAST_PORT),
        uids=numbers("users", 2**32 - 2),
        exempt=numbers("exempt_users", 2**32 - 2),
        record_argv=bool(flags["record_argv"]),
        fail_closed=bool(flags["fail_closed"]),
        max_cost=float(cost),
        metrics_port=_number(
            reading, ("monitor", "metrics_port"), table.get("metrics_port", 0), addresses.LAST_PORT
        ),
    )  # fmt: skip


def _word(reading: Reading, where: tuple[str | int, ...], value: object, words: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in words:
        reading.fail(where, f"{where[-1]} is one of {', '.join(words)}")
    return value


def _number(reading: Reading, where: tuple[str | int, ...], value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        reading.fail(where, f"is a number from 0 to {most}")
    return value


def _names(reading: Reading, table: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """Read `add` and `remove` of a list of program names."""
    content = reading.table(reading.doc.data.get(table, {}), (table,), ("add", "remove"), f"[{table}]")
    lists: dict[str, list[str]] = {}
    for key in ("add", "remove"):
        listed = reading.array(content.get(key, []), (table, key), key)
        lists[key] = [reading.text(each, (table, key, at), "a program", empty=False) for at, each in enumerate(listed)]
        for at, each in enumerate(lists[key]):
            if "/" in each:
                reading.fail((table, key, at), "a program's name, without directories")
            if key == "remove" and each not in default and each != "*":
                reading.unknown((table, key, at), each, default, "program")
    kept = () if "*" in lists["remove"] else tuple(name for name in default if name not in lists["remove"])
    return tuple(dict.fromkeys((*kept, *lists["add"])))


def _bind_allow(reading: Reading) -> tuple[BindAllow, ...]:
    out = []
    for at, row in enumerate(reading.array(reading.doc.data.get("bind_allow", []), ("bind_allow",), "bind_allow")):
        where = ("bind_allow", at)
        table = reading.table(row, where, ("addr", "ports", "exec", "reason"), "an entry of bind_allow")
        if "reason" not in table:
            reading.fail(where, "an entry of bind_allow widens what passes: it needs a `reason`")
        out.append(
            BindAllow(
                reading.address(table.get("addr", "any"), (*where, "addr"), "addr", addresses.NAMED),
                reading.ports(table["ports"], (*where, "ports")) if "ports" in table else addresses.EVERY_PORT,
                reading.text(table.get("exec", ""), (*where, "exec"), "exec"),
                reading.text(table["reason"], (*where, "reason"), "reason", empty=False),
            )
        )
    return tuple(out)


def _limits(reading: Reading) -> Limits:
    names = tuple(Limits.__dataclass_fields__)
    table = reading.table(reading.doc.data.get("limits", {}), ("limits",), names, "[limits]")
    values = {name: _number(reading, ("limits", name), value, 2**53) for name, value in table.items()}
    if values.get("window", 1) == 0:
        reading.fail(("limits", "window"), "window is a number of seconds, at least 1")
    return Limits(**values)


def _catalogue(reading: Reading, catalogue: Catalogue) -> Catalogue:
    given = reading.doc.data.get("harness", {})
    names = tuple(given) if isinstance(given, dict) else ()
    content = reading.table(given, ("harness",), names, "[harness]")
    rows = []
    for name, value in content.items():
        where = ("harness", name)
        reading.name(name, where, "a harness")
        table = dict(reading.table(value, where, _ROW, f"[harness.{name}]"))
        for key, each in table.items():
            if key in ("title", "confidence"):
                continue
            for at, word in enumerate(reading.array(each, (*where, key), key)):
                text = reading.text(word, (*where, key, at), key, empty=key == "only")
                if key in ("programs", "scripts", "modules") and len(text.encode()) > LONGEST_NAME:
                    reading.fail(
                        (*where, key, at), f"a name has at most {LONGEST_NAME} bytes, as the kernel's side has it"
                    )
                if key == "programs" and is_shell(text):
                    reading.fail(
                        (*where, key, at), "a person's shell is never an agent's; name the agent's own program"
                    )
        _word(reading, (*where, "confidence"), table.get("confidence", "medium"), CONFIDENCES)
        for at, word in enumerate(table.get("runtimes", ())):  # type: ignore[arg-type]
            _word(reading, (*where, "runtimes", at), word, tuple(RUNTIMES))
        if not any(table.get(key) for key in ("programs", "scripts", "modules", "paths", "extension_hosts")):
            reading.fail(where, f"[harness.{name}] has nothing to be recognised by; give programs, scripts or paths")
        rows.append(row_from(name, table))
    return catalogue.with_rows(rows)
