"""Run a command on another host than this one: the kernel's answers are changed at the system-call edge.

    python tests/fakehost.py --abi 3 -- guard doctor
    python tests/fakehost.py --landlock EOPNOTSUPP -- guard run -- true
    python tests/fakehost.py --like rhel8 -- guard doctor --json
    python tests/fakehost.py --hide-libseccomp -- guard policy compile
    python tests/fakehost.py --fail landlock_restrict_self=OK -- guard doctor

A seccomp filter above the command answers for a kernel that this one is not; what only bytes in the
caller's memory can decide (`landlock_create_ruleset`) goes to a user notification that this process
answers. Nothing in guard knows that it is tested, and nothing is patched: fresh processes, real calls.

What a simulated Landlock ABI N does is what a kernel of that ABI does: it says N, refuses rights, sizes,
rule types and flags that N does not have (EINVAL, E2BIG), and enforces the rest for real. One thing
differs: with `--abi` this filter holds the only listener a task may have, so that a second one is EBUSY.

`--hide-libseccomp` puts an empty file over the library and a linker cache without it, in a mount namespace
of its own (root) or a user namespace (anybody else), so that it is missing for the dynamic loader too.

Exits as the command does, with 2 for a wrong command line and 77 where this host cannot play the part.
"""

import argparse
import ctypes
import errno
import fcntl
import glob
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile

CANNOT = 77  # automake's "skipped"

_MACHINE = os.uname().machine
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[_MACHINE]
_COLUMN = {"x86_64": 0, "aarch64": 1}[_MACHINE]
# From 424 on every 64-bit architecture uses the same number; the older ones differ.
_OLD = {
    "unshare": (272, 97),
    "clone": (56, 220),
    "mount": (165, 40),
    "prctl": (157, 167),
    "seccomp": (317, 277),
    "setns": (308, 268),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "kcmp": (312, 272),
}
_NEW = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "pidfd_open": 434,
    "clone3": 435,
    "close_range": 436,
    "openat2": 437,
    "pidfd_getfd": 438,
    "faccessat2": 439,
    "process_madvise": 440,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    "fchmodat2": 452,
    "setxattrat": 463,
}
NR = {**{name: numbers[_COLUMN] for name, numbers in _OLD.items()}, **_NEW}
LANDLOCK_CALLS = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")

# Highest system call of a release from 424 on, where numbers are the same everywhere; 4.18 has none of them.
_LIKE = {
    "rhel8": ["--ceiling", "423", "--no-notify"],
    "rhel9": ["--abi", "5", "--no-wait-killable", "--no-pidfd-thread"],
    "sles15": ["--landlock", "EOPNOTSUPP", "--ceiling", "451", "--no-pidfd-thread"],
}

_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16, 6: 16, 7: 16}
_ATTR_SIZE = {1: 8, 2: 8, 3: 8, 4: 16, 5: 16, 6: 24, 7: 24}
_CLONE_NEWUSER = 0x10000000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _call(number: int, *args: object) -> int:
    ctypes.set_errno(0)
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result: int = _libc.syscall(ctypes.c_long(number), *converted)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# --- the filter: one rule a line, the first that matches answers ---------------------------------------

_ALLOW, _ERRNO, _NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000
Test = tuple[int, str, int]  # argument 0..5, "==", "!=" or "&", 32-bit value


