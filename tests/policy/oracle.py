"""What an effective policy permits, worked out without a line of the code under test.

Variables are put in, paths and addresses compared as a kernel and a supervisor would. Tests ask it
about acts; it knows the words of the policy's reference and nothing of layers.
"""

import fnmatch
import ipaddress
from dataclasses import dataclass
from functools import cache

SESSION = {
    "home": "/home/ada",
    "project": "/home/ada/work/p",
    "tmp": "/tmp/guard-1/x",
    "user": "ada",
    "uid": "7",
}
NETS = {
    "any": ("0.0.0.0/0", "::/0"),
    "loopback": ("127.0.0.0/8", "::1/128"),
    "link-local": ("169.254.0.0/16", "fe80::/10"),
    "metadata": ("169.254.169.254/32", "fd00:ec2::254/128"),
}


@dataclass(frozen=True)
class Act:
    kind: str
    what: object


@cache
def _beneath(path, pattern):
    place = pattern.format(**SESSION)
    parts, wanted = path.strip("/").split("/"), [part for part in place.split("/") if part]
    matching = all(fnmatch.fnmatchcase(*pair) for pair in zip(parts, wanted, strict=False))
    return matching and len(wanted) <= len(parts)


def _inside(path, patterns):
    return any(_beneath(path, pattern) for pattern in patterns)


@cache
def _in_net(address, name):
    address = ipaddress.ip_address(address)
    nets = (ipaddress.ip_network(net) for net in NETS.get(name, (name,)))
    return any(address.version == net.version and address in net for net in nets)


def _in_nets(address, *names):
    return any(_in_net(address, name) for name in names)


def _in_ports(port, ranges):
    return any(low <= port <= high for low, high in ranges)


def _read(values, path):
    grants = (*values["files.read"], *values["files.write"])
    return _inside(path, grants) and not _inside(path, values["files.deny"])


def _write(values, path):
    closed = (*values["files.deny"], *values["files.protect"])
    return _inside(path, values["files.write"]) and not _inside(path, closed)


def _device(values, path):
    return _inside(path, values["files.devices"]) and not _inside(path, values["files.deny"])


def _connect(values, where):
    address, port = where
    rules = values["network.connect"]
    return rules is None or any(
        _in_ports(port, rule.ports) and _in_nets(address, rule.to) and not _in_nets(address, *rule.except_)
        for rule in rules
    )


def _bind(values, where):
    address, port, program = where
    word = values["network.bind"]
    if word == "any" or (word == "loopback" and _in_nets(address, "loopback")):
        return True
    return any(
        _in_ports(port, rule.ports) and _in_nets(address, rule.addr) and rule.exec in ("", program)
        for rule in values["network.bind_allow"]
    )


def _unix(values, path):
    return _inside(path, values["unix.allow"])


def _variable(values, name):
    dropped = any(fnmatch.fnmatchcase(name, glob) for glob in values["env.drop"])
    return not dropped or any(fnmatch.fnmatchcase(name, glob) for glob in values["env.keep"])


def _kept(values, name):
    return any(fnmatch.fnmatchcase(name, glob) for glob in values["env.keep"])


def _at_most(values, what):
    key, order, word = what
    return order.index(values[key]) <= order.index(word)


def _limit(values, what):
    key, number = what
    return values[key] is None or number <= values[key]


def _flag(values, key):
    return values[key] is True


_JUDGES = {
    "read": _read,
    "write": _write,
    "device": _device,
    "connect": _connect,
    "bind": _bind,
    "unix": _unix,
    "variable": _variable,
    "kept": _kept,
    "word": _at_most,
    "limit": _limit,
    "flag": _flag,
}


def permits(values, act):
    """Whether an act may be done; of a word, whether so wide a setting is in force."""
    return _JUDGES[act.kind](values, act.what)


_CONTROLS = (
    "files metadata world_writable setuid bind connect unix_sockets pipe_to_shell processes kernel_surface limits"
)
_SURFACE = "ptrace keyctl userns mount io_uring perf bpf userfaultfd personality packet_sockets xattr binary32"

# Words from wide to tight, written down a second time on purpose.
WORDS = {
    "files.mask": ("never", "auto", "always"),
    "network.bind": ("any", "loopback", "deny"),
    "unix.abstract": ("allow", "deny"),
    "unix.datagram": ("allow", "deny"),
    "modes.world_writable": ("off", "observe", "strip", "deny"),
    "modes.setuid": ("off", "observe", "deny"),
    "pipe_to_shell.action": ("observe", "deny"),
    **{f"hand_off.{name}": ("observe", "deny") for name in ("slurm", "at", "ssh", "tmux", "systemd")},
    "kernel.sysv_ipc": ("allow", "private", "deny"),
    **{f"kernel.{name}": ("allow", "deny") for name in _SURFACE.split()},
    **{f"controls.{name}": ("off", "observe", "enforce") for name in _CONTROLS.split()},
    **{f"on_fault.{name}": ("warn", "default", "refuse") for name in _CONTROLS.split()},
    "on_fault.events": ("warn", "refuse"),
    "harness.overlays": ("auto", "off"),
}
LIMITS = tuple(f"limits.{name}" for name in ("core", "processes", "open_files", "memory", "file_size", "cpu_seconds"))

_PLACES = [
    "/usr/bin/ls",
    "/data",
    "/data/x",
    "/data/x/y",
    "/datax",
    "/etc/passwd",
    "/home/ada",
    "/home/ada/.ssh/id",
    "/home/ada/.config/a",
    "/home/ada/work/p",
    "/home/ada/work/p/src/a.c",
    "/home/ada/work/p/.git/hooks/x",
    "/tmp/guard-1/x/t",
    "/tmp/other",
    "/run/user/7/bus",
    "/dev/null",
    "/",
]
_ADDRESSES = [
    "127.0.0.1",
    "127.9.9.9",
    "::1",
    "10.1.2.3",
    "10.200.0.1",
    "8.8.8.8",
    "169.254.169.254",
    "fe80::1",
    "2001:db8::1",
]
_PORTS = (1, 22, 80, 443, 444, 8080, 60001, 65535)

ACTS = (
    *(Act(kind, path) for kind in ("read", "write", "unix") for path in _PLACES),
    *(Act("device", path) for path in ("/dev/null", "/dev/nvidia0", "/dev/nvidia-caps/c1", "/dev/pts/3", "/dev/shm/a")),
    *(Act("connect", (address, port)) for address in _ADDRESSES for port in _PORTS),
    *(
        Act("bind", (address, port, program))
        for address in _ADDRESSES
        for port in _PORTS
        for program in ("/usr/bin/srun", "/usr/bin/nc")
    ),
    *(
        Act(kind, name)
        for kind in ("kept", "variable")
        for name in ("AWS_KEY", "AWS_REGION", "SSH_AUTH_SOCK", "PATH", "X_API_KEY")
    ),
    *(Act("word", (key, order, word)) for key, order in WORDS.items() for word in order),
    *(Act("limit", (key, number)) for key in LIMITS for number in (0, 1, 100, 10**9)),
    Act("flag", "project.worktrees"),
)