class Rules:
    """Rows of (system call or lowest number, tests on the low word of arguments, answer)."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, bool, tuple[Test, ...], int]] = []

    def fail(self, name: str, error: int, *tests: Test) -> None:
        self.rows.append((NR[name], False, tests, _ERRNO | error))

    def fail_from(self, number: int, error: int) -> None:
        self.rows.append((number, True, (), _ERRNO | error))

    def notify(self, name: str, *tests: Test) -> None:
        self.rows.append((NR[name], False, tests, _NOTIFY))

    @property
    def notifies(self) -> bool:
        return any(answer == _NOTIFY for *_, answer in self.rows)

    def assemble(self) -> bytes:
        """Classic BPF; each row is a block that falls through to the next when a test fails."""

        def op(code: int, true: int, false: int, k: int) -> bytes:
            return struct.pack("<HBBI", code, true, false, k)

        load, equal, at_least, any_bit, ret = 0x20, 0x15, 0x35, 0x45, 0x06
        # Another architecture's calls are not ours to judge.
        out = [op(load, 0, 0, 4), op(equal, 1, 0, _ARCH), op(ret, 0, 0, _ALLOW)]
        for number, from_here, tests, answer in self.rows:
            rest = 2 * len(tests) + 1
            block = [op(load, 0, 0, 0), op(at_least if from_here else equal, 0, rest, number)]
            for index, (arg, how, value) in enumerate(tests):
                to_next = rest - 2 * (index + 1)
                block.append(op(load, 0, 0, 16 + 8 * arg))
                code = any_bit if how == "&" else equal
                block.append(op(code, to_next, 0, value) if how == "!=" else op(code, 0, to_next, value))
            out += [*block, op(ret, 0, 0, answer)]
        out.append(op(ret, 0, 0, _ALLOW))
        return b"".join(out)


def rules_of(options: argparse.Namespace) -> Rules:
    """Turn the options into rules; rows that answer with an error come before those that ask."""
    rules = Rules()
    for name, error in options.fail:
        rules.fail(name, error)
    if options.landlock:
        for name in LANDLOCK_CALLS:
            rules.fail(name, options.landlock)
    if options.no_userns:
        rules.fail("unshare", errno.EPERM, (0, "&", _CLONE_NEWUSER))
        rules.fail("clone", errno.EPERM, (0, "&", _CLONE_NEWUSER))
        rules.fail("clone3", errno.ENOSYS)
    if options.no_seccomp:
        rules.fail("seccomp", errno.EINVAL, (0, "==", 1))
        rules.fail("prctl", errno.EINVAL, (0, "==", 22))
    if options.no_notify:
        rules.fail("seccomp", errno.EINVAL, (0, "==", 1), (1, "&", 8))
        rules.notify("seccomp", (0, "==", 2))
        rules.fail("seccomp", errno.EINVAL, (0, "==", 3))
    if options.no_wait_killable:
        rules.fail("seccomp", errno.EINVAL, (0, "==", 1), (1, "&", 32))
    if options.no_pidfd_thread:
        rules.fail("pidfd_open", errno.EINVAL, (1, "&", 0x80))
    if options.abi:
        if options.abi < 7:
            rules.fail("landlock_restrict_self", errno.EINVAL, (1, "!=", 0))
            rules.fail("landlock_create_ruleset", errno.EINVAL, (2, "==", 2))
        if options.abi < 4:
            rules.fail("landlock_add_rule", errno.EINVAL, (1, "==", 2))
        rules.notify("landlock_create_ruleset")
    if options.ceiling:
        rules.fail_from(options.ceiling + 1, errno.ENOSYS)
    return rules


# --- the supervisor ------------------------------------------------------------------------------------

_RECV, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1


def judge(abi: int, number: int, pid: int, args: tuple[int, ...]) -> int:
    """What such a kernel returns: a number, a negative errno, or 0 for "go on, it is the real kernel's"."""
    try:
        if number == NR["seccomp"]:
            return _judge_action(pid, args[2])
        return _judge_ruleset(abi, pid, args)
    except OSError as error:
        print(f"fakehost: cannot read the caller's memory: {error}", file=sys.stderr)
        return -errno.EFAULT


def _peek(pid: int, address: int, size: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(size)


def _judge_action(pid: int, pointer: int) -> int:
    """SECCOMP_GET_ACTION_AVAIL on a kernel without USER_NOTIF; the other actions are older."""
    (action,) = struct.unpack("=I", _peek(pid, pointer, 4))
    return -errno.EOPNOTSUPP if action == _NOTIFY else 0


def _judge_ruleset(abi: int, pid: int, args: tuple[int, ...]) -> int:
    attr, size, flags = args[0], args[1], args[2] & 0xFFFFFFFF
    if flags == 2:  # the errata: only ABI 7 gets here, and they are the real kernel's
        return 0
    if flags:
        return abi if flags == 1 and not attr and not size else -errno.EINVAL
    if size < 8:
        return -errno.EINVAL
    data = _peek(pid, attr, min(size, 64))
    known = _ATTR_SIZE[abi]
    if any(data[known:]):
        return -errno.E2BIG
    fs, net, scoped = struct.unpack("<QQQ", data[:known].ljust(24, b"\0"))
    if fs >> _FS_BITS[abi] or net & ~3 or scoped & ~3:
        return -errno.EINVAL
    return 0


def serve(listener: int, abi: int, pid: int) -> None:
    """Answer until the child is gone; what outlives it gets ENOSYS, as on a kernel without Landlock."""
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(pidfd, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if pidfd in ready:
            return
        request = bytearray(80)  # must be zero before RECV
        try:
            fcntl.ioctl(listener, _RECV, request)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):  # the caller died meanwhile
                continue
            raise
        ident, caller = struct.unpack_from("=QI", request)
        (number,) = struct.unpack_from("=i", request, 16)
        value = judge(abi, number, caller, struct.unpack_from("=6Q", request, 32))
        if value > 0:
            answer = struct.pack("<QqiI", ident, value, 0, 0)
        elif value < 0:
            answer = struct.pack("<QqiI", ident, 0, value, 0)
        else:
            answer = struct.pack("<QqiI", ident, 0, 0, _CONTINUE)
        try:
            fcntl.ioctl(listener, _SEND, answer)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise


def load(rules: Rules) -> int:
    """Load the filter into this process; return the listener, or -1 when nothing is notified.

    no_new_privs is set only for a caller without CAP_SYS_ADMIN: tests as root become another user below.
    """
    program = rules.assemble()
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = ctypes.create_string_buffer(struct.pack("<H6xQ", len(program) // 8, ctypes.addressof(buffer)), 16)
    flags = 8 if rules.notifies else 0
    try:
        result = _call(NR["seccomp"], 1, flags, fprog)
    except OSError as error:
        if error.errno != errno.EACCES:
            raise
        _call(NR["prctl"], 38, 1, 0, 0, 0)
        result = _call(NR["seccomp"], 1, flags, fprog)
    return result if rules.notifies else -1


def stack_layers(count: int) -> None:
    """Enforce `count` real Landlock layers that permit everything, so that later ones count from there.

    REFER is denied by every layer that does not grant it, so each handles it alone and grants it at /.
    """
    _call(NR["prctl"], 38, 1, 0, 0, 0)
    for _ in range(count):
        refer = struct.pack("<Q", 1 << 13)
        ruleset = _call(NR["landlock_create_ruleset"], refer, 8, 0)
        root = os.open("/", os.O_PATH | os.O_CLOEXEC)
        _call(NR["landlock_add_rule"], ruleset, 1, struct.pack("<QI", 1 << 13, root), 0)
        _call(NR["landlock_restrict_self"], ruleset, 0)
        os.close(root)
        os.close(ruleset)


def _mount(source: str, target: str, flags: int) -> None:
    nothing = ctypes.c_void_p(None)
    _call(NR["mount"], source.encode(), target.encode(), nothing, flags, nothing)


def hide_libseccomp() -> None:
    """Make libseccomp missing for this process and its children, in a mount namespace of its own."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        _call(NR["unshare"], 0x20000)
    else:
        _call(NR["unshare"], _CLONE_NEWUSER | 0x20000)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as handle:
                handle.write(text)
    _mount("none", "/", 0x4000 | 0x80000)  # recursive slave: nothing leaks back
    places = (
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/lib/*-linux-gnu",
        "/usr/lib/*-linux-gnu",
    )
    found = {os.path.realpath(f) for place in places for f in glob.glob(f"{place}/libseccomp.so*")}
    with tempfile.TemporaryDirectory() as scratch:
        empty, cache = os.path.join(scratch, "empty"), os.path.join(scratch, "ld.so.cache")
        with open(empty, "wb"):
            pass
        for library in found:
            _mount(empty, library, 0x1000)
        # ldconfig leaves an empty file out: the new cache no longer names the library.
        ldconfig = next((p for p in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if os.path.exists(p)), None)
        if ldconfig and os.path.exists("/etc/ld.so.cache"):
            subprocess.run([ldconfig, "-X", "-C", cache], check=True, capture_output=True)
            os.chmod(cache, 0o644)
            _mount(cache, "/etc/ld.so.cache", 0x1000)


# --- the command line ----------------------------------------------------------------------------------


def _errno(text: str) -> int:
    if text == "OK":  # answered with 0, and nothing done: the layer that is silently not there
        return 0
    number = getattr(errno, text, None)
    if not isinstance(number, int):
        raise argparse.ArgumentTypeError(f"{text!r} is no errno name")
    return number


def _failure(text: str) -> tuple[str, int]:
    name, _, error = text.partition("=")
    if name not in NR:
        raise argparse.ArgumentTypeError(f"{name!r}: known are {', '.join(sorted(NR))}")
    return name, _errno(error or "ENOSYS")


def parse(argv: list[str]) -> argparse.Namespace:
    """Split at `--`; a preset (`--like`) is replaced by the options that it stands for."""
    parser = argparse.ArgumentParser(prog="fakehost.py", description="run a command on a simulated host")
    parser.add_argument("--like", choices=sorted(_LIKE), help="a preset")
    parser.add_argument("--abi", type=int, choices=range(1, 8), help="Landlock of this ABI")
    parser.add_argument("--landlock", type=_errno, metavar="ERRNO", help="every Landlock call fails so")
    parser.add_argument("--layers", type=int, default=0, help="real Landlock layers already above (16: full)")
    parser.add_argument("--fail", type=_failure, action="append", default=[], metavar="CALL=ERRNO")
    parser.add_argument("--ceiling", type=int, help="system calls above this number (>= 423) do not exist")
    parser.add_argument("--no-userns", action="store_true", help="user namespaces are refused")
    parser.add_argument("--no-seccomp", action="store_true", help="no seccomp filters")
    parser.add_argument("--no-notify", action="store_true", help="no seccomp user notification (before 5.0)")
    parser.add_argument("--no-wait-killable", action="store_true", help="before 5.19")
    parser.add_argument("--no-pidfd-thread", action="store_true", help="before 6.9")
    parser.add_argument("--hide-libseccomp", action="store_true", help="libseccomp is not installed")
    parser.add_argument("command", nargs="+", metavar="-- CMD")
    if "--" not in argv:
        parser.error("a command after -- is needed")
    split = argv.index("--")
    options, command = argv[:split], argv[split + 1 :]
    if "--like" in options:
        at = options.index("--like")
        options[at : at + 2] = _LIKE.get(options[at + 1], ["--like", options[at + 1]])
    parsed = parser.parse_args([*options, "--", *command])
    if parsed.ceiling is not None and parsed.ceiling < 423:
        parser.error("--ceiling counts the calls that have one number everywhere, from 423 on")
    return parsed


def _exec(command: list[str]) -> None:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"fakehost: {command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127 if error.errno == errno.ENOENT else 126)


def _prepare(options: argparse.Namespace) -> int:
    try:
        if options.hide_libseccomp:
            hide_libseccomp()
        if options.layers:
            stack_layers(options.layers)
        rules = rules_of(options)
        return load(rules) if rules.rows else -1
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"fakehost: this host cannot play that part: {error}", file=sys.stderr)
        os._exit(CANNOT)


def main(argv: list[str]) -> int:
    """Without a notification exec in place; else stay as the one that answers, and end as the child does."""
    options = parse(argv)
    if not rules_of(options).notifies:
        _prepare(options)
        _exec(options.command)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        listener = _prepare(options)
        socket.send_fds(theirs, [b"n"], [listener])
        os.close(listener)  # a copy in the child would make its calls hang for ever once we are gone
        theirs.close()
        _exec(options.command)
    theirs.close()
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    ours.close()
    for number in (signal.SIGINT, signal.SIGQUIT):  # the terminal sends these to the child as well
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda n, _frame: os.kill(pid, n))
    if descriptors:
        serve(descriptors[0], options.abi, pid)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
